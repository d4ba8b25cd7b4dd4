// Resolves when the page is loaded, drawn and quiet: fonts there, images in the viewport there, animations
// over, and no change for twice as long as it has been stirring since the action (or since its document was read),
// at least `calm` and at most `quiet` ms. At the latest after `cap` ms, and what took so long once, a font
// that never comes for example, is not waited for again in the same document; nor is a page that never rests,
// but for BUSY_MS. Where no scripts run timers stand still: there it answers at once.
const BUSY_MS = 400, RING = 5;
async function settle([quiet, calm, cap]) {
  const start = performance.now(), left = () => cap - (performance.now() - start);
  const sleep = ms => new Promise(done => setTimeout(done, Math.max(0, ms)));
  const fresh = !window[MARK], mark = window[MARK] || begin(), inert = matchMedia('(scripting: none)').matches;
  if (fresh) mark.fresh = true;
  if (!inert) {
    mark.rested = Infinity;
    const patience = () => mark.late ? 0 : left();
    while (document.readyState !== 'complete' && patience() > 0) await sleep(5);
    const visible = r => r.bottom > 0 && r.right > 0 && r.top < innerHeight && r.left < innerWidth;
    const images = [...document.images].filter(i => !i.complete && visible(i.getBoundingClientRect()));
    const loads = images.map(i => new Promise(done => {
      i.addEventListener('load', done); i.addEventListener('error', done); }));
    if (loads.length || document.fonts.status !== 'loaded')
      await Promise.race([Promise.all([document.fonts.ready, ...loads]), sleep(patience())]);
    // A link that saves a file tells the page nothing: the browser has so long to begin
    if (mark.target && mark.target.closest('a[download]')) await sleep(Math.min(500, left()));
    if (left() < 5) mark.late = true;  // a timer drops fractions
    if (fresh) {
      const [navigation] = performance.getEntriesByType('navigation');
      mark.since = navigation ? navigation.domInteractive : 0;
      mark.loud = Math.max(mark.loud, performance.now());
    }
    observe(mark.watch, document);  // roots and frames that have come meanwhile
    const ends = document.getAnimations().filter(a => a.playState === 'running' && a.effect &&
      a.effect.getComputedTiming().endTime < cap).map(a => a.finished.catch(() => 0));
    if (ends.length) await Promise.race([Promise.all(ends), sleep(left())]);
    // what a script draws on a canvas is no change of the document
    const least = mark.reached && mark.target.tagName === 'CANVAS' ? quiet : calm;
    const enough = () => Math.min(quiet, Math.max(least, 2 * (mark.loud - mark.since)));
    const rest = () => Math.max((mark.acted || start) + least, mark.loud + enough()) - performance.now();
    const most = Math.min(left(), mark.busy ? BUSY_MS : cap), stirring = performance.now();
    const more = () => most - (performance.now() - stirring);
    while (quiet > 0 && rest() > 0 && more() > 0) await sleep(Math.min(more(), rest()));
    if (quiet > 0 && rest() > 0 && most > 2 * quiet) mark.busy = true;
    mark.acted = 0;
    mark.rested = performance.now();
  }
  const focus = focused(), t = mark.target, there = t && t.isConnected;
  const [x, y] = mark.at || [0, 0], box = there && mark.at ? boxOf(t) : null;
  const moved = box && !mark.reached && box[2] > box[0] && String(box) !== String(mark.box) &&
    !(box[0] <= x && x <= box[2] && box[1] <= y && y <= box[3]);
  let news = '';
  if (!mark.fresh && focus) {
    const isNew = focus !== mark.focus;
    if (focus === t) news = editable(focus) && (isNew || mark.reached) ? 'it' : '';
    else if (isNew) news = describe(focus);
  }
  return {
    fresh: !!mark.fresh, loading: inert && document.readyState !== 'complete', moved: !!moved, title: document.title,
    changes: mark.changes, state: there && stateOf(t) !== mark.state ? stateOf(t) : '',
    revalued: !!there && valueOf(t) !== mark.value, focus: news, invalid: mark.invalid || '',
    masks: masksOf(mark, focus),
    status: (mark.fresh && performance.getEntriesByType('navigation')[0] || {}).responseStatus || 0,
    error: location.protocol === 'chrome-error:'
      ? (document.body.innerText.match(/ERR_[A-Z0-9_]+/) || ['no reason given'])[0] : '',
  };
}
// Where two screenshots may differ although an action had no effect: in a button under the pointer, around what
// has or had the focus, and where something ticks. In the pixels of the whole page's screenshot.
const PLAIN = 'a,button,input,label,summary', DRAWN = 'canvas,video,iframe,object,embed';
function masksOf(mark, focus) {
  const [left, top] = mark.offset || [0, 0], masks = [];
  const mask = (l, t, r, b) => masks.push([l + left, t + top, r + left, b + top]);
  const shown = e => e && e.isConnected && e.ownerDocument === document;
  const full = (e, out) => {
    const r = e.getBoundingClientRect();
    if (r.width * r.height < innerWidth * innerHeight / 8) mask(r.left - out, r.top - out, r.right + out, r.bottom + out);
  };
  const target = mark.target;
  if (shown(target) && target.matches(PLAIN) && !target.querySelector(DRAWN)) full(target, RING);
  for (const e of [mark.focus, focus].filter(shown)) {
    const r = e.getBoundingClientRect(), [l, t, b] = [r.left - RING, r.top - RING, r.bottom + RING];
    mask(l, t, r.right + RING, t + 2 * RING);
    mask(l, b - 2 * RING, r.right + RING, b);
    mask(l, t, l + 2 * RING, b);
    mask(r.right - RING, t, r.right + RING, b);
  }
  for (const e of mark.ticking) {
    const place = e.nodeType === 1 ? e : e.parentElement;
    if (shown(place)) full(place, 0);
  }
  return masks.map(mask => mask.map(n => n * devicePixelRatio));
}
