"""Worlds as web sites: one static page per world, a local server, and how a step is clicked.

Where it stands: the browser visits `http://<world>.test/`, which `SiteServer` answers with the page
that `render` made. The page follows the machine by itself (runtime.js, a transcript of fsm.py) and
keeps its state where `read_state` finds it: what a verifier judges is the state, not the pixels.

Paper: AutoWebWorld, section 3.3 (sites made from machines). Deviation: there, a language model writes
a front end per site, and a replay assumes the state from the trace. Here one generic runtime draws
every machine, so that page and machine cannot disagree, and the state is read from the page itself.
What it draws so far: an action that is bound to a collection is a group of tiles, any other action
is a button, and each is done by one click.

`World.style` holds the colours `background`, `tile`, `text` and `accent` ("#rrggbb") and `messages`
(terminal page -> text). A record shows its `title`, next to its `swatch` (a colour) or its `shape`
in the colour `fill`. Everything but `id` may be absent.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from types import TracebackType
from typing import TYPE_CHECKING, Any

from minirl.world.fsm import State, World
from minirl.world.schema import Action, Page
from minirl.world.search import Step

if TYPE_CHECKING:
    from playwright.async_api import Page as BrowserPage

COLOURS = {"background": "#f4f5f7", "tile": "#ffffff", "text": "#22262b", "accent": "#2d5fa4"}
SHAPES = {"circle", "square", "triangle", "diamond", "hexagon", "ring", "cross", "drop"}  # in runtime.js

_TILES = re.compile(r"#([A-Za-z][\w-]*) \.row")  # a container, and any of its tiles
_BUTTON = re.compile(r"#([A-Za-z][\w-]*)")


def selector_for(world: World, step: Step) -> list[dict[str, Any]]:
    """The mouse work behind a step: gui operations whose `selector` finds one element on the page.

    >>> selector_for(shop, Step("HOME_OPEN_CATEGORY", {"category": "mugs"}))
    [{'op': 'click', 'selector': '#categories .row.data-id-mugs'}]

    Raises ValueError unless exactly one page has the action and the step names a record for a tile.
    """
    found = [p.actions[step.action_id] for p in world.fsm.pages.values() if step.action_id in p.actions]
    if len(found) != 1:
        raise ValueError(f"{world.name}: {len(found)} pages have an action {step.action_id}, not one")
    action = found[0]
    gui = [dict(operation) for operation in action.gui_procedure]
    if action.bind is not None:
        id = step.params.get(action.bind.param)
        if id not in [record["id"] for record in world.data[action.bind.collection]]:
            raise ValueError(f"{action.id}: {action.bind.param}={id!r} is not in {action.bind.collection}")
        gui[-1]["selector"] += f".data-id-{id}"
    return gui


async def read_state(page: BrowserPage) -> State | None:
    """The state that a Playwright page is in, or None if what it shows is not one of our sites."""
    found = await page.evaluate("() => window.minirl ? window.minirl.state() : null")
    return None if found is None else State(found["page"], found["signature"])


# --- the page -------------------------------------------------------------------------------------


def render(world: World) -> bytes:
    """The whole site as one HTML document that needs nothing else.

    Raises ValueError for what cannot be drawn: an action that is not a single click on a selector
    that fits its kind, two actions of a page with the same selector, a style that is not a colour.
    """
    here = files("minirl.world")
    css = here.joinpath("style.css").read_text(encoding="utf-8")
    script = here.joinpath("runtime.js").read_text(encoding="utf-8")
    text = json.dumps(describe(world), ensure_ascii=False, allow_nan=False)
    # Inside <script> only these could end the element early or be read as markup.
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    html = (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title></title>\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<style>\n{css}</style>\n<body>\n"
        f'<script id="world" type="application/json">{text}</script>\n'
        f"<script>\n{script}</script>\n</body>\n</html>\n"
    )
    return html.encode("utf-8", errors="replace")  # a lone surrogate in a title becomes "?"


def describe(world: World) -> dict[str, Any]:
    """What runtime.js is told: the machine with paths, defaults and words worked out, the records,
    the colours. JSON only."""
    messages = world.style.get("messages", {})
    pages = {}
    for page in world.fsm.pages.values():
        is_terminal = page.id in world.fsm.terminal_pages
        message = messages.get(page.id, f"Finished: {_words(page.id)}")
        pages[page.id] = {
            "title": _words(page.id),
            "message": message if is_terminal else None,
            "defaults": page.defaults,
            "actions": [_describe_action(action, page) for action in page.actions.values()],
        }
        names = [action["container"] or action["element"] for action in pages[page.id]["actions"]]
        if len(set(names)) < len(names):
            raise ValueError(f"{world.name}: {page.id}: two actions have the same selector: {sorted(names)}")
    return {
        "initial_page": world.fsm.initial_page,
        "pages": pages,
        "data": {name: [_describe_record(r, name) for r in records] for name, records in world.data.items()},
        "style": {name: _colour(world.style.get(name, usual), name) for name, usual in COLOURS.items()},
    }


def _describe_action(action: Action, page: Page) -> dict[str, Any]:
    """One action for runtime.js: `container` is the id around its tiles, or `element` its button's."""
    steps = action.gui_procedure
    form = _BUTTON if action.bind is None else _TILES
    target = form.fullmatch(str(steps[0].get("selector"))) if len(steps) == 1 else None
    if target is None or steps[0]["op"] != "click":
        wanted = "'#some-id'" if action.bind is None else "'#some-id .row'"
        raise ValueError(f"{page.id}: {action.id}: gui_procedure must be one click on {wanted} to be drawn")
    label = _words(action.id.removeprefix(page.id + "_"))
    bind = action.bind
    return {
        "id": action.id,
        "label": label,
        "container": target[1] if bind is not None else None,
        "element": target[1] if bind is None else None,
        "is_quiet": label in {"Back", "Home", "Cancel"},
        "target": action.target,
        "is_navigation": action.is_navigation,
        "parameters": action.parameters,
        "open_parameters": action.open_parameters,
        "preconditions": [{"path": c.path, "cond": c.cond, "value": c.value} for c in action.preconditions],
        "effects": [
            {"op": e.op, "path": e.path, "value": e.value, "ref": e.ref, "expr": e.expr, "by": e.by}
            for e in action.effects
        ],
        "bind": None
        if bind is None
        else {"param": bind.param, "collection": bind.collection, "where": bind.where},
    }


def _describe_record(record: Mapping[str, Any], collection: str) -> dict[str, Any]:
    """All of a record, since a binding may filter by any field, with what is drawn made certain."""
    drawn: dict[str, Any] = {"title": str(record.get("title", record["id"]))}
    place = f"{collection}: {record['id']}"
    if "swatch" in record:
        drawn["swatch"] = _colour(record["swatch"], f"{place}: swatch")
    if "shape" in record:
        if record["shape"] not in SHAPES:
            raise ValueError(f"{place}: unknown shape {record['shape']!r}: use one of {sorted(SHAPES)}")
        drawn["fill"] = _colour(record.get("fill", COLOURS["accent"]), f"{place}: fill")
    return {**record, **drawn}


def _colour(value: Any, place: str) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"#[0-9a-fA-F]{6}", value):
        raise ValueError(f"{place}: {value!r} is not a colour: write #rrggbb")
    return value


def _words(name: str) -> str:
    """PLACE_ORDER -> Place order"""
    return name.replace("_", " ").strip().capitalize()


# --- the server -----------------------------------------------------------------------------------


class SiteServer:
    """Serves worlds on 127.0.0.1, each under its own host name, while a `with` block runs.

    >>> with SiteServer([make_shop(0), make_shop(1)]) as server:
    ...     server.sites
    {'shop-0.test': 40313, 'shop-1.test': 40313}

    The browser is told where these hosts are: addresses in prompts and logs then carry no port and are the
    same in every run. Raises ValueError if the port can't be had, two worlds share a
    name, or a world cannot be drawn.
    """

    def __init__(self, worlds: Sequence[World], port: int = 0) -> None:
        pages = {f"{world.name}.test": render(world) for world in worlds}
        if len(pages) < len(worlds):
            raise ValueError(f"two worlds have the same name: {sorted(world.name for world in worlds)}")
        self.hosts = list(pages)
        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), _handler(pages))
        except (OSError, OverflowError) as error:  # in use, or no port number at all
            reason = getattr(error, "strerror", None) or error
            hint = "choose another --browser.site-port, or 0 for any free one"
            raise ValueError(f"cannot serve on 127.0.0.1:{port} ({reason}): {hint}") from error
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="sites", daemon=True)

    @property
    def sites(self) -> dict[str, int]:
        """Each host's port on this machine."""
        return dict.fromkeys(self.hosts, self.port)

    def __enter__(self) -> SiteServer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(pages: Mapping[str, bytes]) -> type[BaseHTTPRequestHandler]:
    """A request handler class for these pages (http.server wants a class, not a function)."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 30  # seconds; browsers open connections ahead and may never use them

        def do_GET(self) -> None:
            host = self.headers.get("Host", "").rsplit(":", 1)[0].lower()
            path = self.path.partition("?")[0]
            if path == "/favicon.ico":
                self._answer(204, b"")
            elif host in pages and path == "/":
                self._answer(200, pages[host])
            else:
                self._answer(404, b"There is no such site or page.\n", "text/plain")

        def _answer(self, status: int, body: bytes, kind: str = "text/html") -> None:
            self.send_response(status)
            self.send_header("Content-Type", f"{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            with contextlib.suppress(ConnectionError):  # a cancelled episode's page no longer listens
                self.end_headers()
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass  # a training run makes thousands of requests

    return Handler
