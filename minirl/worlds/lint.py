"""What is wrong with a site file: everything that would make its tasks unsolvable, ambiguous or unplayable.

Where it stands: `python -m minirl.worlds check` prints its findings; the generator's own sites have none.
Paper: AutoWebWorld, appendix A.1 (the validator's requirements).

1. The checks are code, where the released validator asks a language model.
2. A search, not the edges, says what can be reached.
3. There is no score, but errors (tasks fail or mean nothing) and warnings.
4. A `value_expr` is named, and never executed.
"""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from reprlib import repr as brief
from typing import Any, NamedTuple

from minirl.types import Fields
from minirl.worlds.fsm_file import Action, Fsm, Page, dotted, is_placeholder, load_fsm
from minirl.worlds.looks import read_table
from minirl.worlds.search import explore, outline
from minirl.worlds.widgets import SELECTOR

TABLES = read_table("lint")
NEEDS = {operation: tuple(types) for operation, types in TABLES["needs"].items()}
PAGINATION = re.compile(r"(^|_)(page|page_index|page_number|page_no|current_page|offset)$")
RESULTS = re.compile(r"search|filter|sort|query")  # fields that decide what a list shows
CLASSES = {"string": str, "integer": int, "number": (int, float), "object": Mapping, "array": list}


class Finding(NamedTuple):
    """One fault. `where` is a page, or page and action, or a place in the file."""

    severity: str  # error or warning
    code: str  # of lint.toml
    where: str
    message: str


Findings = Iterator[Finding]


def counts(findings: Sequence[Finding]) -> tuple[int, int]:
    """Return the numbers of errors and warnings."""
    errors = sum(finding.severity == "error" for finding in findings)
    return errors, len(findings) - errors


def check(source: Path | Fields) -> list[Finding]:
    """Return all findings, errors first; of a file that cannot be read as a machine, only why not."""
    try:
        return check_fsm(load_fsm(source))
    except ValueError as error:
        return [Finding("error", "malformed", "file", str(error))]


def check_fsm(fsm: Fsm) -> list[Finding]:
    """Return the findings on a machine, errors first."""
    findings = list(_reach(fsm))
    for page in fsm.pages.values():
        findings += _selectors(page)
        for action in page.actions.values():
            findings += _procedure(action)
            findings += _writes(action, page)
            findings += _conditions(action, page)
            findings += _items(action, fsm)
            findings += _resets(action, page)
    return sorted(findings, key=lambda finding: finding.severity)


def finding(code: str, where: str | Action, *facts: object) -> Finding:
    """Return the finding of a rule in lint.toml, whose text names the facts."""
    place = where if isinstance(where, str) else f"{where.source}: {where.id}"
    severity = "error" if code in TABLES["error"] else "warning"
    return Finding(severity, code, place, TABLES[severity][code].format(*facts))


def _reach(fsm: Fsm) -> Findings:
    graph = explore(outline(fsm))
    reached = graph.nearest()
    if not fsm.terminal_pages:
        yield finding("no_terminals", "meta")
    lost = []
    for page in fsm.pages.values():
        is_end = page.id in fsm.terminal_pages
        if not is_end and all(action.target == page.id for action in page.actions.values()):
            yield finding("dead_end", page.id)
        if page.id not in reached:
            ways = [action.id for action in fsm.actions if action.target == page.id != action.source]
            code = "unreachable_terminal" if is_end else "orphan_page"
            lost.append(finding(code, page.id, ", ".join(ways) or "none"))
            continue
        for action in page.actions.values():
            if (page.id, action.id) not in graph.possible:
                lost.append(finding("never_enabled", action))
    # What a search that has not come to its end did not reach is not known to be out of reach.
    if lost and not graph.is_complete:
        yield finding("search_bounded", "meta", len(graph.nodes))
    else:
        yield from lost


def _selectors(page: Page) -> Findings:
    """The element touched last must say which action is meant."""
    playable = [action for action in page.actions.values() if action.gui_procedure]
    for one, other in itertools.combinations(playable, 2):
        selector = one.gui_procedure[-1].get("selector")
        if selector and selector == other.gui_procedure[-1].get("selector"):
            yield finding("shared_selector", page.id, selector, one.id, other.id)


def _procedure(action: Action) -> Findings:
    if not action.gui_procedure:
        yield finding("no_procedure", action)
    for step in action.gui_procedure:
        selector = step.get("selector")
        is_free = selector is None and step["op"] in ("key_press", "scroll")
        if not is_free and not SELECTOR.fullmatch(selector or ""):
            yield finding("bad_selector", action, step["op"], brief(selector))


def _type_at(page: Page, path: tuple[str, ...]) -> str:
    """Return a field's declared type: "object" for a schema, "any" within an object, "" if there is none."""
    type: Any = page.schema
    for name in path:
        if isinstance(type, Mapping):
            type = type.get(name, "")
        else:
            type = "any" if type.split("|")[0] in ("object", "any") else ""
    return "object" if isinstance(type, Mapping) else type


def _fits(type: str, value: Any) -> bool:
    """Return whether a literal is of a declared type. Symbols fit everywhere."""
    base = re.split(r"\W", type)[0]  # of "array<string>|null" or "integer>=1"
    if is_placeholder(value) or base == "any":
        return True
    if value is None:
        return type.endswith("|null")
    if isinstance(value, bool):
        return base == "boolean"
    return isinstance(value, CLASSES.get(base, ())) and (">=1" not in type or value >= 1)


def _writes(action: Action, page: Page) -> Findings:
    if not action.effects and not action.is_navigation:
        yield finding("no_effect", action)
    for effect in action.effects:
        path = dotted(effect.path)
        type = _type_at(page, effect.path)
        if not type:
            yield finding("undeclared_write", action, path, page.id)
        if effect.source is not None and not _type_at(page, effect.source):
            yield finding("undeclared_read", action, f"copies {dotted(effect.source)}", page.id)
        if effect.expr is not None:
            yield finding("expression", action, path, brief(effect.expr))
            continue
        is_literal = effect.op == "set" and effect.ref is None and effect.source is None
        fits = _fits(type, effect.value) if is_literal else type.startswith(NEEDS.get(effect.op, ""))
        if type and not fits:
            yield finding("type_mismatch", action, effect.op, brief(effect.value), path, type)


def _conditions(action: Action, page: Page) -> Findings:
    for condition in action.preconditions:
        type = _type_at(page, condition.path)
        value = condition.value
        text = f"waits for {dotted(condition.path)} {condition.cond} {brief(value)}"
        if not type:
            yield finding("undeclared_read", action, text, page.id)
        is_odd = condition.cond == "eq" and value is not None and not _fits(type, value)
        is_odd = is_odd or not type.startswith(NEEDS.get(condition.cond, ""))
        if type and (is_odd or is_placeholder(value)):
            yield finding("invalid_condition", action, text, type)


def _items(action: Action, fsm: Fsm) -> Findings:
    """What an action opens must be remembered, and still be known on the page that it opens."""
    names = action.open_parameters
    if not action.is_navigation or not names:
        return
    stored = [effect.path for effect in action.effects if effect.ref in names]
    if not stored:
        yield finding("missing_id", action, ", ".join(names))
    for path in stored:
        if path[0] not in fsm.pages[action.target].schema:
            yield finding("item_lost", action, dotted(path), action.target)


def _resets(action: Action, page: Page) -> Findings:
    """A list that shows other results must begin at its first page again."""
    written = [effect.path for effect in action.effects]
    changes = action.name == "search" or RESULTS.search(" ".join(path[-1].lower() for path in written))
    if action.is_navigation or not changes:
        return
    paths = [(name,) for name in page.schema]
    for name, type in page.schema.items():
        paths += [(name, inner) for inner in type] if isinstance(type, Mapping) else []
    for path in paths:
        if PAGINATION.search(path[-1]) and path not in written:
            yield finding("pagination_reset", action, dotted(path))
