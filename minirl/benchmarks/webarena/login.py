"""Getting WebArena's sites ready: logins before an episode, and a reset of all sites between runs.

WebAgent-R1, section 3.1 and appendix A. Deviation: each episode has its own login, of all its sites.
"""

import asyncio
import os
import re
import time
from collections.abc import Mapping
from typing import Any

from minirl.benchmarks.webarena.tasks import sites_from_environment
from minirl.browser.session import FIRST_PAGE_SECONDS
from minirl.package_files import table_of
from minirl.types import Session, Task, ToolFailure

ANSWER_SECONDS = 30.0  # for a server to answer one request
RESET_SECONDS = 600.0  # for all sites to be made anew
RESET_PAUSE = 5.0  # seconds between two questions whether they are
Login = Mapping[str, str]  # how to log in to a site, and the account; sites.toml explains the fields
LOGINS: dict[str, Login] = table_of("benchmarks/webarena/sites.toml")


def login_to(name: str) -> Login:
    """Return how to log in to a site, with the benchmark's account or GITLAB_USER, GITLAB_PASSWORD..."""
    login = dict(LOGINS[name])
    for key in ("user", "password"):
        login[key] = os.environ.get(f"{name}_{key}".upper(), login[key])
    return login


async def log_in(session: Session, task: Task) -> None:
    """Log in to a task's sites by their forms, and open its page anew. ToolFailure if a site still asks for
    a login."""
    names = login_sites(task)
    if not names:
        return
    for name in names:
        login = login_to(name)
        address = sites_from_environment()[name.upper()]
        await fill_in(session, address, login)
        await session.goto(address + login["inside"])
        if await session.do(session.page.locator(login["user_field"]).count()):
            raise ToolFailure(f"the login to {name} failed: {address} still asks who it is")
    await session.goto(task.start_url)
    # the agent should not go back to the login
    cdp = await session.do(session.context.new_cdp_session(session.page))
    await session.do(cdp.send("Page.resetNavigationHistory"))


async def fill_in(session: Session, address: str, login: Login) -> None:
    """Log in by a site's form."""
    await session.goto(address + login["form"])
    page = session.page
    for key in ("user", "password"):
        await session.do(page.locator(login[f"{key}_field"]).first.fill(login[key]))

    async def submit() -> None:
        # to leave before the site has answered would take it back, and some sites take long
        async with page.expect_navigation(wait_until="commit", timeout=1000 * FIRST_PAGE_SECONDS):
            await page.locator(login["submit"]).first.click()

    await session.do(submit(), FIRST_PAGE_SECONDS)


def login_sites(task: Task) -> list[str]:
    """Return the sites to log in to: those of the state file's name, or all of the task's with accounts."""
    if not task.meta["require_login"]:
        return []
    state = task.meta["storage_state"].removesuffix("_state.json")
    names = state.split(".") if state else task.meta["sites"]
    return [name for name in names if name in LOGINS]


async def reset(address: str) -> None:
    """Have all sites made anew by a reset server, as WebAgent-R1 has one, and wait until they are ready.
    ValueError if there is no such server, TimeoutError if the sites are not ready in time."""
    address = address.rstrip("/")
    status, body = await fetch(f"{address}/reset")
    if status not in (200, 418):  # 418: one is running
        fix = "give the reset server's address, like http://host:7565, and see that it runs"
        raise ValueError(f"{address}/reset answered {status or 'nothing'} {body[:80]!r}: {fix}")
    ends = time.monotonic() + RESET_SECONDS
    while time.monotonic() < ends:
        await asyncio.sleep(RESET_PAUSE)
        status, body = await fetch(f"{address}/status")  # it may be busy
        if status == 200 and re.search(r"(?<!not )\bready\b", body, re.IGNORECASE):
            return
    problem = f"the sites at {address} were not ready {RESET_SECONDS:g} s after their reset"
    raise TimeoutError(f"{problem} ({body[:80]!r})")


async def fetch(url: str, data: Any = None, **headers: str) -> tuple[int, str]:
    """Return a server's status and text, or 0 and why there is none."""
    import httpx2  # slow to import: only where a server is asked

    method = "GET" if data is None else "POST"
    try:
        async with httpx2.AsyncClient(timeout=ANSWER_SECONDS) as client:
            answer = await client.request(method, url, json=data, headers=headers)
        return answer.status_code, answer.text
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        return 0, repr(error)
