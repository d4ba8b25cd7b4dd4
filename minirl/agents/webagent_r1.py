"""WebAgent-R1's agent: simplified HTML in, one action out, as a call in a small Python-like language.

    <think> why </think> <answer> do(action="Click", element="3") </answer>

simplified_html.py shows the page, openwebrl_actions.py has the pointer and the keyboard. Paper: table 6 and
section 3.1. Deviations from the released code: all 14 actions of the table exist (five were refused there);
elements are acted on where they are now; a failed action is told to the model. Arguments may stand unnamed,
not one too many; a decimal number is taken as written (0.10); of several calls the last counts, whatever
stands around it, also where `<answer>` is not closed. None is run.
"""

import ast
import contextlib
import re
import tomllib
import warnings
from collections.abc import Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

from jinja2 import Template

from minirl.agents import openwebrl_actions as tools
from minirl.agents import simplified_html
from minirl.agents.openwebrl import read_prompt
from minirl.browser.session import PageHangs
from minirl.config import AgentConfig
from minirl.context import ChatFormat, Words
from minirl.types import Call, Observation, Parsed, Session, Task, ToolFailure

FILES = Path(__file__).parent
TABLES = tomllib.loads(FILES.joinpath("webagent_r1.toml").read_text("utf-8"))
ACTIONS, FUNCTIONS, WEBRL = TABLES["actions"], TABLES["functions"], ChatFormat(**TABLES["webrl"])
WEBRL_WITH_SYSTEM = replace(WEBRL, **TABLES["webrl_with_system"])
WEBRL_USER = "<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
PROMPT = FILES.joinpath("prompts/webagent_r1.md").read_text("utf-8")
LEFT_OUT = "** Simplified html **"  # stands for an earlier round's page
NAMES = {name.lower(): name for name in ACTIONS}
SYNONYMS = {"go backward": "go_backward", "go forward": "go_forward"}  # as the released code has them
LONGEST_ANSWER, MOST_READ = 20_000, 400_000  # characters, of an answer and in all attempts to read its calls
UNREADABLE = 'the call can\'t be read; write for example do(action="Click", element="3")'
NO_CALL = "there is no do(...), exit(...), go_backward() or go_forward()"
LOOKS = 3  # attempts at one observation
_START = re.compile(r"(?<![\w.])(?:do|exit|go_backward|go_forward)\s*\(")
_CLOSING = re.compile(r"\)")
_TEXT = re.compile(r"[\"#=]|(?<!\w)'")  # where a text, a comment or an argument may begin; not "it's"


def system_prompt(brief: bool, thinking: bool, file: Path | None = None) -> str:
    """Return the system prompt: a file's text, or ours. `brief` is for models that are too small to read."""
    if file is not None or brief:
        return read_prompt(file) if file else "Use the page to do what the user asks."
    names = ", ".join(f'"{name}"' for name in ACTIONS)
    return Template(PROMPT, trim_blocks=True).render(actions=names, thinking=thinking)


def parse(text: str) -> Parsed:
    """Read the first `<answer>` of a response, or without one all that follows its thoughts; never raises.

    >>> parse('<think> the list </think> <answer> do(action="Click", element="3") </answer>').calls
    (Call(name='Click', arguments={'element': 3}),)
    """
    before, answer = split(text)
    thought = before.rpartition("<think>")[2].partition("</think>")[0].strip()
    try:
        return Parsed(thought, (read_call(answer),))
    except ValueError as problem:
        return Parsed(thought, error=f"Error: invalid action, {problem}")


def split(text: str) -> tuple[str, str]:
    """Return the part of a response before its answer, and the answer."""
    before, opened, rest = text.partition("<answer>")
    if opened:
        return before, rest.partition("</answer>")[0]
    before, closed, after = text.rpartition("</think>")
    return before, after if closed else text


def read_call(answer: str) -> Call:
    """Return the last call in an answer. ValueError with the fault. A call ends at the first ")" up to which
    it is correct Python. One that can't be read may hold the next in a text: the answer is refused."""
    if len(answer) > LONGEST_ANSWER:
        raise ValueError("the answer is too long")
    last, position, unread, room = None, 0, 0, MOST_READ
    end = answer.rfind(")") + 1  # a search behind it for each "do(" would take quadratic time
    while start := _START.search(answer, position):
        if unread and _TEXT.search(answer, unread, start.start()):
            raise ValueError(UNREADABLE)
        position = unread = start.end()
        for bracket in _CLOSING.finditer(answer, start.end(), end):
            source = answer[start.start() : bracket.end()]
            room -= len(source)
            if room < 0:
                raise ValueError(UNREADABLE)
            if call := _tree(source):
                last, position, unread = (source, call), bracket.end(), 0
                break
    if last is None:
        raise ValueError(UNREADABLE if unread else NO_CALL)
    return _checked(*last)


def _tree(source: str) -> ast.Call | None:
    with contextlib.suppress(SyntaxError, ValueError, RecursionError, MemoryError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's own, about a model's backslashes
        tree = ast.parse(source, mode="eval").body
        return tree if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) else None


def _checked(source: str, call: ast.Call) -> Call:
    """Return a call whose arguments are literals that its action takes. Nothing in it is evaluated."""
    assert isinstance(call.func, ast.Name)
    takes = FUNCTIONS[name := call.func.id]
    nodes = dict(zip(takes, call.args, strict=False))
    if len(call.args) > len(takes) or any(keyword.arg in (None, *nodes) for keyword in call.keywords):
        raise ValueError(f"{name} takes {', '.join(takes) or 'nothing'}, each once")
    nodes |= {str(keyword.arg): keyword.value for keyword in call.keywords}
    values = {key: _literal(source, key, node) for key, node in nodes.items()}
    given = {key: value for key, value in values.items() if value is not None}  # as good as left out
    if unknown := sorted(set(given) - set(takes)):
        raise ValueError(f"{name} has no {unknown[0][:40]}")
    if name != "do":
        return Call(name, {key: given.get(key, "") for key in takes})
    said = given.get("action", "").lower()
    if said in SYNONYMS:
        return Call(SYNONYMS[said])
    if said not in NAMES:
        raise ValueError(f"there is no action {said[:40]!r}; the actions are {', '.join(ACTIONS)}")
    action, out = NAMES[said], {}
    for key in ACTIONS[action]:
        if key not in given:
            raise ValueError(f"{action} needs {key}")
        is_number = key == "element" or action == "Switch Tab"
        if is_number and not re.fullmatch(r"\s*[0-9]{1,6}\s*", given[key]):
            raise ValueError(f"{key} of {action} must be a number, not {given[key][:40]!r}")
        out[key] = int(given[key]) if is_number else given[key]
    return Call(action, out)


def _literal(source: str, key: str, node: ast.expr) -> str | None:
    """Return a text's value, a number as text (0.10 as it is written: a price), or None. Else ValueError."""
    with contextlib.suppress(ValueError, TypeError, RecursionError, MemoryError):
        value = ast.literal_eval(node)
        if value is None or isinstance(value, str):
            return value
        if type(value) in (int, float):
            return str(value) if type(value) is int else ast.get_source_segment(source, node)
    raise ValueError(f"{key} must be a text in quotes")


async def observe(session: Session) -> Observation:
    """Return the current tab as simplified HTML; where there are several, with a line that names them."""
    for left in reversed(range(LOOKS)):
        try:
            page = await simplified_html.observe(session)
            break
        except ToolFailure as failure:  # it hangs, or is just being replaced
            if not left:
                raise
            with contextlib.suppress(ToolFailure):
                await (session.revive() if isinstance(failure, PageHangs) else session.settle())
    tabs, active = await session.tabs()
    if len(tabs) > 1:
        titles = [repr(escape(title, quote=False)) for _, title in tabs]  # else they could look like the page
        titles[active] += " (current)"
        page = f"Tabs: {', '.join(f'{i} {title}' for i, title in enumerate(titles))}\n{page}"
    return Observation("", page_text=page, url=tabs[active][0])


async def act(session: Session, call: Call) -> str:
    """Carry out one action; return what it did. Raises as openwebrl_actions.act does."""
    if call.name == "exit":
        return "exit: task ended."
    return await tools.carry_out(session, call, _run(session, **call.arguments, action=call.name))


async def _run(session: Session, action: str, argument: Any = "", element: int | None = None) -> str:
    if element is not None:
        return await _on_element(session, action, await simplified_html.locate(session, element), argument)
    match action:
        case "Scroll Up" | "Scroll Down":
            return await tools.scroll(session, action.removeprefix("Scroll ").lower(), 2 / 3)
        case "Press Enter":
            return await tools.press_keys(session, ["Enter"])
        case "Wait":
            return await tools.wait(session)
        case "go_backward":
            return await tools.go_back(session)
        case "go_forward":
            if not await session.travel(1):
                raise ToolFailure("there is no later page in this tab")
        case "Switch Tab":
            await session.switch_tab(argument)
    await session.settle()
    return f"now at {session.page.url}."


async def _on_element(session: Session, action: str, point: tuple[float, float], argument: str) -> str:
    if action == "Select Dropdown Option":
        # A list that a script has drawn is opened by a click instead, and its entries have ids then
        if await simplified_html.ask(session, "focusList", *point) is not True:
            raise ToolFailure("this is no dropdown list of the browser's; click it and then its option")
        return await tools.write(session, argument)
    mouse, button = session.page.mouse, "right" if action == "Right Click" else "left"
    async with tools.watched(session, point, is_click=action != "Hover") as effect:
        await session.do(mouse.move(*point) if action == "Hover" else mouse.click(*point, button=button))
    if action in ("Hover", "Click", "Right Click"):
        done = "the pointer is over" if action == "Hover" else "clicked"
        return f"{done} {effect.name}.{effect.notes}"
    emptying = ["ControlOrMeta+A", "Backspace"]
    result = await (tools.write(session, argument) if argument else tools.press_keys(session, emptying))
    return f"{result} {await tools.press_keys(session, ['Enter'])}" if action == "Search" else result


class WebAgentR1Agent:
    """The text agent, as `types.Agent`. `config.history` "webrl" is the conversation of WebRL's Llama
    checkpoints: one completion, in which the task stands in for the first page."""

    parse = staticmethod(parse)
    observe = staticmethod(observe)
    act = staticmethod(act)

    def __init__(self, config: AgentConfig):
        self.config, self.is_webrl = config, config.history == "webrl"
        self.system, self.message_format = "", None  # the model's own chat template
        if config.prompt or not self.is_webrl:
            self.system = system_prompt(config.brief, config.thinking, config.prompt)
        if self.is_webrl:
            self.message_format = WEBRL_WITH_SYSTEM if config.prompt else WEBRL

    def words(self, n: int, instruction: str, seen: Observation, feedback: tuple[str, ...]) -> Words:
        opening = f"Task Instruction: {instruction}\n\n" if n == 0 else ""
        lines = "".join(line + "\n\n" for line in feedback)
        head = f"{opening}Round {n}\n\n{WEBRL_USER if self.is_webrl else ''}{lines}"
        return Words(head, seen.page_text, "", instruction if self.is_webrl and n == 0 else LEFT_OUT)

    def past(self, task: Task) -> Sequence[str]:
        return ()

    def final_answer(self, call: Call) -> str | None:
        return str(call.arguments["message"]) if call.name == "exit" else None

    def visible_feedback(self, parsed: Parsed, feedback: tuple[str, ...]) -> tuple[str, ...]:
        told = self.config.feedback or parsed.error
        return tuple(line for line in feedback if told or tools.FAILED in line)
