"""What a site's machine does: states, conditions, effects, navigation. The one interpreter in Python.

Where it stands: generator, search, renderer and verifier ask `apply` for an action's result. The browser's
runtime.js is a transcript of this file and is tested against it. `fsm_file` describes the JSON form.
Paper: AutoWebWorld, section 3 and appendix A. Deviations: `clear` and a fresh page use the same default (null
for a nullable type), and an effect with a `value_expr`, which is never executed, leaves its field unchanged.
"""

import json
import operator
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from minirl.worlds.fsm_file import Condition, Effect, FieldPath, Fsm, Goal, Signature, is_number, load_goal

ORDERS = {"gt": operator.gt, "gte": operator.ge, "lt": operator.lt, "lte": operator.le}
_MISSING = object()  # what a path leads to when there is no such field


@dataclass(frozen=True)
class State:
    """Where a visitor is: a page and what that page remembers."""

    page: str
    signature: Signature

    def key(self) -> str:
        """Return the same text for equal states: 'CART {"item":"pen","n":1}'."""
        return f"{self.page} {canonical(self.signature)}"


@dataclass(frozen=True)
class World:
    """A site served as `<name>.test`: a machine, its records in display order, its looks (style.toml)."""

    name: str
    fsm: Fsm
    data: Mapping[str, tuple[Mapping[str, Any], ...]] = field(default_factory=dict)
    style: Mapping[str, Any] = field(default_factory=dict)
    html: str = ""  # its page, if `render` does not draw it

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", self.name):
            raise ValueError(f"world name {self.name!r}: use lower-case letters, digits and inner dashes")
        for collection, records in self.data.items():
            ids = [str(record.get("id", "")) for record in records]
            if len(set(ids)) < len(ids) or not all(re.fullmatch(r"[A-Za-z0-9_-]+", id) for id in ids):
                rule = "ids must differ, and be of letters, digits, _ and -"
                raise ValueError(f"{self.name}: {collection}: {rule}")
        for action in self.fsm.actions:
            if action.bind and (wanted := action.bind.collection) not in {"", *self.data}:
                raise ValueError(f"{self.name}: {action.id}: no collection {wanted!r} in data")


def initial_state(fsm: Fsm) -> State:
    return State(fsm.initial_page, fsm.pages[fsm.initial_page].defaults)


def enabled(fsm: Fsm, state: State, action_id: str, params: Mapping[str, Any]) -> bool:
    """Return whether the page has the action, `params` gives all its open parameters (fixed ones may be
    repeated) and no unknown one, and all preconditions hold."""
    action = fsm.pages[state.page].actions.get(action_id)
    if action is None or not {*action.open_parameters} <= params.keys() <= action.parameters.keys():
        return False
    fixed = params.keys() - {*action.open_parameters}
    are_kept = all(same(params[name], action.parameters[name]) for name in fixed)
    return are_kept and all(meets(state.signature, condition) for condition in action.preconditions)


def apply(fsm: Fsm, state: State, action_id: str, params: Mapping[str, Any]) -> State:
    """Return the state after an action; fields that both pages declare stay. ValueError if not enabled."""
    if not enabled(fsm, state, action_id, params):
        raise ValueError(f"{action_id} with {dict(params)} is not enabled on page {state.page}")
    page, signature = fsm.pages[state.page], state.signature
    action = page.actions[action_id]
    values = {**action.parameters, **params}
    for effect in action.effects:
        if effect.expr is None:
            given = effect.value if effect.ref is None else values[effect.ref]
            given = given if effect.source is None else value_at(signature, effect.source)
            new = _effect_value(effect, value_at(signature, effect.path), given, page.defaults)
            signature = _write(signature, effect.path, new)
    if not action.is_navigation:
        return State(state.page, signature)
    defaults = fsm.pages[action.target].defaults
    carried = {name: signature[name] for name in defaults if name in signature}
    return State(action.target, {**defaults, **carried})


def share_met(state: State, goal: Goal | Mapping[str, Any], answer: str = "") -> float:
    """Return how much of the goal holds: the share of its conditions; page and answer are one each."""
    goal = goal if isinstance(goal, Goal) else load_goal(goal)
    found = list(met(state, goal))
    if goal.answer:
        found.append(is_answer(answer, goal))
    return sum(found) / len(found)


def is_answer(said: str, goal: Goal) -> bool:
    """Return whether a text is a right answer, whatever its case, spaces, last marks: "215 Crowns. " is."""
    plain, *right = (" ".join(text.split()).rstrip(".!").casefold() for text in (said, *goal.answer))
    return plain in right


def met(state: State, goal: Goal) -> Iterator[bool]:
    """Yield whether page and conditions are as a goal wants them, whatever is to be answered."""
    if goal.page:
        yield state.page == goal.page
    yield from (meets(state.signature, condition) for condition in goal.where)


def meets(signature: Signature, condition: Condition) -> bool:
    """Return whether a condition is true. A missing field is null, except for `exists`; values of the wrong
    kind (a text compared with `gt`) make it false."""
    return suits(value_at(signature, condition.path, _MISSING), condition)


def suits(found: Any, condition: Condition) -> bool:
    """Return whether a condition is true of what is found at its path."""
    value, wanted = None if found is _MISSING else found, condition.value
    match condition.cond:
        case "eq" | "neq":
            return same(value, wanted) == (condition.cond == "eq")
        case "exists":
            return found is not _MISSING
        case "not_null":
            return value is not None
        case "in" | "oneof":
            return any(same(value, one) for one in wanted)
        case "length_gt":
            return (len(value) if isinstance(value, (str, list, tuple, dict)) else 0) > wanted
    return is_number(value) and ORDERS[condition.cond](value, wanted)


def _effect_value(effect: Effect, old: Any, given: Any, defaults: Signature) -> Any:
    items = list(old) if isinstance(old, (list, tuple)) else []
    match effect.op:
        case "set":
            return given
        case "clear":
            return value_at(defaults, effect.path)
        case "inc":
            return (old if is_number(old) else 0) + effect.by
        case "toggle":
            return old is not True
        case "append_unique":
            return items if any(same(one, given) for one in items) else [*items, given]
    return [one for one in items if not same(one, given)]  # remove


def parameter_values(world: World, state: State, action_id: str) -> list[dict[str, Any]]:
    """Return every assignment of the action's open parameters, in display order, whatever its preconditions
    say. An unbound parameter stays its placeholder."""
    action = world.fsm.pages[state.page].actions[action_id]
    bind, signature = action.bind, state.signature
    symbols = {name: action.parameters[name] for name in action.open_parameters}
    if bind is None:
        return [symbols]
    if not bind.collection:
        return [{**symbols, bind.param: value} for value in bind.values]
    records = list(world.data[bind.collection])
    for key, wanted in bind.where.items():
        cond = wanted["cond"] if isinstance(wanted, Mapping) else "same"
        asked = _resolve(wanted["value"] if isinstance(wanted, Mapping) else wanted, signature)
        records = [record for record in records if passes(record.get(key), cond, asked)]
    name, _, direction = str(_resolve(bind.order, signature) or "").partition(":")
    if name:  # of equals, the first in the file stays the first, in both directions
        records.sort(key=lambda record: record.get(name) or 0, reverse=direction == "desc")
    return [{**symbols, bind.param: record["id"]} for record in records]


def passes(value: Any, cond: str, asked: Any) -> bool:
    """Return whether a record's value is the "same", or passes a filter: all do while it is null or false."""
    if cond != "same" and (asked is None or asked is False):
        return True
    if cond in ("gte", "lte"):
        return is_number(value) and is_number(asked) and ORDERS[cond](value, asked)
    return value is True if cond == "flag" else same(value, asked)


def _resolve(value: Any, signature: Signature) -> Any:
    is_path = isinstance(value, str) and value.startswith("$.")
    return value_at(signature, tuple(value[2:].split("."))) if is_path else value


def canonical(value: Any) -> str:
    """Return the same JSON text for equal values: keys sorted, 1.0 written as 1."""
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def same(a: Any, b: Any) -> bool:
    """Return whether two JSON values are equal: 1 and 1.0 are, 1 and true are not."""
    if isinstance(a, str) or isinstance(b, str) or a is None or b is None:
        return a == b
    return canonical(a) == canonical(b)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return value


def value_at(signature: Signature, path: FieldPath, missing: Any = None) -> Any:
    value: Any = signature
    for name in path:
        if not isinstance(value, Mapping) or name not in value:
            return missing
        value = value[name]
    return value


def overlaps(path: FieldPath, others: Iterable[FieldPath]) -> bool:
    """Return whether one of the others is the same field, a part of it, or what it is a part of."""
    return any(a[: len(path)] == path[: len(a)] for a in others)


def _write(signature: Signature, path: FieldPath, value: Any) -> Signature:
    name, rest = path[0], path[1:]
    if rest:
        inner = signature.get(name)
        value = _write(inner if isinstance(inner, Mapping) else {}, rest, value)
    return {**signature, name: value}
