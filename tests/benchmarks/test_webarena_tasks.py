"""WebArena's records, all of them and broken ones; what they may ask of a page; the sites' addresses."""

from __future__ import annotations

import copy
import functools
import gzip
import json
import operator
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stand_in import record_of

from minirl.benchmarks.task_files import load_tasks
from minirl.benchmarks.task_sets import choose_benchmarks, make_task_sets
from minirl.benchmarks.webarena.benchmark import WebArenaBenchmark
from minirl.benchmarks.webarena.locators import check_locator, check_press, post_address, read_helper
from minirl.benchmarks.webarena.login import LOGINS, login_sites, login_to
from minirl.benchmarks.webarena.tasks import SITES, rules_of, sites_from_environment, webarena_task
from minirl.config import TaskConfig
from minirl.recipes import tiny
from minirl.types import Task

DATA = Path(__file__).parents[1] / "data" / "webarena_lite"
LOCAL = {name: f"http://{name.lower().replace('_', '-')}.test" for name in SITES}
GITLAB = "http://gitlab.test"


def records(name: str) -> list[dict[str, Any]]:
    return json.loads(gzip.decompress((DATA / f"{name}.json.gz").read_bytes()))


def test_the_test_tasks_load_and_have_the_published_counts():
    tasks = [webarena_task(record, LOCAL) for record in records("test")]
    kinds = Counter("+".join(task.goal["eval_types"]) for task in tasks)
    assert kinds == {"string_match": 78, "program_html": 48, "url_match": 18} | {
        "url_match+program_html": 19,
        "string_match+url_match": 2,
    }
    sites = Counter(task.meta["site"] for task in tasks)
    one = {"shopping": 45, "shopping_admin": 35, "gitlab": 30, "map": 26, "reddit": 19}
    assert sites == one | {"multi-site": 10}
    assert len({task.id for task in tasks}) == 165
    assert "__" not in "".join(task.start_url + json.dumps(task.goal["reference_url"]) for task in tasks)


def test_the_training_tasks_load_also_those_that_have_a_phrase_where_a_list_must_be(tmp_path):
    file = tmp_path / "train.json"
    file.write_text(json.dumps(records("train")))
    tasks = load_tasks(file)
    assert len(tasks) == 647
    for task in tasks[294:297]:
        assert isinstance(task.goal["program_html"][0]["required_contents"]["must_include"], str)
    (target,) = rules_of(tasks[294].goal)["program_html"].program_html
    assert target.required_contents.must_include == ["lgtm"]
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
    task = webarena_task(records("test")[0], LOCAL)
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
    }
    assert task.goal["kind"] == "webarena" and task.goal["eval_types"] == ["string_match"]
    older = {name: value for name, value in records("test")[0].items() if name != "old_task_id"}
    assert webarena_task(older, LOCAL).meta["benchmark"] == "webarena"


def test_several_addresses_are_tabs():
    task = next(task for task in (webarena_task(r, LOCAL) for r in records("test")) if task.meta["tabs"])
    assert [url.split("/")[2] for url in (task.start_url, *task.meta["tabs"])] == ["shopping.test"] * 3


HEADING = {"url": "last", "locator": "document.querySelector('h1').outerText"}
HEADING["required_contents"] = {"exact_match": "x"}
RULES = {
    "eval_types": ["string_match", "url_match", "program_html"],
    "reference_answers": {"must_include": ["2"]},
    "reference_url": "__GITLAB__/a |OR| __GITLAB__/b",
    "url_note": "GOLD in PRED",
    "program_html": [HEADING],
}
GOOD = record_of("gitlab", "__GITLAB__", "Open the issues", **RULES)
GOOD["storage_state"] = "./.auth/gitlab_state.json"


def changed(path: str, value: Any) -> dict[str, Any]:
    """GOOD with another value at a path; `...` removes what is there."""
    record = copy.deepcopy(GOOD)
    *way, last = [int(key) if key.isdigit() else key for key in path.split("/")]
    place = functools.reduce(operator.getitem, way, record)
    place[last] = value
    if value is ...:
        del place[last]
    return record


TARGET = "eval/program_html/0"
BROKEN = [
    ("task_id", "7", "task_id: Input should be a valid integer, not '7'"),
    ("intent", "  ", "intent: must not be empty"),
    ("start_url", "__GITHUB__/x", "start_url.0: must be an address like .*'__GITHUB__/x'"),
    ("start_url", "__GITLAB__ |AND| javascript:alert(1)", "start_url.1: must be an address"),
    ("sites", [], "sites: List should have at least 1 item"),
    ("sites", ["gitlab", "ebay"], "sites.1: Input should be 'shopping', .*, not 'ebay'"),
    ("eval/eval_types", ["page_image_query"], "should be 'string_match', .*, not 'page_image_query'"),
    ("eval/reference_answers", {}, "reference_answers: must have one of"),
    (
        "eval/reference_answers",
        {"must_include": [2]},
        "must_include.0: Input should be a valid string",
    ),
    ("eval/reference_answers", {"exact_match": " "}, "exact_match: must not be empty"),
    ("eval/reference_answers", {"fuzzy_match": "about 2"}, "fuzzy_match"),
    ("eval/reference_answers", {"one_of": ["2"]}, "reference_answers.one_of: Extra inputs"),
    ("eval/reference_url", "", "reference_url: must be http addresses"),
    ("eval/reference_url", "__GITLAB__/a |OR| b", "reference_url: must be http addresses, not 'http.* b'"),
    ("eval/url_note", "REGEX", "url_note: Input should be 'EXACT' or 'GOLD in PRED', not 'REGEX'"),
    (f"{TARGET}/url", "first", "url: must be an http address"),
    (f"{TARGET}/url", "func:os.system('ls')", "no call of a helper"),
    (f"{TARGET}/url", "func:gitlab_get_project_memeber_role(__page__, 'x')", "call that gives an address"),
    (f"{TARGET}/locator", "lambda: page", "program_html.0.locator: .* must start with document"),
    (f"{TARGET}/prep_actions", ["fetch('/x')"], "prep_actions.0: .* must start with document"),
    (f"{TARGET}/required_contents", {}, "required_contents: must have one of exact_match"),
]


@pytest.mark.parametrize(("path", "value", "problem"), BROKEN, ids=range(len(BROKEN)))
def test_what_is_malformed_is_named(path, value, problem):
    with pytest.raises(ValueError, match=problem) as caught:
        webarena_task(changed(path, value), LOCAL)
    assert "\n" not in str(caught.value)


def test_the_record_that_is_broken_above_is_a_good_one():
    assert webarena_task(GOOD, LOCAL).goal["reference_url"] == f"{GITLAB}/a |OR| {GITLAB}/b"


REFUSED = [
    "document.cookie",
    "document.querySelector('a').constructor.constructor('alert(1)')()",
    "document['cookie']",
    "document.body.innerHTML = 'x'",
    "document.querySelector('a').value; document.querySelector('b')",
    "document.querySelector(`${document.title}`)",
    "document.querySelector('a\\'b')",
    "document.querySelector('a').click()",  # a locator looks, it does not act
    "[...document.querySelectorAll('a')].map(fetch)",
    "document.querySelectorAll('a')[alert(1)]",
    "document.querySelector('a') /* x */",
    "documents.body",
]


@pytest.mark.parametrize("script", REFUSED)
def test_a_locator_that_does_more_than_look_is_refused(script):
    with pytest.raises(ValueError, match="the script"):
        check_locator(script)


def test_what_locators_and_actions_may_do():
    check_locator("  ")
    check_locator("[...document.querySelectorAll('a')].map(e => e.getAttribute('href') || '').join(' ')")
    check_locator("document.querySelector('a').outerText + (document.querySelector('b')?.outerText || '')")
    check_locator("document.querySelector(\"[title='don’t; x = fetch()']\").children[0].value")
    check_press("document.querySelector('a').click()")


ROLE, AUTHOR = "gitlab_get_project_memeber_role", "shopping_get_sku_latest_review_author"


@pytest.mark.parametrize(
    ("call", "helper"),
    [
        ("func:reddit_get_post_url('__last_url__')", ("reddit_get_post_url", "__last_url__")),
        ("func:shopping_get_latest_order_url()", ("shopping_get_latest_order_url", "")),
        (f'func:{ROLE}(__page__, "vinta")', (ROLE, "vinta")),
    ],
)
def test_helpers_are_names_with_their_arguments(call, helper):
    assert read_helper(call) == helper


@pytest.mark.parametrize(
    "call",
    [
        "func:__import__('os')",
        "func:shopping_get_latest_order_url('x')",
        f"func:{AUTHOR}()",
        f"func:{AUTHOR}(__page__, 'x')",
        f"func:{ROLE}('vinta')",
        "func:reddit_get_post_url('a' + 'b')",
        "reddit_get_post_url('x')",
    ],
)
def test_other_calls_are_refused(call):
    with pytest.raises(ValueError, match="helper"):
        read_helper(call)


def test_the_address_of_a_post():
    assert post_address("http://r.test/f/books/59/title/-/comment/3?x=1") == "http://r.test/f/books/59/"
    for other in ("http://r.test/f/books", "http://r.test/user/a/b", "about:blank", "http://[/f/a/1/"):
        assert post_address(other) == other


def test_sites_come_from_the_environment_and_those_missing_are_named():
    sites = sites_from_environment({"GITLAB": "http://10.0.0.1:8023/", "SHOPPING": ""})
    assert sites["GITLAB"] == "http://10.0.0.1:8023" and set(sites) == set(SITES)
    assert sites["SHOPPING_ADMIN"] == "http://shopping-admin.webarena.test"
    task = webarena_task(GOOD | {"sites": ["gitlab", "reddit"], "start_url": "__MAP__/x"}, sites)
    assert task.start_url == "http://map.webarena.test/x"
    incomplete = WebArenaBenchmark(environ={"GITLAB": "http://10.0.0.1:8023"})
    assert incomplete.missing(task) == ["MAP", "REDDIT"]
    assert WebArenaBenchmark(environ=dict.fromkeys(SITES, "http://x.test")).missing(task) == []
    for wrong in ("10.0.0.1:8023", "file:///etc", "http://[", "http://x:99999999"):
        with pytest.raises(ValueError, match="the variable REDDIT is "):
            sites_from_environment({"REDDIT": wrong})


def test_the_places_of_sites_are_those_that_are_set_and_named(monkeypatch):
    environ = {"GITLAB": "http://10.0.0.5:8023", "REDDIT": "https://Reddit.internal./"}
    environ["MAP"] = "http://10.0.0.7:3000"
    tabs = "__REDDIT__/f/books |AND| __WIKIPEDIA__ |AND| http://10.0.0.9/x"
    task = webarena_task(GOOD | {"start_url": tabs}, sites_from_environment(environ))
    benchmark, other = WebArenaBenchmark(environ=environ), Task("a", "buy", "http://10.0.0.5:8023/")
    assert benchmark.places(task) == {("10.0.0.5", 8023), ("reddit.internal", 443)}
    for name, value in (environ | {"MAP": "no address"}).items():
        monkeypatch.setenv(name, value)
    chosen = choose_benchmarks(tiny())(other)  # WebArena's variables may be somebody else's
    assert chosen.places(other) == set() and chosen.missing(other) == []
    assert benchmark.identity(task) == {("webarena", "webarena-1")}


def test_accounts_are_the_benchmarks_unless_the_environment_says_others():
    environ = {"GITLAB_USER": "me", "GITLAB_PASSWORD": "secret"}
    found = {name: login_to(name, environ) for name in LOGINS}
    assert found == LOGINS | {"gitlab": {**LOGINS["gitlab"], "user": "me", "password": "secret"}}


def test_which_sites_to_log_in_to():
    def at(**fields: Any) -> list[str]:
        return login_sites(webarena_task(GOOD | fields, LOCAL))

    assert at() == ["gitlab"]
    assert at(storage_state="./.auth/gitlab.reddit_state.json") == ["gitlab", "reddit"]
    assert at(storage_state=None, sites=["map", "shopping_admin"]) == ["shopping_admin"]
    assert at(storage_state="", sites=["wikipedia", "map"]) == []
    assert at(require_login=False) == []
