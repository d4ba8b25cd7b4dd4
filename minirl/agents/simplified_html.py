"""WebAgent-R1's view of a page: simplified HTML in which every element that can be clicked has a number.

    live page --annotate--> a copy with boxes, texts and numbers --simplify--> one line of HTML
    number --locate--> the element itself, and a point on it

Paper: section 2.1; the format is that of its released code, element for element. Deviations:
1. A copy of the page is annotated, and the numbers are kept in the window.
2. An element is within reach if it can be hit in the middle of the part of its first box that is in the
   window; any `jsaction` counts as a click's.
3. A number means the element, wherever it has moved since.
4. What could forge a tag is disarmed: `<` and `>` in texts, `"` in attributes.
5. The root always stays, and so do a list's options in groups or alone.
6. All chosen options are marked; a page's own data-value, data-text and data-status are not shown.
7. All is read as UTF-8, with plain spaces for others.
8. Frames have numbers in framesets, too, and after a frame of the page's own site stands its content.
9. On demand, what has the role of a widget, or a listener for clicks that a script has added, has a number,
   too. The listeners are asked of Chromium, which the page does not notice.
10. On demand boxes are left out, and texts that stand behind the tag anyhow.

As in the released code, what a web component draws in its shadow root is not shown.
"""

from typing import Any

import lxml.etree
import lxml.html

from minirl.package_files import text_of
from minirl.types import Point, Session, ToolFailure

SCRIPT = text_of("agents/simplified_html.js")
MAX_CHARS = 500  # of a text or an attribute
MAX_PAGE_CHARS = 20_000_000  # of an annotated page
# The attributes that are shown, in this order
ATTRIBUTES = ("title", "value", "type", "placeholder", "selected", "data-value", "data-text", "data-testid")
ATTRIBUTES += ("data-label", "data-bbox", "data-status")


async def ask(session: Session, question: str, *given: Any) -> Any:
    return await session.do(session.page.evaluate(SCRIPT, [question, *given]))


async def ask_with_listeners(session: Session, expression: str, seconds: float | None = None) -> Any:
    """Return the value of an expression that may call Chromium's own `getEventListeners`, or of what it
    promises; None if it fails."""
    command = {
        "expression": expression,
        "includeCommandLineAPI": True,  # which getEventListeners is of
        "awaitPromise": True,
        "returnByValue": True,
    }
    cdp = await session.do(session.context.new_cdp_session(session.page))
    answer = await session.do(cdp.send("Runtime.evaluate", command), seconds)
    await session.do(cdp.detach())
    return answer["result"].get("value")


async def observe(session: Session, boxes: bool = True, listeners: bool = False) -> str:
    """Return the current tab as simplified HTML, with or without `boxes`; with `listeners` elements
    that have one are numbered, too. Raises ToolFailure if the page does not answer."""
    if listeners:
        page = await ask_with_listeners(session, f"({SCRIPT})(['annotate', getEventListeners])")
    else:
        page = await ask(session, "annotate")
    if not isinstance(page, str):
        raise ToolFailure("the page spoils the script that reads it")
    return simplify(page, session.width, session.height, boxes)


async def locate(session: Session, number: int) -> Point:
    """Scroll to a numbered element; return where a click reaches it, in CSS pixels. Raises ToolFailure."""
    match await ask(session, "locate", number):
        case {"point": [float() | int() as x, float() | int() as y]}:
            return x, y
        case {"error": str(reason)}:
            raise ToolFailure(reason)
    raise ToolFailure(f"element {number} could not be found")


async def number_at(session: Session, selector: str) -> int:
    """Return the number that an element has in the newest observation. ToolFailure if it has none."""
    number = await ask(session, "numberAt", selector)
    if number < 0:
        raise ToolFailure(f"{selector} has no number")
    return number


def simplify(annotated_html: str, width: int = 1280, height: int = 720, boxes: bool = True) -> str:
    """Return what is visible of an annotated page in a window of this size, on one line. An element stays if
    it has a number and is visible; or if either holds and it has a text, an attribute worth keeping or
    several children that say something; else its children take its place. The parser ends at 2,048 levels.

    >>> simplify('<body data-bbox="0,0,9,9"><div data-bbox="0,0,9,9"><a data-label-id="0" data-bbox="1,1,2,2"'
    ...          ' data-text="Home">Home</a></div></body>')
    '<html> <a id="0" data-text="Home" data-bbox="1,1,2,2"> Home </a> </html>'
    """
    source = annotated_html[:MAX_PAGE_CHARS].replace("\x00", "").encode(errors="replace")
    parser = lxml.html.HTMLParser(encoding="utf-8", huge_tree=True)  # else it ends at 256 levels
    try:
        root = lxml.html.document_fromstring(source, parser=parser)
    except lxml.etree.ParserError:  # there is no element in it
        return "<html> </html>"
    lxml.etree.strip_elements(root, lxml.etree.Comment, "script", "style", with_tail=False)

    # Not recursive, since a page may be nested deeper than calls may
    pieces = []
    path = []
    for event, element in lxml.etree.iterwalk(root, events=("start", "end")):
        if event == "start":
            in_list = bool(path) and path[-1].in_list
            path.append(_OpenElement(element, in_list, (width, height), len(pieces)))
            pieces.append("")  # it is known only at its end whether the element stays
            continue
        closed = path.pop()
        if closed.stays() or element is root:
            pieces[closed.index] = closed.opening(boxes)
            pieces.append(f"</{closed.tag}>")
        if path and (closed.says_something or closed.n_telling):
            path[-1].n_telling += 1
    return " ".join(piece for piece in pieces if piece)


class _OpenElement:
    """An element that the walk is in; `index` is that of the piece that is its opening, if it stays."""

    def __init__(self, element: Any, in_list: bool, window: tuple[int, int], index: int):
        self.tag = element.tag
        self.number = element.get("data-label-id")
        self.index = index
        self.n_telling = 0  # children that say something
        visible = _touches(element.get("data-bbox") or "", window) and element.get("aria-hidden") != "true"
        # In a <select> that is visible or has a number; an option has no box of its own while that is closed
        self.in_list = in_list
        if self.tag == "select":
            self.in_list = visible or self.number is not None
        self.visible = visible or (self.tag == "option" and self.in_list)
        self.text = _short(element.text)
        self.attributes: dict[str, str] = {}
        for name in ATTRIBUTES:  # a value that an earlier attribute has is not repeated
            value = _short(element.get(name))
            if value and value not in self.attributes.values() and (name, value) != ("type", "hidden"):
                self.attributes[name] = value
        self.says_something = bool(self.text or self.attributes.keys() - {"data-bbox"})

    def stays(self) -> bool:
        has_number = self.number is not None
        if self.visible == has_number:  # both, or neither
            return has_number
        enough = 1 if self.tag == "select" else 2  # options are nothing without their list
        return self.says_something or self.n_telling >= enough

    def opening(self, boxes: bool) -> str:
        attributes = self.attributes if self.number is None else {"id": self.number} | self.attributes
        quoted = ""
        for name, value in attributes.items():
            is_copy = name == "data-text" and value == self.text
            if not boxes and (is_copy or name == "data-bbox"):
                continue
            quoted += f' {name}="{value.replace(chr(34), "&quot;")}"'
        return f"<{self.tag}{quoted}> {harmless(self.text)}".rstrip()


def harmless(text: str) -> str:
    """Return a text of a page that can't be taken for a tag."""
    return text.replace("<", "&lt;").replace(">", "&gt;")


def _short(text: str | None) -> str:
    return " ".join((text or "").split())[:MAX_CHARS]


def _touches(box: str, window: tuple[int, int]) -> bool:
    try:
        left, top, width, height = map(float, box.split(","))
    except ValueError:
        return False
    return left <= window[0] and top <= window[1] and left + width >= 0 and top + height >= 0
