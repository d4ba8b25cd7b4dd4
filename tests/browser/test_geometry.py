"""Where things are: what scrolls, windows of a size of their own, and frames that are scaled or padded."""

import io
import json
from html import escape

import lxml.html
import numpy as np
import pytest
from pages import do, observe
from PIL import Image

from minirl.agents import simplified_html, webagent_r1
from minirl.agents.autowebworld import AutoWebWorldAgent
from minirl.browser.pool import BrowserPool
from minirl.config import AgentConfig, BrowserConfig
from minirl.types import Call

WIDTH, HEIGHT = 480, 360
CONFIG = BrowserConfig(browsers=1, width=WIDTH, height=HEIGHT, quiet_ms=50, private=True)
STYLE = "<!doctype html><meta charset=utf-8><style>* { margin: 0 } body { font: 13px sans-serif }</style>"
NOTE = "did not change and may be at a boundary"

pytestmark = pytest.mark.asyncio(loop_scope="module")


def frame(page: str, style: str = "width: 100%; height: 100%") -> str:
    return f'<iframe style="position: absolute; border: 0; {style}" srcdoc="{escape(STYLE + page)}"></iframe>'


def frameset(page: str) -> str:
    write = f"f => {{ f.document.write({json.dumps(STYLE + page)}); f.document.close(); }}"
    load = f"<script>addEventListener('load', () => [frames[0], frames[1]].forEach({write}))</script>"
    return f'{load}<frameset cols="30%,70%"><frame><frame></frameset>'


def component(mode: str, inside: str, light: str = "") -> str:
    """A page that a web component fills."""
    style = (
        "<style>html, body { height: 100%; overflow: hidden } x-app { display: block; height: 100% }</style>"
    )
    script = f"document.querySelector('x-app').attachShadow({{mode: '{mode}'}}).innerHTML = `{inside}`"
    return f"{style}<x-app>{light}</x-app><script>{script}</script>"


TALL = '<div style="height: 3000px; background: linear-gradient(red, blue)">tall</div>'
AREA = "position: absolute; inset: 0; overflow: auto"
SLOT = f'<div style="{AREA}"><slot></slot></div>'
CLIPPED = "<style>html { height: 100%; overflow: hidden } body { height: 100%; overflow: auto }</style>"
LISTENS = """<style>html, body { height: 100%; overflow: hidden }</style><div id="d"></div><script>
  let n = 0; const draw = () => { d.innerHTML = 'at ' + n; };
  draw(); addEventListener('wheel', e => { e.preventDefault(); n += e.deltaY; draw(); }, {passive: false})
</script>"""
ROWS = """<div id="l" style="height: 300px; overflow: auto"></div><script>
  const add = () => { for (let i = 0; i < 9; i++) l.insertAdjacentHTML('beforeend', '<p>row</p>'); };
  add(); l.addEventListener('wheel', add);</script>"""
CANVAS = """<style>html, body { overflow: hidden }</style><canvas id="c" width="480" height="360"></canvas>
<script>let y = 0; const draw = () => c.getContext('2d').strokeRect(9, 9, 99, y);
  draw(); c.onwheel = e => { y += e.deltaY; draw(); };</script>"""
SMALL = f'<div style="position: absolute; width: 90px; height: 60px; overflow: auto">{TALL}</div>'
LINES = "".join(f'<a href="#{n}" style="display: block">line {n}</a>' for n in range(99))
SCROLLING = {
    "a frame in a frame": frame(frame(TALL)),
    "a frameset": frameset(TALL),
    "a body beside a small area": CLIPPED + SMALL + TALL,
    "a body that is cut on one side": CLIPPED.replace("overflow", "overflow-x") + TALL,
    "an open component": component("open", f'<div style="{AREA}">{TALL}</div>'),
    "a closed component": component("closed", f'<div style="{AREA}">{TALL}</div>'),
    "what is given to a component": component("closed", SLOT, TALL),
    "an open component that is given text": component("open", SLOT, TALL),
    "a page that listens": LISTENS,
    "a list of links": f'<div style="height: 300px; overflow: auto">{LINES}</div>',
    "rows that come": ROWS,
    "a canvas": CANVAS,
}


@pytest.mark.parametrize("arguments", [{}, {"point_2d": [500, 400]}], ids=["the page", "at a point"])
@pytest.mark.parametrize("name", SCROLLING)
async def test_whatever_a_person_can_scroll_scrolls(session, name, arguments):
    await session.page.set_content(STYLE + SCROLLING[name])
    await session.settle()
    before = await session.screenshot()
    line = await do(session, "scroll", **arguments)
    assert "Succeed: `scroll` down by" in line and NOTE not in line and "moved away" not in line
    assert await session.screenshot() != before


REVERSED = "height: 400px; overflow: auto; display: flex; flex-direction: "


@pytest.mark.parametrize(
    ("style", "directions"),
    [(REVERSED + "column-reverse", ("up", "down")), (REVERSED + "row; direction: rtl", ("left", "right"))],
)
async def test_areas_that_begin_at_their_end_say_where_it_is(session, style, directions):
    """As chats do, and what is read from the right: there positions are negative."""
    things = '<p style="flex: none; width: 400px; height: 300px">thing</p>' * 12
    await session.page.set_content(f'{STYLE}<div style="{style}">{things}</div>')
    on, back = directions
    first = await do(session, "scroll", direction=on, point_2d=[500, 300])
    assert "Succeed" in first and "That is its" not in first
    lines = []
    while not lines or "Note: " not in lines[-1]:
        lines.append(await do(session, "scroll", direction=on, point_2d=[500, 300], amount=0.9))
    assert ["That is its" in line for line in lines] == [False] * (len(lines) - 2) + [True, False]
    returned = await do(session, "scroll", direction=back, point_2d=[500, 300])
    assert "Succeed" in returned and "That is its" not in returned


CORNERS = ""
for corner in ("top left", "top right", "bottom left", "bottom right"):
    place = "position: absolute; width: 90px; height: 24px; " + corner.replace(" ", ": 0; ") + ": 0"
    CORNERS += f'<button style="{place}" onclick="document.title = this.innerText">{corner}</button>'


@pytest.mark.parametrize(("width", "height"), [(240, 180), pytest.param(700, 500, marks=pytest.mark.more)])
async def test_a_window_has_a_size_of_its_own(session, width, height):
    opening = f"window.open('', 'w', 'width={width},height={height}').document.write(corners)"
    script = f"<script>corners = {json.dumps(STYLE + CORNERS)}</script>"
    await session.page.set_content(f'{STYLE}<button onclick="{opening}">Open</button>{script}')
    await do(session, "click", point_2d=[20, 20])
    observation = await observe(session)
    assert observation.text.startswith(f"screen size: {width} x {height}\n")
    assert Image.open(io.BytesIO(observation.image)).size == (width, height)
    assert '"bottom right"' in await do(session, "click", point_2d=[980, 980])
    assert await session.page.title() == "bottom right"
    page = lxml.html.fromstring(await simplified_html.observe(session))
    numbers = {button.text.strip(): int(button.get("id")) for button in page.iter("button")}
    await webagent_r1.act(session, Call("Click", {"element": numbers["top right"]}))
    assert await session.page.title() == "top right"
    await do(session, "close_tab")
    assert (session.width, session.height) == (WIDTH, HEIGHT)


BOX = "position: absolute; border: 0; width: 100px; height: 40px"
INSIDE = f"""<div style="height: 1000px">
<button style="{BOX}; left: 20px; top: 20px; background: #f00">One</button>
<button style="{BOX}; left: 180px; top: 120px; background: #0f0">Two</button>
<div id="area" style="{BOX}; left: 20px; top: 170px; overflow: auto">
  <div style="height: 600px; background: #00f"></div></div></div>
<script>onclick = e => {{ top.document.title = e.target.innerText; }}</script>"""
FRAMES = {  # the style of a frame, and of the page around it
    "scaled": ("transform: scale(.5); transform-origin: 0 0", ""),
    "zoomed": ("zoom: 1.3", ""),
    "made smaller": ("zoom: .7", ""),
    "padded": ("padding: 5px 10px 15px 20px; border: 7px solid; margin: 9px", ""),
    "in a zoomed page": ("padding: 20px", "html { zoom: 1.3 }"),
}


def centre(png: bytes, colour: tuple[int, int, int]) -> list[float]:
    """Where a screenshot has a colour, as tools take a point."""
    picture = np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))
    rows, columns = (picture == colour).all(-1).nonzero()
    return [1000 * columns.mean() / WIDTH, 1000 * rows.mean() / HEIGHT]


@pytest.mark.parametrize("name", FRAMES)
async def test_in_a_frame_of_another_scale_things_have_their_names_and_scroll(session, name):
    style, around = FRAMES[name]
    await session.page.set_content(
        f"{STYLE}<style>{around}</style>" + frame(INSIDE, f"width: 330px; height: 230px; {style}")
    )
    picture = await session.screenshot()
    for title, colour in (("One", (255, 0, 0)), ("Two", (0, 255, 0))):
        assert f'`click` on <button> "{title}"' in await do(
            session, "click", point_2d=centre(picture, colour)
        )
        assert await session.page.title() == title
    assert "It moved <div>." in await do(session, "scroll", point_2d=centre(picture, (0, 0, 255)), amount=0.1)
    inside = session.page.frames[1]
    assert await inside.evaluate("[area.scrollTop, scrollY]") == pytest.approx([HEIGHT / 10, 0], abs=1)


FORM = """<label>Name <input id="i"></label><select id="s"><option>One<option>Two</select>
<button onclick="top.document.title = i.value + s.value">Send</button>
<p style="margin-top: 2000px">Below</p>"""
FORMS = {
    "a scaled frame": frame(FORM, "left: 50px; top: 40px; transform: scale(.8, .6); padding: 20px"),
    "a frame in a frame": frame(frame(FORM, "left: 40px; top: 30px; zoom: .9")),
    "a frameset": frameset(FORM),
}


@pytest.mark.parametrize("name", FORMS)
async def test_the_text_agent_sees_and_uses_a_form_in_a_frame(session, name):
    await session.page.set_content(STYLE + FORMS[name])
    await session.settle()
    text = await simplified_html.observe(session)
    assert "Name" in text and "Below" not in text, "what a frame has scrolled away is not shown"
    page = lxml.html.fromstring(text)
    numbers = {tag: int(page.xpath(f"//{tag}[@id]")[0].get("id")) for tag in ("input", "select", "button")}
    await webagent_r1.act(session, Call("Type", {"argument": "Ada", "element": numbers["input"]}))
    option = {"argument": "Two", "element": numbers["select"]}
    await webagent_r1.act(session, Call("Select Dropdown Option", option))
    await webagent_r1.act(session, Call("Click", {"element": numbers["button"]}))
    assert await session.page.title() == "AdaTwo"


async def test_the_text_agent_is_not_shown_another_sites_frame(session):
    await session.page.set_content(STYLE + '<iframe src="data:text/html,<button>Other</button>"></iframe>')
    text = await simplified_html.observe(session)
    assert '<iframe id="0"' in text and "Other" not in text


SMALL = """<!doctype html><style>* { margin: 0 } button:hover { background: red }
button { position: absolute; left: 110px; width: 40px; height: 20px }</style>
<button style="top: 10px" onclick="document.title += 'hit'">Do</button>
<button style="top: 180px">Idle</button>"""


async def test_small_pages_are_drawn_large_and_acted_on_where_they_are_drawn():
    config = BrowserConfig(browsers=1, width=640, height=630, quiet_ms=0)
    agent = AutoWebWorldAgent(AgentConfig(kind="autowebworld"), lambda width, height: (width, height))
    async with BrowserPool(config, sealed=True) as pool:
        async with pool.session((160, 210)) as session:
            await session.page.set_content(SMALL)
            picture = (await observe(session)).image
            assert Image.open(io.BytesIO(picture)).size == (480, 630)
            assert await session.page.evaluate("[innerWidth, innerHeight]") == [160, 210]
            # what the pointer alone changes is no effect, where it is drawn
            line = await do(session, "click", point_2d=[130 / 0.160, 190 / 0.210])
            assert "no visible navigation" in line
            # shares of the page, and pixels of the picture
            await do(session, "click", point_2d=[130 / 0.160, 20 / 0.210])
            await agent.act(session, Call("click", {"coordinate": [390, 60]}))
            assert await session.page.title() == "hithit"
        async with pool.session() as other:
            assert (other.width, other.height, other.scale) == (640, 630, 1.0)
        async with pool.session((160, 210)) as again:
            assert again is session
