"""Sessions, the pool and all thirteen tools, in a real Chromium on a small local site."""

import asyncio
import contextlib
import io
import os
import re
import signal
import ssl
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
import pytest_asyncio
from pages import HEIGHT, WIDTH, Handler, contexts, do, loads, observe, point, running, until
from PIL import Image
from playwright.async_api import Error as PlaywrightError

from minirl.browser.pool import BrowserPool
from minirl.browser.readiness import REMEDIES
from minirl.browser.session import MAX_REFUSALS, START_ATTEMPTS, Session
from minirl.config import BrowserConfig
from minirl.types import BrowserFault, Stop, ToolFailure

pytestmark = pytest.mark.asyncio(loop_scope="module")  # one browser for the whole module

CONFIG = BrowserConfig(browsers=1, width=WIDTH, height=HEIGHT, action_seconds=10, quiet_ms=50, private=True)
LINK = point(50, 25)
FIELD, AREA, TIP, NOTHING = point(80, 70), point(250, 110), point(380, 75), point(480, 380)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def pool() -> AsyncIterator[BrowserPool]:
    async with BrowserPool(CONFIG) as pool:
        yield pool
        assert contexts(pool) == 0


@pytest_asyncio.fixture(loop_scope="module")
async def session(pool: BrowserPool, site: str) -> AsyncIterator[Session]:
    async with pool.session() as session:
        await session.start(f"{site}/")
        yield session


async def log(session: Session) -> list[Any]:
    """What has reached the page since it was asked last."""
    return await session.page.evaluate("() => log.splice(0)")


async def test_a_click_on_nothing_may_be_double_or_with_another_button(session):
    line = await do(session, "click", point_2d=NOTHING)
    note = "Note: no visible navigation or new tab detected."
    assert line == f"Succeed: `click` on the page at (960, 950) executed. {note}"
    assert [kind for kind, *_ in await log(session)] == ["mousedown", "mouseup", "click"]
    await do(session, "click", point_2d=NOTHING, clicks=2)
    assert ["dblclick", 480, 380] in await log(session)
    await do(session, "click", point_2d=NOTHING, button="right")
    assert ["contextmenu", 480, 380] in await log(session)
    with pytest.raises(ToolFailure, match="button"):
        await do(session, "click", point_2d=NOTHING, button="fourth")
    for x, y, left, top in ((0, 1000, 0, HEIGHT - 1), (1000, 0, WIDTH - 1, 0)):  # the edges are on the page
        await do(session, "click", point_2d=[x, y])
        assert ["click", left, top] in await log(session)


async def test_drag_hover_and_wait(session):
    line = await do(session, "drag", start_point_2d=NOTHING, end_point_2d=TIP)
    assert line.startswith("Succeed: `drag` executed.")
    events = await log(session)
    assert events[0] == ["mousedown", 480, 380] and ["mouseup", 380, 75] in events
    await do(session, "hover", point_2d=NOTHING)
    line = await do(session, "hover", point_2d=TIP)
    assert line == 'Succeed: `hover` on <div> "Tip" at (760, 188) executed.'
    assert await session.page.title() == "hovered"
    before = time.monotonic()
    assert await do(session, "wait", seconds=0.2) == "Succeed: waited 0.2 seconds."
    assert time.monotonic() - before >= 0.2
    assert await log(session) == []


async def test_write_replaces_the_text_of_the_focused_field(session):
    await do(session, "click", point_2d=FIELD)
    line = await do(session, "write", message="Zoë, 3 €")
    assert line == 'Succeed: `write` typed "Zoë, 3 €" into <input> "Name".'
    assert await session.page.input_value("input") == "Zoë, 3 €"
    with pytest.raises(ToolFailure, match="empty"):
        await do(session, "write", message="")


async def test_a_click_into_a_field_says_that_it_has_the_focus_and_its_caret_does_not_blink(session):
    for _ in range(2):
        line = await do(session, "click", point_2d=FIELD)
        assert line.endswith('on <input> "Name" at (160, 175) executed. It has the focus.')
    pictures = set()
    for _ in range(3):
        pictures.add(await session.screenshot())
        await asyncio.sleep(0.35)
    assert len(pictures) == 1


async def test_why_a_form_is_not_sent_and_a_title_that_is_set_late(session):
    await session.page.set_content("<form><input name=Town required><button>Send</button></form>")
    x, y = await session.page.evaluate(
        "(r => [r.x + 5, r.y + 5])(document.forms[0][1].getBoundingClientRect())"
    )
    line = await do(session, "click", point_2d=point(x, y))
    assert line.endswith(
        'The focus is on <input> "Town". The form was not sent: "Please fill out this field."'
    )
    await session.page.evaluate("document.title = 'Later'")
    assert (await observe(session)).text.endswith(" - Later")


@pytest.mark.parametrize(
    ("html", "name"),
    [
        ("<button><img alt=Basket></button>", '<button> "Basket"'),
        ("<button><svg><title>Basket</title></svg></button>", '<button> "Basket"'),
        ("<table><td>Town:<td><input name=__town></table>", '<input> "Town:"'),
    ],
)
async def test_an_icon_and_a_field_in_a_table_have_names(session, html, name):
    await session.page.set_content(
        f"<style>* {{ margin: 0; padding: 0 }} svg {{ width: 20px }}</style>{html}"
    )
    e = "document.querySelector('button, input')"
    x, y = await session.page.evaluate(f"(r => [r.x + 5, r.y + 5])({e}.getBoundingClientRect())")
    assert f"`hover` on {name} at" in await do(session, "hover", point_2d=point(x, y))


async def test_keys_one_after_the_other_and_together(session):
    await do(session, "click", point_2d=FIELD)
    await log(session)
    line = await do(session, "press_keys", keys=["end", "x", "Return"])
    assert line == "Succeed: `press_keys` ['End', 'x', 'Enter'] executed."
    assert await log(session) == ["End", "x", "Enter"]
    assert await session.page.input_value("input") == "beforex"
    line = await do(session, "press_keys", keys=["ctrl", "a"], is_hotkey=True)
    assert line == "Succeed: `press_keys` ['Control', 'a'] executed."
    await do(session, "press_keys", keys=["del"])
    assert await session.page.input_value("input") == ""
    await do(session, "press_keys", keys=["y"], presses=3)
    assert await session.page.input_value("input") == "yyy"
    with pytest.raises(ToolFailure, match="Unknown key"):
        await do(session, "press_keys", keys=["NoSuchKey"])


async def test_scrolling_an_area_and_the_page_up_to_its_end(session):
    tops = "[scrollY, document.querySelector('#area').scrollTop]"
    await do(session, "scroll", point_2d=AREA, amount=0.1)
    await do(session, "scroll", point_2d=AREA, amount=1)
    note = "Note: page scroll position did not change and may be at a boundary."
    assert await session.page.evaluate(tops) == [0, 150]
    line = await do(session, "scroll", point_2d=AREA)  # at whose end a wheel goes on to the page
    assert line == "Succeed: `scroll` down by 50% at (500, 275) executed."
    assert await session.page.evaluate(tops) == [HEIGHT / 2, 150]
    await session.page.evaluate("scrollTo(0, 0)")
    assert await do(session, "scroll") == "Succeed: `scroll` down by 50% executed."
    assert await session.page.evaluate("scrollY") == HEIGHT / 2
    line = await do(session, "scroll", direction="up", amount=0.25)
    assert line == "Succeed: `scroll` up by 25% executed."
    assert await session.page.evaluate("scrollY") == HEIGHT / 4
    line = await do(session, "scroll", direction="up", amount=1)
    assert line == "Succeed: `scroll` up by 100% executed. That is its top."
    for direction in ("up", "left", "right"):
        line = await do(session, "scroll", direction=direction)
        assert line == f"Succeed: `scroll` {direction} by 50% executed. {note}"
    await session.page.evaluate("document.body.style.width = '3000px'")
    await do(session, "scroll", direction="right")
    assert await session.page.evaluate("scrollX") == WIDTH / 2
    with pytest.raises(ToolFailure, match="direction must be one of"):
        await do(session, "scroll", direction="sideways")


FORM = """<style>* { margin: 0 } body > * { position: absolute; left: 10px; width: 80px; height: 30px }
</style>
<button style="top: 10px" onclick="location.hash = 'found'">Search</button>
<div style="top: 60px">Nothing happens here, however often</div>
<input style="top: 110px" role="combobox" aria-label="Search"
  onkeydown="if (event.key === 'Enter') location.hash = 'entered'">
<input style="top: 160px" placeholder="City" oninput="this.value = 'New York, NY'">"""
NAVIGATED = r"Page navigated to http://\S+#\w+\."
TABLE_5 = [
    ("click", {"point_2d": point(50, 25)},
     rf'Succeed: `click` on <button> "Search" at \(\d+, \d+\) executed\. {NAVIGATED}'),
    ("click", {"point_2d": point(50, 75)},
     r'Succeed: `click` on <div> "Nothing happens here, however \.\.\." at \(\d+, \d+\) executed\. '
     r"Note: no visible navigation or new tab detected\."),
    ("click", {"point_2d": point(50, 125)}, ".*"),
    ("write", {"message": "Alpine Ridge"},
     r'Succeed: `write` typed "Alpine Ridge" into <input> role=combobox "Search"\.'),
    ("press_keys", {"keys": ["return"]}, rf"Succeed: `press_keys` \['Enter'\] executed\. {NAVIGATED}"),
    ("click", {"point_2d": point(50, 175)}, ".*"),
    ("write", {"message": "New"},
     r'Succeed: `write` .*\. Note: the field\'s actual value is "New York, NY", '
     r"which differs from the typed text\."),
    ("scroll", {"direction": "down"},
     r"Succeed: `scroll` down by 50% executed\. "
     r"Note: page scroll position did not change and may be at a boundary\."),
    ("switch_tab", {"tab_index": 0}, r"Succeed: `switch_tab` switched to tab 0 \(http://\S+\)\."),
    ("done", {"response": "42"}, r"Succeed: task marked as done\. Response: 42"),
]  # fmt: skip


async def test_feedback_reads_as_in_the_papers_table_5(session):
    """So that public records, released checkpoints and reinforcement speak alike."""
    await session.page.set_content(FORM)
    for name, arguments, pattern in TABLE_5:
        line = await do(session, name, **arguments)
        assert re.fullmatch(pattern, line), line


async def test_other_schemes_and_what_does_not_answer_are_the_agents_news(session, site):
    for url in ("file:///etc/passwd", "javascript:document.title='x'", "data:text/html,x", "chrome://crash"):
        with pytest.raises(ToolFailure, match="only http and https"):
            await do(session, "goto_url", url=url)
    assert (await session.tabs())[0] == [(f"{site}/", "Home")]
    for url in ("nothing-here.test", "http://nothing-here.test/it-crashed"):
        with pytest.raises(ToolFailure, match="^net::ERR_"):  # an address may speak of a crash
            await do(session, "goto_url", url=url)
    assert (await observe(session)).image


async def test_a_key_that_speaks_of_a_crash_is_none(session, site):
    """The model's own words stand in the browser's reason, and must not end its episode."""
    with pytest.raises(ToolFailure, match="Unknown key"):
        await do(session, "press_keys", keys=["why the plane crashed"])


async def test_tabs_open_change_and_close(session, site):
    with pytest.raises(ToolFailure, match="the last tab can't be closed"):
        await do(session, "close_tab")
    assert await do(session, "new_tab") == "Succeed: `new_tab` opened blank tab (tab 1)."
    assert (await session.tabs())[1] == 1
    await do(session, "goto_url", url=f"{site}/two")
    line = await do(session, "switch_tab", tab_index=0)
    assert line == f"Succeed: `switch_tab` switched to tab 0 ({site}/)."
    assert await session.tabs() == ([(f"{site}/", "Home"), (f"{site}/two", "Two")], 0)
    with pytest.raises(ToolFailure, match="there is no tab 2; the last is 1"):
        await do(session, "switch_tab", tab_index=2)
    assert await do(session, "close_tab") == "Succeed: `close_tab` closed tab 0, now on tab 0."
    assert await session.tabs() == ([(f"{site}/two", "Two")], 0)
    assert (await observe(session)).image


async def test_of_three_tabs_the_last_is_current_when_the_first_closes(session, site):
    for _ in range(2):
        await do(session, "new_tab")
    await do(session, "goto_url", url=f"{site}/two")
    await do(session, "switch_tab", tab_index=0)
    assert await do(session, "close_tab") == "Succeed: `close_tab` closed tab 0, now on tab 1."
    assert await session.tabs() == ([("about:blank", ""), (f"{site}/two", "Two")], 1)


async def test_an_observation_has_tabs_address_title_and_a_screenshot(session, site):
    seen = await observe(session)
    assert seen.text == (
        f"screen size: {WIDTH} x {HEIGHT}\nCurrent tab: 0\nAvailable tabs:\n- Tab 0 (active): {site}/ - Home"
    )
    assert seen.url == f"{site}/"
    assert Image.open(io.BytesIO(seen.image)).size == (WIDTH, HEIGHT)


REFUSED = PlaywrightError("Protocol error (Page.captureScreenshot): Unable to capture screenshot")


async def test_a_refused_screenshot_is_taken_again(session):
    send = AsyncMock(side_effect=[REFUSED, REFUSED, {"data": "cG5n"}])
    session.tabs_of[session.page].cdp = Mock(send=send)
    assert await session.screenshot() == b"png" and send.await_count == 3
    session.tabs_of[session.page].cdp = Mock(send=(send := AsyncMock(side_effect=REFUSED)))
    with pytest.raises(BrowserFault, match="no screenshot: .*Unable to capture") as caught:
        await session.screenshot()
    assert caught.value.stop is Stop.ENV_ERROR and send.await_count == MAX_REFUSALS


async def test_a_tab_that_cannot_be_helped_is_replaced(session, monkeypatch):
    monkeypatch.setattr("minirl.browser.session.SCREENSHOT_SECONDS", 1.0)
    impatient = [(remedy, 0.1, line) for remedy, _, line in REMEDIES]
    monkeypatch.setattr("minirl.browser.readiness.REMEDIES", impatient)
    session.tabs_of[session.page].cdp = Mock(send=lambda *_: asyncio.sleep(60))
    hung = session.page
    assert Image.open(io.BytesIO(await session.screenshot())).size == (WIDTH, HEIGHT)  # of an empty tab
    assert session.page is not hung and session.take_news() == ["The page hung and its tab was closed."]


async def test_a_first_page_that_does_not_open_is_tried_again_and_given_up(pool):
    async with pool.session() as session:
        opened = []
        session.page.on("request", lambda request: opened.append(request.url))
        with pytest.raises(BrowserFault, match="did not open: net::ERR_NAME_NOT_RESOLVED") as caught:
            await session.start("http://nothing-here.test/")
    assert caught.value.stop is Stop.SITE_ERROR and len(opened) == START_ATTEMPTS


async def test_a_wait_ends_before_the_actions_time(session):
    session.config = replace(session.config, action_seconds=3)
    assert await do(session, "wait", seconds=20) == "Succeed: waited 2 seconds."


WHERE = "[navigator.language, Intl.DateTimeFormat().resolvedOptions().timeZone, navigator.userAgent]"
ABROAD = replace(CONFIG, locale="de-DE", timezone="Asia/Tokyo", user_agent="Mine")


async def test_language_time_zone_and_user_agent_are_not_the_machines(site, monkeypatch):
    monkeypatch.setenv("TZ", "America/Lima")
    usual = "en-US UTC Mozilla/5.0 .* Chrome/[^H]*"
    async with BrowserPool(CONFIG) as pool:
        for config, expected in ((CONFIG, usual), (ABROAD, "de-DE Asia/Tokyo Mine")):
            pool.config = config
            async with pool.session() as session:
                await session.start(f"{site}/")
                assert re.fullmatch(expected, " ".join(await session.page.evaluate(WHERE)))
                opened = await session.page.goto(f"{site}/two")
                headers = await opened.request.all_headers()
                assert headers["sec-ch-ua"].startswith('"Chromium";v="') and "Headless" not in str(headers)


async def does_not_start(config: BrowserConfig, reason: str) -> None:
    """No browser starts, which is told at once, in one line, and nothing is left running."""
    pool = BrowserPool(config)
    with pytest.raises(ValueError, match=f"no browser can be started {reason}") as caught:
        async with pool:
            pass
    assert "\n" not in str(caught.value)
    with pytest.raises(Exception, match="closed|stopped"):  # Playwright's driver is gone as well
        await asyncio.wait_for(pool.playwright.chromium.launch(), 5)


async def test_a_time_zone_that_does_not_exist_is_told_at_once():
    await does_not_start(replace(CONFIG, timezone="Mars/Olympus"), ".*Mars")


async def test_a_certificate_that_nobody_has_signed_is_a_reason_or_allowed(session):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(Path(__file__).parents[1] / "data/self_signed.pem")
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    with running(server):
        url = f"https://127.0.0.1:{server.server_port}/two"
        with pytest.raises(BrowserFault, match="did not open: net::ERR_CERT_AUTHORITY_INVALID"):
            await session.start(url)
        async with BrowserPool(replace(CONFIG, insecure=True)) as pool, pool.session() as lenient:
            await lenient.start(url)
            assert await lenient.page.title() == "Two"


async def test_a_killed_browser_takes_only_its_own_sessions_and_is_replaced(site):
    config = replace(CONFIG, browsers=2)
    async with BrowserPool(config) as pool, pool.session() as first:
        async with pool.session() as second:
            await asyncio.gather(first.start(f"{site}/"), second.start(f"{site}/"))
            assert first.context.browser is not second.context.browser
            os.kill(pool.slots[1].pid, signal.SIGKILL)
            with pytest.raises(BrowserFault, match="the browser is gone") as caught:
                for _ in range(3):  # the first call may be told before the death is known
                    await do(second, "hover", point_2d=TIP)
            assert caught.value.stop is Stop.INFRA_ERROR
            assert "Page navigated to" in await do(first, "click", point_2d=LINK)
        assert pool.launches == 2
        async with pool.session() as third:  # in the least loaded one
            await third.start(f"{site}/")
            assert third.context.browser is not first.context.browser
        assert pool.launches == 3 and loads(pool) == [1, 0]


@pytest.mark.more  # a browser without a sign of life is replaced below
async def test_a_browser_that_hangs_is_replaced_for_the_episode_that_finds_it_so(site, monkeypatch):
    monkeypatch.setattr("minirl.browser.pool.START_SECONDS", 6.0)
    monkeypatch.setattr("minirl.browser.pool.EXIT_SECONDS", 0.5)
    async with BrowserPool(CONFIG) as pool:
        hung, pid = pool.slots[0].browser, pool.slots[0].pid
        os.kill(pid, signal.SIGSTOP)
        try:
            monkeypatch.setattr("minirl.browser.pool.ACQUIRE_SECONDS", 0.5)
            with pytest.raises(BrowserFault, match="no browser: TimeoutError") as caught:
                async with pool.session():
                    pass
            assert caught.value.stop is Stop.INFRA_ERROR and pool.launches == 1
            monkeypatch.setattr("minirl.browser.pool.ACQUIRE_SECONDS", 600.0)
            async with pool.session() as session:
                await session.start(f"{site}/")
                assert session.context.browser is not hung
            await until(lambda: not hung.is_connected())  # stopped as it was, it has been killed
            assert pool.launches == 2 and loads(pool) == [0] and not pool.ending
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


async def test_a_chromium_that_never_starts_is_told_at_once(tmp_path, monkeypatch):
    script = tmp_path / "chromium"
    script.write_text('#!/bin/sh\n[ "$1" = --version ] && echo "Chromium 140.0.0.0" || exit 1\n')
    script.chmod(0o755)
    monkeypatch.setenv("MINIRL_CHROMIUM", str(script))
    await does_not_start(CONFIG, r"\(.*\): set MINIRL_CHROMIUM")


async def test_a_browser_without_any_font_is_refused(tmp_path, monkeypatch):
    """Its pages would have no letters: on such a machine an agent was trained blind. With fonts it starts."""
    fonts = tmp_path / "fonts.conf"
    fonts.write_text(f"<?xml version='1.0'?><fontconfig><dir>{tmp_path}/none</dir></fontconfig>")
    monkeypatch.setenv("FONTCONFIG_FILE", str(fonts))
    await does_not_start(CONFIG, ".it has no font: apt-get install")


@pytest.mark.more
async def test_sessions_cancelled_while_they_open_or_close_leave_nothing_behind(pool):
    """At once, and not only when the browser gets to it: the next episode may look."""

    async def stay(seconds: float) -> None:
        async with pool.session():
            opened.set()
            await asyncio.sleep(seconds)

    for i in range(20):
        for seconds in (60, 0):
            opened = asyncio.Event()
            task = asyncio.create_task(stay(seconds))
            if seconds == 0:
                await opened.wait()
            await asyncio.sleep(0.002 * i)
            task.cancel()
            await asyncio.wait([task])
            assert loads(pool) == [0]
    assert contexts(pool) == 0
    cdp = await pool.slots[0].browser.new_browser_cdp_session()
    assert (await cdp.send("Target.getBrowserContexts"))["browserContextIds"] == []
    await cdp.detach()


@pytest.mark.more
async def test_a_browser_without_a_sign_of_life_is_replaced_unless_nobody_listened(site, monkeypatch):
    for name, seconds in {"CHECK_SECONDS": 0.5, "EXIT_SECONDS": 1.0}.items():
        monkeypatch.setattr(f"minirl.browser.pool.{name}", seconds)
    async with BrowserPool(CONFIG) as pool:
        first = pool.slots[0].browser
        for _ in range(25):
            time.sleep(0.1)  # an update, in the loop's thread
            await asyncio.sleep(0)
        assert pool.slots[0].browser is first
        os.kill(pool.slots[0].pid, signal.SIGSTOP)
        await until(lambda: pool.slots[0].browser is not first, 30)
        async with pool.session() as session:
            await session.start(f"{site}/")
        assert pool.launches == 2
