"""Sites of tiles: small shops by their numbers, the tasks in them, and the first level of generated sites.

Shop n draws all that makes a shop from shop.toml: what it asks, in which order and on how many pages, the
words to choose from, number, size and place of the controls, letters, pictures, colours. An agent that has
seen other shops still has to look. Shops below 50000 are for training, from there on for validation, and from
90000 on held out; `shops:90001-90064@serif` are shops in a typeface that no other shop has. The controls of a
page stand in boxes, into which the window is cut at random.

Small models have learned from these shops, so what a number draws, and in which order, stays as it is.
Paper: AutoWebWorld, section 3. Deviation: there, a language model proposes the machine and writes the pages.
"""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from minirl.types import Json, Task
from minirl.worlds.fsm_file import Fsm
from minirl.worlds.interpreter import World
from minirl.worlds.looks import SHAPES, USUAL, draw_style, read_table
from minirl.worlds.widgets import SiteDocument, condition, control

SHOP = read_table("shop")
CHOICES: dict[str, Json] = SHOP["choices"]  # by field
ITEM, *ORDER_FIELDS = CHOICES  # what a first-level site lists, and what its form can ask for
TO_PRESS = ("next", "order")  # the buttons that are on the way to an order
Box = tuple[int, ...]  # left, top, width and height, in cells or pixels of shop.toml's window
Places = dict[str, Box]  # by the names of controls
NAMED = re.compile(r"shops:(\d{1,9})-(\d{1,9})(@serif)?")  # in a setting
HOST = re.compile(r"http://shop-(\d+)(-serif)?\.test(/|$)")


# --- shops by number ------------------------------------------------------------------------------------


def make_shop(n: int, serif: bool = False) -> World:
    """Return the shop `shop-<n>` or `shop-<n>-serif`: the same number gives the same shop, to the pixel."""
    rng = Random(f"shop {n}")
    pages = _draw_pages(rng)
    goes_on = []  # whether a page is left by a click on what is chosen, without a button
    for page in pages:
        has_one_choice = len(page) == 1 and page != pages[-1]
        goes_on.append(has_one_choice and rng.random() < 0.5)
    data = {}
    for page in pages:
        max_words = 8 if len(page) == 1 else 5
        for field in page:
            data[CHOICES[field]["collection"]] = records_of(field, max_words, rng)
    site = _shop_pages(pages, goes_on)
    name = f"shop-{n}-serif" if serif else f"shop-{n}"
    font = "serif" if serif else "sans"
    style = {"font": font, "labels": site.labels, "messages": site.messages}
    return arrange(World(name, site.machine({}), data, style), rng)


def _draw_pages(rng: Random) -> list[list[str]]:
    """Return the fields that a shop asks for, page by page: the first two of shop.toml and some others."""
    first, second, *others = CHOICES
    fields = [first, second, *rng.sample(others, rng.randint(1, 3))]
    rng.shuffle(fields)
    pages = []
    while fields:
        size = rng.choice((1, 1, 2))
        pages.append([field for field in CHOICES if field in fields[:size]])
        fields = fields[size:]
    return pages


def _shop_pages(pages: Sequence[Sequence[str]], goes_on: Sequence[bool]) -> SiteDocument:
    """Return pages that ask for the fields one by one. A page remembers what was chosen up to and including
    itself, so that going back forgets what belongs to the page left."""
    site = SiteDocument("{page}-{role}")
    ids = ["_".join(page).upper() for page in pages] + ["DONE"]
    buttons = SHOP["buttons"]
    types = {}
    for i, page in enumerate(pages):
        id = ids[i]
        then = ids[i + 1]
        types |= dict.fromkeys(page, "string|null")
        site.add_page(id, " ".join(page).capitalize(), fields=types)
        for field in page:
            collection = CHOICES[field]["collection"]
            row = control("row", f"#{collection} .row", field, {"param": field, "collection": collection})
            role = f"CHOOSE_{field.upper()}"
            site.add_action(id, role, f"Choose {field}", row, to=then if goes_on[i] else "")
        if not goes_on[i]:
            gates = [condition(field, "not_null") for field in page]
            role = "order" if then == "DONE" else "next"
            site.add_action(id, role, buttons[role], to=then, gates=gates)
        if i > 0:
            site.add_action(id, "back", buttons["back"], to=ids[i - 1])
    site.add_page("DONE", "Done", fields=types)
    site.messages["DONE"] = "Thank you, your order is placed."
    return site


def shops_of(tasks: Iterable[Task]) -> list[World]:
    """Return the generated shops that the tasks live on, in the order of their numbers."""
    numbers = set()
    for task in tasks:
        match = HOST.match(task.start_url)
        if match:
            numbers.add((int(match[1]), bool(match[2])))
    return [make_shop(n, serif) for n, serif in sorted(numbers)]


def shops_named(text: str) -> list[World]:
    """Return the shops that a setting names as `shops:0-299` or `shops:90001-90064@serif`; none for anything
    else. ValueError if the numbers are the wrong way round."""
    match = NAMED.fullmatch(text)
    if not match:
        return []
    first = int(match[1])
    last = int(match[2])
    if last < first:
        raise ValueError(f"{text}: write the smaller number first")
    return [make_shop(n, bool(match[3])) for n in range(first, last + 1)]


def make_tasks(world: World, count: int) -> list[Task]:
    """Return `count` different orders in a shop, the same in any typeface. Asking for more changes none.
    ValueError if there are not so many."""
    options = {}
    for field, choice in CHOICES.items():
        records = world.data.get(choice["collection"], ())
        if records:
            options[field] = [record["id"] for record in records]
    orders = list(itertools.product(*options.values()))
    if count > len(orders):
        raise ValueError(f"{world.name} has {len(orders)} different orders, not {count}: name more shops")
    Random(f"orders of {world.name.removesuffix('-serif')}").shuffle(orders)
    tasks = []
    for order in orders[:count]:
        chosen = dict(zip(options, order, strict=True))
        where = [condition(field, "eq", word) for field, word in chosen.items()]
        tasks.append(
            Task(
                id="-".join([world.name, *order]),
                instruction=order_in_words(chosen),
                start_url=f"http://{world.name}.test/",
                goal={"page": "DONE", "where": where},
                meta={
                    "world": world.name,
                    "site": "shops",
                    "difficulty": f"{len(chosen)} things",
                    "solution": _solution(world.fsm, chosen),
                },
            )
        )
    return tasks


def order_in_words(chosen: Mapping[str, str]) -> str:
    """Return an order as an instruction.

    >>> order_in_words({"product": "koala", "category": "lamps", "colour": "red"})
    'Order koala lamps in red.'
    """
    text = ""
    for field, word in chosen.items():
        text += CHOICES[field]["phrase"].format(word)
    return f"{text}."


def _solution(fsm: Fsm, chosen: Mapping[str, str]) -> list[Any]:
    """Return the steps of an order as a task holds them: page by page all that is asked, then the button."""
    steps = []
    for page in fsm.pages.values():
        for action in page.actions.values():
            if action.bind:
                field = action.bind.param
                steps.append([action.id, {field: chosen[field]}])
            elif not action.id.endswith("_back"):
                steps.append([action.id, {}])
    return steps


def tasks_of(shops: Sequence[World], count: int) -> list[Task]:
    """Return `count` orders, one in each shop, then a second one in each, and so on."""
    orders = [make_tasks(shop, -(-count // len(shops))) for shop in shops]
    return list(itertools.chain(*zip(*orders, strict=True)))[:count]


# --- tiles ----------------------------------------------------------------------------------------------


def arrange(world: World, rng: Random) -> World:
    """Return a site as tiles, with colours, the size of its letters and the places of its controls."""
    style = {
        "look": "tiles",
        **world.style,
        **draw_style(rng),
        "letters": rng.randint(22, 28),  # pixels
        "places": draw_places(world, rng),
    }
    return replace(world, style=style)


def records_of(field: str, max_records: int, rng: Random) -> tuple[Json, ...]:
    """Return 3 to `max_records` things to choose from, with or without pictures."""
    words = CHOICES[field]["words"]
    has_swatches = rng.random() < 0.6
    names = rng.sample(words, rng.randint(3, max_records))
    has_pictures = rng.random() < 0.5
    shapes = rng.sample(SHAPES, len(SHAPES))
    records = []
    for name, shape in zip(names, shapes, strict=False):
        record = {"id": name, "title": name}
        if field == "colour" and has_swatches:
            record["swatch"] = SHOP["swatches"][name]
        elif field in ("category", "product") and has_pictures:
            record["shape"] = shape
            record["fill"] = rng.choice(list(USUAL["fills"].values()))
        elif field == "quantity":
            record["title"] = str(words.index(name) + 1)
        records.append(record)
    return tuple(records)


def draw_places(world: World, rng: Random) -> dict[str, Places]:
    """Return where the controls of each page are, in pixels, but for last pages, which have none."""
    width, height = SHOP["window"]
    bar = rng.choice((1, 1, 2))  # the header's height, in cells
    gap = rng.randint(3, 6)
    header_top = 0
    top = bar
    if rng.random() < 0.3:  # the header is at the window's lower end
        header_top = height - bar
        top = 0
    area = (0, top, width, height - bar)
    header = tuple(SHOP["cell"] * side for side in (0, header_top, width, bar))
    places = {}
    for page in world.fsm.pages.values():
        groups = []
        for action in page.actions.values():
            names = [action.gui_procedure[0].get("selector", "")[1:]]
            if action.bind:
                names = [record["id"] for record in world.data[action.bind.collection]]
            groups.append(names)
        if groups:
            places[page.id] = {"header": header, **_places_in(area, groups, gap, rng)}
    return places


def _places_in(area: Box, groups: Sequence[list[str]], gap: int, rng: Random) -> Places:
    """Return the place of every control of a page, in pixels. `area` is what they share, in cells, `groups`
    holds their names, and `gap` is the space around each."""
    groups = [*groups, [""] * rng.randint(0, 2)]  # "" stays empty
    names = []
    for group in rng.sample(groups, len(groups)):
        names += rng.sample(group, len(group))
    boxes = cut(area, len(names), rng)
    places = {}
    for name, box in zip(names, boxes, strict=True):
        if name:
            left, top, width, height = (SHOP["cell"] * side for side in box)
            places[name] = (left + gap, top + gap, width - 2 * gap, height - 2 * gap)
    return places


def cut(box: Box, n: int, rng: Random) -> list[Box]:
    """Cut a box at random into n, none smaller than the least: in two, and each part again. Those that follow
    one another in the list are mostly neighbours."""
    if n == 1:
        return [box]
    size = box[2:]
    least = SHOP["least"]
    ways = []
    for first in range(1, n):
        # A cut is rather in the middle, and rather across what is long.
        evenness = min(first, n - first) / n
        for side in (0, 1):
            lanes = size[1 - side] // least[1 - side]
            low = -(-first // lanes) * least[side]
            high = size[side] - -(-(n - first) // lanes) * least[side]
            if low <= high:
                ways.append(((evenness * size[side] / least[side]) ** 2, first, low, high, side))
    _, first, low, high, side = rng.choices(ways, [way[0] for way in ways])[0]
    mode = min(max(size[side] * first / n, low), high)
    at = round(rng.triangular(low, high, mode))
    one = list(box)
    one[2 + side] = at
    other = list(box)
    other[side] += at
    other[2 + side] -= at
    return cut(tuple(one), first, rng) + cut(tuple(other), n - first, rng)
