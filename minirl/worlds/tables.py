"""What lies beside this package's modules: tables of words and sizes, scripts, style sheets, pages."""

import tomllib
from importlib.resources import files
from typing import Any

from jinja2 import Template


def text_of(file: str, **told: Any) -> str:
    """Return a file of this folder; of a template, what it becomes with the values that it is told."""
    text = files("minirl.worlds").joinpath(file).read_text(encoding="utf-8")
    return Template(text, keep_trailing_newline=True).render(told) if file.endswith(".j2") else text


def read_table(name: str) -> dict[str, Any]:
    """Return what stands in a table: "shop" is shop.toml."""
    return tomllib.loads(text_of(f"{name}.toml"))
