"""What is wrong with a site file: everything that would make its tasks unsolvable, ambiguous or unplayable.

Where it stands: `python -m minirl.worlds check` prints its findings; the generator's own sites have none.

Paper: AutoWebWorld, appendix A.1 (the validator's requirements). Deviations: the checks are code, where the
released validator asks a language model; a search, not the edges, says what can be reached; no score, but
errors (tasks fail or mean nothing) and warnings. A `value_expr` is parsed, and never executed.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from reprlib import repr as brief
from typing import Any, Literal

from minirl.worlds.fsm_file import Action, Condition, Fsm, Malformed, Page, dotted, is_placeholder, load_fsm
from minirl.worlds.interpreter import State, enabled, is_number, meets, value_at
from minirl.worlds.search import Graph, explore, symbolic

MAX_STATES = 20_000  # a site of a person's size has some hundreds
SELECTOR = re.compile(r"([#.][A-Za-z_][\w-]*)+( ([#.][A-Za-z_][\w-]*)+)*")
PAGINATION = re.compile(r"(^|_)(page|page_index|page_number|page_no|current_page|offset)$")
RESULTS = re.compile(r"search|filter|sort|query")  # fields that decide what a list shows
CLASSES = {"string": str, "integer": int, "number": (int, float), "object": Mapping, "array": list}
NUMBERS, ARRAYS = ("integer", "number", "any"), ("array", "any")
NEEDS = {"inc": NUMBERS, "toggle": ("boolean", "any"), "append_unique": ARRAYS, "remove": ARRAYS}
NEEDS |= dict.fromkeys(("gt", "gte", "lt", "lte"), NUMBERS) | {
    "length_gt": ("string", "object", "array", "any")
}
FUNCTIONS = r"append|remove_where|map|filter|merge|set_prop|uniq|sort_by|now|len|gen_id"
TEXTS = re.compile(r"""(["'])(?:\\.|(?!\1)[^\\])*\1""")  # within an expression
PAIRS = re.compile(r"\([^][(){}]*\)|\[[^][(){}]*\]|\{[^][(){}]*\}")  # innermost brackets
LONGEST = 10_000  # characters of an expression
Severity = Literal["error", "warning"]
OnSite = Iterator[tuple[Severity, str, str, str]]  # the fields of a Finding
OnAction = Iterator[tuple[Severity, str, str]]  # without `where`


@dataclass(frozen=True)
class Finding:
    """One fault. `where` is a page, or page and action, or a place in the file."""

    severity: Severity
    code: str
    where: str
    message: str


def check(source: Path | Mapping[str, Any], max_states: int = MAX_STATES) -> list[Finding]:
    """Return all findings, errors first; of a file that cannot be read as a machine, only why not."""
    try:
        return check_fsm(load_fsm(source), max_states)
    except Malformed as error:
        return [Finding("error", "malformed", place or "file", reason) for place, reason in error.faults]


def check_fsm(fsm: Fsm, max_states: int = MAX_STATES) -> list[Finding]:
    """Return the findings on a machine, errors first."""
    world = symbolic(fsm)
    fsm, graph = world.fsm, explore(world, max_states=max_states)
    found = [*_reach(fsm, graph), *_declared(fsm)]
    for page in fsm.pages.values():
        found += _selectors(page)
        for action in page.actions.values():
            for look in (_writes, _conditions, _items, _resets, _procedure):
                found += [(*kind, f"{page.id}: {action.id}", text) for *kind, text in look(action, page, fsm)]
    return sorted(itertools.starmap(Finding, found), key=lambda finding: finding.severity)


def _reach(fsm: Fsm, graph: Graph) -> OnSite:
    if not fsm.terminal_pages:
        yield "error", "no_terminals", "meta", "names no terminal page, so there is nothing to do"
    for page in fsm.pages.values():
        if page.id not in fsm.terminal_pages and all(a.target == page.id for a in page.actions.values()):
            yield "warning", "dead_end", page.id, "no action leaves it, and it is no terminal page"
    if not graph.is_complete:
        reason = f"the search stopped after {len(graph.nodes)} states; what it did not reach is not known"
        yield "warning", "search_bounded", "meta", reason
        return
    states: dict[str, list[State]] = {id: [] for id in fsm.pages}
    for node in graph.nodes.values():
        states[node.state.page].append(node.state)
    for id in fsm.pages:
        doors = [action for action in fsm.actions if action.target == id != action.source]
        text = f"no way leads here: {_why_not(fsm, doors, [page for page in states if states[page]])}"
        if not states[id] and id in fsm.terminal_pages:
            yield "error", "unreachable_terminal", id, text
        elif not states[id]:
            yield "warning", "unreached_page" if doors else "orphan_page", id, text
    for action in fsm.actions:
        params = {name: action.parameters[name] for name in action.open_parameters}
        can_hold = states[action.source] and all(_can_hold(c, fsm) for c in action.preconditions)
        if can_hold and not any(enabled(fsm, state, action.id, params) for state in states[action.source]):
            text = "can never be taken: what it waits for does not come together"
            yield "warning", "never_enabled", f"{action.source}: {action.id}", text


def _why_not(fsm: Fsm, doors: list[Action], reached: list[str]) -> str:
    """Return why none of the actions that lead to a page was taken."""
    shut = [action for action in doors if action.source in reached]
    if not shut:
        sources = ", ".join(sorted({action.source for action in doors}))
        return f"it is entered only from {sources}" if doors else "no action goes to it"
    gates = [f"{a.id} waits for {_words(c)}" for a in shut for c in a.preconditions if not _can_hold(c, fsm)]
    return "; ".join(gates) or f"{', '.join(a.id for a in shut)} can never be taken"


def _declared(fsm: Fsm) -> OnSite:
    """Compare what the file says about itself with what it holds."""
    pages, ends = ("pages", "min", len(fsm.pages)), ("terminals", "count", len(fsm.terminal_pages))
    for code, (name, key, count) in (("too_few_pages", pages), ("terminal_count", ends)):
        wanted = value_at(fsm.meta, ("complexity_profile", name, key))
        if is_number(wanted) and (count < wanted or count != wanted and key == "count"):
            yield "warning", code, "meta", f"{count} {name}, but the file declares {key} {wanted:g}"
    # The skeleton may only repeat what actions do.
    moves = [(action.source, action.id, action.target) for action in fsm.actions if action.is_navigation]
    edges = value_at({"skeleton": fsm.nav_skeleton}, ("skeleton", "edges"))
    for i, edge in enumerate(edges if isinstance(edges, list) else []):
        start, via, end = (value_at(edge, (key,)) for key in ("from", "via", "to"))
        for name in via if isinstance(via, list) else [via]:
            if (start, name, end) not in moves:
                text = f"no navigation action {brief(name)} leads from {brief(start)} to {brief(end)}"
                yield "error", "skeleton_edge", f"nav_skeleton: edges[{i}]", text


def _selectors(page: Page) -> OnSite:
    """The element touched last must say which action is meant, and no element can be two widgets."""
    finals: dict[str, list[Action]] = {}
    ops: dict[str, set[str]] = {}
    for action in page.actions.values():
        for step in action.gui_procedure:
            ops.setdefault(step.get("selector", ""), set()).add(step["op"])
        if action.gui_procedure:
            finals.setdefault(action.gui_procedure[-1].get("selector", ""), []).append(action)
    for selector, actions in finals.items():
        (first, *others) = [(action.preconditions, action.effects, action.target) for action in actions]
        if selector and any(meaning != first for meaning in others):
            names = ", ".join(action.id for action in actions)
            yield "warning", "shared_selector", page.id, f"{selector} means all of {names}"
    for selector in ops:
        if selector and ops[selector] >= {"type_text", "drag"}:
            yield "error", "shared_selector", page.id, f"{selector} is both typed into and dragged"


def _procedure(action: Action, page: Page, fsm: Fsm) -> OnAction:
    if not action.gui_procedure:
        yield "warning", "no_procedure", "has no gui_procedure, so nobody can take it"
    for step in action.gui_procedure:
        needs_none = step["op"] in ("key_press", "scroll") and "selector" not in step
        if not needs_none and not SELECTOR.fullmatch(selector := step.get("selector", "")):
            text = f"{step['op']} on {brief(selector)}, which is no selector like #id or #id .class"
            yield "error", "bad_selector", text
    for name, value in action.parameters.items():
        if isinstance(value, str) and SELECTOR.fullmatch(value):
            yield "warning", "selector_in_parameters", f"parameter {name} holds a selector"


def _kind(page: Page, path: tuple[str, ...]) -> str:
    """Return a field's declared type: "object" for a schema, "any" within an object, "" if there is none."""
    kind: Any = page.schema
    for name in path:
        within = "any" if isinstance(kind, str) and kind.split("|")[0] in ("object", "any") else ""
        kind = kind.get(name, "") if isinstance(kind, Mapping) else within
    return kind if isinstance(kind, str) else "object"


def _fits(kind: str, value: Any) -> bool:
    """Return whether a literal is of a declared type. Symbols fit everywhere."""
    base = re.match(r"\w+", kind)[0]  # of "array<string>" or "integer>=1"
    if is_placeholder(value) or base == "any":
        return True
    if value is None or isinstance(value, bool):
        return kind.endswith("|null") if value is None else base == "boolean"
    return isinstance(value, CLASSES.get(base, ())) and (">=1" not in kind or value >= 1)


def _writes(action: Action, page: Page, fsm: Fsm) -> OnAction:
    for effect in action.effects:
        path, kind = dotted(effect.path), _kind(page, effect.path)
        if not kind:
            yield "error", "undeclared_write", f"writes {path}, which {page.id} does not declare"
        elif effect.expr is not None:
            readers = [a.id for a in fsm.actions if any(c.path[0] == effect.path[0] for c in a.preconditions)]
            depends = f"{', '.join(sorted(readers)) or 'nothing'} depends on it"
            try:
                reads = ", ".join(sorted(paths_read(effect.expr))) or "nothing"
                text = f"is to be computed from {reads}, which is not done, so it stays as it is"
                yield "warning", "expression", f"{path} {text}; {depends}"
            except ValueError as error:
                yield "error", "bad_expression", f"{path}: {error}: {brief(effect.expr)}; {depends}"
        elif effect.op == "set" and effect.ref is None and not _fits(kind, effect.value):
            yield "error", "type_mismatch", f"sets {path}, a {kind}, to {brief(effect.value)}"
        elif not kind.startswith(NEEDS.get(effect.op, "")):
            yield "error", "type_mismatch", f"{effect.op} on {path}, which is a {kind}"
    if not action.effects and not action.is_navigation:
        yield "warning", "no_effect", "changes nothing"


def paths_read(text: object) -> set[str]:
    """Return the fields that an expression reads. Raises ValueError that says what is wrong with it.

    >>> sorted(paths_read('append($.cart, {"id": gen_id(), "n": $.view.n})'))
    ['$.cart', '$.view.n']
    """
    if not isinstance(text, str) or not text.strip() or len(text) > LONGEST:
        raise ValueError(f"an expression must be a text of 1 to {LONGEST} characters")
    text = TEXTS.sub("0", text)
    if odd := re.search(r"[^\w\s$.,:?!=<>&|+*/%(){}[\]-]", text):
        raise ValueError(f"can't be read from {text[odd.start() :][:20]!r} on")
    called = set(re.findall(r"([A-Za-z_]\w*)\s*\(", text))
    if unknown := [name for name in sorted(called) if not re.fullmatch(FUNCTIONS, name)]:
        raise ValueError(f"there is no function {', '.join(unknown)}")
    paths = set(re.findall(r"\$(?:\.[A-Za-z_]\w*)+", text))
    while (shorter := PAIRS.sub("", text)) != text:
        text = shorter
    if lost := re.search(r"[][(){}]", text):
        raise ValueError(f"{lost[0]!r} has no partner")
    return paths


def _conditions(action: Action, page: Page, fsm: Fsm) -> OnAction:
    for condition in action.preconditions:
        kind, words = _kind(page, condition.path), f"waits for {_words(condition)}"
        if not kind:
            yield "error", "undeclared_read", f"{words}, which {page.id} does not declare"
            continue
        can_be = condition.cond != "eq" or condition.value is None or _fits(kind, condition.value)
        if not can_be or not kind.startswith(NEEDS.get(condition.cond, "")):
            yield "error", "invalid_condition", f"{words}, which a {kind} never is"
        if is_placeholder(condition.value):
            yield "error", "placeholder", f"{words}: a condition must not hold a placeholder"
        if not _can_hold(condition, fsm):
            writes = [(a.id, e) for a in fsm.actions for e in a.effects if e.path == condition.path]
            computing = ", ".join(id for id, effect in writes if effect.expr is not None)
            by = f" but the expression of {computing}" if computing else ""
            yield "error", "gate_never_set", f"{words}, which nothing makes true{by}"


def _words(condition: Condition) -> str:
    value = "" if condition.cond in ("exists", "not_null") else f" {brief(condition.value)}"
    return f"{dotted(condition.path)} {condition.cond}{value}"


def _can_hold(condition: Condition, fsm: Fsm) -> bool:
    """Return whether a page's default or any effect makes a condition true; expressions do not count."""
    if any(meets(page.defaults, condition) for page in fsm.pages.values() if _kind(page, condition.path)):
        return True
    test = replace(condition, path=("it",))
    return any(
        effect.op != "set" or effect.ref is not None or meets({"it": effect.value}, test)
        for action in fsm.actions
        for effect in action.effects
        if effect.path == condition.path and effect.expr is None and effect.op != "clear"
    )


def _items(action: Action, page: Page, fsm: Fsm) -> OnAction:
    """What an action opens must be remembered, and still be known on the page that it opens."""
    target, names = fsm.pages[action.target], action.open_parameters
    if not action.is_navigation or not names or target == page:
        return
    stored = [effect for effect in action.effects if effect.ref in names]
    if not stored:
        yield "error", "missing_id", f"opens {', '.join(names)} and does not store which one"
    for effect in stored:
        if effect.path[0] not in target.schema:
            others = [field for field in target.schema if field.endswith("_id")]
            meant = f"; is {' or '.join(others)} meant?" if others else ""
            text = f"stores {dotted(effect.path)}, which {target.id} does not have, so it is lost{meant}"
            yield "error", "item_lost", text


def _resets(action: Action, page: Page, fsm: Fsm) -> OnAction:
    """A list that shows other results must begin at its first page again."""
    paths = [(name,) for name in page.schema]
    paths += [(name, one) for name, kind in page.schema.items() if isinstance(kind, Mapping) for one in kind]
    written = {effect.path for effect in action.effects}
    changes = any(action.name == "search" or RESULTS.search(path[-1].lower()) for path in written)
    for path in paths if changes and not action.is_navigation else ():
        if PAGINATION.search(path[-1]) and path not in written:
            yield "error", "pagination_reset", f"changes the results, but leaves {dotted(path)} as it is"
