"""The records of a finite state machine that describes a web site, and how they are read from JSON.

Where it stands: `load_fsm` turns an fsm.json file, or the mapping that `generate` builds, into frozen
records; `fsm` gives them their meaning. Everything structural is checked here once, so that the
interpreter, the search and the renderer need not ask again. What is legal but unwise (pages that
nobody reaches, writes to undeclared fields) is accepted: judging a site is a validator's business.

Paper: AutoWebWorld, section 3 and appendix A (a site is pages, per-page signatures and actions with
preconditions and effects). The JSON form is that of the sites released with the paper: actions
inline in their page, defaults derived from type strings. The form that the paper's appendix shows is
translated into it by `appendix`. Deviations, all optional in a file:

* an action may carry `bind`, which says where the values of one of its parameters come from:

      "bind": {"product": {"collection": "products", "where": {"category": "$.category"}}}

  makes `product` range over the ids of those records of `products` whose `category` equals the
  page's current `$.category`. Parameters without it stay one symbol, such as "{ITEM_ANY}". `Bind` has
  the other forms: filters, an order, or a list of values.
* an effect may also be `toggle` or `remove`.
* a page may have `defaults`, which go before those of its types.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from minirl.worlds.appendix_format import is_appendix_form, translate
from minirl.worlds.reading import Malformed, is_number, is_placeholder, readable, shown, taken

Signature = Mapping[str, Any]  # what a page remembers: a JSON object, never written into
FieldPath = tuple[str, ...]  # "$.view.sort" is ("view", "sort")

ORDERED = {"gt", "gte", "lt", "lte", "length_gt"}  # conditions that compare with a number
LISTED = {"in", "oneof"}  # conditions that compare with a list
CONDITIONS = {"eq", "neq", "exists", "not_null"} | ORDERED | LISTED
FILTERS = {"eq", "gte", "lte", "flag"}  # what a list's filter may ask of its records
EFFECTS = {"set", "inc", "clear", "append_unique", "remove", "toggle"}
GUI_OPS = {"click", "hover", "type_text", "key_press", "drag", "scroll_until_visible", "scroll"}
TYPE_DEFAULTS = {"string": "", "boolean": False, "integer": 0, "integer>=1": 1, "number": 0, "any": None}


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
    """The values of `param`: those of `values`, or the ids in `collection`, of the records that fit `where`.

    `where` maps a record's field to a literal, to a path ("$.category") in the current signature, or to what
    a list's filter asks, {"cond": "gte", "value": "$.least_price"}; a filter that is not set lets all pass.
    `order` is the path of a field that says "price:asc" or "price:desc".
    """

    param: str
    collection: str = ""
    where: Mapping[str, Any] = field(default_factory=dict)
    order: str = ""
    values: tuple[Any, ...] = ()


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

    @property
    def actions(self) -> list[Action]:
        """Of all pages, in the order of the file."""
        return [action for page in self.pages.values() for action in page.actions.values()]


@dataclass(frozen=True)
class Goal:
    """A page to be on, and what its signature must then say."""

    page: str
    where: tuple[Condition, ...] = ()


# --- reading ------------------------------------------------------------------------------------


def load_fsm(source: Path | Mapping[str, Any], problems: list[Malformed] | None = None) -> Fsm:
    """Read a machine from an fsm.json file, or from the same thing as a mapping.

    Raises Malformed, a ValueError, that names the file (or "fsm") and the place in it. With `problems`, what
    can't be read is noted there and left out instead, and only a file without a first page raises.
    """
    place, document = "fsm", source
    if not isinstance(source, Mapping):
        place = str(source)
        try:
            document = json.loads(source.read_text(encoding="utf-8"), parse_constant=_refuse_constant)
        except (OSError, ValueError, RecursionError) as error:
            raise Malformed(place, f"not a readable JSON file: {error}") from error
    reader = _Reader(problems)
    try:
        if is_appendix_form(document):
            document = translate(document, place, reader.note)
        return reader.fsm(document, place)
    except RecursionError:
        raise Malformed(place, "objects within objects without end") from None


def load_goal(goal: Mapping[str, Any]) -> Goal:
    """Read {"page": id, "where": [{"path": "$.a", "cond": "eq", "value": 1}, ...]}; `where` may be absent.

    Raises ValueError that names the place.
    """
    where = taken(goal, "where", list, "goal", [])
    conditions = [_read_condition(one, f"goal: where[{i}]") for i, one in enumerate(where)]
    return Goal(taken(goal, "page", str, "goal"), tuple(conditions))


def parse_path(text: Any, place: str) -> FieldPath:
    """ "$.view.sort" -> ("view", "sort"). Raises ValueError that names `place`."""
    # Names with two leading underscores mean something to JavaScript objects, so they are refused.
    if not isinstance(text, str) or not re.fullmatch(r"\$(\.(?!__)[A-Za-z_][A-Za-z0-9_]*)+", text):
        raise Malformed(place, f"path {shown(text)} must look like $.field or $.field.inner")
    return tuple(text[2:].split("."))


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")


class _Reader:
    """Reads one file. `problems` collects what is wrong; without it, the first problem is raised."""

    def __init__(self, problems: list[Malformed] | None):
        self.problems = problems

    def note(self, problem: Malformed) -> None:
        if self.problems is None:
            raise problem
        self.problems.append(problem)

    def each(self, entries: Iterable[Any], place: str, read: Callable[[Any, str], Any]) -> list[Any]:
        """What `read` makes of each entry of a list."""
        return readable(((f"{place}[{i}]", entry) for i, entry in enumerate(entries)), read, self.note)

    def unique(self, records: Iterable[Any], place: str, what: str) -> dict[str, Any]:
        """By their ids, of which the first counts."""
        out: dict[str, Any] = {}
        for record in records:
            if record.id in out:
                self.note(Malformed(place, f"there are two {what} {record.id}"))
            out.setdefault(record.id, record)
        return out

    def fsm(self, document: Any, place: str) -> Fsm:
        meta = taken(document, "meta", Mapping, place)
        entries = taken(document, "pages", list, place)
        pages = self.unique(self.each(entries, f"{place}: pages", self.page), place, "pages")
        for page in pages.values():
            lost = {id for id, action in page.actions.items() if action.target not in pages}
            for id in lost:
                target = page.actions[id].target
                self.note(Malformed(f"{place}: {page.id}: {id}", f"goes to {target!r}, which is no page"))
            actions = {id: action for id, action in page.actions.items() if id not in lost}
            pages[page.id] = replace(page, actions=actions)
        initial = taken(meta, "initial_page_id", str, f"{place}: meta")
        if initial not in pages:
            raise Malformed(f"{place}: meta", f"{initial!r} is no page")
        terminals = []
        for id in taken(meta, "terminal_pages", list, f"{place}: meta", []):
            if isinstance(id, str) and id in pages:
                terminals.append(id)
            else:
                self.note(Malformed(f"{place}: meta", f"{shown(id)} is no page"))
        skeleton = document.get("nav_skeleton")
        meta = {**meta, "nav_skeleton": skeleton} if skeleton is not None else meta
        app = taken(meta, "app", str, f"{place}: meta", "")
        return Fsm(app, initial, tuple(terminals), pages, meta)

    def page(self, entry: Any, place: str) -> Page:
        id = taken(entry, "id", str, place)
        place = f"{place} {id}"
        schema = taken(entry, "signature_schema", Mapping, place)
        schema, defaults = self.signature(schema, f"{place}: signature_schema")
        defaults = {**defaults, **taken(entry, "defaults", Mapping, place, {})}
        entries = taken(entry, "actions", list, place)
        actions = self.each(entries, f"{place}: actions", lambda one, where: self.action(one, id, where))
        return Page(id, schema, defaults, self.unique(actions, place, "actions"))

    def signature(self, schema: Mapping[str, Any], place: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """The fields whose types can be read, and their defaults."""
        kinds, defaults = {}, {}
        for name, kind in schema.items():
            try:
                parse_path(f"$.{name}", place)
                if isinstance(kind, Mapping):
                    kinds[name], defaults[name] = self.signature(kind, f"{place}: {name}")
                else:
                    kinds[name], defaults[name] = kind, _default(kind, f"{place}: {name}")
            except Malformed as problem:
                self.note(problem)
        return kinds, defaults

    def action(self, entry: Any, page: str, place: str) -> Action:
        id = taken(entry, "id", str, place)
        place = f"{place} {id}"
        source, target = taken(entry, "from", str, place, page), taken(entry, "to", str, place, page)
        moves = taken(entry, "is_navigation", bool, place, source != target)
        if source != page or (target != page and not moves):
            raise Malformed(place, f"'from' must be {page}, and so must 'to' unless 'is_navigation' is true")
        parameters = taken(entry, "parameters", Mapping, place, {})
        conditions = taken(entry, "preconditions", list, place, [])
        effects = taken(entry, "effects", list, place, [])
        steps = taken(entry, "gui_procedure", list, place, [])
        return Action(
            id=id,
            name=taken(entry, "name", str, place, "click"),
            source=source,
            target=target,
            is_navigation=moves,
            parameters=parameters,
            preconditions=tuple(self.each(conditions, f"{place}: preconditions", _read_condition)),
            effects=tuple(
                self.each(effects, f"{place}: effects", lambda one, at: _read_effect(one, parameters, at))
            ),
            gui_procedure=tuple(self.each(steps, f"{place}: gui_procedure", _read_gui_step)),
            bind=_read_bind(taken(entry, "bind", Mapping, place, {}), parameters, f"{place}: bind"),
        )


def _default(kind: Any, place: str) -> Any:
    base, _, null = kind.partition("|") if isinstance(kind, str) else ("", "", "")
    is_known = base in {*TYPE_DEFAULTS, "object"} or re.fullmatch(r"array<\w+>", base)
    if not is_known or null not in {"", "null"}:
        types = f"{', '.join(TYPE_DEFAULTS)}, object or array<...>"
        raise Malformed(place, f"unknown type {shown(kind)}: use {types}")
    if null:
        return None
    if base == "object":
        return {}
    return TYPE_DEFAULTS.get(base, [])


def _read_gui_step(entry: Any, place: str) -> Mapping[str, Any]:
    if taken(entry, "op", str, place) not in GUI_OPS:
        raise Malformed(place, f"unknown op {shown(entry['op'])}: use {sorted(GUI_OPS)}")
    return entry


def _read_condition(entry: Any, place: str) -> Condition:
    cond, value = taken(entry, "cond", str, place), entry.get("value")
    if cond not in CONDITIONS:
        raise Malformed(place, f"unknown cond {shown(cond)}: use one of {sorted(CONDITIONS)}")
    if cond in ORDERED and not is_number(value):
        raise Malformed(place, f"{cond} compares with a number, not {shown(value)}")
    if cond in LISTED and not isinstance(value, (list, tuple)):
        raise Malformed(place, f"{cond} compares with a list, not {shown(value)}")
    return Condition(parse_path(entry.get("path"), place), cond, value)


def _read_effect(entry: Any, parameters: Mapping[str, Any], place: str) -> Effect:
    op, by = taken(entry, "op", str, place), entry.get("by", 1)
    if op not in EFFECTS:
        raise Malformed(place, f"unknown op {shown(op)}: use one of {sorted(EFFECTS)}")
    if not is_number(by):
        raise Malformed(place, f"'by' must be a number, not {shown(by)}")
    ref, expr = entry.get("value_ref"), entry.get("value_expr")
    if ref is not None and not (is_placeholder(ref) and ref[1:-1] in parameters):
        raise Malformed(place, f"value_ref {shown(ref)} must be a parameter in braces: {sorted(parameters)}")
    name = None if ref is None else ref[1:-1]
    return Effect(op, parse_path(entry.get("path"), place), entry.get("value"), name, expr, by)


def _read_bind(entry: Mapping[str, Any], parameters: Mapping[str, Any], place: str) -> Bind | None:
    if not entry:
        return None
    if len(entry) > 1:
        raise Malformed(place, f"one bound parameter per action, not {sorted(entry)}")
    ((param, spec),) = entry.items()
    if param not in parameters:
        raise Malformed(place, f"{param!r} is not among the parameters {sorted(parameters)}")
    if isinstance(spec, Mapping) and "values" in spec:
        return Bind(param, values=tuple(taken(spec, "values", list, place)))
    where, order = taken(spec, "where", Mapping, place, {}), taken(spec, "order", str, place, "")
    for value in (*where.values(), *([order] if order else [])):
        if isinstance(value, Mapping):
            if value.get("cond") not in FILTERS:
                raise Malformed(place, f"unknown cond {shown(value.get('cond'))}: use {sorted(FILTERS)}")
            value = taken(value, "value", str, place)
        if isinstance(value, str) and (value.startswith("$") or value == order):
            parse_path(value, place)
    return Bind(param, taken(spec, "collection", str, place), where, order)
