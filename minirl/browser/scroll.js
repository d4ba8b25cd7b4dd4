// Scrolls the innermost area under a point, or without one the page; where the page itself can't, as in
// applications whose body fills the window, its largest area. Answers how far, in pixels, and if that is
// the end. What only a wheel moves stays: a closed component, a map, a body that scrolls in its window.
function scroll([point, dx, dy]) {
  const overflow = n => getComputedStyle(n)[dy ? 'overflowY' : 'overflowX'];
  const spare = n => dy ? n.scrollHeight - n.clientHeight : n.scrollWidth - n.clientWidth;
  const can = n => spare(n) > 0 && /auto|scroll/.test(overflow(n));
  const up = n => n.assignedSlot || n.parentElement || n.getRootNode().host || null;
  const html = document.documentElement, root = document.scrollingElement || html;
  let e = point && at(point[0], point[1]);
  if (isFrame(e)) return {name: describe(e), frame: frameOf(e)};
  while (e && !can(e)) e = up(e);
  const locked = spare(root) <= 0 || [html, document.body].some(n => n && overflow(n) === 'hidden');
  if (!e && !point && locked) {
    const areas = [...document.querySelectorAll('*')].filter(can);
    e = areas.sort((a, b) => b.clientWidth * b.clientHeight - a.clientWidth * a.clientHeight)[0];
  }
  const isPage = !e || e === document.body || e === html, area = isPage ? root : e;
  if (isPage && locked) return {};
  const x = area.scrollLeft, y = area.scrollTop;
  area.scrollBy({left: dx, top: dy, behavior: 'instant'});
  const [was, now] = dy ? [y, area.scrollTop] : [x, area.scrollLeft];
  const gone = now + (Math.min(was, now) < 0 ? spare(area) : 0);  // chats begin with 0 at their end
  const ends = dx + dy > 0 ? gone >= spare(area) - 1 : gone < 1;
  return {distance: Math.abs(area.scrollLeft - x) + Math.abs(area.scrollTop - y), ends,
    name: isPage ? 'the page' : describe(area)};
}
