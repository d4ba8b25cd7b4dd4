"""Task files: what is written comes back, and what is broken is named by file and line."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minirl.benchmarks.task_files import load_tasks
from minirl.benchmarks.task_sets import make_task_sets
from minirl.config import TaskConfig
from minirl.recipes import tiny
from minirl.run_folder import save_tasks
from minirl.types import Task

GOOD = '{"id": "a", "instruction": "buy", "start_url": "http://shop.test/"}'
NO_GOAL = "goal: Value error, a goal has page, where or answer, of a generated site; else give --task.reward"


def with_field(field: str) -> str:
    return GOOD.replace("}", f", {field}}}")


TEXT = st.text(max_size=10)
MAPPINGS = st.dictionaries(TEXT, st.none() | st.integers() | TEXT | st.lists(TEXT, max_size=2), max_size=2)
URLS = st.from_regex(r"https?://[0-9]\.test:[1-9][0-9]?/", fullmatch=True)
TASKS = st.builds(Task, id=TEXT, instruction=TEXT, start_url=URLS, goal=MAPPINGS, meta=MAPPINGS)


@given(st.lists(TASKS, min_size=1, max_size=3, unique_by=lambda task: task.id))
def test_load_gives_back_what_save_wrote_last_with_any_text(tmp_path_factory, tasks):
    path = tmp_path_factory.getbasetemp() / "any" / "tasks.jsonl"
    save_tasks(path, tasks)
    assert load_tasks(path, any_goal=True) == tasks
    assert [*path.parent.iterdir()] == [path]


def test_a_goal_that_nobody_understands_is_refused_unless_it_is_for_a_function_of_the_users(tmp_path):
    path = tmp_path / "tasks.jsonl"
    mine = with_field('"goal": {"url": "/cart"}').replace('"a"', '"b"')
    path.write_text(with_field('"goal": {"page": "DONE"}') + f"\n{mine}")
    config = replace(tiny(), task=TaskConfig(train=str(path)))
    with pytest.raises(ValueError, match=f"{path}, line 2: {NO_GOAL}$"):
        make_task_sets(config)
    (tmp_path / "own.py").write_text("async def reward(task, page, answer): return 1.0")
    own = TaskConfig(train=str(path), reward=f"{tmp_path / 'own.py'}:reward")
    goals = [task.goal for task in make_task_sets(replace(config, task=own)).train]
    assert goals == [{"page": "DONE"}, {"url": "/cart"}]


def test_blank_lines_are_passed_over_and_only_a_newline_ends_a_line(tmp_path):
    """JSON may hold Unicode's other line separators as they are, and scraped instructions do."""
    path = tmp_path / "tasks.jsonl"
    instruction = "first\u2028second\u0085third"
    good = json.dumps({**json.loads(GOOD), "instruction": instruction}, ensure_ascii=False)
    path.write_text(f"\n{good}\r\n\n  \n")
    assert load_tasks(path) == [Task("a", instruction, "http://shop.test/", {}, {})]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"id": "b"', "Expecting ',' delimiter: line 2 column 1"),
        ('["b"]', "a task must be a JSON object"),
        ('{"id": "b", "instruction": "buy"}', "start_url: Field required"),
        (GOOD.replace("http://shop.test/", "file:///etc/passwd"), "start_url: no page is opened from a file"),
        (GOOD.replace('"a"', "7"), "id: Input should be a valid string, not 7"),
        (with_field('"goal": "DONE"'), "goal: Input should be a valid dictionary, not 'DONE'"),
        (with_field('"site": "shop"'), "site: Extra inputs are not permitted, not 'shop'"),
        (GOOD, "the id 'a' occurs twice"),
        (GOOD.replace("http:", "ftp:"), "start_url: String should match pattern .*, not 'ftp://shop.test/'"),
        (with_field('"goal": {"text": "Thank you"}'), NO_GOAL),
        (with_field('"goal": {"page": "DONE", "where": [{"cond": "is"}]}'), "goal: where"),
        (with_field('"goal": {"kind": "webarena"}'), "eval_types: Field required"),
    ],
    ids=lambda value: value[:30],
)
def test_a_broken_line_is_named_by_file_and_line(tmp_path, line, problem):
    path = tmp_path / "tasks.jsonl"
    path.write_text(f"{GOOD}\n{line}\n")
    with pytest.raises(ValueError, match=f"{path}, line 2: {problem}") as caught:
        load_tasks(path)
    assert "\n" not in str(caught.value)


def test_a_file_in_another_encoding_is_named(tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_text(GOOD.replace("buy", "Kauf Äpfel"), "latin-1")
    with pytest.raises(ValueError, match=rf"{path} is not in UTF-8, which it must be saved in: .*decode"):
        load_tasks(path)


def test_a_file_without_tasks(tmp_path):
    path = tmp_path / "tasks.jsonl"
    with pytest.raises(OSError, match=str(path)):
        load_tasks(path)
    path.write_text("\n\n")
    with pytest.raises(ValueError, match=f"{path} holds no tasks"):
        load_tasks(path)
