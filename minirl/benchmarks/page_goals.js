// The text that a page shows, and by name the values of form fields: each field may have several spellings.
(names) => {
  const tidy = (text) => (text ?? "").replace(/\s+/g, " ").trim().replace(/[\s:*]+$/, "");
  const labels = (field) =>
    [...(field.labels ?? [])].map((label) => {
      const copy = label.cloneNode(true);
      copy.querySelectorAll("select, textarea").forEach((inner) => inner.remove());
      return tidy(copy.textContent);
    });
  const values = (field) => {
    if (["checkbox", "radio"].includes(field.type)) return field.checked ? ["true", field.value] : ["false"];
    if (field.tagName === "SELECT")
      return [...field.selectedOptions].flatMap((option) => [tidy(option.text), option.value]);
    return [field.value ?? field.innerText ?? ""].map(String);
  };
  const all = [...document.querySelectorAll("input, select, textarea, [contenteditable]")];
  const find = (name) => {
    let found = [];
    try {
      found = [...document.querySelectorAll(name)];
    } catch {} // not a CSS selector
    if (!found.length)
      found = all.filter((f) => [...labels(f), tidy(f.getAttribute("aria-label"))].includes(tidy(name)));
    return found.length ? found : all.filter((field) => field.name === name);
  };
  const fields = Object.fromEntries(names.map((name) => [name, find(name).flatMap(values)]));
  return { text: document.body?.innerText ?? "", fields };
}
