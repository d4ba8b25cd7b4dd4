"""Sites from a theme and a seed: a plan of pages and flows, told in the theme's words.

`make_site` returns a World in which `lint` finds no fault, which `search` solves, `render` draws and `replay`
verifies. Everything is drawn from the seed: names, records, pages and flows (`blueprint`), and the looks.

Paper: AutoWebWorld, section 4.1 and appendix A.1, with the released code's profiles of difficulty. Deviation:
there, a language model proposes the machine and others repair it. Here it is put together from fragments,
and drawn again if its paths do not have the profile's length.
"""

from __future__ import annotations

import colorsys
import hashlib
import random
from collections import Counter

from minirl.worlds.blueprint import Plan, Profile
from minirl.worlds.fsm_file import load_fsm
from minirl.worlds.interpreter import World
from minirl.worlds.render import SHAPES
from minirl.worlds.search import explore, symbolic
from minirl.worlds.themes import FILLS, THEMES, Entity
from minirl.worlds.widgets import Json

PROFILES = {
    "easy": Profile((10, 15), 3, (4, 6)),
    "medium": Profile((15, 25), 5, (6, 8)),
    "hard": Profile((25, 35), 5, (6, 8)),
}
MOST_DRAWS = 200


def make_site(theme: str, seed: int, difficulty: str = "medium") -> World:
    """Return the site `<theme>-<difficulty>-<seed>`: the same arguments give the same site. ValueError for an
    unknown theme or difficulty."""
    for kind, name, known in (("theme", theme, THEMES), ("difficulty", difficulty, PROFILES)):
        if name not in known:
            raise ValueError(f"there is no {kind} {name!r}; there are: {', '.join(known)}")
    profile = PROFILES[difficulty]
    for draw in range(MOST_DRAWS):
        world = _draw(theme, seed, difficulty, draw)
        graph = explore(symbolic(world.fsm), plain=False)
        hops = [graph.hops(page) or 0 for page in world.fsm.terminal_pages]
        is_sized = profile.pages[0] <= len(world.fsm.pages) <= profile.pages[1]
        if is_sized and all(profile.hops[0] <= count <= profile.hops[1] for count in hops):
            return world
    raise AssertionError(f"no plan fits {difficulty}: the fragments and the profile contradict each other")


def _draw(name: str, seed: int, difficulty: str, draw: int) -> World:
    rng, theme = random.Random(f"{name} {difficulty} {seed} {draw}"), THEMES[name]
    brand = rng.choice(theme.brands)
    data = {entity.plural: _records(entity, rng) for entity in theme.entities}
    plan = Plan(theme, PROFILES[difficulty], brand, data, rng)
    fsm = load_fsm(plan.fsm())
    data = {entity.plural: data[entity.plural] for entity in plan.entities}
    facts = {}  # of a record in a row, and how they are said
    for entity in plan.entities:
        numbers = {number.name: f"{number.name} {number.unit}" for number in entity.numbers}
        facts[entity.plural] = {"kind": "{}", **numbers, **dict.fromkeys(entity.flags, "{}")}
    words = {"brand": brand, "labels": plan.labels, "messages": plan.messages, "facts": facts}
    return World(f"{name}-{difficulty}-{seed}", fsm, data, _style(rng) | words | {"look": "pages"})


def shape(world: World) -> str:
    """Return a hash of a site without its words: how many ways each page has in and out, what is done on it
    and how far it is. Sites of one shape differ in looks and vocabulary only."""
    fsm, graph = world.fsm, explore(symbolic(world.fsm))
    ways_in = Counter(action.target for action in fsm.actions if action.target != action.source)
    pages = []
    for page in fsm.pages.values():
        kinds = sorted(
            f"{a.name} {len(a.preconditions)} {len(a.effects)} {len(a.gui_procedure)} {a.target != page.id}"
            for a in page.actions.values()
        )
        pages.append(f"{graph.hops(page.id)} {ways_in[page.id]} {page.id in fsm.terminal_pages} {kinds}")
    return hashlib.sha256("\n".join(sorted(pages)).encode()).hexdigest()[:12]


def _records(entity: Entity, rng: random.Random) -> tuple[Json, ...]:
    """Return 12 to 24 things, with unique titles and pictures."""
    titles = [f"{adjective} {noun}" for adjective in entity.adjectives for noun in entity.nouns]
    pictures = [(shape, colour) for shape in SHAPES for colour in FILLS]
    count = rng.randint(12, 24)
    titles, pictures = rng.sample(titles, count), rng.sample(pictures, count)
    columns = {}
    for number in entity.numbers:  # all different where there are enough, so that an order has no ties
        choices = range(number.low, number.high + 1, number.step)
        draw = rng.sample if len(choices) >= count else rng.choices
        columns[number.name] = draw(choices, k=count)
    for k, flag in enumerate(entity.flags):  # at least one yes and one no of each
        columns[flag] = [(i + k) % 2 == 0 if i < 2 else rng.random() < 0.5 for i in range(count)]
    out: list[Json] = []
    for i, (title, (shape, colour)) in enumerate(zip(titles, pictures, strict=True)):
        record: Json = {"id": f"{entity.name}-{i + 1}", "title": title, "shape": shape, "fill": FILLS[colour]}
        record |= {name: column[i] for name, column in columns.items()}
        out.append(record | {"colour": colour, "kind": entity.kinds[i % len(entity.kinds)]})
    rng.shuffle(out)
    return tuple(out)


def _style(rng: random.Random) -> Json:
    """Return colours around one hue, and a layout."""
    hue, dark = rng.random(), rng.random() < 0.2

    def colour(turn: float, saturation: float, lightness: float) -> str:
        parts = colorsys.hls_to_rgb((hue + turn) % 1, lightness, saturation)
        return "#" + "".join(f"{round(255 * part):02x}" for part in parts)

    return {
        "background": colour(0, 0.15, 0.13 if dark else 0.96),
        "tile": colour(0, 0.12, 0.2 if dark else 1.0),
        "text": colour(0, 0.25, 0.92 if dark else 0.14),
        "accent": colour(rng.choice((0.0, 0.08, 0.5)), 0.55, 0.45),
        "layout": rng.choice(("side", "top")),
        "consent": rng.choice(("banner", "modal")),
        "corners": rng.choice((0, 4, 10)),
    }
