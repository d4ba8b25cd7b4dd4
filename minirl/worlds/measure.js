// What replay.py and scripted_agent.py ask a page before they move the mouse: a measure's name, and what it
// is to be taken of. Lengths are CSS pixels.
([name, ...given]) => {
  const measures = {
    // Left, top, right and bottom of an element, which is scrolled into view; null if it is not to be seen.
    box(selector) {
      const e = document.querySelector(selector);
      if (!e) return null;
      e.scrollIntoView({ block: "nearest", behavior: "instant" });
      const r = e.getBoundingClientRect();
      return r.width > 0 && r.height > 0 ? [r.left, r.top, r.right, r.bottom] : null;
    },
    // What stands on an element, or beside a field; at most so much as a person would quote.
    words(selector) {
      const e = document.querySelector(selector), label = e && e.labels && e.labels[0];
      const said = e && (e.innerText || e.getAttribute("aria-label") || (label && label.innerText)
        || e.getAttribute("placeholder"));
      return (said || "").trim().replace(/\s+/g, " ").slice(0, 80);
    },
    // How far a list is to be scrolled for a row to be its first.
    distance(list, row) {
      const box = document.querySelector(list), e = box && box.querySelector(row);
      return e ? e.getBoundingClientRect().top - box.getBoundingClientRect().top - box.clientTop : null;
    },
    // Where a slider's thumb is, and where it is to go: two x and one y.
    thumb(selector, share) {
      const e = document.querySelector(selector), r = e.getBoundingClientRect(), thumb = 16;
      const at = (part) => r.left + thumb / 2 + part * (r.width - thumb);
      return [at((e.value - e.min) / ((e.max - e.min) || 1)), at(share), (r.top + r.bottom) / 2];
    },
    // Resolves when what has been scrolled has reached the page's own listeners.
    frames() {
      return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
    },
  };
  return measures[name](...given);
}
