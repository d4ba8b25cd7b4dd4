"""Small shops by their numbers, the tasks that can be done in them, and the tiles that they are drawn with.

Shop n draws all that makes a shop from shop.toml: what it asks, in which order and on how many pages, the
words to choose from, number, size and place of the controls, letters, pictures, colours. An agent that has
seen other shops still has to look. Shops below 50000 are for training, from there on for validation, and from
90000 on held out; `shops:90001-90064@serif` are shops in a typeface that no other shop has. The first level
of generated sites (generate.py) has tiles, too: the window, cut at random into a box for each control.
Paper: AutoWebWorld, section 3. Deviation: there, a language model proposes the machine and writes the pages.
"""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any

from minirl.types import Task
from minirl.worlds.fsm_file import Action, Fsm, load_fsm
from minirl.worlds.interpreter import World
from minirl.worlds.looks import SHAPES, draw_style, read_table
from minirl.worlds.widgets import action, condition, control

SHOP = read_table("shop")
CHOICES: dict[str, dict[str, Any]] = SHOP["choices"]  # by field
TO_PRESS = ("next", "order")  # the buttons that are on the way to an order
Box = tuple[int, ...]  # left, top, width and height, in cells or pixels of shop.toml's window
NAMED = re.compile(r"shops:(\d{1,9})-(\d{1,9})(@serif)?")  # in a setting
HOST = re.compile(r"http://shop-(\d+)(-serif)?\.test(/|$)")
MOST = 10_000  # shops in one setting


def make_shop(n: int, serif: bool = False) -> World:
    """Return the shop `shop-<n>` or `shop-<n>-serif`: the same number gives the same shop, to the pixel."""
    rng, pages = Random(f"shop {n}"), []
    first, second, *others = CHOICES
    asked = [first, second, *rng.sample(others, rng.randint(1, 3))]
    rng.shuffle(asked)
    while asked:
        size = rng.choice((1, 1, 2))
        pages.append([field for field in CHOICES if field in asked[:size]])
        asked = asked[size:]
    # a page that asks one thing may go on by itself
    by_itself = [len(page) == 1 and page != pages[-1] and rng.random() < 0.5 for page in pages]
    machine = _machine(pages, by_itself)
    most = {1: 8, 2: 5}  # words, by the number of things that a page asks
    data = {CHOICES[f]["collection"]: records_of(f, most[len(page)], rng) for page in pages for f in page}
    style = draw_style(rng) | {"letters": rng.randint(22, 28), "font": "serif" if serif else "sans"}
    words = SHOP["buttons"]
    style["labels"] = {a.id: words[r] for a in machine.actions if (r := a.id.rpartition("_")[2]) in words}
    style["places"] = draw_places(machine, data, rng)
    style["messages"] = {"DONE": "Thank you, your order is placed."}
    return World(f"shop-{n}{'-serif' * serif}", machine, data, style)


def _machine(pages: Sequence[Sequence[str]], by_itself: Sequence[bool]) -> Fsm:
    """Return a machine that asks for the fields page by page. A page remembers what was chosen up to and
    including itself, so that going back forgets what belongs to the page left."""
    ids, schema, out = ["_".join(page).upper() for page in pages] + ["DONE"], {}, []
    for i, (page, alone) in enumerate(zip(pages, by_itself, strict=True)):
        id, then, is_last = ids[i], ids[i + 1], i == len(pages) - 1
        schema |= dict.fromkeys(page, "string|null")
        actions = []
        for field in page:
            offered = {"param": field, "collection": (many := CHOICES[field]["collection"])}
            row = control("row", f"#{many} .row", field, offered)
            actions.append(action(f"{id}_CHOOSE_{field.upper()}", id, row, to=then if alone else ""))
        gates, role = [condition(field, "not_null") for field in page], "order" if is_last else "next"
        buttons = [] if alone else [(role, then, gates)]
        for role, to, needed in buttons + [("back", ids[i - 1], [])] * (i > 0):
            button = control("button", f"#{id.lower().replace('_', '-')}-{role}")
            actions.append(action(f"{id}_{role}", id, button, to=to, gates=needed))
        out.append({"id": id, "signature_schema": dict(schema), "actions": actions})
    out.append({"id": "DONE", "signature_schema": schema, "actions": []})
    return load_fsm({"meta": {"initial_page_id": ids[0], "terminal_pages": ["DONE"]}, "pages": out})


def shops_of(tasks: Iterable[Task]) -> list[World]:
    """Return the generated shops that the tasks live on, in the order of their numbers."""
    found = {match[0]: match for task in tasks if (match := HOST.match(task.start_url))}
    numbers = sorted({(int(match[1]), match[2] is not None) for match in found.values()})
    return [make_shop(*number) for number in numbers]


def shops_named(text: str) -> list[World]:
    """Return the shops that a setting names as `shops:0-299` or `shops:90001-90064@serif`; none for anything
    else. ValueError if the numbers are the wrong way round."""
    match = NAMED.fullmatch(text)
    if match is None:
        return []
    first, last = int(match[1]), int(match[2])
    if not first <= last < first + MOST:
        raise ValueError(f"{text}: write the smaller number first, and name {MOST} shops at most")
    return [make_shop(n, match[3] is not None) for n in range(first, last + 1)]


def make_tasks(world: World, count: int) -> list[Task]:
    """Return `count` different orders in a shop, the same in any typeface. Asking for more changes none."""
    asked = [field for field, choice in CHOICES.items() if choice["collection"] in world.data]
    options = [[record["id"] for record in world.data[CHOICES[field]["collection"]]] for field in asked]
    orders, tasks = list(itertools.product(*options)), []
    if count > len(orders):
        problem = f"{world.name} has {len(orders)} different orders, not {count}"
        raise ValueError(f"{problem}: name more shops, or lower --task.train-goals or --eval.episodes")
    Random(f"orders of {world.name.removesuffix('-serif')}").shuffle(orders)
    for order in orders[:count]:
        chosen = list(zip(asked, order, strict=True))
        instruction = "".join(CHOICES[field]["phrase"].format(word) for field, word in chosen) + "."
        where = [{"path": f"$.{field}", "cond": "eq", "value": word} for field, word in chosen]
        goal, url = {"page": "DONE", "where": where}, f"http://{world.name}.test/"
        meta = {"world": world.name, "site": "shops", "solution": _solution(world.fsm, dict(chosen))}
        tasks.append(Task("-".join([world.name, *order]), instruction, url, goal, meta))
    return tasks


def _solution(fsm: Fsm, chosen: Mapping[str, str]) -> list[Any]:
    """Return the steps of an order as a task holds them: page by page all that is asked, then the button."""
    steps = []
    for page in fsm.pages.values():
        for one in page.actions.values():
            if one.bind is not None:
                field = one.bind.param
                steps.append([one.id, {field: chosen[field]}])
            elif not one.id.endswith("_back"):
                steps.append([one.id, {}])
    return steps


def tasks_of(shops: Sequence[World], count: int) -> list[Task]:
    """Return `count` orders, one in each shop, then a second one in each, and so on."""
    each = [make_tasks(shop, -(-count // len(shops))) for shop in shops]
    return [task for round in zip(*each, strict=True) for task in round][:count]


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
    groups = {id: [controls_of(a, data) for a in page.actions.values()] for id, page in fsm.pages.items()}
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
