"""The scripts that run in a page, and what they answer.

Stands below minirl/browser/session.py. arm.js is run before an action and leaves a mark in the window;
settle.js waits until the page is ready and compares it with the mark; a document without one is new.

OpenWebRL, appendix A.2. Deviations:
1. Readiness is asked of the page instead of slept for.
2. The element under a point is looked for in open shadow roots too (and by the caller in frames).
3. That nothing changed is found by looking, not concluded from the address alone.
"""

from collections.abc import Mapping
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
SCROLL = script("scroll")
BLOCKED = script("blocked")
PASTE = script("paste")
COPIED_CHARS = 10_000


# A page is free to answer anything: what has another type than expected is read as nothing
def record(answer: Any) -> Mapping[str, Any]:
    return answer if isinstance(answer, Mapping) else {}


def text_of(value: Any, limit: int = 200) -> str:
    return value[:limit] if isinstance(value, str) else ""


def names_of(value: Any) -> tuple[str, ...]:
    return tuple(map(text_of, value[:20])) if isinstance(value, list) else ()


def number_of(value: Any) -> float:
    """Return a finite number below 1e15, or 0."""
    return float(value) if type(value) in (int, float) and abs(value) < 1e15 else 0.0


@dataclass(frozen=True)
class Settled:
    """The answer of settle.js."""

    fresh: bool = False  # another document than the one that was marked
    moved: bool = False  # the element under the point has gone from there
    title: str = ""
    changes: int = 0
    state: str = ""  # of the marked element, if it is another than before
    revalued: bool = False
    focus: str = ""  # what has got the focus, if it is something else than before
    error: str = ""  # why the browser shows its own error page
    copied: str = ""  # what the action has copied
    requests: int = 0
    heap: float = 0.0  # MB of JavaScript
    loaded: int = 0  # when the document began, in ms since 1970

    @classmethod
    def read(cls, answer: Any) -> Self:
        given = record(answer)
        values: dict[str, Any] = {}
        for part in fields(cls):
            value = given.get(part.name)
            if isinstance(part.default, str):
                values[part.name] = text_of(value, COPIED_CHARS if part.name == "copied" else 200)
            elif isinstance(part.default, bool):
                values[part.name] = value is True
            else:
                values[part.name] = type(part.default)(number_of(value))
        return cls(**values)
