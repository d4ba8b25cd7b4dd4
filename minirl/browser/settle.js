// Resolves when the page is loaded, drawn and quiet: fonts there, images in the viewport there, animations
// over, and no change for twice as long as it has been stirring since the action (or since it began to load),
// at least `calm` and at most `quiet` ms. At the latest after `cap` ms, and what took so long once, a font
// that never comes for example, is not waited for again in the same document.
async function settle([quiet, calm, cap]) {
  const start = performance.now(), left = () => cap - (performance.now() - start);
  const sleep = ms => new Promise(done => setTimeout(done, Math.max(0, ms)));
  let mark = window[MARK];
  const fresh = !mark;
  if (fresh) {
    mark = {changes: 0, since: 0, loud: 0, late: false};
    mark.watch = new MutationObserver(() => { mark.changes += 1; mark.loud = performance.now(); });
    mark.watch.observe(document, {subtree: true, childList: true, attributes: true, characterData: true});
  }
  const patience = () => mark.late ? 0 : left();
  while (document.readyState !== 'complete' && patience() > 0) await sleep(10);
  const visible = r => r.bottom > 0 && r.right > 0 && r.top < innerHeight && r.left < innerWidth;
  const images = [...document.images].filter(i => !i.complete && visible(i.getBoundingClientRect()));
  const loads = images.map(i => new Promise(done => {
    i.addEventListener('load', done); i.addEventListener('error', done); }));
  if (loads.length || document.fonts.status !== 'loaded')
    await Promise.race([Promise.all([document.fonts.ready, ...loads]), sleep(patience())]);
  // A link that saves a file tells the page nothing: the browser has so long to begin
  if (mark.target && mark.target.closest('a[download]')) await sleep(Math.min(500, left()));
  if (left() <= 0) mark.late = true;
  if (fresh) mark.loud = Math.max(mark.loud, performance.now());
  const ends = document.getAnimations().filter(a => a.playState === 'running' && a.effect &&
    a.effect.getComputedTiming().endTime < cap).map(a => a.finished.catch(() => 0));
  if (ends.length) await Promise.race([Promise.all(ends), sleep(left())]);
  const enough = () => Math.min(quiet, Math.max(calm, 2 * (mark.loud - mark.since)));
  const rest = () => Math.max(start + calm, mark.loud + enough()) - performance.now();
  while (quiet > 0 && rest() > 0 && left() > 0) await sleep(Math.min(left(), rest()));
  if (fresh) {
    mark.watch.disconnect();
    Object.defineProperty(window, MARK, {value: mark, configurable: true, enumerable: false});
  }
  const focus = focused(), t = mark.target, there = t && t.isConnected;
  const [x, y] = mark.at || [0, 0], box = there && mark.at ? boxOf(t) : null;
  const moved = box && box[2] > box[0] && String(box) !== String(mark.box) &&
    !(box[0] <= x && x <= box[2] && box[1] <= y && y <= box[3]);
  return {
    fresh: mark.since === 0, moved: !!moved, title: document.title, changes: mark.changes,
    state: there && stateOf(t) !== mark.state ? stateOf(t) : '',
    revalued: !!there && valueOf(t) !== mark.value,
    focus: fresh || !focus || focus === mark.focus ? '' : focus !== t ? describe(focus)
      : editable(focus) ? 'it' : '',
    status: (fresh && performance.getEntriesByType('navigation')[0] || {}).responseStatus || 0,
    error: location.protocol === 'chrome-error:'
      ? (document.body.innerText.match(/ERR_[A-Z0-9_]+/) || ['no reason given'])[0] : '',
  };
}
