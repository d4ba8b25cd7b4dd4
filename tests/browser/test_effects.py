"""Whether a click had an effect, on pages that change in ways their document's tree does not show."""

import asyncio
import time
import tomllib
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote, unquote

import pages
import pytest
from pages import do, observe

from minirl.browser.page_scripts import MAX_MASKS, looks_the_same
from minirl.config import BrowserConfig

pytestmark = pytest.mark.asyncio(loop_scope="module")

WIDTH, HEIGHT = 480, 360
CONFIG = BrowserConfig(browsers=1, width=WIDTH, height=HEIGHT, private=True)
CASES = tomllib.loads((Path(__file__).parents[1] / "data/effects.toml").read_text())
HEAD = """<!doctype html><title>Start</title><style>* { margin: 0 } body { font: 13px sans-serif }
button, a, div[draggable], div[onpointermove] { position: absolute; left: 10px; top: 10px }
label, summary, input[type=range] { position: relative; left: 10px; top: 10px }</style>"""
ECHO = "<script>onmessage = e => { document.body.textContent = e.data }</script>First"


class Handler(pages.Handler):
    def do_GET(self) -> None:
        name = unquote(self.path[1:])
        if name == "never":
            time.sleep(5)
        if name == "late":
            time.sleep(0.8)
        body = {"late": "Second", "echo": ECHO}.get(name, "")
        if name in CASES:
            body = HEAD + CASES[name]["html"].replace("OTHER", f"http://localhost:{self.server.server_port}")
        self.reply(body.encode())


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with pages.running(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        yield f"http://127.0.0.1:{server.server_port}"


def share(x: float, y: float) -> list[float]:
    return [x * 1000 / WIDTH, y * 1000 / HEIGHT]


@pytest.mark.parametrize("name", CASES)
async def test_a_click_is_told_to_have_no_effect_only_where_the_screen_stays_the_same(session, site, name):
    case = CASES[name]
    await session.start(f"{site}/{quote(name)}")
    await asyncio.sleep(case.get("pause", 0))
    point = share(*case.get("at", (25, 20)))
    for _ in range(2 if case.get("same") else 1):
        before = await observe(session)
        if "drag" in case:
            line = await do(session, "drag", start_point_2d=point, end_point_2d=share(*case["drag"]))
        else:
            line = await do(session, "click", point_2d=point)
        after = await observe(session)
        assert ("Note: no visible navigation or new tab detected." in line) == case.get("same", False), line
        assert "moved away" not in line
    if not case.get("same"):
        assert before.image != after.image, "it has an effect"
    assert await session.page.evaluate(case.get("shows", "true"))


@pytest.mark.more
async def test_what_never_comes_is_waited_for_once(session, site):
    """A picture whose answer the server keeps back."""
    await session.start(f"{site}/")
    await session.page.evaluate("""() => document.body.append(
        Object.assign(document.createElement('img'), {src: '/never', width: 50, height: 50}))""")
    await session.settle()
    assert await session.page.evaluate("window[Symbol.for('minirl')].late") is True


async def test_a_clock_does_not_pass_for_scrolling_and_its_picture_is_the_next_observations(session, site):
    await session.start(f"{site}/{quote('nothing beside a clock')}")
    await asyncio.sleep(1.5)
    line = await do(session, "scroll")
    assert line.endswith("Note: page scroll position did not change and may be at a boundary.")
    picture = session.unseen
    assert picture and (await observe(session)).image is picture


async def test_masks_beyond_the_limit_are_left_out(png):
    """A page may name as many as it likes, and each is painted while all other episodes wait."""
    pictures = png(64, 64, seed=1), png(64, 64, seed=2)
    nothing, everything = [0, 0, 1, 1], [0, 0, 64, 64]
    assert looks_the_same(*pictures, [*[nothing] * (MAX_MASKS - 1), everything])
    assert not looks_the_same(*pictures, [*[nothing] * MAX_MASKS, everything])
