"""What lies beside this package's modules: tables of words and sizes, scripts, style sheets, pages."""

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any


@cache
def read_text(name: str) -> str:
    return files("minirl.worlds").joinpath(name).read_text(encoding="utf-8")


def read_table(name: str) -> dict[str, Any]:
    """Return what stands in a table: "shop" is shop.toml."""
    return tomllib.loads(read_text(f"{name}.toml"))
