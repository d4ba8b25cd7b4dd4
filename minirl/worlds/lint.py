"""What is wrong with a site file: everything that would make its tasks unsolvable, ambiguous or unplayable.

Where it stands: `python -m minirl.worlds check` prints its findings; the generator's own sites have none.
Paper: AutoWebWorld, appendix A.1 (the validator's requirements). Deviations: the checks are code, where the
released validator asks a language model; a search, not the edges, says what can be reached; no score, but
errors (tasks fail or mean nothing) and warnings. A `value_expr` is named, and never executed.
"""

import itertools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from reprlib import repr as brief
from typing import Any, NamedTuple

from minirl.worlds.fsm_file import Action, Condition, Fsm, Page, dotted, is_placeholder, load_fsm
from minirl.worlds.interpreter import meets, suits
from minirl.worlds.looks import read_table
from minirl.worlds.search import MAX_STATES, explore, outline, possible_steps
from minirl.worlds.widgets import SELECTOR

TABLES = read_table("lint")
PAGINATION = re.compile(r"(^|_)(page|page_index|page_number|page_no|current_page|offset)$")
RESULTS = re.compile(r"search|filter|sort|query")  # fields that decide what a list shows
CLASSES = {"string": str, "integer": int, "number": (int, float), "object": Mapping, "array": list}
RULES = {code: (kind, text) for kind in ("error", "warning") for code, text in TABLES[kind].items()}
NEEDS = {operation: tuple(kinds) for operation, kinds in TABLES["needs"].items()}
# Of each rule its code, the place if it is not an action, whether it is broken there, and what its text names
Rules = Iterator[tuple[Any, ...]]


class Finding(NamedTuple):
    """One fault. `where` is a page, or page and action, or a place in the file."""

    severity: str  # error or warning
    code: str
    where: str
    message: str


def check(source: Path | Mapping[str, Any], max_states: int = MAX_STATES) -> list[Finding]:
    """Return all findings, errors first; of a file that cannot be read as a machine, only why not."""
    try:
        return check_fsm(load_fsm(source), max_states)
    except ValueError as error:
        return [Finding("error", "malformed", "file", str(error))]


def check_fsm(fsm: Fsm, max_states: int = MAX_STATES) -> list[Finding]:
    """Return the findings on a machine, errors first."""
    rules = list(_reach(fsm, max_states))
    for page in fsm.pages.values():
        rules += _selectors(page)
        for action in page.actions.values():
            for look in (_writes, _conditions, _items, _resets, _procedure):
                rules += [(code, f"{page.id}: {action.id}", *rest) for code, *rest in look(action, page, fsm)]
    broken = [(code, where, told) for code, where, is_broken, *told in rules if is_broken]
    findings = [Finding(RULES[c][0], c, where, RULES[c][1].format(*told)) for c, where, told in broken]
    return sorted(findings, key=lambda finding: finding.severity)


def _reach(fsm: Fsm, max_states: int) -> Rules:
    world = outline(fsm)
    graph = explore(world, max_states=max_states)
    states = [node.state for node in graph.nodes.values()]
    pages = {state.page for state in states}
    possible = {(state.page, step.action_id) for state in states for step in possible_steps(world, state)}
    yield "search_bounded", "meta", not graph.is_complete, max_states
    yield "no_terminals", "meta", not fsm.terminal_pages
    for page in fsm.pages.values():
        # What a search that has not come to its end did not reach is not known to be out of reach.
        is_lost = graph.is_complete and page.id not in pages
        is_end = page.id in fsm.terminal_pages
        leaves = any(action.target != page.id for action in page.actions.values())
        entrances = [action.id for action in fsm.actions if action.target == page.id != action.source]
        ways = ", ".join(entrances) or "none"
        yield "dead_end", page.id, not (leaves or is_end)
        yield "unreachable_terminal", page.id, is_lost and is_end, ways
        yield "orphan_page", page.id, is_lost and not is_end, ways
        for action in page.actions.values():
            is_impossible = page.id in pages and (page.id, action.id) not in possible
            yield "never_enabled", f"{page.id}: {action.id}", graph.is_complete and is_impossible


def _selectors(page: Page) -> Rules:
    """The element touched last must say which action is meant."""
    playable = [action for action in page.actions.values() if action.gui_procedure]
    for a, b in itertools.combinations(playable, 2):
        selector, other = (one.gui_procedure[-1].get("selector") for one in (a, b))
        is_same = (a.preconditions, a.effects, a.target) == (b.preconditions, b.effects, b.target)
        yield "shared_selector", page.id, selector and selector == other and not is_same, selector, a.id, b.id


def _procedure(action: Action, page: Page, fsm: Fsm) -> Rules:
    yield "no_procedure", not action.gui_procedure
    for step in action.gui_procedure:
        op, selector = step["op"], step.get("selector")
        is_free = selector is None and op in ("key_press", "scroll")
        yield "bad_selector", not (is_free or SELECTOR.fullmatch(selector or "")), op, brief(selector)


def _kind(page: Page, path: tuple[str, ...]) -> str:
    """Return a field's declared type: "object" for a schema, "any" within an object, "" if there is none."""
    kind: Any = page.schema
    for name in path:
        within = "any" if isinstance(kind, str) and kind.split("|")[0] in ("object", "any") else ""
        kind = kind.get(name, "") if isinstance(kind, Mapping) else within
    return kind if isinstance(kind, str) else "object"


def _fits(kind: str, value: Any) -> bool:
    """Return whether a literal is of a declared type. Symbols fit everywhere."""
    base = re.split(r"\W", kind)[0]  # of "array<string>|null" or "integer>=1"
    if is_placeholder(value) or base == "any":
        return True
    if value is None or isinstance(value, bool):
        return kind.endswith("|null") if value is None else base == "boolean"
    return isinstance(value, CLASSES.get(base, ())) and (">=1" not in kind or value >= 1)


def _writes(action: Action, page: Page, fsm: Fsm) -> Rules:
    yield "no_effect", not action.effects and not action.is_navigation
    for effect in action.effects:
        path, kind = dotted(effect.path), _kind(page, effect.path)
        yield "undeclared_write", not kind, path, page.id
        yield "expression", effect.expr is not None, path, brief(effect.expr)
        unknown = effect.source is not None and not _kind(page, effect.source)
        yield "undeclared_read", unknown, f"copies {dotted(effect.source or ())}", page.id
        is_literal = effect.op == "set" and effect.ref is None and effect.source is None
        fits = _fits(kind, effect.value) if is_literal else kind.startswith(NEEDS.get(effect.op, ""))
        is_wrong = kind and effect.expr is None and not fits
        yield "type_mismatch", is_wrong, effect.op, brief(effect.value), path, kind


def _conditions(action: Action, page: Page, fsm: Fsm) -> Rules:
    for condition in action.preconditions:
        kind, value = _kind(page, condition.path), condition.value
        text = f"waits for {dotted(condition.path)} {condition.cond} {'' if value is None else brief(value)}"
        yield "undeclared_read", not kind, text, page.id
        can_be = condition.cond != "eq" or value is None or _fits(kind, value)
        is_odd = is_placeholder(value) or not can_be or not kind.startswith(NEEDS.get(condition.cond, ""))
        yield "invalid_condition", kind and is_odd, text, kind
        yield "gate_never_set", not _can_hold(condition, fsm), text


def _can_hold(condition: Condition, fsm: Fsm) -> bool:
    """Return whether a page's default or any effect makes a condition true; expressions do not count."""
    if any(meets(page.defaults, condition) for page in fsm.pages.values() if _kind(page, condition.path)):
        return True
    effects = (effect for action in fsm.actions for effect in action.effects)
    writes = [e for e in effects if e.path == condition.path and e.expr is None and e.op != "clear"]
    return any(e.op != "set" or e.ref or e.source or suits(e.value, condition) for e in writes)


def _items(action: Action, page: Page, fsm: Fsm) -> Rules:
    """What an action opens must be remembered, and still be known on the page that it opens."""
    target, names = fsm.pages[action.target], action.open_parameters
    if action.is_navigation and names and target != page:
        stored = [effect.path for effect in action.effects if effect.ref in names]
        yield "missing_id", not stored, ", ".join(names)
        for path in stored:
            yield "item_lost", path[0] not in target.schema, dotted(path), target.id


def _resets(action: Action, page: Page, fsm: Fsm) -> Rules:
    """A list that shows other results must begin at its first page again."""
    objects = {name: kind for name, kind in page.schema.items() if isinstance(kind, Mapping)}
    paths = [(name,) for name in page.schema] + [(name, one) for name in objects for one in objects[name]]
    written = [effect.path for effect in action.effects]
    changes = action.name == "search" or any(RESULTS.search(path[-1].lower()) for path in written)
    for path in paths if changes and not action.is_navigation else ():
        is_stale = PAGINATION.search(path[-1]) and path not in written
        yield "pagination_reset", is_stale, dotted(path)
