"""WebAgent-R1's view of a page: simplified HTML in which every element that can be clicked has a number.

    live page --annotate--> a copy with boxes, texts and numbers --simplify--> one line of HTML
    number --locate--> the element itself, and a point on it

Stands between the browser and the text agent (minirl/agents/webagent_r1.py). Paper: section 3.1; the format
is that of its released code, element for element. Deviations: a copy of the page is annotated, the numbers
are kept in the window; an element is within reach if it can be hit in the middle of the part of its first box
that is in the window; any `jsaction` counts as a click's; live texts are escaped; a number means the element,
wherever it has moved since. The page's own scripts can spoil ours (simplified_html.js): it can misreport
itself, but an answer is checked for its form, and escaped, so that nothing in it becomes markup.
"""

from __future__ import annotations

from html import escape as escaped
from importlib import resources
from typing import Any

import lxml.etree
import lxml.html

from minirl.browser.page_scripts import number_of, record, text_of
from minirl.browser.session import Session
from minirl.types import ToolFailure

SCRIPT = resources.files("minirl.agents").joinpath("simplified_html.js").read_text(encoding="utf-8")
WIDTH, HEIGHT = 1280, 720
LONGEST, MOST_CHARS = 500, 20_000_000  # characters of a text or an attribute, and of an annotated page
KEPT = ("title", "value", "type", "placeholder", "selected")  # attributes, in this order
KEPT += tuple(f"data-{name}" for name in ("value", "text", "testid", "label", "bbox", "status"))


async def ask(session: Session, question: str, *given: Any) -> Any:
    """Return the answer of one of the script's functions; the page is free to answer anything."""
    return await session.do(session.page.evaluate(SCRIPT, [question, *given]))


async def observe(session: Session) -> str:
    """Return the current tab as simplified HTML. Raises ToolFailure if the page does not answer."""
    answer = await ask(session, "annotate")
    if not isinstance(answer, list) or len(answer) != 3 or not isinstance(answer[0], str):
        raise ToolFailure("the page spoils the script that reads it")
    window = (int(number_of(answer[1])) or WIDTH, int(number_of(answer[2])) or HEIGHT)
    return simplify(answer[0], escape=True, window=window)


async def locate(session: Session, number: int) -> tuple[float, float]:
    """Scroll to a numbered element; return where a click reaches it, in CSS pixels. Raises ToolFailure."""
    answer = record(await ask(session, "locate", number))
    point = answer.get("point")
    if not isinstance(point, list) or len(point) != 2:
        raise ToolFailure(text_of(answer.get("error")) or f"element {number} could not be found")
    return number_of(point[0]), number_of(point[1])


async def number_at(session: Session, selector: str) -> int:
    """Return the number that an element has in the newest observation. ToolFailure if it has none."""
    number = await ask(session, "numberAt", selector)
    if not isinstance(number, int) or number < 0:
        raise ToolFailure(f"{selector} has no number")
    return number


def simplify(annotated_html: str, escape: bool = False, window: tuple[int, int] = (WIDTH, HEIGHT)) -> str:
    """Return the visible part of an annotated page on one line. An element stays if it has a number and is
    visible; or if either holds and it has a text, an attribute worth keeping or several children that say
    something. Otherwise its children take its place. Without `escape` texts can't be told from markup, as in
    the released code. Elements nested more than 2,048 deep are left out: the parser ends there.

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
    pieces: list[str] = []
    path: list[_Open] = []
    # Not recursive, since a page may be nested deeper than calls may
    for event, element in lxml.etree.iterwalk(root, events=("start", "end")):
        if event == "start":
            path.append(_Open(element, path[-1] if path else None, window, len(pieces)))
            pieces.append("")  # it is known only at its end whether the element stays
            continue
        closed = path.pop()
        if closed.stays() or element is root:
            pieces[closed.at] = closed.opening(escape)
            pieces.append(f"</{closed.tag}>")
        if path:
            path[-1].telling += bool(closed.says or closed.telling)
    return " ".join(piece for piece in pieces if piece)


class _Open:
    """An element that the walk is in; `at` is the index of the piece that is its opening, if it stays."""

    def __init__(self, element: Any, parent: _Open | None, window: tuple[int, int], at: int):
        self.tag, self.number, self.at = element.tag, element.get("data-label-id"), at
        self.telling = 0  # children that say something
        self.in_list = parent is not None and parent.in_list  # a <select> that is visible or has a number
        visible = _touches(element.get("data-bbox") or "", window) and element.get("aria-hidden") != "true"
        if self.tag == "select":
            self.in_list = visible or self.number is not None
        # an option has no box of its own while its list is closed
        self.visible = visible or (self.tag == "option" and self.in_list)
        self.text, self.attributes = _short(element.text), {}
        for name in KEPT:  # a value that an earlier attribute has is not repeated
            value = _short(element.get(name))
            if value and value not in self.attributes.values() and (name, value) != ("type", "hidden"):
                self.attributes[name] = value
        self.says = bool(self.text or self.attributes.keys() - {"data-bbox"})

    def stays(self) -> bool:
        enough = 1 if self.tag == "select" else 2  # options are nothing without their list
        tells, numbered = self.says or self.telling >= enough, self.number is not None
        return (self.visible and numbered) or (self.visible or numbered) and tells

    def opening(self, escape: bool) -> str:
        kept = self.attributes if self.number is None else {"id": self.number} | self.attributes
        quoted = (f' {name}="{escaped(value) if escape else value}"' for name, value in kept.items())
        text = escaped(self.text, quote=False) if escape else self.text
        return f"<{self.tag}{''.join(quoted)}> {text}".rstrip()


def _short(text: str | None) -> str:
    return " ".join((text or "").split())[:LONGEST]


def _touches(box: str, window: tuple[int, int]) -> bool:
    try:
        left, top, width, height = map(float, box.split(","))
    except ValueError:
        return False
    return left <= window[0] and top <= window[1] and left + width >= 0 and top + height >= 0
