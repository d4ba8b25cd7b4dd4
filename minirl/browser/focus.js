// What has the focus: can it be typed into, and what does it hold?
function focus() {
  const e = focused();
  if (!e) return {name: '', editable: false, frame: false};
  return {name: describe(e), editable: editable(e), frame: isFrame(e), value: valueOf(e),
    kind: closed(e) ? 'closed' : e.tagName === 'SELECT' ? 'select' : e.tagName === 'INPUT' ? e.type : 'text'};
}
