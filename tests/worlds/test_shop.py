"""Shops and their tasks: words that mean one thing, tasks that can be done, seeds that repeat."""

from __future__ import annotations

import itertools
import json
import re

import pytest

from minirl.types import Task
from minirl.worlds.interpreter import State, World, apply, holds, initial_state
from minirl.worlds.render import describe
from minirl.worlds.search import solve
from minirl.worlds.shop import CHOICES, make_shop, make_tasks

SHOP = make_shop(0)
SEVEN_STEPS = (
    "HOME_OPEN_CATEGORY CATEGORY_OPEN_PRODUCT PRODUCT_CHOOSE_COLOUR PRODUCT_CHOOSE_SIZE PRODUCT_CONTINUE "
    "CHECKOUT_CHOOSE_QUANTITY CHECKOUT_PLACE_ORDER"
)


def states(world: World, task: Task) -> list[State]:
    """Before and after every step of the task's shortest solution, which takes the seven actions."""
    steps = solve(world, task.goal) or []
    assert [step.action_id for step in steps] == SEVEN_STEPS.split()
    out = [initial_state(world.fsm)]
    for step in steps:
        out.append(apply(world.fsm, out[-1], step.action_id, step.params))
    return out


def test_every_task_takes_the_same_seven_actions():
    world = make_shop(3)
    train, heldout = make_tasks(world, 20, 10, seed=1)
    for task in [*train, *heldout]:
        *before, last = states(world, task)
        assert not any(holds(state, task.goal) for state in before) and holds(last, task.goal)
        assert list(last.signature.values()) == [goal["value"] for goal in task.goal["where"]]


def test_a_state_fulfils_its_own_task_only():
    tasks, _ = make_tasks(SHOP, 12, 0, seed=0)
    for one, other in itertools.permutations(tasks, 2):
        assert not holds(states(SHOP, one)[-1], other.goal)


def test_train_and_heldout_are_disjoint_and_repeat():
    train, heldout = make_tasks(SHOP, 300, 100, seed=5)
    ids = [task.id for task in [*train, *heldout]]
    assert (len(train), len(heldout), len(set(ids))) == (300, 100, 400)
    assert len({task.instruction for task in [*train, *heldout]}) == 400
    assert make_tasks(make_shop(0), 300, 100, seed=5) == (train, heldout)
    assert make_tasks(SHOP, 300, 100, seed=6)[0] != train


def test_more_heldout_tasks_change_no_others():
    (train, few), (same, more), (again, most) = (make_tasks(SHOP, 300, n, seed=5) for n in (8, 256, 2000))
    assert train == same == again
    assert few == more[:8] and more == most[:256]


def test_all_combinations_can_be_drawn_but_no_more():
    train, heldout = make_tasks(SHOP, 9000, 216, seed=0)
    assert len({task.id for task in [*train, *heldout]}) == 9216
    with pytest.raises(ValueError, match="9216 different orders"):
        make_tasks(SHOP, 9000, 217, seed=0)


def test_the_instruction_says_every_word_of_the_goal():
    world = make_shop(2)
    for task in make_tasks(world, 30, 0, seed=0)[0]:
        words = re.findall(r"[a-z]+", task.instruction)
        assert all(words.count(goal["value"]) == 1 for goal in task.goal["where"])
        assert task.start_url == "http://shop-2.test/"
        assert task.id == "-".join(["shop-2", *(goal["value"] for goal in task.goal["where"])])
        assert json.loads(json.dumps(task.goal)) == task.goal


def test_words_are_plain_and_belong_to_one_collection():
    words = [record["id"] for records in SHOP.data.values() for record in records]
    assert len(words) == len(set(words)) == 8 + 8 + 6 + 4 + 6
    assert all(re.fullmatch("[a-z]+", word) for word in words)


def test_seeds_move_things_and_repeat():
    def order(seed: int) -> list[list[str]]:
        return [[record["id"] for record in make_shop(seed).data[name]] for _, name in CHOICES]

    assert describe(make_shop(1)) == describe(make_shop(1))
    assert order(1) != order(2)
    assert [sorted(ids) for ids in order(1)] == [sorted(ids) for ids in order(2)]
    assert len({make_shop(seed).style["accent"] for seed in range(20)}) > 3


def test_going_back_forgets_the_page_that_was_left():
    state = initial_state(SHOP.fsm)
    for id, params in [
        ("HOME_OPEN_CATEGORY", {"category": "mugs"}),
        ("CATEGORY_OPEN_PRODUCT", {"product": "dune"}),
        ("PRODUCT_CHOOSE_COLOUR", {"colour": "red"}),
        ("PRODUCT_CHOOSE_COLOUR", {"colour": "blue"}),
    ]:
        state = apply(SHOP.fsm, state, id, params)
    assert state.signature == {"category": "mugs", "product": "dune", "colour": "blue", "size": None}
    state = apply(SHOP.fsm, state, "PRODUCT_BACK", {})
    assert state.signature == {"category": "mugs", "product": "dune"}
