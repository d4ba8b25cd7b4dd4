"""What a site's machine does: states, conditions, effects, navigation. The one interpreter in Python.

Where it stands: generator, search, renderer and verifier ask `apply` for an action's result. The browser's
runtime.js is a transcript of this file and is tested against it. `fsm_file` describes the JSON form.
Paper: AutoWebWorld, section 3 and appendix A.

1. `clear` and a fresh page use the same default (null for a nullable type).
2. An effect with a `value_expr`, which is never executed, leaves its field unchanged.
"""

import json
import operator
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from minirl.types import Fields, Json
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
    data: Mapping[str, tuple[Fields, ...]] = field(default_factory=dict)
    style: Fields = field(default_factory=dict)
    html: str = ""  # its page, if `render` does not draw it

    def __post_init__(self) -> None:
        for collection, records in self.data.items():
            ids = [str(record.get("id", "")) for record in records]
            are_sound = all(re.fullmatch(r"[A-Za-z0-9_-]+", id) for id in ids)
            if len(set(ids)) < len(ids) or not are_sound:
                rule = "ids must differ, and be of letters, digits, _ and -"
                raise ValueError(f"{self.name}: {collection}: {rule}")
        for action in self.fsm.actions:
            if action.bind and action.bind.collection not in {"", *self.data}:
                raise ValueError(
                    f"{self.name}: {action.id}: no collection {action.bind.collection!r} in data"
                )


def initial_state(fsm: Fsm) -> State:
    return State(fsm.initial_page, fsm.pages[fsm.initial_page].defaults)


def enabled(fsm: Fsm, state: State, action_id: str, params: Fields) -> bool:
    """Return whether the page has the action, `params` gives its open parameters, and all conditions hold."""
    action = fsm.pages[state.page].actions.get(action_id)
    if action is None or params.keys() != set(action.open_parameters):
        return False
    return all(meets(state.signature, condition) for condition in action.preconditions)


def apply(fsm: Fsm, state: State, action_id: str, params: Fields) -> State:
    """Return the state after an action; fields that both pages declare stay. ValueError if not enabled."""
    if not enabled(fsm, state, action_id, params):
        raise ValueError(f"{action_id} with {dict(params)} is not enabled on page {state.page}")
    page = fsm.pages[state.page]
    signature = state.signature
    action = page.actions[action_id]
    values = {**action.parameters, **params}
    for effect in action.effects:
        if effect.expr is not None:
            continue
        operand = effect.value
        if effect.source is not None:
            operand = value_at(signature, effect.source)
        elif effect.ref is not None:
            operand = values[effect.ref]
        result = _effect_value(effect, value_at(signature, effect.path), operand, page.defaults)
        signature = _write(signature, effect.path, result)
    if not action.is_navigation:
        return State(state.page, signature)
    defaults = fsm.pages[action.target].defaults
    carried = {name: signature[name] for name in defaults if name in signature}
    return State(action.target, {**defaults, **carried})


def share_met(state: State, goal: Goal | Fields, answer: str = "") -> float:
    """Return how much of the goal holds: the share of its conditions; page and answer are one each."""
    goal = load_goal(goal)
    verdicts = list(met(state, goal))
    if goal.answer:
        verdicts.append(is_answer(answer, goal))
    return sum(verdicts) / len(verdicts)


def is_answer(answer: str, goal: Goal) -> bool:
    """Return whether a text is a right answer, whatever its case, spaces, last marks: "215 Crowns. " is."""
    return _plain_text(answer) in [_plain_text(spelling) for spelling in goal.answer]


def _plain_text(text: str) -> str:
    return " ".join(text.split()).rstrip(".!").casefold()


def met(state: State, goal: Goal) -> Iterator[bool]:
    """Yield whether the page, and each condition, is as a goal asks, whatever is to be answered."""
    if goal.page:
        yield state.page == goal.page
    yield from (meets(state.signature, condition) for condition in goal.where)


def meets(signature: Signature, condition: Condition) -> bool:
    """Return whether a condition is true. A missing field is null, except for `exists`; values of the wrong
    kind (a text compared with `gt`) make it false."""
    return suits(value_at(signature, condition.path, _MISSING), condition)


def suits(value: Any, condition: Condition) -> bool:
    """Return whether a condition is true of the value at its path."""
    if condition.cond == "exists":
        return value is not _MISSING
    value = None if value is _MISSING else value
    expected = condition.value
    match condition.cond:
        case "eq":
            return same(value, expected)
        case "neq":
            return not same(value, expected)
        case "not_null":
            return value is not None
        case "in" | "oneof":
            return any(same(value, one) for one in expected)
        case "length_gt":
            return (len(value) if isinstance(value, (str, list, tuple, dict)) else 0) > expected
    return is_number(value) and ORDERS[condition.cond](value, expected)


def _effect_value(effect: Effect, old: Any, operand: Any, defaults: Signature) -> Any:
    items = list(old) if isinstance(old, (list, tuple)) else []
    match effect.op:
        case "set":
            return operand
        case "clear":
            return value_at(defaults, effect.path)
        case "inc":
            return (old if is_number(old) else 0) + effect.by
        case "toggle":
            return old is not True
        case "append_unique":
            return items if any(same(one, operand) for one in items) else [*items, operand]
    return [one for one in items if not same(one, operand)]  # remove


def parameter_values(world: World, state: State, action_id: str) -> list[Json]:
    """Return every assignment of the action's open parameters, in display order, whatever its preconditions
    say. An unbound parameter stays its placeholder."""
    action = world.fsm.pages[state.page].actions[action_id]
    bind = action.bind
    signature = state.signature
    symbols = {name: action.parameters[name] for name in action.open_parameters}
    if bind is None:
        return [symbols]
    if not bind.collection:
        return [{**symbols, bind.param: value} for value in bind.values]
    records = list(world.data[bind.collection])
    for key, rule in bind.where.items():
        if not isinstance(rule, Mapping):
            rule = {"cond": "same", "value": rule}
        setting = _resolve(rule["value"], signature)
        records = [record for record in records if passes(record.get(key), rule["cond"], setting)]
    name, _, direction = str(_resolve(bind.order, signature) or "").partition(":")
    if name:  # of equals, the first in the file stays the first, in both directions
        records.sort(
            key=lambda record: (isinstance(value := record.get(name) or 0, str), value),
            reverse=direction == "desc",
        )
    return [{**symbols, bind.param: record["id"]} for record in records]


def passes(value: Any, cond: str, setting: Any) -> bool:
    """Return whether a record's value is the "same", or passes a filter: all do while it is null or false."""
    if cond == "same":
        return same(value, setting)
    if setting is None or setting is False:
        return True
    if cond in ("gte", "lte"):
        return is_number(value) and is_number(setting) and ORDERS[cond](value, setting)
    return value is True if cond == "flag" else same(value, setting)


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


def _write(signature: Signature, path: FieldPath, value: Any) -> Signature:
    name, *rest = path
    if rest:
        inner = signature.get(name)
        value = _write(inner if isinstance(inner, Mapping) else {}, tuple(rest), value)
    return {**signature, name: value}
