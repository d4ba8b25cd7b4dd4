"""The size of the house: the product stays small, and written loosely enough to be read.

A token is a Python token without comments, docstrings, line ends and indentation. Density is what a reader
feels: tokens a line, and AST nodes on a line of code inside functions. A number is only raised on purpose.
"""

import ast
import io
import subprocess
import tokenize
from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# 113,500 before MiniWoB++, hybrid models and credit for turns, for which there are 8,600 more
MAX_TOKENS = 124_740
MAX_CORE_TOKENS = 42_500  # flat modules, samplers and scripts
MAX_TOKENS_PER_LINE = 8.0  # of every room
MAX_NODES_PER_LINE = 14  # of every room, the 90th percentile
MAX_FUNCTION_LINES = 60
MAX_MODULE_LINES = 400
MAX_SETTINGS = 129
MAX_OTHER_LINES = 4530  # scripts of pages, styles, tables and prompts in minirl/
MAX_EXAMPLE_LINES = 2500
OTHER = {".js", ".css", ".toml", ".j2", ".jinja", ".html", ".md"}
LAYOUT = {
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
    tokenize.COMMENT,
}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass
class Room:
    lines: int = 0
    tokens: int = 0
    nodes: list[int] = field(default_factory=list)  # of each line of code inside functions

    @property
    def percentile(self) -> int:
        return sorted(self.nodes)[int(0.9 * (len(self.nodes) - 1))] if self.nodes else 0


def tracked() -> list[Path]:
    """All files of the project; where it is no checkout, all that lie in its folders of code."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode == 0:
        files = [ROOT / name for name in listed.stdout.splitlines()]
    else:
        files = [*ROOT.glob("*.py"), *ROOT.glob("minirl/**/*"), *ROOT.glob("examples/**/*")]
    return [file for file in files if file.is_file()]


FILES = tracked()
OUTSIDE = {"tests", "examples", "benchmarks", "docs"}
PRODUCT = [file for file in FILES if file.suffix == ".py" and file.relative_to(ROOT).parts[0] not in OUTSIDE]


def room_of(file: Path) -> str:
    parts = file.relative_to(ROOT).parts
    is_core = len(parts) < 3 or parts[1] == "samplers"
    return "core" if is_core else parts[1]


def docstring_lines(tree: ast.Module) -> set[int]:
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            lines.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return lines


def functions_of(tree: ast.Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]


def count_tokens(text: str, docstrings: set[int]) -> int:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    code = [token for token in tokens if token.type not in LAYOUT]
    return sum(token.type != tokenize.STRING or token.start[0] not in docstrings for token in code)


def count_nodes(tree: ast.Module, docstrings: set[int]) -> list[int]:
    nodes_on = defaultdict[int, set[int]](set)
    for function in functions_of(tree):
        for node in ast.walk(function):
            line = getattr(node, "lineno", None)
            if line is not None and line not in docstrings:
                nodes_on[line].add(id(node))
    return [len(nodes) for nodes in nodes_on.values()]


@pytest.fixture(scope="module")
def rooms() -> dict[str, Room]:
    rooms = defaultdict[str, Room](Room)
    for file in PRODUCT:
        text = file.read_text()
        tree = ast.parse(text)
        docstrings = docstring_lines(tree)
        room = rooms[room_of(file)]
        room.lines += text.count("\n")
        room.tokens += count_tokens(text, docstrings)
        room.nodes += count_nodes(tree, docstrings)
    return rooms


def count_lines(files: list[Path]) -> int:
    return sum(file.read_text(errors="replace").count("\n") for file in files)


def test_the_product_has_few_tokens(rooms):
    assert sum(room.tokens for room in rooms.values()) <= MAX_TOKENS
    assert rooms["core"].tokens <= MAX_CORE_TOKENS


def test_no_room_is_written_densely(rooms):
    for name, room in rooms.items():
        assert room.tokens <= MAX_TOKENS_PER_LINE * max(room.lines, 1), name
        assert room.percentile <= MAX_NODES_PER_LINE, name


def test_functions_and_modules_are_short():
    long = []
    for file in PRODUCT:
        text = file.read_text()
        if text.count("\n") > MAX_MODULE_LINES:
            long.append(str(file.relative_to(ROOT)))
        for function in functions_of(ast.parse(text)):
            if function.end_lineno - function.lineno >= MAX_FUNCTION_LINES:
                long.append(f"{file.relative_to(ROOT)}: {function.name}")
    assert not long


@cache
def nodes_of_code() -> list[tuple[str, ast.AST]]:
    """All nodes of the project's code but its tests, each with its place."""
    files = [file for file in FILES if file.suffix == ".py" and file.relative_to(ROOT).parts[0] != "tests"]
    return [
        (f"{file.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}", node)
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
    ]


def test_several_names_are_assigned_at_once_only_to_swap_or_unpack():
    at_once = []
    for place, node in nodes_of_code():
        match node:
            case ast.Assign([ast.Tuple(targets)], ast.Tuple(values)):
                if {*map(ast.unparse, targets)}.isdisjoint(map(ast.unparse, values)):
                    at_once.append(place)
    assert not at_once


def test_no_conditional_expression_is_inside_another():
    inside = []
    for place, node in nodes_of_code():
        if isinstance(node, ast.IfExp) and sum(isinstance(part, ast.IfExp) for part in ast.walk(node)) > 1:
            inside.append(place)
    assert not inside


def test_there_are_few_settings():
    tree = ast.parse((ROOT / "minirl/config.py").read_text())
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    fields = [one for node in classes for one in node.body if isinstance(one, ast.AnnAssign)]
    assert len(fields) <= MAX_SETTINGS


def test_other_text_and_examples_are_short():
    other = [file for file in FILES if file.relative_to(ROOT).parts[0] == "minirl" and file.suffix in OTHER]
    examples = [file for file in FILES if file.relative_to(ROOT).parts[0] == "examples"]
    assert count_lines(other) <= MAX_OTHER_LINES
    assert count_lines([file for file in examples if file.suffix == ".py"]) <= MAX_EXAMPLE_LINES
