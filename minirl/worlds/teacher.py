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
    is wrong." Where there is no state to compare, return the verifier's reason and the last report."""
    goal, state = trajectory.task.goal, trajectory.final_state
    if not goal.keys() & {"page", "where"} or "page" not in state:
        reports = [line for turn in trajectory.turns for line in turn.feedback] or ["nothing"]
        found = "holds" if trajectory.success else "does not hold"
        reason = f" ({as_words(state['reason'])[:200]})" if state.get("reason") else ""
        last = as_words(reports[-1])[:200]
        return f"The task's own check {found}{reason}. The browser reported last: {last}"
    wanted, signature = load_goal(goal), state["signature"]
    facts = [("page", wanted.page, state["page"], state["page"] == wanted.page)] if wanted.page else []
    if wanted.answer:
        said = state.get("answer", "")
        facts.append(("answer", wanted.answer[0], said, is_answer(said, wanted)))
    for one in wanted.where:
        value = "" if one.value is None else as_words(one.value)
        should_be = value if one.cond == "eq" else f"{one.cond} {value}".strip()
        name = " ".join(one.path).removeprefix("done ")
        facts.append((name, should_be, value_at(signature, one.path), meets(signature, one)))
    return " ".join(
        f"The {name} should be {should_be}, is {as_words(found)}{'' if is_right else ', which is wrong'}."
        for name, should_be, found, is_right in facts
    )


def as_words(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return "nothing" if value is None else " ".join(text.split())
