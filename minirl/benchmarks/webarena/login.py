"""Getting WebArena's sites ready: logins before an episode, and a reset of all sites between runs.

    session.start -> log_in -> further tabs -> the episode's first look

WebAgent-R1, section 4.1. Deviations: a login that fails ends the episode as the site's fault; each episode
has its own login, of all its sites.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from http.client import HTTPException
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from minirl.benchmarks.webarena.tasks import sites_from_environment
from minirl.browser.access import is_address
from minirl.browser.session import Session
from minirl.types import BrowserFault, Stop, Task, ToolFailure

ANSWER_SECONDS = 30.0  # for a server to answer one request
MOST_BYTES = 10_000_000  # that are read of an answer
RESTORE = files("minirl.benchmarks.webarena").joinpath("restore_storage.js").read_text()


@dataclass(frozen=True)
class Site:
    """How to log in to a site, and the account; sites.toml explains the fields."""

    form: str
    user_field: str
    password_field: str
    submit: str
    inside: str
    user: str
    password: str


SITES_TOML = files("minirl.benchmarks.webarena").joinpath("sites.toml").read_text()
LOGINS = {name: Site(**fields) for name, fields in tomllib.loads(SITES_TOML).items()}


def logins_from_environment(environ: Mapping[str, str]) -> dict[str, Site]:
    """Return the logins by site, with the benchmark's accounts or those in GITLAB_USER, GITLAB_PASSWORD..."""
    found = dict(LOGINS)
    for name, field in itertools.product(LOGINS, ("user", "password")):
        if (variable := f"{name}_{field}".upper()) in environ:
            found[name] = replace(found[name], **{field: environ[variable]})
    return found


async def log_in(session: Session, task: Task, environ: Mapping[str, str], folder: Path | None) -> None:
    """Log in to the sites that a task names, check that it worked, and open the task's first page anew.
    Raises BrowserFault (Stop.SITE_ERROR).

    The sites' forms are filled in; or, with a folder, its files gitlab_state.json, gitlab.reddit_state.json
    and so on are used, which Playwright's `storage_state` wrote.
    """
    sites, logins = sites_from_environment(environ), logins_from_environment(environ)
    if not (names := login_sites(task)):
        return
    if folder is not None:
        file = task.meta["storage_state"] or f"{'.'.join(sorted(names))}_state.json"
        cookies, stored = read_state(folder / file)
        await session.do(session.context.add_cookies(cookies))
        if stored:  # a context takes it as a whole only when it is made
            await session.do(session.context.add_init_script(f"({RESTORE})({json.dumps(stored)})"))
    for name in names:
        site, address = logins[name], sites[name.upper()]
        try:
            if folder is None:
                await _fill_in(session, address, site)
            await session.goto(address + site.inside)
            if await session.do(session.page.locator(site.user_field).count()):
                raise ToolFailure("the site still asks who it is")
        except ToolFailure as failure:
            problem = f"the login to {name} at {address} failed: {failure}"
            raise BrowserFault(Stop.SITE_ERROR, problem) from None
    await session.goto(task.start_url)
    # the agent should not go back to the login
    await session.do((await session.tab()).cdp.send("Page.resetNavigationHistory"))


async def _fill_in(session: Session, address: str, site: Site) -> None:
    await session.goto(address + site.form)
    page, seconds = session.page, session.config.start_seconds
    await session.do(page.locator(site.user_field).first.fill(site.user))
    await session.do(page.locator(site.password_field).first.fill(site.password))

    async def submit() -> None:
        # to leave before the site has answered would take it back, and some sites take long
        async with page.expect_navigation(wait_until="commit", timeout=1000 * seconds):
            await page.locator(site.submit).first.click()

    await session.do(submit(), seconds)


def login_sites(task: Task) -> list[str]:
    """Return the sites to log in to: those that the record's state file is named after, or else all of the
    task's that have accounts."""
    if not task.meta["require_login"]:
        return []
    state = task.meta["storage_state"].removesuffix("_state.json")
    return [name for name in (state.split(".") if state else task.meta["sites"]) if name in LOGINS]


def read_state(path: Path) -> tuple[list[Any], dict[str, Any]]:
    """Return cookies, and by origin the local storage, as Playwright's `storage_state` writes them.
    ValueError if the file holds something else."""
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        return state["cookies"], {origin["origin"]: origin["localStorage"] for origin in state["origins"]}
    except (OSError, ValueError, LookupError, TypeError) as error:
        fix = "write it with Playwright's storage_state, or give no folder, and the forms are filled in"
        raise ValueError(f"{path} holds no stored login ({error!r}): {fix}") from None


async def reset(address: str, seconds: float = 600.0, pause: float = 5.0) -> None:
    """Have all sites made anew by a reset server (WebAgent-R1's listens on port 7565), and wait until they
    are ready; a reset that is already running counts. ValueError if there is no reset server, TimeoutError if
    the sites are not ready in time."""
    address, ends = address.rstrip("/"), time.monotonic() + seconds
    fix = "give the reset server's address, like http://host:7565, and see that it runs"
    if not is_address(address):
        raise ValueError(f"{address!r} is no web address: {fix}")
    try:
        status, body = await asyncio.to_thread(fetch, f"{address}/reset")
    except OSError as error:
        raise ValueError(f"{address}/reset can't be reached ({error}): {fix}") from None
    if status not in (200, 418):  # 418: one is running
        raise ValueError(f"{address}/reset answered {status} {body[:80]!r}: {fix}")
    while time.monotonic() < ends:
        await asyncio.sleep(pause)
        try:
            status, body = await asyncio.to_thread(fetch, f"{address}/status")
        except OSError as error:  # it may be busy
            status, body = 0, str(error)
        if status == 200 and re.search(r"(?<!not )\bready\b", body, re.IGNORECASE):
            return
    problem = f"the sites at {address} were not ready {seconds:g} s after their reset (last {body[:80]!r})"
    raise TimeoutError(f"{problem}: look at the server's log, or wait longer")


def fetch(url: str, data: Any = None, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Return a server's status and text; asked with POST if there is data, sent as JSON. Blocks for
    ANSWER_SECONDS at most while nothing comes. Raises OSError if there is no answer."""
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
