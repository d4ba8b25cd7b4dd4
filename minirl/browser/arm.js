// Asked before an action: tells what is under the point, and leaves a mark by which settle.js sees what has
// changed.
function arm([point]) {
  const hit = point && at(point[0], point[1]), target = owner(meant(hit));
  const old = window[MARK], now = performance.now();
  if (old) old.watch.disconnect();
  const mark = {changes: 0, since: now, loud: now, target, focus: focused(),
    late: !!old && old.late, at: point && [point[0] + scrollX, point[1] + scrollY],
    box: target && boxOf(target), value: target && valueOf(target), state: target && stateOf(target)};
  mark.watch = new MutationObserver(records => {
    for (const r of records) {
      mark.changes += 1;
      // a ticker that moves by its style alone never comes to rest
      if (r.type !== 'attributes' || r.attributeName !== 'style') mark.loud = performance.now();
    }
  });
  const all = {subtree: true, childList: true, attributes: true, characterData: true};
  mark.watch.observe(document, all);
  const root = target && target.getRootNode();
  if (root && root !== document) mark.watch.observe(root, all);
  Object.defineProperty(window, MARK, {value: mark, configurable: true, enumerable: false});
  const answer = {name: describe(hit), frame: frameOf(hit)};
  const list = target && target.closest('select');
  if (list && (list.multiple || list === target && list.size < 2)) {
    const choices = choicesOf(list);
    answer.options = choices.slice(0, 20).map(o => short(choiceOf(o), 30));
    if (choices.length > 20) answer.options.push('and ' + (choices.length - 20) + ' more');
    answer.kind = list.type;
  }
  return answer;
}
