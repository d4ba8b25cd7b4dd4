"""Episodes on pages that do what live pages do: each has its feedback and its `Stop`, in real Chromium."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio
from hostile import HEIGHT, SPOTS, WIDTH, hits, point, serve
from peers import alone

from minirl.agents.openwebrl import read_call
from minirl.agents.openwebrl_actions import act, observe
from minirl.browser.pool import BrowserPool
from minirl.browser.session import Session
from minirl.config import AgentConfig, BrowserConfig
from minirl.model import Preprocessor
from minirl.recipes import tiny
from minirl.rollout import RolloutWorker
from minirl.run_folder import Run
from minirl.types import BrowserFault, Prompt, Sample, Stop, Task, Trajectory

pytestmark = pytest.mark.asyncio(loop_scope="module")

BROWSER = BrowserConfig(
    browsers=1,
    width=WIDTH,
    height=HEIGHT,
    private=True,
    start_seconds=5,
    action_seconds=12,
    call_seconds=2,
    commit_seconds=3,
    screenshot_seconds=20,
    start_attempts=2,
)
CONFIG = replace(
    tiny(), agent=AgentConfig(brief=True, response_tokens=1000, context_tokens=32768), browser=BROWSER
)


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with serve() as address:
        yield address


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def pool() -> AsyncIterator[BrowserPool]:
    async with BrowserPool(BROWSER) as pool:
        yield pool


def call(name: str, **arguments: Any) -> str:
    return json.dumps({"name": name, "arguments": arguments})


def click(spot: str, **arguments: Any) -> str:
    return call("click", point_2d=point(*SPOTS[spot]), **arguments)


def write(message: str) -> str:
    return call("write", message=message)


DONE = call("done", response="done")


def script(preprocessor: Preprocessor, *calls: str) -> Callable[[int, Prompt, Session], Any]:
    """A policy that makes one call a turn, then is done."""

    async def policy(t: int, prompt: Prompt, session: Session) -> Sample:
        text = f"so</think><tool_call>{calls[t] if t < len(calls) else DONE}</tool_call>"
        ids = preprocessor.tokenizer(text + preprocessor.tokenizer.eos_token)["input_ids"]
        return Sample(tuple(ids), (0.0,) * len(ids), "stop")

    return policy


async def nobody_verifies(task: Task, session: Session, answer: str) -> tuple[bool, dict[str, Any]]:
    return True, {"title": await session.do(session.page.title())}


def rollouts_on(
    pool: BrowserPool, preprocessor: Preprocessor, folder: Path, config: Any = CONFIG
) -> RolloutWorker:
    return RolloutWorker(config, preprocessor, None, pool, nobody_verifies, Run(folder).put_image, alone())


@pytest.fixture
def play(pool: BrowserPool, preprocessor: Preprocessor, site: str, tmp_path: Path) -> Callable[..., Any]:
    async def play(path: str, *calls: str) -> Trajectory:
        rollouts = rollouts_on(pool, preprocessor, tmp_path)
        calls = tuple(made.replace("SITE", site) for made in calls)
        task = Task(path, "Do it.", site + path)
        return await rollouts.episode(task, 0, script(preprocessor, *calls), len(calls) + 1)

    return play


GONE = "It has moved away from under the pointer, and may not have got the click."
STILL = "Nothing on the page changed."
HAS = "It has the focus."

# path, then calls with what is to be in their feedback ("!x": not in it), then the last page's title
CASES: dict[str, tuple[str, list[tuple[str, str]], str]] = {
    "pop-up": (
        "/popup",
        [(click("popup"), "A new tab opened and is now the current one, at SITE/two.")],
        "Two",
    ),
    "new window by a link": ("/popup", [(click("popup-blank"), "A new tab opened")], "Two"),
    "a window that closes itself": (
        "/popup",
        [(click("popup-close"), "at SITE/close."), (click("close"), "The tab closed; the current one is at")],
        "Popup",
    ),
    "a flood of windows": (
        "/popups",
        [(click("popups"), "More than 20 tabs were open; new ones")],
        "Two",
    ),
    "alert": ("/dialog", [(click("dialog-alert"), 'A dialog (alert) said "Careful" and was')], "alerted"),
    "confirm": ("/dialog", [(click("dialog-confirm"), 'A dialog (confirm) said "Sure?"')], "true"),
    "prompt": ("/dialog", [(click("dialog-prompt"), 'A dialog (prompt) said "Your name?"')], "nobody"),
    "dialogs without end": (
        "/alerts",
        [(click("alerts"), 'failed, the browser did not finish in time. A dialog (alert) said "again"')],
        "Alerts",
    ),
    "beforeunload": (
        "/beforeunload",
        [
            (click("beforeunload"), HAS),
            (write("hi"), "typed 'hi' into input \"Unsaved\"."),
            (click("beforeunload-link"), "Now at SITE/two. The page asked whether to leave it"),
        ],
        "Two",
    ),
    "location": ("/geolocation", [(click("geolocation"), "!dialog")], "location error 1"),
    "notification": ("/geolocation", [(click("notification"), "!dialog")], "notification denied"),
    "an address that never rests": (
        "/bounce",
        [
            (call("wait", seconds=0.3), "Now at SITE/bounce?n="),
            (call("goto_url", url="SITE/two"), "SITE/two."),
        ],
        "Two",
    ),
    "a script that hangs": (
        "/hung",
        [
            (click("hung"), "did not finish in time. The page's script hung and was stopped."),
            (click("hung-other"), "clicked"),
        ],
        "alive",
    ),
    "a font that never comes": ("/font", [(click("font"), 'clicked button "In the font"')], "clicked"),
    "an image that never comes": ("/image", [(click("image"), "clicked")], "clicked"),
    "late data": ("/slow-fetch", [(click("fetch"), "!Nothing")], "Slow fetch"),
    "HTTP 500": ("/two", [(call("goto_url", url="SITE/500"), "The server answered with status 500.")], "500"),
    "a reset while typing an address": (
        "/two",
        [(call("goto_url", url="SITE/reset"), "failed, net::ERR_CONNECTION_RESET")] * 2,
        "",
    ),
    "a reset behind a link": (
        "/",
        [(click("/reset"), "The page that it leads to could not be loaded (net::ERR_CONNECTION_RESET).")],
        "",
    ),
    "redirects without end": (
        "/two",
        [(call("goto_url", url="SITE/loop"), "failed, net::ERR_TOO_MANY_REDIRECTS")],
        "",
    ),
    "a page that never comes": (
        "/two",
        [(call("goto_url", url="SITE/slow"), "failed, the page did not load in time.")],
        "Two",
    ),
    "a button that jumps": ("/moves", [(click("moves-down"), GONE), (click("moves-over"), GONE)], "missed"),
    "a banner in the way": (
        "/overlay",
        [
            (click("overlay"), STILL),
            (click("overlay-accept"), 'button "Accept"'),
            (click("overlay"), 'button "Under"'),
        ],
        "under clicked",
    ),
    "a frame": (
        "/frame",
        [
            (click("frame-button"), 'clicked button "Inner"'),
            (click("frame-input"), HAS),
            (write("abc"), "typed 'abc' into input."),
        ],
        "typed abc",
    ),
    "a frame of another origin": (
        "/frame-cross",
        [
            (click("frame-button"), 'button "Inner"'),
            (click("frame-input"), HAS),
            (write("abc"), "typed 'abc'"),
        ],
        "typed abc",
    ),
    "open shadow DOM": (
        "/shadow",
        [(click("open-button"), 'button "Open"'), (click("open-input"), HAS), (write("abc"), "typed 'abc'")],
        "open typed abc",
    ),
    "closed shadow DOM": (
        "/shadow",
        [(click("closed-input"), "x-closed"), (write("abc"), "typed 'abc' into x-closed.")],
        "closed typed abc",
    ),
    "a date": (
        "/date",
        [
            (click("date"), HAS),
            (write("tomorrow"), "failed, date input does not take 'tomorrow'. Write a date as 2026-03-31."),
            (write("2026-02-03"), "date input is now '2026-02-03'."),
        ],
        "2026-02-03",
    ),
    "a calendar": (
        "/calendar",
        [
            (click("calendar"), "clicked"),
            (write("May 3"), "has the focus, which takes no text; click on a field first"),
            (click("day-3"), 'button "3"'),
        ],
        "Calendar",
    ),
    "a list of options": (
        "/select",
        [
            (click("select"), "Its list is not in the screenshot; write one of: Apple, Banana, Cherry,"),
            (write("zebra"), "does not take 'zebra'. Write one of its options."),
            (write("cherry"), "select \"Fruit\" is now 'Cherry'."),
        ],
        "Cherry",
    ),
    "a field that completes what is typed": (
        "/autocomplete",
        [
            (click("autocomplete"), HAS),
            (write("new"), "now holds 'New York, NY', which differs from what was typed."),
            (click("suggestion-2"), "New Orleans"),
        ],
        "Autocomplete",
    ),
    "a field that takes digits only": (
        "/masked",
        [(click("masked"), HAS), (write("a1b2"), "now holds '12', which differs")],
        "Masked",
    ),
    "a field that cuts": (
        "/maxlength",
        [(click("maxlength"), HAS), (write("abcdefgh"), "now holds 'abcde', which differs")],
        "Maxlength",
    ),
    "fields that can't be written": (
        "/readonly",
        [
            (write("x"), "failed, nothing has the focus, which takes no text; click on a field first."),
            (click("readonly"), "clicked input"),
            (write("x"), "takes no text"),
            (click("disabled"), f'button "Disabled" (disabled) at [460, 62.5]. {STILL}'),
            (click("editable"), HAS),
            (write("hello"), "typed 'hello' into"),
        ],
        "Readonly",
    ),
    "what can be switched": (
        "/toggle",
        [
            (click("checkbox"), 'checkbox input "I agree" (not checked) at [40, 50]. It is now checked.'),
            (click("checkbox-label"), "It is now not checked."),
            (click("radio-b"), "It is now checked."),
            (click("summary"), "It is now expanded."),
            (click("expander"), "It is now expanded."),
            (click("dead"), STILL),
            (click("rewriter"), "!Nothing"),
        ],
        "Toggle",
    ),
    "an application that scrolls inside": (
        "/scroll",
        [
            (call("scroll"), 'scrolled div "The app" down by 50% of the screen.'),
            (call("scroll", direction="up", amount=1), "up by 50% of the screen. That is its top."),
            (call("scroll", direction="up"), "did not move up; it may be at its top."),
        ],
        "Scroll",
    ),
    "an area within an area": (
        "/nested",
        [
            (call("scroll", point_2d=point(*SPOTS["nested-inner"])), 'scrolled div "Inner" down'),
            (call("scroll", point_2d=point(*SPOTS["nested-outer"])), 'scrolled div "Outer'),
            (call("scroll"), "scrolled the page down by 50% of the screen."),
        ],
        "Nested",
    ),
    "a place within the page": ("/anchor", [(click("anchor"), "Now at SITE/anchor#bottom.")], "Popped"),
    "an application with a history": (
        "/anchor",
        [(click("push"), "Now at SITE/anchor?pushed."), (call("go_back"), "now at SITE/anchor.")],
        "Popped",
    ),
    "nothing to go back to": (
        "/two",
        [(call("go_back"), "failed, there is no earlier page in this tab")],
        "Two",
    ),
    "a frame that is added": ("/late-frame", [(click("late-frame"), "!Nothing")], "Late frame"),
    "a link to nothing": ("/leaving", [(click("no-content"), STILL), (call("new_tab"), "opened tab 1.")], ""),
    "a link to a page that never comes": (
        "/leaving",
        [(click("never-page"), "did not come within 3 s, and was")],
        "Leaving",
    ),
    "data of a page that is left": ("/leaving", [(click("fetch-and-leave"), "Now at SITE/two.")], "Two"),
    "a frame that scrolls": (
        "/frame-scroll",
        [(call("scroll", point_2d=point(*SPOTS["frame-scroll"])), "scrolled the page down by 50%")],
        "Frame scroll",
    ),
    "a page that spoils scripts": ("/spoiled", [(click("spoiled"), "clicked something")], "clicked"),
    "a hotkey that is none": (
        "/masked",
        [
            (click("masked"), HAS),
            (call("press_keys", keys=["ctrl", "foo"], is_hotkey=True), 'failed, Unknown key: "foo"'),
            (write("12"), "typed '12' into input."),
        ],
        "Masked",
    ),
    "download": ("/download", [(click("download"), "A download (file.bin) was refused.")], "Download"),
    "a script for an address": ("/js-url", [(click("js-url"), 'clicked link "Run"')], "ran"),
    "a document from a script": ("/js-url", [(click("js-url-text"), "The page was loaded anew.")], ""),
    "a file behind a link": ("/file", [(click("file"), STILL)], "File"),
}


# As long as outside of tests: forty windows keep a busy machine's browser from answering for seconds.
PATIENT = {"start_seconds": 30, "call_seconds": 10, "screenshot_seconds": 30, "action_seconds": 45}


@pytest.mark.parametrize("case", CASES)
async def test_the_agent_is_told_and_the_episode_goes_on(play, pool, site, case, monkeypatch):
    path, steps, title = CASES[case]
    if case == "a flood of windows":
        monkeypatch.setattr(pool, "config", replace(BROWSER, **PATIENT))
    trajectory = await play(path, *(made for made, _ in steps))
    assert (trajectory.stop, trajectory.valid) == (Stop.DONE, True), trajectory.error
    for turn, (_, expected) in zip(trajectory.turns, steps, strict=False):
        (line,) = turn.feedback
        unwanted, expected = expected.startswith("!"), expected.removeprefix("!").replace("SITE", site)
        assert (expected in line) is not unwanted, line
        assert len(line) <= 512
    assert trajectory.final_state["title"] == title


@pytest.mark.parametrize(
    ("path", "spot", "seconds"),
    [
        ("/late-frame", "late-frame", 1.5),
        ("/leaving", "no-content", 1.5),
        ("/leaving", "never-page", BROWSER.commit_seconds + 1.5),
        ("/leaving", "fetch-and-leave", 1.5),
    ],
)
async def test_nothing_is_waited_for_that_will_not_come(pool, site, path, spot, seconds):
    """Neither now nor by the next call: the limits are far below the caps, which are the alternative."""
    async with pool.session() as session:
        await session.start(site + path)
        for made in (click(spot), call("hover", point_2d=[900, 900])):
            begun = asyncio.get_running_loop().time()
            await act(session, read_call(made))
            assert asyncio.get_running_loop().time() - begun < seconds


async def test_scrolling_in_a_frame_leaves_the_page_around_it(pool, site):
    async with pool.session() as session:
        await session.start(f"{site}/frame-scroll")
        await act(session, read_call(call("scroll", point_2d=point(*SPOTS["frame-scroll"]))))
        assert await session.page.evaluate("scrollY") == 0
        assert await session.page.frames[1].evaluate("scrollY") == HEIGHT / 2


async def test_an_endless_address_is_cut(pool, site):
    """Else a page could use up the context, and that would count as the agent's fault."""
    async with pool.session() as session:
        await session.start(f"{site}/long-address")
        seen = await observe(session)
        assert len(session.page.url) > 100_000 and len(seen.text) < 1000


async def test_closing_a_tab_when_all_have_closed_themselves(pool, site):
    async with pool.session() as session:
        await session.start(f"{site}/popup")
        await act(session, read_call(click("popup")))
        popup = session.page
        await act(session, read_call(call("switch_tab", tab_index=0)))
        await act(session, read_call(call("close_tab")))
        await popup.close()
        with pytest.raises(BrowserFault, match="closed itself") as caught:
            await act(session, read_call(call("close_tab")))
        assert caught.value.stop is Stop.ENV_ERROR


async def test_data_that_an_action_asked_for_is_in_the_screenshot(play, pool, site):
    async with pool.session() as session:
        await session.start(f"{site}/slow-fetch")
        await session.arm(point := SPOTS["fetch"])
        await session.page.mouse.click(*point)
        await session.settle()
        assert await session.page.inner_text("#out") == "arrived"


@pytest.mark.parametrize("path", ["/loop", "/reset", "/empty", "/slow"])
async def test_a_first_page_that_does_not_open_is_the_sites_error(play, path):
    trajectory = await play(path)
    assert (trajectory.stop, trajectory.valid, trajectory.turns) == (Stop.SITE_ERROR, False, ())
    assert "did not open: " in trajectory.error


async def test_a_first_page_with_an_error_status_is_the_agents_to_deal_with(play):
    trajectory = await play("/500", call("goto_url", url="SITE/two"))
    assert trajectory.stop is Stop.DONE and trajectory.final_state["title"] == "Two"


async def test_a_crash_ends_the_episode(play, pool, site, preprocessor, tmp_path):
    rollouts = rollouts_on(pool, preprocessor, tmp_path)

    async def crash(t: int, prompt: Prompt, session: Session) -> Sample:
        asyncio.ensure_future((await session.tab()).cdp.send("Page.crash")).add_done_callback(
            lambda crashed: crashed.exception()
        )
        return await script(preprocessor, click("crash"))(0, prompt, session)

    trajectory = await rollouts.episode(Task("crash", "Do it.", f"{site}/crash"), 0, crash, 3)
    assert (trajectory.stop, trajectory.valid) == (Stop.ENV_ERROR, False), trajectory.error


async def test_private_addresses_are_refused_wherever_they_come_from(preprocessor, site, tmp_path):
    """Typed, behind a link, and behind a redirect. The site itself has a name, and is known to be ours."""
    port = int(site.rpartition(":")[2])
    config = replace(CONFIG, browser=replace(BROWSER, private=False))
    async with BrowserPool(config.browser, {"shop-9.test": port}) as pool:
        rollouts = rollouts_on(pool, preprocessor, tmp_path, config)
        calls = (
            call("goto_url", url=f"{site}/secret"),
            click("private"),
            call("go_back"),
            click("private-redirect"),
        )
        task = Task("private", "Do it.", "http://shop-9.test/private")
        trajectory = await rollouts.episode(task, 0, script(preprocessor, *calls), 5)
        typed, linked, _, redirected = (turn.feedback[0] for turn in trajectory.turns[:4])
    assert trajectory.stop is Stop.DONE and hits["/secret"] == 0 and hits["/to-private"] == 1
    assert typed == "goto_url: failed, 127.0.0.1 is a private address."
    assert trajectory.final_state["title"] == "Forbidden"
    assert linked and redirected


async def test_lists_of_domains(preprocessor, site, tmp_path):
    port = int(site.rpartition(":")[2])
    config = replace(CONFIG, browser=replace(BROWSER, private=True, deny=("shop.test",)))
    async with BrowserPool(config.browser, {"shop-9.test": port}) as pool:
        rollouts = rollouts_on(pool, preprocessor, tmp_path, config)
        calls = (call("goto_url", url="http://www.shop.test/"),)
        task = Task("denied", "Do it.", "http://shop-9.test/two")
        trajectory = await rollouts.episode(task, 0, script(preprocessor, *calls), 2)
        refused = Task("denied start", "Do it.", "https://shop.test/")
        start = await rollouts.episode(refused, 0, script(preprocessor), 2)
    assert trajectory.turns[0].feedback[0].endswith("www.shop.test is on the list of denied domains.")
    assert start.stop is Stop.SITE_ERROR and "denied domains" in start.error


async def test_a_sealed_pool_reaches_nothing_but_its_sites(preprocessor, site, tmp_path):
    port = int(site.rpartition(":")[2])
    async with BrowserPool(BROWSER, {"shop-9.test": port}, sealed=True) as pool, pool.session() as session:
        await session.start("http://shop-9.test/two")
        for url in (f"{site}/two", "http://localhost/", "https://example.org/"):
            with pytest.raises(Exception, match="ERR_NAME_NOT_RESOLVED"):
                await session.goto(url)


async def test_diagnostics(play):
    trajectory = await play("/two")
    found = trajectory.diagnostics
    assert set(found) == {"acquire", "start", "uptime", "heap_mb", "requests"}
    assert found["start"] > 0 and found["requests"] >= 1 and found["heap_mb"] > 0


# --- many episodes, and browsers that are killed ---------------------------------------------------

ROUTES: list[tuple[str, ...]] = [
    ("/popup", click("popup"), click("popup-blank")),
    ("/dialog", click("dialog-alert"), click("dialog-confirm")),
    ("/frame", click("frame-button"), click("frame-input"), write("abc")),
    ("/autocomplete", click("autocomplete"), write("new")),
    ("/toggle", click("checkbox"), click("expander"), click("dead")),
    ("/nested", call("scroll"), call("scroll", point_2d=point(*SPOTS["nested-inner"]))),
    ("/slow-fetch", click("fetch")),
    ("/", click("/reset"), call("go_back")),
    ("/hung", click("hung"), click("hung-other")),
    ("/popups", click("popups")),
    ("/image", click("image")),
    ("/download", click("download")),
    ("/reset",),
]


def open_files(site: str) -> int:
    """Of this process, without what its threads that serve the site hold: some answer without end."""
    port, process = int(site.rpartition(":")[2]), psutil.Process()
    served = [c for c in process.net_connections() if c.laddr.port == port and c.raddr]
    return process.num_fds() - len(served)


def resident() -> float:
    """Of this process, in MB."""
    return psutil.Process().memory_info().rss / 2**20


@pytest.mark.slow
async def test_five_hundred_episodes_while_browsers_are_killed(preprocessor, site, tmp_path):
    """Each ends within its deadline with a `Stop`: that of its page, or infra_error where its browser was
    killed. Nothing is left of them, and memory stays where it was."""
    chance, n, killed = random.Random(0), 500, 0
    browser = replace(BROWSER, browsers=2, episodes=16, episode_seconds=180, **PATIENT)
    config = replace(CONFIG, browser=browser)
    memory: list[float] = []
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    files, tasks = open_files(site), len(asyncio.all_tasks())
    async with BrowserPool(config.browser) as pool:
        rollouts = rollouts_on(pool, preprocessor, tmp_path, config)

        async def one(i: int) -> Trajectory:
            path, *calls = ROUTES[i % len(ROUTES)]
            task = Task(f"{i}", "Do it.", site + path)
            trajectory = await rollouts.episode(task, 0, script(preprocessor, *calls), len(calls) + 1)
            memory.append(resident())
            return trajectory

        async def killer() -> None:
            nonlocal killed
            while True:
                await asyncio.sleep(chance.uniform(4, 12))
                pids = list(pool.pids.values())
                if pids:
                    with contextlib.suppress(psutil.NoSuchProcess):  # nobody has asked for a new one yet
                        psutil.Process(chance.choice(pids)).kill()
                        killed += 1

        killing = asyncio.ensure_future(killer())
        ended = await asyncio.gather(*map(one, range(n)))
        assert not killing.done(), killing.exception()
        killing.cancel()
        assert set(pool.loads) == {0}
        assert [c for b in pool.browsers if b is not None for c in b.contexts] == []
    assert len(ended) == n and killed > 3
    for i, trajectory in enumerate(ended):
        expected = Stop.SITE_ERROR if ROUTES[i % len(ROUTES)] == ("/reset",) else Stop.DONE
        allowed = {expected, Stop.INFRA_ERROR}
        assert trajectory.stop in allowed, (i, trajectory.stop, trajectory.error)
        assert trajectory.seconds < config.browser.episode_seconds + config.browser.exit_seconds
    lost = sum(trajectory.stop is Stop.INFRA_ERROR for trajectory in ended)
    assert 0 < lost <= 16 * killed
    left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    assert [child for child in left if child.status() != psutil.STATUS_ZOMBIE] == []
    assert open_files(site) <= files + 2 and len(asyncio.all_tasks()) <= tasks
    second, last = sum(memory[100:200]) / 100, sum(memory[-100:]) / 100
    print(f"\n{killed} browsers killed, {lost} episodes lost; {second:.0f} MB, then {last:.0f} MB")
    assert last <= 1.05 * second
