// Asked before an action: tells what is under the point, and leaves a mark by which settle.js sees what has
// changed. The second point is the first one's in the page around all frames.
const EVENTS = ['pointermove', 'pointerdown', 'pointerup', 'click', 'auxclick', 'contextmenu', 'keydown', 'keyup',
  'drop', 'dragend'];
function arm([point, outer]) {
  const hit = point && at(point[0], point[1]), target = owner(meant(hit));
  const mark = begin(window[MARK]), {end} = mark, listening = new AbortController();
  Object.assign(mark, {target, focus: focused(), at: point && [point[0] + scrollX, point[1] + scrollY],
    offset: point && [outer[0] - point[0], outer[1] - point[1]],
    box: target && boxOf(target), value: target && valueOf(target), state: target && stateOf(target)});
  const options = {capture: true, passive: true, signal: listening.signal};
  const hear = e => {
    if (!e.isTrusted) return;
    const now = performance.now();
    if (!mark.begun) mark.begun = mark.since = mark.loud = now;  // until it came was not the page's time
    if (/up$|click|menu|drop|dragend/.test(e.type)) mark.acted = now;  // with which the action ends
    const dragged = e.type === 'pointermove' && e.buttons > 0;
    if (dragged || (/click|menu/.test(e.type) && e.composedPath().includes(target))) mark.reached = true;
  };
  for (const type of EVENTS) addEventListener(type, hear, options);
  addEventListener('invalid', e => { mark.invalid ||= short(e.target.validationMessage, 100); }, options);
  mark.end = () => { end(); listening.abort(); };
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
