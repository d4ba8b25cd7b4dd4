"""Small shops from a seed, and the tasks that can be done in them.

Paper: AutoWebWorld, section 3. Deviation: there, a language model proposes the machine and writes the pages.
Here the machine is that of shop.toml, HOME -> CATEGORY -> PRODUCT -> CHECKOUT -> DONE, and a seed decides
where everything is and how it looks, so an agent has to read.
"""

from __future__ import annotations

import itertools
import random
import re
import tomllib
from collections.abc import Iterable
from importlib.resources import files

from minirl.types import Task
from minirl.worlds.fsm_file import load_fsm
from minirl.worlds.interpreter import World
from minirl.worlds.render import SHAPES

SHOP = tomllib.loads(files("minirl.worlds").joinpath("shop.toml").read_text(encoding="utf-8"))
CHOICES = tuple(SHOP["choices"].items())  # ("category", "categories") ...: field and collection


def make_shop(seed: int) -> World:
    """Return the shop `shop-<seed>`: the same seed gives the same shop, to the pixel."""
    rng = random.Random(f"shop {seed}")
    palette = rng.choice(SHOP["palettes"])
    data: dict[str, list[dict[str, str]]] = {}
    for name in ("categories", "products"):
        shapes = rng.sample(SHAPES, len(SHOP[name]))
        pictures = zip(SHOP[name], shapes, itertools.cycle(palette["fills"]), strict=False)
        data[name] = [{"id": w, "title": w, "shape": shape, "fill": fill} for w, shape, fill in pictures]
    data["colours"] = [{"id": w, "title": w, "swatch": colour} for w, colour in SHOP["colours"].items()]
    data["sizes"] = [{"id": word, "title": word} for word in SHOP["sizes"]]
    data["quantities"] = [{"id": w, "title": str(n)} for n, w in enumerate(SHOP["quantities"], start=1)]
    for records in data.values():
        rng.shuffle(records)
    collections = {name: tuple(records) for name, records in data.items()}
    style = {**palette["colours"], "messages": {"DONE": "Thank you, your order is placed."}}
    return World(f"shop-{seed}", load_fsm(SHOP["machine"]), collections, style)


def shops_of(tasks: Iterable[Task]) -> list[World]:
    """Return the generated shops that the tasks live on, in the order of their seeds."""
    hosts = {m[1] for t in tasks if (m := re.match(r"http://shop-(\d+)\.test(/|$)", t.start_url))}
    return [make_shop(int(seed)) for seed in sorted(hosts, key=int)]


def make_tasks(world: World, train: int, heldout: int, seed: int) -> tuple[list[Task], list[Task]]:
    """Return `train` and `heldout` orders, all different, of the 9216 combinations of the five choices. More
    held-out tasks never change the others."""
    options = [[record["id"] for record in world.data[collection]] for _, collection in CHOICES]
    orders, count = list(itertools.product(*options)), train + heldout
    if count > len(orders):
        raise ValueError(f"{world.name} has {len(orders)} different orders, not {count}: ask for fewer")
    random.Random(f"tasks {seed}").shuffle(orders)
    tasks, url, meta = [], f"http://{world.name}.test/", {"world": world.name}
    for order in orders[:count]:
        category, product, colour, size, quantity = order
        instruction = f"Order {product} {category} in {colour}, size {size}, quantity {quantity}."
        chosen = zip(CHOICES, order, strict=True)
        where = [{"path": f"$.{name}", "cond": "eq", "value": word} for (name, _), word in chosen]
        goal = {"page": "DONE", "where": where}
        tasks.append(Task("-".join([world.name, *order]), instruction, url, goal, meta))
    return tasks[:train], tasks[train:]
