"""Small shops from a seed, and the tasks that can be done in them.

Where it stands: a recipe calls `make_shop` and `make_tasks`; `site` serves the shop, `search` proves
that every task can be done, and a verifier compares the final state with `Task.goal`.

Paper: AutoWebWorld, section 3 (synthetic sites whose states are known, so that success is checked
and not judged). Deviation: there, a language model proposes the machine and writes the pages. Here
the machine is a fixed plan, HOME -> CATEGORY -> PRODUCT -> CHECKOUT -> DONE, and a seed decides
where everything is and how it looks: the same words stand in different places in another shop, so
an agent has to read. Every word belongs to one collection only, which makes goals unambiguous.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from minirl.types import Task
from minirl.worlds.fsm_file import load_fsm
from minirl.worlds.interpreter import World
from minirl.worlds.render import SHAPES

CATEGORIES = ("mugs", "lamps", "chairs", "clocks", "scarves", "vases", "drums", "kites")
PRODUCTS = (
    "acorn",
    "birch",
    "cedar",
    "dune",
    "ember",
    "fjord",
    "grove",
    "heron",
)  # brands, in every category
COLOURS = {
    "red": "#d64545",
    "orange": "#ee8a2e",
    "yellow": "#f2cb3d",
    "green": "#3f9d63",
    "blue": "#3a78c9",
    "purple": "#8457b8",
}
SIZES = ("small", "medium", "large", "giant")
QUANTITIES = ("one", "two", "three", "four", "five", "six")  # shown as digits

# background, tile, text, accent, and four fills for the shapes
PALETTES = (
    ("#f6f4ef", "#ffffff", "#2b2a28", "#2f6f5e", ("#7fb3a3", "#d9a05b", "#c77d6b", "#8d9bb5")),
    ("#eef2f7", "#ffffff", "#1f2a37", "#2d5fa4", ("#7aa2d6", "#e0a96d", "#8fb58a", "#b48cc0")),
    ("#fbf3f1", "#ffffff", "#33242a", "#a8435a", ("#d98c9a", "#8fb0a6", "#e0b26a", "#9a8fc2")),
    ("#f2f1f8", "#ffffff", "#27243a", "#5b4bb0", ("#9d92d8", "#7fb8b0", "#dba26a", "#cf8aa8")),
    ("#f3f6ec", "#ffffff", "#272d1e", "#58792b", ("#a3bd74", "#d6a75f", "#7fa9b8", "#c58b7a")),
    ("#fbf6e8", "#ffffff", "#322a19", "#9a6412", ("#dfb565", "#88ac9a", "#c98468", "#8ea0c0")),
)

# The five choices, in the order in which the pages ask for them: field and collection.
CHOICES = (
    ("category", "categories"),
    ("product", "products"),
    ("colour", "colours"),
    ("size", "sizes"),
    ("quantity", "quantities"),
)


def make_shop(seed: int) -> World:
    """The shop `shop-<seed>`: the same seed gives the same shop, to the pixel."""
    rng = random.Random(f"shop {seed}")
    background, tile, text, accent, fills = rng.choice(PALETTES)
    data = {
        "categories": _with_shapes(rng, CATEGORIES, fills),
        "products": _with_shapes(rng, PRODUCTS, fills),
        "colours": [{"id": word, "title": word, "swatch": colour} for word, colour in COLOURS.items()],
        "sizes": [{"id": word, "title": word} for word in SIZES],
        "quantities": [{"id": word, "title": str(n)} for n, word in enumerate(QUANTITIES, start=1)],
    }
    for records in data.values():
        rng.shuffle(records)
    style = {
        "background": background,
        "tile": tile,
        "text": text,
        "accent": accent,
        "messages": {"DONE": "Thank you, your order is placed."},
    }
    return World(f"shop-{seed}", load_fsm(_shop_machine()), {k: tuple(v) for k, v in data.items()}, style)


def make_tasks(world: World, train: int, heldout: int, seed: int) -> tuple[list[Task], list[Task]]:
    """`train` and `heldout` different orders for a shop, no order in both lists.

    Orders are drawn without replacement from all combinations of the five choices (9216 in a shop
    made here). The first of one shuffled row are for training and those behind them held out, so that
    more held-out tasks never change the others. Raises ValueError if more are asked for than there are.
    """
    options = [[record["id"] for record in world.data[collection]] for _, collection in CHOICES]
    total = 1
    for ids in options:
        total *= len(ids)
    if train + heldout > total:
        raise ValueError(f"{world.name} has {total} different orders, not {train + heldout}: ask for fewer")
    order = list(range(total))
    random.Random(f"tasks {seed}").shuffle(order)
    tasks = [_order(world, _digits(number, options)) for number in order[: train + heldout]]
    return tasks[:train], tasks[train:]


def _digits(number: int, options: list[list[str]]) -> list[str]:
    """The combination with this number, counting through the options like an odometer."""
    words: list[str] = []
    for ids in reversed(options):
        number, which = divmod(number, len(ids))
        words.append(ids[which])
    return words[::-1]


def _order(world: World, words: list[str]) -> Task:
    category, product, colour, size, quantity = words
    where = [
        {"path": f"$.{name}", "cond": "eq", "value": word}
        for (name, _), word in zip(CHOICES, words, strict=True)
    ]
    return Task(
        id="-".join([world.name, *words]),
        instruction=f"Order {product} {category} in {colour}, size {size}, quantity {quantity}.",
        start_url=f"http://{world.name}.test/",
        goal={"page": "DONE", "where": where},
        meta={"world": world.name},
    )


def _with_shapes(rng: random.Random, words: tuple[str, ...], fills: tuple[str, ...]) -> list[dict[str, Any]]:
    shapes = rng.sample(SHAPES, len(words))
    return [
        {"id": word, "title": word, "shape": shape, "fill": fills[i % len(fills)]}
        for i, (word, shape) in enumerate(zip(words, shapes, strict=True))
    ]


# --- the machine ----------------------------------------------------------------------------------


def _shop_machine() -> dict[str, Any]:
    """The machine of every shop, in the form of an fsm.json file.

    A page remembers what was chosen up to and including itself; the fields have the same names all
    along, so that going on carries them and going back forgets what belongs to the page left.
    """
    pages = [
        _page("HOME", 1, [_choose("HOME_OPEN_CATEGORY", 0, "CATEGORY")]),
        _page("CATEGORY", 2, [_back("CATEGORY", "HOME"), _choose("CATEGORY_OPEN_PRODUCT", 1, "PRODUCT")]),
        _page(
            "PRODUCT",
            4,
            [
                _back("PRODUCT", "CATEGORY"),
                _choose("PRODUCT_CHOOSE_COLOUR", 2),
                _choose("PRODUCT_CHOOSE_SIZE", 3),
                _button("PRODUCT_CONTINUE", "CHECKOUT", "#product-continue", ["colour", "size"]),
            ],
        ),
        _page(
            "CHECKOUT",
            5,
            [
                _back("CHECKOUT", "PRODUCT"),
                _choose("CHECKOUT_CHOOSE_QUANTITY", 4),
                _button("CHECKOUT_PLACE_ORDER", "DONE", "#checkout-place", ["quantity"]),
            ],
        ),
        _page("DONE", 5, []),
    ]
    return {"meta": {"app": "shop", "initial_page_id": "HOME", "terminal_pages": ["DONE"]}, "pages": pages}


def _page(id: str, fields: int, actions: list[dict[str, Any]]) -> dict[str, Any]:
    """A page that remembers the first `fields` of the five choices."""
    schema = {name: "string|null" for name, _ in CHOICES[:fields]}
    return {"id": id, "signature_schema": schema, "actions": [{"from": id, "to": id, **a} for a in actions]}


def _choose(id: str, which: int, target: str | None = None) -> dict[str, Any]:
    """Click one record of the `which`-th collection; stay on the page if there is no target."""
    name, collection = CHOICES[which]
    return {
        "id": id,
        "name": "click",
        **_going(target),
        "parameters": {name: "{ITEM_ANY}"},
        "bind": {name: {"collection": collection}},
        "effects": [{"op": "set", "path": f"$.{name}", "value_ref": f"{{{name}}}"}],
        "gui_procedure": [{"op": "click", "selector": f"#{collection} .row"}],
    }


def _button(id: str, target: str, selector: str, needed: list[str]) -> dict[str, Any]:
    """Click a button that works once the `needed` fields are chosen."""
    return {
        "id": id,
        "name": "click",
        **_going(target),
        "preconditions": [{"path": f"$.{name}", "cond": "not_null"} for name in needed],
        "gui_procedure": [{"op": "click", "selector": selector}],
    }


def _back(page: str, target: str) -> dict[str, Any]:
    return _button(f"{page}_BACK", target, f"#{page.lower()}-back", [])


def _going(target: str | None) -> Mapping[str, Any]:
    return {"is_navigation": False} if target is None else {"is_navigation": True, "to": target}
