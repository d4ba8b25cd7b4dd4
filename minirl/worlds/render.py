"""Worlds as web sites: one static page per world, and a local server for them.

The browser visits `http://<world>.test/`, which `SiteServer` answers with `render`'s page. It follows the
machine by itself (runtime.js, a transcript of interpreter.py), and `read_state` reads its state, by which an
episode is judged. Paper: AutoWebWorld, section 3.3. Deviation: there, a language model writes a front end per
site; here one runtime draws all, as "tiles" (done by one click each, for small models) or as "pages".

`World.style` holds the `look`, the colours `background`, `tile`, `text` and `accent` ("#rrggbb"), `messages`
(terminal page -> text) and, for pages, `brand`, `labels` (page or action -> text), `facts` (collection ->
field -> how a row says it), `layout`, `corners` and `consent`. A record shows its `title`, next to its
`swatch` (a colour) or its `shape` in the colour `fill`. Everything but `id` may be absent.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from jinja2 import Template

from minirl.worlds.fsm_file import Action
from minirl.worlds.interpreter import State, World
from minirl.worlds.widgets import target_of, widget_of

if TYPE_CHECKING:
    from playwright.async_api import Page as BrowserPage

COLOURS = {"background": "#f4f5f7", "tile": "#ffffff", "text": "#22262b", "accent": "#2d5fa4"}
# The drawings of pictures.js that a record may name
SHAPES = ("circle", "square", "triangle", "diamond", "hexagon", "ring", "cross", "drop")
SHARED = {"row", "scroll", "menu", "hover"}  # kinds of which several may begin with the same element


async def read_state(page: BrowserPage) -> State | None:
    """Return the state that a Playwright page is in, or None if it shows none of our sites."""
    found = await page.evaluate("() => window.minirl ? window.minirl.state() : null")
    return None if found is None else State(page=found["page"], signature=found["signature"])


def render(world: World) -> bytes:
    """Return the whole site as one HTML document that needs nothing else. ValueError for a world that cannot
    be drawn: a gui_procedure that no widget has, a shared element, a style that is not a colour."""
    look = world.style.get("look", "tiles")
    if look not in ("tiles", "pages"):
        raise ValueError(f"{world.name}: style: there is no look {look!r}; there are tiles and pages")
    names = ("page.html.j2", f"{look}.css", "runtime.js", "pictures.js", f"{look}.js")
    folder = files("minirl.worlds")
    template, css, *scripts = (folder.joinpath(name).read_text(encoding="utf-8") for name in names)
    text = json.dumps(describe(world), ensure_ascii=False, allow_nan=False)
    # Inside <script> only these could end the element early or be read as markup.
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    html = Template(template, keep_trailing_newline=True).render(css=css, world=text, script="".join(scripts))
    return html.encode("utf-8", errors="replace")  # a lone surrogate in a title becomes "?"


def describe(world: World) -> dict[str, Any]:
    """Return all that the scripts read, as JSON values: the machine with paths, defaults and words worked
    out, the records, and the looks."""
    style, pages = world.style, {}
    for page in world.fsm.pages.values():
        actions = [_describe_action(action, world) for action in page.actions.values()]
        for a, b in itertools.combinations(actions, 2):
            if a["element"] == b["element"] and not {a["kind"], b["kind"]} <= SHARED:
                both = f"{a['id']} and {b['id']}"
                raise ValueError(f"{world.name}: {page.id}: {both} have the same selector")
        message = style.get("messages", {}).get(page.id, f"Finished: {_words(page.id)}")
        pages[page.id] = {
            "title": _label(world, page.id, page.id),
            "message": message if page.id in world.fsm.terminal_pages else None,
            "is_first": page.id == world.fsm.initial_page,
            "defaults": page.defaults,
            "actions": actions,
        }
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


def _describe_action(action: Action, world: World) -> dict[str, Any]:
    widget = asdict(widget_of(action, world.fsm))
    if world.style.get("look", "tiles") == "tiles" and widget["kind"] != "row":
        if widget["kind"] not in ("button", "checkbox", "banner"):
            place = f"{action.source}: {action.id}"
            raise ValueError(f"{place}: tiles are clicked once, which a {widget['kind']} is not")
        widget["kind"] = "button"
    label = _label(world, action.id, action.id.removeprefix(action.source + "_"))
    options = next((s["ui_elements"]["options"] for s in action.gui_procedure if "ui_elements" in s), [])
    return {
        "id": action.id,
        "label": label,
        **widget,
        "options": [{"text": str(o["value"]), "item": target_of(str(o["selector"]))} for o in options],
        "is_quiet": label in {"Back", "Home", "Cancel"},
        **_fields(action, "target", "is_navigation", "parameters", "open_parameters"),
        "preconditions": [_fields(one, "path", "cond", "value") for one in action.preconditions],
        "effects": [_fields(one, "op", "path", "value", "ref", "expr", "by") for one in action.effects],
        "bind": action.bind and _fields(action.bind, "param", "collection", "where", "order", "values"),
    }


def _describe_record(record: Mapping[str, Any], collection: str) -> dict[str, Any]:
    """Return all of a record, since a binding may filter by any field, with the drawn ones checked."""
    drawn, place = {"title": str(record.get("title", record["id"]))}, f"{collection}: {record['id']}"
    if "swatch" in record:
        drawn["swatch"] = _colour(record["swatch"], f"{place}: swatch")
    if "shape" in record:
        if record["shape"] not in SHAPES:
            raise ValueError(f"{place}: unknown shape {record['shape']!r}: use one of {sorted(SHAPES)}")
        drawn["fill"] = _colour(record.get("fill", COLOURS["accent"]), f"{place}: fill")
    return {**record, **drawn, "collection": collection}


def _fields(record: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(record, name) for name in names}


def _label(world: World, id: str, usual: str) -> str:
    return str(world.style.get("labels", {}).get(id, _words(usual)))


def _words(name: str) -> str:  # PLACE_ORDER -> Place order
    return name.replace("_", " ").strip().capitalize()


def _colour(value: Any, place: str) -> str:
    if not isinstance(value, str) or not re.fullmatch(r"#[0-9a-fA-F]{6}", value):
        raise ValueError(f"{place}: {value!r} is not a colour: write #rrggbb")
    return value


class SiteServer(ThreadingHTTPServer):
    """Serves worlds on 127.0.0.1, each under its own host name, while a `with` block runs.

    >>> with SiteServer([make_shop(0), make_shop(1)]) as server:
    ...     server.sites  # the browser is told where they are, so that no address carries a port
    {'shop-0.test': 40313, 'shop-1.test': 40313}

    ValueError if the port can't be had, two worlds share a name, or a world cannot be drawn.
    """

    def __init__(self, worlds: Sequence[World], port: int = 0) -> None:
        self.pages = {f"{world.name}.test": render(world) for world in worlds}
        if len(self.pages) < len(worlds):
            raise ValueError(f"two worlds have the same name: {sorted(world.name for world in worlds)}")
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except (OSError, OverflowError) as error:  # in use, or no port number at all
            reason = getattr(error, "strerror", None) or error
            hint = "choose another --browser.site-port, or 0 for any free one"
            raise ValueError(f"cannot serve on 127.0.0.1:{port} ({reason}): {hint}") from error
        self.sites = dict.fromkeys(self.pages, self.server_port)  # each host's port on this machine

    def __enter__(self) -> SiteServer:
        threading.Thread(target=self.serve_forever, name="sites", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: SiteServer
    timeout = 30  # seconds; browsers open connections ahead and may never use them

    def do_GET(self) -> None:
        host, path = self.headers.get("Host", "").rsplit(":", 1)[0].lower(), self.path.partition("?")[0]
        status, kind, body = 404, "text/plain", b"There is no such site or page.\n"
        if path == "/favicon.ico":
            status, kind, body = 204, "text/html", b""
        elif path == "/" and host in self.server.pages:
            status, kind, body = 200, "text/html", self.server.pages[host]
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        with contextlib.suppress(ConnectionError):  # a cancelled episode's page no longer listens
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass  # a training run makes thousands of requests
