"""Small shops by their numbers, and the tasks that can be done in them.

Shop n draws all that makes a shop from shop.toml: what it asks, in which order and on how many pages, the
words to choose from, number, size and place of the controls, letters, pictures, colours. An agent that has
seen other shops still has to look. Shops below 50000 are for training, from there on for validation, and from
90000 on held out; `shops:90001-90064@serif` are shops in a typeface that no other shop has.

Paper: AutoWebWorld, section 3. Deviation: there, a language model proposes the machine and writes the pages.
"""

import itertools
import re
from collections.abc import Iterable, Sequence
from random import Random

from minirl.types import Task
from minirl.worlds.fsm_file import Fsm, load_fsm
from minirl.worlds.interpreter import World
from minirl.worlds.looks import draw_style
from minirl.worlds.tiles import CHOICES, SHOP, draw_places, records_of
from minirl.worlds.widgets import action, condition, control

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
        meta = {"world": world.name, "site": "shops"}
        tasks.append(Task("-".join([world.name, *order]), instruction, url, goal, meta))
    return tasks


def tasks_of(shops: Sequence[World], count: int) -> list[Task]:
    """Return `count` orders, one in each shop, then a second one in each, and so on."""
    each = [make_tasks(shop, -(-count // len(shops))) for shop in shops]
    return [task for round in zip(*each, strict=True) for task in round][:count]
