"""fsm.json: the records of a finite state machine that describes a web site, read and written by pydantic.

Where it stands: `load_fsm` checks a file, or the mapping that `generate` builds, and returns frozen records,
to which `interpreter` gives their meaning.
Paper: AutoWebWorld, section 3 and appendix A. The form is that of the sites released with the paper, not that
of its appendix: actions inline in their page, defaults derived from type strings. Deviations, the first three
optional:

1. A page may have `defaults`.
2. An effect may also be `toggle` or `remove`, or copy a field (`value_from`).
3. An action may `bind` a parameter to values or records.
4. Of appendix A.1.4: pages are never turned in a loop, coordinates are not normalised, and no frame is
   checked; an operation names its element.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from reprlib import repr as brief
from typing import Annotated, Any, Literal, Required, Self, TypeGuard

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, PlainSerializer, TypeAdapter
from pydantic.aliases import AliasPath
from pydantic.dataclasses import dataclass
from pydantic.types import StrictFloat, StrictInt
from pydantic_core import ValidationError, from_json
from typing_extensions import TypeAliasType, TypedDict

from minirl.types import Fields, Json

Signature = Fields  # what a page remembers: a JSON object, never written into
FieldPath = tuple[str, ...]  # "$.view.sort" is ("view", "sort")

TYPE_DEFAULTS = {"string": "", "boolean": False, "integer": 0, "integer>=1": 1, "number": 0, "any": None}
TYPE = "|".join([*TYPE_DEFAULTS, "object", r"array<[A-Za-z0-9_]+>"])
# Names with two leading underscores mean something to JavaScript objects, so they are refused.
NAME = "_?[A-Za-z][A-Za-z0-9_]*"
PATH = rf"^\$(\.{NAME})+$"
CONFIG = ConfigDict(validate_by_name=True, validate_by_alias=True)


def is_placeholder(value: Any) -> bool:
    """Return whether a parameter's value is a symbol such as "{ITEM_ANY}", which stands for any value."""
    return isinstance(value, str) and re.fullmatch(r"\{[^{}]*\}", value) is not None


def is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def dotted(path: FieldPath) -> str:
    return "$." + ".".join(path)


def _parse_path(text: Any) -> FieldPath:
    if isinstance(text, tuple):
        return text
    if not re.fullmatch(PATH, str(text)):
        raise ValueError(f"path {brief(text)} must look like $.field or $.field.inner")
    return tuple(str(text)[2:].split("."))


def _default(kind: Any) -> Any:
    """Return the value that a field of a type, or a schema, begins with."""
    if isinstance(kind, Mapping):
        return {name: _default(inner) for name, inner in kind.items()}
    if kind.endswith("|null"):
        return None
    return {} if kind == "object" else TYPE_DEFAULTS.get(kind, [])


def _by_id(records: Any) -> Json:
    if not isinstance(records, list):
        raise ValueError(f"must be a list, not {brief(records)}")
    by_id = {}
    for record in records:
        id = str(record.get("id") if isinstance(record, dict) else getattr(record, "id", record))
        if id in by_id:
            raise ValueError(f"there are two of the id {id:.80}")
        by_id[id] = record
    return by_id


FieldName = Annotated[str, Field(pattern=f"^{NAME}$")]
PathText = Annotated[str, Field(pattern=f"^$|{PATH}")]
TypeName = Annotated[str, Field(pattern=rf"^({TYPE})(\|null)?$")]
Schema = TypeAliasType("Schema", "dict[FieldName, TypeName | Schema]")
AsPath = Annotated[FieldPath, BeforeValidator(_parse_path), PlainSerializer(dotted)]
Reference = Annotated[  # "{product}" in the file
    str,
    Field(pattern=r"^\{[^{}]*\}$"),
    AfterValidator(lambda text: text[1:-1]),
    PlainSerializer(lambda name: f"{{{name}}}"),
]
TERMINALS = AliasPath("meta", "terminal_pages")
ById = (BeforeValidator(_by_id), PlainSerializer(lambda records: list(records.values())))
GuiOp = Literal["click", "hover", "type_text", "key_press", "drag", "scroll_until_visible", "scroll"]


class GuiStep(TypedDict, total=False):
    __pydantic_config__ = {"extra": "allow"}  # pyright: ignore[reportGeneralTypeIssues]
    op: Required[GuiOp]
    selector: str


class Filter(TypedDict):
    """A comparison of a record's field with the page's field at `value`; all pass while that is not set."""

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
    """A write of `value`, of the parameter `ref`, or of what is at `source`; nobody executes an `expr`."""

    op: Literal["set", "inc", "clear", "append_unique", "remove", "toggle"]
    path: AsPath
    value: Any = None
    ref: Reference | None = Field(default=None, alias="value_ref")
    source: AsPath | None = Field(default=None, alias="value_from")
    expr: Any = Field(default=None, alias="value_expr")
    by: StrictInt | StrictFloat = 1


@dataclass(frozen=True, config=CONFIG)
class Bind:
    """The values of a parameter: `values`, or the ids of the records in `collection` that fit `where`.

    With {"param": "product", "collection": "products", "where": {"category": "$.category"}} it is a product
    whose `category` is the page's. At the path `order` stands "price:asc" or "price:desc".
    """

    param: str
    collection: str = ""
    where: dict[str, Filter | str | bool | int | float | None] = field(default_factory=dict)
    order: PathText = ""
    values: tuple[Any, ...] = ()


@dataclass(frozen=True, config=CONFIG)
class Action:
    id: str
    source: Annotated[str, Field(alias="from")]
    target: Annotated[str, Field(alias="to")]
    is_navigation: bool = Field(strict=True, default_factory=lambda ends: ends["target"] != ends["source"])
    name: str = "click"  # click, type, search or select
    parameters: Json = field(default_factory=dict)  # a placeholder, or a fixed value
    preconditions: tuple[Condition, ...] = ()
    effects: tuple[Effect, ...] = ()
    gui_procedure: tuple[GuiStep, ...] = ()
    bind: Bind | None = None

    def __post_init__(self) -> None:
        names = {effect.ref for effect in self.effects if effect.ref is not None}
        if self.bind:
            names.add(self.bind.param)
        for name in sorted(names - self.parameters.keys()):
            raise ValueError(f"{name!r} is not among the parameters {sorted(self.parameters)}")

    @cached_property
    def open_parameters(self) -> tuple[str, ...]:
        """Return the parameters that a caller must give; the others have fixed values."""
        bound = self.bind.param if self.bind else None
        return tuple(key for key, value in self.parameters.items() if key == bound or is_placeholder(value))


@dataclass(frozen=True, config=CONFIG)
class Page:
    id: str
    schema: Annotated[Schema, Field(alias="signature_schema")]  # the types of the fields that it remembers
    actions: Annotated[dict[str, Action], *ById]  # a list in the file, as are `pages`
    defaults: Json = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "defaults", {**_default(self.schema), **self.defaults})


@dataclass(frozen=True, config=CONFIG)
class Fsm:
    meta: Json  # all that the file says about itself
    pages: Annotated[dict[str, Page], *ById]
    initial_page: str = Field(validation_alias=AliasPath("meta", "initial_page_id"), exclude=True)
    terminal_pages: tuple[str, ...] = Field((), validation_alias=TERMINALS, exclude=True)

    def __post_init__(self) -> None:
        ids = (self.initial_page, *self.terminal_pages, *(action.target for action in self.actions))
        faults = [f"{id!r} is no page" for id in ids if id not in self.pages]
        for page in self.pages.values():
            for action in page.actions.values():
                stays = action.target == page.id
                if action.source != page.id or not (stays or action.is_navigation):
                    faults.append(
                        f"{action.id}: begins on {page.id}, and must end there without 'is_navigation'"
                    )
        if faults:
            raise ValueError("; ".join(faults))

    @property
    def actions(self) -> list[Action]:
        return [action for page in self.pages.values() for action in page.actions.values()]

    def changed(self, change: Callable[[Action], Action]) -> Self:
        """Return the machine with `change(action)` in place of each action."""
        pages = []
        for page in self.pages.values():
            pages.append(replace(page, actions=[change(action) for action in page.actions.values()]))
        return replace(self, pages=pages)


@dataclass(frozen=True, config=CONFIG)
class Goal:
    """Conditions on the last state, and what is to be answered: one of the spellings in `answer`."""

    page: str = ""  # "": on any page
    where: tuple[Condition, ...] = ()
    answer: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not (self.page or self.where or self.answer):
            raise ValueError("a goal has page, where or answer, of a generated site; else give --task.reward")


def load_goal(goal: Goal | Fields) -> Goal:
    """Return the goal {"page": id, "where": [{"path": "$.a", "cond": "eq", "value": 1}]} or a part of it."""
    return validated("goal", Goal, goal)


def load_fsm(source: Path | Fields) -> Fsm:
    """Return the machine in an fsm.json file, or in a mapping. ValueError names all faults."""
    if isinstance(source, Path):
        return validated(str(source), Fsm, read_json(source))
    return validated("fsm", Fsm, source)


def validated(name: str, kind: Any, document: Any) -> Any:
    """Return a document of the file `name` as a `kind`. ValueError names all faults."""
    try:
        return TypeAdapter(kind).validate_python(document)
    except ValidationError as error:
        faults = [": ".join([*map(str, fault["loc"]), fault["msg"]]) for fault in error.errors()]
        raise ValueError(f"{name}: {'; '.join(faults)}") from None


def read_json(path: Path) -> Json:
    """Return the object in a JSON file. ValueError names the file."""
    try:
        document = from_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: not a readable JSON file: {error}") from None
    return validated(str(path), Json, document)


def document_of(fsm: Fsm) -> Json:
    """Return the machine as JSON that `load_fsm` reads."""
    return TypeAdapter(Fsm).dump_python(fsm, mode="json", by_alias=True, exclude_none=True)
