"""WebArena's records, all of them and broken ones; what they may ask of a page; the sites' addresses."""

import copy
import functools
import gzip
import json
import operator
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from stand_in import record_of

from minirl.benchmarks.fields import read
from minirl.benchmarks.task_files import load_tasks
from minirl.benchmarks.task_sets import choose_benchmarks, make_task_sets
from minirl.benchmarks.webarena.benchmark import WebArenaBenchmark
from minirl.benchmarks.webarena.login import LOGINS, login_sites, login_to
from minirl.benchmarks.webarena.lookups import NoVerdict, call_helper, post_address
from minirl.benchmarks.webarena.tasks import SITES, Rules, sites_from_environment, webarena_task
from minirl.benchmarks.webarena.text_match import meets
from minirl.config import TaskConfig
from minirl.recipes import tiny
from minirl.types import Task

DATA = Path(__file__).parents[1] / "data" / "webarena_lite"
pytestmark = pytest.mark.usefixtures("local")


def records(name: str) -> list[dict[str, Any]]:
    return json.loads(gzip.decompress((DATA / f"{name}.json.gz").read_bytes()))


def test_the_test_tasks_load_and_have_the_published_counts():
    tasks = [webarena_task(record) for record in records("test")]
    kinds = Counter("+".join(task.goal["eval_types"]) for task in tasks)
    mixed = {"url_match+program_html": 19, "string_match+url_match": 2}
    assert kinds == {"string_match": 78, "program_html": 48, "url_match": 18} | mixed
    sites = Counter(task.meta["site"] for task in tasks)
    one = {"shopping": 45, "shopping_admin": 35, "gitlab": 30, "map": 26, "reddit": 19}
    assert sites == one | {"multi-site": 10}
    assert len({task.id for task in tasks}) == 165
    assert "__" not in "".join(task.start_url + json.dumps(task.goal["reference_url"]) for task in tasks)
    with_tabs = next(task for task in tasks if task.meta["tabs"])
    opened = [with_tabs.start_url, *with_tabs.meta["tabs"]]
    assert [url.split("/")[2] for url in opened] == ["shopping.test"] * 3


def test_the_training_tasks_load_also_those_that_have_a_phrase_where_a_list_must_be(tmp_path):
    (tmp_path / "train.json").write_text(json.dumps(records("train")))
    tasks = load_tasks(tmp_path / "train.json")
    assert len(tasks) == 647
    for task in tasks[294:297]:
        assert isinstance(task.goal["program_html"][0]["required_contents"]["must_include"], str)
    (target,) = read(Rules, tasks[294].goal).program_html
    assert target.required_contents == {"must_include": "lgtm"}
    assert meets("must_include", "lgtm", "It is LGTM.") and not meets("must_include", "lgtm", "l g t m")
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
    task = webarena_task(records("test")[0])
    assert (task.id, task.start_url) == ("webarena-4", "http://shopping-admin.test")
    assert task.instruction == "What are the top-3 best-selling product in Jan 2023"
    site = {"sites": ["shopping_admin"], "site": "shopping_admin", "tabs": []}
    login = {"require_login": True, "storage_state": "shopping_admin_state.json"}
    assert task.meta == {"benchmark": "webarena-lite", **site, **login}
    assert task.goal["kind"] == "webarena" and task.goal["eval_types"] == ["string_match"]
    older = {name: value for name, value in records("test")[0].items() if name != "old_task_id"}
    assert webarena_task(older).meta["benchmark"] == "webarena"


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


ANSWERS = "eval/reference_answers"
TARGET = "eval/program_html/0"
BROKEN = [
    ("task_id", "7", "task_id: Input should be a valid integer, not '7'"),
    ("intent", "  ", "intent: String should match pattern"),
    ("start_url", "__GITHUB__/x", "start_url.0: String should match pattern .*'__GITHUB__/x'"),
    ("start_url", "__GITLAB__ |AND| javascript:alert(1)", "start_url.1: String should match pattern"),
    ("sites", [], "sites: List should have at least 1 item"),
    ("eval/eval_types", ["page_image_query"], "should be 'string_match', .*, not 'page_image_query'"),
    (ANSWERS, {"must_include": [2]}, "must_include.*: Input should be a valid string"),
    (ANSWERS, {"exact_match": " "}, "exact_match.*: String should match pattern"),
    (ANSWERS, {"must_include": [""]}, "must_include.*, not .*''"),
    (ANSWERS, {"must_include": ["2", " |OR| "]}, r"must_include.*, not .* \|OR\| "),
    (ANSWERS, {"must_include": "2 |OR| "}, "must_include.*: String should match pattern"),
    (ANSWERS, {"one_of": ["2"]}, "reference_answers.one_of.*: Input should be 'exact_match'"),
    (f"{TARGET}/url", ..., "program_html.0.url: Field required"),
    (f"{TARGET}/required_contents", {}, "required_contents: Dictionary should have at least 1 item"),
    # an episode would meet what is not there
    (ANSWERS, {}, "string_match has no rule"),
    ("eval/reference_url", "", "url_match has no rule"),
    ("eval/program_html", [], "program_html has no rule"),
]


@pytest.mark.parametrize(("path", "value", "problem"), BROKEN, ids=range(len(BROKEN)))
def test_what_is_malformed_is_named(path, value, problem):
    with pytest.raises(ValueError, match=problem) as caught:
        webarena_task(changed(path, value))
    assert "\n" not in str(caught.value)
    assert webarena_task(GOOD).goal["reference_url"] == "http://gitlab.test/a |OR| http://gitlab.test/b"


async def test_a_call_that_is_none_of_the_helpers_gives_no_verdict():
    for call in ("func:__import__('os')", "func:reddit_get_post_url('a' + 'b')", "reddit_get_post_url('x')"):
        with pytest.raises(NoVerdict, match="helper"):
            await call_helper(call, cast(Any, None))


def test_the_address_of_a_post():
    assert post_address("http://r.test/f/books/59/title/-/comment/3?x=1") == "http://r.test/f/books/59/"
    for other in ("http://r.test/f/books", "http://r.test/user/a/b", "about:blank", "http://[/f/a/1/"):
        assert post_address(other) == other


def test_sites_come_from_the_environment_and_those_missing_are_named(monkeypatch):
    for name in SITES:
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("GITLAB", "http://10.0.0.1:8023/")
    sites = sites_from_environment()
    assert sites["GITLAB"] == "http://10.0.0.1:8023" and set(sites) == set(SITES)
    assert sites["SHOPPING_ADMIN"] == "http://shopping-admin.webarena.test"
    task = webarena_task(GOOD | {"sites": ["gitlab", "reddit"], "start_url": "__MAP__/x"})
    assert task.start_url == "http://map.webarena.test/x"
    assert WebArenaBenchmark().missing(task) == ["MAP", "REDDIT"]
    for name in SITES:
        monkeypatch.setenv(name, "http://x.test")
    assert WebArenaBenchmark().missing(task) == []
    for wrong in ("10.0.0.1:8023", "file:///etc", "http://[", "http://x:99999999"):
        monkeypatch.setenv("REDDIT", wrong)
        with pytest.raises(ValueError, match="the variable REDDIT is "):
            sites_from_environment()


def test_the_places_of_sites_are_those_that_are_set_and_named(monkeypatch):
    environ = {"GITLAB": "http://10.0.0.5:8023", "REDDIT": "https://Reddit.internal./"}
    environ |= {"MAP": "http://10.0.0.7:3000", "WIKIPEDIA": ""}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    start = "__REDDIT__/f/books |AND| __WIKIPEDIA__ |AND| http://10.0.0.9/x"
    task = webarena_task(GOOD | {"start_url": start})
    benchmark, other = WebArenaBenchmark(), Task("a", "buy", "http://10.0.0.5:8023/")
    assert benchmark.places(task) == {("10.0.0.5", 8023), ("reddit.internal", 443)}
    monkeypatch.setenv("MAP", "no address")
    chosen = choose_benchmarks(tiny())(other)  # WebArena's variables may be somebody else's
    assert chosen.places(other) == set() and chosen.missing(other) == []
    assert benchmark.identity(task) == {("webarena", "webarena-1")}


def test_accounts_are_the_benchmarks_unless_the_environment_says_others(monkeypatch):
    monkeypatch.setenv("GITLAB_USER", "me")
    monkeypatch.setenv("GITLAB_PASSWORD", "secret")
    found = {name: login_to(name) for name in LOGINS}
    assert found == LOGINS | {"gitlab": {**LOGINS["gitlab"], "user": "me", "password": "secret"}}


def test_which_sites_to_log_in_to():
    def at(**fields: Any) -> list[str]:
        return login_sites(webarena_task(GOOD | fields))

    assert at() == ["gitlab"]
    assert at(storage_state="./.auth/gitlab.reddit_state.json") == ["gitlab", "reddit"]
    assert at(storage_state=None, sites=["map", "shopping_admin"]) == ["shopping_admin"]
    assert at(storage_state="", sites=["wikipedia", "map"]) == []
    assert at(require_login=False) == []
