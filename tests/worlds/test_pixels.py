"""Drawings: told by no text, asked for with one right answer, and readable from the screenshot alone."""

from __future__ import annotations

import base64
import io
import sys
from pathlib import Path
from random import Random

import pytest
from PIL import Image

from minirl.agents import simplified_html
from minirl.browser.pool import BrowserPool
from minirl.config import BrowserConfig
from minirl.worlds.__main__ import main
from minirl.worlds.fsm_file import load_goal
from minirl.worlds.generate import make_site
from minirl.worlds.interpreter import is_answer
from minirl.worlds.pixels import BYTES, KINDS, draw, shown, with_drawings
from minirl.worlds.render import SiteServer, load_world, render
from minirl.worlds.tasks import fitting, make_tasks

sys.path.append(str(Path(__file__).parents[1] / "bench"))
from pixels import by_words, drawing_in, known, made, rate, read_drawing, see  # noqa: E402

SITES = made(6)


def test_a_question_has_one_right_answer():
    for world, tasks in SITES:
        assert len(tasks) >= 6
        for task in tasks:
            find = task.meta["finds"][0]
            many = find["list"]
            assert fitting(world, find) == [find["item"]]
            goal = load_goal({"answer": task.goal["answer"]})
            values = KINDS[world.style["drawings"][many]]["values"]
            assert [one for one in values if is_answer(one, goal)] == [shown(world, many, find["item"])]
            assert task.meta["family"] == "drawing" and task.meta["agents"] == ["visual"]


def test_what_is_drawn_stands_nowhere_in_the_site():
    """Neither a record's fields nor the length of its picture depend on it, and all drawings differ."""
    sound = make_site("hotels", 4, "medium")
    world = with_drawings(sound)
    for many, records in world.data.items():
        assert [{**r, "drawn": 0} for r in records] == [{**r, "drawn": 0} for r in sound.data[many]]
        assert {len(r["drawn"]) for r in records} == {len(draw("clock", "3", Random(0)))}
        assert len({r["drawn"] for r in records}) == len(records)
    assert len(base64.b64decode(records[0]["drawn"].partition(",")[2])) == BYTES
    assert b'"drawn"' in render(world) and b'"drawn"' not in render(sound)
    asked = known(SITES)
    assert rate(by_words, asked, []) < 0.4, "chance is one in 5 to 60"


@pytest.mark.parametrize("kind", KINDS)
def test_every_drawing_can_be_read(kind):
    rng, frame = Random(kind), 6 // 2 + 1
    for value in KINDS[kind]["values"]:
        picture = Image.open(io.BytesIO(base64.b64decode(draw(kind, value, rng).partition(",")[2])))
        screen = Image.new("RGB", (640, 480), "#1d2733")
        screen.paste(picture.convert("RGB"), (200, 100))
        found = drawing_in(png(screen))
        assert found is not None and found.shape == (180 - 2 * frame, 240 - 2 * frame, 3)
        assert read_drawing(found, kind) == value
    assert drawing_in(png(Image.new("RGB", (640, 480), "#1d2733"))) is None


def png(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def test_tiles_have_no_drawings():
    with pytest.raises(ValueError, match="no room for drawings"):
        with_drawings(make_site("hotels", 4, "first"))


@pytest.mark.timeout(1800)
async def test_who_sees_answers_and_the_simplified_page_says_nothing():
    config = BrowserConfig(browsers=1, width=1280, height=720)
    world, tasks = SITES[0]
    with SiteServer([world]) as server:
        async with BrowserPool(config, server.sites, sealed=True) as pool, pool.session() as session:
            for task in tasks[:2]:
                assert await see(session, world, task)
                drawn = session.page.locator("img.drawn")
                assert await drawn.count() == 1 and await drawn.get_attribute("alt") == ""
                attributes = await drawn.evaluate("e => e.getAttributeNames().sort().join()")
                assert attributes == "alt,class,decoding,draggable,height,src,style,width"
                assert "drawn" not in await simplified_html.observe(session)


def test_the_command_draws(tmp_path: Path, capsys):
    assert main(["make", "--out", str(tmp_path), "--drawings", "--themes", "hotels", "--level", "easy"]) == 0
    (folder,) = tmp_path.glob("hotels-*")
    world = load_world(folder)
    assert world.data == with_drawings(make_site("hotels", 0, "easy")).data
    assert make_tasks(world) == make_tasks(with_drawings(make_site("hotels", 0, "easy")))
    assert '"drawing"' in (folder / "tasks.jsonl").read_text()
