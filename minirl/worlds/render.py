"""Worlds as web sites: one static page per world, a local server for them, and their folders.

The browser visits `http://<world>.test/`, which `SiteServer` answers with `render`'s page. It follows the
machine by itself (runtime.js, a transcript of interpreter.py), and `read_state` reads its state, by which an
episode is judged. Paper: AutoWebWorld, section 3.3. Deviation: there, a language model writes a front end per
site; here one runtime draws all, as "tiles" (done by one click each, for small models) or as "pages" in one
of several skins (looks.py).

A record shows its `title`, next to its `swatch` (a colour) or a scene with its `shape` in the colour `fill`.
A folder's tasks name it in their meta (`sites_of`), and it is read when it is first asked for.
"""

import contextlib
import itertools
import json
import re
import threading
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal, Self

from playwright.async_api import Page as BrowserPage
from typing_extensions import TypedDict

from minirl.console import printable
from minirl.run_folder import write_atomic
from minirl.types import Task
from minirl.worlds.fsm_file import Action, document_of, load_fsm, read_json, validated
from minirl.worlds.interpreter import State, World
from minirl.worlds.looks import SKINS, USUAL, text_of
from minirl.worlds.shop import shops_of
from minirl.worlds.widgets import options_of, target_of, widget_of

Site = World | Path  # either has a `name`
SHARED = {"row", "scroll", "menu", "hover"}  # kinds of which several may begin with the same element


class Style(TypedDict, total=False):
    """What style.json holds. All may be left out; colours are "#rrggbb"."""

    look: Literal["tiles", "pages", "built"]  # the last: index.html has been written by others
    background: str
    tile: str
    text: str
    accent: str
    messages: dict[str, str]  # by terminal pages
    brand: str
    labels: dict[str, str]  # by pages and actions
    facts: dict[str, dict[str, str]]  # by collections and fields: how a row says them
    skin: str
    link: str
    filters: str
    knobs: dict[str, str]
    words: dict[str, Any]
    paging: dict[str, Any]
    question: str
    complains: bool
    corners: int
    letters: int
    font: Literal["sans", "serif"]
    places: dict[str, dict[str, tuple[float, float, float, float]]]
    consent: str


async def read_state(page: BrowserPage) -> State | None:
    """Return the state that a page is in, or None if it shows none of our sites."""
    found = await page.evaluate("() => window.minirl ? window.minirl.state() : null")
    return None if found is None else State(page=found["page"], signature=found["signature"])


def render(world: World) -> bytes:
    """Return the whole site as one HTML document that needs nothing else. ValueError if it can't be drawn."""
    if world.html:
        return world.html.encode("utf-8", errors="replace")
    look = world.style.get("look", "tiles")
    sheets, scripts = [f"{look}.css"], ["runtime.js", "pictures.js", f"{look}.js"]
    if look == "tiles":  # which a small model reads letter by letter, so they bring their letters
        sheets.insert(0, f"{world.style.get('font', 'sans')}.css")
    if look == "pages":
        sheets += [f"skins/{plan_of(world)['skin']}.css"]
        scripts[2:2] = ["scenes.js", "widgets.js"]
    css, script = ("".join(map(text_of, names)) for names in (sheets, scripts))
    html = text_of("page.html.j2", css=css, world=embedded(world), script=script)
    return html.encode("utf-8", errors="replace")  # a lone surrogate in a title becomes "?"


def embedded(world: World) -> str:
    """Return what the scripts read, as it stands within <script>: without what could be read as markup."""
    text = json.dumps(describe(world), ensure_ascii=False, allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def plan_of(world: World) -> dict[str, Any]:
    """Return what the site's skin puts where; what it leaves open is the site's, or the first possible value.
    ValueError for a skin that is not there."""
    style = world.style
    skin = str(style.get("skin", next(iter(SKINS))))
    if skin not in SKINS:
        raise ValueError(f"{world.name}: there is no skin {skin!r}; there are: {', '.join(SKINS)}")
    knobs = {name: values[0] for name, values in SKINS[skin]["knobs"].items()} | style.get("knobs", {})
    filters = style.get("filters", SKINS[skin]["filters"][0])
    return SKINS[skin] | {"skin": skin, "knobs": knobs, "filters": filters}


def describe(world: World) -> dict[str, Any]:
    """Return all that the scripts read, as JSON values: the machine, its words, the records and the looks."""
    style, pages = world.style, {}
    for page in world.fsm.pages.values():
        actions = [_describe_action(action, world) for action in page.actions.values()]
        for a, b in itertools.combinations(actions, 2):
            if a["element"] == b["element"] and not {a["kind"], b["kind"]} <= SHARED:
                raise ValueError(f"{world.name}: {a['id']} and {b['id']} have the same selector")
        title = _label(world, page.id, page.id)
        message = style.get("messages", {}).get(page.id, f"Finished: {title}")
        pages[page.id] = {
            "title": title,
            "message": message if page.id in world.fsm.terminal_pages else None,
            "is_first": page.id == world.fsm.initial_page,
            "defaults": page.defaults,
            "actions": actions,
        }
    colours = {name: style.get(name, usual) for name, usual in USUAL["colours"].items()}
    sizes = {name: f"{int(style.get(name, usual))}px" for name, usual in USUAL["sizes"].items()}
    data = {
        name: [{**one, "title": str(one.get("title", one["id"])), "collection": name} for one in records]
        for name, records in world.data.items()
    }
    return {
        "initial_page": world.fsm.initial_page,
        "pages": pages,
        "data": data,
        "style": colours | sizes | {"font": USUAL["fonts"][style.get("font", "sans")]},
        "places": style.get("places", {}),
        "brand": str(style.get("brand", world.fsm.meta.get("app", ""))),
        "plan": plan_of(world) if style.get("look") == "pages" else {},
        "facts": style.get("facts", {}),
        "words": USUAL["words"] | style.get("words", {}),
        "paging": style.get("paging", {"kind": "all", "size": 1}),
        **{name: style.get(name) for name in ("consent", "question", "complains")},
    }


def _describe_action(action: Action, world: World) -> dict[str, Any]:
    widget = asdict(widget_of(action, world.fsm))
    if world.style.get("look", "tiles") == "tiles" and widget["kind"] != "row":
        if widget["kind"] not in ("button", "checkbox", "banner"):
            raise ValueError(f"{action.id}: tiles are clicked once, which a {widget['kind']} is not")
        widget["kind"] = "button"
    label = _label(world, action.id, action.id.removeprefix(action.source + "_"))
    options = options_of(action).items()
    return {
        "id": action.id,
        "label": label,
        **widget,
        "options": [{"text": text, "item": target_of(at.split()[-1])} for at, text in options],
        "opener": world.style.get("labels", {}).get(f"#{widget['element']}"),
        "is_quiet": label in {"Back", "Home", "Cancel"},
        **{n: getattr(action, n) for n in ("target", "is_navigation", "parameters", "open_parameters")},
        "preconditions": [asdict(condition) for condition in action.preconditions],
        "effects": [asdict(effect) for effect in action.effects],
        "bind": action.bind and asdict(action.bind),
    }


def _label(world: World, id: str, usual: str) -> str:
    words = usual.replace("_", " ").strip().capitalize()  # PLACE_ORDER -> Place order
    return str(world.style.get("labels", {}).get(id, words))


def save_world(world: World, folder: Path) -> None:
    """Write a site as fsm.json (in the released form), data.json, style.json, and index.html to look at."""
    documents = {"fsm": document_of(world.fsm), "data": world.data, "style": world.style}
    for name, document in documents.items():
        text = json.dumps(document, indent=1, ensure_ascii=False, default=list)
        write_atomic(folder / f"{name}.json", text.encode())
    write_atomic(folder / "index.html", render(world))


def name_of(folder: Path) -> str:
    """Return the name of the site in a folder, "my-site" for "My_site". ValueError if nothing is left."""
    name = re.sub(r"[^a-z0-9]+", "-", folder.resolve().name.lower()).strip("-")
    if not name:
        raise ValueError(f"{folder}: a site's name is its folder's: use letters or digits")
    return name


def load_world(folder: Path) -> World:
    """Return the site in a folder; data.json and style.json may be absent. Raises ValueError."""
    paths = (folder / "data.json", folder / "style.json")
    data, style = (read_json(path) if path.is_file() else {} for path in paths)
    validated(str(paths[1]), Style, style)
    records = validated(str(paths[0]), dict[str, tuple[dict[str, Any], ...]], data)
    is_built = style.get("look") == "built"
    html = (folder / "index.html").read_text(encoding="utf-8") if is_built else ""
    return World(name_of(folder), load_fsm(folder / "fsm.json"), records, style, html)


class SiteServer(ThreadingHTTPServer):
    """Serves worlds, or the folders in which they are, on 127.0.0.1 while a `with` block runs; each is drawn
    when it is first visited. `sites` tells a browser each host's port, as {"shop-0.test": 40313}. ValueError
    if two have the same name."""

    def __init__(self, sites: Sequence[Site]) -> None:
        names = [site.name if isinstance(site, World) else name_of(site) for site in sites]
        self.places = {f"{name}.test": site for name, site in zip(names, sites, strict=True)}
        self.pages: dict[str, bytes] = {}
        if len(self.places) < len(sites):
            often = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"two sites have the same name, {often} for one")
        super().__init__(("127.0.0.1", 0), _Handler)
        self.sites = dict.fromkeys(self.places, self.server_port)

    def page(self, host: str) -> tuple[int, bytes]:
        """Return a site's page with status 200, or 500 and why it can't be drawn."""
        if host not in self.pages:
            site = self.places[host]
            try:
                self.pages[host] = render(site if isinstance(site, World) else load_world(site))
            except (OSError, ValueError) as error:
                return 500, f"{printable(str(error))}\n".encode(errors="replace")
        return 200, self.pages[host]

    def __enter__(self) -> Self:
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
        elif path == "/" and host in self.server.places:
            status, body = self.server.page(host)
            kind = "text/html" if status == 200 else kind
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        with contextlib.suppress(ConnectionError):  # a cancelled episode's page no longer listens
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass  # a training run makes thousands of requests


def sites_of(tasks: Iterable[Task]) -> list[Site]:
    """Return the sites of tasks, by numbers, then names. ValueError if one that a task names is missing."""
    tasks = list(tasks)
    folders, found = {task.meta["folder"]: task.id for task in tasks if "folder" in task.meta}, list[Path]()
    for place, id in sorted(folders.items()):
        files = list(Path(place).glob("fsm.json")) or sorted(Path(place).glob("*/fsm.json"))
        if not files:
            raise ValueError(f"task {id}: there is no site in {place}; make it again, or correct meta.folder")
        found += [file.parent for file in files]
    return [*shops_of(tasks), *found]


def world_at(site: Site) -> World:
    """Return the site, read from its folder if it is one. Raises ValueError."""
    return site if isinstance(site, World) else _read(site)


_read = lru_cache(64)(load_world)  # sites in memory


def find_task_files(folder: Path) -> list[Path]:
    """Return the tasks.jsonl of a site's folder, or of all sites in a folder. ValueError if there is none."""
    found = list(folder.glob("tasks.jsonl")) or sorted(folder.glob("*/tasks.jsonl"))
    if not found:
        hint = "python -m minirl.worlds make --count 20 --out sites"
        raise ValueError(f"{folder} holds no sites with tasks; make some: {hint}")
    return found
