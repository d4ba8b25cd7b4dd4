"""The code that a task file may hold: a few forms of JavaScript, and calls of five helper functions.

Of a locator only words that look things up in the document are allowed, and it runs in the page alone; of a
helper's call only name and argument are read. Deviation: WebArena's code runs both.
"""

import re
import tomllib
from importlib.resources import files

MOST_CHARS = 2000
# A string, number, name or sign. A string has no escapes and no template: what is in it stays text.
WORD = re.compile(r"""('[^'\\\n]*'|"[^"\\\n]*"|\d+|[A-Za-z_$][\w$]*|=>|\?\.|\|\||\.\.\.|\S)""", re.ASCII)
WORDS = tomllib.loads(files("minirl.benchmarks.webarena").joinpath("locators.toml").read_text())
LOOKS, ROOTS, SIGNS = (set(WORDS[name].split()) for name in ("looks", "roots", "signs"))
CALL = re.compile(r"""func:(\w+)\(\s*+(__page__\s*+,\s*+)?(?:'([^'\\]*)'|"([^"\\]*)")?\s*+\)""")


def read_helper(call: str) -> tuple[str, str]:
    """Return name and argument of `func:name('argument')`. ValueError if it is not one of the five."""
    match = CALL.fullmatch(call)
    if match is None:
        raise ValueError(f"{call[:80]!r} is no call of a helper, like func:name('text')")
    name, argument = match[1], match[4] if match[3] is None else match[3]
    if WORDS["helpers"].get(name) != {"page": match[2] is not None, "text": argument is not None}:
        raise ValueError(f"{call[:80]!r} calls a helper that is not known, or not with what it takes")
    return name, argument or ""


def check_locator(locator: str) -> str:
    """Return a locator that is empty, a helper's call, or JavaScript that only looks, or raise ValueError."""
    if locator.startswith("func:"):
        read_helper(locator)
    elif locator.strip():
        check_script(locator, LOOKS)
    return locator


def check_press(script: str) -> str:
    check_script(script, LOOKS | {"click", "focus"})
    return script


def check_script(script: str, members: set[str]) -> None:
    """Raise ValueError unless a script is one expression of lookups, without statement or computed member."""
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
    found = re.match(r"(\w+://[^/?#]*/f/[^/?#]*/[^/?#]*)", url)
    return f"{found[1]}/" if found else url
