"""Pages that keep visitors out, and pages that only look so: both error rates, in a real Chromium."""

import re
import tomllib
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import pages
import pytest
from pages import running

from minirl.browser.access import Guard
from minirl.config import BrowserConfig

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONFIG = BrowserConfig(browsers=1, width=800, height=600, quiet_ms=0, private=True)
DOCS = Path(__file__).parents[2] / "docs" / "live_sites.md"
DATA = tomllib.loads((Path(__file__).parents[1] / "data" / "block_pages.toml").read_text("utf-8"))
LONG = "<p>" + "Some more words that say nothing of it. " * 75 + "</p>"
LINKS = "<ul>" + "".join(f'<li><a href="/{n}">Department {n}</a></li>' for n in range(40)) + "</ul>"


class Handler(pages.Handler):
    def do_GET(self) -> None:
        kind, _, name = unquote(self.path)[1:].partition("/")
        page = DATA.get(kind, {}).get(name, {"title": "", "body": ""})
        body = page["body"].replace("LONG", LONG).replace("LINKS", LINKS)
        html = f"<!doctype html><title>{page['title']}</title>{body}"
        self.reply(html.encode(), status=page.get("status", 200))


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with running(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        yield f"http://127.0.0.1:{server.server_port}"


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in DATA for name in DATA[kind]])
async def test_a_page_is_told_for_what_it_is_or_is_known_to_be_hard(session, site, kind, name):
    await session.goto(f"{site}/{kind}/{name}")
    why = await session.blocked()
    assert bool(why) is ((kind == "blocked") is not DATA[kind][name].get("wrong", False)), why
    if kind == "blocked":
        assert why.startswith("it answered ") is (DATA[kind][name].get("status") in (403, 429))


async def test_both_error_rates_are_those_of_the_document():
    """1 of 20 block pages is missed, and 1 of 20 others is taken for one: each page is checked above."""
    wrong = {kind: sum(page.get("wrong", False) for page in DATA[kind].values()) for kind in DATA}
    assert {kind: len(DATA[kind]) for kind in DATA} == {"blocked": 20, "open": 20}
    assert wrong == {"blocked": 1, "open": 1} and all(
        ("note" in page) is page.get("wrong", False) for kind in DATA for page in DATA[kind].values()
    )
    said = " ".join(DOCS.read_text().split())
    assert re.search(r"misses 1 of 20 block pages and takes 1 of 20 look-alikes for one", said)


@pytest.mark.parametrize("own", ["sites", "trusted"])
async def test_generated_and_trusted_sites_are_never_taken_for_blocked(session, site, own, monkeypatch):
    """Even where the page says all that a block page says: control and test differ in the guard alone."""
    await session.goto(f"{site}/blocked/a firewall's refusal")
    assert await session.blocked() == "it answered 403"
    port = int(site.rpartition(":")[2])
    rules = {"sites": {"127.0.0.1": port}} if own == "sites" else {"trusted": {("127.0.0.1", port)}}
    monkeypatch.setattr(session, "guard", Guard(private=True, **rules))
    assert await session.blocked() == ""


async def test_a_page_that_can_not_be_asked_is_not_blocked(session, site, monkeypatch):
    await session.goto(f"{site}/open/an empty basket")
    monkeypatch.setattr("minirl.browser.session.BLOCKED_SECONDS", 0.3)
    for answer in ("() => 7", "() => { throw 1 }", "() => ['x']", "() => { for (;;); }"):
        monkeypatch.setattr("minirl.browser.session.script", lambda _, answer=answer: answer)
        assert await session.blocked() == ""
    await session.revive()
