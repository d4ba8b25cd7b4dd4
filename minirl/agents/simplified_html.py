"""WebAgent-R1's view of a page: simplified HTML in which whatever can be clicked has a number.

    live page --ANNOTATE--> a copy with boxes, texts and numbers --simplify--> one line of HTML
    number --LOCATE--> the element itself, and a point on it

Stands between the browser and the text agent (minirl/agents/webagent_r1.py). Paper: section 3.1; the
format is that
of its released code, element for element. Deviations: the page's own elements are not touched (a copy is
annotated, and the numbers are kept in the window); within reach is what can be hit in the middle of that part
of its first box that is in the window; any `jsaction` counts as a click's; in live use texts are escaped; a
number means the element, wherever it has moved since, and not the box that it had.

The scripts run among the page's own, which can find the numbers and replace what the scripts are made of. A
page can thus misreport itself, as it can by what it shows, but no more: what a script answers is checked for
its form, and escaped, so that nothing in it becomes markup.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape as escaped
from typing import Any

import lxml.etree
import lxml.html

from minirl.browser.page_scripts import number_of, record, text_of
from minirl.browser.session import Session
from minirl.types import ToolFailure

WIDTH, HEIGHT = 1280, 720
LONGEST = 500  # characters of a text or of an attribute
MOST_CHARS = 20_000_000  # of an annotated page
# What is kept of an element, in this order
KEPT = (
    "title", "value", "type", "placeholder", "selected", "data-value", "data-text", "data-testid",
    "data-label", "data-bbox", "data-status",
)  # fmt: skip

_POINT = """
  const boxOf = e => e.getClientRects()[0] || null;
  // the part of its first box that is in the window, and the middle of that
  const pointOf = e => {
    const r = boxOf(e);
    if (!r) return null;
    const left = Math.max(r.left, 0), right = Math.min(r.right, innerWidth);
    const top = Math.max(r.top, 0), bottom = Math.min(r.bottom, innerHeight);
    if (right - left < 1 || bottom - top < 1) return null;
    return [(left + right) / 2, (top + bottom) / 2];
  };
  const hits = (e, [x, y]) => e.contains(document.elementFromPoint(x, y));
"""

# Answers the page as HTML, annotated; leaves the numbered elements in the window for LOCATE.
ANNOTATE = (
    "() => {"
    + _POINT
    + """
  const ROLES = new Set(['button', 'tab', 'link', 'checkbox', 'menuitem', 'menuitemcheckbox', 'menuitemradio',
    'radio']);
  const TAGS = new Set(['INPUT', 'TEXTAREA', 'SELECT', 'BUTTON', 'A', 'IFRAME', 'VIDEO', 'OBJECT', 'EMBED',
    'DETAILS']);
  // the element's own attribute: what stands within something that can be edited does not count
  const EDITABLE = new Set(['', 'contenteditable', 'true']);
  const lower = (e, name) => (e.getAttribute(name) ?? 'none').toLowerCase();
  const clickable = e => TAGS.has(e.tagName) || ROLES.has(lower(e, 'role')) || e.onclick != null ||
    e.hasAttribute('jsaction') || EDITABLE.has(lower(e, 'contenteditable')) ||
    (e.tagName === 'LABEL' && e.control && !e.control.disabled) || (e.tagName === 'IMG' && e.useMap) ||
    lower(e, 'class').includes('button') || (e.hasAttribute('tabindex') && e.tabIndex >= 0) ||
    getComputedStyle(e).cursor === 'pointer';
  const reached = e => { const point = pointOf(e); return point !== null && hits(e, point); };

  const root = document.documentElement;
  const live = [root, ...root.querySelectorAll('*')];
  const candidates = live.filter(e => clickable(e) && reached(e));
  const holders = new Set();
  for (const e of candidates)
    for (let up = e.parentElement; up && !holders.has(up); up = up.parentElement) holders.add(up);
  const leaves = candidates.filter(e => !holders.has(e));
  const number = new Map(leaves.map((e, i) => [e, i]));
  window[Symbol.for('minirl.numbered')] = leaves;

  // a document without a window: nothing in the copy runs or loads
  const copy = document.implementation.createHTMLDocument('').importNode(root, true);
  const copied = [copy, ...copy.querySelectorAll('*')];
  const at = new Map(live.map((e, i) => [e, i]));
  for (const e of copied)  // what a page itself may have of these is not ours
    for (const name of ['bbox', 'text', 'value', 'status', 'label-id']) e.removeAttribute('data-' + name);
  live.forEach((e, i) => {
    const to = copied[i];
    const r = boxOf(e);
    if (r) to.setAttribute('data-bbox', [r.left, r.top, r.width, r.height].map(Math.round).join(','));
    let text = [...e.childNodes].filter(n => n.nodeType === Node.TEXT_NODE)
      .map(n => n.textContent.trim()).filter(t => t).join(',');
    if (e.tagName === 'SELECT') {
      to.setAttribute('data-value', e.value);
      const chosen = e.selectedOptions[0];
      text = chosen ? chosen.text : '';
      for (const option of e.selectedOptions) copied[at.get(option)].setAttribute('data-status', 'selected');
    }
    if (text) to.setAttribute('data-text', text);
    if (e.tagName === 'INPUT' && e.type === 'checkbox')
      to.setAttribute('data-status', e.checked ? 'checked' : 'not-checked');
    if (e.tagName === 'INPUT' || e.tagName === 'TEXTAREA') to.setAttribute('data-value', e.value);
    if (number.has(e)) to.setAttribute('data-label-id', number.get(e));
  });
  for (const e of copy.querySelectorAll('script, style, template')) e.remove();
  return [copy.outerHTML, innerWidth, innerHeight];
}"""
)

# Where a numbered element is now: {point: [x, y]}, or {error} if it can't be reached.
LOCATE = (
    "([n]) => {"
    + _POINT
    + """
  const e = (window[Symbol.for('minirl.numbered')] || [])[n];
  if (!e) return { error: 'there is no element ' + n + ' on this page' };
  if (!e.isConnected) return { error: 'element ' + n + ' is gone' };
  if (!pointOf(e) || !hits(e, pointOf(e)))  // at once, for the point is read right after
    e.scrollIntoView({ block: 'center', inline: 'nearest', behavior: 'instant' });
  const point = pointOf(e);
  if (!point) return { error: 'element ' + n + ' can no longer be seen' };
  if (!hits(e, point)) return { error: 'element ' + n + ' is covered by something else' };
  return { point, tag: e.tagName };
}"""
)


# The number of the element that a selector names, or of the first one within it.
NUMBER = """([selector]) => {
  const wanted = document.querySelector(selector);
  return (window[Symbol.for('minirl.numbered')] || []).findIndex(e => wanted && wanted.contains(e));
}"""


async def number_at(session: Session, selector: str) -> int:
    """The number that an element has in the newest observation. ToolFailure if it has none."""
    number = await session.do(session.page.evaluate(NUMBER, [selector]))
    if not isinstance(number, int) or number < 0:
        raise ToolFailure(f"{selector} has no number")
    return number


async def observe(session: Session) -> str:
    """The current tab as simplified HTML. Raises ToolFailure if the page does not answer."""
    answer = await session.do(session.page.evaluate(ANNOTATE))
    if not isinstance(answer, list) or len(answer) != 3 or not isinstance(answer[0], str):
        raise ToolFailure("the page spoils the script that reads it")
    window = (int(number_of(answer[1])) or WIDTH, int(number_of(answer[2])) or HEIGHT)
    return simplify(answer[0], escape=True, window=window)


async def locate(session: Session, number: int) -> tuple[float, float]:
    """A point, in CSS pixels, where a click reaches the element of that number; scrolls to it if need be.
    Raises ToolFailure if there is none."""
    answer = record(await session.do(session.page.evaluate(LOCATE, [number])))
    point = answer.get("point")
    if not isinstance(point, list) or len(point) != 2:
        raise ToolFailure(text_of(answer.get("error")) or f"element {number} could not be found")
    return number_of(point[0]), number_of(point[1])


def simplify(annotated_html: str, escape: bool = False, window: tuple[int, int] = (WIDTH, HEIGHT)) -> str:
    """The visible part of an annotated page on one line, in which only elements that say something are left.

    An element stays if it has a number and is visible; or if either holds and it has a text, an attribute
    worth keeping or several children that say something. Otherwise its children take its place. A list's
    options are as visible as the list. Without `escape` texts are as they are, as in the released code, and
    can't be told from markup. What is nested more than 2,048 deep is left out: the parser ends there.

    >>> simplify('<body data-bbox="0,0,9,9"><div data-bbox="0,0,9,9"><a data-label-id="0" data-bbox="1,1,2,2"'
    ...          ' data-text="Home">Home</a></div></body>')
    '<html> <a id="0" data-text="Home" data-bbox="1,1,2,2"> Home </a> </html>'
    """
    source = annotated_html[:MOST_CHARS].replace("\x00", "").encode(errors="replace")
    parser = lxml.html.HTMLParser(encoding="utf-8", huge_tree=True)  # else it ends at 256 levels
    try:
        root = lxml.html.document_fromstring(source, parser=parser)
    except lxml.etree.ParserError:  # there is no element in it
        return "<html> </html>"
    lxml.etree.strip_elements(root, lxml.etree.Comment, "script", "style", with_tail=False)
    return " ".join(_pieces(root, window, escape))


@dataclass
class _Open:
    """An element that the walk is in."""

    tag: str
    at: int  # the piece that is its opening, if it stays
    visible: bool
    number: str | None
    text: str
    attributes: Mapping[str, str]
    in_list: bool  # whether it is in a <select> that is visible or has a number
    telling: int = 0  # children that say something

    @property
    def says(self) -> bool:
        return bool(self.text) or any(name != "data-bbox" for name in self.attributes)

    def stays(self) -> bool:
        if self.visible and self.number is not None:
            return True
        enough = 1 if self.tag == "select" else 2  # options are nothing without their list
        return (self.visible or self.number is not None) and (self.says or self.telling >= enough)

    def opening(self, escape: bool) -> str:
        shown = ({"id": self.number} if self.number is not None else {}) | dict(self.attributes)
        quoted = {name: escaped(value) if escape else value for name, value in shown.items()}
        opening = self.tag + "".join(f' {name}="{value}"' for name, value in quoted.items())
        text = escaped(self.text, quote=False) if escape else self.text
        return f"<{opening}> {text}".rstrip()


def _pieces(root: Any, window: tuple[int, int], escape: bool) -> list[str]:
    """What a page becomes. Not recursive, since a page may be nested deeper than calls may."""
    pieces: list[str] = []
    path: list[_Open] = []
    for event, element in lxml.etree.iterwalk(root, events=("start", "end")):
        if event == "start":
            path.append(_opened(element, path[-1] if path else None, window, len(pieces)))
            pieces.append("")  # whether it stays shows at its end
            continue
        done = path.pop()
        if done.stays() or element is root:
            pieces[done.at] = done.opening(escape)
            pieces.append(f"</{done.tag}>")
        if path:
            path[-1].telling += done.says or done.telling > 0
    return [piece for piece in pieces if piece]


def _opened(element: Any, parent: _Open | None, window: tuple[int, int], at: int) -> _Open:
    tag, visible, number = element.tag, _visible(element, window), element.get("data-label-id")
    in_list = parent is not None and parent.in_list
    if tag == "select":
        in_list = visible or number is not None
    visible |= tag == "option" and in_list  # it has no box of its own while the list is closed
    return _Open(tag, at, visible, number, _short(element.text), _attributes(element), in_list)


def _attributes(element: Any) -> Mapping[str, str]:
    """The attributes worth keeping; none that only repeats an earlier one's value."""
    out: dict[str, str] = {}
    for name in KEPT:
        value = _short(element.get(name))
        if value and value not in out.values() and (name, value) != ("type", "hidden"):
            out[name] = value
    return out


def _short(text: str | None) -> str:
    return " ".join((text or "").split())[:LONGEST]


def _visible(element: Any, window: tuple[int, int]) -> bool:
    """Whether its box touches the window."""
    try:
        left, top, width, height = map(float, (element.get("data-bbox") or "").split(","))
    except ValueError:
        return False
    inside = left <= window[0] and top <= window[1] and left + width >= 0 and top + height >= 0
    return inside and element.get("aria-hidden") != "true"
