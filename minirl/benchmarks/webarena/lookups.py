"""Facts for the rules of a task, read from a page, from the shop's server or from a language model.

Everything here answers in time or raises NoVerdict, and no answer is run as Python: scripts run in the page,
and a model reads data behind a fence. WebAgent-R1, section 4.1. Deviations:

1. The questions to the model and the limits of length are our own.
2. Of the model's replies "not correct" is a no, and one that is no verdict gives no score.
"""

import asyncio
import contextlib
import json
import re
from collections.abc import Awaitable, Mapping
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
ANSWER_CHARS = 6000  # of an answer, that the model reads
PAGE_CHARS = 300_000  # of a page that is read whole: what a cart holds stands behind a long head
JUDGE_TOKENS = 768
MEMBER_ROLE = FOLDER.joinpath("member_role.js").read_text()
FUZZY_MATCH = FOLDER.joinpath("fuzzy_match.md").read_text()
UA_MATCH = FOLDER.joinpath("ua_match.md").read_text()
NEWEST_ORDER = {
    "searchCriteria[sortOrders][0][field]": "created_at",
    "searchCriteria[pageSize]": "1",
    "searchCriteria[sortOrders][0][direction]": "DESC",
}


class NoVerdict(BrowserFault):
    def __init__(self, reason: str):
        super().__init__(Stop.JUDGE_ERROR, reason)


async def open_page(page: Page, url: str) -> None:
    """Open an address and wait until it rests. NoVerdict if it does not open."""
    for _ in range(2):
        try:
            await page.goto(url, wait_until="load", timeout=1000 * OPEN_SECONDS)
            break
        except PlaywrightError as error:
            reason = error.message.splitlines()[0]
            if "interrupted by another navigation" not in reason:
                raise NoVerdict(f"{url} did not open: {reason}") from None
            # the page has come and sends its visitors on; otherwise it is the error page of where the agent
            # was before, and the address is asked for again
            if "chrome-error:" not in reason:
                break
    else:
        raise NoVerdict(f"{url} did not open")
    with contextlib.suppress(PlaywrightError):  # some pages never rest
        await page.wait_for_load_state("networkidle", timeout=1000 * REST_SECONDS)


async def run_script(page: Page, script: str) -> str | None:
    """Return a locator's value, "" where it fails, None if it finds nothing; the page's HTML for ""."""
    value = await _ask_page(page.evaluate(f"() => {script}") if script.strip() else page.content())
    return None if value is None else str(value)


async def _ask_page(work: Awaitable[Any]) -> Any:
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
    """Return what one of the five helper functions finds; None if there is no order."""
    name, argument = read_helper(call)
    if name == "reddit_get_post_url":
        return post_address(argument.replace("__last_url__", page.url))
    if name == "gitlab_get_project_memeber_role":
        return str(await _ask_page(page.evaluate(MEMBER_ROLE, argument)))
    shop = sites_from_environment(environ)["SHOPPING"]
    if name == "shopping_get_latest_order_url":
        return await newest_order_url(shop, environ)
    reviews = await ask_shop(shop, f"products/{quote(argument, safe='')}/reviews", environ)
    if not reviews:
        return ""
    if name == "shopping_get_sku_latest_review_author":
        return str(reviews[-1]["nickname"])
    return str(reviews[-1]["ratings"][0]["percent"])


async def newest_order_url(shop: str, environ: Mapping[str, str]) -> str | None:
    """Return the address of the newest order, None if there is none."""
    orders = await ask_shop(shop, f"orders?{urlencode(NEWEST_ORDER)}", environ)
    if not orders["items"]:
        return None
    number = int(orders["items"][0]["increment_id"])  # without the zeros in front
    return f"{shop}/sales/order/view/order_id/{number}/"


async def ask_shop(shop: str, question: str, environ: Mapping[str, str]) -> Any:
    """Return what the shop's server answers its administrator."""
    admin = login_to("shopping_admin", environ)
    login = {"username": admin["user"], "password": admin["password"]}
    token = await fetch_json(f"{shop}/rest/default/V1/integration/admin/token", login)
    return await fetch_json(f"{shop}/rest/V1/{question}", Authorization=f"Bearer {token}")


async def fetch_json(url: str, data: Any = None, **headers: str) -> Any:
    status, body = await fetch(url, data, **headers)
    if status != 200:
        raise NoVerdict(f"{url} answered {status or 'nothing'}: {body[:80]!r}")
    return json.loads(body)


async def llm_fuzzy_match(
    judge: Endpoint | None, question: str, references: list[str], answer: str, max_chars: int = ANSWER_CHARS
) -> bool:
    """Return whether an answer says the same as the references."""
    data = {"question": question, "reference": ", ".join(references), "answer": answer[:max_chars]}
    return await _ask_judge(judge, FUZZY_MATCH, data, "correct", r"partially|incorrect|not correct")


async def llm_ua_match(judge: Endpoint | None, question: str, reason: str, report: str) -> bool:
    """Return whether a report gives the reason for which a task can't be done (is UnAchievable)."""
    if not report.strip():
        return False
    data = {"task": question, "reason": reason, "report": report[:ANSWER_CHARS]}
    return await _ask_judge(judge, UA_MATCH, data, "same", r"different|not the same")


async def _ask_judge(judge: Endpoint | None, prompt: str, data: Mapping[str, str], yes: str, no: str) -> bool:
    """Return False if the model's reply has the pattern `no`, True if it has the word `yes`."""
    assert judge is not None, "benchmark.py refuses such tasks"
    # JSON breaks no line within a string, so no answer can end the fence
    fenced = json.dumps(data, indent=1, ensure_ascii=False)
    # no request can carry half a surrogate pair
    fenced = fenced.encode("utf-8", "replace").decode()
    question = ("user", (prompt.format(data=fenced),))
    try:
        reply = await judge.ask([question], max_tokens=JUDGE_TOKENS, temperature=0)
    except EndpointError as error:
        raise NoVerdict(f"the judge gave no answer: {error}") from None
    if re.search(no, reply.text, re.IGNORECASE):
        return False
    if not re.search(rf"\b{yes}\b", reply.text, re.IGNORECASE):
        raise NoVerdict(f"the judge's reply is no verdict: {reply.text[:80]!r}")
    return True
