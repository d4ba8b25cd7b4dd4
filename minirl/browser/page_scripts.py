"""The scripts that run in a page, and what they answer.

Stands below minirl/browser/session.py. arm.js is run before an action and leaves a mark in the window;
settle.js waits until the page is ready and compares it with the mark; a document without one is new.

OpenWebRL, appendix A.2. Deviations:
1. Readiness is asked of the page instead of slept for.
2. The element under a point is looked for in open shadow roots too (and by the caller in frames).
3. That nothing changed is found by looking, not concluded from the address alone.
"""

from dataclasses import dataclass, fields
from importlib import resources
from typing import Any, Self

FILES = resources.files("minirl.browser")


def script(name: str) -> str:
    """Return the function NAME of NAME.js, which may use helpers.js, as JavaScript."""
    helpers = FILES.joinpath("helpers.js").read_text("utf-8")
    text = FILES.joinpath(f"{name}.js").read_text("utf-8")
    return f"argument => {{\n{helpers}\n{text}\nreturn {name}(argument);\n}}"


ARM = script("arm")
SETTLE = script("settle")
FOCUS = script("focus")
CHOOSE = script("choose")
PASTE = script("paste")
SCROLL = script("scroll")
TARGET = script("target")
BLOCKED = script("blocked")
MAX_TEXT_CHARS = 100_000  # of a text in an answer


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
    moved: bool = False  # the element under the point has gone from there
    title: str = ""
    changes: int = 0
    state: str = ""  # of the marked element, if it is another than before
    revalued: bool = False
    focus: str = ""  # what has got the focus, if it is something else than before
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
