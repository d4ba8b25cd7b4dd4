"""The files that lie beside the modules of the rooms: prompts, scripts of pages, tables."""

import tomllib
from pathlib import Path

from minirl.types import Json

PACKAGE = Path(__file__).parent


def text_of(file: str) -> str:
    """Return a file of this package, as "agents/prompts/openwebrl.md"."""
    return (PACKAGE / file).read_text("utf-8")


def table_of(file: str) -> Json:
    """Return what is in a TOML file of this package, as "agents/openwebrl.toml"."""
    return tomllib.loads(text_of(file))
