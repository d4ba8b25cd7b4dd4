"""WebArena's records, all of them and broken ones; logging in, tabs and resets on stand-ins of the sites."""

from __future__ import annotations

import copy
import gzip
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stand_in import World, serve

from minirl.benchmarks.task_files import load_tasks
from minirl.benchmarks.webarena.locators import (
    LOOKS,
    PRESSES,
    Helper,
    check_locator,
    check_script,
    post_address,
    read_helper,
)
from minirl.benchmarks.webarena.tasks import (
    ACCOUNTS,
    PUBLIC,
    Account,
    accounts_from_environment,
    is_record,
    login_sites,
    missing,
    places,
    prepare,
    read_state,
    reset,
    sites_from_environment,
    task_of,
    to_local,
    to_public,
)
from minirl.browser.session import Session
from minirl.config import BrowserConfig, TaskConfig
from minirl.experiment import make_task_sets
from minirl.recipes import tiny
from minirl.types import BrowserFault, Stop, Task

browsing = pytest.mark.asyncio(loop_scope="module")  # one browser for the whole module

DATA = Path(__file__).parents[1] / "data" / "webarena_lite"
CONFIG = BrowserConfig(browsers=1, width=500, height=400, quiet_ms=50, private=True, call_seconds=3)
SITES = {name: f"http://{name.lower().replace('_', '-')}.test" for name in PUBLIC}
GITLAB = "http://gitlab.test"


def records(name: str) -> list[dict[str, Any]]:
    return json.loads(gzip.decompress((DATA / f"{name}.json.gz").read_bytes()))


# --- all records --------------------------------------------------------------------------------------


def test_the_test_tasks_load_and_have_the_published_counts():
    tasks = [task_of(record, SITES) for record in records("test") if is_record(record)]
    kinds = Counter("+".join(task.goal["eval_types"]) for task in tasks)
    assert kinds == {
        "string_match": 78,
        "program_html": 48,
        "url_match+program_html": 19,
        "url_match": 18,
        "string_match+url_match": 2,
    }
    sites = Counter(task.meta["site"] for task in tasks)
    assert sites == {"shopping": 45, "shopping_admin": 35, "gitlab": 30, "map": 26, "reddit": 19} | {
        "multi-site": 10
    }
    assert len({task.id for task in tasks}) == 165
    assert "__" not in "".join(task.start_url + json.dumps(task.goal["reference_url"]) for task in tasks)


def test_the_training_tasks_load_and_the_three_that_are_malformed_are_named(tmp_path, capsys):
    file = tmp_path / "train.json"
    file.write_text(json.dumps(records("train")))
    tasks = load_tasks(file)
    assert len(tasks) == 647
    assert [n for n, task in enumerate(tasks) if task.meta["mended"]] == [294, 295, 296]
    (note,) = tasks[294].meta["mended"]
    assert note.startswith("program_html[0].required_contents: must_include should be a list")
    assert capsys.readouterr().out.count("is malformed") == 3
    (target,) = tasks[294].goal["program_html"]
    assert target["required_contents"] == {"must_include": ["lgtm"]}
    assert sum(len(task.meta["tabs"]) > 0 for task in tasks) == 4


def test_the_test_tasks_are_none_of_the_training_tasks(tmp_path):
    """Though some of them share their site and wording, and some their site and answer."""
    train, heldout = records("train"), records("test")
    (tmp_path / "train.json").write_text(json.dumps(train))
    task = TaskConfig(train=str(tmp_path / "train.json"), heldout=str(tmp_path / "test.json"))
    config = replace(tiny(), task=task)
    (tmp_path / "test.json").write_text(json.dumps(heldout))
    sets = make_task_sets(config)
    assert (len(sets.train), len(sets.heldout)) == (647, 165)
    (tmp_path / "test.json").write_text(json.dumps([*heldout, train[7]]))
    with pytest.raises(ValueError, match=f"1 held-out tasks .*, webarena-{train[7]['old_task_id']} for one"):
        make_task_sets(config)


def test_a_record_as_a_task():
    task = task_of(records("test")[0], SITES)
    assert (task.id, task.start_url) == ("webarena-4", "http://shopping-admin.test")
    assert task.instruction == "What are the top-3 best-selling product in Jan 2023"
    assert task.meta == {
        "benchmark": "webarena-lite",
        "sites": ["shopping_admin"],
        "site": "shopping_admin",
        "tabs": [],
        "require_login": True,
        "storage_state": "shopping_admin_state.json",
        "old_task_id": 4,
        "template": 279,
        "mended": [],
    }
    assert task.goal["kind"] == "webarena" and task.goal["eval_types"] == ["string_match"]
    older = {name: value for name, value in records("test")[0].items() if name != "old_task_id"}
    assert task_of(older, SITES).meta["benchmark"] == "webarena"
    assert not is_record({"id": "a", "instruction": "buy", "start_url": "http://x.test/"})


def test_several_addresses_are_tabs():
    task = next(task for task in (task_of(r, SITES) for r in records("test")) if task.meta["tabs"])
    assert [url.split("/")[2] for url in (task.start_url, *task.meta["tabs"])] == ["shopping.test"] * 3


# --- malformed records --------------------------------------------------------------------------------

GOOD: dict[str, Any] = {
    "task_id": 7,
    "sites": ["gitlab"],
    "intent": "Open the issues",
    "start_url": "__GITLAB__",
    "require_login": True,
    "storage_state": "./.auth/gitlab_state.json",
    "intent_template_id": 3,
    "eval": {
        "eval_types": ["string_match", "url_match", "program_html"],
        "reference_answers": {"must_include": ["2"]},
        "reference_url": "__GITLAB__/a |OR| __GITLAB__/b",
        "url_note": "GOLD in PRED",
        "program_html": [
            {
                "url": "last",
                "locator": "document.querySelector('h1').outerText",
                "required_contents": {"exact_match": "x"},
            }
        ],
    },
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """GOOD with another value at a path; `...` removes what is there."""
    record = copy.deepcopy(GOOD)
    *way, last = [int(key) if key.isdigit() else key for key in path.split("/")]
    place: Any = record
    for key in way:
        place = place[key]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return record


TARGET = "eval/program_html/0"
BROKEN = [
    ("task_id", "7", "'task_id' must be a number"),
    ("task_id", True, "'task_id' must be a number"),
    ("intent", "  ", "'intent' is empty"),
    ("start_url", ..., "'start_url' is missing"),
    ("start_url", "__GITHUB__/x", "'start_url' must be an http address, not '__GITHUB__/x'"),
    ("start_url", "__GITLAB__ |AND| javascript:alert(1)", "'start_url' must be an http address"),
    ("sites", [], "must name some of shopping, "),
    ("sites", ["gitlab", "ebay"], "must name some of shopping, "),
    ("storage_state", "../../etc/passwd", "'storage_state' must be null or a path"),
    ("require_login", "yes", "'require_login' must be true or false"),
    ("intent_template_id", None, "'intent_template_id' must be a number"),
    ("eval", [], "'eval' must be an object"),
    ("eval/eval_types", [], "'eval_types' is empty"),
    ("eval/eval_types", "url_match", "'eval_types' must be a list"),
    ("eval/eval_types", ["page_image_query"], "'page_image_query' is not one of"),
    ("eval/reference_answers", None, "'reference_answers' must be an object"),
    ("eval/reference_answers", {}, "reference_answers is empty"),
    ("eval/reference_answers", {"must_include": 2}, "'must_include' must be a list, not '2'"),
    ("eval/reference_answers", {"must_include": [2]}, "'must_include' must be a list of strings"),
    ("eval/reference_answers", {"must_include": []}, "'must_include' must be a list of strings"),
    ("eval/reference_answers", {"exact_match": ["2"]}, "'exact_match' must be a string"),
    ("eval/reference_answers", {"fuzzy_match": "about 2"}, "'fuzzy_match' must be a list"),
    ("eval/reference_answers", {"fuzzy_match": "N/A"}, "'string_note' is missing"),
    ("eval/reference_answers", {"one_of": ["2"]}, "unknown approach 'one_of'"),
    ("eval/reference_url", "", "'reference_url' is empty"),
    ("eval/reference_url", None, "'reference_url' must be a string"),
    ("eval/reference_url", "__GITLAB__/a |OR| b", "'reference_url' must be an http address, not 'b'"),
    ("eval/url_note", "REGEX", "'REGEX' is not EXACT or"),
    ("eval/program_html", [], "the field is empty"),
    ("eval/program_html", ["last"], r"program_html\[0\]: must be an object"),
    (f"{TARGET}/url", "first", "'url' must be an http address"),
    (f"{TARGET}/url", "func:os.system('ls')", "no call of a helper"),
    (f"{TARGET}/url", "func:gitlab_get_project_memeber_role(__page__, 'x')", "gives no address"),
    (f"{TARGET}/locator", None, "'locator' must be a string"),
    (f"{TARGET}/locator", "lambda: page", "must start with document"),
    (f"{TARGET}/prep_actions", ["fetch('/x')"], "must start with document"),
    (f"{TARGET}/prep_actions", "document.body.click()", "'prep_actions' must be a list"),
    (f"{TARGET}/required_contents", {}, "has none of exact_match"),
    (f"{TARGET}/required_contents", {"must_include": ""}, "'must_include' must be a list"),
]


@pytest.mark.parametrize(("path", "value", "problem"), BROKEN, ids=range(len(BROKEN)))
def test_what_is_malformed_is_named(path, value, problem):
    with pytest.raises(ValueError, match=problem):
        task_of(changed(path, value), SITES)


def test_the_record_that_is_broken_above_is_a_good_one():
    assert task_of(GOOD, SITES).goal["reference_url"] == f"{GITLAB}/a |OR| {GITLAB}/b"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=9), inner, max_size=2),
    max_leaves=5,
)
PATHS = sorted({path for path, *_ in BROKEN})


@settings(max_examples=50)
@given(st.sampled_from(PATHS), VALUES)
def test_whatever_stands_in_a_field_gives_a_task_or_a_reason(path, value):
    try:
        assert isinstance(task_of(changed(path, value), SITES), Task)
    except ValueError as problem:
        assert str(problem)


# --- what a task file may ask of a page -----------------------------------------------------------------

REFUSED = [
    "document.cookie",
    "document.querySelector('a').ownerDocument.defaultView.fetch('/x')",
    "document.querySelector('a').constructor.constructor('alert(1)')()",
    "document['cookie']",
    "document.querySelector('a')['value']",
    "document.body.innerHTML = 'x'",
    "document.querySelector('a').value; document.querySelector('b')",
    "document.querySelector(`${document.title}`)",
    "document.querySelector('a\\'b')",
    "document.querySelector('a').click()",  # a locator looks, it does not act
    "[...document.querySelectorAll('a')].map(alert => alert(1))",
    "[...document.querySelectorAll('a')].map(fetch)",
    "document.querySelectorAll('a')[alert(1)]",
    "document.querySelector('a').value + eval('1')",
    "document.querySelector('a'",
    "document.querySelector('a')])",
    "document.querySelector('a') /* x */",
    "documents.body",
    "document." + "body." * 500 + "title",
]


@pytest.mark.parametrize("script", REFUSED)
def test_a_locator_that_does_more_than_look_is_refused(script):
    with pytest.raises(ValueError, match="the (script|brackets)"):
        check_locator(script)


def test_what_locators_and_actions_may_do():
    check_locator("  ")
    check_locator("[...document.querySelectorAll('a')].map(e => e.getAttribute('href') || '').join(' ')")
    check_locator("document.querySelector('a').outerText + (document.querySelector('b')?.outerText || '')")
    check_locator("document.querySelector(\"[title='don’t; x = fetch()']\").children[0].value")
    check_script("document.querySelector('a').click()", PRESSES)


@given(st.text(max_size=40))
def test_any_text_is_a_locator_or_not(text):
    for script in (text, f"document.{text}", f"func:{text}"):
        try:
            check_locator(script)
        except ValueError:
            continue
        assert not script.startswith("document.") or not set(";={}`\\!<") & set(script.split("'")[0])


def test_helpers_are_five_names_with_their_arguments():
    assert read_helper("func:reddit_get_post_url('__last_url__')") == Helper(
        "reddit_get_post_url", "__last_url__"
    )
    assert read_helper("func:shopping_get_latest_order_url()") == Helper("shopping_get_latest_order_url")
    role = 'func:gitlab_get_project_memeber_role(__page__, "vinta")'
    assert read_helper(role) == Helper("gitlab_get_project_memeber_role", "vinta")
    for call in (
        "func:__import__('os')",
        "func:shopping_get_latest_order_url('x')",
        "func:shopping_get_sku_latest_review_author()",
        "func:shopping_get_sku_latest_review_author(__page__, 'x')",
        "func:gitlab_get_project_memeber_role('vinta')",
        "func:reddit_get_post_url('a' + 'b')",
        "func:reddit_get_post_url(open('x'))",
        "func:reddit_get_post_url('x'); f()",
        "reddit_get_post_url('x')",
    ):
        with pytest.raises(ValueError, match="helper"):
            read_helper(call)
    assert check_script("document.title", LOOKS) is None


def test_the_address_of_a_post():
    assert post_address("http://r.test/f/books/59/title/-/comment/3?x=1") == "http://r.test/f/books/59/"
    for other in ("http://r.test/f/books", "http://r.test/user/a/b", "about:blank", "http://[/f/a/1/"):
        assert post_address(other) == other


# --- the sites' addresses -------------------------------------------------------------------------------


def test_sites_come_from_the_environment_and_those_missing_are_named():
    sites = sites_from_environment({"GITLAB": "http://10.0.0.1:8023/", "SHOPPING": ""})
    assert sites["GITLAB"] == "http://10.0.0.1:8023" and set(sites) == set(PUBLIC)
    assert sites["SHOPPING_ADMIN"] == "http://shopping-admin.webarena.test"
    task = task_of(GOOD | {"sites": ["gitlab", "reddit"], "start_url": "__MAP__/x"}, sites)
    assert task.start_url == "http://map.webarena.test/x"
    other = Task("a", "buy", "http://shop.test/")
    assert missing([other, task], {"GITLAB": "http://10.0.0.1:8023"}) == ["MAP", "REDDIT"]
    assert missing([task], dict.fromkeys(PUBLIC, "http://x.test")) == []
    for wrong in ("10.0.0.1:8023", "file:///etc", "http://[", "http://x:99999999"):
        with pytest.raises(ValueError, match="the variable REDDIT is "):
            sites_from_environment({"REDDIT": wrong})


def test_the_places_of_sites_are_those_that_are_set_and_named():
    environ = {
        "GITLAB": "http://10.0.0.5:8023",
        "REDDIT": "https://Reddit.internal./",
        "MAP": "http://10.0.0.7:3000",
    }
    tabs = "__REDDIT__/f/books |AND| __WIKIPEDIA__ |AND| http://10.0.0.9/x"
    task = task_of(GOOD | {"start_url": tabs}, sites_from_environment(environ))
    assert places([task], environ) == {("10.0.0.5", 8023), ("reddit.internal", 443)}
    other = Task("a", "buy", "http://10.0.0.5:8023/")
    assert places([other], environ) == places([other], {"MAP": "no address"}) == set()


def test_public_names_stand_for_the_sites():
    assert to_local("https://www.gitlab.com/a/b?c=1", SITES) == "http://gitlab.test/a/b?c=1"
    assert to_local("http://luma.com/admin/sales", SITES) == "http://shopping-admin.test/sales"
    for other in ("http://gitlab.com.evil.test/", "http://notreddit.com", "gitlab.com", ""):
        assert to_local(other, SITES) == other
    near = SITES | {"SHOPPING": "http://h:1", "SHOPPING_ADMIN": "http://h:1/admin"}
    assert to_public("http://h:1/admin/x", near) == "http://luma.com/admin/x"
    assert to_public("http://h:1/administer", near) == "http://onestopmarket.com/administer"


@given(st.sampled_from(sorted(PUBLIC)), st.text("abc/?&=%#.", max_size=12))
def test_there_and_back_is_the_same_address(name, rest):
    url = f"{SITES[name]}/{rest}"
    assert to_local(to_public(url, SITES), SITES) == url


def test_accounts_are_the_benchmarks_unless_the_environment_says_others():
    found = accounts_from_environment({"GITLAB_USER": "me", "GITLAB_PASSWORD": "secret"})
    assert found == ACCOUNTS | {"gitlab": Account("me", "secret")}


def test_which_sites_to_log_in_to():
    def at(**fields: Any) -> list[str]:
        return login_sites(task_of(GOOD | fields, SITES))

    assert at() == ["gitlab"]
    assert at(storage_state="./.auth/gitlab.reddit_state.json") == ["gitlab", "reddit"]
    assert at(storage_state=None, sites=["map", "shopping_admin"]) == ["shopping_admin"]
    assert at(storage_state="", sites=["wikipedia", "map"]) == []
    assert at(require_login=False) == []


# --- before an episode ----------------------------------------------------------------------------------


@pytest.fixture
def world() -> Iterator[World]:
    with serve() as world:
        yield world


async def ready(session: Session, world: World, folder: Path | None = None, **fields: Any) -> Task:
    """A task that has been prepared as an episode does it."""
    task = task_of(GOOD | {"storage_state": None} | fields, world.sites)
    await session.start(task.start_url)
    await prepare(session, task, world.sites, ACCOUNTS, folder)
    return task


STARTS = {"gitlab": "GITLAB", "shopping": "SHOPPING", "shopping_admin": "SHOPPING_ADMIN", "reddit": "REDDIT"}


@browsing
@pytest.mark.parametrize("site", STARTS)
async def test_a_login_by_form(session, world, site):
    inside = {"gitlab": "/-/profile", "shopping": "/customer/account/"} | {"reddit": "/submit"}
    path = inside.get(site, "/reports/report_sales/sales")
    task = await ready(session, world, sites=[site], start_url=f"__{STARTS[site]}__{path}")
    assert session.page.url == task.start_url  # those who are not logged in are sent elsewhere
    assert await session.page.locator("input[type=password], #login").count() == 0
    assert not await session.back()


@browsing
async def test_two_sites_at_once(session, world):
    await ready(session, world, sites=["gitlab", "reddit"])
    await session.goto(f"{world.sites['REDDIT']}/submit")
    assert session.page.url.endswith("/submit")
    names = {cookie["name"] for cookie in await session.context.cookies()}
    assert names == {"gitlab_session", "reddit_session"}


@browsing
async def test_no_login_where_none_is_wanted(session, world):
    await ready(session, world, require_login=False)
    assert session.page.url.endswith("/users/sign_in")
    assert [asked for asked in world.asked if "POST" in asked] == []


@browsing
async def test_a_wrong_password_is_no_login(session, world):
    task = task_of(GOOD, world.sites)
    await session.start(task.start_url)
    with pytest.raises(BrowserFault, match="the login to gitlab at http://.* failed") as caught:
        await prepare(session, task, world.sites, ACCOUNTS | {"gitlab": Account("byteblaze", "wrong")})
    assert caught.value.stop is Stop.SITE_ERROR


@browsing
async def test_a_site_that_is_down_is_no_login(session, world):
    task = task_of(GOOD | {"start_url": "__REDDIT__"}, world.sites)
    await session.start(task.start_url)
    with pytest.raises(BrowserFault, match="the login to gitlab at http://127.0.0.1:9 failed"):
        await prepare(session, task, world.sites | {"GITLAB": "http://127.0.0.1:9"}, ACCOUNTS)


@browsing
async def test_a_stored_login(session, world, tmp_path):
    state = {
        "cookies": [{"name": "gitlab_session", "value": "1", "domain": "127.0.0.1", "path": "/"}],
        "origins": [
            {"origin": world.sites["GITLAB"], "localStorage": [{"name": "theme", "value": "</dark>"}]}
        ],
    }
    (tmp_path / "gitlab_state.json").write_text(json.dumps(state))
    await ready(session, world, tmp_path, start_url="__GITLAB__/-/profile")
    assert session.page.url.endswith("/-/profile")
    assert await session.page.evaluate("localStorage.getItem('theme')") == "</dark>"
    assert [asked for asked in world.asked if "POST" in asked] == []
    await session.page.evaluate("localStorage.setItem('theme', 'light')")
    await session.goto(f"{world.sites['GITLAB']}/-/profile")
    assert await session.page.evaluate("localStorage.getItem('theme')") == "light"
    await session.goto(world.sites["MAP"])
    assert await session.page.evaluate("localStorage.getItem('theme')") is None


@browsing
async def test_a_stored_login_that_has_expired(session, world, tmp_path):
    (tmp_path / "gitlab_state.json").write_text('{"cookies": [], "origins": []}')
    with pytest.raises(BrowserFault, match="still asks who it is"):
        await ready(session, world, tmp_path)


@pytest.mark.parametrize("text", ["", "[]", '{"cookies": []}', '{"cookies": [], "origins": [1]}'])
def test_a_file_that_is_no_stored_login(tmp_path, text):
    with pytest.raises(ValueError, match="holds no stored login"):
        read_state(tmp_path / "missing.json")
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match="holds no stored login"):
        read_state(tmp_path / "a.json")


@browsing
async def test_further_tabs_are_opened_behind_the_first(session, world):
    task = await ready(
        session, world, sites=["shopping"], start_url="__SHOPPING__/a.html |AND| __SHOPPING__/b.html"
    )
    rows, current = await session.tabs()
    assert [url for url, _ in rows] == [task.start_url, *task.meta["tabs"]] and current == 0
    assert [url[-7:] for url, _ in rows] == ["/a.html", "/b.html"]


@browsing
async def test_other_benchmarks_have_tabs_too(session, world):
    first, second = (f"{world.sites['SHOPPING']}/{name}.html" for name in "ab")
    await session.start(first)
    await prepare(session, Task("a", "look", first, meta={"tabs": [second]}))
    rows, current = await session.tabs()
    assert [url for url, _ in rows] == [first, second] and current == 0


@browsing
async def test_other_benchmarks_need_nothing(session, world):
    await session.start(world.sites["MAP"])
    before = len(world.asked)
    await prepare(session, Task("a", "look", world.sites["MAP"]))
    assert len(world.asked) == before


# --- between runs ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("busy", [0, 2])
async def test_a_reset_waits_until_the_sites_are_ready(world, busy):
    world.busy = busy  # with 2 a reset is running already
    await reset(f"{world.reset}/", seconds=20, pause=0.01)
    assert world.resets == 1 and sum("/status" in asked for asked in world.asked) == busy + 1


async def test_a_reset_that_does_not_end(world):
    world.busy = 10**6
    with pytest.raises(TimeoutError, match=r"not ready 0.1 s after .* \(last 'Reset ongoing"):
        await reset(world.reset, seconds=0.1, pause=0.01)


@pytest.mark.parametrize("address", ["reset.test", "file:///etc", "http://127.0.0.1:9"])
async def test_a_reset_server_that_is_none(address):
    with pytest.raises(ValueError, match="give the reset server's address"):
        await reset(address)


async def test_a_server_of_another_kind(world):
    with pytest.raises(ValueError, match="answered 404"):
        await reset(world.sites["SHOPPING"])
