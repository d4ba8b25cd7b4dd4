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
    goal = trajectory.task.goal
    state = trajectory.final_state
    if not goal.keys() & {"page", "where"} or "page" not in state:
        verdict = "holds" if trajectory.success else "does not hold"
        return f"The task's own check {verdict}: {as_words(state.get('reason'))[:200]}."
    expected = load_goal(goal)
    signature = state["signature"]
    reasons = []
    if expected.page:
        reasons.append(_reason("page", expected.page, state["page"], state["page"] == expected.page))
    if expected.answer:
        answer = state.get("answer", "")
        reasons.append(_reason("answer", expected.answer[0], answer, is_answer(answer, expected)))
    for condition in expected.where:
        name = " ".join(condition.path).removeprefix("done ")
        should_be = as_words(condition.value)
        if condition.cond != "eq":
            should_be = f"{condition.cond} {should_be}".removesuffix(" nothing")
        is_met = meets(signature, condition)
        reasons.append(_reason(name, should_be, value_at(signature, condition.path), is_met))
    return " ".join(reasons)


def _reason(name: str, should_be: str, value: object, is_right: bool) -> str:
    ending = "" if is_right else ", which is wrong"
    return f"The {name} should be {should_be}, is {as_words(value)}{ending}."


def as_words(value: object) -> str:
    if value is None:
        return "nothing"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return " ".join(text.split())
