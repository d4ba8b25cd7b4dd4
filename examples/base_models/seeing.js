// The controls that a shop's page shows, for seeing.py: the word of each, its box, and its letters with theirs.
// A box is left, top, right and bottom in shares of the window.
() => {
  const box = (one) => {
    const { left, top, right, bottom } = one.getBoundingClientRect();
    return [left / innerWidth, top / innerHeight, right / innerWidth, bottom / innerHeight];
  };
  return [...document.querySelectorAll(".row, .button")].map((control) => {
    const node = (control.querySelector(".title") ?? control).firstChild, shown = node.data.toLowerCase();
    const id = /data-id-(\S+)/.exec(control.className), range = document.createRange();
    const letters = [...shown].map((letter, i) => {
      range.setStart(node, i);
      range.setEnd(node, i + 1);
      return [letter, ...box(range)];
    });
    return { word: id === null ? shown : id[1], box: box(control), letters };
  });
}
