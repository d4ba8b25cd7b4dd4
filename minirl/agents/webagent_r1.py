"""WebAgent-R1's agent: simplified HTML in, one action out, as a call in a small Python-like language.

    <think> why </think> <answer> do(action="Click", element="3") </answer>

simplified_html.py shows the page, openwebrl_actions.py has the pointer and the keyboard. Paper: table 6 and
section 3.1. Deviations from the released code:
1. All 14 actions of the table exist (five are refused there).
2. Elements are acted on where they are now.
3. A failed action is told to the model.
4. Arguments may stand unnamed, not one too many; a decimal number is taken as written (0.10).
5. Of several calls the last counts, also where `<answer>` is not closed. None is run.
"""

import ast
import re
import tomllib
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

from jinja2 import Template

from minirl.agents import openwebrl_actions as tools
from minirl.agents import simplified_html
from minirl.agents.openwebrl import read_prompt
from minirl.config import AgentConfig
from minirl.context import ChatFormat, UserMessage
from minirl.types import Call, Observation, PageHangs, Parsed, Session, Task, ToolFailure

FILES = Path(__file__).parent
TABLES = tomllib.loads(FILES.joinpath("webagent_r1.toml").read_text("utf-8"))
ACTIONS = TABLES["actions"]
FUNCTIONS = TABLES["functions"]
WEBRL = ChatFormat(**TABLES["webrl"])
WEBRL_WITH_SYSTEM = replace(WEBRL, **TABLES["webrl_with_system"])
WEBRL_USER = "<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
PROMPT = FILES.joinpath("prompts/webagent_r1.md").read_text("utf-8")
LEFT_OUT = "** Simplified html **"  # stands for an earlier round's page
NAMES = {name.lower(): name for name in ACTIONS}
SYNONYMS = {"go backward": "go_backward", "go forward": "go_forward"}  # as the released code has them
MAX_CALL_CHARS = 20_000
MAX_LOOKS = 3  # attempts at one observation
UNREADABLE = 'the call can\'t be read; write for example do(action="Click", element="3")'
NO_CALL = "there is no do(...), exit(...), go_backward() or go_forward()"
_START = re.compile(r"(?<![\w.])(?:do|exit|go_backward|go_forward)\(")
# A text, which may lack its end, or a bracket
_PIECE = re.compile(r"\"(?:[^\"\\]|\\.?)*+(?:\"|\Z)|'(?:[^'\\]|\\.?)*+(?:'|\Z)|[()]", re.DOTALL)


def system_prompt(brief: bool, thinking: bool, file: Path | None = None) -> str:
    """Return the system prompt: a file's text, or ours. `brief` is for models that are too small to read."""
    if file is not None:
        return read_prompt(file)
    if brief:
        return "Use the page to do what the user asks."
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
    """Return the last call in an answer. ValueError with the fault."""
    source = ""
    start = _START.search(answer)
    while start:
        end = _end_of_call(answer, start.end())
        source = answer[start.start() : end]
        start = _START.search(answer, end)
    if not source:
        raise ValueError(NO_CALL)
    return _checked(source)


def _end_of_call(answer: str, start: int) -> int:
    """Return where the bracket closes that opened before `start`. Brackets and calls in a text are none."""
    depth = 1
    for piece in _PIECE.finditer(answer, start):
        if piece[0] == "(":
            depth += 1
        elif piece[0] == ")":
            depth -= 1
        if depth == 0:
            return piece.end()
    raise ValueError(UNREADABLE)


def _checked(source: str) -> Call:
    """Return a call whose arguments are literals that its action takes. Nothing in it is evaluated."""
    call = syntax_tree(source)
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name):
        raise ValueError(UNREADABLE)
    function = call.func.id
    parameters = FUNCTIONS[function]
    nodes = dict(zip(parameters, call.args, strict=False))
    keywords = [keyword.arg for keyword in call.keywords]
    if len(call.args) > len(parameters) or None in keywords or nodes.keys() & keywords:
        raise ValueError(f"{function} takes {', '.join(parameters) or 'nothing'}, each once")
    nodes |= {str(keyword.arg): keyword.value for keyword in call.keywords}

    given = {}
    for key, node in nodes.items():
        value = _literal(source, key, node)
        if value is not None:  # None is as good as left out
            given[key] = value
    unknown = sorted(given.keys() - parameters)
    if unknown:
        raise ValueError(f"{function} has no {unknown[0][:40]}")
    if function != "do":
        return Call(function, {key: given.get(key, "") for key in parameters})
    return _action(given)


def _action(given: dict[str, str]) -> Call:
    """Return the action that `do` names, with the arguments that it needs."""
    name = given.get("action", "").lower()
    if name in SYNONYMS:
        return Call(SYNONYMS[name])
    if name not in NAMES:
        raise ValueError(f"there is no action {name[:40]!r}; the actions are {', '.join(ACTIONS)}")
    action = NAMES[name]
    arguments: dict[str, Any] = {}
    for key in ACTIONS[action]:
        if key not in given:
            raise ValueError(f"{action} needs {key}")
        arguments[key] = given[key]
        if key == "element" or action == "Switch Tab":
            if not re.fullmatch(r"\s*[0-9]{1,6}\s*", given[key]):
                raise ValueError(f"{key} of {action} must be a number, not {given[key][:40]!r}")
            arguments[key] = int(given[key])
    return Call(action, arguments)


def syntax_tree(source: str) -> ast.expr | None:
    """Return a model's words as Python would read them, or None. Nothing is evaluated."""
    if len(source) > MAX_CALL_CHARS:
        return None
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's own, about backslashes
        return ast.parse(source, mode="eval").body
    return None


def _literal(source: str, key: str, node: ast.expr) -> str | None:
    """Return a text's value, a number as text (0.10 as it is written: a price), or None. Else ValueError."""
    with suppress(ValueError, TypeError, RecursionError, MemoryError):
        value = ast.literal_eval(node)
        if value is None or isinstance(value, str):
            return value
        if type(value) is int:
            return str(value)
        if type(value) is float:
            return ast.get_source_segment(source, node)
    raise ValueError(f"{key} must be a text in quotes")


async def observe(session: Session) -> Observation:
    """Return the current tab as simplified HTML; where there are several, with a line that names them."""
    page = await _look(session)
    tabs, active = await session.tabs()
    if len(tabs) > 1:
        titles = [repr(escape(title, quote=False)) for _, title in tabs]  # else they could look like the page
        titles[active] += " (current)"
        numbered = ", ".join(f"{i} {title}" for i, title in enumerate(titles))
        page = f"Tabs: {numbered}\n{page}"
    return Observation("", page_text=page, url=tabs[active][0])


async def _look(session: Session) -> str:
    """Return the page, looking again where it hangs, or is just being replaced."""
    for _ in range(MAX_LOOKS - 1):
        try:
            return await simplified_html.observe(session)
        except ToolFailure as failure:
            with suppress(ToolFailure):
                await (session.revive() if isinstance(failure, PageHangs) else session.settle())
    return await simplified_html.observe(session)


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

    mouse = session.page.mouse
    async with tools.watched(session, point, is_click=action != "Hover") as effect:
        if action == "Hover":
            await session.do(mouse.move(*point))
        else:
            await session.do(mouse.click(*point, button="right" if action == "Right Click" else "left"))
    if action == "Hover":
        return f"the pointer is over {effect.name}.{effect.notes}"
    if action in ("Click", "Right Click"):
        return f"clicked {effect.name}.{effect.notes}"

    if argument:
        result = await tools.write(session, argument)
    else:
        result = await tools.press_keys(session, ["ControlOrMeta+A", "Backspace"])
    if action == "Search":
        result += " " + await tools.press_keys(session, ["Enter"])
    return result


class WebAgentR1Agent:
    """The text agent, as `types.Agent`. `config.answers` "webrl" is the conversation of WebRL's Llama
    checkpoints: one completion, in which the task stands in for the first page."""

    final_call: tuple[str, str] = ("exit", "message")
    parse = staticmethod(parse)
    observe = staticmethod(observe)
    act = staticmethod(act)

    def __init__(self, config: AgentConfig):
        self.config = config
        self.is_webrl = config.answers == "webrl"
        self.system = ""
        if config.prompt or not self.is_webrl:
            self.system = system_prompt(config.brief, config.answers == "thinking", config.prompt)
        self.message_format = None  # the model's own chat template
        if self.is_webrl:
            self.message_format = WEBRL_WITH_SYSTEM if config.prompt else WEBRL

    def user_message(
        self, n: int, instruction: str, observation: Observation, feedback: tuple[str, ...]
    ) -> UserMessage:
        opening = f"Task Instruction: {instruction}\n\n" if n == 0 else ""
        lines = "".join(line + "\n\n" for line in feedback)
        head = f"{opening}Round {n}\n\n{WEBRL_USER if self.is_webrl else ''}{lines}"
        return UserMessage(
            head, observation.page_text, "", instruction if self.is_webrl and n == 0 else LEFT_OUT
        )

    def history(self, task: Task) -> Sequence[str]:
        return ()

    def visible_feedback(self, parsed: Parsed, feedback: tuple[str, ...]) -> tuple[str, ...]:
        return tools.visible_feedback(self.config, parsed, feedback)
