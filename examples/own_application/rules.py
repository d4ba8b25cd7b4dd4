"""What the shop's tasks are worth, and who is logged in when they begin: --task.reward rules.py:reward.

A goal is an answer, or what the shop must show in the end, to whoever the task has logged in:

    {"answer": "27.40"}
    {"open": "/accounts/orders/", "click": "table a", "find": "tbody td", "texts": ["Assam", "2"]}

that is, on a page, behind the first link there is, all that `find` selects has these texts or values.
"""

from urllib.parse import urljoin

from playwright.async_api import Page

from minirl.types import Task

PASSWORD = "agents-welcome"  # of all of the shop's people
READ = "all => all.map(e => (e.matches('input, select') ? e.value : e.innerText).trim())"


async def log_in(task: Task, page: Page) -> None:
    """Log in whoever the task names, before the agent sees the page."""
    if "user" not in task.meta:
        return
    await page.goto(urljoin(task.start_url, "/accounts/login/"))
    await page.fill("#id_login-username", task.meta["user"])
    await page.fill("#id_login-password", PASSWORD)
    await page.click("button[name=login_submit]")
    await page.wait_for_selector("#logout_link, #logout_form")


async def reward(task: Task, page: Page, answer: str) -> float:
    """Return 1 for the right answer, or if the shop shows what the goal says."""
    goal = task.goal
    if "answer" in goal:
        return float(goal["answer"] in answer.split())
    await page.goto(urljoin(task.start_url, goal["open"]))
    if "click" in goal:
        await page.locator(goal["click"]).first.click()
        await page.wait_for_load_state()
    return float(await page.locator(goal["find"]).evaluate_all(READ) == goal["texts"])
