"""The code that a task file may hold: lookups in JavaScript, and calls of five helper functions.

A locator runs in the page alone, and only names that look things up in the document are allowed; of a
helper's call only name and argument are read. Deviation: WebArena's code runs both.
"""

import re
import tomllib
from importlib.resources import files

WORDS = tomllib.loads(files("minirl.benchmarks.webarena").joinpath("locators.toml").read_text())
LOOKS = {*WORDS["roots"].split(), *WORDS["looks"].split()}
PRESSES = LOOKS | {"click", "focus"}
CALL = re.compile(r"""func:(\w+)\((__page__,\s*)?(?:'([^'\\]*)'|"([^"\\]*)")?\)""")
STRING = re.compile(r"""'[^'\\\n]*'|"[^"\\\n]*\"""")  # without escapes
NAME = re.compile(r"[A-Za-z_$][\w$]*", re.ASCII)
# Statements, assignments, templates, and members that are computed, as in document["cookie"]
FORBIDDEN = re.compile(r"=(?!>)|[^\w\s$=>?.|,+()\[\]']|\[(?!\d+\]|\.\.\.)", re.ASCII)


def read_helper(call: str) -> tuple[str, str]:
    """Return name and argument of `func:name('argument')`. ValueError if it is not one of the five."""
    match = CALL.fullmatch(call)
    if match is None:
        raise ValueError(f"{call[:80]!r} is no call of a helper, like func:name('text')")
    name = match[1]
    argument = match[4] if match[3] is None else match[3]
    given = {"page": match[2] is not None, "text": argument is not None}
    if WORDS["helpers"].get(name) != given:
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
    check_script(script, PRESSES)
    return script


def check_script(script: str, allowed: set[str]) -> None:
    """Raise ValueError unless a script is one expression of lookups."""
    if not script.startswith(("document.", "[...document.")):
        raise ValueError(f"the script {script[:80]!r} must start with document. or [...document.")
    # what stands in strings is text
    code = STRING.sub("''", script)
    if FORBIDDEN.search(code):
        raise ValueError(f"the script {script[:80]!r} does more than look things up")
    for name in NAME.findall(code):
        if name not in allowed:
            raise ValueError(f"the script {script[:80]!r} uses {name!r}, which is not allowed")


def post_address(url: str) -> str:
    """Return the address of a forum's post from that of anything beneath it, others unchanged.

    >>> post_address("http://reddit.test/f/books/59421/a-title?sort=new")
    'http://reddit.test/f/books/59421/'
    """
    match = re.match(r"(\w+://[^/?#]*/f/[^/?#]*/[^/?#]*)", url)
    return f"{match[1]}/" if match else url
