"""Sites from a theme and a seed: a plan of pages and flows, told in the theme's words.

Where it stands: `make_site` gives a World that `check` finds nothing wrong with, `search` solves, `site`
draws and `replay` verifies. Everything is drawn from the seed: names, records, pages and flows (`plan`), and
how it all looks.

Paper: AutoWebWorld, section 4.1 and appendix A.1, with the released code's profiles of difficulty. Deviation:
there, a language model proposes the machine and others repair it. Here it is
put together from fragments, and drawn again if its paths do not have the profile's length.
"""

from __future__ import annotations

import colorsys
import hashlib
import random
from collections import Counter
from collections.abc import Mapping

from minirl.worlds.blueprint import Json, Plan, Profile
from minirl.worlds.fsm_file import load_fsm
from minirl.worlds.interpreter import World
from minirl.worlds.render import SHAPES
from minirl.worlds.search import explore, symbolic
from minirl.worlds.themes import THEMES, Entity, Number, Theme

PROFILES: Mapping[str, Profile] = {
    "easy": Profile((10, 15), 3, (4, 6)),
    "medium": Profile((15, 25), 5, (6, 8)),
    "hard": Profile((25, 35), 5, (6, 8)),
}
MOST_DRAWS = 200


def make_site(theme: str, seed: int, difficulty: str = "medium") -> World:
    """The site `<theme>-<difficulty>-<seed>`: the same arguments give the same site.

    Raises ValueError for a theme or difficulty that there is not.
    """
    if theme not in THEMES:
        raise ValueError(f"there is no theme {theme!r}; there are: {', '.join(THEMES)}")
    if difficulty not in PROFILES:
        raise ValueError(f"there is no difficulty {difficulty!r}; there are: {', '.join(PROFILES)}")
    profile = PROFILES[difficulty]
    for draw in range(MOST_DRAWS):
        rng = random.Random(f"{theme} {difficulty} {seed} {draw}")
        world = _draw(THEMES[theme], profile, rng, f"{theme}-{difficulty}-{seed}")
        if _fits(world, profile):
            return world
    raise AssertionError(f"no plan fits {difficulty}: the fragments and the profile contradict each other")


def _draw(theme: Theme, profile: Profile, rng: random.Random, name: str) -> World:
    brand = rng.choice(theme.brands)
    data = {entity.plural: _records(entity, rng) for entity in theme.entities}
    plan = Plan(theme, profile, brand, data, rng)
    fsm = load_fsm(plan.fsm())
    facts = {entity.plural: _facts(entity) for entity in plan.entities}
    words = {"brand": brand, "labels": plan.labels, "messages": plan.messages, "facts": facts}
    data = {entity.plural: data[entity.plural] for entity in plan.entities}
    return World(name, fsm, data, _style(rng) | words | {"look": "pages"})


def _fits(world: World, profile: Profile) -> bool:
    low, high = profile.hops
    graph = explore(symbolic(world.fsm), plain=False)
    hops = [graph.hops(page) for page in world.fsm.terminal_pages]
    sized = profile.pages[0] <= len(world.fsm.pages) <= profile.pages[1]
    return sized and all(count is not None and low <= count <= high for count in hops)


def shape(world: World) -> str:
    """What is left of a site without its words: how many ways each page has in and out, what is done on it
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


# --- records and looks ------------------------------------------------------------------------------

FILLS = {
    "red": "#c94f4f", "orange": "#d98a3d", "yellow": "#cfae3a", "green": "#4f9d69",
    "blue": "#4a7fc1", "purple": "#8a5fb8", "brown": "#8d6b4f", "grey": "#7a828c",
}  # fmt: skip


def _records(entity: Entity, rng: random.Random) -> tuple[Json, ...]:
    """12 to 24 things with titles, pictures and numbers of their own."""
    titles = [f"{adjective} {noun}" for adjective in entity.adjectives for noun in entity.nouns]
    pictures = [(shape, colour) for shape in SHAPES for colour in FILLS]
    count = rng.randint(12, 24)
    titles, pictures = rng.sample(titles, count), rng.sample(pictures, count)
    columns = {number.name: _numbers(number, count, rng) for number in entity.numbers}
    for k, flag in enumerate(entity.flags):  # at least one yes and one no of each
        columns[flag] = [(i + k) % 2 == 0 if i < 2 else rng.random() < 0.5 for i in range(count)]
    out: list[Json] = []
    for i, (title, (shape, colour)) in enumerate(zip(titles, pictures, strict=True)):
        record: Json = {"id": f"{entity.name}-{i + 1}", "title": title, "shape": shape, "fill": FILLS[colour]}
        record |= {name: column[i] for name, column in columns.items()}
        out.append(record | {"colour": colour, "kind": entity.kinds[i % len(entity.kinds)]})
    rng.shuffle(out)
    return tuple(out)


def _numbers(number: Number, count: int, rng: random.Random) -> list[int]:
    """All different where there are enough, so that an order has no ties."""
    choices = range(number.low, number.high + 1, number.step)
    return rng.sample(choices, count) if len(choices) >= count else rng.choices(choices, k=count)


def _facts(entity: Entity) -> dict[str, str]:
    """What a row shows of a record, and how."""
    facts = {number.name: f"{number.name} {number.unit}" for number in entity.numbers}
    return {"kind": "{}", **facts, **dict.fromkeys(entity.flags, "{}")}


def _style(rng: random.Random) -> Json:
    """Colours and a layout."""
    hue = rng.random()
    dark = rng.random() < 0.2
    return {
        "background": _colour(hue, 0.15, 0.13 if dark else 0.96),
        "tile": _colour(hue, 0.12, 0.2 if dark else 1.0),
        "text": _colour(hue, 0.25, 0.92 if dark else 0.14),
        "accent": _colour((hue + rng.choice((0.0, 0.08, 0.5))) % 1, 0.55, 0.45),
        "layout": rng.choice(("side", "top")),
        "consent": rng.choice(("banner", "modal")),
        "corners": rng.choice((0, 4, 10)),
    }


def _colour(hue: float, saturation: float, lightness: float) -> str:
    red, green, blue = colorsys.hls_to_rgb(hue, lightness, saturation)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"
