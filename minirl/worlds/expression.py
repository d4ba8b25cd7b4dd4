"""`value_expr`: text in a site file that says how a field's new value would be computed.

Where it stands: `check` parses it, to report what an expression reads and what depends on it. Nothing
executes it, here or anywhere: an effect with an expression leaves its field alone (see `fsm`).

Paper: AutoWebWorld's released files; the paper itself allows no such effect.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

FUNCTIONS = {
    "append", "remove_where", "map", "filter", "merge", "set_prop", "uniq", "sort_by", "now", "len", "gen_id",
}  # fmt: skip
TOKEN = re.compile(
    r"""\s*(?: (?P<path> \$(?:\.[A-Za-z_]\w*)+ ) | (?P<text> "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*' )
    | (?P<number> \d+(?:\.\d+)? ) | (?P<name> [A-Za-z_]\w* ) | (?P<open> [(\[{] ) | (?P<close> [)\]}] )
    | (?P<mark> => | [=!<>]=? | && | \|\| | [-+*/%.,:?!] ) )""",
    re.VERBOSE,
)
PAIRS = {"(": ")", "[": "]", "{": "}"}
LONGEST = 10_000  # characters


@dataclass(frozen=True)
class Expression:
    """What an expression calls, and the fields that it reads."""

    functions: frozenset[str]
    paths: frozenset[str]


def parse_expression(text: object) -> Expression:
    """
    >>> sorted(parse_expression('append($.cart, {"id": gen_id(), "n": $.view.n})').paths)
    ['$.cart', '$.view.n']

    Raises ValueError that says what is wrong with it.
    """
    if not isinstance(text, str) or not text.strip() or len(text) > LONGEST:
        raise ValueError("an expression must be a text that is neither empty nor endless")
    expected: list[str] = []  # the brackets that are still to be closed
    functions, paths = set(), set()
    name, at, text = "", 0, text.rstrip()
    while at < len(text):
        token = TOKEN.match(text, at)
        if token is None:
            raise ValueError(f"can't be read from {text[at : at + 20].strip()!r} on")
        at, kind, word = token.end(), token.lastgroup, token.group(token.lastgroup)
        if kind == "open":
            if word == "(" and name:
                functions.add(name)
            expected.append(PAIRS[word])
        elif kind == "close":
            if not expected or expected.pop() != word:
                raise ValueError(f"{word!r} closes nothing")
        elif kind == "path":
            paths.add(word)
        name = word if kind == "name" else ""
    if expected:
        raise ValueError(f"{expected[-1]!r} is missing")
    if unknown := functions - FUNCTIONS:
        raise ValueError(f"there is no function {', '.join(sorted(unknown))}")
    return Expression(frozenset(functions), frozenset(paths))
