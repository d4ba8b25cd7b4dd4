// What has the focus: can it be typed into, and what does it hold? Code editors have keys sent to a field that
// shows nothing, transparent or behind what they draw: what that holds is not their text.
function shown(e) {
  const r = e.getBoundingClientRect(), hit = at((r.left + r.right) / 2, (r.top + r.bottom) / 2);
  return e.checkVisibility({opacityProperty: true}) && (!hit || e.contains(hit));
}
function kindOf(e) {
  if (e.tagName === 'SELECT') return 'select';
  if (closed(e) || e.editContext || /^text/.test(e.type) && !shown(e)) return 'closed';
  return e.isContentEditable ? 'rich' : e.type;
}
function focus() {
  const e = focused();
  if (!e) return {name: '', editable: false, frame: false};
  return {name: describe(e), editable: editable(e), frame: isFrame(e), value: valueOf(e), kind: kindOf(e)};
}
