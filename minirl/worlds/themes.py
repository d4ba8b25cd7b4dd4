"""The vocabulary of generated sites, read from themes.toml for `blueprint` and `generate`.

Every plan can be told in every theme. Paper: AutoWebWorld, appendix C: the same five categories. Deviation:
there, a theme is the name of a real site, and a language model knows the rest.
"""

from __future__ import annotations

import tomllib
from importlib.resources import files
from typing import Annotated

from pydantic import BaseModel, BeforeValidator

Words = Annotated[tuple[str, ...], BeforeValidator(str.split)]  # written "red green blue"


class Number(BaseModel):
    """A number that every record has: between `low` and `high` in steps of `step`."""

    name: str
    unit: str  # how it is shown: "{} km"
    low: int
    high: int
    step: int


class Entity(BaseModel):
    """A kind of thing that a site lists. Titles are one of `adjectives` and one of `nouns`."""

    name: str  # singular, as in the names of fields
    plural: str
    adjectives: Words
    nouns: Words
    flags: Words  # yes or no
    kinds: Words  # one of them
    verb: str  # what is done with one: "book"
    done: str  # what the last page then says
    numbers: tuple[Number, ...]


class Theme(BaseModel):
    name: str
    category: str  # travelling, commerce, productivity, media or communication
    brands: tuple[str, ...]  # what the site may be called
    fields: tuple[str, ...]  # what its forms ask for: keys of WORDS
    settings: tuple[str, ...]  # what can be switched on and off
    entities: tuple[Entity, ...]


_FILE = tomllib.loads(files("minirl.worlds").joinpath("themes.toml").read_text(encoding="utf-8"))
WORDS: dict[str, list[str]] = _FILE["words"]  # what can be typed into a form's fields
THEMES = {record["name"]: Theme(**record) for record in _FILE["themes"]}
VERBS, OF_ITEMS, OF_SITES = _FILE["verbs"], _FILE["pages_of_items"], _FILE["pages_of_sites"]
FILLS: dict[str, str] = _FILE["fills"]  # colours of pictures, by their names
