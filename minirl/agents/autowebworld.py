"""AutoWebWorld's agent: it sees a screenshot, and answers with a thought and one action.

    <think> why </think><action>{'action': 'click', 'coordinate': [412, 96]}</action>

Points are pixels of the picture as the model's processor has scaled it, by another factor in x than in y.
openwebrl_actions.py carries the actions out. Paper: appendix D.2 and section 5.1 (all thoughts and actions
stay, of the screenshots the newest). Deviations: the history is the conversation itself, as it was sampled,
not a text in the newest message; `type_text` replaces what the field holds; where the page itself can't
scroll, its largest list does; of several actions the first counts. None is run. What UI-TARS-1.5 says, which
table 6 compares, is read too: `Thought: why Action: click(start_box='(412,96)')`, in the same pixels.
"""

import ast
import re
import tomllib
import warnings
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Any

from minirl.agents import openwebrl_actions as tools
from minirl.agents.openwebrl import read_prompt
from minirl.config import AgentConfig
from minirl.context import ChatFormat, Words
from minirl.types import Call, Observation, Parsed, Session, Task, ToolFailure

FILES = resources.files("minirl.agents")
PROMPT = FILES.joinpath("prompts/autowebworld.md").read_text("utf-8").rstrip("\n")
POINTS = ("coordinate", "from", "to")  # arguments that are points; the others are texts
TABLES = tomllib.loads(FILES.joinpath("autowebworld.toml").read_text("utf-8"))
TOOLS, UI_TARS = TABLES["tools"], TABLES["ui_tars"]
ACTIONS = {name: tuple(tool["arguments"]) for name, tool in TOOLS.items()}  # and what each takes
LONGEST_ACTION = 20_000  # characters
ACTION = re.compile(r"<action>(.*?)</action>", re.DOTALL)


def parse(text: str) -> Parsed:
    """Read the first `<action>` of a response and the thought before it; never raises.

    >>> parse("<think>on</think><action>{'action': 'scroll', 'value': down}</action>").calls
    (Call(name='scroll', arguments={'value': 'down'}),)
    """
    thought = text.partition("</think>")[0].rpartition("<think>")[2].strip() if "</think>" in text else ""
    try:
        if (found := ACTION.search(text)) is None:
            before, named, said = text.partition("Action:")  # as UI-TARS says it, up to an empty line
            if not named:
                raise ValueError("there is no <action>...</action>")
            return Parsed(
                before.rpartition("Thought:")[2].strip(), read_ui_tars(said.split("\n\n")[0].strip())
            )
        inside = found[1].rpartition("<action>")[2]  # a thought may have named the tag
        return Parsed(thought, (read_call(_literal(inside.strip())),))
    except ValueError as problem:
        return Parsed(thought, error=f"Error: invalid action, {problem}")


def read_call(given: Mapping[str, Any]) -> Call:
    """Return an action's dictionary as a call. ValueError with the fault."""
    name, arguments = given.get("action"), {}
    if not isinstance(name, str) or name not in ACTIONS:
        raise ValueError(f"there is no {str(name)[:40]!r}; the actions are {', '.join(ACTIONS)}")
    for key in ACTIONS[name]:
        value = given.get(key)
        if key in POINTS:
            numbers = value if isinstance(value, list) else []
            if [type(n) in (int, float) and 0 <= n < 1e6 for n in numbers] != [True, True]:  # refuses NaN
                raise ValueError(f"{name} needs {key} as [x, y], two numbers of pixels")
        elif value is None or isinstance(value, list | dict):
            raise ValueError(f"{name} needs {key} as a text")
        arguments[key] = value if key in POINTS else str(value)
    return Call(name, arguments)


def read_ui_tars(source: str) -> tuple[Call, ...]:
    """Return an action of UI-TARS as calls. ValueError with the fault. Of a box its middle is meant; a text
    that ends with a new line is confirmed by Enter."""
    said = _literal(source)
    known = UI_TARS.get(str(said["action"]), {"action": said["action"], "arguments": {}})
    name, names = known["action"], known["arguments"]
    given: dict[str, Any] = {"action": name, "text": ""}
    for key in said.keys() & names.keys():
        value, numbers = str(said[key]), [int(n) for n in re.findall(r"\d{1,6}", str(said[key]))]
        if names[key] in POINTS and len(numbers) in (2, 4):
            given[names[key]] = [(numbers[0] + numbers[-2]) / 2, (numbers[1] + numbers[-1]) / 2]
        elif names[key] not in POINTS:
            given[names[key]] = " + ".join(value.split()) if key == "key" else value
    call = read_call(given | {"text": given["text"].removesuffix("\n")})
    return (call, Call("press_enter")) if name == "type_text" and given["text"].endswith("\n") else (call,)


def _literal(source: str) -> dict[str, Any]:
    """Return the dictionary that a Python literal, or JSON, spells out; of a list of them the first. Words
    without quotation marks are read as texts, as in the paper's list; nothing is evaluated."""
    try:
        if len(source) > LONGEST_ACTION:
            raise ValueError
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python's own, about a model's backslashes
            node = ast.parse(source, mode="eval").body
        while isinstance(node, ast.List | ast.Tuple) and node.elts:
            node = node.elts[0]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):  # as UI-TARS writes them
            return {"action": node.func.id} | {str(k.arg): ast.literal_eval(k.value) for k in node.keywords}
        if not isinstance(node, ast.Dict) or None in node.keys:
            raise ValueError
        words = [v.id if isinstance(v, ast.Name) else ast.literal_eval(v) for v in node.values]
        return {ast.literal_eval(key): word for key, word in zip(node.keys, words, strict=True) if key}
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise ValueError("it can't be read; write it like {'action': 'press_enter'}") from None


def action_of(goal: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the action that does what a recorded step tells, its points the middles of the boxes; None where
    the record lacks something, as the released ones do texts.

    >>> action_of({"action": "click", "bbox": [10, 20, 30, 40]})
    {'action': 'click', 'coordinate': [20, 30]}
    """
    known = {"text": "done"} | dict(goal) if goal["action"] == "answer" else dict(goal)
    for point, name in (("coordinate", "bbox"), ("from", "bbox"), ("to", "to")):
        if box := goal.get(name):
            known[point] = [(box[0] + box[2]) // 2, (box[1] + box[3]) // 2]
    wanted = ("action", *ACTIONS[goal["action"]])
    return {name: known[name] for name in wanted} if known.keys() >= set(wanted) else None


def spell(thought: str, action: Mapping[str, Any]) -> str:
    return f"<think>{thought}</think><action>{dict(action)}</action>"


class AutoWebWorldAgent:
    """The agent, as `types.Agent`. ValueError if `config.prompt` can't be read."""

    message_format: ChatFormat | None = None  # the model's own chat template
    parse = staticmethod(parse)

    def __init__(self, config: AgentConfig, resized: Callable[[int, int], tuple[int, int]]):
        self.config, self.resized = config, resized  # width and height as the model's processor changes them
        usual = "Use the browser, one action at a time." if config.brief else PROMPT
        self.system = read_prompt(config.prompt) if config.prompt else usual

    async def observe(self, session: Session) -> Observation:
        tabs, active = await session.tabs()
        return Observation("", image=await session.screenshot(), url=tabs[active][0])

    def words(self, n: int, instruction: str, seen: Observation, feedback: tuple[str, ...]) -> Words:
        told = f"Task: {instruction}\n\n" if n == 0 else ""
        return Words("".join([told, *(line + "\n" for line in feedback), f"Step {n + 1}\n"]), "", "")

    async def act(self, session: Session, call: Call) -> str:
        """Carry out one action; return what it did. Raises as openwebrl_actions.act does."""
        return await tools.act(session, self.tool_call(call, session.width, session.height))

    def tool_call(self, call: Call, width: int, height: int) -> Call:
        """Return the tool that does an action on a page of this size: of 1280 x 720, which Qwen2.5-VL sees as
        1288 x 728, `[644, 182]` is 500 and 250 of 1000. ToolFailure for a point beside the picture."""
        tool, (across, down) = TOOLS[call.name], self.resized(width, height)
        given: dict[str, Any] = {"keys": ["Enter"]} if call.name == "press_enter" else {}
        for name, value in call.arguments.items():
            if name in POINTS:
                x, y = value
                if x > across or y > down:
                    raise ToolFailure(f"the picture ends at [{across}, {down}]")
                value = [x * tools.SCALE / across, y * tools.SCALE / down]
            given[tool["arguments"][name]] = value
        if call.name == "hotkey":
            given |= {"keys": [key.strip() for key in given["keys"].split("+")], "is_hotkey": True}
        return Call(tool["tool"], given)

    def say(self, thought: str, action: Mapping[str, Any], size: Sequence[int]) -> str:
        """Return the response that takes an action whose points are pixels of a screenshot of this size."""
        scales = [to / of for to, of in zip(self.resized(*size), size, strict=True)]
        spelled = {
            key: [round(a * s) for a, s in zip(value, scales, strict=True)] if key in POINTS else value
            for key, value in action.items()
        }
        return spell(thought, spelled)

    def past(self, task: Task) -> list[str]:
        steps = task.meta.get("past", ())
        return [self.say(thought, action, task.meta["size"]) for thought, action in steps]

    def final_answer(self, call: Call) -> str | None:
        return str(call.arguments["text"]) if call.name == "answer" else None

    def visible_feedback(self, parsed: Parsed, feedback: tuple[str, ...]) -> tuple[str, ...]:
        told = self.config.feedback or parsed.error
        return tuple(line for line in feedback if told or tools.FAILED in line)
