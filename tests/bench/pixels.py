"""Tasks about drawings, done by a script that sees and by scripts that read only HTML.

    python tests/bench/pixels.py [--sites 300] [--seen 60] [--tasks 4]

The one that sees is led to an item's page, finds the drawing in the screenshot, reads it from the pixels
alone, and answers what it has read. The steps there are the machine's shortest ones, told to the page's own
script: a state gives the same pixels however it was reached. Those that read have the whole document, records
and scripts included, and know what may be drawn: one takes what the record says most often; two have learned
from half of the sites what goes with what, and take what was drawn in the most alike, by the record's text or
by its picture's source. Chance is one of the values that the kind can have. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import math
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np
from PIL import Image, ImageColor

from minirl.browser.pool import BrowserPool
from minirl.browser.session import Session
from minirl.config import BrowserConfig
from minirl.types import Task
from minirl.worlds.generate import LEVELS, THEMES, make_site
from minirl.worlds.interpreter import World, share_met
from minirl.worlds.pixels import DARK, INKS, KINDS, SIZE, shown, with_drawings
from minirl.worlds.render import SiteServer, describe, read_state
from minirl.worlds.search import solve
from minirl.worlds.tasks import make_tasks

WIDTH, HEIGHT = SIZE[0] // 2, SIZE[1] // 2
CLUES = {"chart": "bar", "seats": "seats", "badge": "badge", "order": "flags"}
PREFIX = 2000  # characters that are compared


def made(count: int, seed: int = 0) -> list[tuple[World, list[Task]]]:
    """Return sites of all themes and of all levels that have drawings, with their tasks."""
    levels, themes, out = list(LEVELS)[1:], list(THEMES), []
    for n in range(count):
        site = make_site(themes[n % len(themes)], seed + n, levels[n % len(levels)])
        out.append((world := with_drawings(site), make_tasks(world)))
    return out


def kind_of(task: Task) -> str:
    """Return what a task's question speaks of."""
    asked = task.instruction.rpartition(". ")[2]
    return next((kind for kind, clue in CLUES.items() if clue in asked), "clock")


# --- the script that sees ---------------------------------------------------------------------------------


def drawing_in(screenshot: bytes) -> np.ndarray | None:
    """Return the pixels of the drawing, which is known by its dark frame around pale paper."""
    pixels = np.asarray(Image.open(io.BytesIO(screenshot)).convert("RGB")).astype(int)
    dark = np.abs(pixels - ImageColor.getrgb(DARK)).max(axis=2) < 24
    across = np.pad(dark.cumsum(axis=1), ((0, 0), (1, 0)))
    rows = across[:, WIDTH:] - across[:, :-WIDTH] == WIDTH  # where a row of the frame may begin
    for top, left in np.argwhere(rows[: 1 - HEIGHT] & rows[HEIGHT - 1 :]):
        inside = pixels[top + 4 : top + HEIGHT - 4, left + 4 : left + WIDTH - 4]
        if (inside[[0, -1]] > 225).all():
            return inside
    return None


def read_drawing(pixels: np.ndarray, kind: str) -> str:
    """Return what a drawing of a kind shows."""
    near = {ink: np.abs(pixels - ImageColor.getrgb(c)).max(axis=2) < 24 for ink, c in INKS.items()}
    match kind:
        case "chart":
            return min(INKS, key=lambda ink: np.argmax(near[ink].sum(axis=1) > 10))
        case "seats":  # each has 24 x 26 pixels, but for its corners
            return str(round(near["green"].sum() / 605))
        case "badge":
            return max(INKS, key=lambda ink: near[ink].sum())
        case "order":
            flags = [ink for ink in INKS if near[ink].sum() > 300]
            return ", ".join(sorted(flags, key=lambda ink: float(np.argwhere(near[ink])[:, 1].mean())))
    rim = np.argwhere(np.any(list(near.values()), axis=0))
    (y, x), dark = (rim.min(axis=0) + rim.max(axis=0)) / 2, pixels.max(axis=2) < 90

    def thickness(hour: int) -> int:
        turn = math.pi * hour / 6
        down, right = round(y - 26 * math.cos(turn)), round(x + 26 * math.sin(turn))
        return dark[down - 4 : down + 5, right - 4 : right + 5].sum()

    return str(max(range(1, 13), key=thickness))


async def see(session: Session, world: World, task: Task) -> bool:
    """Do a task by what is seen; return whether its goal is met."""
    await session.start(task.start_url)
    for step in solve(world, {"where": task.goal["where"]}) or []:  # the item in question is opened last
        taken = "step => minirl.dispatch(...step)", [step.action_id, dict(step.params)]
        assert await session.do(session.page.evaluate(*taken)), step
    found = drawing_in(await session.screenshot())
    answer = "" if found is None else read_drawing(found, kind_of(task))
    state = await read_state(session.page)
    return state is not None and share_met(state, task.goal, answer) == 1


async def seen(sites: Sequence[tuple[World, list[Task]]], workers: int) -> list[bool]:
    worlds, places = [world for world, _ in sites], asyncio.Semaphore(workers)
    config = BrowserConfig(browsers=1, episodes=workers, width=1280, height=720)
    with SiteServer(worlds) as server:
        async with BrowserPool(config, server.sites, sealed=True) as pool:

            async def one(world: World, task: Task) -> bool:
                async with places, pool.session() as session:
                    right = await see(session, world, task)
                    print(task.id, "right" if right else f"wrong: {task.instruction}", flush=True)
                    return right

            return await asyncio.gather(*(one(world, task) for world, tasks in sites for task in tasks))


# --- the scripts that read --------------------------------------------------------------------------------

Known = Sequence[tuple[str, str, str]]  # kind, text, what is drawn


def known(sites: Sequence[tuple[World, list[Task]]], of_picture: bool = False) -> list[tuple[str, str, str]]:
    """Return for every task the record that it asks about, as the page's scripts have it: all of it but for
    the picture's source, or that source alone; and what is drawn."""
    out = []
    for world, tasks in sites:
        data = describe(world)["data"]
        for task in tasks:
            many, id = (task.meta["finds"][0][name] for name in ("list", "item"))
            row = next(row for row in data[many] if row["id"] == id)
            told = row["drawn"] if of_picture else json.dumps({**row, "drawn": len(row["drawn"])})
            out.append((world.style["drawings"][many], told, shown(world, many, id)))
    return out


def by_words(kind: str, text: str, learned: Known, rng: Random) -> str:
    return max(KINDS[kind]["values"], key=lambda one: (text.count(one), rng.random()))


def by_likeness(kind: str, text: str, learned: Known, rng: Random) -> str:
    mine = _characters(text)
    return max((int((mine == _characters(t)).sum()), v) for k, t, v in learned if k == kind)[1]


def _characters(text: str) -> np.ndarray:
    return np.frombuffer(text[:PREFIX].encode().ljust(PREFIX), np.uint8)


def rate(reader: Callable[..., str], asked: Known, learned: Known) -> float:
    rng = Random(0)
    return sum(reader(kind, text, learned, rng) == value for kind, text, value in asked) / len(asked)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=300)
    parser.add_argument("--seen", type=int, default=60)
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--workers", type=int, default=4)
    flags = parser.parse_args()
    sites = made(flags.sites)
    train, test = sites[: len(sites) // 2], sites[len(sites) // 2 :]
    asked = known(test)
    chance = np.mean([1 / len(KINDS[kind]["values"]) for kind, _, _ in asked])
    answer: dict[str, Any] = {"read": len(asked), "chance": chance, "by_words": rate(by_words, asked, [])}
    answer["like_its_text"] = rate(by_likeness, asked, known(train))
    answer["like_its_picture"] = rate(by_likeness, known(test, True), known(train, True))
    if flags.seen:
        some = [(world, tasks[: flags.tasks]) for world, tasks in sites[: flags.seen]]
        right = asyncio.run(seen(some, flags.workers))
        answer |= {"seen": len(right), "seeing": np.mean(right)}
    print(json.dumps({name: round(float(value), 4) for name, value in answer.items()}))


if __name__ == "__main__":
    main()
