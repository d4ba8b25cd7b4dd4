"""Drawings that no text tells: a chart, a seat plan, a clock, a badge, flags in order.

    with_drawings(world) --> records with `drawn`, a PNG --> make_tasks asks what is on them

Each list's records get drawings of one kind; on an item's page stands its own (drawn.js). What is drawn is
written nowhere in the site: no field, name, length or element depends on it, as they would with an SVG or
with data that a script draws. Not in a paper: AutoWebWorld's third family asks what a page's text says, too.
"""

import base64
import io
import itertools
from dataclasses import replace
from math import cos, pi, sin
from random import Random

from PIL import Image, ImageDraw
from PIL.PngImagePlugin import PngInfo

from minirl.worlds.interpreter import World
from minirl.worlds.tables import read_table

TABLES = read_table("pixels")
INKS, KINDS = TABLES["inks"], TABLES["kinds"]
KINDS["order"]["values"] = [", ".join(some) for some in itertools.permutations(INKS, 3)]
DARK, PALE = "#1d2733", "#c9ced6"
SIZE = (480, 360)  # of a drawing, which is then reduced to half
BYTES = 3072  # of every drawing


def with_drawings(world: World) -> World:
    """Return the site with a drawing for every record. ValueError for tiles, which have no items' pages."""
    if world.style["look"] != "pages":
        raise ValueError(f"{world.name}: tiles have no room for drawings; choose another --level")
    rng, data = Random(f"drawings of {world.name}"), dict(world.data)
    kinds = dict(zip(data, rng.sample(list(KINDS), len(data)), strict=True))
    drawn = replace(world, style={**world.style, "drawings": kinds})
    for many, records in world.data.items():
        pictures = [draw(kinds[many], shown(drawn, many, one["id"]), rng) for one in records]
        data[many] = tuple({**r, "drawn": p} for r, p in zip(records, pictures, strict=True))
    return replace(drawn, data=data)


def shown(world: World, many: str, id: str) -> str:
    """Return what a record's drawing shows: "7" of seats."""
    return Random(f"{world.name} {id} is drawn").choice(KINDS[world.style["drawings"][many]]["values"])


def question(world: World, many: str, id: str) -> tuple[list[str], list[str]]:
    """Return wordings of what is asked of a record's drawing, and all spellings of the answer."""
    kind, value = KINDS[world.style["drawings"][many]], shown(world, many, id)
    spelled = {value.replace(",", ""), *(one.format(value=value) for one in kind["answers"])}
    return kind["questions"], sorted(spelled)


def draw(kind: str, value: str, rng: Random) -> str:
    """Return a drawing as the address of a PNG."""
    paper = "#" + "".join(f"{rng.randint(236, 255):02x}" for _ in range(3))
    image = Image.new("RGB", SIZE, paper)
    pen = ImageDraw.Draw(image)
    pen.rectangle((0, 0, SIZE[0] - 1, SIZE[1] - 1), outline=DARK, width=6)
    paint(pen, kind, value, rng)
    file = io.BytesIO()
    noise = PngInfo()  # in front of the pixels, so that like drawings have no like source
    noise.add(b"noIs", rng.randbytes(rng.randint(1, 800)))
    image.reduce(2).quantize(64).save(file, "PNG", optimize=True, pnginfo=noise)
    png = file.getvalue()
    assert len(png) < BYTES
    png += rng.randbytes(BYTES - len(png))  # behind the picture's end, so that its length tells nothing
    return "data:image/png;base64," + base64.b64encode(png).decode()


def paint(pen: ImageDraw.ImageDraw, kind: str, value: str, rng: Random) -> None:
    """Draw a value; all that it leaves open is drawn at random."""
    match kind:
        case "chart":  # whose tallest bar has this colour
            for n, ink in enumerate(rng.sample(list(INKS), len(INKS))):
                height = rng.randint(220, 270) if ink == value else rng.randint(40, 190)
                pen.rectangle((50 + 80 * n, 320 - height, 105 + 80 * n, 320), INKS[ink])
        case "seats":  # of which so many are green
            left = rng.sample(range(24), int(value))
            for n in range(24):
                x, y = 40 + 70 * (n % 6), 40 + 75 * (n // 6)
                pen.rounded_rectangle((x, y, x + 48, y + 52), 10, INKS["green"] if n in left else PALE)
        case "clock":  # at the full hour
            x, y, turn = rng.randint(170, 310), rng.randint(170, 190), pi * int(value) / 6
            pen.ellipse((x - 145, y - 145, x + 145, y + 145), "white", rng.choice(list(INKS.values())), 14)
            for mark in (pi * hour / 6 for hour in range(12)):
                pen.line([(x + far * sin(mark), y - far * cos(mark)) for far in (108, 122)], DARK, 6)
            pen.line([(x, y), (x + 66 * sin(turn), y - 66 * cos(turn))], DARK, 20)
            pen.line([(x, y), (x, y - 100)], DARK, 8)
        case "badge":  # of this colour, with ribbons of another
            x, ribbon = rng.randint(160, 320), rng.choice([INKS[ink] for ink in INKS if ink != value])
            pen.polygon([(x - 80, 330), (x, 180), (x + 80, 330)], ribbon)
            pen.regular_polygon((x, 150, 110), rng.randint(8, 12), fill=INKS[value])
        case "order":  # of flags in these colours
            for n, ink in enumerate(value.split(", ")):
                x, y = 50 + 140 * n, rng.randint(40, 120)
                pen.line([(x, y), (x, 330)], DARK, 8)
                pen.polygon([(x, y), (x + 100, y + 40), (x, y + 90)], INKS[ink])
