"""The examples in docstrings give what they say."""

import doctest
import importlib
import io
from pathlib import Path

import pytest
from rich.console import Console

ROOT = Path(__file__).parents[1]
FILES = [path for path in (ROOT / "minirl").rglob("*.py") if ">>> " in path.read_text()]


def test_there_are_examples():
    assert len(FILES) >= 25


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_the_examples_of_a_module(file, monkeypatch):
    monkeypatch.setattr("minirl.console.CONSOLE", Console(file=io.StringIO()))  # no progress
    module = importlib.import_module(".".join(file.relative_to(ROOT).with_suffix("").parts))
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS)
    assert result.attempted and not result.failed
