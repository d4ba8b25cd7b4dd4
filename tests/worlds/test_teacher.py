"""The generated sites as a teacher of judges: the reasons that its labels have."""

from dataclasses import replace

import shopping

from minirl.judges.labels import target
from minirl.judges.parsers import read_verdict
from minirl.types import Trajectory, Verdict
from minirl.worlds.teacher import world_rationale

TASK = shopping.tasks(1)[0]


def test_reasons_are_the_goals_conditions_one_by_one():
    wanted = shopping.wanted(TASK)
    told = world_rationale(shopping.episode(TASK, colour="mauve"))
    category, product, colour = wanted["category"], wanted["product"], wanted["colour"]
    assert told == (
        f"The page should be DONE, is DONE. The product should be {product}, is {product}. The category "
        f"should be {category}, is {category}. The colour should be {colour}, is mauve, which is wrong. The "
        f"size should be {wanted['size']}, is {wanted['size']}. The quantity should be {wanted['quantity']}, "
        f"is {wanted['quantity']}."
    )
    assert "wrong" not in world_rationale(shopping.episode(TASK))


def test_other_conditions_and_what_is_not_there():
    where = [{"path": "$.view.price", "cond": "gt", "value": 5}, {"path": "$.name", "cond": "not_null"}]
    task = replace(TASK, goal={"page": "END", "where": where})
    ended = Trajectory(task, 0, final_state={"page": "MAP", "signature": {"view": {"price": 7}}})
    assert world_rationale(ended) == (
        "The page should be END, is MAP, which is wrong. The view price should be gt 5, is 7. The name "
        "should be not_null, is nothing, which is wrong."
    )


def test_where_there_is_no_state_the_reason_is_quoted_on_one_line():
    task = replace(TASK, goal={"kind": "webarena"})
    failed = Trajectory(task, 0, final_state={"score": 0, "reason": "no order\nwas found"})
    assert world_rationale(failed) == "The task's own check does not hold: no order was found."
    answer = target(Verdict(False, world_rationale(failed)))
    assert read_verdict(answer).success is False
