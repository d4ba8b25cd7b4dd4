"""The records of a finite state machine that describes a web site, and how they are read from JSON.

Where it stands: `load_fsm` turns an fsm.json file, or the mapping that `generate` builds, into frozen
records; `fsm` gives them their meaning. Everything structural is checked here once, so that the
interpreter, the search and the renderer need not ask again. What is legal but unwise (pages that
nobody reaches, writes to undeclared fields) is accepted: judging a site is a validator's business.

Paper: AutoWebWorld, section 3 and appendix A (a site is pages, per-page signatures and actions with
preconditions and effects). The JSON form is that of the sites released with the paper: actions
inline in their page, defaults derived from type strings. Deviations, all optional in a file:

* an action may carry `bind`, which says where the values of one of its parameters come from:

      "bind": {"product": {"collection": "products", "where": {"category": "$.category"}}}

  makes `product` range over the ids of those records of `products` whose `category` equals the
  page's current `$.category`. Parameters without it stay one symbol, such as "{ITEM_ANY}".
* an effect may also be `toggle`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Signature = Mapping[str, Any]  # what a page remembers: a JSON object, never written into
FieldPath = tuple[str, ...]  # "$.view.sort" is ("view", "sort")

ORDERED = {"gt", "gte", "lt", "lte", "length_gt"}  # conditions that compare with a number
LISTED = {"in", "oneof"}  # conditions that compare with a list
CONDITIONS = {"eq", "neq", "exists", "not_null"} | ORDERED | LISTED
EFFECTS = {"set", "inc", "clear", "append_unique", "toggle"}
GUI_OPS = {"click", "hover", "type_text", "key_press", "drag"}
TYPE_DEFAULTS = {"string": "", "boolean": False, "integer": 0, "integer>=1": 1, "number": 0}


@dataclass(frozen=True)
class Condition:
    """One test on a signature: `Condition(("copies",), "gte", 1)` says $.copies >= 1."""

    path: FieldPath
    cond: str
    value: Any = None


@dataclass(frozen=True)
class Effect:
    """One write into a signature. At most one of `value`, `ref` and `expr` is meant, and `ref` (the name
    of a parameter) goes before `value`. `expr` is text that nobody executes."""

    op: str
    path: FieldPath
    value: Any = None
    ref: str | None = None
    expr: str | None = None
    by: float = 1


@dataclass(frozen=True)
class Bind:
    """The values of `param` are the ids in `collection`, of the records that fit `where`.

    `where` maps a record's field to a literal or to a path ("$.category") in the current signature.
    """

    param: str
    collection: str
    where: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Action:
    """Something a visitor can do on page `source`. It ends on page `target`."""

    id: str
    name: str  # click, type, search or select
    source: str
    target: str
    is_navigation: bool
    parameters: Mapping[str, Any]  # a placeholder such as "{ITEM_ANY}", or a fixed value
    preconditions: tuple[Condition, ...]
    effects: tuple[Effect, ...]
    gui_procedure: tuple[Mapping[str, Any], ...]
    bind: Bind | None = None

    @property
    def open_parameters(self) -> tuple[str, ...]:
        """Names of the parameters that a caller must give; the others have fixed values."""
        return tuple(n for n, v in self.parameters.items() if is_placeholder(v) or self._is_bound(n))

    def _is_bound(self, name: str) -> bool:
        return self.bind is not None and self.bind.param == name


@dataclass(frozen=True)
class Page:
    id: str
    schema: Mapping[str, Any]  # field -> type string, or a nested schema
    defaults: Signature
    actions: Mapping[str, Action]  # in the order of the file


@dataclass(frozen=True)
class Fsm:
    app: str
    initial_page: str
    terminal_pages: tuple[str, ...]
    pages: Mapping[str, Page]
    meta: Mapping[str, Any] = field(default_factory=dict)  # the rest of the file's meta, as it was


@dataclass(frozen=True)
class Goal:
    """A page to be on, and what its signature must then say."""

    page: str
    where: tuple[Condition, ...] = ()


# --- reading ------------------------------------------------------------------------------------


def load_fsm(source: Path | Mapping[str, Any]) -> Fsm:
    """Read a machine from an fsm.json file, or from the same thing as a mapping.

    Raises ValueError that names the file (or "fsm") and the place in it.
    """
    if isinstance(source, Mapping):
        return _read_fsm(source, "fsm")
    try:
        document = json.loads(source.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
    except (OSError, ValueError) as error:
        raise ValueError(f"{source}: not a readable JSON file: {error}") from error
    return _read_fsm(document, str(source))


def load_goal(goal: Mapping[str, Any]) -> Goal:
    """Read {"page": id, "where": [{"path": "$.a", "cond": "eq", "value": 1}, ...]}; `where` may be absent.

    Raises ValueError that names the place.
    """
    where = _take(goal, "where", list, "goal", [])
    conditions = [_read_condition(one, f"goal: where[{i}]") for i, one in enumerate(where)]
    return Goal(_take(goal, "page", str, "goal"), tuple(conditions))


def is_placeholder(value: Any) -> bool:
    """Whether a parameter's value is a symbol such as "{ITEM_ANY}", which stands for any value."""
    return isinstance(value, str) and re.fullmatch(r"\{[^{}]*\}", value) is not None


def parse_path(text: Any, place: str) -> FieldPath:
    """ "$.view.sort" -> ("view", "sort"). Raises ValueError that names `place`."""
    # Names with two leading underscores mean something to JavaScript objects, so they are refused.
    if not isinstance(text, str) or not re.fullmatch(r"\$(\.(?!__)[A-Za-z_][A-Za-z0-9_]*)+", text):
        raise ValueError(f"{place}: path {text!r} must look like $.field or $.field.inner")
    return tuple(text[2:].split("."))


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


def _take(record: Any, key: str, kind: type, place: str, default: Any = None) -> Any:
    """`record[key]`, or `default` if that is not None; ValueError if missing or not of `kind`."""
    if not isinstance(record, Mapping):
        raise ValueError(f"{place}: must be an object, not {record!r}")
    value = record.get(key, default)
    if not isinstance(value, kind):
        word = {str: "a text", list: "a list", Mapping: "an object", bool: "true or false"}[kind]
        raise ValueError(f"{place}: {key!r} must be {word}, not {value!r}")
    return value


def _read_fsm(document: Any, place: str) -> Fsm:
    meta = _take(document, "meta", Mapping, place)
    pages: dict[str, Page] = {}
    for i, entry in enumerate(_take(document, "pages", list, place)):
        page = _read_page(entry, f"{place}: pages[{i}]")
        if page.id in pages:
            raise ValueError(f"{place}: pages[{i}]: there are two pages {page.id}")
        pages[page.id] = page
    for page in pages.values():
        for action in page.actions.values():
            if action.target not in pages:
                raise ValueError(
                    f"{place}: {page.id}: {action.id}: goes to {action.target!r}, which is no page"
                )
    initial = _take(meta, "initial_page_id", str, f"{place}: meta")
    terminals = tuple(_take(meta, "terminal_pages", list, f"{place}: meta", []))
    for id in (initial, *terminals):
        if id not in pages:
            raise ValueError(f"{place}: meta: {id!r} is no page")
    return Fsm(_take(meta, "app", str, f"{place}: meta", ""), initial, terminals, pages, meta)


def _read_page(entry: Any, place: str) -> Page:
    id = _take(entry, "id", str, place)
    place = f"{place} {id}"
    schema = _take(entry, "signature_schema", Mapping, place)
    actions: dict[str, Action] = {}
    for i, one in enumerate(_take(entry, "actions", list, place)):
        action = _read_action(one, id, f"{place}: actions[{i}]")
        if action.id in actions:
            raise ValueError(f"{place}: actions[{i}]: there are two actions {action.id}")
        actions[action.id] = action
    return Page(id, schema, _read_defaults(schema, f"{place}: signature_schema"), actions)


def _read_defaults(schema: Mapping[str, Any], place: str) -> Signature:
    defaults: dict[str, Any] = {}
    for name, kind in schema.items():
        parse_path(f"$.{name}", place)
        defaults[name] = _default(kind, f"{place}: {name}")
    return defaults


def _default(kind: Any, place: str) -> Any:
    if isinstance(kind, Mapping):
        return _read_defaults(kind, place)
    base, _, null = kind.partition("|") if isinstance(kind, str) else ("", "", "")
    if (
        base not in {*TYPE_DEFAULTS, "object"}
        and not re.fullmatch(r"array<\w+>", base)
        or null not in {"", "null"}
    ):
        raise ValueError(
            f"{place}: unknown type {kind!r}: use {', '.join(TYPE_DEFAULTS)}, object or array<...>"
        )
    if null:
        return None
    if base == "object":
        return {}
    return TYPE_DEFAULTS.get(base, [])


def _read_action(entry: Any, page: str, place: str) -> Action:
    id = _take(entry, "id", str, place)
    place = f"{place} {id}"
    source, target = _take(entry, "from", str, place, page), _take(entry, "to", str, place, page)
    moves = _take(entry, "is_navigation", bool, place, source != target)
    if source != page or (target != page and not moves):
        raise ValueError(f"{place}: 'from' must be {page}, and so must 'to' unless 'is_navigation' is true")
    parameters = _take(entry, "parameters", Mapping, place, {})
    conditions = _take(entry, "preconditions", list, place, [])
    effects = _take(entry, "effects", list, place, [])
    steps = _take(entry, "gui_procedure", list, place, [])
    for i, step in enumerate(steps):
        if _take(step, "op", str, f"{place}: gui_procedure[{i}]") not in GUI_OPS:
            raise ValueError(f"{place}: gui_procedure[{i}]: unknown op {step['op']!r}: use {sorted(GUI_OPS)}")
    return Action(
        id=id,
        name=_take(entry, "name", str, place, "click"),
        source=source,
        target=target,
        is_navigation=moves,
        parameters=parameters,
        preconditions=tuple(
            _read_condition(c, f"{place}: preconditions[{i}]") for i, c in enumerate(conditions)
        ),
        effects=tuple(_read_effect(e, parameters, f"{place}: effects[{i}]") for i, e in enumerate(effects)),
        gui_procedure=tuple(steps),
        bind=_read_bind(_take(entry, "bind", Mapping, place, {}), parameters, f"{place}: bind"),
    )


def _read_condition(entry: Any, place: str) -> Condition:
    cond, value = _take(entry, "cond", str, place), entry.get("value")
    if cond not in CONDITIONS:
        raise ValueError(f"{place}: unknown cond {cond!r}: use one of {sorted(CONDITIONS)}")
    if cond in ORDERED and (isinstance(value, bool) or not isinstance(value, (int, float))):
        raise ValueError(f"{place}: {cond} compares with a number, not {value!r}")
    if cond in LISTED and not isinstance(value, (list, tuple)):
        raise ValueError(f"{place}: {cond} compares with a list, not {value!r}")
    return Condition(parse_path(entry.get("path"), place), cond, value)


def _read_effect(entry: Any, parameters: Mapping[str, Any], place: str) -> Effect:
    op, by = _take(entry, "op", str, place), entry.get("by", 1)
    if op not in EFFECTS:
        raise ValueError(f"{place}: unknown op {op!r}: use one of {sorted(EFFECTS)}")
    if isinstance(by, bool) or not isinstance(by, (int, float)):
        raise ValueError(f"{place}: 'by' must be a number, not {by!r}")
    ref, expr = entry.get("value_ref"), entry.get("value_expr")
    if ref is not None and not (is_placeholder(ref) and ref[1:-1] in parameters):
        raise ValueError(f"{place}: value_ref {ref!r} must be a parameter in braces: {sorted(parameters)}")
    name = None if ref is None else ref[1:-1]
    return Effect(op, parse_path(entry.get("path"), place), entry.get("value"), name, expr, by)


def _read_bind(entry: Mapping[str, Any], parameters: Mapping[str, Any], place: str) -> Bind | None:
    if not entry:
        return None
    if len(entry) > 1:
        raise ValueError(f"{place}: one bound parameter per action, not {sorted(entry)}")
    ((param, spec),) = entry.items()
    if param not in parameters:
        raise ValueError(f"{place}: {param!r} is not among the parameters {sorted(parameters)}")
    where = _take(spec, "where", Mapping, place, {})
    for value in where.values():
        if isinstance(value, str) and value.startswith("$"):
            parse_path(value, place)
    return Bind(param, _take(spec, "collection", str, place), where)
