"""WebAgent-R1's agent: simplified HTML in, one action out, as a call in a small Python-like language.

    <think> why </think> <answer> do(action="Click", element="3") </answer>

Stands where minirl/agents/openwebrl.py and minirl/agents/openwebrl_actions.py stand for the visual
agent: what the model is told, how
its answer is read, what an action does. Paper: table 6 and section 3.1. Deviations from the released code:
all 14 actions of the table exist (five of them were advertised and refused there); elements are acted on
where they are now; an action that fails is told to the model. An answer is read as literals, and never run.
"""

from __future__ import annotations

import ast
import contextlib
import re
import warnings
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from minirl.agents import simplified_html
from minirl.agents.openwebrl import read_prompt
from minirl.agents.openwebrl_actions import (
    Before,
    carry_out,
    click_at,
    hover_at,
    name_of,
    press,
    scroll,
    wait,
    write,
)
from minirl.browser.session import PageHangs, Session
from minirl.types import Call, Observation, Parsed, ToolFailure

# What each action needs, of "argument" and "element"
ACTIONS: dict[str, tuple[str, ...]] = {
    "Click": ("element",),
    "Right Click": ("element",),
    "Type": ("argument", "element"),
    "Search": ("argument", "element"),
    "Hover": ("element",),
    "Scroll Up": (),
    "Scroll Down": (),
    "Press Enter": (),
    "Switch Tab": ("argument",),
    "Select Dropdown Option": ("argument", "element"),
    "Wait": (),
}
FUNCTIONS = {"exit": "message", "go_backward": "", "go_forward": ""}
SYNONYMS = {"Go Backward": "go_backward", "Go Forward": "go_forward"}  # as the released code has them
LOADING = {"Click", "Type", "Search", "Press Enter", "Select Dropdown Option", "go_backward", "go_forward"}
SCROLLED = 2 / 3  # of the window
WAITED = 3.0  # seconds
LONGEST_ANSWER = 20_000  # characters
MOST_UNREADABLE = 20  # calls in one answer
LOOKS = 3  # attempts at one observation
_START = re.compile(r"(?P<open>(?<![\w.])(?:do|exit|go_backward|go_forward)\s*\()")
# What matters within brackets: more of them, and texts and comments, in which they mean nothing. A text that
# does not end takes all the rest, so that nothing in it is ever a call; an apostrophe in a word opens none.
_TOKEN = re.compile(
    _START.pattern + r"|(?P<bracket>\()|(?P<close>\))|#[^\n]*"
    r"|(?<!\w)[rRbBuUfF]{0,2}(?P<quote>\"\"\"|\'\'\'|\"|\')(?:\\.|(?!(?P=quote)).)*(?:(?P=quote)|\Z)",
    re.DOTALL,
)
_MEANT = re.compile(r"\w+\s*\(\s*(?:\w+\s*=|[\"'])")  # as a call, however it goes on

SYSTEM = """\
You browse the web for a person. In every round you are given the simplified HTML of what the browser's
window shows, and you choose the next action; whatever can be acted on has an id there. Earlier rounds' pages
are left out of the conversation, so write down what you will need.
{thinking}
The actions are:

do(action, argument, element)
    action: one of {actions}.
    argument: for "Type" and "Search" the text to enter ("Search" presses Enter after it), for "Select
        Dropdown Option" the option's text, for "Switch Tab" the number of the tab, the first being 0.
    element: for "Click", "Right Click", "Hover", "Type", "Search" and "Select Dropdown Option" the id of the
        element.
exit(message)
    Ends the task. If the person has asked something, message is the answer; "N/A" if the task can't be done.
go_backward()
go_forward()
    The tab's previous page, and back again.

{form}
One action in each round, and only elements that the HTML shows."""

THINKING = """\
Think first, then act: the thoughts stand between <think> and </think>, the action between <answer> and
</answer>. Begin a thought with "# Element:" to describe the element that you choose, and with "# Note:" to
keep something that the task's answer will need.
"""

FORMS = {
    True: """\
For example:
<think> # Element: the field for the user's name, top right </think>
<answer> do(action="Type", argument="ada", element="12") </answer>""",
    False: 'For example: do(action="Type", argument="ada", element="12")',
}

BRIEF = "Use the page to do what the user asks."


def system_prompt(brief: bool, thinking: bool, file: Path | None = None) -> str:
    """What the model is told first: ours, or a file's text. `brief` is for models that are trained on the
    format anyway and are too small to read."""
    if file is not None:
        return read_prompt(file)
    if brief:
        return BRIEF
    names = ", ".join(f'"{name}"' for name in ACTIONS)
    text = SYSTEM.replace("{actions}", names).replace("{form}", FORMS[thinking])
    return text.replace("{thinking}\n", THINKING if thinking else "")


# --- answers ------------------------------------------------------------------------------------------


def parse(text: str) -> Parsed:
    """Reads the first `<answer>` of a response, or without one all that follows its thoughts; never raises.

    >>> parse('<think> the list </think> <answer> do(action="Click", element="3") </answer>').calls
    (Call(name='Click', arguments={'element': 3}),)
    >>> parse('exit(message="42")').calls
    (Call(name='exit', arguments={'message': '42'}),)
    """
    before, answer = split(text)
    thought = before.rpartition("<think>")[2].partition("</think>")[0].strip()
    try:
        return Parsed(thought, (read_call(answer),))
    except ValueError as problem:
        return Parsed(thought, error=f"Error: invalid action, {problem}")


def split(text: str) -> tuple[str, str]:
    """What stands before a response's answer, and the answer."""
    before, opened, rest = text.partition("<answer>")
    if opened:
        return before, rest.partition("</answer>")[0]
    before, closed, after = text.rpartition("</think>")
    return before, after if closed else text


def read_call(answer: str) -> Call:
    """The last call in an answer. Raises ValueError with what is wrong with it."""
    if len(answer) > LONGEST_ANSWER:
        raise ValueError("the answer is too long")
    if not _START.search(answer):
        raise ValueError("there is no do(...), exit(...), go_backward() or go_forward()")
    last, end, unreadable = None, 0, 0
    for start, stop in sorted(_spans(answer)):
        if start < end:
            continue  # it is within the call before it
        source = answer[start:stop]
        call = _tree(source)
        if call is not None:
            last, end = (source, call), stop
            continue
        unreadable += 1
        if unreadable == MOST_UNREADABLE:
            break
        if _MEANT.match(source):  # a text in it may have lost its quotes
            end = stop
    if last is None:
        raise ValueError('the call can\'t be read; write for example do(action="Click", element="3")')
    return _checked(*_literals(*last))


def _spans(answer: str) -> Iterator[tuple[int, int]]:
    """Where what may be a call begins and ends, by its brackets; none begins in another's text or comment."""
    opened: list[tuple[int, bool]] = []  # brackets: where they begin, and whether as a call
    position = 0
    while token := (_TOKEN if opened else _START).search(answer, position):
        position = token.end()
        if token.lastgroup in ("open", "bracket"):
            opened.append((token.start(), token.lastgroup == "open"))
        elif token.lastgroup == "close":
            start, is_call = opened.pop()
            if is_call:
                yield start, position


def _tree(source: str) -> ast.Call | None:
    """A call as a syntax tree; None if it is none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's own, about a model's backslashes
            tree = ast.parse(source, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return tree if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) else None


def _literals(source: str, call: ast.Call) -> tuple[str, dict[str, str]]:
    """Name and arguments. Anything but a string or a number is refused: nothing here is evaluated."""
    assert isinstance(call.func, ast.Name)
    name = call.func.id
    order = ("action", "argument", "element") if name == "do" else ("message",)
    given = dict(zip(order, call.args, strict=False))
    if len(call.args) > len(order) or any(keyword.arg in (None, *given) for keyword in call.keywords):
        raise ValueError(f"{name} takes {', '.join(order)}, each once")
    given |= {str(keyword.arg): keyword.value for keyword in call.keywords}
    out = {}
    for key, node in given.items():
        if isinstance(node, ast.Constant) and node.value is None:
            continue
        text = _literal(source, node)
        if text is None:
            raise ValueError(f"{key} must be a text in quotes")
        out[key] = text
    return name, out


def _literal(source: str, node: ast.expr) -> str | None:
    """A text's value, or a number as it is written: 0.10 is a price. None for anything else."""
    sign = ""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        sign, node = "-", node.operand
    if not isinstance(node, ast.Constant):
        return None
    if isinstance(node.value, str) and not sign:
        return node.value
    is_number = isinstance(node.value, int | float) and not isinstance(node.value, bool)
    return sign + str(ast.get_source_segment(source, node)) if is_number else None


def _checked(name: str, given: dict[str, str]) -> Call:
    if name != "do":
        wanted = FUNCTIONS[name]
        if unknown := set(given) - {wanted}:
            raise ValueError(f"{name} has no {sorted(unknown)[0]}")
        return Call(name, {"message": given.get("message", "")} if wanted else {})
    action = given.pop("action", "")
    if action in SYNONYMS:
        return Call(SYNONYMS[action])
    if action not in ACTIONS:
        raise ValueError(f"there is no action {action[:40]!r}; the actions are {', '.join(ACTIONS)}")
    if unknown := set(given) - {"argument", "element"}:
        raise ValueError(f"do has no {sorted(unknown)[0][:40]}")
    out: dict[str, Any] = {}
    for key in ACTIONS[action]:
        if key not in given:
            raise ValueError(f"{action} needs {key}")
        is_number = key == "element" or action == "Switch Tab"
        if is_number and not re.fullmatch(r"\s*[0-9]{1,6}\s*", given[key]):
            raise ValueError(f"{key} of {action} must be a number, not {given[key][:40]!r}")
        out[key] = int(given[key]) if is_number else given[key]
    return Call(action, out)


def final_answer(call: Call) -> str | None:
    """What the agent ends the task with; None if the call is no exit."""
    return str(call.arguments["message"]) if call.name == "exit" else None


# --- the browser --------------------------------------------------------------------------------------


async def observe(session: Session) -> Observation:
    """The current tab as simplified HTML; where there are several, with a line that names them."""
    page = await _page(session)
    tabs, active = await session.tabs()
    if len(tabs) > 1:
        titles = [repr(escape(title, quote=False)) for _, title in tabs]  # else they could look like the page
        names = [f"{i} {title}{' (current)' if i == active else ''}" for i, title in enumerate(titles)]
        page = f"Tabs: {', '.join(names)}\n{page}"
    url, title = tabs[active]
    return Observation("", page_text=page, url=url, title=title)


async def _page(session: Session) -> str:
    """A page that hangs is revived; one that is just being replaced refuses, so the next one is asked."""
    for _ in range(LOOKS - 1):
        try:
            return await simplified_html.observe(session)
        except PageHangs:
            await session.revive()
        except ToolFailure:
            with contextlib.suppress(ToolFailure):
                await session.settle()
    return await simplified_html.observe(session)


async def act(session: Session, call: Call) -> str:
    """Carries out one action and says what it did. Raises ToolFailure with the reason if it could not be
    done, and BrowserFault if the browser itself is gone."""
    if call.name == "exit":
        return "exit: task ended."
    if call.name in LOADING:
        await session.pace()
    return await carry_out(session, call, _run)


async def _run(session: Session, call: Call) -> str:
    arguments = call.arguments
    match call.name:
        case "Click" | "Right Click":
            point = await simplified_html.locate(session, arguments["element"])
            button = "right" if call.name == "Right Click" else "left"
            answer, notes = await click_at(session, point, button)
            return f"clicked {name_of(answer)}.{notes}"
        case "Hover":
            answer, notes = await hover_at(
                session, await simplified_html.locate(session, arguments["element"])
            )
            return f"the pointer is over {name_of(answer)}.{notes}"
        case "Type" | "Search":
            return await _type(session, arguments, enter=call.name == "Search")
        case "Select Dropdown Option":
            return await _select(session, arguments)
        case "Scroll Up" | "Scroll Down":
            direction = call.name.removeprefix("Scroll ").lower()
            return await scroll(session, {"direction": direction, "amount": SCROLLED})
        case "Press Enter":
            return await _enter(session)
        case "Switch Tab":
            await session.switch_tab(arguments["argument"])
        case "Wait":
            return await wait(session, WAITED)
        case "go_backward":
            if not await session.back():
                raise ToolFailure("there is no earlier page in this tab")
        case "go_forward":
            if not await session.forward():
                raise ToolFailure("there is no later page in this tab")
    await session.settle()
    return f"now at {session.page.url}."


async def _type(session: Session, arguments: dict[str, Any], enter: bool) -> str:
    """Clicks into the field and replaces what it holds; an empty text empties it."""
    await click_at(session, await simplified_html.locate(session, arguments["element"]))
    if arguments["argument"]:
        said = await write(session, arguments["argument"])
    else:
        before = Before(session)
        await session.arm()
        for key in ("ControlOrMeta+A", "Backspace"):
            await session.do(session.page.keyboard.press(key))
        said = f"emptied the field.{before.notes(await session.settle(quiet=True))}"
    return f"{said} {await _enter(session)}" if enter else said


async def _enter(session: Session) -> str:
    return await press(session, {"keys": ["Enter"], "is_hotkey": False, "presses": 1})


async def _select(session: Session, arguments: dict[str, Any]) -> str:
    """Chooses by text in a list; one that a script has drawn is opened, and its entries have ids then."""
    point = await simplified_html.locate(session, arguments["element"])
    focused = await session.do(session.page.evaluate(FOCUS_LIST, list(point)))
    if focused is not True:
        raise ToolFailure("this is no dropdown list of the browser's; click it and then its option")
    return await write(session, arguments["argument"])


FOCUS_LIST = """([x, y]) => {
  const e = document.elementFromPoint(x, y);
  const list = e && e.closest('select');
  if (!list) return false;
  list.focus();
  return document.activeElement === list;
}"""
