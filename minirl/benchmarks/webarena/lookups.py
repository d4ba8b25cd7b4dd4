"""Facts for the rules of a task, read from a page, from the shop's server or from a language model.

Stands beneath benchmark.py. Everything here answers in time or raises NoVerdict, and no answer is run as
Python: scripts run in the page, an account's name is an argument of a script, and a model reads data behind a
fence. WebAgent-R1, section 4.1. Deviation: the questions to the model are our own; its possible answers and
the order in which they are looked for are WebArena's.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Awaitable, Mapping
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Page

from minirl.benchmarks.webarena.locators import Helper, post_address
from minirl.benchmarks.webarena.login import ANSWER_SECONDS, Site, fetch, logins_from_environment
from minirl.benchmarks.webarena.tasks import sites_from_environment
from minirl.benchmarks.webarena.text_match import Variant
from minirl.samplers.endpoint import Endpoint, EndpointError
from minirl.types import BrowserFault, Stop

OPEN_SECONDS = 60.0  # for a page to open
REST_SECONDS = 3.0  # at most, for its network to come to rest after that
CALL_SECONDS = 10.0  # for a page to answer a question
JUDGE_CHARS = 6000  # of an answer or a page's text
JUDGE_TOKENS = 768
FOLDER = files("minirl.benchmarks.webarena")
MEMBER_ROLE = FOLDER.joinpath("member_role.js").read_text()
FUZZY_MATCH, UA_MATCH = (FOLDER.joinpath(f"{name}.md").read_text() for name in ("fuzzy_match", "ua_match"))
NEWEST_ORDER = "searchCriteria[sortOrders][0][field]=created_at&searchCriteria[sortOrders][0][direction]=DESC"
NEWEST_ORDER += "&searchCriteria[pageSize]=1"


class NoVerdict(BrowserFault):
    """An episode can't be scored: a site, its page or the judge gave no usable answer."""

    def __init__(self, reason: str):
        super().__init__(Stop.JUDGE_ERROR, reason)


async def open_page(page: Page, url: str) -> None:
    for attempt in (1, 2):
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                await page.goto(url, wait_until="load", timeout=0)
            break
        except (TimeoutError, PlaywrightError) as error:
            reason = (str(error) or "it takes too long").splitlines()[0]
            if "interrupted by another navigation" not in reason:
                raise NoVerdict(f"{url} did not open: {reason}") from None
            if "chrome-error:" not in reason:  # the page has come and sends its visitors on
                break
            if attempt == 2:  # the first time it is the error page of where the agent was before
                raise NoVerdict(f"{url} did not open") from None
    with contextlib.suppress(TimeoutError, PlaywrightError):  # some pages never rest
        async with asyncio.timeout(REST_SECONDS):
            await page.wait_for_load_state("networkidle", timeout=0)


async def read_page(page: Page) -> str:
    """Return the page's HTML, "" while it is being replaced."""
    return str(await _answer(page.content()))


async def run_script(page: Page, script: str) -> str | None:
    """Return the value of an expression in the page as text: "" where it fails, None where it finds nothing.
    The script must have passed locators.py."""
    found = await _answer(page.evaluate(f"() => {script}"))
    return None if found is None else str(found)


async def _answer(work: Awaitable[Any]) -> Any:
    try:
        async with asyncio.timeout(CALL_SECONDS):
            return await work
    except TimeoutError:
        raise NoVerdict("the page does not answer") from None
    except PlaywrightError as error:
        reason = error.message.splitlines()[0]
        if "crashed" in reason or "closed" in reason:
            raise NoVerdict(f"the page is gone: {reason}") from None
        return ""  # it is not the page that was meant


async def call_helper(helper: Helper, page: Page, environ: Mapping[str, str]) -> str | None:
    """Return the value of a helper function, "" or None if it finds nothing."""
    shop = sites_from_environment(environ)["SHOPPING"]
    admin = logins_from_environment(environ)["shopping_admin"]
    match helper.name:
        case "reddit_get_post_url":
            return post_address(helper.argument.replace("__last_url__", page.url))
        case "gitlab_get_project_memeber_role":
            return str(await _answer(page.evaluate(MEMBER_ROLE, helper.argument)))
        case "shopping_get_latest_order_url":
            answer = await _ask_shop(shop, admin, f"/rest/V1/orders?{quote(NEWEST_ORDER, safe='=&')}")
            if not _part(answer, "items"):
                return None
            number = str(_part(answer, "items", 0, "increment_id"))
            if not re.fullmatch(r"[0-9]{1,20}", number):
                raise NoVerdict(f"the shop has an order with the number {number[:80]!r}")
            return f"{shop}/sales/order/view/order_id/{int(number)}/"
    reviews = await _ask_shop(shop, admin, f"/rest/V1/products/{quote(helper.argument, safe='')}/reviews")
    is_author = helper.name == "shopping_get_sku_latest_review_author"
    field = ("nickname",) if is_author else ("ratings", 0, "percent")
    return str(_part(reviews, -1, *field)) if reviews else ""


async def _ask_shop(shop: str, admin: Site, path: str) -> Any:
    """Return what the shop's server answers to its administrator."""
    login = {"username": admin.user, "password": admin.password}
    token = await _fetch_json(f"{shop}/rest/default/V1/integration/admin/token", login)
    if not isinstance(token, str) or not re.fullmatch(r"[!-~]+", token):
        raise NoVerdict(f"{shop} gave its administrator no token")
    return await _fetch_json(f"{shop}{path}", headers={"Authorization": f"Bearer {token}"})


async def _fetch_json(url: str, data: Any = None, headers: Mapping[str, str] | None = None) -> Any:
    try:
        async with asyncio.timeout(2 * ANSWER_SECONDS):
            status, body = await asyncio.to_thread(fetch, url, data, headers)
        if status != 200:
            raise NoVerdict(f"{url} answered {status}: {body[:80]!r}")
        return json.loads(body)
    except (OSError, ValueError, RecursionError) as error:  # TimeoutError is an OSError
        raise NoVerdict(f"{url} gave no usable answer: {error!r}") from None


def _part(value: Any, *path: str | int) -> Any:
    try:
        for key in path:
            value = value[key]
    except (LookupError, TypeError):
        raise NoVerdict(f"the shop's answer has no {path}: {str(value)[:80]}") from None
    return value


async def llm_fuzzy_match(
    judge: Endpoint | None, variant: Variant, question: str, references: list[str], text: str
) -> bool:
    """Ask the model whether a text says what the references say; correct in part is not correct. Lite asks
    about all references at once, upstream about each."""
    words = ("correct", r"partially|incorrect|not correct")
    for reference in [", ".join(references)] if variant == "lite" else references:
        data = {"question": question, "reference": reference, "answer": text}
        if not text.strip() or not await _ask(judge, FUZZY_MATCH, data, *words):
            return False
    return True


async def llm_ua_match(judge: Endpoint | None, question: str, reason: str, report: str) -> bool:
    """Ask the model whether a report gives the reason for which a task can't be done (is UnAchievable)."""
    data = {"task": question, "reason": reason, "report": report}
    return bool(report.strip()) and await _ask(judge, UA_MATCH, data, "same", r"different|not the same")


async def _ask(judge: Endpoint | None, prompt: str, data: Mapping[str, str], yes: str, no: str) -> bool:
    assert judge is not None  # benchmark.py refuses such tasks
    question = ("user", (prompt.format(data=fenced(**data)),))
    try:
        reply = await judge.ask([question], max_tokens=JUDGE_TOKENS, temperature=0)
    except EndpointError as error:
        raise NoVerdict(f"the judge gave no answer: {error}") from None
    return verdict_of(reply.text, yes, no)


def fenced(**data: str) -> str:
    """Return texts as JSON, whose strings have no line of their own that could end the fence. Halves of
    surrogate pairs, which no request can carry, become question marks."""
    most = JUDGE_CHARS
    short = {name: text if len(text) <= most else f"{text[:most]}..." for name, text in data.items()}
    return json.dumps(short, indent=1, ensure_ascii=False).encode("utf-8", "replace").decode()


def verdict_of(reply: str, yes: str, no: str) -> bool:
    """Return False if a reply has the pattern `no`, True if it has the word `yes`; else raise NoVerdict."""
    if re.search(no, reply, re.IGNORECASE):
        return False
    if not re.search(rf"\b{yes}\b", reply, re.IGNORECASE):
        raise NoVerdict(f"the judge's reply is no verdict: {reply[:80]!r}")
    return True
