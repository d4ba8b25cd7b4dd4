"""Facts for the rules of a task, read from a page, from the shop's server or from a language model.

Everything here answers in time or raises NoVerdict, and no answer is run as Python: scripts run in the page,
and a model reads data behind a fence. WebAgent-R1, section 4.1. Deviations: the questions to the model and
the limits of length are our own; of its answers, WebArena's, "not correct" is a no, others are no verdict.
"""

import asyncio
import contextlib
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from playwright.async_api import Error as PlaywrightError
from playwright.async_api import Page

from minirl.benchmarks.webarena.locators import post_address, read_helper
from minirl.benchmarks.webarena.login import FOLDER, fetch, login_to
from minirl.benchmarks.webarena.tasks import sites_from_environment
from minirl.samplers.endpoint import Endpoint, EndpointError
from minirl.types import BrowserFault, Stop

OPEN_SECONDS = 60.0  # for a page to open
REST_SECONDS = 3.0  # at most, for its network to come to rest after that
CALL_SECONDS = 10.0  # for a page to answer a question
JUDGE_CHARS = 6000  # of an answer
PAGE_CHARS = 300_000  # of a page that is read whole: what a cart holds stands behind a long head
JUDGE_TOKENS = 768
MEMBER_ROLE = FOLDER.joinpath("member_role.js").read_text()
FUZZY_MATCH, UA_MATCH = (FOLDER.joinpath(f"{name}.md").read_text() for name in ("fuzzy_match", "ua_match"))
ORDER = {"searchCriteria[sortOrders][0][field]": "created_at", "searchCriteria[pageSize]": "1"}
ORDER["searchCriteria[sortOrders][0][direction]"] = "DESC"
ORDERS, REVIEWS = f"orders?{urlencode(ORDER)}", "products/{}/reviews"
# By helper: what the shop's server is asked, and where its answer has the newest order's or review's fact
SHOP: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "shopping_get_latest_order_url": (ORDERS, lambda r: r["items"] and r["items"][0]["increment_id"]),
    "shopping_get_sku_latest_review_author": (REVIEWS, lambda r: r and r[-1]["nickname"]),
    "shopping_get_sku_latest_review_rating": (REVIEWS, lambda r: r and r[-1]["ratings"][0]["percent"]),
}


class NoVerdict(BrowserFault):
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


async def run_script(page: Page, script: str) -> str | None:
    """Return a locator's value, "" where it fails, None if it finds nothing; the page's HTML for ""."""
    found = await _answer(page.evaluate(f"() => {script}") if script.strip() else page.content())
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


async def call_helper(call: str, page: Page, environ: Mapping[str, str]) -> str | None:
    name, argument = read_helper(call)
    if name == "reddit_get_post_url":
        return post_address(argument.replace("__last_url__", page.url))
    if name == "gitlab_get_project_memeber_role":
        return str(await _answer(page.evaluate(MEMBER_ROLE, argument)))
    shop = sites_from_environment(environ)["SHOPPING"]
    admin = login_to("shopping_admin", environ)
    login = {"username": admin["user"], "password": admin["password"]}
    token = await _fetch_json(f"{shop}/rest/default/V1/integration/admin/token", login)
    if not isinstance(token, str) or not re.fullmatch(r"[!-~]+", token):
        raise NoVerdict(f"{shop} gave its administrator no token")
    question, fact_of = SHOP[name]
    url = f"{shop}/rest/V1/{question.format(quote(argument, safe=''))}"
    found = await _fetch_json(url, Authorization=f"Bearer {token}")
    try:
        fact = fact_of(found)
    except (LookupError, TypeError):
        raise NoVerdict(f"the shop's answer is no answer to {name}: {str(found)[:80]}") from None
    if question is not ORDERS:
        return str(fact) if found else ""
    if fact and not re.fullmatch(r"[0-9]{1,20}", str(fact)):
        raise NoVerdict(f"the shop has an order with the number {str(fact)[:80]!r}")
    return f"{shop}/sales/order/view/order_id/{int(fact)}/" if fact else None


async def _fetch_json(url: str, data: Any = None, **headers: str) -> Any:
    status, body = await fetch(url, data, **headers)
    if status != 200:
        raise NoVerdict(f"{url} answered {status or 'nothing'}: {body[:80]!r}")
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise NoVerdict(f"{url} gave no usable answer: {error!r}") from None


async def llm_fuzzy_match(
    judge: Endpoint | None, question: str, references: list[str], text: str, most: int = JUDGE_CHARS
) -> bool:
    data = {"question": question, "reference": ", ".join(references), "answer": text[:most]}
    return await _ask(judge, FUZZY_MATCH, data, "correct", r"partially|incorrect|not correct")


async def llm_ua_match(judge: Endpoint | None, question: str, reason: str, report: str) -> bool:
    """Return whether a report gives the reason for which a task can't be done (is UnAchievable)."""
    data = {"task": question, "reason": reason, "report": report[:JUDGE_CHARS]}
    return bool(report.strip()) and await _ask(judge, UA_MATCH, data, "same", r"different|not the same")


async def _ask(judge: Endpoint | None, prompt: str, data: Mapping[str, str], yes: str, no: str) -> bool:
    """Return False if the model's reply has the pattern `no`, True if it has the word `yes`."""
    assert judge is not None  # benchmark.py refuses such tasks
    # no string of JSON's has a line of its own, to end the fence; no request can carry half a surrogate pair
    fenced = json.dumps(data, indent=1, ensure_ascii=False).encode("utf-8", "replace").decode()
    question = ("user", (prompt.format(data=fenced),))
    try:
        reply = (await judge.ask([question], max_tokens=JUDGE_TOKENS, temperature=0)).text
    except EndpointError as error:
        raise NoVerdict(f"the judge gave no answer: {error}") from None
    if re.search(no, reply, re.IGNORECASE):
        return False
    if not re.search(rf"\b{yes}\b", reply, re.IGNORECASE):
        raise NoVerdict(f"the judge's reply is no verdict: {reply[:80]!r}")
    return True
