"""Paths through generated sites, for tests: where they lead, and tasks that carry them."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from playwright.async_api import Page, async_playwright

from minirl.browser import executable
from minirl.types import Task
from minirl.worlds.interpreter import World
from minirl.worlds.render import SiteServer
from minirl.worlds.search import Step
from minirl.worlds.solutions import in_json, state_after
from minirl.worlds.widgets import gui_steps


def walk(world: World, steps: Sequence[Step], name: str = "walk") -> Task:
    """A task whose solution these steps are."""
    meta = {"world": world.name, "solution": in_json(steps)}
    goal = {"page": state_after(world, steps).page}
    return Task(name, "", f"http://{world.name}.test/", goal, meta)


def operations(world: World, steps: Sequence[Step]) -> list[str]:
    """The names of all that mouse and keyboard do on a path."""
    names = []
    for n, step in enumerate(steps):
        names += [gui["op"] for gui in gui_steps(world, state_after(world, steps[:n]), step)]
    return names


def completed(document: dict[str, Any]) -> dict[str, Any]:
    """A machine in whose file all actions name their ends: those that named none stay on their page."""
    for page in document["pages"]:
        for action in page["actions"]:
            action.setdefault("from", page["id"])
            action.setdefault("to", page["id"])
    return document


@asynccontextmanager
async def visit(*worlds: World) -> AsyncIterator[Page]:
    """A tab in a fresh browser, on the first world's first page."""
    with SiteServer(worlds) as server:
        async with async_playwright() as playwright:
            found_here = f"--host-resolver-rules=MAP *.test 127.0.0.1:{server.server_port}"
            options = executable.launch_options(found_here, "--no-proxy-server")
            browser = await playwright.chromium.launch(**options)
            page = await browser.new_page(viewport={"width": 480, "height": 360})
            await page.goto(f"http://{worlds[0].name}.test/")
            yield page
            await browser.close()
