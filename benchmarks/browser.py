"""Measure the harness's steps per second, beside Playwright alone and beside BrowserGym.

    python benchmarks/browser.py

A step is a click and what the agent gets to see of it: here feedback, tabs and screenshot once the page is
ready; of raw Playwright a click, an evaluated script and a screenshot, without waiting for anything, which is
as fast as Playwright can be; of BrowserGym a step of its own environment, with its delays (and, as
`.._undelayed`, without them). All click through the same local pages, in turn a button that changes the page,
another, a place where nothing happens, and a link to the other page; 1280 x 720; one episode, then eight:
eight contexts in one process here, eight processes of BrowserGym, which is synchronous.

BrowserGym wants another Playwright, so it gets an environment of its own, made at first use in --peer.

The last line is JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import tyro
from playwright.async_api import Error as PlaywrightError

from minirl.agents.openwebrl_actions import SCALE, act, observe
from minirl.browser import executable
from minirl.browser.pool import BrowserPool
from minirl.browser.session import Session
from minirl.config import BrowserConfig
from minirl.types import Call

WIDTH = 1280
HEIGHT = 720
PEER = "browsergym-core==0.14.3"
CONFIG = BrowserConfig(width=WIDTH, height=HEIGHT, episodes=8, private=True)
# a button that writes, one that adds a row, a place where nothing is, a link
POINTS = [(100, 60), (300, 60), (1200, 700), (500, 60)]
PAGE = """<!doctype html><title>{title}</title>
<style>body {{ font: 16px sans-serif }}
  .top {{ position: absolute; top: 40px; height: 40px; width: 160px }}</style>
<button class="top" style="left: 20px"
  onclick="count.textContent = Number(count.textContent) + 1">Count</button>
<button class="top" style="left: 220px" onclick="rows.append(Object.assign(document.createElement('li'),
  {{textContent: 'row'}})); if (rows.children.length > 9) rows.replaceChildren()">Add</button>
<a class="top" style="left: 420px" href="{other}">The other page</a>
<div style="margin-top: 100px">Count: <b id="count">0</b></div><ul id="rows"></ul>
<table>{cells}</table>
"""


@dataclass
class Args:
    seconds: float = 12.0
    """Of every measurement."""
    rounds: int = 3
    """How often all are measured, in turn; the median counts."""
    peer: Path = Path("runs/browsergym")
    """BrowserGym's environment."""


@contextmanager
def site() -> Iterator[str]:
    """Serve the two pages from another process; yield the address of the first."""
    with tempfile.TemporaryDirectory() as folder:
        for name, other in (("one", "two"), ("two", "one")):
            rows = "".join(f"<tr><td><a href='#{n}'>Item {n}</a><td>{n * 7 % 50}.99 EUR" for n in range(40))
            page = PAGE.format(title=name, other=f"{other}.html", cells=rows)
            (Path(folder) / f"{name}.html").write_text(page)
        command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "-d", folder]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            assert child.stdout is not None
            yield f"http://127.0.0.1:{child.stdout.readline().split('port ')[1].split()[0]}/one.html"
        finally:
            child.kill()
            child.wait()


Step = Callable[[Session, tuple[int, int]], Awaitable[None]]


async def ours(session: Session, point: tuple[int, int]) -> None:
    place = [point[0] * SCALE / WIDTH, point[1] * SCALE / HEIGHT]
    await act(session, Call("click", {"point_2d": place, "clicks": 1, "button": "left"}))
    assert (await observe(session)).image


async def raw(session: Session, point: tuple[int, int]) -> None:
    await session.page.mouse.click(*point)
    while True:  # who does not wait meets pages that are just leaving
        with contextlib.suppress(PlaywrightError):
            await session.page.evaluate("document.title")
            await session.page.screenshot()
            return


async def rate(pool: BrowserPool, url: str, step: Step, episodes: int, seconds: float) -> float:
    """Return the steps per second of so many episodes at once."""
    ready = asyncio.Barrier(episodes)
    start = 0.0

    async def episode() -> float:
        nonlocal start
        async with pool.session() as session:
            await session.start(url)
            await ready.wait()
            start = start or time.perf_counter()
            steps = 0
            while time.perf_counter() - start < seconds:
                await step(session, POINTS[steps % len(POINTS)])
                steps += 1
            return steps / (time.perf_counter() - start)

    return sum(await asyncio.gather(*(episode() for _ in range(episodes))))


def peer_rate(python: Path, url: str, episodes: int, seconds: float, *delays: str) -> float:
    """Return BrowserGym's steps per second, in so many processes."""
    worker = Path(__file__).with_name("browsergym_worker.py")
    folder = python.parents[1] / "browsers"
    page = [url, str(seconds), json.dumps(POINTS)]
    command = [python, worker, *page, executable.executable(), folder, *delays]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    children = [subprocess.Popen(command, **pipes) for _ in range(episodes)]
    try:
        for child in children:
            assert child.stdout.readline() == "ready\n"
        for child in children:
            child.stdin.write("\n")
            child.stdin.flush()
        answers = [json.loads(child.stdout.readline()) for child in children]
    finally:
        for child in children:
            child.communicate(timeout=60)
    return sum(each["steps"] / each["seconds"] for each in answers)


def peer_python(folder: Path) -> Path:
    """Return the interpreter of BrowserGym's environment, which is made if it is missing."""
    python = folder.resolve() / "bin/python"
    if not python.exists():
        print(f"making {folder} with {PEER}")
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", "-qq", "install", PEER], check=True)
    return python


def main(args: Args) -> None:
    python = peer_python(args.peer)
    rates = {}

    async def both(url: str, episodes: int) -> tuple[float, float]:
        async with BrowserPool(CONFIG) as pool:
            return tuple([await rate(pool, url, step, episodes, args.seconds) for step in (ours, raw)])

    with site() as url:
        for _ in range(args.rounds):
            for episodes in (1, 8):
                mine, playwright = asyncio.run(both(url, episodes))
                peer = peer_rate(python, url, episodes, args.seconds)
                undelayed = peer_rate(python, url, episodes, args.seconds, "0", "0")
                row = {"ours": mine, "raw": playwright, "browsergym": peer, "browsergym_undelayed": undelayed}
                print({name: round(value, 2) for name, value in row.items()}, f"at {episodes}", flush=True)
                for name, value in row.items():
                    rates.setdefault(f"{name}_{episodes}", []).append(value)
    print(json.dumps({name: round(median(values), 2) for name, values in rates.items()}))


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
