"""What is asked of a page: scripts that run in it, and what they answer.

Stands below minirl/browser/session.py. `ARM` is asked before an action and leaves a mark in the window;
`SETTLE`
waits until the page is ready and compares it with the mark. A document without the mark is a new one.

OpenWebRL, appendix A.2. Deviations: readiness is asked of the page instead of slept for; the element under
a point is looked for in open shadow roots too (and by the caller in frames); that nothing changed is found
by looking, not concluded from the address alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Helpers that every script begins with. Elements are named as people would: kind, what it says, its state.
_HELPERS = """
  const MARK = Symbol.for('minirl');
  const HIT = 'a,button,input,select,textarea,label,summary,option,iframe,[role],[contenteditable=""],' +
    '[contenteditable=true]';
  const at = (x, y) => {
    let e = document.elementFromPoint(x, y);
    while (e && e.shadowRoot) {
      const inner = e.shadowRoot.elementFromPoint(x, y);
      if (!inner || inner === e) break;
      e = inner;
    }
    return e;
  };
  const focused = () => {
    let e = document.activeElement;
    while (e && e.shadowRoot && e.shadowRoot.activeElement) e = e.shadowRoot.activeElement;
    return e === document.body || e === document.documentElement ? null : e;
  };
  const meant = e => e && (e.closest(HIT) || e);
  const owner = e => (e && e.tagName === 'LABEL' && e.control) || e;  // whose state a click changes
  const boxOf = e => { const r = e.getBoundingClientRect();
    return [r.left + scrollX, r.top + scrollY, r.right + scrollX, r.bottom + scrollY]; };
  const short = (text, n) => String(text || '').trim().replace(/\\s+/g, ' ').slice(0, n);
  const TYPED = /^(text|search|email|url|tel|password|number|date|time|month|week|datetime-local)$/;
  const closed = e => e.tagName.includes('-') && !e.shadowRoot;  // it may hold a field that can't be seen
  const editable = e => !!e && (closed(e) || e.isContentEditable || (!e.readOnly && !e.disabled &&
    (e.tagName === 'TEXTAREA' || (e.tagName === 'INPUT' && TYPED.test(e.type)))));
  const valueOf = e => 'value' in e ? String(e.value) : e.isContentEditable ? e.innerText : '';
  const stateOf = e => {
    const said = [];
    if (e.type === 'checkbox' || e.type === 'radio') said.push(e.checked ? 'checked' : 'not checked');
    else if (e.hasAttribute('aria-checked'))
      said.push(e.getAttribute('aria-checked') === 'true' ? 'checked' : 'not checked');
    const open = e.tagName === 'SUMMARY' && e.parentElement ? String(e.parentElement.open)
      : e.getAttribute('aria-expanded');
    if (open !== null) said.push(open === 'true' ? 'expanded' : 'collapsed');
    if (e.getAttribute('aria-selected') === 'true') said.push('selected');
    if (e.disabled || e.getAttribute('aria-disabled') === 'true') said.push('disabled');
    return said.join(', ');
  };
  const nameOf = e => {
    const label = e.labels && e.labels[0];
    const text = /^(INPUT|SELECT|TEXTAREA)$/.test(e.tagName) ? '' : e.innerText;
    const own = /^(button|submit|reset)$/.test(e.type || '') && e.tagName === 'INPUT' ? e.value : '';
    return short(e.getAttribute('aria-label') || own || text || (label && label.innerText) ||
      e.placeholder || e.title || e.alt || e.name, 30);
  };
  const describe = e => {
    if (!e || e === document.body || e === document.documentElement) return 'the page';
    e = meant(e);
    const tag = e.tagName.toLowerCase(), name = nameOf(e), state = stateOf(e);
    const kind = e.getAttribute('role') || (tag === 'a' ? 'link'
      : tag === 'input' && e.type !== 'text' ? e.type + ' input' : tag);
    return kind + (name ? ' "' + name + '"' : '') + (state ? ' (' + state + ')' : '');
  };
"""

# Before an action: what is under the point, and a mark by which SETTLE will see what has changed.
ARM = (
    "([point, dom]) => {"
    + _HELPERS
    + """
  const hit = point && at(point[0], point[1]), target = owner(meant(hit));
  const old = window[MARK], now = performance.now();
  if (old) old.watch.disconnect();
  const mark = {changes: 0, since: now, loud: now, added: [], gone: [], target, focus: focused(),
    late: !!old && old.late, at: point && [point[0] + scrollX, point[1] + scrollY],
    box: target && boxOf(target), value: target && valueOf(target), state: target && stateOf(target)};
  mark.watch = new MutationObserver(records => {
    for (const r of records) {
      mark.changes += 1;
      // a ticker that moves by its style alone never comes to rest
      if (r.type !== 'attributes' || r.attributeName !== 'style') mark.loud = performance.now();
      if (dom) for (const [nodes, names] of [[r.addedNodes, mark.added], [r.removedNodes, mark.gone]])
        for (const n of nodes) if (n.nodeType === 1 && names.length < 50)
          for (const e of [n, ...n.querySelectorAll(HIT)]) if (e.matches(HIT)) names.push(describe(e));
    }
  });
  const all = {subtree: true, childList: true, attributes: true, characterData: true};
  mark.watch.observe(document, all);
  const root = target && target.getRootNode();
  if (root && root !== document) mark.watch.observe(root, all);
  Object.defineProperty(window, MARK, {value: mark, configurable: true, enumerable: false});
  const answer = {target: describe(hit)};
  if (hit && hit.tagName === 'IFRAME') {
    const r = hit.getBoundingClientRect();
    answer.frame = [r.left + hit.clientLeft, r.top + hit.clientTop];
  }
  if (target && target.tagName === 'SELECT')
    answer.options = [...target.options].slice(0, 20).map(o => short(o.label, 30));
  return answer;
}"""
)

# Resolves when the page is loaded, drawn and quiet: fonts there, images in the viewport there, animations
# over, and no change for twice as long as it has been stirring since the action (or since it began to load),
# at least `calm` and at most `quiet` ms. At the latest after `cap` ms, and what took so long once, a font
# that never comes for example, is not waited for again in the same document.
SETTLE = (
    "async ([quiet, calm, cap]) => {"
    + _HELPERS
    + """
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
  const memory = performance.memory ? performance.memory.usedJSHeapSize / 1048576 : 0;
  return {
    fresh: mark.since === 0, moved: !!moved, title: document.title, changes: mark.changes,
    state: there && stateOf(t) !== mark.state ? stateOf(t) : '',
    revalued: !!there && valueOf(t) !== mark.value,
    focus: fresh || !focus || focus === mark.focus ? '' : focus !== t ? describe(focus)
      : editable(focus) ? 'it' : '',
    added: [...new Set(mark.added || [])].slice(0, 5), gone: [...new Set(mark.gone || [])].slice(0, 5),
    error: location.protocol === 'chrome-error:'
      ? (document.body.innerText.match(/ERR_[A-Z0-9_]+/) || ['no reason given'])[0] : '',
    requests: performance.getEntriesByType('resource').length + 1, heap: memory,
    loaded: Math.round(performance.timeOrigin),
  };
}"""
)

# What has the focus: can it be typed into, and what does it hold?
FOCUS = (
    "() => {"
    + _HELPERS
    + """
  const e = focused();
  if (!e) return {name: '', editable: false, frame: false};
  return {name: describe(e), editable: editable(e), frame: e.tagName === 'IFRAME', value: valueOf(e),
    kind: closed(e) ? 'closed' : e.tagName === 'SELECT' ? 'select' : e.tagName === 'INPUT' ? e.type : 'text'};
}"""
)

# Fields that can't be typed into letter by letter: dates and the like in their own format, and lists, whose
# pop-up is drawn by the desktop and in no screenshot. Answers with the value, or null if it does not fit.
CHOOSE = (
    "([text]) => {"
    + _HELPERS
    + """
  const e = focused();
  if (!e) return null;
  if (e.tagName === 'SELECT') {
    const wanted = short(text, 1000).toLowerCase();
    const options = [...e.options], label = o => short(o.label, 1000).toLowerCase();
    const found = options.find(o => label(o) === wanted) || options.find(o => label(o).startsWith(wanted)) ||
      options.find(o => label(o).includes(wanted));
    if (!found) return null;
    e.selectedIndex = found.index;
  } else {
    const set = Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set;
    const before = e.value;
    set.call(e, text);
    if (!e.value) { set.call(e, before); return null; }
  }
  e.dispatchEvent(new Event('input', {bubbles: true}));
  e.dispatchEvent(new Event('change', {bubbles: true}));
  return e.tagName === 'SELECT' ? short(e.selectedOptions[0].label, 100) : e.value;
}"""
)

# Scrolls the innermost area under a point, or without one the page; where the page itself can't, as in
# applications whose body fills the window, its largest area. Answers how far, in pixels, and if that is
# the end.
SCROLL = (
    "([point, dx, dy]) => {"
    + _HELPERS
    + """
  const can = n => { const s = getComputedStyle(n);
    return (dy && n.scrollHeight > n.clientHeight && /auto|scroll/.test(s.overflowY)) ||
           (dx && n.scrollWidth > n.clientWidth && /auto|scroll/.test(s.overflowX)); };
  const up = n => n.parentElement || (n.getRootNode().host || null);
  const root = document.scrollingElement || document.documentElement;
  let e = point && at(point[0], point[1]);
  if (e && e.tagName === 'IFRAME') {
    const r = e.getBoundingClientRect();
    return {moved: 0, name: describe(e), frame: [r.left + e.clientLeft, r.top + e.clientTop]};
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
  return {moved: Math.abs(area.scrollLeft - x) + Math.abs(area.scrollTop - y), ends,
    name: area === root ? 'the page' : describe(area)};
}"""
)


@dataclass(frozen=True)
class Settled:
    """What SETTLE found. A page is free to answer anything, so nothing is believed to have its type."""

    fresh: bool = False  # another document than the one that was marked
    moved: bool = False  # the element under the point has gone from there
    title: str = ""
    changes: int = 0
    state: str = ""  # of the marked element, if it is another than before
    revalued: bool = False
    focus: str = ""  # what has got the focus, if it is something else than before
    added: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    error: str = ""  # why the browser shows a page of its own instead
    requests: int = 0
    heap: float = 0.0  # MB of JavaScript
    loaded: int = 0  # when the document began, in ms since 1970

    @classmethod
    def read(cls, answer: Any) -> Settled:
        answer = record(answer)
        return cls(
            fresh=answer.get("fresh") is True,
            moved=answer.get("moved") is True,
            title=text_of(answer.get("title")),
            changes=int(number_of(answer.get("changes"))),
            state=text_of(answer.get("state")),
            revalued=answer.get("revalued") is True,
            focus=text_of(answer.get("focus")),
            added=names_of(answer.get("added")),
            gone=names_of(answer.get("gone")),
            error=text_of(answer.get("error")),
            requests=int(number_of(answer.get("requests"))),
            heap=number_of(answer.get("heap")),
            loaded=int(number_of(answer.get("loaded"))),
        )


def record(answer: Any) -> Mapping[str, Any]:
    """An answer that is to be an object."""
    return answer if isinstance(answer, Mapping) else {}


def corner_of(answer: Mapping[str, Any]) -> tuple[float, float] | None:
    """Where a frame begins, if the answer names one."""
    corner = answer.get("frame")
    if not isinstance(corner, list) or len(corner) != 2:
        return None
    return number_of(corner[0]), number_of(corner[1])


def text_of(value: Any, limit: int = 200) -> str:
    return value[:limit] if isinstance(value, str) else ""


def names_of(value: Any, limit: int = 20) -> tuple[str, ...]:
    return tuple(text_of(name) for name in value[:limit]) if isinstance(value, list) else ()


def number_of(value: Any) -> float:
    """A finite number below 1e15, or 0."""
    fits = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15
    return float(value) if fits else 0.0
