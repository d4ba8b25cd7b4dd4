"""Facts for the rules of a task, read from a page, from the shop's server or from a language model.

Everything here answers in time or raises NoVerdict, and no answer is run as Python: scripts run in the page,
and a model reads data behind a fence. WebAgent-R1, section 3.1 and appendix A. Deviations:

1. The questions to the model and the limits of length are our own.
2. Of the model's replies "not correct" is a no, and one that is no verdict gives no score.
3. What a page holds is read without HTML's escapes, as upstream WebArena does and the Lite edition does not.
"""

import html
import json
import re
from collections.abc import Awaitable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from minirl.benchmarks.webarena.login import login_to
from minirl.benchmarks.webarena.tasks import sites_from_environment
from minirl.browser.servers import fetch
from minirl.package_files import text_of
from minirl.samplers.endpoint import Endpoint, EndpointError
from minirl.types import BrowserFault, PageHangs, Session, Stop, ToolFailure

ANSWER_CHARS = 6000  # of an answer, that the model reads
PAGE_CHARS = 300_000  # of a page that is read whole: what a cart holds stands behind a long head
JUDGE_TOKENS = 768
MEMBER_ROLE = text_of("benchmarks/webarena/member_role.js")
FUZZY_MATCH = text_of("benchmarks/webarena/fuzzy_match.md")
UA_MATCH = text_of("benchmarks/webarena/ua_match.md")
HELPER = re.compile(r"""func:(\w+)\((?:__page__,\s*)?(?:'([^']*)'|"([^"]*)")?\)""")
NEWEST_ORDER = {
    "searchCriteria[sortOrders][0][field]": "created_at",
    "searchCriteria[pageSize]": "1",
    "searchCriteria[sortOrders][0][direction]": "DESC",
}


class NoVerdict(BrowserFault):
    def __init__(self, reason: str):
        super().__init__(Stop.JUDGE_ERROR, reason)


async def run_script(session: Session, script: str) -> str | None:
    """Return a locator's value, "" where it fails, None if it finds nothing; the page's HTML for ""."""
    page = session.page
    return await _ask_page(session, page.evaluate(f"() => {script}") if script.strip() else page.content())


async def _ask_page(session: Session, work: Awaitable[Any]) -> str | None:
    try:
        value = await session.do(work)
    except PageHangs:
        raise NoVerdict("the page does not answer") from None
    except ToolFailure:
        return ""  # it is not the page that was meant
    return None if value is None else html.unescape(str(value))


async def call_helper(call: str, session: Session) -> str | None:
    """Return what one of the five helper functions finds; None if there is no order."""
    match = HELPER.fullmatch(call)
    if not match:
        raise NoVerdict(f"{call} is no call of a helper, like func:name('text')")
    name = match[1]
    argument = match[2] or match[3] or ""
    match name:
        case "reddit_get_post_url":
            return post_address(argument.replace("__last_url__", session.page.url))
        case "gitlab_get_project_memeber_role":
            return await _ask_page(session, session.page.evaluate(MEMBER_ROLE, argument))
        case "shopping_get_latest_order_url":
            return await newest_order_url(session)
        case "shopping_get_sku_latest_review_author" | "shopping_get_sku_latest_review_rating":
            reviews = await ask_shop(session, f"products/{quote(argument, safe='')}/reviews")
            if not reviews:
                return ""
            newest = reviews[-1]
            return str(newest["nickname"] if name.endswith("author") else newest["ratings"][0]["percent"])
    raise NoVerdict(f"there is no helper {name}")


def post_address(url: str) -> str:
    """Return the address of a forum's post from that of anything beneath it, others unchanged.

    >>> post_address("http://reddit.test/f/books/59421/a-title?sort=new")
    'http://reddit.test/f/books/59421/'
    """
    match = re.match(r"(\w+://[^/?#]*/f/[^/?#]*/[^/?#]*)", url)
    return f"{match[1]}/" if match else url


async def newest_order_url(session: Session) -> str | None:
    """Return the address of the newest order, None if there is none."""
    orders = await ask_shop(session, f"orders?{urlencode(NEWEST_ORDER)}")
    if not orders["items"]:
        return None
    number = int(orders["items"][0]["increment_id"])  # without the zeros in front
    return f"{sites_from_environment()['SHOPPING']}/sales/order/view/order_id/{number}/"


async def ask_shop(session: Session, question: str) -> Any:
    """Return what the shop's server answers its administrator."""
    shop = sites_from_environment()["SHOPPING"]
    admin = login_to("shopping_admin")
    login = {"username": admin["user"], "password": admin["password"]}
    token = await fetch_json(session, f"{shop}/rest/default/V1/integration/admin/token", login)
    return await fetch_json(session, f"{shop}/rest/V1/{question}", Authorization=f"Bearer {token}")


async def fetch_json(session: Session, url: str, data: Any = None, **headers: str) -> Any:
    headers["Host"] = urlsplit(url).netloc  # which a shop goes by, wherever this episode's copy of it is
    status, body = await fetch(session.guard.server_of(url), data, **headers)
    with suppress(ValueError):
        if status == 200:
            return json.loads(body)
    raise NoVerdict(f"{url} answered {status or 'nothing'}: {body[:80]!r}")


async def llm_fuzzy_match(
    judge: Endpoint | None,
    question: str,
    references: str | list[str],
    answer: str,
    max_chars: int = ANSWER_CHARS,
) -> bool:
    """Return whether an answer says the same as the references."""
    reference = references if isinstance(references, str) else ", ".join(references)
    data = {"question": question, "reference": reference, "answer": answer[:max_chars]}
    return await _ask_judge(judge, FUZZY_MATCH, data, "correct", r"partially|incorrect|not correct")


async def llm_ua_match(judge: Endpoint | None, question: str, reason: str, report: str) -> bool:
    """Return whether a report gives the reason for which a task can't be done (is UnAchievable)."""
    if not report.strip():
        return False
    data = {"task": question, "reason": reason, "report": report[:ANSWER_CHARS]}
    return await _ask_judge(judge, UA_MATCH, data, "same", r"different|not the same")


async def _ask_judge(judge: Endpoint | None, prompt: str, data: Mapping[str, str], yes: str, no: str) -> bool:
    """Return False if the model's reply has the pattern `no`, True if it has the word `yes`."""
    assert judge, "task_sets.py refuses such tasks"
    # JSON breaks no line within a string, so no answer can end the fence
    fenced = json.dumps(data, indent=1, ensure_ascii=False)
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
