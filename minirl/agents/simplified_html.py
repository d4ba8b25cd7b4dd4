"""WebAgent-R1's view of a page: simplified HTML in which every element that can be clicked has a number.

    live page --annotate--> a copy with boxes, texts and numbers --simplify--> one line of HTML
    number --locate--> the element itself, and a point on it

Paper: section 3.1; the format is that of its released code, element for element. Deviations: a copy of the
page is annotated, the numbers are kept in the window; an element is within reach if it can be hit in the
middle of the part of its first box that is in the window; any `jsaction` counts as a click's; a number means
the element, wherever it has moved since; texts are escaped: nothing that a page says becomes markup; the root
always stays, and so do a list's options in groups or alone; all chosen options are marked, a page's own
data-value, data-text and data-status are not shown; all is read as UTF-8, with plain spaces for others.
"""

from html import escape
from importlib import resources
from typing import Any

import lxml.etree
import lxml.html

from minirl.browser.page_scripts import number_of, text_of
from minirl.types import Session, ToolFailure

SCRIPT = resources.files("minirl.agents").joinpath("simplified_html.js").read_text("utf-8")
WIDTH, HEIGHT = 1280, 720
LONGEST, MOST_CHARS = 500, 20_000_000  # characters of a text or an attribute, and of an annotated page
KEPT = ("title", "value", "type", "placeholder", "selected", "data-value", "data-text", "data-testid")
KEPT += ("data-label", "data-bbox", "data-status")  # attributes, in this order


async def ask(session: Session, question: str, *given: Any) -> Any:
    return await session.do(session.page.evaluate(SCRIPT, [question, *given]))


async def observe(session: Session) -> str:
    """Return the current tab as simplified HTML. Raises ToolFailure if the page does not answer."""
    match await ask(session, "annotate"):
        case [str(page), width, height]:
            window = (int(number_of(width)) or WIDTH, int(number_of(height)) or HEIGHT)
            return simplify(page, window)
    raise ToolFailure("the page spoils the script that reads it")


async def locate(session: Session, number: int) -> tuple[float, float]:
    """Scroll to a numbered element; return where a click reaches it, in CSS pixels. Raises ToolFailure."""
    match await ask(session, "locate", number):
        case {"point": [x, y]}:
            return number_of(x), number_of(y)
        case {"error": str(reason)}:
            raise ToolFailure(text_of(reason))
    raise ToolFailure(f"element {number} could not be found")


async def number_at(session: Session, selector: str) -> int:
    """Return the number that an element has in the newest observation. ToolFailure if it has none."""
    number = await ask(session, "numberAt", selector)
    if not isinstance(number, int) or number < 0:
        raise ToolFailure(f"{selector} has no number")
    return number


def simplify(annotated_html: str, window: tuple[int, int] = (WIDTH, HEIGHT)) -> str:
    """Return the visible part of an annotated page on one line. An element stays if it has a number and is
    visible; or if either holds and it has a text, an attribute worth keeping or several children that say
    something; else its children take its place. The parser ends at 2,048 levels.

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
            path.append(_Open(element, bool(path) and path[-1].in_list, window, len(pieces)))
            pieces.append("")  # it is known only at its end whether the element stays
            continue
        closed = path.pop()
        if closed.stays() or element is root:
            pieces[closed.at] = closed.opening()
            pieces.append(f"</{closed.tag}>")
        if path:
            path[-1].telling += bool(closed.says or closed.telling)
    return " ".join(filter(None, pieces))


class _Open:
    """An element that the walk is in; `at` is the index of the piece that is its opening, if it stays."""

    def __init__(self, element: Any, in_list: bool, window: tuple[int, int], at: int):
        self.tag, self.number, self.at = element.tag, element.get("data-label-id"), at
        self.telling = 0  # children that say something
        visible = _touches(element.get("data-bbox") or "", window) and element.get("aria-hidden") != "true"
        # in a <select> that is visible or has a number; an option has no box of its own while that is closed
        self.in_list = visible or self.number is not None if self.tag == "select" else in_list
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

    def opening(self) -> str:
        kept = self.attributes if self.number is None else {"id": self.number} | self.attributes
        quoted = "".join(f' {name}="{escape(value)}"' for name, value in kept.items())
        return f"<{self.tag}{quoted}> {escape(self.text, quote=False)}".rstrip()


def _short(text: str | None) -> str:
    return " ".join((text or "").split())[:LONGEST]


def _touches(box: str, window: tuple[int, int]) -> bool:
    try:
        left, top, width, height = map(float, box.split(","))
    except ValueError:
        return False
    return left <= window[0] and top <= window[1] and left + width >= 0 and top + height >= 0
