// What hand.py asks a page before the mouse moves: a measure's name, and what it
// is to be taken of. Lengths are CSS pixels.
([name, ...given]) => {
  const measures = {
    // Left, top, right and bottom of an element; a point, x and y, and by how much is to be scrolled there for
    // the element to be in the window, 0 if it is. Null if there is nothing to be seen of it.
    box(selector) {
      const e = document.querySelector(selector);
      if (!e) return null;
      const r = e.getBoundingClientRect(), middle = (r.top + r.bottom) / 2;
      if (r.width <= 0 || r.height <= 0) return null;
      const found = [r.left, r.top, r.right, r.bottom];
      for (let up = e.parentElement; up; up = up.parentElement) {
        const isRoot = up === document.documentElement, area = up.getBoundingClientRect();
        const scrolls = /auto|scroll/.test(getComputedStyle(up).overflowY) && up.scrollHeight > up.clientHeight;
        if (!isRoot && (up === document.body || !scrolls)) continue;
        const top = isRoot ? 0 : Math.max(0, area.top + up.clientTop);
        const bottom = isRoot ? innerHeight : Math.min(innerHeight, area.top + up.clientTop + up.clientHeight);
        const half = Math.min(r.height, bottom - top) / 2;
        if (middle - half > top - 1 && middle + half < bottom + 1) continue;
        const x = isRoot ? innerWidth / 2 : (area.left + area.right) / 2;
        return [...found, x, (top + bottom) / 2, middle - (top + bottom) / 2];
      }
      return [...found, 0, 0, 0];
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
