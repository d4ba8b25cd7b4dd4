"""What lies beside this package's modules: tables of words and sizes, scripts, style sheets, pages."""

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Template


@cache
def read_text(name: str) -> str:
    return files("minirl.worlds").joinpath(name).read_text(encoding="utf-8")


def text_of(file: str, **told: Any) -> str:
    """Return a file of this folder; of a template, what it becomes with the values that it is told."""
    text = read_text(file)
    return Template(text, keep_trailing_newline=True).render(told) if file.endswith(".j2") else text


def read_table(name: str) -> dict[str, Any]:
    """Return what stands in a table: "shop" is shop.toml."""
    return tomllib.loads(read_text(f"{name}.toml"))
