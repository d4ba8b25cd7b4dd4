"""Tasks in words: of the right length, each meaning one thing, and only that thing fulfils it."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
import shopping

from minirl.types import Task
from minirl.worlds.fsm_file import load_goal
from minirl.worlds.generate import LEVELS, THEMES, make_site
from minirl.worlds.interpreter import State, World, apply, initial_state, share_met
from minirl.worlds.search import solve
from minirl.worlds.tasks import FAMILIES, MODES, WORDS, fitting, make_tasks, operations_of


def sites(count: int) -> list[World]:
    levels, themes = list(LEVELS)[1:], list(THEMES)  # the first one has no words but titles
    return [make_site(themes[n % len(themes)], n, levels[n % len(levels)]) for n in range(count)]


MADE = [(world, make_tasks(world)) for world in sites(6)]


def last_state(world: World, goal: Mapping[str, Any]) -> State:
    state = initial_state(world.fsm)
    for step in solve(world, goal) or []:
        state = apply(world.fsm, state, step.action_id, step.params)
    return state


def meant(world: World, find: Mapping[str, Any]) -> list[str]:
    """What a person finds who sets a list as told, by reading the records alone."""
    rows = list(world.data[find["list"]])
    for name, value in find["set"].items():
        kind, _, field = name.partition("_")
        if kind == "least":
            rows = [row for row in rows if row[field] >= value]
        elif kind == "only":
            rows = [row for row in rows if row[field]]
        elif kind == "query":
            rows = [row for row in rows if row["id"] == value]
        else:
            field, _, way = value.partition(":")
            rows.sort(key=lambda row: row[field], reverse=way == "desc")
    target = dict(find["target"])
    rank = target.pop("rank", None)
    rows = [row for row in rows if all(row[name] == value for name, value in target.items())]
    return [row["id"] for row in (rows[rank - 1 : rank] if rank else rows)]


def test_every_instruction_means_one_record():
    """Proved by going through all of them, twice over: as the machine shows them, and from the data."""
    for world, tasks in MADE:
        for task in tasks:
            assert task.meta["finds"]
            for find in task.meta["finds"]:
                assert meant(world, find) == [find["item"]] == fitting(world, find), task


def test_what_fits_is_counted_where_several_do():
    world = make_site("hotels", 3, "easy")
    shown = [record["id"] for record in world.data["rooms"] if record["shape"] == "circle"]
    assert fitting(world, {"list": "rooms", "set": {}, "target": {"shape": "circle"}}) == shown
    assert fitting(world, {"list": "rooms", "set": {}, "target": {"rank": 99}}) == []


def test_tasks_have_their_levels_length_and_are_all_different():
    for world, tasks in MADE:
        low, high = LEVELS[world.fsm.meta["level"]].steps
        for task in tasks:
            path = solve(world, task.goal)
            assert path and low <= len(operations_of(world, path)) == task.meta["steps"] <= high
            assert ("drag" in operations_of(world, path)) == ("text" not in task.meta["agents"])
        assert len(tasks) >= 6
        assert len({task.instruction for task in tasks}) == len({task.id for task in tasks}) == len(tasks)


def another(world: World, task: Task, place: int) -> dict[str, Any]:
    """The task's goal with another value in one of its conditions."""
    where = [dict(one) for one in task.goal["where"]]
    *_, owner, field = where[place]["path"].removeprefix("$.").split(".")
    flows = {flow["id"]: flow for flow in world.fsm.meta["flows"]}
    old = where[place]["value"]
    if field == "item":
        many = next(name for name, rows in world.data.items() if old in [row["id"] for row in rows])
        others: list[Any] = [row["id"] for row in world.data[many]]
    else:
        others = list(flows[owner]["asks"][field]) if owner in flows else []
    others = [one for one in others if one != old]
    where[place]["value"] = others[0] if others else None
    return {"where": where if others else []}


def test_another_item_text_date_option_or_number_is_wrong():
    """For each condition that has another value: done otherwise, and all else as told, it fails."""
    wrong = Counter[str]()
    for world, tasks in MADE[:3]:
        for task in tasks[:4]:
            assert shopping.holds(last_state(world, task.goal), task.goal)
            for place, one in enumerate(task.goal["where"]):
                other = another(world, task, place)
                narrowed = any(find["set"].keys() - {"order"} for find in task.meta["finds"])
                if not other["where"] or (".item" in one["path"] and narrowed):
                    continue  # another item need not be in such a list
                if ".item" in one["path"]:  # it stands in several conditions
                    for condition in other["where"]:
                        if condition["value"] == one["value"]:
                            condition["value"] = other["where"][place]["value"]
                if (path := solve(world, other)) is not None:
                    state = last_state(world, other)
                    assert path and not shopping.holds(state, task.goal), (task, place)
                    assert 0 < share_met(state, task.goal) < 1 or len(task.goal["where"]) < 3
                    wrong[one["path"].rpartition(".")[2]] += 1
    assert len(wrong) >= 5 and wrong["item"] >= 3


def test_an_answer_is_one_value_of_the_item_in_question():
    asked = [(world, task) for world, tasks in MADE for task in tasks if "answer" in task.goal]
    assert len(asked) >= 5
    for world, task in asked:
        find = task.meta["finds"][0]
        record = next(one for one in world.data[find["list"]] if one["id"] == find["item"])
        value, *longer = task.goal["answer"]
        assert value in [str(known) for known in record.values()]
        assert all(one.startswith(value) for one in longer)
        state = last_state(world, task.goal)
        assert share_met(state, load_goal(task.goal), f" {value.upper()}. ") == 1
        assert share_met(state, load_goal(task.goal), f"{value}0") < 1


def test_there_are_three_wordings_of_everything():
    for table in ("modes", "targets", "flows", "asks", "questions"):
        for name, wordings in WORDS[table].items():
            assert len(set(wordings)) >= 3, name


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("count", "least"), [(0, 1), pytest.param(300, 50, marks=pytest.mark.slow)])
def test_every_family_is_asked_in_every_mode(count, least):
    made = [(world, make_tasks(world)) for world in sites(count)] or MADE
    cells = Counter((task.meta["family"], task.meta["mode"]) for _, tasks in made for task in tasks)
    found = [cell for cell in itertools.product(FAMILIES, MODES) if cells[cell] >= least]
    assert len(found) == 15 if count else len(found) >= 12, cells
