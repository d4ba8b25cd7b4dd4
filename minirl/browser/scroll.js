// Scrolls the innermost area under a point, or without one the page; where the page itself can't, as in
// applications whose body fills the window, its largest area. Answers how far, in pixels, and if that is
// the end.
function scroll([point, dx, dy]) {
  const can = n => { const s = getComputedStyle(n);
    return (dy && n.scrollHeight > n.clientHeight && /auto|scroll/.test(s.overflowY)) ||
           (dx && n.scrollWidth > n.clientWidth && /auto|scroll/.test(s.overflowX)); };
  const up = n => n.parentElement || (n.getRootNode().host || null);
  const root = document.scrollingElement || document.documentElement;
  let e = point && at(point[0], point[1]);
  if (e && e.tagName === 'IFRAME') {
    const r = e.getBoundingClientRect();
    return {distance: 0, name: describe(e), frame: [r.left + e.clientLeft, r.top + e.clientTop]};
  }
  while (e && !can(e)) e = up(e);
  const locked = getComputedStyle(root).overflowY === 'hidden' || root.scrollHeight <= root.clientHeight;
  if (!e && !point && locked) {
    const areas = [...document.querySelectorAll('*')].filter(n => n !== document.body && can(n));
    e = areas.sort((a, b) => b.clientWidth * b.clientHeight - a.clientWidth * a.clientHeight)[0];
  }
  const area = !e || e === document.body || e === document.documentElement ? root : e;
  const x = area.scrollLeft, y = area.scrollTop;
  area.scrollBy({left: dx, top: dy, behavior: 'instant'});
  const ends = dy > 0 ? area.scrollTop + area.clientHeight >= area.scrollHeight - 1
    : dy < 0 ? area.scrollTop <= 0
    : dx > 0 ? area.scrollLeft + area.clientWidth >= area.scrollWidth - 1 : area.scrollLeft <= 0;
  return {distance: Math.abs(area.scrollLeft - x) + Math.abs(area.scrollTop - y), ends,
    name: area === root ? 'the page' : describe(area)};
}
