"""AutoWebWorld's agent: it sees a screenshot, and answers with a thought and one action.

    <think> why </think><action>{'action': 'click', 'coordinate': [412, 96]}</action>

Points are pixels of the picture as the model's processor has scaled it, by another factor in x than in y.
openwebrl_actions.py carries the actions out. Paper: appendix D.2 and section 5.1 (all thoughts and actions
stay, of the screenshots the newest). Deviations:
1. The history is the conversation itself, as it was sampled, not a text in the newest message.
2. `type_text` replaces what the field holds.
3. Where the page itself can't scroll, its largest list does.
4. What UI-TARS-1.5 says, which table 6 compares, is read too:
   `Thought: why Action: click(start_box='(412,96)')`, in the same pixels.
5. What UI-Venus, OpenCUA and TongUI say, which table 3 compares, too, is not.
6. A served model's points are pixels of the screenshot itself, or with --sampler.points processor as above.
"""

import ast
import re
from collections.abc import Callable, Sequence
from contextlib import suppress

from minirl.agents import openwebrl_actions as tools
from minirl.agents.webagent_r1 import syntax_tree
from minirl.config import AgentConfig
from minirl.context import ChatFormat, UserMessage
from minirl.package_files import table_of, text_of
from minirl.types import Call, Feedback, Fields, Json, Observation, Parsed, Session, Task, ToolFailure

PROMPT = text_of("agents/prompts/autowebworld.md").rstrip("\n")
POINTS = ("coordinate", "from", "to")  # arguments that are points; the others are texts
TABLES = table_of("agents/autowebworld.toml")
TOOLS = TABLES["tools"]
UI_TARS = TABLES["ui_tars"]
ACTIONS = {name: tuple(tool["arguments"]) for name, tool in TOOLS.items()}  # and what each takes
ACTION = re.compile(r"<action>(.*?)</action>", re.DOTALL)


def parse(text: str) -> Parsed:
    """Read the first `<action>` of a response and the thought before it; never raises.

    >>> parse("<think>on</think><action>{'action': 'scroll', 'value': down}</action>").calls
    (Call(name='scroll', arguments={'value': 'down'}, problem=''),)
    """
    thought = ""
    if "</think>" in text:
        thought = text.partition("</think>")[0].rpartition("<think>")[2].strip()
    match = ACTION.search(text)
    try:
        if match:
            source = match[1].rpartition("<action>")[2]  # a thought may have named the tag
            return Parsed(thought, (read_call(_literal(source.strip())),))
        before, named, source = text.partition("Action:")
        if not named:
            raise ValueError("there is no <action>...</action>")
        # As UI-TARS says it, up to an empty line
        calls = read_ui_tars(source.split("\n\n")[0].strip())
        return Parsed(before.rpartition("Thought:")[2].strip(), calls)
    except ValueError as problem:
        return Parsed(thought, error=f"Error: invalid action, {problem!s:.300}", kind="invalid action")


def read_call(given: Fields) -> Call:
    """Return an action's dictionary as a call. ValueError with the fault."""
    name = str(given.get("action"))
    if name not in ACTIONS:
        raise ValueError(f"there is no {name!r}; the actions are {', '.join(ACTIONS)}")
    arguments = {}
    for key in ACTIONS[name]:
        # str raises ValueError for a number of over 4,300 digits, which no file of trajectories could hold
        match key in POINTS, given.get(key):
            case True, [int() | float(), int() | float()] as point if tools.no_fraction(point) and str(point):
                arguments[key] = point
            case False, str() | int() | float() as text:
                arguments[key] = str(text)
            case _:
                raise ValueError(f"{name} needs {key}: a text, or [x, y] in pixels")
    return Call(name, arguments)


def read_ui_tars(source: str) -> tuple[Call, ...]:
    """Return an action of UI-TARS as calls. ValueError with the fault. Of a box its middle is meant; a text
    that ends with a new line is confirmed by Enter."""
    action = _literal(source)
    name = str(action.get("action"))
    if name not in UI_TARS:  # one of ours, without its tags
        return (read_call(action),)
    known = UI_TARS[name]
    given: Json = {"action": known["action"], "text": ""}
    for their_key, key in known["arguments"].items():
        if their_key not in action:
            continue
        value = str(action[their_key])
        if key in POINTS:
            numbers = [float(digits) for digits in re.findall(r"-?\d{1,6}(?:\.\d+)?", value)]
            if len(numbers) in (2, 4):
                given[key] = [(numbers[0] + numbers[-2]) / 2, (numbers[1] + numbers[-1]) / 2]
        else:
            given[key] = " + ".join(value.split()) if their_key == "key" else value
    text = given["text"]
    given["text"] = text.removesuffix("\n")
    call = read_call(given)
    if name != "type" or not text.endswith("\n"):
        return (call,)
    enter = Call("press_enter")
    return (call, enter) if given["text"] else (enter,)


def _literal(source: str) -> Json:
    """Return the dictionary that a Python literal, or JSON, spells out. Words without quotation marks are
    read as texts, as in the paper's list; nothing is evaluated."""
    with suppress(ValueError, TypeError, RecursionError, MemoryError):
        match syntax_tree(source):
            case ast.Call(ast.Name(name), [], keywords):  # as UI-TARS writes them
                arguments = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in keywords}
                return {"action": name} | arguments
            case ast.Dict(values=values) as dictionary:
                for n, value in enumerate(values):
                    if isinstance(value, ast.Name):
                        values[n] = ast.Constant(value.id)
                return ast.literal_eval(dictionary)
    raise ValueError("it can't be read; write it like {'action': 'press_enter'}")


def action_of(goal: Fields) -> Json | None:
    """Return the action that does what a recorded step tells, its points the middles of the boxes; None where
    the record lacks something, as the released ones do texts.

    >>> action_of({"action": "click", "bbox": [10, 20, 30, 40]})
    {'action': 'click', 'coordinate': [20, 30]}
    """
    known = dict(goal)
    if goal["action"] == "answer":
        known.setdefault("text", "done")
    for point, name in (("coordinate", "bbox"), ("from", "bbox"), ("to", "to")):
        box = goal.get(name)
        if box:
            known[point] = [(box[0] + box[2]) // 2, (box[1] + box[3]) // 2]
    names = ("action", *ACTIONS[goal["action"]])
    if not known.keys() >= set(names):
        return None
    return {name: known[name] for name in names}


def spell(thought: str, action: Fields) -> str:
    return f"<think>{thought}</think><action>{dict(action)}</action>"


class AutoWebWorldAgent:
    """The agent, as `types.Agent`."""

    message_format: ChatFormat | None = None  # the model's own chat template
    final_call: tuple[str, str] = ("answer", "text")
    parse = staticmethod(parse)
    visible_feedback = tools.visible_feedback

    def __init__(self, config: AgentConfig, resized: Callable[[int, int], tuple[int, int]]):
        self.config = config
        self.resized = resized  # width and height as the model's processor changes them
        self.system = "Use the browser, one action at a time." if config.brief else PROMPT
        if config.prompt:
            self.system = config.prompt.read_text("utf-8")

    async def observe(self, session: Session) -> Observation:
        tabs, active = await session.tabs()
        return Observation("", image=await session.screenshot(), url=tabs[active][0])

    def user_message(
        self, n: int, instruction: str, observation: Observation, feedback: Feedback
    ) -> UserMessage:
        opening = f"Task: {instruction}\n\n" if n == 0 else ""
        lines = "".join(line + "\n" for line in feedback)
        return UserMessage(f"{opening}{lines}Step {n + 1}\n", "", "")

    async def act(self, session: Session, call: Call) -> str:
        """Carry out one action; return what it did. Raises as openwebrl_actions.act does."""
        width = round(session.width * session.scale)
        height = round(session.height * session.scale)
        return await tools.act(session, self.tool_call(call, width, height))

    def tool_call(self, call: Call, width: int, height: int) -> Call:
        """Return the tool that does an action on a screenshot of this size: of 1280 x 720, which Qwen2.5-VL
        sees as 1288 x 728, `[644, 182]` is 500 and 250 of 1000. ToolFailure for a point beside it."""
        picture_width, picture_height = self.resized(width, height)
        tool = TOOLS[call.name]
        arguments = {}
        for name, value in call.arguments.items():
            if name in POINTS:
                x, y = value
                if not (0 <= x <= picture_width and 0 <= y <= picture_height):
                    raise ToolFailure(f"the picture ends at [{picture_width}, {picture_height}]")
                value = [x * tools.SCALE / picture_width, y * tools.SCALE / picture_height]
            arguments[tool["arguments"][name]] = value
        if tool["tool"] == "press_keys":
            arguments["keys"] = [call.arguments.get("value", "Enter")]
        return Call(tool["tool"], arguments)

    def say(self, thought: str, action: Fields, size: Sequence[int]) -> str:
        """Return the response that takes an action whose points are pixels of a screenshot of this size."""
        width, height = self.resized(*size)
        scaled = dict(action)
        for key in scaled.keys() & POINTS:
            x, y = action[key]
            scaled[key] = [round(x * (width / size[0])), round(y * (height / size[1]))]
        return spell(thought, scaled)

    def history(self, task: Task) -> list[str]:
        steps = task.meta.get("past", ())
        return [self.say(thought, action, task.meta["size"]) for thought, action in steps]
