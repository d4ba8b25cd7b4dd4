// The role of an account in a project of GitLab's, "" if it is not in the table of members.
(account) => {
  const members = [...document.querySelectorAll("td[data-label='Account'] span.gl-avatar-labeled-sublabel")];
  const index = members.findIndex((member) => member.outerText === "@" + account);
  return index < 0 ? "" : document.querySelectorAll("td.col-max-role span")[index].outerText;
}
