"""What a site's machine does: states, conditions, effects, navigation. The one interpreter.

Where it stands: everything about synthetic sites meets here. `generate` makes machines, `search`
solves them, `site` draws them in a browser, and a verifier reads goals with the same conditions
that guard the actions. Whoever needs to know what an action does asks `apply`; there is no second
opinion (the browser's runtime.js is a transcript of this file and is tested against it).

Paper: AutoWebWorld, section 3 and appendix A. Deviations: `clear` and a fresh page use the same
default (null for a nullable type), and `value_expr` is never executed, so that an effect with one
leaves its field unchanged. The JSON form, with our own additions, is described in `schema`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from minirl.worlds.fsm_file import Action as Action
from minirl.worlds.fsm_file import Bind, Condition, Effect, FieldPath, Fsm, Goal, Signature, load_goal
from minirl.worlds.fsm_file import Page as Page
from minirl.worlds.fsm_file import load_fsm as load_fsm
from minirl.worlds.reading import is_number

_MISSING = object()  # what a path leads to when there is no such field


@dataclass(frozen=True)
class State:
    """Where a visitor is: a page and what that page remembers. Fields of other pages are forgotten."""

    page: str
    signature: Signature

    def key(self) -> str:
        """The same text for equal states, whatever the order in which their fields were written.

        >>> State("CART", {"n": 1.0, "item": "pen"}).key()
        'CART {"item":"pen","n":1}'
        """
        return f"{self.page} {canonical(self.signature)}"


@dataclass(frozen=True)
class World:
    """A site that can be served: a machine, the records that it shows, and how it looks.

    `name` becomes the host `<name>.test`. `data` maps a collection to its records in display order;
    every record has an `id` (letters, digits, "_" and "-", so that it can be part of a CSS class).
    `style` is described in `site`. Raises ValueError if a name, an id or a binding cannot work.
    """

    name: str
    fsm: Fsm
    data: Mapping[str, tuple[Mapping[str, Any], ...]] = field(default_factory=dict)
    style: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", self.name):
            raise ValueError(
                f"world name {self.name!r}: use lower-case letters, digits and inner dashes only"
            )
        for collection, records in self.data.items():
            ids = [record.get("id") for record in records]
            for id in ids:
                if not isinstance(id, str) or not re.fullmatch(r"[A-Za-z0-9_-]+", id):
                    raise ValueError(
                        f"{self.name}: {collection}: id {id!r} needs letters, digits, _ or - only"
                    )
            if len(set(ids)) < len(ids):
                raise ValueError(f"{self.name}: {collection}: two records have the same id")
        for action in self.fsm.actions:
            if action.bind and action.bind.collection and action.bind.collection not in self.data:
                raise ValueError(
                    f"{self.name}: {action.id}: no collection {action.bind.collection!r} in data"
                )


# --- what the machine does ----------------------------------------------------------------------


def initial_state(fsm: Fsm) -> State:
    """The first page with its defaults."""
    return State(fsm.initial_page, fsm.pages[fsm.initial_page].defaults)


def enabled(fsm: Fsm, state: State, action_id: str, params: Mapping[str, Any]) -> bool:
    """Whether `action_id` can be taken in `state` with these parameters.

    True if the page has the action, `params` gives every open parameter and no unknown one (a fixed
    parameter may be repeated with its value), and all preconditions hold. Whether a bound parameter
    names an existing record is not asked here: see `parameter_values`.
    """
    action = fsm.pages[state.page].actions.get(action_id)
    if action is None or not all(name in params for name in action.open_parameters):
        return False
    for name, value in params.items():
        if name not in action.parameters:
            return False
        if name not in action.open_parameters and not same(value, action.parameters[name]):
            return False
    return all(meets(state.signature, condition) for condition in action.preconditions)


def apply(fsm: Fsm, state: State, action_id: str, params: Mapping[str, Any]) -> State:
    """The state after the action. Effects write into the current page's signature; a navigation then
    takes the target page's defaults and overwrites the top-level fields that both pages declare.

    Raises ValueError if the action is not enabled.
    """
    if not enabled(fsm, state, action_id, params):
        raise ValueError(f"{action_id} with {dict(params)} is not enabled on page {state.page}")
    page = fsm.pages[state.page]
    action = page.actions[action_id]
    values = {**action.parameters, **params}
    signature = state.signature
    for effect in action.effects:
        signature = _write_effect(signature, effect, values, page.defaults)
    if not action.is_navigation:
        return State(state.page, signature)
    defaults = fsm.pages[action.target].defaults
    carried = {name: signature[name] for name in defaults if name in signature}
    return State(action.target, {**defaults, **carried})


def holds(state: State, goal: Goal | Mapping[str, Any]) -> bool:
    """Whether `state` is on the goal's page and meets all of its conditions. A mapping is read with
    `load_goal`, which raises ValueError for a malformed one."""
    if not isinstance(goal, Goal):
        goal = load_goal(goal)
    return state.page == goal.page and all(meets(state.signature, condition) for condition in goal.where)


def meets(signature: Signature, condition: Condition) -> bool:
    """Whether one condition is true. A missing field counts as null, except for `exists`; values of
    the wrong kind (a text compared with `gt`) make a condition false, never an error."""
    found = _read(signature, condition.path)
    value = None if found is _MISSING else found
    wanted = condition.value
    match condition.cond:
        case "eq":
            return same(value, wanted)
        case "neq":
            return not same(value, wanted)
        case "exists":
            return found is not _MISSING
        case "not_null":
            return value is not None
        case "in" | "oneof":
            return any(same(value, one) for one in wanted)
        case "length_gt":
            return (len(value) if isinstance(value, (str, list, tuple, dict)) else 0) > wanted
    if not is_number(value):
        return False
    match condition.cond:
        case "gt":
            return value > wanted
        case "gte":
            return value >= wanted
        case "lt":
            return value < wanted
        case "lte":
            return value <= wanted
    raise AssertionError(f"no such condition: {condition.cond}")


def parameter_values(world: World, state: State, action_id: str) -> list[dict[str, Any]]:
    """Every assignment of the action's open parameters in `state`, in display order.

    A bound parameter takes its values, or the ids of its records; an unbound one stays its own placeholder.
    Whether the action is enabled is not asked. An action without open parameters has the one assignment {}.
    """
    action = world.fsm.pages[state.page].actions[action_id]
    symbols = {name: action.parameters[name] for name in action.open_parameters}
    if action.bind is None:
        return [symbols]
    return [{**symbols, action.bind.param: value} for value in bound_values(world, state, action.bind)]


def bound_values(world: World, state: State, bind: Bind) -> list[Any]:
    """The values, or the ids of the records, that `bind` offers in `state`, in display order."""
    if not bind.collection:
        return list(bind.values)
    records = [r for r in world.data[bind.collection] if _is_offered(r, bind.where, state.signature)]
    name, _, direction = str(_resolve(bind.order or None, state.signature) or "").partition(":")
    if name:
        # the order of the file decides between equals, in both directions
        records.sort(key=lambda r: r.get(name) or 0, reverse=direction == "desc")
    return [record["id"] for record in records]


def _is_offered(record: Mapping[str, Any], where: Mapping[str, Any], signature: Signature) -> bool:
    for name, wanted in where.items():
        if isinstance(wanted, Mapping):
            if not passes(record.get(name), wanted["cond"], _resolve(wanted["value"], signature)):
                return False
        elif not same(record.get(name), _resolve(wanted, signature)):
            return False
    return True


def passes(value: Any, cond: str, asked: Any) -> bool:
    """Whether a record's value passes a list's filter. One that is not set (null, false) lets all pass."""
    if asked is None or asked is False:
        return True
    match cond:
        case "eq":
            return same(value, asked)
        case "flag":
            return value is True
        case "gte":
            return is_number(value) and is_number(asked) and value >= asked
        case "lte":
            return is_number(value) and is_number(asked) and value <= asked
    raise AssertionError(f"no such filter: {cond}")


def canonical(value: Any) -> str:
    """JSON text that is equal for equal JSON values: keys sorted, 1.0 written as 1."""
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def same(a: Any, b: Any) -> bool:
    """Equality of JSON values: 1 and 1.0 are equal, 1 and true are not."""
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


def _resolve(value: Any, signature: Signature) -> Any:
    if not (isinstance(value, str) and value.startswith("$.")):
        return value
    found = _read(signature, tuple(value[2:].split(".")))
    return None if found is _MISSING else found


def value_at(signature: Signature, path: FieldPath) -> Any:
    """A field's value; a missing one counts as null."""
    found = _read(signature, path)
    return None if found is _MISSING else found


def _read(signature: Signature, path: FieldPath) -> Any:
    value: Any = signature
    for name in path:
        if not isinstance(value, Mapping) or name not in value:
            return _MISSING
        value = value[name]
    return value


def _write(signature: Signature, path: FieldPath, value: Any) -> Signature:
    """A copy of `signature` with `value` at `path`; objects on the way are copied or made."""
    name, rest = path[0], path[1:]
    if rest:
        inner = signature.get(name)
        value = _write(inner if isinstance(inner, Mapping) else {}, rest, value)
    return {**signature, name: value}


def _write_effect(
    signature: Signature, effect: Effect, values: Mapping[str, Any], defaults: Signature
) -> Signature:
    if effect.expr is not None:
        return signature
    given = effect.value if effect.ref is None else values[effect.ref]
    old = value_at(signature, effect.path)
    match effect.op:
        case "set":
            new = given
        case "clear":
            new = value_at(defaults, effect.path)
        case "inc":
            new = (old if is_number(old) else 0) + effect.by
        case "toggle":
            new = old is not True
        case "append_unique":
            items = list(old) if isinstance(old, (list, tuple)) else []
            new = items if any(same(one, given) for one in items) else [*items, given]
        case "remove":
            items = list(old) if isinstance(old, (list, tuple)) else []
            new = [one for one in items if not same(one, given)]
        case _:
            raise AssertionError(f"no such effect: {effect.op}")
    return _write(signature, effect.path, new)
