"""The code that a task file may hold: a few forms of JavaScript, and calls of five helper functions.

Stands beneath tasks.py, which refuses any other task, and benchmark.py, which runs them. A locator is read
word by word: only words that look things up in the document are allowed, and it runs in the page alone. A
helper's call is taken apart into name and argument. Deviation: WebArena's code hands both to an interpreter.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

MOST_CHARS = 2000
# A string, number, name or sign. A string has no escapes and no template: what is in it stays text.
WORD = re.compile(
    r"""\s*('[^'\\\n]*'|"[^"\\\n]*"|\d+|[A-Za-z_$][\w$]*|=>|\?\.|\|\||\.\.\.|\S)""",
    re.ASCII,
)
SIGNS = {"=>", "?.", "||", "...", ".", ",", "+", "(", ")", "[", "]"}
# The members that a script may use: those that find elements, those that read one, those that handle texts
FINDS = {"querySelector", "querySelectorAll", "getElementById", "getElementsByClassName", "closest", "body"}
FINDS |= {"children", "firstChild", "lastChild", "firstElementChild", "lastElementChild", "parentElement"}
FINDS |= {"nextElementSibling", "previousElementSibling", "options", "map", "filter", "length"}
READS = {"outerText", "innerText", "textContent", "outerHTML", "innerHTML", "title", "href", "src", "matches"}
READS |= {"value", "checked", "selected", "selectedIndex", "getAttribute", "hasAttribute"}
TEXTS = {"join", "includes", "trim", "toString", "toLowerCase"}
LOOKS = frozenset(FINDS | READS | TEXTS)
ROOTS = {"document", "elem", "element", "el", "e", "node", "item", "x"}  # but the first for `map`'s parameter

# By name: whether a helper takes the page, and whether a text
HELPERS = {
    "reddit_get_post_url": (False, True),
    "shopping_get_latest_order_url": (False, False),
    "shopping_get_sku_latest_review_author": (False, True),
    "shopping_get_sku_latest_review_rating": (False, True),
    "gitlab_get_project_memeber_role": (True, True),
}
CALL = re.compile(r"""func:(\w+)\(\s*(__page__\s*,\s*)?(?:'([^'\\]*)'|"([^"\\]*)")?\s*\)""")


@dataclass(frozen=True)
class Helper:
    """A call of a helper function. The argument is only ever text; "__last_url__" in it stands for the
    page's address.

    >>> read_helper("func:shopping_get_sku_latest_review_author('B07')")
    Helper(name='shopping_get_sku_latest_review_author', argument='B07')
    """

    name: str
    argument: str = ""


def read_helper(call: str) -> Helper:
    """Return the parts of `func:name(...)` as written in a task. ValueError if it is not one of the five."""
    match = CALL.fullmatch(call)
    if match is None:
        raise ValueError(f"{call[:80]!r} is no call of a helper, like func:name('text')")
    name, takes_page = match[1], match[2] is not None
    argument = match[3] if match[3] is not None else match[4]
    if HELPERS.get(name) != (takes_page, argument is not None):
        raise ValueError(f"{call[:80]!r} calls a helper that is not known, or not with what it takes")
    return Helper(name, argument or "")


def check_locator(locator: str) -> str:
    """Return a locator that is empty (the whole page), a helper's call, or JavaScript that only looks;
    ValueError for any other."""
    if locator.startswith("func:"):
        read_helper(locator)
    elif locator.strip():
        check_script(locator, LOOKS)
    return locator


def check_press(script: str) -> str:
    """Return a script that may also click and focus what it finds; ValueError for any other."""
    check_script(script, LOOKS | {"click", "focus"})
    return script


def check_script(script: str, members: frozenset[str]) -> None:
    """Raise ValueError unless a script is one expression of lookups, made of known words and nothing else: no
    assignment, no statement, no object but the document's and no member that is computed."""
    shown = f"the script {script[:80]!r}"
    if len(script) > MOST_CHARS:
        raise ValueError(f"{shown}... has more than {MOST_CHARS} characters")
    if not script.startswith(("document.", "[...document.")):
        raise ValueError(f"{shown} must start with document. or [...document.")
    words, open_brackets = WORD.findall(script), []
    for before, word, after in zip(["", *words[:-1]], words, [*words[1:], ""], strict=True):
        is_string, is_number = len(word) > 1 and word[0] in "'\"", word.isascii() and word.isdigit()
        if word[0].isalpha() or word[0] in "_$":
            if word not in (members if before in (".", "?.") else ROOTS):
                raise ValueError(f"{shown} uses {word!r}, which is not allowed")
        elif not (is_string or is_number or word in SIGNS):
            raise ValueError(f"{shown} can't be read at {word!r}")
        elif word == "[" and not (after == "..." or after.isdigit()):
            raise ValueError(f"{shown} computes what to look up")
        elif word in ("(", "["):
            open_brackets.append(word)
        elif word in (")", "]") and (not open_brackets or open_brackets.pop() + word not in ("()", "[]")):
            raise ValueError(f"the brackets of {shown} don't match")
    if open_brackets:
        raise ValueError(f"the brackets of {shown} don't match")


def post_address(url: str) -> str:
    """Return the address of a forum's post from that of anything beneath it, others unchanged.

    >>> post_address("http://reddit.test/f/books/59421/a-title?sort=new")
    'http://reddit.test/f/books/59421/'
    """
    try:
        parts = urlsplit(url)
    except ValueError:  # brackets that are no address
        return url
    path = parts.path.split("/")
    if len(path) < 4 or path[1] != "f":
        return url
    return f"{parts.scheme}://{parts.netloc}/f/{path[2]}/{path[3]}/"
