"""Getting WebArena's sites ready: logins before an episode. Resets: minirl/browser/servers.py.

WebAgent-R1, section 3.1 and appendix A. Deviation: each episode has its own login, of all its sites.
"""

import os
from collections.abc import Mapping

from minirl.benchmarks.webarena.tasks import sites_from_environment
from minirl.browser.session import FIRST_PAGE_SECONDS
from minirl.package_files import table_of
from minirl.types import Session, Task, ToolFailure

Login = Mapping[str, str]  # how to log in to a site, and the account; sites.toml explains the fields
LOGINS: dict[str, Login] = table_of("benchmarks/webarena/sites.toml")


def login_to(name: str) -> Login:
    """Return how to log in to a site, with the benchmark's account or GITLAB_USER, GITLAB_PASSWORD..."""
    login = dict(LOGINS[name])
    for key in ("user", "password"):
        login[key] = os.environ.get(f"{name}_{key}".upper(), login[key])
    return login


async def log_in(session: Session, task: Task) -> bool:
    """Log in to a task's sites by their forms; return whether there are any. ToolFailure if a site still asks
    for a login."""
    names = login_sites(task)
    for name in names:
        login = login_to(name)
        address = sites_from_environment()[name.upper()]
        await fill_in(session, address, login)
        await session.goto(address + login["inside"])
        if await session.do(session.page.locator(login["user_field"]).count()):
            raise ToolFailure(f"the login to {name} failed: {address} still asks who it is")
    return bool(names)


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
