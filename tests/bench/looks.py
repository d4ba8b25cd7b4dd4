"""How unlike generated sites look, and how much there is on their pages.

    python tests/bench/looks.py [--sites 60] [--out PICTURES]

Themes, levels and skins take turns. A list page is compared with every other one by the
correlation of their edge maps: grey at 1280 x 720, the differences of neighbours, means of blocks of 4 x 4.
Elements, characters and tags are counted on every page. --out keeps a picture of
each list page, and of all of them a contact sheet. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import itertools
import json
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from playwright.async_api import Page, async_playwright

from minirl.browser.executable import launch_options
from minirl.worlds.generate import LEVELS, THEMES, make_site
from minirl.worlds.interpreter import World, apply, initial_state
from minirl.worlds.looks import SKINS
from minirl.worlds.render import SiteServer
from minirl.worlds.search import Step, solve

BLOCK, COLUMNS = 4, 5
COUNT = """() => {
    const seen = [...document.body.querySelectorAll('*')].filter((e) => e.checkVisibility());
    const handled = 'a[href], button, input, select, textarea, summary';
    return {
        tags: [...new Set([...document.querySelectorAll('body, body *')].map((e) => e.localName))],
        elements: seen.filter((e) => e.matches(handled)).length,
        characters: document.body.innerText.replace(/\\s+/g, ' ').length,
        scrolls: document.documentElement.scrollHeight > innerHeight,
    };
}"""


def edges(png: bytes) -> np.ndarray:
    """Return how much a picture changes from pixel to pixel, as the mean of each block, flat."""
    grey = np.asarray(Image.open(io.BytesIO(png)).convert("L"), dtype=np.float32)
    change = np.abs(np.diff(grey, axis=0))[:, :-1] + np.abs(np.diff(grey, axis=1))[:-1]
    rows, columns = (length // BLOCK for length in change.shape)
    blocks = change[: rows * BLOCK, : columns * BLOCK].reshape(rows, BLOCK, columns, BLOCK)
    return blocks.mean(axis=(1, 3)).ravel()


async def walk(page: Page, world: World, steps: Sequence[Step], seen: dict[str, Any]) -> None:
    """Take a path's steps from the first page, and count what is on each page that is new."""
    await page.goto(f"http://{world.name}.test/")
    state = initial_state(world.fsm)
    for step in [None, *steps]:
        if step is not None:
            state = apply(world.fsm, state, step.action_id, step.params)
            taken = "([id, params]) => window.minirl.dispatch(id, params)"
            assert await page.evaluate(taken, [step.action_id, dict(step.params)])
        if state.page not in seen:
            seen[state.page] = await page.evaluate(COUNT)


async def visit(worlds: Sequence[World]) -> list[tuple[bytes, dict[str, Any]]]:
    """Return a picture of each site's first list page, and what was counted on its pages."""
    out = []
    with SiteServer(worlds) as server:
        async with async_playwright() as playwright:
            rules = f"--host-resolver-rules=MAP *.test 127.0.0.1:{server.server_port}"
            browser = await playwright.chromium.launch(**launch_options([rules, "--no-proxy-server"]))
            page = await browser.new_page(viewport={"width": 1280, "height": 720})
            for world in worlds:
                seen: dict[str, Any] = {}
                wanted = next(iter(world.data)).upper()
                for id in [*(id for id in world.fsm.pages if id != wanted), wanted]:
                    if id == wanted or id not in seen:
                        await walk(page, world, solve(world, {"page": id}) or [], seen)
                out.append((await page.screenshot(), seen))
            await browser.close()
    return out


def sheet(pictures: Sequence[bytes], path: Path) -> None:
    """Write pictures side by side, a quarter as wide."""
    width, height = 320, 180
    whole = Image.new("RGB", (COLUMNS * width, -(-len(pictures) // COLUMNS) * height), "white")
    for n, png in enumerate(pictures):
        small = Image.open(io.BytesIO(png)).convert("RGB").resize((width, height), Image.Resampling.LANCZOS)
        whole.paste(small, (n % COLUMNS * width, n // COLUMNS * height))
    whole.save(path, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sites", type=int, default=60)
    parser.add_argument("--out", type=Path)
    flags = parser.parse_args()
    levels = [name for name, level in LEVELS.items() if level.look == "pages"]
    drawn = zip(*map(itertools.cycle, (THEMES, levels, SKINS)), range(flags.sites), strict=False)
    worlds = [make_site(theme, n, level, skin) for theme, level, skin, n in drawn]
    found = asyncio.run(visit(worlds))
    maps = np.corrcoef(np.stack([edges(png) for png, _ in found]))
    pairs: dict[bool, list[float]] = {True: [], False: []}
    for a, b in itertools.combinations(range(len(worlds)), 2):
        pairs[worlds[a].style["skin"] == worlds[b].style["skin"]].append(float(maps[a, b]))
    pages = [counted for _, seen in found for counted in seen.values()]
    tags = Counter(tag for _, seen in found for tag in {tag for one in seen.values() for tag in one["tags"]})
    if flags.out:
        flags.out.mkdir(parents=True, exist_ok=True)
        for world, (png, _) in zip(worlds, found, strict=True):
            (flags.out / f"{world.name}-{world.style['skin']}.png").write_bytes(png)
        sheet([png for png, _ in found], flags.out / "sheet.png")
    answer = {
        "sites": len(worlds),
        "correlation_same_skin": round(statistics.mean(pairs[True]), 3) if pairs[True] else None,
        "correlation_other_skin": round(statistics.mean(pairs[False]), 3) if pairs[False] else None,
        "pages": len(pages),
        "median_elements": statistics.median(page["elements"] for page in pages),
        "median_characters": statistics.median(page["characters"] for page in pages),
        "pages_that_scroll": round(sum(page["scrolls"] for page in pages) / len(pages), 2),
        "tags_on_a_twentieth": sum(count >= len(worlds) / 20 for count in tags.values()),
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
