"""The vocabulary of generated sites: what they are about, and what is said on them.

Where it stands: `generate` draws a plan from a seed and fills it with one theme's words, which are in
themes.toml. A theme says nothing of pages or actions, so that every plan can be told in every theme.

Paper: AutoWebWorld, appendix C: the same five categories. Deviation: there, a theme is the name of a real
site, and a language model knows the rest.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any


@dataclass(frozen=True)
class Number:
    """A number that every record has: between `low` and `high` in steps of `step`, shown as `unit` says."""

    name: str
    unit: str  # "{} km"
    low: int
    high: int
    step: int


@dataclass(frozen=True)
class Entity:
    """A kind of thing that a site lists. Titles are one of `adjectives` and one of `nouns`."""

    name: str  # singular, as in the names of fields
    plural: str
    adjectives: tuple[str, ...]
    nouns: tuple[str, ...]
    flags: tuple[str, ...]  # yes or no
    kinds: tuple[str, ...]  # one of them
    verb: str  # what is done with one: "book"
    done: str  # what the last page then says
    numbers: tuple[Number, ...]


@dataclass(frozen=True)
class Theme:
    name: str
    category: str  # travelling, commerce, productivity, media or communication
    brands: tuple[str, ...]  # what the site may be called
    fields: tuple[str, ...]  # what its forms ask for: keys of WORDS
    settings: tuple[str, ...]  # what can be switched on and off
    entities: tuple[Entity, ...]


def _entity(record: Mapping[str, Any]) -> Entity:
    words = {name: tuple(record[name].split()) for name in ("adjectives", "nouns", "flags", "kinds")}
    return Entity(**{**record, **words, "numbers": tuple(Number(**number) for number in record["numbers"])})


def _theme(record: Mapping[str, Any]) -> Theme:
    lists = {name: tuple(record[name]) for name in ("brands", "fields", "settings")}
    return Theme(**{**record, **lists, "entities": tuple(_entity(entity) for entity in record["entities"])})


_FILE = tomllib.loads(files("minirl.worlds").joinpath("themes.toml").read_text(encoding="utf-8"))
WORDS: Mapping[str, tuple[str, ...]] = {name: tuple(words) for name, words in _FILE["words"].items()}
THEMES: Mapping[str, Theme] = {record["name"]: _theme(record) for record in _FILE["themes"]}
