"""WebArena and WebArena-Lite: their records as tasks, their sites' addresses, and getting ready for one.

    record -> task_of -> Task;  session.start -> prepare (log in, open all tabs) -> the episode's first look

Stands beside task files, which hand it the records that `is_record` knows, and before episodes. What a
finished episode is worth is decided by `minirl.benchmarks.webarena.evaluators`, from the task's goal.
WebAgent-R1, section 4.1, and
the public benchmarks' formats. Deviations: every record is checked when it is read; a login that fails ends
the episode as the site's fault; each episode has its own login, of all its sites.

The addresses come from the variables that WebArena uses: SHOPPING, SHOPPING_ADMIN (ends in /admin), REDDIT,
GITLAB, MAP, WIKIPEDIA, HOMEPAGE. Without them records can be read, but not run: `missing` names those needed.
They may be private ones: the guard opens `places`, each with its port, and nothing else beside them.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from minirl.benchmarks.formats import AND
from minirl.benchmarks.webarena.records import check_address, check_rules, field, mended, text, texts
from minirl.browser.access import is_address
from minirl.browser.session import Session
from minirl.types import BrowserFault, Stop, Task, ToolFailure

# By variable: the name that people, and the models that WebArena trained, know a site by
PUBLIC = {
    "SHOPPING": "http://onestopmarket.com",
    "SHOPPING_ADMIN": "http://luma.com/admin",
    "REDDIT": "http://reddit.com",
    "GITLAB": "http://gitlab.com",
    "MAP": "http://openstreetmap.org",
    "WIKIPEDIA": "http://wikipedia.org",
    "HOMEPAGE": "http://homepage.com",
}
PLACEHOLDER = re.compile(r"__([A-Z_]+?)__")
STATE_FILE = re.compile(r"[a-z_]+(\.[a-z_]+)*_state\.json")

ANSWER_SECONDS = 30.0  # for a server to answer one request
MOST_BYTES = 10_000_000  # that are read of an answer

# ---- Sites ------------------------------------------------------------------------------------------


def sites_from_environment(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The sites' addresses by variable, without a slash at the end. One that is not set gets an address that
    leads nowhere, such as http://shopping.webarena.test. Raises ValueError for what is no address."""
    sites = {}
    for name in PUBLIC:
        address = environ.get(name, "").rstrip("/") or placeless(name)
        if not is_address(address):
            raise ValueError(f"the variable {name} is {address!r}; it must be like http://host:port")
        sites[name] = address
    return sites


def placeless(name: str) -> str:
    """The address of a site whose variable is not set; .test belongs to nobody."""
    return f"http://{name.lower().replace('_', '-')}.webarena.test"


def missing(tasks: Iterable[Task], environ: Mapping[str, str] = os.environ) -> list[str]:
    """The variables that must be set before these tasks can be run, sorted; other benchmarks need none."""
    needed = named(tasks, {name: placeless(name) for name in PUBLIC})
    return sorted(name for name in needed if not environ.get(name))


def places(tasks: Iterable[Task], environ: Mapping[str, str] = os.environ) -> set[tuple[str, int]]:
    """Host and port of the sites that these tasks are about. Whoever sets a variable has chosen the address,
    which is mostly a private one; what else a task file names is not in here."""
    own, found = [task for task in tasks if task.goal.get("kind") == "webarena"], set()
    sites = sites_from_environment(environ) if own else {}  # the variables may be somebody else's
    for name in named(own, sites):
        if environ.get(name):
            parts = urlsplit(sites[name])
            port = parts.port or (443 if parts.scheme == "https" else 80)
            found.add(((parts.hostname or "").removesuffix("."), port))
    return found


def named(tasks: Iterable[Task], sites: Mapping[str, str]) -> set[str]:
    """The variables of the sites that WebArena's tasks name, or whose addresses stand in them."""
    found: set[str] = set()
    for task in tasks:
        if task.goal.get("kind") == "webarena":
            found |= {site.upper() for site in task.meta["sites"]}
            words = json.dumps([task.start_url, task.goal, task.meta])
            found |= {name for name, address in sites.items() if address in words}
    return found


def to_local(url: str, sites: Mapping[str, str]) -> str:
    """An address under a site's public name as that of the site itself; others as they are.

    >>> to_local("https://www.reddit.com/f/books", {"REDDIT": "http://127.0.0.1:9999"})
    'http://127.0.0.1:9999/f/books'
    """
    bare = re.sub(r"^https?://(www\.)?", "http://", url)
    return _moved(url, bare, [(PUBLIC[name], address) for name, address in sites.items()])


def to_public(url: str, sites: Mapping[str, str]) -> str:
    """The inverse of `to_local`."""
    return _moved(url, url, [(address, PUBLIC[name]) for name, address in sites.items()])


def _moved(url: str, bare: str, moves: list[tuple[str, str]]) -> str:
    for old, new in sorted(moves, key=lambda move: -len(move[0])):  # of two that fit, the longer
        if bare.startswith(old) and bare[len(old) : len(old) + 1] in ("", "/", "?", "#"):
            return new + bare[len(old) :]
    return url


# ---- Records ----------------------------------------------------------------------------------------


def is_record(record: Mapping[str, Any]) -> bool:
    """Whether an object is a record of WebArena or WebArena-Lite, if perhaps a malformed one."""
    return all(name in record for name in ("task_id", "sites", "intent", "eval"))


def task_of(record: Mapping[str, Any], sites: Mapping[str, str]) -> Task:
    """A record as a task, its placeholders replaced by the sites' addresses. ValueError names what is
    malformed."""
    number = field(record, "task_id", int)
    names = texts(record, "sites")
    if not names or any(name.upper() not in PUBLIC for name in names):
        raise ValueError(f"the field 'sites' must name some of {', '.join(PUBLIC).lower()}, not {names}")
    start, *tabs = _resolved(text(record, "start_url"), sites).split(AND)
    for url in (start, *tabs):
        check_address(url, "start_url")
    state = record.get("storage_state") or ""
    if not isinstance(state, str) or not (state == "" or STATE_FILE.fullmatch(PurePosixPath(state).name)):
        raise ValueError("the field 'storage_state' must be null or a path like .auth/gitlab_state.json")
    is_lite = "old_task_id" in record
    meta = {
        "benchmark": "webarena-lite" if is_lite else "webarena",
        "sites": names,
        "site": names[0] if len(names) == 1 else "multi-site",
        "tabs": tabs,
        "require_login": field(record, "require_login", bool),
        "storage_state": PurePosixPath(state).name if state else "",
        "old_task_id": field(record, "old_task_id", int) if is_lite else None,
        "template": field(record, "intent_template_id", int),
    }
    try:
        rules, meta["mended"] = mended(_resolved(field(record, "eval", dict), sites))
    except RecursionError:
        raise ValueError("the field 'eval' is nested too deeply") from None
    check_rules(rules)
    goal = rules | {"kind": "webarena"}
    number = meta["old_task_id"] if is_lite else number  # which the two files of Lite do not share
    return Task(f"webarena-{number}", text(record, "intent"), start, goal, meta)


def check_task(task: Task) -> None:
    """ValueError names what is malformed in a task that was not made from a record, but says that it was."""
    for name in ("sites", "tabs", "mended"):
        texts(task.meta, name)
    for name, kind in (("require_login", bool), ("storage_state", str)):
        field(task.meta, name, kind)
    check_rules(task.goal)


def _resolved(value: Any, sites: Mapping[str, str]) -> Any:
    """The same with every placeholder, such as __GITLAB__, replaced."""
    match value:
        case str():
            return PLACEHOLDER.sub(lambda match: sites.get(match[1], match[0]), value)
        case list():
            return [_resolved(item, sites) for item in value]
        case dict():
            return {key: _resolved(item, sites) for key, item in value.items()}
        case _:
            return value


# ---- Before an episode ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Account:
    user: str
    password: str


@dataclass(frozen=True)
class Door:
    """How to log in: the page with the form, its fields and its button, and a page that sends those who are
    not logged in to the form. Addresses are relative to the site's, the rest are CSS selectors."""

    form: str
    user: str
    password: str
    submit: str
    inside: str


DOORS = {
    "shopping": Door(
        "/customer/account/login/",
        '#login-form [name="login[username]"]',
        '#login-form [name="login[password]"]',
        '#login-form button[type="submit"]',
        "/customer/account/",
    ),
    "shopping_admin": Door("", "#username", "#login", ".action-login", "/dashboard"),
    "reddit": Door(
        "/login", '[name="_username"]', '[name="_password"]', 'form:has([name="_password"]) button', "/submit"
    ),
    "gitlab": Door(
        "/users/sign_in",
        '[name="user[login]"]',
        '[name="user[password]"]',
        'form:has([name="user[password]"]) [type="submit"]',
        "/-/profile",
    ),
}
# The benchmark's own test accounts, the same in everybody's copy of the sites
ACCOUNTS = {
    "shopping": Account("emma.lopez@gmail.com", "Password.123"),
    "shopping_admin": Account("admin", "admin1234"),
    "reddit": Account("MarvelsGrantMan136", "test1234"),
    "gitlab": Account("byteblaze", "hello1234"),
}

# Fills in what a site kept in the browser, where it has not put anything newer.
RESTORE = """((kept) => {
  try {
    for (const {name, value} of kept[location.origin] ?? [])
      if (localStorage.getItem(name) === null) localStorage.setItem(name, value);
  } catch {}  // a document without storage
})"""


def accounts_from_environment(environ: Mapping[str, str] = os.environ) -> dict[str, Account]:
    """The accounts by site: the benchmark's, unless GITLAB_USER, GITLAB_PASSWORD and so on say others."""
    return {
        site: Account(
            environ.get(f"{site.upper()}_USER", account.user),
            environ.get(f"{site.upper()}_PASSWORD", account.password),
        )
        for site, account in ACCOUNTS.items()
    }


async def prepare(
    session: Session,
    task: Task,
    sites: Mapping[str, str] | None = None,
    accounts: Mapping[str, Account] | None = None,
    folder: Path | None = None,
) -> None:
    """What is left to do after `session.start` and before the first look: logs in, opens the task's first
    page anew and its further tabs, and returns to the first. Tasks of other benchmarks need no login.

    Sites and accounts are by default the environment's; `folder` is as for `login`. Raises BrowserFault,
    with Stop.SITE_ERROR, if a site does not play along.
    """
    tabs = task.meta.get("tabs", ())
    try:
        if task.goal.get("kind") == "webarena" and await login(
            session,
            task,
            sites_from_environment() if sites is None else sites,
            accounts_from_environment() if accounts is None else accounts,
            folder,
        ):
            await session.goto(task.start_url)
            # the agent should not go back to the login
            await session.do((await session.tab()).cdp.send("Page.resetNavigationHistory"))
        for url in tabs:
            await session.new_tab()
            await session.goto(url)
        if tabs:
            await session.switch_tab(0)
    except ToolFailure as failure:
        raise BrowserFault(Stop.SITE_ERROR, f"{task.id} could not be prepared: {failure}") from None


async def login(
    session: Session,
    task: Task,
    sites: Mapping[str, str],
    accounts: Mapping[str, Account],
    folder: Path | None = None,
) -> bool:
    """Logs in to the sites that a task names, and makes sure of it; False if there is nothing to do.

    With a folder its files gitlab_state.json, gitlab.reddit_state.json and so on are used, which Playwright's
    `storage_state` wrote; without, the sites' forms are filled in. Raises BrowserFault (Stop.SITE_ERROR).
    """
    names = login_sites(task)
    if names and folder is not None:
        file = task.meta["storage_state"] or f"{'.'.join(sorted(names))}_state.json"
        await _restore(session, *read_state(folder / file))
    for name in names:
        door, address = DOORS[name], sites[name.upper()]
        try:
            if folder is None:
                await _fill_in(session, address, door, accounts[name])
            await session.goto(address + door.inside)
            if await session.do(session.page.locator(door.user).count()):
                raise ToolFailure("the site still asks who it is")
        except ToolFailure as failure:
            raise BrowserFault(
                Stop.SITE_ERROR, f"the login to {name} at {address} failed: {failure}"
            ) from None
    return bool(names)


async def _fill_in(session: Session, address: str, door: Door, account: Account) -> None:
    await session.goto(address + door.form)
    page, seconds = session.page, session.config.start_seconds
    await session.do(page.locator(door.user).first.fill(account.user))
    await session.do(page.locator(door.password).first.fill(account.password))

    async def submit() -> None:
        # to leave before the site has answered would take it back, and some take long to let one in
        async with page.expect_navigation(wait_until="commit", timeout=1000 * seconds):
            await page.locator(door.submit).first.click()

    await session.do(submit(), seconds)


def login_sites(task: Task) -> list[str]:
    """The sites to log in to: those that the record's state file is named after, or else all of the task's
    that have accounts. Of two that would take each other's cookies a record names one."""
    if not task.meta["require_login"]:
        return []
    state = task.meta["storage_state"].removesuffix("_state.json")
    return [name for name in (state.split(".") if state else task.meta["sites"]) if name in DOORS]


def read_state(path: Path) -> tuple[list[Any], dict[str, Any]]:
    """Cookies, and by origin the local storage, as Playwright's `storage_state` writes them. ValueError if
    that is not what the file holds."""
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        return state["cookies"], {origin["origin"]: origin["localStorage"] for origin in state["origins"]}
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ValueError(
            f"{path} holds no stored login ({error!r}): write it with Playwright's storage_state, or give no "
            "folder, and the forms are filled in"
        ) from None


async def _restore(session: Session, cookies: list[Any], stored: Mapping[str, Any]) -> None:
    await session.do(session.context.add_cookies(cookies))
    if stored:  # a context takes it as a whole only when it is made
        await session.do(session.context.add_init_script(f"{RESTORE}({json.dumps(stored)})"))


# ---- Between runs -----------------------------------------------------------------------------------


async def reset(address: str, seconds: float = 600.0, pause: float = 5.0) -> None:
    """Has all sites made anew by a reset server (WebAgent-R1's listens on port 7565), and waits until it says
    that they are ready; a reset that is already running counts. ValueError if there is no such server,
    TimeoutError if the sites are not ready in time."""
    address, ends = address.rstrip("/"), time.monotonic() + seconds
    fix = "give the reset server's address, like http://host:7565, and see that it runs"
    if not is_address(address):
        raise ValueError(f"{address!r} is no web address: {fix}")
    try:
        status, said = await asyncio.to_thread(fetch, f"{address}/reset")
    except OSError as error:
        raise ValueError(f"{address}/reset can't be reached ({error}): {fix}") from None
    if status not in (200, 418):  # 418: one is running
        raise ValueError(f"{address}/reset answered {status} {said[:80]!r}: {fix}")
    while time.monotonic() < ends:
        await asyncio.sleep(pause)
        try:
            status, said = await asyncio.to_thread(fetch, f"{address}/status")
        except OSError as error:  # it may be busy
            status, said = 0, str(error)
        if status == 200 and re.search(r"(?<!not )\bready\b", said, re.IGNORECASE):
            return
    raise TimeoutError(
        f"the sites at {address} were not ready {seconds:g} s after their reset (last {said[:80]!r}): "
        "look at the server's log, or wait longer"
    )


def fetch(url: str, data: Any = None, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
    """A server's status and text; asked with POST if there is data, sent as JSON. Blocks for ANSWER_SECONDS
    at most while nothing comes. Raises OSError if there is no answer."""
    assert is_address(url), url
    body = None if data is None else json.dumps(data).encode()
    request = Request(url, body, {"Content-Type": "application/json", **(headers or {})})
    try:
        with urlopen(request, timeout=ANSWER_SECONDS) as answer:
            return answer.status, answer.read(MOST_BYTES).decode(errors="replace")
    except HTTPError as error:
        with error:
            return error.code, error.read(MOST_BYTES).decode(errors="replace")
    except HTTPException as error:  # what came is no HTTP
        raise OSError(f"{error!r}") from None
