"""The generated sites as a teacher of judges: a task's own verdict, with reasons from a template.

Stands behind judge.py's `label` (minirl/judges/labels.py), in place of the model that labelled OpenWebRL's
rollouts (section 4.3): here the truth is known, and costs nothing.
"""

import json

from minirl.types import Trajectory, Verdict
from minirl.worlds.fsm_file import load_goal
from minirl.worlds.interpreter import is_answer, meets, value_at


async def world_teacher(trajectory: Trajectory) -> Verdict:
    """Return the task's own verdict, as a `Judge`; none if the task has no goal."""
    if not trajectory.task.goal:
        return Verdict(None, "", "the task has no goal of its own")
    return Verdict(trajectory.success, world_rationale(trajectory))


def world_rationale(trajectory: Trajectory) -> str:
    """Return the goal's conditions on the final state, one by one: "The colour should be red, is blue, which
    is wrong." Where there is no state to compare, return the verifier's reason."""
    conditions = compared(trajectory)
    if not conditions:
        verdict = "holds" if trajectory.success else "does not hold"
        return f"The task's own check {verdict}: {as_words(trajectory.final_state.get('reason'))[:200]}."
    reasons = []
    for name, should_be, value, is_met in conditions:
        ending = "" if is_met else ", which is wrong"
        reasons.append(f"The {name} should be {should_be}, is {value}{ending}.")
    return " ".join(reasons)


def compared(trajectory: Trajectory) -> list[tuple[str, str, str, bool]]:
    """Return the goal's conditions on the final state, each with what is expected, what is found, and whether
    that is right: ("colour", "red", "blue", False). There are none where there is no state to compare."""
    goal = trajectory.task.goal
    state = trajectory.final_state
    if not goal.keys() & {"page", "where"} or not {"page", "signature"} <= state.keys():
        return []
    expected = load_goal(goal)
    rows = []
    if expected.page:
        rows.append(("page", expected.page, as_words(state["page"]), state["page"] == expected.page))
    if expected.answer:
        answer = state.get("answer", "")
        rows.append(("answer", expected.answer[0], as_words(answer), is_answer(answer, expected)))
    for condition in expected.where:
        name = " ".join(condition.path).removeprefix("done ")
        should_be = as_words(condition.value)
        if condition.cond != "eq":
            should_be = f"{condition.cond} {should_be}".removesuffix(" nothing")
        value = value_at(state["signature"], condition.path)
        rows.append((name, should_be, as_words(value), meets(state["signature"], condition)))
    return rows


def as_words(value: object) -> str:
    if value is None:
        return "nothing"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return " ".join(text.split())
