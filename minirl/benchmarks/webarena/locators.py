"""What a task file may ask of a page: a few forms of JavaScript, and five helper functions by their names.

Stands beneath `minirl.benchmarks.webarena.tasks`, which refuses a task that asks for anything else, and
`minirl.benchmarks.webarena.evaluators`, which
asks. WebArena's locators and helpers are code in data. Here a locator is read word by word, and only words
that look things up in the document are allowed; it then runs in the page and nowhere else. A helper's call
is taken apart into name and argument. Deviation: WebArena's code hands both to an interpreter as they are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

MOST_CHARS = 2000

# A string has no escapes and no template: what is in it stays text.
WORD = re.compile(
    r"""\s*(?:(?P<string>'[^'\\\n]*'|"[^"\\\n]*")|(?P<number>\d+)|(?P<name>[A-Za-z_$][\w$]*)"""
    r"""|(?P<sign>=>|\?\.|\|\||\.\.\.|[.,+()\[\]]))""",
    re.ASCII,
)
# The members that a script may use: those that find elements, those that read one, those that handle texts
FINDS = {"querySelector", "querySelectorAll", "getElementById", "getElementsByClassName", "closest", "body"}
FINDS |= {"children", "firstChild", "lastChild", "firstElementChild", "lastElementChild", "parentElement"}
FINDS |= {"nextElementSibling", "previousElementSibling", "options", "map", "filter", "length"}
READS = {"outerText", "innerText", "textContent", "outerHTML", "innerHTML", "title", "href", "src", "matches"}
READS |= {"value", "checked", "selected", "selectedIndex", "getAttribute", "hasAttribute"}
TEXTS = {"join", "includes", "trim", "toString", "toLowerCase"}
LOOKS = frozenset(FINDS | READS | TEXTS)
PRESSES = LOOKS | {"click", "focus"}  # for the actions before a locator
ROOTS = {"document", "elem", "element", "el", "e", "node", "item", "x"}  # but the first for `map`'s parameter

HelperName = Literal[
    "reddit_get_post_url",
    "shopping_get_latest_order_url",
    "shopping_get_sku_latest_review_author",
    "shopping_get_sku_latest_review_rating",
    "gitlab_get_project_memeber_role",
]
CALL = re.compile(r"""func:(\w+)\(\s*(__page__\s*,\s*)?(?:'([^'\\]*)'|"([^"\\]*)")?\s*\)""")


@dataclass(frozen=True)
class Helper:
    """A call of a helper function. The argument is only ever text; "__last_url__" in it stands for the
    page's address.

    >>> read_helper("func:shopping_get_sku_latest_review_author('B07')")
    Helper(name='shopping_get_sku_latest_review_author', argument='B07')
    """

    name: HelperName
    argument: str = ""


def read_helper(call: str) -> Helper:
    """`func:name(...)` as written in a task. ValueError if it is not one of the five."""
    match = CALL.fullmatch(call)
    if match is None:
        raise ValueError(f"{call[:80]!r} is no call of a helper, like func:name('text')")
    name, page, argument = match[1], match[2] is not None, match[3] if match[3] is not None else match[4]
    match name, page, argument is not None:
        case "shopping_get_latest_order_url", False, False:
            return Helper(name)
        case (
            "reddit_get_post_url"
            | "shopping_get_sku_latest_review_author"
            | "shopping_get_sku_latest_review_rating",
            False,
            True,
        ):
            return Helper(name, argument)
        case "gitlab_get_project_memeber_role", True, True:
            return Helper(name, argument)
        case _:
            raise ValueError(f"{call[:80]!r} calls a helper that is not known, or not with what it takes")


def check_locator(locator: str) -> None:
    """ValueError unless a locator is empty (the whole page), a helper's call, or JavaScript that starts with
    `document.` or `[...document.` and only looks."""
    if locator.strip() and not locator.startswith("func:"):
        check_script(locator, LOOKS)
    elif locator.strip():
        read_helper(locator)


def check_script(script: str, members: frozenset[str]) -> None:
    """ValueError unless a script is one expression of lookups, made of known words and nothing else. There is
    no assignment, no statement, no object but the document's and no member that is computed."""
    shown = repr(script[:80])
    if len(script) > MOST_CHARS:
        raise ValueError(f"the script {shown}... has more than {MOST_CHARS} characters")
    if not script.startswith(("document.", "[...document.")):
        raise ValueError(f"the script {shown} must start with document. or [...document.")
    words = read_words(script)
    open_brackets: list[str] = []
    for before, word, after in zip(["", *words[:-1]], words, [*words[1:], ""], strict=True):
        if word[0].isalpha() or word[0] in "_$":
            known = members if before in (".", "?.") else ROOTS
            if word not in known:
                raise ValueError(f"the script {shown} uses {word!r}, which is not allowed")
        elif word == "[" and not (after == "..." or after.isdigit()):
            raise ValueError(f"the script {shown} computes what to look up")
        elif word in (")", "]") and (not open_brackets or open_brackets.pop() != {")": "(", "]": "["}[word]):
            raise ValueError(f"the brackets of the script {shown} don't match")
        if word in ("(", "["):
            open_brackets.append(word)
    if open_brackets:
        raise ValueError(f"the brackets of the script {shown} don't match")


def read_words(script: str) -> list[str]:
    """The words of a script, strings whole. ValueError at the first character that belongs to none."""
    words, position = [], 0
    script = script.rstrip()
    while position < len(script):
        match = WORD.match(script, position)
        if match is None:
            raise ValueError(f"the script {script[:80]!r} can't be read at {script[position:][:20]!r}")
        words.append(match[0].strip() if match["string"] is None else match["string"])
        position = match.end()
    return words


def post_address(url: str) -> str:
    """The address of a forum's post, from that of anything beneath it; any other address as it is.

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
