"""fsm.json: the records of a finite state machine that describes a web site, read and written by pydantic.

Where it stands: `load_fsm` checks a file, or the mapping that `generate` builds, and turns it into frozen
records, to which `interpreter` gives their meaning.

Paper: AutoWebWorld, section 3 and appendix A. The form is that of the sites released with the paper, not that
of its appendix: actions inline in their page, defaults derived from type strings. Deviations, all optional:
a page may have `defaults`, an effect may also be `toggle` or `remove`, and an action may carry `bind`, which
says where the values of a parameter come from (others stay one symbol, such as "{ITEM_ANY}"). With this,
`product` is the id of a record of `products` whose `category` equals the page's current `$.category`:
    "bind": {"product": {"collection": "products", "where": {"category": "$.category"}}}
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, field, replace
from functools import cached_property
from pathlib import Path
from reprlib import repr as brief
from typing import Annotated, Any, Literal, Required

from annotated_types import Predicate
from pydantic import (
    AfterValidator,
    AliasPath,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    TypeAdapter,
)
from pydantic.dataclasses import dataclass
from pydantic_core import ValidationError, from_json
from typing_extensions import TypedDict

Signature = Mapping[str, Any]  # what a page remembers: a JSON object, never written into
FieldPath = tuple[str, ...]  # "$.view.sort" is ("view", "sort")

TYPE_DEFAULTS = {"string": "", "boolean": False, "integer": 0, "integer>=1": 1, "number": 0, "any": None}
TYPE = "|".join([*map(re.escape, TYPE_DEFAULTS), "object", r"array<\w+>"])
# Names with two leading underscores mean something to JavaScript objects, so they are refused.
PATH = re.compile(r"\$(\.(?!__)[A-Za-z_][A-Za-z0-9_]*)+")


class Malformed(ValueError):
    """A document that is no site or goal; `faults` holds the place and the reason of each fault."""

    def __init__(self, name: str, faults: Sequence[tuple[str, str]]):
        super().__init__(": ".join(filter(None, [name, *faults[0]])))
        self.faults = faults


def is_placeholder(value: Any) -> bool:
    """Return whether a parameter's value is a symbol such as "{ITEM_ANY}", which stands for any value."""
    return isinstance(value, str) and re.fullmatch(r"\{[^{}]*\}", value) is not None


def is_number(value: Any) -> bool:
    """Return whether a JSON value is a number; true and false are not."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def parse_path(text: Any) -> FieldPath:
    """Return ("view", "sort") for "$.view.sort"; a tuple is returned as it is. Raises ValueError."""
    if isinstance(text, tuple):
        return text
    if not isinstance(text, str) or not PATH.fullmatch(text):
        raise ValueError(f"path {brief(text)} must look like $.field or $.field.inner")
    return tuple(text[2:].split("."))


def dotted(path: FieldPath) -> str:
    return "$." + ".".join(path)


def _wanted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return TypeAdapter(Filter).validate_python(value)
    return dotted(parse_path(value)) if isinstance(value, str) and value.startswith("$") else value


def _type(value: Any) -> Any:
    if isinstance(value, Mapping):
        return TypeAdapter(Schema).validate_python(value)
    if not isinstance(value, str) or not re.fullmatch(rf"({TYPE})(\|null)?", value):
        raise ValueError(f"unknown type {brief(value)}: use {', '.join(TYPE_DEFAULTS)}, object or array<...>")
    return value


def _default(kind: Any) -> Any:
    """Return the value that a field of a type, or a schema, begins with: null, 1, "", [] ..."""
    if isinstance(kind, Mapping):
        return {name: _default(inner) for name, inner in kind.items()}
    if kind.endswith("|null"):
        return None
    return {} if kind == "object" else TYPE_DEFAULTS.get(kind, [])


def _flat(bind: Any) -> Any:
    if not isinstance(bind, Mapping):
        return bind
    match list(bind.items()):
        case [(param, {**spec})] if {"collection", "values"} & spec.keys():
            return {**spec, "param": param}
    raise ValueError("must be one parameter with a 'collection' or 'values'")


def _nested(bind: Bind | None) -> Any:
    spec = {name: value for name, value in asdict(bind).items() if value} if bind else {}
    return {spec.pop("param"): spec or {"values": []}} if bind else None


def _by_id(records: Any) -> dict[str, Any]:
    """Return the records of a list by their ids, which must differ."""
    if not isinstance(records, list):
        raise ValueError(f"must be a list, not {brief(records)}")
    out: dict[str, Any] = {}
    for n, record in enumerate(records):
        id = record.get("id") if isinstance(record, Mapping) else getattr(record, "id", None)
        key = id if isinstance(id, str) else f"[{n}]"
        if key in out:
            raise ValueError(f"there are two of the id {id}")
        out[key] = record
    return out


def _complete(page: Any) -> Any:
    """Let the actions of a page that name no `from` or `to` begin and end on it."""
    if not isinstance(page, Mapping) or not isinstance(page.get("actions"), list):
        return page
    here = {"from": page.get("id"), "to": page.get("id")}
    return {**page, "actions": [{**here, **a} if isinstance(a, Mapping) else a for a in page["actions"]]}


PathText = Annotated[str, AfterValidator(lambda path: path and dotted(parse_path(path)))]
FieldName = Annotated[str, AfterValidator(lambda name: ".".join(parse_path(f"$.{name}")))]
Schema = dict[FieldName, Annotated[Any, BeforeValidator(_type)]]
AsPath = Annotated[FieldPath, BeforeValidator(parse_path), PlainSerializer(dotted)]
Reference = Annotated[  # "{product}" in the file
    str,
    Field(pattern=r"^\{[^{}]*\}$"),
    AfterValidator(lambda text: text[1:-1]),
    PlainSerializer(lambda name: f"{{{name}}}"),
]
ById = (BeforeValidator(_by_id), PlainSerializer(lambda records: list(records.values())))
GuiOp = Literal["click", "hover", "type_text", "key_press", "drag", "scroll_until_visible", "scroll"]
_in_meta = lambda key: Field(validation_alias=AliasPath("meta", key), exclude=True)  # noqa: E731
CONFIG = ConfigDict(validate_by_name=True, validate_by_alias=True)


class GuiStep(TypedDict, total=False):
    """One operation of a gui_procedure, with a text, a key ... if it needs one."""

    __pydantic_config__ = {"extra": "allow"}
    op: Required[GuiOp]
    selector: str


class Filter(TypedDict):
    """A comparison of a record's field with the field at `value`; all records pass while that is not set."""

    cond: Literal["eq", "gte", "lte", "flag"]
    value: PathText


@dataclass(frozen=True, config=CONFIG)
class Condition:
    """One test on a signature: `Condition(("copies",), "gte", 1)` says $.copies >= 1."""

    path: AsPath
    cond: Literal["eq", "neq", "exists", "not_null", "gt", "gte", "lt", "lte", "length_gt", "in", "oneof"]
    value: Any = None

    def __post_init__(self) -> None:
        if self.cond in ("in", "oneof") and not isinstance(self.value, (list, tuple)):
            raise ValueError(f"{self.cond} compares with a list, not {brief(self.value)}")
        if self.cond in ("gt", "gte", "lt", "lte", "length_gt") and not is_number(self.value):
            raise ValueError(f"{self.cond} compares with a number, not {brief(self.value)}")


@dataclass(frozen=True, config=CONFIG)
class Effect:
    """A write of `value`, or of the parameter `ref` if there is one; `expr` is text that nobody executes."""

    op: Literal["set", "inc", "clear", "append_unique", "remove", "toggle"]
    path: AsPath
    value: Any = None
    ref: Reference | None = Field(None, alias="value_ref")
    expr: Any = Field(None, alias="value_expr")
    by: Annotated[Any, Predicate(is_number)] = 1


@dataclass(frozen=True, config=CONFIG)
class Bind:
    """The values of `param`: `values`, or the ids of the records in `collection` that fit `where`, which maps
    fields to literals, paths or a `Filter`. At the path `order` stands "price:asc" or "price:desc"."""

    param: str
    collection: str = ""
    where: dict[str, Annotated[Any, AfterValidator(_wanted)]] = field(default_factory=dict)
    order: PathText = ""
    values: tuple[Any, ...] = ()


@dataclass(frozen=True, config=CONFIG)
class Action:
    """Something a visitor can do on page `source`. It ends on page `target`."""

    id: str
    source: Annotated[str, Field(alias="from")]
    target: Annotated[str, Field(alias="to")]
    is_navigation: bool = Field(strict=True, default_factory=lambda ends: ends["target"] != ends["source"])
    name: str = "click"  # click, type, search or select
    parameters: dict[str, Any] = field(default_factory=dict)  # a placeholder, or a fixed value
    preconditions: tuple[Condition, ...] = ()
    effects: tuple[Effect, ...] = ()
    gui_procedure: tuple[GuiStep, ...] = ()
    bind: Annotated[Bind | None, BeforeValidator(_flat), PlainSerializer(_nested)] = None

    def __post_init__(self) -> None:
        used = {effect.ref for effect in self.effects} | {self.bind and self.bind.param}
        if unknown := used - self.parameters.keys() - {None}:
            raise ValueError(f"{min(unknown)!r} is not among the parameters {sorted(self.parameters)}")

    @cached_property
    def open_parameters(self) -> tuple[str, ...]:
        """Names of the parameters that a caller must give; the others have fixed values."""
        bound = self.bind.param if self.bind else None
        return tuple(n for n, value in self.parameters.items() if is_placeholder(value) or n == bound)


@dataclass(frozen=True, config=CONFIG)
class Page:
    """One page: the types of the fields that it remembers, and its actions by their ids."""

    id: str
    schema: Annotated[Schema, Field(alias="signature_schema")]
    actions: Annotated[dict[str, Action], *ById]  # a list in the file, as are `pages`
    defaults: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "defaults", {**_default(self.schema), **self.defaults})


@dataclass(frozen=True, config=CONFIG)
class Fsm:
    """A whole site: its pages by their ids, in the order of the file."""

    meta: dict[str, Any]  # all that the file says about itself
    pages: Annotated[dict[str, Annotated[Page, BeforeValidator(_complete)]], *ById]
    initial_page: Annotated[str, _in_meta("initial_page_id")]
    terminal_pages: Annotated[tuple[str, ...], _in_meta("terminal_pages")] = ()
    app: Annotated[str, _in_meta("app")] = ""
    nav_skeleton: Any = None

    @property
    def actions(self) -> list[Action]:
        """The actions of all pages, in the order of the file."""
        return [action for page in self.pages.values() for action in page.actions.values()]

    def rebound(self, bind: Callable[[Action], Bind | None]) -> Fsm:
        """Return the machine with `bind(action)` as every action's binding."""
        pages = []
        for page in self.pages.values():
            actions = [replace(action, bind=bind(action)) for action in page.actions.values()]
            pages.append(replace(page, actions=actions))
        return replace(self, pages=pages)


@dataclass(frozen=True, config=CONFIG)
class Goal:
    """A page to be on, and conditions that its signature must then meet."""

    page: str
    where: tuple[Condition, ...] = ()


def load_goal(goal: Mapping[str, Any]) -> Goal:
    """Return the goal {"page": id, "where": [{"path": "$.a", "cond": "eq", "value": 1}, ...]}, in which
    `where` may be absent. Raises Malformed."""
    return _validated("goal", Goal, goal)


def load_fsm(source: Path | Mapping[str, Any]) -> Fsm:
    """Return the machine in an fsm.json file, or in the same thing as a mapping. Raises Malformed."""
    name = str(source) if isinstance(source, Path) else "fsm"
    fsm: Fsm = _validated(name, Fsm, read_json(source) if isinstance(source, Path) else source)
    faults = []
    for page in fsm.pages.values():
        for action in page.actions.values():
            if action.target not in fsm.pages:
                faults.append((f"{page.id}: {action.id}", f"goes to {action.target!r}, which is no page"))
            elif action.source != page.id or not (action.is_navigation or action.target == page.id):
                reason = f"'from' must be {page.id}, and so must 'to' unless 'is_navigation' is true"
                faults.append((f"{page.id}: {action.id}", reason))
    ends = {f"terminal_pages[{n}]": id for n, id in enumerate(fsm.terminal_pages)}
    for key, id in {**ends, "initial_page_id": fsm.initial_page}.items():
        if id not in fsm.pages:
            faults.append((f"meta: {key}", f"{id!r} is no page"))
    if faults:
        raise Malformed(name, faults)
    return fsm


def _validated(name: str, kind: type, document: Any) -> Any:
    try:
        return TypeAdapter(kind).validate_python(document)
    except ValidationError as error:
        raise Malformed(name, [_describe(fault) for fault in error.errors()]) from None


def _describe(fault: Mapping[str, Any]) -> tuple[str, str]:
    """Return the place, "BOOK: effects[0]: op", and the reason of a fault that pydantic has found."""
    place, reason = "", fault["msg"].removeprefix("Value error, ")
    for key in fault["loc"]:
        if key != "[key]":  # pydantic's mark for a fault in the key before it
            place += f"[{key}]" if isinstance(key, int) else f": {key}"
    place = re.sub(r"\b(pages|actions): ", "", place.removeprefix(": "))
    if fault["type"] == "missing":
        place, _, key = place.rpartition(": ")
        return place, f"{key!r} is missing"
    reason = re.sub(r"a (valid )?dictionary( or an instance of \w+)?", "an object", reason)
    reason = reason.replace("Predicate 'is_number' failed", "must be a number")
    return place, reason + (f", not {brief(fault['input'])}" if fault["type"] != "value_error" else "")


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file. Raises Malformed that names the file."""
    try:
        document = from_json(path.read_bytes(), allow_inf_nan=False)
    except (OSError, ValueError) as error:
        raise Malformed(str(path), [("", f"not a readable JSON file: {error}")]) from None
    if not isinstance(document, dict):
        raise Malformed(str(path), [("", f"must be an object, not {brief(document)}")])
    return document


def document_of(fsm: Fsm) -> dict[str, Any]:
    """Return the machine as JSON that `load_fsm` reads."""
    return TypeAdapter(Fsm).dump_python(fsm, mode="json", by_alias=True, exclude_none=True)
