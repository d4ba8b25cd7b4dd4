"""docs/walk.md and docs/algorithm.md point at the lines where things are; the latter's example is right."""

import re
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest

from minirl.advantages import advantages
from minirl.config import LossConfig
from minirl.loss import turn_weights

DOCS = Path(__file__).parents[1] / "docs"
LINK = re.compile(r"\[(\w+)\]\((\.\./[^)#]+)#L(\d+)\)")
LINKS = {page: LINK.findall((DOCS / page).read_text()) for page in ("walk.md", "algorithm.md")}


@pytest.mark.parametrize(
    ("page", "name", "file", "number"), [(page, *link) for page, links in LINKS.items() for link in links]
)
def test_a_link_leads_to_the_definition_that_it_names(page, name, file, number):
    lines = (DOCS / file).read_text().splitlines()
    definition = re.compile(rf"\s*(async )?(def|class) {name}\b")
    found = [n for n, line in enumerate(lines, 1) if definition.match(line)]
    assert int(number) in found, f"{page}: {name} is defined in lines {found}"


def test_the_walk_has_links_and_takes_a_page():
    assert len(LINKS["walk.md"]) >= 25 and len((DOCS / "walk.md").read_text().splitlines()) <= 70


def test_the_example_of_the_losses_is_as_computed():
    """Two episodes of one task: two turns of 2 and 1 tokens, and one turn of 3."""
    text = (DOCS / "algorithm.md").read_text()
    rows = re.findall(r"^\| `([\w-]+)` \|" + r" ([\d.]+) \|" * 4 + "$", text, re.MULTILINE)
    (weighting,) = (field for field in fields(LossConfig) if field.name == "weighting")
    assert {name for name, *_ in rows} == set(get_args(weighting.type))
    for name, *cells in rows:
        config = LossConfig(weighting=name)
        weights = turn_weights([0, 0], [[2, 1], [3]], config, {0: 2})
        first, second, failure = weights[0][0], weights[0][1], weights[1][0]
        expected = [first, second, failure, 2 * first + second]
        assert [float(cell) for cell in cells] == pytest.approx(expected, abs=5e-4), name
    assert advantages([1.0, 0.0], 0.0) == pytest.approx([0.707, -0.707], abs=5e-4)
