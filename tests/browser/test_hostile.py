"""Episodes on pages that do what live pages do: each has its feedback and its `Stop`, in real Chromium."""

import asyncio
import contextlib
import json
import random
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from hostile import HEIGHT, SPOTS, WIDTH, hits, point, serve
from pages import call, carry_out, contexts, do, loads, observe
from workers import Scored, make_worker

from minirl.browser.pool import EXIT_SECONDS, BrowserPool
from minirl.browser.readiness import READY_SECONDS
from minirl.browser.session import Session
from minirl.config import AgentConfig, BrowserConfig
from minirl.model import Preprocessor
from minirl.recipes import tiny
from minirl.run_folder import to_record
from minirl.types import BrowserFault, Prompt, Sample, Score, Stop, Task, Trajectory

pytestmark = pytest.mark.asyncio(loop_scope="module")

LIMITS = {
    "minirl.browser.session.START_ATTEMPTS": 2,
    "minirl.browser.session.FIRST_PAGE_SECONDS": 5.0,
    "minirl.browser.session.SCREENSHOT_SECONDS": 5.0,
    "minirl.browser.readiness.CALL_SECONDS": 2.0,
}
CONFIG = BrowserConfig(browsers=1, width=WIDTH, height=HEIGHT, private=True, action_seconds=12)
AGENT = AgentConfig(brief=True, response_tokens=1000, context_tokens=32768)
RUN = replace(tiny(), agent=AGENT, browser=CONFIG)
HOSTILE = tomllib.loads((Path(__file__).parents[1] / "data/hostile.toml").read_text())
NO_IMAGES = SimpleNamespace(put=lambda png: "")  # keeps no screenshot
CASES, ROUTES = HOSTILE["cases"], HOSTILE["routes"]


@pytest.fixture(autouse=True)
def limits(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorter than in use, but for what keeps a busy machine's browser from answering for seconds: forty
    windows, or a page that replaces itself without end (its tab is given up when no screenshot comes)."""
    params = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    if not CASES.get(params.get("case"), {}).get("patient") and not request.node.get_closest_marker("slow"):
        for name, value in LIMITS.items():
            monkeypatch.setattr(name, value)


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with serve() as address:
        yield address


def made(step: str, site: str = "") -> str:
    """The call that a step means: `click SPOT`, `scroll-at SPOT`, `write TEXT`, `wait {"seconds": 1}`."""
    name, _, rest = step.replace("SITE", site).partition(" ")
    match name:
        case "click" | "scroll-at":
            return call(name.removesuffix("-at"), point_2d=point(*SPOTS[rest]))
        case "write":
            return call("write", message=rest)
        case "done":
            return call("done", response="done")
    return call(name, **json.loads(rest or "{}"))


def script(preprocessor: Preprocessor, *calls: str) -> Callable[[int, Prompt, Session], Any]:
    """A policy that makes one call a turn, then is done."""

    async def policy(t: int, prompt: Prompt, session: Session) -> Sample:
        text = f"so</think><tool_call>{[*calls, made('done')][t]}</tool_call>"
        ids = preprocessor.tokenizer(text + preprocessor.tokenizer.eos_token)["input_ids"]
        return Sample(tuple(ids), (0.0,) * len(ids), "stop")

    return policy


async def titled(task: Task, session: Session, answer: str) -> Score:
    return Score(1.0, {"title": await session.do(session.page.title())})


@pytest.fixture
def play(pool: BrowserPool, preprocessor: Preprocessor, site: str) -> Callable[..., Any]:
    """`play("/two", "click SPOT", ...)`: the trajectory of an episode that takes these steps."""

    async def play(path: str, *steps: str, browsers: Any = pool, config: Any = RUN) -> Trajectory:
        worker = make_worker(config, preprocessor, None, browsers, NO_IMAGES, Scored(titled))
        task = Task(path, "Do it.", path if "://" in path else site + path)
        calls = [made(step, site) for step in steps]
        return await worker.episode(task, 0, script(preprocessor, *calls), len(calls) + 1)

    return play


def marked(value: Any, more: bool) -> Any:
    """A parameter, in the quick run or not."""
    return pytest.param(value, marks=pytest.mark.more) if more else value


@pytest.mark.parametrize("case", [marked(case, CASES[case].get("more", False)) for case in CASES])
async def test_the_agent_is_told_and_the_episode_goes_on(play, pool, site, case, monkeypatch):
    path, steps, title = CASES[case]["path"], CASES[case]["steps"], CASES[case]["title"]
    if CASES[case].get("patient"):
        monkeypatch.setattr(pool, "config", replace(CONFIG, action_seconds=45))
    trajectory = await play(path, *(step for step, _ in steps))
    assert (trajectory.stop, trajectory.valid) == (Stop.DONE, True), trajectory.error
    for turn, (_, expected) in zip(trajectory.turns, steps, strict=False):
        (line,) = turn.feedback
        unwanted, expected = expected.startswith("!"), expected.removeprefix("!").replace("SITE", site)
        assert (expected in line) is not unwanted, line
        assert len(line) <= 512
    assert trajectory.final_state["title"] == title


GIVEN_UP = READY_SECONDS + LIMITS["minirl.browser.readiness.CALL_SECONDS"]


@pytest.mark.parametrize(
    ("path", "spot", "seconds"),
    [
        ("/late-frame", "late-frame", 1.5),
        ("/leaving", "no-content", 1.5),
        pytest.param("/leaving", "never-page", GIVEN_UP + 1.5, marks=pytest.mark.more),
        ("/leaving", "fetch-and-leave", 1.5),
        ("/sandboxed", "sandboxed", 1.5),
        pytest.param("/ticking", "ticking", 1.5, marks=pytest.mark.more),
        ("/polling", "polling", 1.5),
    ],
)
async def test_nothing_is_waited_for_that_will_not_come(session, site, path, spot, seconds):
    """Neither now nor by the next call: the limits are far below the caps, which are the alternative. A page
    that never rests may wait for its cap once."""
    await session.start(site + path)
    never_rests = path in ("/ticking", "/polling")
    tab = 'press_keys {"keys": ["Tab"]}'
    late = 0
    for step in [*[tab] * (3 if never_rests else 1), f"click {spot}", 'hover {"point_2d": [900, 900]}']:
        begun = asyncio.get_running_loop().time()
        await carry_out(session, made(step))
        late += asyncio.get_running_loop().time() - begun >= seconds
    assert late <= never_rests


@pytest.mark.more
async def test_an_address_that_never_rests_is_not_waited_for_without_end(session, site):
    await session.start(f"{site}/bounce")
    line = await carry_out(session, made('wait {"seconds": 0.3}'))
    assert f"Page navigated to {site}/bounce?n=" in line


async def test_a_tab_that_closes_before_the_browser_has_answered_was_clicked_all_the_same(session, site):
    await session.start(site + "/popup")
    await carry_out(session, made("click popup-close"))
    closing, click = session.page, session.page.mouse.click

    async def click_and_lose(*args: Any, **options: Any) -> None:
        await click(*args, **options)
        await closing.close()
        await closing.title()  # raises, as the click does where the browser is slow to answer

    session.page.mouse.click = click_and_lose
    line = await carry_out(session, made("click close"))
    assert "The tab closed; the current one is at" in str(line)


async def test_scrolling_in_a_frame_leaves_the_page_around_it_and_an_endless_address_is_cut(session, site):
    """Else a page could use up the context, and that would count as the agent's fault."""
    await session.start(f"{site}/frame-scroll")
    await carry_out(session, made("scroll-at frame-scroll"))
    assert await session.page.evaluate("scrollY") == 0
    assert await session.page.frames[1].evaluate("scrollY") == HEIGHT / 2
    await session.goto(f"{site}/long-address")
    assert len(session.page.url) > 100_000 and len((await observe(session)).text) < 1000


async def test_closing_a_tab_when_all_have_closed_themselves(session, site):
    await session.start(f"{site}/popup")
    await carry_out(session, made("click popup"))
    popup = session.page
    await do(session, "switch_tab", tab_index=0)
    await do(session, "close_tab")
    await popup.close()
    with pytest.raises(BrowserFault, match="closed itself") as caught:
        await do(session, "close_tab")
    assert caught.value.stop is Stop.ENV_ERROR


LOAD = """tag => {
  document.querySelector("button").onclick = () => {
    const e = document.createElement(tag);
    e.onload = e.onerror = () => say("arrived");
    Object.assign(e, { rel: "stylesheet", src: "/data?ms=400", href: "/data?ms=400" });
    document.head.append(e);
  };
}"""


@pytest.mark.parametrize("tag", ["", "script", "link"])
async def test_what_an_action_asked_for_is_in_the_screenshot(session, site, tag):
    """Data, and the scripts and styles of what is drawn only then, as editors are."""
    await session.start(f"{site}/slow-fetch")
    if tag:
        await session.page.evaluate(LOAD, tag)
    await session.arm(SPOTS["fetch"])
    await session.page.mouse.click(*SPOTS["fetch"])
    await session.settle()
    assert await session.page.inner_text("#out") == "arrived"


@pytest.mark.parametrize("path", ["/reset", *(marked(path, True) for path in ("/loop", "/empty", "/slow"))])
async def test_a_first_page_that_does_not_open_is_the_sites_error(play, path):
    trajectory = await play(path)
    assert (trajectory.stop, trajectory.valid, trajectory.turns) == (Stop.SITE_ERROR, False, ())
    assert "did not open: " in trajectory.error


async def test_a_file_as_the_first_page_is_named_and_asked_for_once(play, site):
    before = hits["/file.bin"]
    trajectory = await play("/file.bin")
    assert trajectory.stop is Stop.SITE_ERROR and hits["/file.bin"] == before + 1
    assert trajectory.error == f"{site}/file.bin did not open: it is a file, not a page"


async def test_a_password_in_an_address_is_told_nowhere(play, site):
    """Whether the page opens, moves on or fails: neither to the agent nor in a dump."""
    address = site.replace("//", "//ada:secret@")
    steps = ("click popup", 'switch_tab {"tab_index": 0}', 'goto_url {"url": "/reset"}')
    for path, stop in (("/popup", Stop.DONE), ("/reset", Stop.SITE_ERROR)):
        trajectory = await play(address + path, *steps)
        told = to_record(replace(trajectory, task=replace(trajectory.task, id=path)))
        assert trajectory.stop is stop and "secret" not in json.dumps(told)
        if told["turns"]:
            assert f"({site}/popup)" in told["turns"][1]["feedback"][0]


async def test_a_first_page_with_an_error_status_is_the_agents_to_deal_with(play):
    trajectory = await play("/500", 'goto_url {"url": "SITE/two"}')
    assert trajectory.stop is Stop.DONE and trajectory.final_state["title"] == "Two"


async def test_a_crash_ends_the_episode(pool, site, preprocessor):
    async def crash(t: int, prompt: Prompt, session: Session) -> Sample:
        crashing = asyncio.ensure_future((await session.tab()).cdp.send("Page.crash"))
        crashing.add_done_callback(lambda crashed: crashed.exception())
        return await script(preprocessor, made("click crash"))(0, prompt, session)

    worker = make_worker(RUN, preprocessor, None, pool, NO_IMAGES, Scored(titled))
    trajectory = await worker.episode(Task("crash", "Do it.", f"{site}/crash"), 0, crash, 3)
    assert (trajectory.stop, trajectory.valid) == (Stop.ENV_ERROR, False), trajectory.error


async def test_private_addresses_are_refused_wherever_they_come_from(play, site):
    """Typed, behind a link, and behind a redirect. The site itself has a name, and is known to be ours. A
    list of domains denies others, a first page among them."""
    config = replace(RUN, browser=replace(CONFIG, private=False, deny=("shop.test",)))
    steps = ('goto_url {"url": "SITE/secret"}', "click private", "go_back", "click private-redirect")
    steps += ('goto_url {"url": "http://www.shop.test/"}',)
    async with BrowserPool(config.browser, {"shop-9.test": port_of(site)}) as pool:
        trajectory = await play("http://shop-9.test/private", *steps, browsers=pool, config=config)
        typed, linked, _, redirected, denied = (turn.feedback[0] for turn in trajectory.turns[:5])
        start = await play("https://shop.test/", browsers=pool, config=config)
    assert start.stop is Stop.SITE_ERROR and "denied domains" in start.error
    assert denied.endswith("www.shop.test is on the list of denied domains.")
    assert trajectory.stop is Stop.DONE and hits["/secret"] == 0 and hits["/to-private"] == 1
    assert typed == "Failed: `goto_url` execution failed: 127.0.0.1 is a private address."
    for line in (linked, redirected):
        assert "The page that it leads to could not be loaded (127.0.0.1 is a private address)." in line


async def test_a_sealed_pool_reaches_nothing_but_its_sites(site):
    sites = {"shop-9.test": port_of(site)}
    async with BrowserPool(CONFIG, sites, sealed=True) as pool, pool.session() as session:
        await session.start("http://shop-9.test/two")
        for url in (f"{site}/two", "http://localhost/", "https://example.org/"):
            with pytest.raises(Exception, match="ERR_NAME_NOT_RESOLVED"):
                await session.goto(url)


def port_of(site: str) -> int:
    return int(site.rpartition(":")[2])


def open_files(site: str) -> int:
    """Of this process, without what its threads that serve the site hold: some answer without end."""
    process = psutil.Process()
    served = [c for c in process.net_connections() if c.laddr.port == port_of(site) and c.raddr]
    return process.num_fds() - len(served)


@pytest.mark.slow
async def test_five_hundred_episodes_while_browsers_are_killed(play, site):
    """Each ends within its deadline with a `Stop`: that of its page, or infra_error where its browser was
    killed. Nothing is left of them, and memory stays where it was."""
    chance, n, killed = random.Random(0), 500, 0
    browser = replace(CONFIG, browsers=2, episodes=16, episode_seconds=180, action_seconds=45)
    config = replace(RUN, browser=browser)
    memory: list[float] = []
    running = asyncio.Semaphore(browser.episodes)
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    files, tasks = open_files(site), len(asyncio.all_tasks())
    async with BrowserPool(config.browser) as pool:

        async def one(i: int) -> Trajectory:
            async with running:
                trajectory = await play(*ROUTES[i % len(ROUTES)], browsers=pool, config=config)
            memory.append(psutil.Process().memory_info().rss / 2**20)
            return trajectory

        async def killer() -> None:
            nonlocal killed
            while True:
                await asyncio.sleep(chance.uniform(4, 12))
                pids = [slot.pid for slot in pool.slots if slot.pid is not None]
                if pids:
                    with contextlib.suppress(psutil.NoSuchProcess):  # nobody has asked for a new one yet
                        psutil.Process(chance.choice(pids)).kill()
                        killed += 1

        killing = asyncio.ensure_future(killer())
        ended = await asyncio.gather(*map(one, range(n)))
        assert not killing.done(), killing.exception()
        killing.cancel()
        assert set(loads(pool)) == {0} and contexts(pool) == 0
    assert len(ended) == n and killed > 3
    for i, trajectory in enumerate(ended):
        expected = Stop.SITE_ERROR if ROUTES[i % len(ROUTES)] == ["/reset"] else Stop.DONE
        allowed = {expected, Stop.INFRA_ERROR}
        assert trajectory.stop in allowed, (i, trajectory.stop, trajectory.error)
        assert trajectory.seconds < config.browser.episode_seconds + EXIT_SECONDS
    lost = sum(trajectory.stop is Stop.INFRA_ERROR for trajectory in ended)
    assert 0 < lost <= browser.episodes * killed
    left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    assert [child for child in left if child.status() != psutil.STATUS_ZOMBIE] == []
    assert open_files(site) <= files + 2 and len(asyncio.all_tasks()) <= tasks
    assert sum(memory[-100:]) <= 1.05 * sum(memory[100:200])
