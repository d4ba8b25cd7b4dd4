"""Worlds as web sites: one static page per world, a local server for them, and their folders.

The browser visits `http://<world>.test/`, which `SiteServer` answers with `render`'s page. It follows the
machine by itself (runtime.js, a transcript of interpreter.py), and `read_state` reads its state, by which an
episode is judged. Paper: AutoWebWorld, section 4.2. Deviation: there, a language model writes a front end per
site; here one runtime draws all, as "tiles" (done by one click each, for small models) or as "pages" in one
of four skins (looks.py). A site of the look "built" brings its own index.html.

A record shows its `title`, next to its `swatch` (a colour) or a scene with its `shape` in the colour `fill`.
A folder's tasks name it in their meta (`sites_of`), and it is read when it is first asked for.
"""

import contextlib
import json
import mimetypes
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

from playwright.async_api import Page as BrowserPage

from minirl.run_folder import write_atomic
from minirl.types import Json, Task
from minirl.worlds.fsm_file import Action, Page, document_of, load_fsm, read_json, validated
from minirl.worlds.interpreter import State, World
from minirl.worlds.looks import SKINS, USUAL, style_of, text_of
from minirl.worlds.shop import shops_of
from minirl.worlds.widgets import options_of, target_of, widget_of

# The parts of a style that the scripts read as they are
GIVEN = ("places", "brand", "facts", "words", "page_size", "consent", "question")
Site = World | Path  # either has a `name`


async def read_state(page: BrowserPage) -> State | None:
    """Return the state that a page is in, or None if it shows none of our sites."""
    state = await page.evaluate("() => window.minirl ? window.minirl.state() : null")
    if state is None:
        return None
    return State(page=state["page"], signature=state["signature"])


def render(world: World) -> bytes:
    """Return the whole site as one HTML document that needs nothing else. ValueError if it can't be drawn."""
    if world.html:
        return world.html.encode("utf-8", errors="replace")
    style = style_of(world)
    description = embedded(world)
    if style["look"] == "tiles":
        # A small model reads letter by letter, so tiles bring their letters.
        sheets = [f"{style['font']}.css", "tiles.css"]
        scripts = ["runtime.js", "pictures.js", "tiles.js"]
    else:
        sheets = ["pages.css", f"skins/{style['skin']}.css"]
        scripts = ["runtime.js", "pictures.js", "scenes.js", "widgets.js", "pages.js"]
    css = "".join(text_of(sheet) for sheet in sheets)
    script = "".join(text_of(file) for file in scripts)
    html = text_of("page.html.j2", css=css, world=description, script=script)
    return html.encode("utf-8", errors="replace")  # a lone surrogate in a title becomes "?"


def embedded(world: World) -> str:
    """Return what the scripts read, as it stands within <script>, which no "<" of theirs may close."""
    text = json.dumps(describe(world), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c")


def describe(world: World) -> Json:
    """Return all that the scripts read, as JSON values: the machine, its words, the records and the looks.
    ValueError for a skin that is not there."""
    style = style_of(world)
    skin = style["skin"]
    if skin not in SKINS:
        raise ValueError(f"{world.name}: there is no skin {skin!r}; there are: {', '.join(SKINS)}")
    plan = {**SKINS[skin], "skin": skin} if style["look"] == "pages" else {}
    pages = {page.id: _describe_page(page, world) for page in world.fsm.pages.values()}
    css = {name: style[name] for name in ("background", "tile", "text", "accent", "link")}
    css["corners"] = f"{style['corners']}px"
    css["letters"] = f"{style['letters']}px"
    css["font"] = USUAL["fonts"][style["font"]]
    data = {}
    for name, records in world.data.items():
        data[name] = [{"title": record["id"], **record, "collection": name} for record in records]
    as_they_are = {name: style.get(name) for name in GIVEN}
    return as_they_are | {
        "initial_page": world.fsm.initial_page,
        "pages": pages,
        "data": data,
        "style": css,
        "plan": plan,
    }


def _describe_page(page: Page, world: World) -> Json:
    title = _label(world, page.id, page.id)
    message = None
    if page.id in world.fsm.terminal_pages:
        message = style_of(world)["messages"].get(page.id, f"Finished: {title}")
    return {
        "title": title,
        "message": message,
        "is_first": page.id == world.fsm.initial_page,
        "defaults": page.defaults,
        "actions": [_describe_action(action, world) for action in page.actions.values()],
    }


def _describe_action(action: Action, world: World) -> Json:
    widget = widget_of(action, world.fsm)
    label = _label(world, action.id, action.id.removeprefix(action.source + "_"))
    known = options_of(action).items()
    options = [{"text": text, "item": target_of(selector.split()[-1])} for selector, text in known]
    return {
        "id": action.id,
        "label": label,
        **asdict(widget),
        "options": options,
        "opener": style_of(world)["labels"].get(f"#{widget.element}"),
        "is_quiet": label in {"Back", "Home", "Cancel"},
        "target": action.target,
        "is_navigation": action.is_navigation,
        "parameters": action.parameters,
        "open_parameters": action.open_parameters,
        "preconditions": [asdict(condition) for condition in action.preconditions],
        "effects": [asdict(effect) for effect in action.effects],
        "bind": action.bind and asdict(action.bind),
    }


def _label(world: World, id: str, usual: str) -> str:
    """Return a label as the style gives it, or made of the id: "Place order" of PLACE_ORDER."""
    return style_of(world)["labels"].get(id, usual.replace("_", " ").strip().capitalize())


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
    data_file = folder / "data.json"
    style_file = folder / "style.json"
    data = read_json(data_file) if data_file.is_file() else {}
    style = read_json(style_file) if style_file.is_file() else {}
    records = validated(str(data_file), dict[str, tuple[Json, ...]], data)
    html = ""
    if style.get("look") == "built":
        page = folder / "index.html"
        if page.is_symlink():  # it may lead to a file of this machine, and models will see it
            raise ValueError(f"{page} is a link: put the page itself there")
        html = page.read_text("utf-8")
    return World(name_of(folder), load_fsm(folder / "fsm.json"), records, style, html)


class SiteServer(ThreadingHTTPServer):
    """Serves worlds, or the folders in which they are, on 127.0.0.1 while a `with` block runs; each is drawn
    when it is first visited. The files of `folders` are served as they are, by host. `sites` tells a browser
    each host's port, as {"shop-0.test": 40313}. ValueError if two have the same name."""

    def __init__(self, sites: Sequence[Site], folders: Mapping[str, Path] | None = None) -> None:
        self.folders = dict(folders or {})
        self.by_host: dict[str, Site] = {}
        for site in sites:
            name = site.name if isinstance(site, World) else name_of(site)
            if f"{name}.test" in self.by_host:
                raise ValueError(f"two sites have the same name, {name}")
            self.by_host[f"{name}.test"] = site
        self.pages = {}
        super().__init__(("127.0.0.1", 0), _Handler)
        self.sites = dict.fromkeys([*self.by_host, *self.folders], self.server_port)

    def page(self, host: str) -> bytes:
        """Return a site's page. OSError or ValueError if it can't be drawn."""
        if host not in self.pages:
            self.pages[host] = render(world_at(self.by_host[host]))
        return self.pages[host]

    def file(self, host: str, path: str) -> Path | None:
        """Return the file of a folder that is served, or None if there is none."""
        if host not in self.folders:
            return None
        folder = self.folders[host].resolve()
        file = (folder / path.lstrip("/")).resolve()
        return file if file.is_relative_to(folder) and file.is_file() else None

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
        with contextlib.suppress(ConnectionError):  # a cancelled episode's page no longer listens
            self._answer()

    def _answer(self) -> None:
        host = self.headers.get("Host", "").rsplit(":", 1)[0].lower()
        path = self.path.partition("?")[0]
        kind = "text/html"
        keeping = "no-store"
        if path == "/" and host in self.server.by_host:
            body = self.server.page(host)
        elif file := self.server.file(host, path):
            kind = mimetypes.guess_type(file)[0] or "application/octet-stream"
            keeping = "max-age=86400"
            body = file.read_bytes()
        else:
            self.send_error(404, "There is no such site or page.")
            return
        self.send_response(200)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", keeping)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass  # a training run makes thousands of requests


def sites_of(tasks: Iterable[Task]) -> list[Site]:
    """Return the sites of tasks, by numbers, then names. ValueError if one that a task names is missing."""
    tasks = list(tasks)
    sites: list[Site] = [*shops_of(tasks)]
    tasks_by_folder = {str(task.meta["folder"]): task for task in tasks if "folder" in task.meta}
    for folder, task in sorted(tasks_by_folder.items()):
        if not (Path(folder) / "fsm.json").is_file():
            raise ValueError(f"task {task.id}: there is no site in {folder}; make it again")
        if task.host != f"{name_of(Path(folder))}.test":
            raise ValueError(f"task {task.id} is on {task.host}: {folder} must have its name")
        sites.append(Path(folder))
    return sites


_read = lru_cache(64)(load_world)  # sites in memory


def world_at(site: Site) -> World:
    """Return the site, read from its folder if it is one. Raises ValueError."""
    return site if isinstance(site, World) else _read(site)


def find_task_files(folder: Path) -> list[Path]:
    """Return the tasks.jsonl of a site's folder, or of all sites in a folder. ValueError if there is none."""
    files = list(folder.glob("tasks.jsonl")) or sorted(folder.glob("*/tasks.jsonl"))
    if not files:
        hint = "python -m minirl.worlds make --count 20 --out sites"
        raise ValueError(f"{folder} holds no sites with tasks; make some: {hint}")
    return files
