"""OpenWebRL's agent: it sees screenshots, and answers with calls of 13 browser tools.

Holds what the model is told, and how its response is read; minirl/agents/openwebrl_actions.py carries the
calls out. Paper: section 4.1 and appendix A.3. Names are those of the released code, data and checkpoints
(`point_2d`, `message`, ...); those of the paper's table 6 (`x`, `y`, `text`, ...) are understood as well.
Deviations:
1. Coordinates are 0-1000 of the viewport everywhere (the released texts mix in pixels).
2. Calls of one response stop at the first failure or at `done`.
3. A point beside the picture fails, and so does one in fractions of it, as [0.5, 0.3]; the released code
   clicks there.
4. A call may have line breaks in its texts and a fence around it, or be written as Qwen3.5's are:
   `<function=NAME><parameter=NAME>value</parameter></function>`. A model whose chat template writes calls so
   is shown this form.
5. Where the chat template has closed the thought already, a response needs none.
"""

import inspect
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, StrictStr, ValidationError, create_model

from minirl.agents import openwebrl_actions
from minirl.agents.openwebrl_actions import SCALE, TABLES, TOOL_FUNCTIONS, shorten
from minirl.config import AgentConfig
from minirl.context import CALL, ChatFormat, UserMessage, calls_in_tags
from minirl.package_files import text_of
from minirl.types import Call, Feedback, Fields, Json, Observation, Parsed, Session, Task, ToolFailure

PROMPT = text_of("agents/prompts/openwebrl.md").rstrip("\n")
SCHEMA_KEYS = ("type", "items", "minItems", "maxItems")  # in the released order, without title and default
_FUNCTION = re.compile(r"\s*<function=([^<>]*)>")
_ARGUMENT = re.compile(r"<parameter=([^<>]*)>\n?(.*?)\n?(?:</parameter>|</function>\s*\Z|\Z)", re.DOTALL)
FORM = '{"name": "click", "arguments": {"point_2d": [500, 120]}}'
FORM_IN_TAGS = "<function=click><parameter=point_2d>[500, 120]</parameter></function>"
THOUGHT = "<think>\nyour reasoning\n</think>\n"  # in the form that PROMPT asks for


class CallRecord(BaseModel):
    """A call as the model writes it. Whether it can be run is another question."""

    name: StrictStr
    arguments: Any = {}


class Arguments(BaseModel):
    """A tool's arguments, read leniently where the meaning is clear: "500" is a number, and 500 a text."""

    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)


# What every tool takes, by its name, as the signature of its function says
TOOLS: dict[str, type[Arguments]] = {}
for _name, _function in TOOL_FUNCTIONS.items():
    _fields: Json = {}
    _, *_parameters = inspect.signature(_function, eval_str=True).parameters.values()
    for _parameter in _parameters:
        _default = ... if _parameter.default is _parameter.empty else _parameter.default
        _fields[_parameter.name] = (_parameter.annotation, _default)
    TOOLS[_name] = create_model(_name, __base__=Arguments, **_fields)


def schemas() -> list[Json]:
    """Return the tools as JSON schemas, in the shape of chat templates and OpenAI-compatible servers."""
    out = []
    for name, model in TOOLS.items():
        schema = model.model_json_schema()
        properties = {}
        for argument, described in schema["properties"].items():
            described = described.get("anyOf", [described])[0]  # without the null of what is optional
            properties[argument] = {key: described[key] for key in SCHEMA_KEYS if key in described}
        function = {
            "name": name,
            "description": inspect.getdoc(TOOL_FUNCTIONS[name]),
            "parameters": {
                "type": "object",
                "properties": properties,
                "required": schema.get("required", []),
            },
        }
        out.append({"type": "function", "function": function})
    return out


def system_prompt(brief: bool, file: Path | None = None, chat: ChatFormat | None = None) -> str:
    """Return the system prompt: a file's text, or ours, with schemas in place of `{tools}`, and calls as this
    chat's model writes them. `brief` is for models that are too small to read them."""
    if brief and not file:
        return "Use the browser."
    text = file.read_text("utf-8") if file else PROMPT
    if chat and chat.tags:
        text = calls_in_tags(text)
    if chat and chat.closing:
        text = text.replace(THOUGHT, "")
    return text.replace("{tools}", "\n".join(json.dumps(schema, ensure_ascii=False) for schema in schemas()))


def parse(text: str, form: str = FORM) -> Parsed:
    """Read `<think>...</think>` and one or more `<tool_call>{json}</tool_call>`; never raises. At least one
    call must be JSON with a name (appendix A.4) or in tags; else there is an error, which shows `form`. The
    opening `<think>` may be missing: Qwen3-VL-Thinking's template writes it into the prompt.

    >>> parse('go</think><tool_call>{"name": "go_back", "arguments": {}}</tool_call>').calls
    (Call(name='go_back', arguments={}, problem=''),)
    """
    before, closed, rest = text.partition("</think>")
    if not closed:
        return Parsed(
            error="Error: no </think> in the response. Think, close with </think>, then call a tool.",
            kind="no </think>",
        )
    thought = before.rpartition("<think>")[2].strip()
    blocks = [block for block, end in CALL.findall(rest) if end]
    if not blocks:
        return Parsed(
            thought,
            error="Error: no complete <tool_call>...</tool_call> after </think>.",
            kind="no complete <tool_call>",
        )
    calls = tuple(read_call(block) for block in blocks)
    if all(call.problem for call in calls):
        return Parsed(
            thought,
            error=f"Error: a tool call is {calls[0].problem}. Write it like {form}.",
            kind="not valid JSON",
        )
    return Parsed(thought, calls)


def read_call(block: str) -> Call:
    """Return one call: with all arguments of its tool if it can be carried out, else as it is."""
    in_tags = _FUNCTION.match(block)
    try:
        if in_tags:
            record = CallRecord(name=in_tags[1], arguments=dict(_ARGUMENT.findall(block)))
        else:
            source = block.strip().strip("`").removeprefix("json")
            record = CallRecord.model_validate_json(openwebrl_actions.escape_breaks(source))
    except ValidationError as error:
        return Call("tool_call", problem=f"not valid JSON with a name ({first_fault(error)})")
    given = record.arguments
    call = Call(shorten(record.name), given if isinstance(given, dict) else {"arguments": given})
    try:
        return checked(call)
    except ToolFailure:
        return call  # `act` says why


def first_fault(error: ValidationError) -> str:
    """Return where the first fault is and what; of a point, what it should be."""
    fault = error.errors()[0]
    place = ".".join(str(key) for key in fault["loc"])
    frame = ""
    if "point" in place and "equal" not in fault["msg"]:
        frame = f"; a point is [x, y] from 0 to {SCALE}"
    return f"{place or 'call'}: {fault['msg']}{frame}"


def checked(call: Call) -> Call:
    """Return a call with the arguments that its tool takes. ToolFailure with the fault."""
    if call.problem:
        raise ToolFailure(f"it is {call.problem}")
    if call.name not in TOOLS:
        raise ToolFailure(f"there is no such tool; the tools are {', '.join(TOOLS)}")
    try:
        arguments = TOOLS[call.name].model_validate(in_code_names(call.arguments))
    except ValidationError as error:
        raise ToolFailure(shorten(first_fault(error))) from None
    return Call(call.name, arguments.model_dump(exclude_none=True))


def can_run(call: Call) -> bool:
    """Return True if a call's tool exists and takes its arguments."""
    try:
        checked(call)
    except ToolFailure:
        return False
    return True


async def act(session: Session, call: Call) -> str:
    """Run one call; return what it did. Raises as openwebrl_actions.act does, also if it can't be run."""
    return await openwebrl_actions.act(session, checked(call))


def in_code_names(given: Fields) -> Json:
    """Return arguments without those that are null, and with the paper's names (x, y) replaced by the
    released code's (point_2d)."""
    out = {}
    for name, value in given.items():
        if name == "click_type":
            value = TABLES["click_types"].get(str(value), value)
        if value is not None:
            out[TABLES["paper_names"].get(name, name)] = value
    for point, (x, y) in TABLES["paper_points"].items():
        if x in out and y in out:
            out[point] = [out.pop(x), out.pop(y)]
    return out


class OpenWebRLAgent:
    """The visual agent, as `types.Agent`."""

    message_format: ChatFormat | None = None  # the model's own chat template
    final_call: tuple[str, str] = ("done", "response")
    observe = staticmethod(openwebrl_actions.observe)
    act = staticmethod(act)

    def __init__(self, config: AgentConfig, chat: ChatFormat | None = None):
        self.config = config
        self.system = system_prompt(config.brief, config.prompt, chat)
        self.form = FORM_IN_TAGS if chat and chat.tags else FORM

    def parse(self, text: str) -> Parsed:
        return parse(text, self.form)

    def user_message(
        self, n: int, instruction: str, observation: Observation, feedback: Feedback
    ) -> UserMessage:
        if n == 0:
            head = f"<user_request>\n{instruction}\n</user_request>\n\n"
            tail = "</observation>"
        else:
            lines = "".join(line + "\n" for line in feedback)
            head = f"<tool_response>\n{lines}\n" if lines else "<tool_response>\n"
            tail = "</observation>\n</tool_response>"
        page = observation.page_text + "\n" if observation.page_text else ""
        return UserMessage(f"{head}<observation>\n{observation.text}\n", page, tail)

    def history(self, task: Task) -> Sequence[str]:
        return ()

    def visible_feedback(self, parsed: Parsed, feedback: Feedback) -> Feedback:
        return feedback if self.config.feedback or parsed.error else ()  # errors even in the ablation
