"""The rule of the house: who may import whom."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from test_size import count_tokens, docstring_lines

ROOT = Path(__file__).parents[1]
ROOMS = ["samplers", "browser", "agents", "judges", "worlds", "benchmarks", "evaluation"]
ROOMS += ["tiny", "cli", "data"]
PRODUCT = [*(ROOT / "minirl").rglob("*.py"), *ROOT.glob("*.py")]
MODULES = {".".join(file.relative_to(ROOT).with_suffix("").parts): file for file in PRODUCT}


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes, also those inside functions, but for what only a type checker reads."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            yield node
            yield from statements(node)


def imported(file: Path, nodes: list[ast.AST] | None = None) -> set[str]:
    """The modules and names that a file imports, inside functions too."""
    nodes = list(ast.walk(ast.parse(file.read_text()))) if nodes is None else nodes
    names = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    names |= {f"{n.module}.{a.name}" for n in nodes if isinstance(n, ast.ImportFrom) for a in n.names}
    return names | {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}


def test_flat_modules_import_flat_modules_and_rooms_those_to_their_left():
    """experiment.py plugs rooms together, and what is started by its name may."""
    wrong = []
    for file in (ROOT / "minirl").rglob("*.py"):
        place = file.relative_to(ROOT / "minirl").parts
        if place[-1] in ("experiment.py", "__main__.py"):
            continue
        allowed = ROOMS[: ROOMS.index(place[0]) + 1] if len(place) > 1 else []
        for name in imported(file):
            parts = name.split(".")
            if parts[0] == "minirl" and parts[1:] and parts[1] in ROOMS and parts[1] not in allowed:
                wrong.append(f"{'/'.join(place)} imports {name}")
    assert not wrong, wrong


def test_the_product_imports_neither_examples_nor_benchmarks_nor_tests():
    outside = {"examples", "benchmarks", "tests", *(file.stem for file in (ROOT / "tests").glob("*.py"))}
    for name, file in MODULES.items():
        assert not {one.split(".")[0] for one in imported(file)} & outside, name


def test_no_module_imports_itself_by_way_of_others():
    """Nor do imports hide in functions because they would go round in a circle."""
    graph = {}
    for name, file in MODULES.items():
        nodes = list(statements(ast.parse(file.read_text())))
        graph[name] = imported(file, nodes) & MODULES.keys() - {name}
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        raise AssertionError(" imports ".join(reversed(error.args[1]))) from None


def test_the_loop_loads_little():
    """A reader, and a start, meet the algorithm alone."""
    loaded, ahead = set(), {"train"}
    while ahead:
        name = ahead.pop()
        loaded.add(name)
        at_once = [node for node in ast.parse(MODULES[name].read_text()).body if not isinstance(node, ast.If)]
        ahead |= imported(MODULES[name], at_once) & MODULES.keys() - loaded
    assert "minirl.trainer" in loaded
    tokens = 0
    for name in loaded:
        text = MODULES[name].read_text()
        tokens += count_tokens(text, docstring_lines(ast.parse(text)))
    assert tokens <= 40_577
