"""What generated sites look like: a skin, colours and words, all drawn from the seed.

A skin (skins.toml, skins/*.css) decides how pages are laid out, and leaves some lengths open. Names, places
and sentences stand in texts.toml. Looks are drawn apart from a site's machine, so that each can be held out.
Paper: AutoWebWorld, section 3.3. Deviation: there a language model writes each site's front end.
"""

import colorsys
from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import Any

from minirl.worlds.interpreter import World
from minirl.worlds.tables import read_table

Json = dict[str, Any]
SKINS: Json = read_table("skins")
USUAL: Json = read_table("style")
# The drawings of pictures.js that a record may name
SHAPES = ("circle", "square", "triangle", "diamond", "hexagon", "ring", "cross", "drop")
TEXTS: Json = read_table("texts")


def draw_style(rng: Random) -> Json:
    """Return colours around one hue, and how corners and questions look."""
    hue, dark = rng.random(), rng.random() < 0.2

    def colour(turn: float, saturation: float, lightness: float) -> str:
        parts = colorsys.hls_to_rgb((hue + turn) % 1, lightness, saturation)
        return "#" + "".join(f"{round(255 * part):02x}" for part in parts)

    turn = rng.choice((0.0, 0.08, 0.5))
    rng.choice((0, 1))  # for nothing: the base model has learned from shops drawn with one choice more
    return {
        "background": colour(0, 0.15, 0.13 if dark else 0.96),
        "tile": colour(0, 0.12, 0.2 if dark else 1.0),
        "text": colour(0, 0.25, 0.92 if dark else 0.14),
        "accent": colour(turn, 0.55, 0.35),
        "link": colour(turn, 0.6, 0.72 if dark else 0.33),
        "consent": rng.choice(("banner", "modal")),
        "corners": rng.choice((0, 4, 10)),
    }


def draw_looks(rng: Random, skin: str = "") -> Json:
    """Return a site's colours, and a skin, by default any, with all that it leaves open."""
    # in any case, so that a given skin changes nothing else
    drawn = rng.choice(list(SKINS))
    if (skin or drawn) not in SKINS:
        raise ValueError(f"there is no skin {skin!r}; there are: {', '.join(SKINS)}")
    plan = SKINS[skin or drawn]
    return draw_style(rng) | {
        "question": rng.choice(TEXTS["questions"]),
        "complains": rng.random() < 0.5,
        "paging": {"kind": rng.choice(("all", "pages", "more", "endless")), "size": rng.choice((8, 10, 12))},
        "skin": skin or drawn,
        "filters": rng.choice(plan["filters"]),
        "knobs": {name: rng.choice(values) for name, values in plan["knobs"].items()},
    }


def dress(world: World, category: str, skin: str = "") -> World:
    """Return a site with looks, and with words around its records, as its name draws them."""
    looks, words = Random(f"looks {world.name}"), Random(f"words {world.name}")
    data = {many: tuple(_told(one, category, words) for one in some) for many, some in world.data.items()}
    style = {**draw_looks(looks, skin), "words": draw_words(words, category), **world.style}
    return replace(world, data=data, style=style)


def draw_words(rng: Random, category: str) -> Json:
    """Return what a site of a category says about itself in head, foot and margins."""
    about, people = TEXTS["about"][category], rng.sample(TEXTS["people"], 4)
    links = rng.sample(list(TEXTS["links"].items()), 14)
    return {
        "motto": rng.choice(about["mottos"]),
        "steps": about["steps"],
        "reviews": list(zip(people, rng.sample(TEXTS["reviews"], 4), strict=True)),
        "links": links,
        "towns": rng.sample(TEXTS["towns"], 4),
    }


def _told(record: Mapping[str, Any], category: str, rng: Random) -> Json:
    """Return a record with what its page says besides its facts: by whom, where, when, and a text."""
    about = TEXTS["about"][category]
    names = {"by": rng.choice(TEXTS["people"]), "place": rng.choice(TEXTS["towns"])}
    parts = [rng.choice(sentences) for sentences in (about["openings"], about["middles"], TEXTS["closings"])]
    date = f"2026-{rng.randint(1, 4):02}-{rng.randint(1, 28):02}"
    return {**record, **names, "date": date, "text": " ".join(parts).format(**names, **record)}
