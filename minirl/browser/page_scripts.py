"""The scripts that run in a page, and what they answer.

Stands below minirl/browser/session.py. arm.js is run before an action and leaves a mark in the window;
settle.js waits until the page is ready and compares it with the mark; a document without one is new.

OpenWebRL, appendix A.2. Deviations:
1. Readiness is asked of the page instead of slept for.
2. The element under a point is looked for in open shadow roots too (and by the caller in frames).
3. That nothing changed is found by looking, at the document and two screenshots, not concluded from the
   address alone.
"""

import io
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Self

from PIL import Image, ImageChops

from minirl.package_files import text_of


@cache
def script(name: str) -> str:
    """Return the function NAME of NAME.js, which may use helpers.js, as JavaScript."""
    helpers = text_of("browser/helpers.js")
    text = text_of(f"browser/{name}.js")
    return f"argument => {{\n{helpers}\n{text}\nreturn {name}(argument);\n}}"


MAX_TEXT_CHARS = 100_000  # of a text in an answer
MAX_MASKS = 500  # more of them would be a page that wants to take our time
MAX_NOISE = 2  # of 255: what a pixel varies by where a page is drawn again


@dataclass(frozen=True)
class PageAnswer:
    """What a script answers, each script in some of these fields."""

    name: str = ""  # arm, focus, scroll: the element at the point, with the focus, or that has scrolled
    frame: Any = None  # arm, focus, scroll: helpers.js's frameOf, or True if a frame has the focus
    options: tuple[str, ...] = ()  # arm: of a list
    kind: str = ""  # arm: of list; focus: of field
    value: str = ""  # focus: what it holds
    editable: bool = False  # focus: if it takes text
    distance: float = 0.0  # scroll: in pixels
    ends: bool = False  # scroll: if that is the area's end
    # settle
    fresh: bool = False  # another document than the one that was marked
    loading: bool = False  # it is not there yet, and has no scripts that could wait for it
    moved: bool = False  # the element under the point has gone from there, and did not get the click
    title: str = ""
    changes: int = 0
    state: str = ""  # of the marked element, if it is another than before
    revalued: bool = False
    focus: str = ""  # what has got the focus, if it is something else than before
    invalid: str = ""  # why the browser refuses to send a form
    masks: Any = None  # where two screenshots may differ: left, top, right and bottom of each box
    status: int = 0  # with which the server has answered, of a fresh document
    error: str = ""  # why the browser shows its own error page

    @classmethod
    def read(cls, answer: Any) -> Self:
        """Return an answer's fields. A page is free to answer anything: what has another type is left out."""
        given = answer if isinstance(answer, dict) else {}
        values: dict[str, Any] = {}
        for part in fields(cls):
            value = given.get(part.name)
            match part.default, value:
                case str(), str():
                    values[part.name] = value[:MAX_TEXT_CHARS]
                case tuple(), list():
                    values[part.name] = tuple(map(str, value))
                case bool(), _:
                    values[part.name] = value is True
                case float() | int(), float() | int() if abs(value) < 1e15:  # refuses NaN
                    values[part.name] = value
                case None, _:
                    values[part.name] = value
        return cls(**values)


def looks_the_same(before: Any, after: Any, masks: Any) -> bool:
    """Return True if two texts are equal, or two screenshots but for the masks and for what differs from one
    drawing of a page to the next."""
    if before == after or isinstance(after, str):
        return before == after
    first, second = [Image.open(io.BytesIO(png)).convert("RGB") for png in (before, after)]
    if first.size != second.size:
        return False
    difference = ImageChops.difference(first, second)
    for mask in masks[:MAX_MASKS] if isinstance(masks, list) else ():
        with suppress(TypeError, ValueError, OverflowError):  # a page is free to answer anything
            left, top, right, bottom = map(round, mask)
            difference.paste((0, 0, 0), (left, top, right, bottom))
    extrema: Any = difference.getextrema()  # of each colour
    return max(high for _, high in extrema) <= MAX_NOISE
