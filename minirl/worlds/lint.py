"""What is wrong with a site file: everything that would make its tasks unsolvable, ambiguous or unplayable.

Where it stands: `python -m minirl.worlds check FILE` prints its findings, and the generator's own sites have
none. It judges; `schema` only reads, and `fsm` only runs.

Paper: AutoWebWorld, appendix A.1 (the validator's requirements). Deviations: the checks are code, where the
released validator asks a language model; what can be reached is found by the search that solves tasks, and
not guessed from the edges; there is no score, but errors (tasks fail or mean nothing) and warnings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from minirl.worlds.expression import parse_expression
from minirl.worlds.fsm_file import ORDERED, Action, Condition, Effect, FieldPath, Fsm, Page, load_fsm
from minirl.worlds.interpreter import enabled, meets
from minirl.worlds.reading import Malformed, is_number, is_placeholder, shown
from minirl.worlds.search import MAX_DEPTH, Graph, explore, symbolic

MAX_STATES = 20_000  # a site of a person's size has some hundreds
SELECTOR = re.compile(r"([#.][A-Za-z_][\w-]*)+( ([#.][A-Za-z_][\w-]*)+)*")
PAGINATION = re.compile(r"(^|_)(page|page_index|page_number|page_no|current_page|offset)$")
RESULTS = re.compile(r"search|filter|sort|query")  # fields that decide what a list shows


@dataclass(frozen=True)
class Finding:
    severity: Literal["error", "warning"]
    code: str
    where: str  # a page, or page and action, or a place in the file
    message: str


def check(source: Path | Mapping[str, Any], max_states: int = MAX_STATES) -> list[Finding]:
    """All findings, errors first. Never raises for what is in the file."""
    problems: list[Malformed] = []
    findings: list[Finding] = []
    try:
        findings += check_fsm(load_fsm(source, problems), max_states)
    except Malformed as problem:
        problems.append(problem)
    findings += [Finding("error", "malformed", problem.place, problem.reason) for problem in problems]
    return sorted(findings, key=lambda finding: finding.severity)


def check_fsm(fsm: Fsm, max_states: int = MAX_STATES) -> list[Finding]:
    """The same of a machine that could be read."""
    world = symbolic(fsm)
    fsm, graph = world.fsm, explore(world, max_depth=MAX_DEPTH, max_states=max_states)
    findings: list[Finding] = []
    for part in (_reach, _counts, _skeleton):
        findings += part(fsm, graph)
    for page in fsm.pages.values():
        findings += _page(page, fsm, graph)
        findings += _selectors(page)
        for action in page.actions.values():
            for look in (_writes, _conditions, _gates, _items, _resets, _procedure):
                findings += look(action, page, fsm)
    return findings


def _error(code: str, where: str, message: str) -> Finding:
    return Finding("error", code, where, message)


def _warning(code: str, where: str, message: str) -> Finding:
    return Finding("warning", code, where, message)


def _place(action: Action) -> str:
    return f"{action.source}: {action.id}"


# --- what can be reached --------------------------------------------------------------------------


def _reach(fsm: Fsm, graph: Graph) -> Iterator[Finding]:
    reached = {node.state.page for node in graph.nodes.values()}
    if not fsm.terminal_pages:
        yield _error("no_terminals", "meta", "names no terminal page, so there is nothing to do")
    if not graph.is_complete:
        reason = f"the search stopped after {len(graph.nodes)} states; what it did not reach is not known"
        yield _warning("search_bounded", "meta", reason)
        return
    for id in fsm.terminal_pages:
        if id not in reached:
            yield _error("unreachable_terminal", id, f"no way leads here{_why_not(fsm, id, reached)}")
    ways_in = {action.target for action in fsm.actions if action.target != action.source}
    for id in fsm.pages:
        if id in reached or id in fsm.terminal_pages:
            continue
        if id in ways_in:
            yield _warning("unreached_page", id, f"no way leads here{_why_not(fsm, id, reached)}")
        else:
            yield _warning("orphan_page", id, "no action leads here")


def _why_not(fsm: Fsm, id: str, reached: set[str]) -> str:
    """The last actions before a page that was not reached, and what they wait for."""
    doors = [action for action in fsm.actions if action.target == id != action.source]
    if not doors:
        return ": no action goes to it"
    shut = [a for a in doors if a.source in reached]
    if not shut:
        return f": it is entered only from {', '.join(sorted({a.source for a in doors}))}"
    gates = [f"{a.id} waits for {_said(c)}" for a in shut for c in a.preconditions if not _setters(c, fsm)]
    return f": {'; '.join(gates)}" if gates else f": {', '.join(a.id for a in shut)} can never be taken"


def _page(page: Page, fsm: Fsm, graph: Graph) -> Iterator[Finding]:
    leaves = [action for action in page.actions.values() if action.target != page.id]
    if not leaves and page.id not in fsm.terminal_pages:
        yield _warning("dead_end", page.id, "no action leaves it, and it is no terminal page")
    states = [node.state for node in graph.nodes.values() if node.state.page == page.id]
    for action in page.actions.values():
        params = {name: action.parameters[name] for name in action.open_parameters}
        possible = [c for c in action.preconditions if _setters(c, fsm)]
        is_known = states and graph.is_complete and len(possible) == len(action.preconditions)
        if is_known and not any(enabled(fsm, state, action.id, params) for state in states):
            text = "can never be taken: what it waits for does not come together"
            yield _warning("never_enabled", _place(action), text)


def _selectors(page: Page) -> Iterator[Finding]:
    """What a hand touches last must say which action is meant, and no element can be two widgets."""
    finals: dict[str, list[Action]] = {}
    roles: dict[str, set[str]] = {}
    for action in page.actions.values():
        selectors = [step.get("selector") for step in action.gui_procedure]
        if isinstance(last := next(reversed(selectors), None), str):
            finals.setdefault(last, []).append(action)
        for step in action.gui_procedure:
            if isinstance(step.get("selector"), str) and step["op"] in ("type_text", "drag"):
                roles.setdefault(step["selector"], set()).add(step["op"])
    for selector, actions in finals.items():
        meanings = [(a.preconditions, a.effects, a.target) for a in actions]
        if any(meaning != meanings[0] for meaning in meanings):
            names = ", ".join(action.id for action in actions)
            yield _warning("shared_selector", page.id, f"{selector} means all of {names}")
    for selector, ops in roles.items():
        if len(ops) > 1:
            yield _error("shared_selector", page.id, f"{selector} is both typed into and dragged")


def _counts(fsm: Fsm, graph: Graph) -> Iterator[Finding]:
    """What the file says about itself."""
    profile = fsm.meta.get("complexity_profile")
    profile = profile if isinstance(profile, Mapping) else {}
    least = _number(profile.get("pages"), "min")
    if least is not None and len(fsm.pages) < least:
        text = f"{len(fsm.pages)} pages, but the file declares at least {least:g}"
        yield _warning("too_few_pages", "meta", text)
    count = _number(profile.get("terminals"), "count")
    if count is not None and len(fsm.terminal_pages) != count:
        text = f"{len(fsm.terminal_pages)} terminal pages, but the file declares {count:g}"
        yield _warning("terminal_count", "meta", text)


def _number(record: Any, key: str) -> float | None:
    value = record.get(key) if isinstance(record, Mapping) else None
    return value if is_number(value) else None


def _skeleton(fsm: Fsm, graph: Graph) -> Iterator[Finding]:
    """The appendix's nav_skeleton may only repeat what actions do."""
    skeleton = fsm.meta.get("nav_skeleton")
    edges = skeleton.get("edges") if isinstance(skeleton, Mapping) else []
    for i, edge in enumerate(edges if isinstance(edges, list) else []):
        where = f"nav_skeleton: edges[{i}]"
        if not isinstance(edge, Mapping):
            yield _error("skeleton_edge", where, f"must be an object, not {shown(edge)}")
            continue
        page = fsm.pages.get(str(edge.get("from")))
        names = edge["via"] if isinstance(edge.get("via"), list) else [edge.get("via")]
        for name in names:
            action = page.actions.get(str(name)) if page else None
            if action is None or not action.is_navigation or action.target != edge.get("to"):
                way = f"from {shown(edge.get('from'))} to {shown(edge.get('to'))}"
                yield _error("skeleton_edge", where, f"no navigation action {shown(name)} leads {way}")


# --- fields ---------------------------------------------------------------------------------------


def _kind(page: Page, path: FieldPath) -> Any:
    """The declared type of a field, "any" within an object, or None if it is not declared."""
    kind: Any = page.schema
    for name in path:
        if isinstance(kind, str) and kind.split("|")[0] in ("object", "any"):
            return "any"
        if not isinstance(kind, Mapping) or name not in kind:
            return None
        kind = kind[name]
    return kind


def _fits(kind: Any, value: Any) -> bool:
    """Whether a literal is of a declared type. Symbols fit everywhere."""
    if is_placeholder(value):
        return True
    if isinstance(kind, Mapping):
        return isinstance(value, Mapping)
    base, _, null = kind.partition("|")
    if value is None:
        return bool(null) or base == "any"
    if base.startswith("array"):
        return isinstance(value, list)
    if isinstance(value, bool):
        return base in ("boolean", "any")
    if base == "integer>=1":
        return isinstance(value, int) and value >= 1
    classes = {"string": str, "integer": int, "number": (int, float), "object": Mapping, "any": object}
    return isinstance(value, classes.get(base, ()))


NUMBERS, ARRAYS = ("integer", "number"), ("array",)
NEEDS = {"inc": NUMBERS, "toggle": ("boolean",), "append_unique": ARRAYS, "remove": ARRAYS}


def _writes(action: Action, page: Page, fsm: Fsm) -> Iterator[Finding]:
    where = _place(action)
    for effect in action.effects:
        path, kind = _dotted(effect.path), _kind(page, effect.path)
        if kind is None:
            yield _error("undeclared_write", where, f"writes {path}, which {page.id} does not declare")
            continue
        if effect.expr is not None:
            yield from _expression(action, effect, fsm)
        elif effect.op == "set" and effect.ref is None and not _fits(kind, effect.value):
            yield _error("type_mismatch", where, f"sets {path}, a {kind}, to {shown(effect.value)}")
        elif effect.op in NEEDS and not _is_one_of(kind, NEEDS[effect.op]):
            yield _error("type_mismatch", where, f"{effect.op} on {path}, which is a {shown(kind)}")
    if not action.effects and not action.is_navigation:
        yield _warning("no_effect", where, "changes nothing")


def _is_one_of(kind: Any, bases: tuple[str, ...]) -> bool:
    return isinstance(kind, str) and kind.startswith((*bases, "any"))


def _expression(action: Action, effect: Effect, fsm: Fsm) -> Iterator[Finding]:
    path = _dotted(effect.path)
    readers = sorted(
        other.id
        for other in fsm.actions
        if any(condition.path[0] == effect.path[0] for condition in other.preconditions)
    )
    depends = f"; {', '.join(readers)} depend on it" if readers else "; nothing depends on it"
    try:
        parsed = parse_expression(effect.expr)
        reads = f" It reads {', '.join(sorted(parsed.paths))}." if parsed.paths else ""
        text = f"{path} is to be computed, which is not done, so it stays as it is{depends}.{reads}"
        yield _warning("expression", _place(action), text)
    except ValueError as error:
        yield _error("bad_expression", _place(action), f"{path}: {error}: {shown(effect.expr)}{depends}")


def _conditions(action: Action, page: Page, fsm: Fsm) -> Iterator[Finding]:
    where = _place(action)
    for condition in action.preconditions:
        kind, said = _kind(page, condition.path), _said(condition)
        if kind is None:
            yield _error("undeclared_read", where, f"waits for {said}, which {page.id} does not declare")
        elif condition.cond == "length_gt" and not _is_one_of(kind, ("string", "object", *ARRAYS)):
            yield _error("invalid_condition", where, f"waits for {said}, a {shown(kind)}: it has no length")
        elif condition.cond in ORDERED - {"length_gt"} and not _is_one_of(kind, NUMBERS):
            yield _error("invalid_condition", where, f"waits for {said}, a {shown(kind)}: no number")
        elif condition.cond == "eq" and condition.value is not None and not _fits(kind, condition.value):
            yield _error("invalid_condition", where, f"waits for {said}, which a {shown(kind)} never is")
        if isinstance(condition.value, str) and is_placeholder(condition.value):
            yield _error("placeholder", where, f"waits for {said}: a condition must not hold a placeholder")


def _setters(condition: Condition, fsm: Fsm) -> bool:
    """Whether anything makes a condition true: a page's default, or an effect on any page, since fields of
    one name are carried along. Expressions do not count."""
    declaring = (page for page in fsm.pages.values() if _kind(page, condition.path) is not None)
    if any(meets(page.defaults, condition) for page in declaring):
        return True
    effects = (effect for action in fsm.actions for effect in action.effects)
    return any(_may_set(effect, condition) for effect in effects)


def _may_set(effect: Effect, condition: Condition) -> bool:
    if effect.path != condition.path or effect.expr is not None or effect.op == "clear":
        return False
    if effect.op != "set" or effect.ref is not None:
        return True
    return meets(_nested(effect.path, effect.value), condition)


def _nested(path: FieldPath, value: Any) -> dict[str, Any]:
    for name in reversed(path):
        value = {name: value}
    return value


def _gates(action: Action, page: Page, fsm: Fsm) -> Iterator[Finding]:
    for condition in action.preconditions:
        if _kind(page, condition.path) is None or _setters(condition, fsm):
            continue
        writers = [
            other.id
            for other in fsm.actions
            for effect in other.effects
            if effect.path == condition.path and effect.expr is not None
        ]
        by = f" but the expression of {', '.join(writers)}" if writers else ""
        text = f"waits for {_said(condition)}, which nothing makes true{by}"
        yield _error("gate_never_set", _place(action), text)


def _items(action: Action, page: Page, fsm: Fsm) -> Iterator[Finding]:
    """What an action opens must be remembered, and still be known on the page that it opens."""
    if not action.is_navigation or not action.open_parameters or action.target == page.id:
        return
    stored = [effect for effect in action.effects if effect.ref in action.open_parameters]
    if not stored:
        names = ", ".join(action.open_parameters)
        yield _error("missing_id", _place(action), f"opens {names} and does not store which one")
    target = fsm.pages[action.target]
    for effect in stored:
        name = effect.path[0]
        if name in target.schema:
            continue
        others = [field for field in target.schema if field.endswith("_id")]
        renamed = f"; is {' or '.join(others)} meant?" if others else ""
        text = f"stores {_dotted(effect.path)}, but {target.id} has no {name}, so it is lost{renamed}"
        yield _error("item_lost", _place(action), text)


def _resets(action: Action, page: Page, fsm: Fsm) -> Iterator[Finding]:
    """A list that shows other results must begin at its first page again."""
    paths: list[FieldPath] = [(name,) for name in page.schema]
    paths += [(name, one) for name, kind in page.schema.items() if isinstance(kind, Mapping) for one in kind]
    written = {effect.path for effect in action.effects}
    changes = {path for path in written if RESULTS.search(path[-1].lower())}
    if action.is_navigation or not (changes or (action.name == "search" and written)):
        return
    for path in paths:
        if PAGINATION.search(path[-1]) and path not in written:
            text = f"changes the results, but leaves {_dotted(path)} as it is"
            yield _error("pagination_reset", _place(action), text)


def _procedure(action: Action, page: Page, fsm: Fsm) -> Iterator[Finding]:
    where = _place(action)
    if not action.gui_procedure:
        yield _warning("no_procedure", where, "has no gui_procedure, so nobody can take it")
    for step in action.gui_procedure:
        selector = step.get("selector")
        if selector is None and step["op"] in ("key_press", "scroll"):
            continue
        if not isinstance(selector, str) or not SELECTOR.fullmatch(selector):
            text = f"{step['op']} on {shown(selector)}, which is no selector like #id or #id .class"
            yield _error("bad_selector", where, text)
    for name, value in action.parameters.items():
        if isinstance(value, str) and value[:1] in ("#", ".") and SELECTOR.fullmatch(value):
            yield _warning("selector_in_parameters", where, f"parameter {name} holds a selector")


def _dotted(path: FieldPath) -> str:
    return "$." + ".".join(path)


def _said(condition: Condition) -> str:
    value = "" if condition.cond in ("exists", "not_null") else f" {shown(condition.value)}"
    return f"{_dotted(condition.path)} {condition.cond}{value}"
