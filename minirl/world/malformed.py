"""What is wrong with a file, and where: the error that every reader of site files raises."""

from __future__ import annotations

from collections.abc import Mapping
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


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else text[:SHOWN] + " ..."
