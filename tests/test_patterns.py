"""No regular expression, nor any reader of what a model, a page or a server says, takes quadratic time."""

from __future__ import annotations

import ast
import importlib
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from re import _constants as sre  # pyright: ignore[reportAttributeAccessIssue]
from re import _parser  # pyright: ignore[reportAttributeAccessIssue]
from types import ModuleType
from typing import Any

import pytest

import minirl
from minirl.agents import openwebrl, openwebrl_actions, webagent_r1
from minirl.benchmarks.webarena import locators
from minirl.judges import parsers

ROOT = Path(minirl.__file__).parent
SHORT, LONG = 400, 1200  # repeats, of the first look and of the second; then four times as many
MOST_GROWTH = 8.0  # from n to 4n: linear is 4, quadratic is 16
SCANS = {"findall", "finditer", "split", "sub"}  # begin anew behind every match
# What is put together where it is used
LOCAL = {
    "no": [r"\bno\b", "incorrect"],
    "f'\\\\b{yes}\\\\b'": [r"\byes\b"],
    "affixes": [r"^(a|b)_|(_c)?_id$"],
}
SAMPLES = {
    sre.CATEGORY_SPACE: " ",
    sre.CATEGORY_DIGIT: "1",
    sre.CATEGORY_WORD: "a",
    sre.CATEGORY_NOT_WORD: "-",
}
SAMPLES |= {sre.CATEGORY_NOT_SPACE: "x", sre.CATEGORY_NOT_DIGIT: "x"}


def modules() -> Iterator[tuple[ModuleType, ast.Module]]:
    for file in sorted(ROOT.rglob("*.py")):
        text = file.read_text()
        if "import re\n" in text:
            yield (
                importlib.import_module(".".join(file.relative_to(ROOT.parent).with_suffix("").parts)),
                ast.parse(text),
            )


def compiled(value: Any) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from compiled(inner)


def patterns() -> dict[str, tuple[re.Pattern[Any], set[str]]]:
    """Every pattern of the package by its text, with the methods that are called on it anywhere."""
    found: dict[str, tuple[re.Pattern[Any], set[str]]] = {}
    parsed = list(modules())
    calls = [
        (module, node)
        for module, tree in parsed
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]
    for module, _ in parsed:
        for name, value in vars(module).items():
            for pattern in compiled(value):
                used = {c.func.attr for _, c in calls if name in ast.unparse(c.func.value)} & {
                    *SCANS,
                    "match",
                    "fullmatch",
                }
                found.setdefault(f"{pattern.pattern}", (pattern, set()))[1].update(used or {"search"})
    for module, call in calls:
        if ast.unparse(call.func.value) != "re" or call.func.attr in ("compile", "escape"):
            continue
        source = call.args[0]
        texts = LOCAL.get(ast.unparse(source)) or [eval(ast.unparse(source), vars(module))]
        for text in texts:
            found.setdefault(text, (re.compile(text), set()))[1].add(call.func.attr)
    return found


PATTERNS = patterns()


def test_the_patterns_are_all_there():
    """Counted by another way: each line that compiles or uses one has its own."""
    lines = [line for file in ROOT.rglob("*.py") for line in file.read_text().splitlines()]
    written = [
        line
        for line in lines
        if re.search(r"\bre\.(compile|match|fullmatch|search|sub|split|findall)\(", line)
    ]
    assert len(PATTERNS) >= len(written) - 5 > 50  # a few are the same text


def growth(work: Callable[[str], Any], unit: tuple[str, str], n: int, attempts: int) -> float:
    def seconds(times: int) -> float:
        text, best = unit[0] + unit[1] * times, float("inf")
        for _ in range(attempts):
            begun = time.thread_time_ns()
            work(text)
            best = min(best, time.thread_time_ns() - begun)
        return best + 1000  # a call's own share

    return seconds(4 * n) / seconds(n)


def is_linear(work: Callable[[str], Any], unit: tuple[str, str]) -> bool:
    """If the time for four times as many repeats is far less than sixteen times as long. What looks worse
    at first, as on a busy machine, is looked at again."""
    looks = ((SHORT, 1), (SHORT, 3), (LONG, 3), (LONG, 5))
    return any(growth(work, unit, *look) < MOST_GROWTH for look in looks)


def slow(work: Callable[[str], Any], units: Iterable[tuple[str, str]]) -> tuple[str, str] | None:
    """The first unit that takes more than linear time."""
    return next((unit for unit in units if not is_linear(work, unit)), None)


def letters(parsed: Iterable[Any]) -> Iterator[str]:
    """The words of a pattern, and a character or two of each of its classes."""
    word = ""
    for op, value in [*parsed, (None, None)]:
        if op is sre.LITERAL:
            word += chr(value)
            continue
        if word:
            yield word
        word = ""
        match op:
            case sre.IN:
                yield from (one for one in map(sample, value[:4]) if one)
            case sre.ANY:
                yield "x"
            case sre.NOT_LITERAL:
                yield "x"
            case sre.MAX_REPEAT | sre.MIN_REPEAT | sre.POSSESSIVE_REPEAT:
                yield from letters(value[2])
            case sre.SUBPATTERN:
                yield from letters(value[3])
            case sre.BRANCH:
                for branch in value[1][:4]:
                    yield from letters(branch)
            case sre.ASSERT | sre.ASSERT_NOT:
                yield from letters(value[1])


def sample(item: tuple[Any, Any]) -> str:
    match item:
        case (sre.LITERAL, code):
            return chr(code)
        case (sre.RANGE, (low, _)):
            return chr(low)
        case (sre.CATEGORY, kind):
            return SAMPLES[kind]
    return ""  # NEGATE


def example(parsed: Iterable[Any]) -> str:
    """A text that the pattern matches, or nearly: optional parts are there, once."""
    out = ""
    for op, value in parsed:
        match op:
            case sre.LITERAL:
                out += chr(value)
            case sre.IN:
                out += "x" if value[0][0] is sre.NEGATE else sample(value[0])
            case sre.ANY | sre.NOT_LITERAL:
                out += "x"
            case sre.MAX_REPEAT | sre.MIN_REPEAT | sre.POSSESSIVE_REPEAT:
                out += example(value[2]) * max(value[0], 1)
            case sre.SUBPATTERN:
                out += example(value[3])
            case sre.BRANCH:
                out += example(value[1][0])
    return out


def units(pattern: re.Pattern[Any]) -> Iterator[tuple[str, str]]:
    """Beginnings, and what is repeated behind them: the pattern's letters, alone and in pairs."""
    parsed = list(_parser.parse(pattern.pattern, pattern.flags))
    own = list(dict.fromkeys([*letters(parsed), " "]))[:14]
    begun = example(parsed)[:30]
    for n in range(len(begun) + 1):
        yield from ((begun[:n], one) for one in own)
    yield from (("", one + other) for one in own for other in own)


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_takes_linear_time(name):
    pattern, methods = PATTERNS[name]
    is_bytes = isinstance(pattern.pattern, bytes)
    for method in {"finditer" if method in SCANS else method for method in methods}:

        def work(text: str, method: str = method) -> Any:
            found = getattr(pattern, method)(text.encode() if is_bytes else text)
            return list(found) if method == "finditer" else found

        assert slow(work, units(pattern)) is None, method


def call(value: Any) -> str:
    return (
        f"so</think><tool_call>{json.dumps({'name': 'click', 'arguments': {'point_2d': value}})}</tool_call>"
    )


READERS: dict[str, Callable[[str], Any]] = {
    name: lambda text, name=name: parsers.parse(name, text) for name in parsers.PARSERS
}
READERS |= {"openwebrl": openwebrl.parse, "webagent-r1": webagent_r1.parse, "keys": openwebrl_actions.normal}
READERS["point"] = lambda text: openwebrl.parse(call(text))
READERS["number"] = lambda text: openwebrl.parse(call([text, text]))
READERS["element"] = lambda text: webagent_r1.parse(f'do(action="Click", element="{text}")')
WORDS = ["the ", "not ", "verdict ", "verdict:", " ", "success ", "success\n", "not\n", "status: "]
WORDS += [
    ". status: ",
    "- ",
    "1. ",
    "\n",
    "{",
    "}",
    '"',
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
]
WORDS += [
    "<answer>",
    "<verdict>",
    "*",
    "a+",
    "+",
    "1,",
    "1 ",
    ",",
    "[",
    "1",
    "-",
    ".",
    "do(",
    "do (",
    ")",
    "'",
]
WORDS += ["do(''", "#"]


@pytest.mark.parametrize("reader", READERS)
def test_what_is_read_takes_linear_time(reader):
    begun = ["", "the verdict", "so</think>", "<answer>do("]
    assert slow(READERS[reader], ((start, word) for start in begun for word in WORDS)) is None


def test_a_quadratic_pattern_would_be_found():
    for text in (r"\s*(\d+)\s*", r"(?:the\s+)*verdict", r"a*b", r"x\(\s*(y\s*)?\s*\)"):
        pattern = re.compile(text)
        assert slow(pattern.search, units(pattern)), text
    assert locators.CALL.fullmatch("func:f('x')")
