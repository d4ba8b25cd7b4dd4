"""WebAgent-R1's agent: simplified HTML in, one action out, as a call in a small Python-like language.

    <think> why </think> <answer> do(action="Click", element="3") </answer>

simplified_html.py shows the page, openwebrl_actions.py has the pointer and the keyboard. Paper: table 6,
section 2.1 and appendix A. Deviations from the released code:
1. All 14 actions of the table exist (five are refused there).
2. Elements are acted on where they are now.
3. A failed action is told to the model.
4. Of several calls the last counts, also where `<answer>` is not closed. It is parsed, never run as Python.
5. Table 6's system prompt is in our words.
6. A text in quotes may have line breaks.
"""

import ast
import re
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from jinja2 import Template

from minirl.agents import openwebrl_actions as tools
from minirl.agents import simplified_html
from minirl.config import AgentConfig
from minirl.context import ChatFormat, UserMessage
from minirl.package_files import table_of, text_of
from minirl.types import (
    Call,
    Feedback,
    Observation,
    PageHangs,
    Parsed,
    Point,
    Session,
    Task,
    ToolFailure,
)

TABLES = table_of("agents/webagent_r1.toml")
ACTIONS = TABLES["actions"]
FUNCTIONS = TABLES["functions"]
WEBRL = ChatFormat(**TABLES["webrl"])
WEBRL_USER = "<|eot_id|><|start_header_id|>user<|end_header_id|>\n"
PROMPT = text_of("agents/prompts/webagent_r1.md")
LEFT_OUT = "** Simplified html **"  # stands for an earlier round's page
MAX_CALL_CHARS = 20_000
MAX_STARTS = 10  # of calls in an answer that are tried, the last ones
_START = re.compile(r"(?<![\w.])(?:do|exit|go_backward|go_forward)\(")


def system_prompt(brief: bool, thinking: bool, file: Path | None = None) -> str:
    """Return the system prompt: a file's text, or ours. `brief` is for models that are too small to read."""
    if file:
        return file.read_text("utf-8")
    if brief:
        return "Use the page to do what the user asks."
    names = ", ".join(f'"{name}"' for name in ACTIONS)
    return Template(PROMPT, trim_blocks=True).render(actions=names, thinking=thinking)


def parse(text: str) -> Parsed:
    """Read the first `<answer>` of a response, or without one all that follows its thoughts; never raises.

    >>> parse('<think> the list </think> <answer> do(action="Click", element="3") </answer>').calls
    (Call(name='Click', arguments={'element': 3}, problem=''),)
    """
    before, answer = split(text)
    thought = before.rpartition("<think>")[2].partition("</think>")[0].strip()
    try:
        return Parsed(thought, (read_call(answer),))
    except ValueError as problem:
        return Parsed(thought, error=f"Error: invalid action, {problem!s:.300}", kind="invalid action")


def split(text: str) -> tuple[str, str]:
    """Return the part of a response before its answer, and the answer."""
    before, opened, rest = text.partition("<answer>")
    if opened:
        return before, rest.partition("</answer>")[0]
    before, closed, after = text.rpartition("</think>")
    return before, after if closed else text


def read_call(answer: str) -> Call:
    """Return the last call in an answer. ValueError with the fault."""
    starts = [match.start() for match in _START.finditer(answer)]
    if not starts:
        raise ValueError("there is no do(...), exit(...), go_backward() or go_forward()")
    end = answer.rfind(")") + 1
    # Two calls do not parse as one: the first start that parses is the last call's, whatever its texts hold
    for start in starts[-MAX_STARTS:]:
        match syntax_tree(answer[start:end]):
            case ast.Call(ast.Name(function), [], keywords):
                return _checked(function, keywords)
    raise ValueError('the call can\'t be read; write for example do(action="Click", element="3")')


def _checked(function: str, keywords: Sequence[ast.keyword]) -> Call:
    """Return a call whose arguments are literals that its action takes. Nothing in it is evaluated."""
    given = {}
    for keyword in keywords:
        key = str(keyword.arg)
        if key not in FUNCTIONS[function]:
            raise ValueError(f"{function} has no {key}")
        try:
            value = ast.literal_eval(keyword.value)
        except (ValueError, TypeError, RecursionError, MemoryError):
            raise ValueError(f"{key} must be a text in quotes") from None
        if value is not None:  # None is as good as left out
            given[key] = str(value)
    if function != "do":
        return Call(function, {key: given.get(key, "") for key in FUNCTIONS[function]})
    return _action(given)


def _action(given: dict[str, str]) -> Call:
    """Return the action that `do` names, with the arguments that it needs."""
    action = given.get("action", "").title()
    if action in ("Go Backward", "Go Forward"):  # as the released code has them
        return Call(action.lower().replace(" ", "_"))
    if action not in ACTIONS:
        raise ValueError(f"there is no action {action!r}; the actions are {', '.join(ACTIONS)}")
    arguments = {}
    for key in ACTIONS[action]:
        if key not in given:
            raise ValueError(f"{action} needs {key}")
        arguments[key] = given[key]
        if key == "element" or action == "Switch Tab":
            arguments[key] = int(given[key])
    return Call(action, arguments)


def syntax_tree(source: str) -> ast.expr | None:
    """Return a model's words as Python would read them with the line breaks in its texts escaped, or None.
    Nothing is evaluated."""
    if len(source) > MAX_CALL_CHARS:
        return None
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's own, about backslashes
        return ast.parse(tools.escape_breaks(source), mode="eval").body
    return None


async def observe(session: Session, boxes: bool = True, listeners: bool = False) -> Observation:
    """Return the current tab as simplified_html.observe does; where there are several, with a line that names
    them."""

    async def look(session: Session) -> str:
        try:
            return await simplified_html.observe(session, boxes, listeners)
        except PageHangs:
            await session.revive()
        except ToolFailure:  # the page is just being replaced
            await session.settle()
        return await simplified_html.observe(session, boxes, listeners)

    session.look = look
    page = session.seen = await look(session)
    tabs, active = await session.tabs()
    if len(tabs) > 1:
        titles = [
            repr(simplified_html.harmless(title)) for _, title in tabs
        ]  # else they could look like the page
        titles[active] += " (current)"
        numbered = ", ".join(f"{i} {title}" for i, title in enumerate(titles))
        page = f"Tabs: {numbered}\n{page}"
    return Observation("", page_text=page, url=tabs[active][0])


async def act(session: Session, call: Call) -> str:
    """Carry out one action; return what it did. Raises as openwebrl_actions.act does."""
    if call.name == "exit":
        return f"Succeed: task marked as done. Response: {call.arguments['message']}"
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
            await session.travel(1)
        case "Switch Tab":
            await session.switch_tab(argument)
            await session.settle()
    return f"`{action}` executed."


async def _on_element(session: Session, action: str, point: Point, argument: str) -> str:
    if action == "Select Dropdown Option":
        # A list that a script has drawn is opened by a click instead, and its entries have ids then
        problem = await simplified_html.ask(session, "focusList", *point)
        if problem:
            raise ToolFailure(str(problem))
        return await tools.write(session, argument)

    mouse = session.page.mouse
    is_click = action in ("Click", "Right Click")
    async with tools.watched(session, point, is_click=is_click) as effect:
        if action == "Hover":
            await session.do(mouse.move(*point))
        else:
            await session.do(mouse.click(*point, button="right" if action == "Right Click" else "left"))
    if is_click or action == "Hover":
        return f"`{action}` on {effect.name} executed.{effect.notes}"

    if argument:
        result = await tools.write(session, argument)
    else:
        result = await tools.press_keys(session, ["ControlOrMeta+a", "Backspace"])
    if action == "Search":
        result += " " + await tools.press_keys(session, ["Enter"])
    return result


class WebAgentR1Agent:
    """The text agent, as `types.Agent`. `config.answers` "webrl" is the conversation of WebRL's Llama
    checkpoints: one completion, in which the task stands in for the first page; before it stands what the
    file `config.prompt` holds, headers included, if there is one."""

    final_call: tuple[str, str] = ("exit", "message")
    parse = staticmethod(parse)
    act = staticmethod(act)
    visible_feedback = tools.visible_feedback

    def __init__(self, config: AgentConfig):
        self.config = config
        self.is_webrl = config.answers == "webrl"
        self.system = ""
        if config.prompt or not self.is_webrl:
            self.system = system_prompt(config.brief, config.answers == "thinking", config.prompt)
        self.message_format = WEBRL if self.is_webrl else None  # None: the model's own chat template

    async def observe(self, session: Session) -> Observation:
        return await observe(session, self.config.boxes, self.config.numbered == "listeners")

    def user_message(
        self, n: int, instruction: str, observation: Observation, feedback: Feedback
    ) -> UserMessage:
        opening = f"Task Instruction: {instruction}\n\n" if n == 0 else ""
        lines = "".join(line + "\n\n" for line in feedback)
        head = f"{opening}Round {n}\n\n{WEBRL_USER if self.is_webrl else ''}{lines}"
        return UserMessage(
            head, observation.page_text, "", instruction if self.is_webrl and n == 0 else LEFT_OUT
        )

    def history(self, task: Task) -> Sequence[str]:
        return ()
