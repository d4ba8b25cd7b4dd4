"""docs/walk.md points at the lines where things are."""

import re
from pathlib import Path

import pytest

WALK = Path(__file__).parents[1] / "docs" / "walk.md"
LINKS = re.findall(r"\[(\w+)\]\((\.\./[^)#]+)#L(\d+)\)", WALK.read_text())


@pytest.mark.parametrize(("name", "file", "number"), LINKS)
def test_a_link_leads_to_the_definition_that_it_names(name, file, number):
    lines = (WALK.parent / file).read_text().splitlines()
    definition = re.compile(rf"\s*(async )?(def|class) {name}\b")
    found = [n for n, line in enumerate(lines, 1) if definition.match(line)]
    assert int(number) in found, f"{name} is defined in lines {found}"


def test_the_walk_has_links_and_takes_a_page():
    assert len(LINKS) >= 25 and len(WALK.read_text().splitlines()) <= 70
