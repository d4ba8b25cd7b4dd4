"""The files that lie beside the modules of the rooms, as prompts and tables, and those of other packages."""

import tomllib
from importlib.util import find_spec
from pathlib import Path

from minirl.types import Json

PACKAGE = Path(__file__).parent


def text_of(file: str) -> str:
    """Return a file of this package, as "agents/prompts/openwebrl.md"."""
    return (PACKAGE / file).read_text("utf-8")


def table_of(file: str) -> Json:
    """Return what is in a TOML file of this package, as "agents/openwebrl.toml"."""
    return tomllib.loads(text_of(file))


def folder_of(package: str) -> Path | None:
    """Return where an installed package lies, without importing it; None if there is none."""
    spec = find_spec(package)
    return Path(spec.origin).parent if spec and spec.origin else None
