"""Pages of tiles: what there is to choose from, and the window, cut at random into a box for each control.

Shops (shop.py) and the first level of generated sites (generate.py) are drawn so, in the same words: large
controls, of which number, size and place say nothing about what they are for. Not in a paper.
"""

import tomllib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from random import Random
from typing import Any

from minirl.worlds.fsm_file import Action, Fsm
from minirl.worlds.render import SHAPES

SHOP = tomllib.loads(files("minirl.worlds").joinpath("shop.toml").read_text(encoding="utf-8"))
CHOICES: dict[str, dict[str, Any]] = SHOP["choices"]  # by field
TO_PRESS = ("next", "order")  # the buttons that are on the way to an order

Box = tuple[int, ...]  # left, top, width and height, in cells or pixels of shop.toml's window


def records_of(field: str, most: int, rng: Random) -> tuple[dict[str, Any], ...]:
    """Return 3 to `most` things to choose from, with or without pictures."""
    words, swatches = CHOICES[field]["words"], SHOP["swatches"] if rng.random() < 0.6 else {}
    chosen, pictured = rng.sample(words, rng.randint(3, most)), rng.random() < 0.5
    out = [{"id": word, "title": word} for word in chosen]
    for record, shape in zip(out, rng.sample(SHAPES, len(SHAPES)), strict=False):
        if field == "colour" and swatches:
            record["swatch"] = swatches[record["id"]]
        elif field in ("category", "product") and pictured:
            record |= {"shape": shape, "fill": rng.choice(list(SHOP["fills"].values()))}
        elif field == "quantity":
            record["title"] = str(words.index(record["id"]) + 1)
    return tuple(out)


def controls_of(one: Action, data: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Return the names of an action's controls: its records' ids, or its button's."""
    if one.bind is not None:
        return [record["id"] for record in data[one.bind.collection]]
    return [one.gui_procedure[0].get("selector", "")[1:]]


def draw_places(fsm: Fsm, data: Mapping[str, Any], rng: Random) -> dict[str, dict[str, Box]]:
    """Return where the controls of each page are, but for last pages, which have none."""
    bar, gap, is_below = rng.choice((1, 1, 2)), rng.randint(3, 6), rng.random() < 0.3
    groups = {
        page.id: [controls_of(one, data) for one in page.actions.values()] for page in fsm.pages.values()
    }
    return {id: places_of(some, bar, gap, is_below, rng) for id, some in groups.items() if some}


def places_of(groups: Sequence[list[str]], bar: int, gap: int, is_below: bool, rng: Random) -> dict[str, Box]:
    """Return the place of every control of a page, and that of its header, which is `bar` cells high."""
    (width, height), groups = SHOP["window"], [*groups, [""] * rng.randint(0, 2)]  # "" stays empty
    names = [name for group in rng.sample(groups, len(groups)) for name in rng.sample(group, len(group))]
    boxes = cut((0, bar * (not is_below), width, height - bar), len(names), rng)
    header = (0, (height - bar) * is_below, width, bar)
    places: dict[str, Box] = {"header": tuple(SHOP["cell"] * side for side in header)}
    for name, box in zip(names, boxes, strict=True):
        x, y, w, h = (SHOP["cell"] * side for side in box)
        if name:
            places[name] = (x + gap, y + gap, w - 2 * gap, h - 2 * gap)
    return places


def cut(box: Box, n: int, rng: Random) -> list[Box]:
    """Cut a box at random into n, none smaller than the least: in two, and each part again. Those that follow
    one another in the list are mostly neighbours."""
    x, y, w, h = box
    if n == 1:
        return [box]
    (least_w, least_h), ways = SHOP["least"], []
    columns, rows = w // least_w, h // least_h
    for first in range(1, n):
        for size, least, lanes, is_across in ((w, least_w, rows, True), (h, least_h, columns, False)):
            low, high = -(-first // lanes) * least, size - -(-(n - first) // lanes) * least
            if low <= high:
                # rather in the middle, and rather across what is long
                even = min(first, n - first) / n
                ways.append((even * size / least, first, low, high, is_across))
    _, first, low, high, is_across = rng.choices(ways, [way[0] ** 2 for way in ways])[0]
    at = round(rng.triangular(low, high, min(max((w if is_across else h) * first / n, low), high)))
    if is_across:
        return cut((x, y, at, h), first, rng) + cut((x + at, y, w - at, h), n - first, rng)
    return cut((x, y, w, at), first, rng) + cut((x, y + at, w, h - at), n - first, rng)
