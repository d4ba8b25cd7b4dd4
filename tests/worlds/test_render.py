"""The page in a real browser against the interpreter, and the server around it."""

from __future__ import annotations

import http.client
import json
import random
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import Page, async_playwright

from minirl.browser.executable import launch_options
from minirl.worlds.interpreter import State, World, apply, enabled, initial_state, load_fsm, parameter_values
from minirl.worlds.render import SiteServer, read_state, render
from minirl.worlds.search import Step, solve
from minirl.worlds.shop import make_shop, make_tasks
from minirl.worlds.widgets import gui_steps

LIBRARY = Path(__file__).parents[1] / "data" / "lending_library.fsm.json"
SIZE = {"width": 480, "height": 360}


@asynccontextmanager
async def visit(*worlds: World) -> AsyncIterator[Page]:
    """A tab in a fresh browser for which every world is online, on the first world's first page."""
    with SiteServer(worlds) as server:
        async with async_playwright() as playwright:
            rules = f"--host-resolver-rules=MAP *.test 127.0.0.1:{server.port}"
            browser = await playwright.chromium.launch(**launch_options([rules, "--no-proxy-server"]))
            page = await browser.new_page(viewport=SIZE)
            await page.goto(f"http://{server.hosts[0]}/")
            yield page
            await browser.close()


async def do(page: Page, world: World, steps: list[Step]) -> None:
    """Clicks its way through the steps with the mouse."""
    for step in steps:
        for operation in gui_steps(world, await read_state(page), step):
            await page.click(operation["selector"], timeout=3000)


def clickable_library() -> World:
    """The lending library with every procedure cut down to one click, which is what can be drawn."""
    document = json.loads(LIBRARY.read_text())
    for page in document["pages"]:
        for action in page["actions"]:
            action["gui_procedure"] = [{"op": "click", "selector": f"#{action['id']}"}]
    return World("library", load_fsm(document))


VALUES = [
    1,
    True,
    False,
    None,
    "1",
    "",
    "\N{ROCKET}",
    [1],
    [],
    {"a": 1},
    {"b": [True]},
    0,
    -0.5,
    2.5,
    "{ANY}",
]


def every_condition() -> list[tuple[str, Any]]:
    return [
        *((cond, value) for cond in ("eq", "neq") for value in [*VALUES, 1.0]),
        *((cond, value) for cond in ("gt", "gte", "lt", "lte", "length_gt") for value in (0, 1, 2.5)),
        *((cond, VALUES[k::3]) for cond in ("in", "oneof") for k in range(3)),
        ("exists", None),
        ("not_null", None),
    ]


def laboratory() -> World:
    """Two pages that use every condition and every effect, on values that compare unlike in Python
    and JavaScript if one is careless: 1 and true, "1", 1.0, null, texts outside the basic plane."""
    schema = {
        "n": "number",
        "flag": "boolean",
        "list": "array<string>",
        "any": "object|null",
        "deep": {"text": "string", "n": "integer>=1"},
    }
    conditions = every_condition()
    paths = ["$.n", "$.flag", "$.list", "$.any", "$.deep.text", "$.deep.n", "$.missing.field"]
    effects = [
        *({"op": "set", "path": path, "value_ref": "{v}"} for path in paths),
        *({"op": op, "path": path} for op in ("clear", "toggle", "inc") for path in paths),
        *({"op": "append_unique", "path": path, "value_ref": "{v}"} for path in paths),
        *({"op": "remove", "path": path, "value_ref": "{v}"} for path in paths),
        {"op": "inc", "path": "$.n", "by": -1.5},
        {"op": "set", "path": "$.n", "value_expr": "append($.list, 1)"},
    ]
    pages = []
    for here, there in (("ONE", "TWO"), ("TWO", "ONE")):
        rng = random.Random(here)
        actions = []
        for i, effect in enumerate(effects * 4):
            cond, value = conditions[(7 * i) % len(conditions)]
            guard = [{"path": rng.choice(paths), "cond": cond, "value": value}] if i >= len(effects) else []
            moves = i % 5 == 0
            actions.append(
                {
                    "id": f"{here}_{i}",
                    "from": here,
                    "to": there if moves else here,
                    "is_navigation": moves,
                    "parameters": {"v": "{ANY}", "kind": "fixed"},
                    "preconditions": guard,
                    "effects": [effect],
                    "gui_procedure": [{"op": "click", "selector": f"#a{i}"}],
                }
            )
        own = (
            schema
            if here == "ONE"
            else {"n": "integer", "list": "array<string>|null", "deep": schema["deep"]}
        )
        pages.append({"id": here, "signature_schema": own, "actions": actions})
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
            params: dict[str, Any] = dict(rng.choice(parameter_values(world, state, id)))
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


async def test_every_condition_on_every_value():
    """Sets a field to each value in turn and asks which of the guarded actions the page accepts."""
    guarded = [
        {"id": f"PROBE_{i}", "preconditions": [{"path": "$.deep.it", "cond": cond, "value": value}]}
        for i, (cond, value) in enumerate(every_condition())
    ]
    put = {"op": "set", "path": "$.deep.it", "value_ref": "{it}"}
    actions = [{"id": "PUT", "parameters": {"it": "{ANY}"}, "effects": [put]}, *guarded]
    for action in actions:
        action["gui_procedure"] = [{"op": "click", "selector": f"#{action['id']}"}]
    pages = [{"id": "P", "signature_schema": {}, "actions": actions}]
    world = World("probes", load_fsm({"meta": {"initial_page_id": "P"}, "pages": pages}))
    state = initial_state(world.fsm)
    ids = [action["id"] for action in guarded]
    async with visit(world) as page:
        for value in [*VALUES, None]:  # at first the field is missing altogether
            got = await page.evaluate("ids => ids.map((id) => window.minirl.dispatch(id, {}))", ids)
            assert got == [enabled(world.fsm, state, id, {}) for id in ids], state
            state = apply(world.fsm, state, "PUT", {"it": value})
            assert await page.evaluate("(it) => window.minirl.dispatch('PUT', { it })", value)


@pytest.mark.parametrize(
    ("world", "walks", "length"),
    [(make_shop(0), 20, 15), (clickable_library(), 3, 100), (laboratory(), 3, 500)],
    ids=["shop", "library", "laboratory"],
)
async def test_the_page_is_the_interpreter(world: World, walks: int, length: int):
    script = """calls => calls.map(([id, params]) => {
        const accepted = window.minirl.dispatch(id, params);
        const { page, signature } = window.minirl.state();
        return [accepted, page, signature];
    })"""
    accepted = []
    async with visit(world) as page:
        for seed in range(walks):
            calls, expected = random_walk(world, length, seed)
            await page.reload()
            got = await page.evaluate(script, calls)
            for call, ours, theirs in zip(calls, expected, got, strict=True):
                assert theirs[0] == ours[0], call
                assert State(*theirs[1:]).key() == State(*ours[1:]).key(), call
            accepted += [ours[0] for ours in expected]
    assert 0.2 < sum(accepted) / len(accepted) < 0.95  # the walks try both kinds


async def test_a_task_is_done_with_the_mouse():
    world = make_shop(1)
    task = make_tasks(world, 1, 0, seed=4)[0][0]
    state = initial_state(world.fsm)
    async with visit(world) as page:
        for step in solve(world, task.goal) or []:
            await do(page, world, [step])
            state = apply(world.fsm, state, step.action_id, step.params)
            assert await read_state(page) == state
            assert await page.title() == state.page.capitalize()
            assert page.url == f"http://shop-1.test/#{state.page}"
        assert state.page == "DONE"
        assert "Thank you" in await page.inner_text("main")


async def test_disabled_buttons_do_nothing_and_choices_can_be_changed():
    world = make_shop(0)
    async with visit(world) as page:
        await do(page, world, OPENED)
        await page.click("#product-continue", force=True)
        assert (await read_state(page)).page == "PRODUCT"
        colours = ["red", "blue"]
        await do(page, world, [Step("PRODUCT_CHOOSE_COLOUR", {"colour": colour}) for colour in colours])
        pressed = await page.eval_on_selector_all(
            "[aria-pressed=true]", "tiles => tiles.map(t => t.className)"
        )
        assert pressed == ["row data-id-blue"]
        await page.click("#product-continue", force=True)
        assert (await read_state(page)).page == "PRODUCT"
        await do(page, world, [Step("PRODUCT_CHOOSE_SIZE", {"size": "giant"}), Step("PRODUCT_CONTINUE")])
        assert (await read_state(page)).signature["colour"] == "blue"


async def test_history_reload_and_a_hand_written_hash():
    world = make_shop(0)
    async with visit(world) as page:
        await do(page, world, OPENED)
        await do(page, world, [Step("PRODUCT_CHOOSE_COLOUR", {"colour": "red"})])
        there = await read_state(page)
        await page.evaluate("location.hash = 'DONE'")
        await page.wait_for_url("**/#PRODUCT")
        assert await read_state(page) == there
        await page.goto("http://shop-0.test/#CHECKOUT")  # the same document, so only its hash changes
        assert (await read_state(page)).page == "PRODUCT"
        for _ in range(3):  # two entries for the two hashes above, and one for the step
            await page.go_back()
        assert await read_state(page) == State("CATEGORY", {"category": "vases", "product": None})
        assert await page.title() == "Category"
        await page.go_forward()
        assert await read_state(page) == there  # with the colour that was chosen in place
        await page.reload()
        assert await read_state(page) == initial_state(world.fsm)
        assert page.url.endswith("#HOME")


OPENED = [
    Step("HOME_OPEN_CATEGORY", {"category": "vases"}),
    Step("CATEGORY_OPEN_PRODUCT", {"product": "grove"}),
]

LAYOUT = """() => {
    const box = (e) => { const r = e.getBoundingClientRect(); return [r.x, r.y, r.width, r.height]; };
    const found = [...document.querySelectorAll("button, h1, h2, main, .grid")];
    return {
        boxes: Object.fromEntries(found.map((e) => [e.id + " " + e.className + " " + e.tagName, box(e)])),
        inner: [...document.querySelectorAll("button *")].map((e) => [box(e), box(e.closest("button"))]),
        cut: [...document.querySelectorAll("button, .title, .crumbs, h1, main, .grid")]
            .filter((e) => e.scrollWidth > e.clientWidth || e.scrollHeight > e.clientHeight)
            .map((e) => e.outerHTML.slice(0, 80)),
        page: [document.documentElement.scrollWidth, document.documentElement.scrollHeight],
    };
}"""


async def test_every_page_fits_its_window_and_nothing_ever_moves():
    world = make_shop(2)
    tasks, _ = make_tasks(world, 2, 0, seed=0)
    layouts: dict[str, dict[str, Any]] = {}
    async with visit(world) as page:
        for task in tasks:
            await page.goto(task.start_url)
            await page.reload()
            for step in [None, *(solve(world, task.goal) or [])]:
                if step is not None:
                    await do(page, world, [step])
                layout = await page.evaluate(LAYOUT)
                assert layout["page"] == [480, 360]
                assert layout["cut"] == []
                for x, y, width, height in layout["boxes"].values():
                    assert x >= 0 and y >= 0 and x + width <= 480 and y + height <= 360
                for inner, outer in layout["inner"]:
                    assert inner[0] >= outer[0] and inner[0] + inner[2] <= outer[0] + outer[2]
                    assert inner[1] >= outer[1] and inner[1] + inner[3] <= outer[1] + outer[3]
                name = (await read_state(page)).page
                seen = layouts.setdefault(name, layout)
                assert (layout["boxes"], layout["inner"]) == (seen["boxes"], seen["inner"]), name
    assert len(layouts) == 5
    tiles = [box for layout in layouts.values() for name, box in layout["boxes"].items() if "data-id" in name]
    assert min(min(width, height) for _, _, width, height in tiles) > 60


async def test_one_state_is_one_picture():
    world = make_shop(0)
    blue = Step("PRODUCT_CHOOSE_COLOUR", {"colour": "blue"})
    red = Step("PRODUCT_CHOOSE_COLOUR", {"colour": "red"})
    pictures = []
    async with visit(world) as page:
        for detour in ([], [red], [red, blue, Step("PRODUCT_BACK"), OPENED[1]]):
            await page.reload()
            await do(page, world, [*OPENED, *detour, blue])
            pictures.append(await page.screenshot())
        await page.mouse.move(240, 150)
        pictures.append(await page.screenshot())
        await do(page, world, [red])
        pictures.append(await page.screenshot())
    assert pictures[:4] == [pictures[0]] * 4
    assert pictures[4] != pictures[0]


async def test_hostile_words_are_only_words():
    attack = "</script><script>window.hit=1</script><img src=x onerror='window.hit=1'>\u2028&amp;<!--"
    machine = {
        "meta": {"initial_page_id": attack, "terminal_pages": [attack]},
        "pages": [
            {
                "id": attack,
                "signature_schema": {"it": "string|null"},
                "actions": [
                    {
                        "id": f"{attack}_{attack}",
                        "parameters": {"it": attack},
                        "effects": [{"op": "set", "path": "$.it", "value_ref": "{it}"}],
                        "gui_procedure": [{"op": "click", "selector": "#go"}],
                    },
                    {
                        "id": "PICK",
                        "parameters": {"it": "{ANY}"},
                        "bind": {"it": {"collection": "things"}},
                        "gui_procedure": [{"op": "click", "selector": "#things .row"}],
                    },
                ],
            }
        ],
    }
    things = ({"id": "thing", "title": attack, "note": attack},)
    world = World("hostile", load_fsm(machine), {"things": things}, {"messages": {attack: attack}})
    assert b"<img" not in render(world)
    async with visit(world) as page:
        await page.click("#go")
        assert (await read_state(page)).signature == {"it": attack}
        assert await page.text_content(".title") == attack
        assert await page.text_content(".crumbs") == attack
        assert await page.evaluate("window.hit") is None
        assert await page.locator("img").count() == 0


async def test_the_page_offers_what_the_binding_offers():
    bind = {"it": {"collection": "things", "where": {"kind": "$.kind"}}}
    pick = {"id": "PICK", "parameters": {"it": "{ANY}"}, "bind": bind}
    kind = {"id": "KIND", "effects": [{"op": "set", "path": "$.kind", "value": "b"}]}
    pick["gui_procedure"] = [{"op": "click", "selector": "#things .row"}]
    kind["gui_procedure"] = [{"op": "click", "selector": "#kind"}]
    pages = [{"id": "P", "signature_schema": {"kind": "string|null"}, "actions": [pick, kind]}]
    things = (
        {"id": "one", "kind": "a"},
        {"id": "two", "kind": "b"},
        {"id": "three"},
        {"id": "four", "kind": "b"},
    )
    world = World("things", load_fsm({"meta": {"initial_page_id": "P"}, "pages": pages}), {"things": things})
    async with visit(world) as page:
        for _ in range(2):
            shown = await page.locator(".row").all_text_contents()
            offered = parameter_values(world, await read_state(page), "PICK")
            assert shown == [params["it"] for params in offered]
            await page.click("#kind")
    assert shown == ["two", "four"]


def ask(port: int, host: str, path: str = "/") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    connection.request("GET", path, headers={"Host": host})
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_the_server_answers_by_host():
    worlds = [make_shop(0), make_shop(1)]
    with SiteServer(worlds) as server:
        assert server.hosts == ["shop-0.test", "shop-1.test"]
        assert ask(server.port, "shop-0.test") == (200, render(worlds[0]))
        assert ask(server.port, "SHOP-1.test:80", "/?q=1") == (200, render(worlds[1]))
        assert ask(server.port, "shop-0.test", "/favicon.ico")[0] == 204
        assert ask(server.port, "shop-0.test", "/etc/passwd")[0] == 404
        assert ask(server.port, "127.0.0.1")[0] == 404
        assert server.sites == {"shop-0.test": server.port, "shop-1.test": server.port}
        with pytest.raises(
            ValueError, match=f"cannot serve on 127.0.0.1:{server.port} .*: choose .*--browser.site-port"
        ):
            SiteServer(worlds, port=server.port)
    with SiteServer(worlds, port=server.port):  # free again
        pass
    with pytest.raises(ValueError, match="same name"):
        SiteServer([make_shop(0), make_shop(0)])


async def test_other_pages_have_no_state():
    async with visit(make_shop(0)) as page:
        await page.goto("about:blank")
        assert await read_state(page) is None


def test_steps_become_selectors():
    world = make_shop(0)
    mugs = Step("HOME_OPEN_CATEGORY", {"category": "mugs"})
    home, checkout = initial_state(world.fsm), State("CHECKOUT", {})
    assert gui_steps(world, home, mugs) == [{"op": "click", "selector": "#categories .row.data-id-mugs"}]
    assert gui_steps(world, checkout, Step("CHECKOUT_PLACE_ORDER")) == [
        {"op": "click", "selector": "#checkout-place"}
    ]


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(
        ValueError, match="HOME: GO_BOOKS_HOVER: tiles are clicked once, which a hover is not"
    ):
        render(World("library", load_fsm(LIBRARY)))
    fsm = load_fsm(
        {"meta": {"initial_page_id": "P"}, "pages": [{"id": "P", "signature_schema": {}, "actions": []}]}
    )
    with pytest.raises(ValueError, match="accent: 'url.x.' is not a colour"):
        render(World("x", fsm, {}, {"accent": "url(x)"}))
    with pytest.raises(ValueError, match="things: a: swatch"):
        render(World("x", fsm, {"things": ({"id": "a", "swatch": "red;"},)}))
    with pytest.raises(ValueError, match="unknown shape"):
        render(World("x", fsm, {"things": ({"id": "a", "shape": "constructor"},)}))


@pytest.mark.parametrize("port", [65536, -1])
def test_a_number_that_is_no_port_is_refused_by_its_flag(port):
    with pytest.raises(ValueError, match=f"127.0.0.1:{port} .*: choose another --browser.site-port, or 0"):
        SiteServer([make_shop(0)], port=port)


def test_a_client_that_hangs_up_is_no_news(capfd):
    """An episode that is cancelled while its page loads must not print a traceback into the run's output."""
    with SiteServer([make_shop(0)]) as server:
        for _ in range(50):
            with socket.create_connection(("127.0.0.1", server.port)) as client:
                client.sendall(b"GET / HTTP/1.1\r\nHost: shop-0.test\r\n\r\n")
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset
    assert capfd.readouterr().err == ""
