"""The page in a real browser against the interpreter, and the server around it."""

import http.client
import random
import socket
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page
from playwright.async_api import Error as PlaywrightError
from shopping import PAGES, SHOP, choose, press
from walking import completed, visit

from minirl.browser import executable
from minirl.types import Task
from minirl.worlds.fsm_file import Fsm, load_fsm
from minirl.worlds.generate import make_site
from minirl.worlds.interpreter import State, World, apply, enabled, initial_state, parameter_values
from minirl.worlds.looks import USUAL
from minirl.worlds.render import SiteServer, load_world, read_state, render, save_world, sites_of
from minirl.worlds.search import Step
from minirl.worlds.shop import make_shop, make_tasks
from minirl.worlds.solutions import solution_of
from minirl.worlds.widgets import action, condition, control, effect, gui_steps

Json = dict[str, Any]
in_browser = pytest.mark.asyncio(loop_scope="module")  # one for the whole module


async def do(page: Page, world: World, *steps: Step) -> None:
    for step in steps:
        for operation in gui_steps(world, await read_state(page), step):
            await page.click(operation["selector"], timeout=3000)


def step(id: str, **params: str) -> Step:
    return Step(action_id=id, params=params)


OPENED = [*choose(product="cedar", category="mugs"), press("PRODUCT_CATEGORY")]
RED, BLACK = (step("COLOUR_SIZE_CHOOSE_COLOUR", colour=colour) for colour in ("red", "black"))


def one_page(*actions: Json, **schema: str) -> Fsm:
    page = {"id": "P", "signature_schema": schema, "actions": list(actions)}
    return load_fsm(completed({"meta": {"initial_page_id": "P"}, "pages": [page]}))


VALUES = [1, True, False, None, "1", "", "\N{ROCKET}", [1], [], {"a": 1}, {"b": [True]}, 0, -0.5, 2.5]
VALUES.append("{ANY}")


CONDITIONS: list[tuple[str, Any]] = [
    *((cond, value) for cond in ("eq", "neq") for value in [*VALUES, 1.0]),
    *((cond, value) for cond in ("gt", "gte", "lt", "lte", "length_gt") for value in (0, 1, 2.5)),
    *((cond, VALUES[k::3]) for cond in ("in", "oneof") for k in range(3)),
    *(("exists", None), ("not_null", None)),
]


def laboratory() -> World:
    """Two pages that use every condition and every effect, on values that compare unlike in Python
    and JavaScript if one is careless: 1 and true, "1", 1.0, null, texts outside the basic plane."""
    deep = {"text": "string", "n": "integer>=1"}
    one = {"n": "number", "flag": "boolean", "list": "array<string>", "any": "object|null", "deep": deep}
    schemas = {"ONE": one, "TWO": {"n": "integer", "list": "array<string>|null", "deep": deep}}
    fields = ["n", "flag", "list", "any", "deep.text", "deep.n", "missing.field"]
    ops = ("set", "append_unique", "remove")
    effects = [effect(op, field, value_ref="{v}") for op in ops for field in fields]
    effects += [effect(op, field) for op in ("clear", "toggle", "inc") for field in fields]
    effects += [effect("inc", "n", by=-1.5), effect("set", "n", value_expr="append($.list, 1)")]
    pages = []
    for here, there in (("ONE", "TWO"), ("TWO", "ONE")):
        rng, actions = random.Random(here), []
        for i, written in enumerate(effects * 4):
            guard = condition(rng.choice(fields), *CONDITIONS[(7 * i) % len(CONDITIONS)])
            gates = [guard] if i >= len(effects) else []
            target = there if i % 5 == 0 else ""
            made = action(f"{here}_{i}", here, control("button", f"#a{i}"), target, gates, [written])
            actions.append(made | {"parameters": {"v": "{ANY}", "kind": "fixed"}})
        pages.append({"id": here, "signature_schema": schemas[here], "actions": actions})
    return World("laboratory", load_fsm({"meta": {"initial_page_id": "ONE"}, "pages": pages}))


def random_walk(world: World, length: int, seed: int) -> tuple[list[Any], list[Any]]:
    """Dispatches, valid and not, and what the interpreter makes of each: [accepted, page, signature]."""
    rng = random.Random(seed)
    everything = [(id, page.actions[id]) for page in world.fsm.pages.values() for id in page.actions]
    state, calls, expected = initial_state(world.fsm), [], []
    while len(calls) < length:
        id, action = rng.choice(everything)
        if rng.random() < 0.9:  # mostly something that this page knows
            id = rng.choice(list(world.fsm.pages[state.page].actions) or [id])
            action = world.fsm.pages[state.page].actions.get(id, action)
        if action.source == state.page and action.bind is not None:
            params: dict[str, Any] = dict(rng.choice(parameter_values(world, state, id) or [{}]))
        else:
            params = {name: rng.choice(VALUES) for name in action.open_parameters}
        if rng.random() < 0.1:
            params[rng.choice([*action.parameters, "unknown"])] = rng.choice([*VALUES, "fixed", "slider"])
        if rng.random() < 0.05:
            params.pop(next(iter(params), ""), None)
        accepted = enabled(world.fsm, state, id, params)
        if accepted:
            state = apply(world.fsm, state, id, params)
        calls.append([id, params])
        expected.append([accepted, state.page, state.signature])
    return calls, expected


LABORATORY = laboratory()
GENERATED = make_site("shop", 11, "medium")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with visit(SHOP, LABORATORY, GENERATED) as page:
        yield page.context.browser


@pytest_asyncio.fixture(loop_scope="module")
async def page(browser: Browser) -> AsyncIterator[Page]:
    """A tab of its own, on the shop."""
    page = await browser.new_page(viewport={"width": 480, "height": 360})
    await page.goto("http://shop-7.test/")
    yield page
    await page.close()


@pytest.mark.parametrize(
    ("world", "walks", "length"),
    [
        (SHOP, 8, 15),
        pytest.param(LABORATORY, 3, 500, marks=pytest.mark.more),
        pytest.param(GENERATED, 1, 2000, marks=pytest.mark.more),
    ],
    ids=["shop", "laboratory", "generated"],
)
@in_browser
async def test_the_page_is_the_interpreter(page: Page, world: World, walks: int, length: int):
    script = """calls => calls.map(([id, params]) => {
        const accepted = window.minirl.dispatch(id, params);
        const { page, signature } = window.minirl.state();
        return [accepted, page, signature];
    })"""
    accepted = []
    await page.goto(f"http://{world.name}.test/")
    for seed in range(walks):
        calls, expected = random_walk(world, length, seed)
        await page.reload()
        got = await page.evaluate(script, calls)
        for call, ours, theirs in zip(calls, expected, got, strict=True):
            assert theirs[0] == ours[0], call
            assert State(*theirs[1:]).key() == State(*ours[1:]).key(), call
        accepted += [ours[0] for ours in expected]
    assert 0.2 < sum(accepted) / len(accepted) < 0.95  # the walks try both kinds


@in_browser
async def test_disabled_buttons_do_nothing_and_choices_can_be_changed(page: Page):
    await do(page, SHOP, *OPENED)
    await page.click("#colour-size-next", force=True)
    assert (await read_state(page)).page == "COLOUR_SIZE"
    await do(page, SHOP, RED, BLACK)
    names = "tiles => tiles.map(t => t.className)"
    assert await page.eval_on_selector_all("[aria-pressed=true]", names) == ["row data-id-black"]
    await page.click("#colour-size-next", force=True)
    assert (await read_state(page)).page == "COLOUR_SIZE"
    await do(page, SHOP, *choose(size="tall"), press("COLOUR_SIZE"))
    assert (await read_state(page)).signature["colour"] == "black"


@in_browser
async def test_history_reload_and_a_hand_written_hash(page: Page):
    await do(page, SHOP, *OPENED, RED)
    there = await read_state(page)
    await page.evaluate("location.hash = 'DONE'")
    await page.wait_for_url("**/#COLOUR_SIZE")
    assert await read_state(page) == there
    await page.goto("http://shop-7.test/#QUANTITY")  # the same document, so only its hash changes
    assert (await read_state(page)).page == "COLOUR_SIZE"
    for _ in range(3):  # two entries for the two hashes above, and one for the step
        await page.go_back()
    assert await read_state(page) == State(PAGES[0], {"product": "cedar", "category": "mugs"})
    assert await page.title() == "Product category"
    await page.go_forward()
    assert await read_state(page) == there  # with the colour that was chosen in place
    await page.reload()
    assert await read_state(page) == initial_state(SHOP.fsm)
    assert page.url.endswith("#PRODUCT_CATEGORY")


LAYOUT = Path(__file__).with_name("layout.js").read_text(encoding="utf-8")
EVERYWHERE = (*range(6), 28, *range(50001, 50004), *range(90001, 90004))


@pytest.mark.parametrize(
    ("serif", "numbers"),
    [
        (False, (28, 50001)),  # the first has pages that go on by themselves
        *(pytest.param(serif, EVERYWHERE, marks=pytest.mark.more) for serif in (False, True)),
    ],
)
@in_browser
async def test_every_page_fits_its_window_no_word_is_cut_off_and_nothing_ever_moves(serif, numbers):
    """Shops for training and others, each walked along its first order with the mouse: the page is in the
    interpreter's state after every step."""
    shops = [make_shop(n, serif) for n in numbers]
    letters = set()
    async with visit(*shops) as page:
        for shop in shops:
            (task,), layouts = make_tasks(shop, 1), {}
            await page.goto(task.start_url)
            state = initial_state(shop.fsm)
            for todo in [None, *solution_of(task, shop)]:
                if todo is not None:
                    await do(page, shop, todo)
                    state = apply(shop.fsm, state, todo.action_id, todo.params)
                    assert await page.title() == state.page.capitalize().replace("_", " ")
                    assert page.url == f"{task.start_url}#{state.page}"
                assert await read_state(page) == state
                layout, name = await page.evaluate(LAYOUT), state.page
                assert layout["page"] == [480, 360]
                assert layout["cut"] == [], (shop.name, name)
                for x, y, width, height in layout["boxes"].values():
                    assert x >= 0 and y >= 0 and x + width <= 480 and y + height <= 360
                for inner, outer in layout["inner"]:
                    assert inner[0] >= outer[0] and inner[0] + inner[2] <= outer[0] + outer[2]
                    assert inner[1] >= outer[1] and inner[1] + inner[3] <= outer[1] + outer[3]
                seen = layouts.setdefault(name, layout)
                assert (layout["boxes"], layout["inner"]) == (seen["boxes"], seen["inner"]), name
                for control, box in shop.style["places"].get(name, {}).items():
                    names = {control, f"data-id-{control}", control.upper()}
                    (found,) = [box for key, box in layout["boxes"].items() if names & {*key.split()}]
                    assert found == pytest.approx(box, abs=0.1), (shop.name, control)
                letters.add(layout["font"])
            assert list(layouts) == list(shop.fsm.pages)
            assert "Thank you" in await page.inner_text("main")
    assert {names.split(",")[0] for names in letters} == {'"Shop Serif"' if serif else '"Shop Sans"'}


async def screenshot(page: Page) -> bytes:
    """The page as PNG. Chromium on a busy machine may refuse a page that has only just opened."""
    for _ in range(5):
        with suppress(PlaywrightError):
            return await page.screenshot()
        await page.wait_for_timeout(200)
    return await page.screenshot()


@in_browser
@pytest.mark.more
async def test_a_shop_brings_its_letters_which_are_hinted_slightly(monkeypatch):
    """Its picture is the same whatever letters the system has; without its own it would not be. Hinted
    fully, as Chromium without a screen does it, the small model reads fewer of them."""
    flags, pictures = executable.FLAGS, []
    for own, behind, more in [
        ('"Shop Sans", ', "serif", []),
        ('"Shop Sans", ', "monospace", ["--font-render-hinting=slight"]),
        ("", "monospace", []),
        ('"Shop Sans", ', "serif", ["--font-render-hinting=full"]),
    ]:
        monkeypatch.setitem(USUAL["fonts"], "sans", own + behind)
        monkeypatch.setattr(executable, "FLAGS", [*flags, *more])  # the last one counts
        async with visit(SHOP) as page:
            pictures.append(await screenshot(page))
    usual, again, foreign, full = pictures
    assert usual == again != foreign
    assert usual != full or sys.platform != "linux"


@in_browser
async def test_one_state_is_one_picture(page: Page):
    pictures = set()
    for detour in ([], [RED], [RED, BLACK, press("COLOUR_SIZE", "back"), OPENED[-1]]):
        await page.reload()
        await do(page, SHOP, *OPENED, *detour, BLACK)
        pictures.add(await screenshot(page))
    await page.mouse.move(240, 150)
    assert pictures == {await screenshot(page)}
    await do(page, SHOP, RED)
    assert await screenshot(page) not in pictures


@in_browser
async def test_hostile_words_are_only_words():
    attack = "</script><script>window.hit=1</script><img src=x onerror='window.hit=1'>\u2028&amp;<!--"
    put = action(f"{attack}_{attack}", attack, control("button", "#go"))
    put |= {"parameters": {"it": attack}, "effects": [effect("set", "it", value_ref="{it}")]}
    pick = action(
        "PICK", attack, control("row", "#things .row", "it", {"param": "it", "collection": "things"})
    )
    page = {"id": attack, "signature_schema": {"it": "string|null"}, "actions": [put, pick]}
    fsm = load_fsm({"meta": {"initial_page_id": attack, "terminal_pages": [attack]}, "pages": [page]})
    things = ({"id": "thing", "title": attack, "note": attack},)
    world = World(name="hostile", fsm=fsm, data={"things": things}, style={"messages": {attack: attack}})
    assert b"<img" not in render(world)
    async with visit(world) as page:
        await page.click("#go")
        assert (await read_state(page)).signature == {"it": attack}
        assert await page.text_content(".title") == attack
        assert await page.text_content(".crumbs") == attack
        assert await page.evaluate("window.hit") is None
        assert await page.locator("img").count() == 0


def ask(port: int, host: str, path: str = "/") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request("GET", path, headers={"Host": host})
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_the_server_answers_by_host():
    worlds = [SHOP, make_shop(1, serif=True), replace(make_shop(2), html="its own")]
    with SiteServer(worlds) as server:
        port = server.server_port
        assert server.sites == dict.fromkeys(("shop-7.test", "shop-1-serif.test", "shop-2.test"), port)
        assert ask(port, "shop-7.test") == (200, render(worlds[0]))
        assert ask(port, "SHOP-1-serif.test:80", "/?q=1") == (200, render(worlds[1]))
        assert ask(port, "shop-2.test") == (200, b"its own")
        assert ask(port, "shop-7.test", "/etc/passwd")[0] == ask(port, "127.0.0.1")[0] == 404
    with pytest.raises(ValueError, match="same name"):
        SiteServer([SHOP, SHOP])
    with pytest.raises(ValueError, match="same name, my-site"):
        SiteServer([Path("a/My_site"), Path("b/my-site")])


def test_the_files_of_a_folder_are_served_and_none_beside_it(tmp_path):
    site = tmp_path / "site"
    (site / "icons").mkdir(parents=True)
    (site / "icons/a.svg").write_bytes(b"<svg/>")
    (tmp_path / "secret").write_bytes(b"secret")
    (site / "link").symlink_to(tmp_path / "secret")
    with SiteServer([SHOP], {"pages.test": site}) as server:
        port = server.server_port
        assert server.sites.keys() == {"shop-7.test", "pages.test"}
        assert ask(port, "pages.test", "/icons/a.svg?v=1") == (200, b"<svg/>")
        gone = ["/", "/icons", "/icons/b.svg", "/../secret", "/%2e%2e/secret", "/link", f"/{tmp_path}/secret"]
        for path in gone:
            assert ask(port, "pages.test", path)[0] == 404, path
        assert ask(port, "shop-7.test", "/icons/a.svg")[0] == 404


TYPE = {"op": "type_text", "selector": "#a", "text": "x"}


@pytest.mark.parametrize(
    ("procedure", "reason"),
    [
        ([], "P: it: '' must be like '#some-id'"),
        ([{"op": "click", "selector": "button"}], "'button' must be like '#some-id' or '.some-class' to be"),
        ([TYPE, TYPE], "P: it: no widget has the procedure type_text, type_text"),
    ],
)
def test_actions_that_cannot_be_drawn_are_refused(procedure, reason):
    with pytest.raises(ValueError, match=reason):
        render(World(name="x", fsm=one_page({"id": "it", "gui_procedure": procedure})))


def test_a_client_that_hangs_up_is_no_news(capfd):
    """An episode that is cancelled while its page loads must not print a traceback into the run's output."""
    with SiteServer([SHOP]) as server:
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", server.server_port)) as client:
                client.sendall(b"GET / HTTP/1.1\r\nHost: shop-7.test\r\n\r\n")
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset
    assert capfd.readouterr().err == ""


def test_a_built_page_that_is_a_link_is_refused(tmp_path):
    """It may lead to any file of this machine, which models would then be shown."""
    save_world(make_shop(7), tmp_path)
    (tmp_path / "style.json").write_text('{"look": "built"}')
    (tmp_path / "index.html").unlink()
    (tmp_path / "index.html").symlink_to("/etc/hostname")
    with pytest.raises(ValueError, match="index.html is a link: put the page itself there"):
        load_world(tmp_path)


def test_a_sites_folder_must_keep_its_name(tmp_path):
    """Its tasks begin at shop.test, and it would be served as copy.test."""
    save_world(make_shop(7), tmp_path / "shop")
    save_world(make_shop(7), tmp_path / "copy")
    task = Task("t", "Go.", "http://shop.test/", {}, {"folder": str(tmp_path / "shop")})
    assert sites_of([task]) == [tmp_path / "shop"]
    with pytest.raises(ValueError, match="task t is on shop.test: .*copy must have its name"):
        sites_of([replace(task, meta={"folder": str(tmp_path / "copy")})])


@pytest.mark.parametrize("folder", [7, None, "/nowhere", ["a"]])
def test_a_task_whose_site_is_in_no_folder(folder):
    task = Task("t", "Go.", "http://a.test/", {}, {"folder": folder})
    with pytest.raises(ValueError, match="task t: there is no site in"):
        sites_of([task])
