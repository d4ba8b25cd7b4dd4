"""What the readers of site files share: the error that says what is wrong and where, and small questions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

WORDS = {str: "a text", list: "a list", Mapping: "an object", bool: "true or false"}
SHOWN = 80  # characters of what was found instead


class Malformed(ValueError):
    """Something in a file that can't be read: `place` says where, `reason` what is wrong."""

    def __init__(self, place: str, reason: str):
        super().__init__(f"{place}: {reason}")
        self.place, self.reason = place, reason


def taken(record: Any, key: str, kind: type, place: str, default: Any = None) -> Any:
    """`record[key]`, or `default` if that is not None; Malformed if missing or not of `kind`."""
    if not isinstance(record, Mapping):
        raise Malformed(place, f"must be an object, not {shown(record)}")
    value = record.get(key, default)
    if not isinstance(value, kind):
        raise Malformed(place, f"{key!r} must be {WORDS[kind]}, not {shown(value)}")
    return value


def readable(
    entries: Iterable[tuple[str, Any]], read: Callable[[Any, str], Any], note: Callable[[Malformed], None]
) -> list[Any]:
    """What `read` makes of each (place, entry); `note` is told of those that can't be read."""
    out = []
    for place, entry in entries:
        try:
            out.append(read(entry, place))
        except Malformed as problem:
            note(problem)
    return out


def is_placeholder(value: Any) -> bool:
    """Whether a parameter's value is a symbol such as "{ITEM_ANY}", which stands for any value."""
    return isinstance(value, str) and re.fullmatch(r"\{[^{}]*\}", value) is not None


def is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else text[:SHOWN] + " ..."
