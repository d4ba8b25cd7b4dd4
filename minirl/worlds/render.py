"""Worlds as web sites: one static page per world, a local server, and how a step is clicked.

Where it stands: the browser visits `http://<world>.test/`, which `SiteServer` answers with the page
that `render` made. The page follows the machine by itself (runtime.js, a transcript of fsm.py) and
keeps its state where `read_state` finds it: what a verifier judges is the state, not the pixels.

Paper: AutoWebWorld, section 3.3 (sites made from machines). Deviation: there, a language model writes
a front end per site, and a replay assumes the state from the trace. Here one generic runtime draws
every machine, so that page and machine cannot disagree, and the state is read from the page itself.
There are two looks. "tiles" is for small pictures and small models: an action that is bound to a
collection is a group of tiles, any other is a button, and each is done by one click. "pages" are pages as
people know them, with the widgets that the machine's gui_procedures describe (`widgets.widget_of`).

`World.style` holds the `look`, the colours `background`, `tile`, `text` and `accent` ("#rrggbb"), `messages`
(terminal page -> text) and, for pages, `brand`, `labels` (page or action -> text), `facts` (collection ->
field -> how a row says it), `layout`, `corners` and `consent`. A record shows its `title`, next to its
`swatch` (a colour) or its `shape` in the colour `fill`. Everything but `id` may be absent.
"""

from __future__ import annotations

import contextlib
import json
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from types import TracebackType
from typing import TYPE_CHECKING, Any

from minirl.worlds.fsm_file import Action, Page
from minirl.worlds.interpreter import State, World
from minirl.worlds.widgets import target_of, widget_of

if TYPE_CHECKING:
    from playwright.async_api import Page as BrowserPage

    from minirl.browser.session import Session

COLOURS = {"background": "#f4f5f7", "tile": "#ffffff", "text": "#22262b", "accent": "#2d5fa4"}
# The drawings of pictures.js that a record may name
SHAPES = ("circle", "square", "triangle", "diamond", "hexagon", "ring", "cross", "drop")


async def difference(session: Session, expected: State) -> str:
    """What the current page shows in place of the expected state; "" if it is in that."""
    seen = await session.do(read_state(session.page))
    if seen is not None and seen.key() == expected.key():
        return ""
    return f"the page shows {seen.key() if seen else 'no state'}, not {expected.key()}"


async def read_state(page: BrowserPage) -> State | None:
    """The state that a Playwright page is in, or None if what it shows is not one of our sites."""
    found = await page.evaluate("() => window.minirl ? window.minirl.state() : null")
    return None if found is None else State(found["page"], found["signature"])


# --- the page -------------------------------------------------------------------------------------


def render(world: World) -> bytes:
    """The whole site as one HTML document that needs nothing else.

    Raises ValueError for what cannot be drawn: an action whose gui_procedure no widget has, two actions that
    would share an element, a style that is not a colour.
    """
    look = world.style.get("look", "tiles")
    if look not in ("tiles", "pages"):
        raise ValueError(f"{world.name}: style: there is no look {look!r}; there are tiles and pages")
    css = _file(f"{look}.css")
    script = "".join(map(_file, ("runtime.js", "pictures.js", f"{look}.js")))
    text = json.dumps(describe(world), ensure_ascii=False, allow_nan=False)
    # Inside <script> only these could end the element early or be read as markup.
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    html = (
        '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title></title>\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<style>\n{css}</style>\n<body>\n"
        f'<script id="world" type="application/json">{text}</script>\n'
        f'<script>\n(() => {{\n"use strict";\n{script}}})();\n</script>\n</body>\n</html>\n'
    )
    return html.encode("utf-8", errors="replace")  # a lone surrogate in a title becomes "?"


def _file(name: str) -> str:
    return files("minirl.worlds").joinpath(name).read_text(encoding="utf-8")


def describe(world: World) -> dict[str, Any]:
    """What the scripts are told: the machine with paths, defaults and words worked out, the records, the
    looks. JSON only."""
    style = world.style
    messages = style.get("messages", {})
    pages = {}
    for page in world.fsm.pages.values():
        is_terminal = page.id in world.fsm.terminal_pages
        message = messages.get(page.id, f"Finished: {_words(page.id)}")
        pages[page.id] = {
            "title": _label(world, page.id, _words(page.id)),
            "message": message if is_terminal else None,
            "is_first": page.id == world.fsm.initial_page,
            "defaults": page.defaults,
            "actions": [_describe_action(action, page, world) for action in page.actions.values()],
        }
        _refuse_collisions(pages[page.id]["actions"], f"{world.name}: {page.id}")
    colours = {name: _colour(style.get(name, usual), name) for name, usual in COLOURS.items()}
    return {
        "initial_page": world.fsm.initial_page,
        "pages": pages,
        "data": {name: [_describe_record(r, name) for r in records] for name, records in world.data.items()},
        "style": colours | {"corners": f"{int(style.get('corners', 4))}px"},
        "brand": str(style.get("brand", world.fsm.app)),
        "layout": "top" if style.get("layout") == "top" else "side",
        "consent": "modal" if style.get("consent") == "modal" else "banner",
        "facts": style.get("facts", {}),
    }


SHARED = {"row", "scroll", "menu", "hover"}  # kinds of which several may begin with the same element


def _refuse_collisions(actions: list[dict[str, Any]], place: str) -> None:
    taken: dict[str, dict[str, Any]] = {}
    for action in actions:
        other = taken.setdefault(action["element"], action)
        if other is not action and not {other["kind"], action["kind"]} <= SHARED:
            raise ValueError(f"{place}: {other['id']} and {action['id']} have the same selector")


def _label(world: World, id: str, usual: str) -> str:
    return str(world.style.get("labels", {}).get(id, usual))


def _describe_action(action: Action, page: Page, world: World) -> dict[str, Any]:
    """One action for the scripts: the machine's part, and its widget."""
    widget = widget_of(action, world.fsm)
    if world.style.get("look", "tiles") == "tiles" and widget.kind not in ("row", "button"):
        if widget.kind not in ("checkbox", "banner"):
            raise ValueError(f"{page.id}: {action.id}: tiles are clicked once, which a {widget.kind} is not")
        widget = replace(widget, kind="button")
    label = _label(world, action.id, _words(action.id.removeprefix(page.id + "_")))
    bind = action.bind
    options = next((s["ui_elements"]["options"] for s in action.gui_procedure if "ui_elements" in s), [])
    return {
        "id": action.id,
        "label": label,
        "kind": widget.kind,
        "element": widget.element,
        "item": widget.item,
        "options": [{"text": str(o["value"]), "item": target_of(str(o["selector"]))} for o in options],
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
        "bind": None if bind is None else asdict(bind),
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
    return {**record, **drawn, "collection": collection}


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
