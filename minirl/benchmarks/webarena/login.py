"""Getting WebArena's sites ready: logins before an episode, and a reset of all sites between runs.

WebAgent-R1, section 4.1. Deviation: each episode has its own login, of all its sites.
"""

import asyncio
import json
import re
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minirl.benchmarks.webarena.tasks import sites_from_environment
from minirl.browser.access import is_address
from minirl.browser.session import FIRST_PAGE_SECONDS
from minirl.types import BrowserFault, Session, Stop, Task, ToolFailure

ANSWER_SECONDS = 30.0  # for a server to answer one request
FOLDER = Path(__file__).parent
RESTORE = FOLDER.joinpath("restore_storage.js").read_text()
Site = Mapping[str, str]  # how to log in to it, and the account; sites.toml explains the fields
LOGINS: dict[str, Site] = tomllib.loads(FOLDER.joinpath("sites.toml").read_text())


def login_to(name: str, environ: Mapping[str, str]) -> Site:
    """Return how to log in to a site, with the benchmark's account or GITLAB_USER, GITLAB_PASSWORD..."""
    site = LOGINS[name]
    return {**site, **{key: environ.get(f"{name}_{key}".upper(), site[key]) for key in ("user", "password")}}


async def log_in(session: Session, task: Task, environ: Mapping[str, str], folder: Path | None) -> None:
    """Log in to a task's sites, by form or with the folder's gitlab_state.json..., and open its page anew."""
    if not (names := login_sites(task)):
        return
    if folder is not None:
        file = task.meta["storage_state"] or f"{'.'.join(sorted(names))}_state.json"
        cookies, stored = read_state(folder / file)
        await session.do(session.context.add_cookies(cookies))
        # a context takes it as a whole only when it is made
        await session.do(session.context.add_init_script(f"({RESTORE})({json.dumps(stored)})"))
    sites = sites_from_environment(environ)
    for name in names:
        site, address = login_to(name, environ), sites[name.upper()]
        try:
            if folder is None:
                await _fill_in(session, address, site)
            await session.goto(address + site["inside"])
            if await session.do(session.page.locator(site["user_field"]).count()):
                raise ToolFailure("the site still asks who it is")
        except ToolFailure as failure:
            problem = f"the login to {name} at {address} failed: {failure}"
            raise BrowserFault(Stop.SITE_ERROR, problem) from None
    await session.goto(task.start_url)
    # the agent should not go back to the login
    cdp = await session.do(session.context.new_cdp_session(session.page))
    await session.do(cdp.send("Page.resetNavigationHistory"))


async def _fill_in(session: Session, address: str, site: Site) -> None:
    await session.goto(address + site["form"])
    page = session.page
    for field in ("user", "password"):
        await session.do(page.locator(site[f"{field}_field"]).first.fill(site[field]))

    async def submit() -> None:
        # to leave before the site has answered would take it back, and some sites take long
        async with page.expect_navigation(wait_until="commit", timeout=1000 * FIRST_PAGE_SECONDS):
            await page.locator(site["submit"]).first.click()

    await session.do(submit(), FIRST_PAGE_SECONDS)


def login_sites(task: Task) -> list[str]:
    """Return the sites to log in to: those of the state file's name, or all of the task's with accounts."""
    if not task.meta["require_login"]:
        return []
    state = task.meta["storage_state"].removesuffix("_state.json")
    return [name for name in (state.split(".") if state else task.meta["sites"]) if name in LOGINS]


def read_state(path: Path) -> tuple[list[Any], dict[str, Any]]:
    """Return cookies, and by origin the local storage, as Playwright's `storage_state` writes them."""
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        return state["cookies"], {origin["origin"]: origin["localStorage"] for origin in state["origins"]}
    except (OSError, ValueError, LookupError, TypeError) as error:
        fix = "write it with Playwright's storage_state, or give no folder, and the forms are filled in"
        raise ValueError(f"{path} holds no stored login ({error!r}): {fix}") from None


async def reset(address: str, seconds: float = 600.0, pause: float = 5.0) -> None:
    """Have all sites made anew by a reset server, as WebAgent-R1 has one, and wait until they are ready.
    ValueError if there is no such server, TimeoutError if the sites are not ready in time."""
    address = address.rstrip("/")
    status, body = await fetch(f"{address}/reset")
    if status not in (200, 418):  # 418: one is running
        fix = "give the reset server's address, like http://host:7565, and see that it runs"
        raise ValueError(f"{address}/reset answered {status or 'nothing'} {body[:80]!r}: {fix}")
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        await asyncio.sleep(pause)
        status, body = await fetch(f"{address}/status")  # it may be busy
        if status == 200 and re.search(r"(?<!not )\bready\b", body, re.IGNORECASE):
            return
    problem = f"the sites at {address} were not ready {seconds:g} s after their reset (last {body[:80]!r})"
    raise TimeoutError(f"{problem}: look at the server's log, or wait longer")


async def fetch(url: str, data: Any = None, **headers: str) -> tuple[int, str]:
    """Return a server's status and text, or 0 and why there is none."""
    import httpx2  # slow to import: only where a server is asked

    if not is_address(url):
        return 0, "no web address"
    method = "GET" if data is None else "POST"
    try:
        async with asyncio.timeout(2 * ANSWER_SECONDS), httpx2.AsyncClient(timeout=ANSWER_SECONDS) as client:
            answer = await client.request(method, url, json=data, headers=headers)
        return answer.status_code, answer.text
    except (httpx2.HTTPError, TimeoutError) as error:
        return 0, repr(error)
