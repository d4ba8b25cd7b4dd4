"""What sites show and look like, and the files beside this package's modules: tables, scripts, pages.

A skin (style.toml, skins/*.css) decides how pages are laid out. Names, places and sentences stand in
texts.toml. Looks are drawn apart from a site's machine, so that each can be held out.
Paper: AutoWebWorld, section 4.2 and appendix B. Deviation: there a language model writes each site's front
end.
"""

import colorsys
import itertools
from dataclasses import replace
from random import Random
from typing import Any

from jinja2 import Template

from minirl import package_files
from minirl.types import Fields, Json
from minirl.worlds.interpreter import World


def text_of(file: str, **values: Any) -> str:
    """Return a file of this folder. One that ends in .j2 is a template, which is filled in with `values`."""
    text = package_files.text_of(f"worlds/{file}")
    if not file.endswith(".j2"):
        return text
    return Template(text, keep_trailing_newline=True).render(values)


def read_table(name: str) -> Json:
    """Return the content of a TOML file of this folder: "shop" is shop.toml."""
    return package_files.table_of(f"worlds/{name}.toml")


USUAL = read_table("style")
SKINS = USUAL["skins"]
TEXTS = read_table("texts")
# The drawings of pictures.js that a record may name
SHAPES = ("circle", "square", "triangle", "diamond", "hexagon", "ring", "cross", "drop")


def draw_records(entity: Any, rng: Random) -> tuple[Json, ...]:
    """Return 12 to 24 things of a kind (an `entity` of themes.toml); titles and pictures are unique."""
    titles = [f"{adjective} {noun}" for adjective in entity.adjectives for noun in entity.nouns]
    pictures = list(itertools.product(SHAPES, USUAL["fills"].items()))
    count = rng.randint(12, 24)
    titles = rng.sample(titles, count)
    pictures = rng.sample(pictures, count)
    columns = {}  # what all records have under a name
    for name, _, low, high, step in entity.numbers:
        # All numbers are different where there are enough, so that an order has no ties.
        numbers = range(low, high + 1, step)
        draw = rng.sample if len(numbers) >= count else rng.choices
        columns[name] = draw(numbers, k=count)
    for first, flag in zip((True, False), entity.flags, strict=True):
        # There are at least one yes and one no.
        columns[flag] = [first, not first, *(rng.random() < 0.5 for _ in range(count - 2))]
    records = []
    for i in range(count):
        shape, (colour, fill) = pictures[i]
        record = {"id": f"{entity.name}-{i + 1}", "title": titles[i], "shape": shape, "fill": fill}
        for name, column in columns.items():
            record[name] = column[i]
        record["colour"] = colour
        record["kind"] = entity.kinds[i % len(entity.kinds)]
        records.append(record)
    rng.shuffle(records)
    return tuple(records)


def draw_style(rng: Random) -> Json:
    """Return colours around one hue, and how corners and questions look."""
    hue = rng.random()
    is_dark = rng.random() < 0.2

    def colour(turn: float, saturation: float, lightness: float) -> str:
        channels = colorsys.hls_to_rgb((hue + turn) % 1, lightness, saturation)
        return "#" + "".join(f"{round(255 * channel):02x}" for channel in channels)

    turn = rng.choice((0.0, 0.08, 0.5))
    # The result is not used. Tiny's base models have learned from shops that were drawn with this choice.
    rng.choice((0, 1))
    return {
        "background": colour(0, 0.15, 0.13 if is_dark else 0.96),
        "tile": colour(0, 0.12, 0.2 if is_dark else 1.0),
        "text": colour(0, 0.25, 0.92 if is_dark else 0.14),
        "accent": colour(turn, 0.55, 0.35),
        "link": colour(turn, 0.6, 0.72 if is_dark else 0.33),
        "consent": rng.choice(("banner", "modal")),
        "corners": rng.choice((0, 4, 10)),
    }


def dress(world: World, category: str, skin: str) -> World:
    """Return a site with colours, a skin, "" for any, and words around its records, as its name draws
    them."""
    about = TEXTS["about"][category]
    rng = Random(f"words {world.name}")
    data = {}
    for name, records in world.data.items():
        data[name] = tuple(_with_texts(record, about, rng) for record in records)
    people = rng.sample(TEXTS["people"], 3)
    reviews = rng.sample(TEXTS["reviews"], 3)
    words = {
        "motto": rng.choice(about["mottos"]),
        "steps": about["steps"],
        "reviews": list(zip(people, reviews, strict=True)),
        "links": TEXTS["links"],
        "towns": rng.sample(TEXTS["towns"], 4),
    }
    rng = Random(f"looks {world.name}")
    # A skin is drawn even if one is given, so that a given skin changes nothing else.
    drawn = rng.choice(list(SKINS))
    style = {
        **draw_style(rng),
        "look": "pages",
        "skin": skin or drawn,
        "question": rng.choice(TEXTS["questions"]),
        "page_size": rng.choice((0, 8, 10, 12)),
        "words": words,
        **world.style,
    }
    return replace(world, data=data, style=style)


def style_of(world: World) -> Json:
    """Return all that there is to a site's looks: what it leaves open is as usual."""
    return USUAL["style"] | world.style


def _with_texts(record: Fields, about: Json, rng: Random) -> Json:
    """Return a record with what its page says besides its facts, where it does not say it: by whom, where,
    when, and a text."""
    names = {"by": rng.choice(TEXTS["people"]), "place": rng.choice(TEXTS["towns"])}
    sentences = [
        rng.choice(about["openings"]),
        rng.choice(about["middles"]),
        rng.choice(TEXTS["closings"]),
    ]
    text = " ".join(sentences).format(**{**names, **record})
    date = f"2026-{rng.randint(1, 4):02}-{rng.randint(1, 28):02}"
    return {**record, **names, "date": date, "text": text, **record}
