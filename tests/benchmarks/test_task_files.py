"""Task files: what is written comes back, and what is broken is named by file and line."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minirl.benchmarks.task_files import load_tasks, read_task, save_tasks
from minirl.types import Task

GOOD = '{"id": "a", "instruction": "buy", "start_url": "http://shop.test/"}'
SHOP = GOOD.replace("shop.test", "shop-0.test")
ARENA = GOOD.replace("}", ', "goal": {"kind": "webarena"}}')


def test_load_gives_back_what_save_wrote(tmp_path):
    tasks = [
        Task("shop-0-1", "Order 2 röd mugs", "http://shop-0.test/", {"page": "DONE"}, {"difficulty": 3}),
        Task("shop-0-2", 'Say "hi",\nthen leave', "http://shop-0.test/#HOME", {"page": "HOME"}),
    ]
    path = tmp_path / "deep" / "tasks.jsonl"
    save_tasks(path, tasks)
    assert load_tasks(path) == tasks
    assert [p.name for p in path.parent.iterdir()] == ["tasks.jsonl"]
    save_tasks(path, tasks[:1])
    assert load_tasks(path) == tasks[:1]


TEXT = st.text(max_size=10)
MAPPINGS = st.dictionaries(TEXT, st.none() | st.integers() | TEXT | st.lists(TEXT, max_size=2), max_size=2)
URLS = st.builds(
    "http{}://{}.test:{}/".format, st.sampled_from(["", "s"]), st.integers(0, 9), st.integers(1, 99)
)
TASKS = st.builds(Task, id=TEXT, instruction=TEXT, start_url=URLS, goal=MAPPINGS, meta=MAPPINGS)


@given(st.lists(TASKS, min_size=1, max_size=3, unique_by=lambda task: task.id))
def test_any_text_survives(tmp_path_factory, tasks):
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    save_tasks(path, tasks)
    assert load_tasks(path) == tasks


def test_the_goals_of_other_sites_are_not_looked_into():
    assert read_task(GOOD.replace("}", ', "goal": {"url": "/cart"}}')).goal == {"url": "/cart"}


def test_goal_and_meta_may_be_left_out():
    assert read_task(GOOD) == Task("a", "buy", "http://shop.test/", {}, {})


def test_blank_lines_are_passed_over_and_count_as_lines(tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_text(f"\n{GOOD}\r\n\n  \n")
    assert [task.id for task in load_tasks(path)] == ["a"]
    path.write_text(f"\n{GOOD}\n\n{{\n")
    with pytest.raises(ValueError, match="line 4: "):
        load_tasks(path)


def test_only_a_newline_ends_a_line(tmp_path):
    """JSON may hold Unicode's other line separators as they are, and scraped instructions do."""
    path = tmp_path / "tasks.jsonl"
    instruction = "first\u2028second\u0085third"
    path.write_text(json.dumps({**json.loads(GOOD), "instruction": instruction}, ensure_ascii=False))
    assert load_tasks(path)[0].instruction == instruction


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"id": "b"', r"not valid JSON \(Expecting ',' delimiter at column 11\)"),
        ("no json", r"not valid JSON \(Expecting value at column 1\)"),
        ("[" * 5000, "not valid JSON"),
        ('["b"]', "a task must be a JSON object"),
        ("null", "a task must be a JSON object"),
        ('{"id": "b", "instruction": "buy"}', "the field 'start_url' is missing"),
        (GOOD.replace('"a"', "7"), "the field 'id' must be a string"),
        (GOOD.replace('"buy"', "null"), "the field 'instruction' must be a string"),
        (GOOD.replace("}", ', "goal": "DONE"}'), "the field 'goal' must be an object"),
        (GOOD.replace("}", ', "meta": [1]}'), "the field 'meta' must be an object"),
        (GOOD.replace("}", ', "site": "shop"}'), "unknown field 'site'; what is not .* belongs into meta"),
        (GOOD, "the id 'a' occurs twice"),
        (
            GOOD.replace("http://shop.test/", "shop.test"),
            "the start_url 'shop.test' must be like http://host/",
        ),
        (GOOD.replace("http://shop.test/", "http:///x"), "the start_url 'http:///x' must be like"),
        (
            GOOD.replace("http://shop.test/", "ftp://shop.test/"),
            "the start_url .* like http://host/ or https",
        ),
        (
            GOOD.replace("http://shop.test/", "http://shop.test:x/"),
            "the start_url .* must be like http://host/",
        ),
        (GOOD.replace("http://shop.test/", "http://[::1/"), "the start_url .* must be like http://host/"),
        (GOOD.replace("}", ', "meta": {"tabs": null}}'), "the field 'tabs' must be"),
        (ARENA, "the field 'sites' is missing"),
        (ARENA.replace("}}", '}, "meta": {"sites": [7]}}'), "the field 'sites' must be"),
        (SHOP, "the field 'goal' is missing or empty"),
        (SHOP.replace("}", ', "goal": {}}'), "the field 'goal' is missing or empty"),
        (SHOP.replace("}", ', "goal": {"pages": "DONE"}}'), "goal: .*'page'"),
        (SHOP.replace("}", ', "goal": {"page": "DONE", "where": [{"cond": "is"}]}}'), "goal: where"),
    ],
    ids=lambda value: value[:30],
)
def test_a_broken_line_is_named_by_file_and_line(tmp_path, line, problem):
    path = tmp_path / "tasks.jsonl"
    path.write_text(f"{GOOD}\n{line}\n")
    with pytest.raises(ValueError, match=f"{path}, line 2: {problem}") as caught:
        load_tasks(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"", "holds no tasks"), (b"\n\n", "holds no tasks"), (b"\xff\xfe{}", "can't be read: 'utf-8' codec")],
)
def test_a_file_without_tasks(tmp_path, content, problem):
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"task file {path} {problem}"):
        load_tasks(path)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ValueError, match=f"task file {tmp_path / 'none'} can't be read: "):
        load_tasks(tmp_path / "none")
