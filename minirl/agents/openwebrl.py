"""OpenWebRL's agent: it sees screenshots, and answers with calls of 13 browser tools.

Holds what the model is told, and how its response is read; minirl/agents/openwebrl_actions.py carries the
calls out. Paper: section 3.1 and appendix A.3. Names are those of the released code, data and checkpoints
(`point_2d`, `message`, ...); those of the paper's table 6 (`x`, `y`, `text`, ...) are understood as well.
Deviations:
1. Coordinates are 0-1000 of the viewport everywhere (the released texts mix in pixels).
2. Calls of one response stop at the first failure or at `done`.
"""

import inspect
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from minirl.agents import openwebrl_actions
from minirl.agents.openwebrl_actions import SCALE, TABLES, TOOL_FUNCTIONS
from minirl.config import AgentConfig
from minirl.context import ChatFormat, UserMessage
from minirl.types import Call, Observation, Parsed, Task

PROMPT = Path(__file__).with_name("prompts").joinpath("openwebrl.md").read_text("utf-8").rstrip("\n")
NO_THOUGHT = "no </think> in the response. Think, close with </think>, then call a tool."
_NUMBER = r"-?\d{1,9}(?:\.\d{1,9})?"
_CALL = re.compile(r"<tool_call>(.*?)(</tool_call>|\Z)", re.DOTALL)  # an open one ends the search


# The arguments of every tool by its name: kind and default, which is `...` where the argument is required
TOOLS: dict[str, dict[str, tuple[str, Any]]] = {}
for _name, _function in TOOL_FUNCTIONS.items():
    TOOLS[_name] = {}
    _, *_parameters = inspect.signature(_function).parameters.values()
    for _parameter in _parameters:
        _default = ... if _parameter.default is _parameter.empty else _parameter.default
        TOOLS[_name][_parameter.name] = (TABLES["kinds"][_parameter.annotation], _default)


def schemas() -> list[dict[str, Any]]:
    """Return the tools as JSON schemas, in the shape of chat templates and OpenAI-compatible servers."""
    out = []
    for name, arguments in TOOLS.items():
        properties = {}
        required = []
        for argument, (kind, default) in arguments.items():
            properties[argument] = TABLES["schemas"].get(kind, {"type": kind})
            if default is ...:
                required.append(argument)
        parameters = {"type": "object", "properties": properties, "required": required}
        description = inspect.getdoc(TOOL_FUNCTIONS[name])
        function = {"name": name, "description": description, "parameters": parameters}
        out.append({"type": "function", "function": function})
    return out


def read_prompt(file: Path) -> str:
    """Return a prompt file's text. ValueError if it can't be read."""
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--prompt {file} can't be read: {error}") from None


def system_prompt(brief: bool, file: Path | None = None) -> str:
    """Return the system prompt: a file's text, or ours, with schemas in place of `{tools}`. `brief` is for
    models that are too small to read them. ValueError if the file can't be read or has no place for them."""
    if brief and file is None:
        return "Use the browser."
    text = read_prompt(file) if file else PROMPT
    if "{tools}" not in text:
        raise ValueError(f"--prompt {file}: write {{tools}} where the tools' schemas are to stand")
    lines = [json.dumps(schema, ensure_ascii=False) for schema in schemas()]
    return text.replace("{tools}", "\n".join(lines))


def parse(text: str) -> Parsed:
    """Read `<think>...</think>` and one or more `<tool_call>{json}</tool_call>`; never raises. The opening
    `<think>` may be missing, because Qwen3-VL-Thinking's template writes it into the prompt.

    >>> parse('go</think><tool_call>{"name": "go_back", "arguments": {}}</tool_call>').calls
    (Call(name='go_back', arguments={}),)
    """
    before, closed, rest = text.partition("</think>")
    if not closed:
        return Parsed(error=f"Error: {NO_THOUGHT}")
    thought = before.rpartition("<think>")[2].strip()
    blocks = [block for block, end in _CALL.findall(rest) if end]
    if not blocks:
        return Parsed(thought, error="Error: no complete <tool_call>...</tool_call> after </think>.")
    try:
        return Parsed(thought, tuple(read_call(block) for block in blocks))
    except ValueError as problem:
        return Parsed(thought, error=f"Error: {problem}")


def read_call(block: str) -> Call:
    """Return one call's JSON, checked against the tool's arguments. ValueError with the fault."""
    try:
        record = json.loads(block)
    except (ValueError, RecursionError):
        raise ValueError("a tool call is not valid JSON") from None
    if not isinstance(record, dict) or not isinstance(record.get("name"), str):
        raise ValueError('a tool call needs the form {"name": ..., "arguments": {...}}')
    name = record["name"]
    if name not in TOOLS:
        raise ValueError(f"there is no tool {name[:40]!r}; the tools are {', '.join(TOOLS)}")
    given = record.get("arguments", {})
    if not isinstance(given, dict):
        raise ValueError(f"the arguments of {name} must be an object")

    given = in_code_names(name, given)
    expected = TOOLS[name]
    for argument in given:
        if argument not in expected:
            raise ValueError(f"{name} has no argument {argument[:40]!r}")
    arguments = {}
    for argument, (kind, default) in expected.items():
        if given.get(argument) is not None:
            arguments[argument] = _read(given[argument], kind, f"{name}.{argument}")
        elif default is ...:
            raise ValueError(f"{name} needs the argument {argument}")
        elif default is not None:
            arguments[argument] = default
    return Call(name, arguments)


def in_code_names(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool's arguments with the paper's names (x, y) replaced by the released code's (point_2d)."""
    out = dict(given)
    for argument, paper_names in TABLES["paper_names"].get(name, {}).items():
        if argument in out or not out.keys() >= set(paper_names):
            continue
        values = [out.pop(paper_name) for paper_name in paper_names]
        out[argument] = values if len(values) > 1 else values[0]
        if argument == "clicks":
            out[argument] = TABLES["click_types"].get(str(values[0]), values[0])
    return out


def _read(value: Any, kind: str, where: str) -> Any:
    """Return an argument as its kind, read leniently where the meaning is clear."""
    match kind, value:
        case "integer", _:
            return int(_number(value, where))
        case "number", _:
            return _number(value, where)
        case "point", [x, y]:
            return [_number(x, where), _number(y, where)]
        case "boolean", str() if value.lower() in ("true", "false"):
            return value.lower() == "true"
        case "strings", str():
            return [value]
        case "strings", [_, *_] if all(isinstance(text, str) for text in value):
            return value
        case ("boolean", bool()) | ("string", str()):
            return value
    raise ValueError(f"{where} must be {TABLES['in_words'][kind]}")


def _number(value: Any, where: str) -> float:
    if isinstance(value, str) and re.fullmatch(rf"\s*{_NUMBER}\s*", value):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{where} must be a number")
    if not 0 <= value <= SCALE:  # the limit of other numbers, too; refuses NaN
        raise ValueError(f"{where} must lie between 0 and {SCALE}")
    return value


class OpenWebRLAgent:
    """The visual agent, as `types.Agent`. ValueError if `config.prompt` is no usable file."""

    message_format: ChatFormat | None = None  # the model's own chat template
    final_call: tuple[str, str] = ("done", "response")
    parse = staticmethod(parse)
    observe = staticmethod(openwebrl_actions.observe)
    act = staticmethod(openwebrl_actions.act)

    def __init__(self, config: AgentConfig):
        self.config = config
        self.system = system_prompt(config.brief, config.prompt)

    def user_message(
        self, n: int, instruction: str, observation: Observation, feedback: tuple[str, ...]
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

    def visible_feedback(self, parsed: Parsed, feedback: tuple[str, ...]) -> tuple[str, ...]:
        return feedback if self.config.feedback or parsed.error else ()  # errors even in the ablation
