"""OpenWebRL's 13 browser tools: what the model is told of them, and how its response is read.

Stands between the policy and minirl/agents/openwebrl_actions.py, which carries the calls out. Paper:
section 3.1 and appendix
A.3. Names and arguments are those of the released code (`point_2d`, `message`, ...), which released data and
checkpoints use; the paper's table 6 has others (`x`, `y`, `text`, ...), which are understood as well, and
shown with `--agent.names paper`. Deviations: coordinates are 0-1000 of the viewport everywhere, in the schema
and in feedback as well (the released texts mix in pixels); calls of one response stop at the first failure
or at `done`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from minirl.types import Call, Parsed

SCALE = 1000  # coordinates run from 0 to SCALE on both axes
Names = Literal["code", "paper"]


@dataclass(frozen=True)
class Tool:
    """A tool as the model sees it: `arguments` maps a name to (kind, default); `...` means required."""

    description: str
    arguments: Mapping[str, tuple[str, Any]]


TOOLS: dict[str, Tool] = {
    "click": Tool(
        "Click at a point of the page.",
        {"point_2d": ("point", ...), "clicks": ("integer", 1), "button": ("string", "left")},
    ),
    "write": Tool("Replace the text of the focused field.", {"message": ("string", ...)}),
    "press_keys": Tool(
        "Press keys one after the other, or together as a hotkey.",
        {"keys": ("strings", ...), "is_hotkey": ("boolean", False), "presses": ("integer", 1)},
    ),
    "scroll": Tool(
        "Scroll the page, or the area under a point, by a share (0-1) of the viewport.",
        {"direction": ("string", "down"), "amount": ("number", 0.5), "point_2d": ("point", None)},
    ),
    "wait": Tool("Let the page settle for some seconds.", {"seconds": ("number", 3)}),
    "done": Tool("End the task with a final answer.", {"response": ("string", ...)}),
    "goto_url": Tool("Open an address in the current tab.", {"url": ("string", ...)}),
    "go_back": Tool("Go back in the current tab's history.", {}),
    "new_tab": Tool("Open an empty tab.", {}),
    "switch_tab": Tool("Make another tab the current one.", {"tab_index": ("integer", ...)}),
    "close_tab": Tool("Close the current tab.", {}),
    "drag": Tool(
        "Drag from one point to another.",
        {"start_point_2d": ("point", ...), "end_point_2d": ("point", ...), "steps": ("integer", 10)},
    ),
    "hover": Tool("Move the pointer to a point.", {"point_2d": ("point", ...)}),
}

# The paper's names, where they differ. A point is two numbers there, and clicks are counted in words.
PAPER_NAMES: dict[str, dict[str, tuple[str, ...]]] = {
    "click": {"point_2d": ("x", "y"), "clicks": ("click_type",)},
    "hover": {"point_2d": ("x", "y")},
    "drag": {"start_point_2d": ("x1", "y1"), "end_point_2d": ("x2", "y2")},
    "scroll": {"point_2d": ("x", "y")},
    "write": {"message": ("text",)},
    "switch_tab": {"tab_index": ("index",)},
    "done": {"response": ("answer",)},
}
CLICK_TYPES = {"single": 1, "double": 2, "triple": 3}

_JSON_KINDS = {
    "point": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2},
    "strings": {"type": "array", "items": {"type": "string"}},
}


def schemas(names: Names = "code") -> list[dict[str, Any]]:
    """The tools as JSON schemas, in the shape that chat templates and OpenAI-compatible servers take."""
    out = []
    for name, tool in TOOLS.items():
        properties: dict[str, Any] = {}
        required: list[str] = []
        for argument, (kind, default) in tool.arguments.items():
            shown = {argument: _JSON_KINDS.get(kind, {"type": kind})}
            if names == "paper" and argument in PAPER_NAMES.get(name, {}):
                others = PAPER_NAMES[name][argument]
                kind = "number" if len(others) == 2 else kind
                shown = {other: {"type": kind} for other in others}
                if argument == "clicks":
                    shown = {others[0]: {"type": "string", "enum": [*CLICK_TYPES]}}
            properties |= shown
            required += [*shown] if default is ... else []
        parameters = {"type": "object", "properties": properties, "required": required}
        function = {"name": name, "description": tool.description, "parameters": parameters}
        out.append({"type": "function", "function": function})
    return out


def read_prompt(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--prompt {file} can't be read: {error}") from None


def system_prompt(brief: bool, names: Names = "code", file: Path | None = None) -> str:
    """What the model is told first: ours, or a file's text with the schemas in place of `{tools}`.

    `brief` leaves out the schemas: for models that are trained on the format anyway and are too small to
    read. ValueError if the file can't be read or has no place for the tools.
    """
    tools = "\n".join(json.dumps(schema, ensure_ascii=False) for schema in schemas(names))
    if file is not None:
        text = read_prompt(file)
        if "{tools}" not in text:
            raise ValueError(f"--prompt {file}: write {{tools}} where the tools' schemas are to stand")
        return text.replace("{tools}", tools)
    if brief:
        return "Use the browser."
    return (
        "You complete the user's request in a web browser that you operate through tools. Every turn you see "
        "the open tabs and a screenshot of the current one. Think first, then call one or more tools; they "
        "run in the order given, and you are told what each did.\n\n"
        f"Points are [x, y] with 0 at the left or top and {SCALE} at the right or bottom edge of the "
        "screenshot. Check in the feedback and in the next screenshot that an action had the effect you "
        "wanted; if it did not, try another way. When the request is fulfilled, or you are sure that it "
        "can't be, call `done` with the complete answer.\n\n"
        f"<tools>\n{tools}\n</tools>\n\n"
        "Answer in this form:\n<think>\nyour reasoning\n</think>\n"
        '<tool_call>\n{"name": "the tool", "arguments": {"argument": "value"}}\n</tool_call>'
    )


# --- parsing ---------------------------------------------------------------------------------------

_POINT = re.compile(r"\s*[\[(]?\s*(-?\d{1,9}(?:\.\d{1,9})?)\s*,\s*(-?\d{1,9}(?:\.\d{1,9})?)\s*[\])]?\s*")
_CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)


def parse(text: str) -> Parsed:
    """Reads `<think>...</think>` and one or more `<tool_call>{json}</tool_call>`; never raises.

    The opening `<think>` may be missing, because Qwen3-VL-Thinking's template writes it into the prompt.

    >>> parse('go</think><tool_call>{"name": "go_back", "arguments": {}}</tool_call>').calls
    (Call(name='go_back', arguments={}),)
    """
    thought, closed, rest = text.partition("</think>")
    if not closed:
        return Parsed(
            error="Error: no </think> in the response. Think, close with </think>, then call a tool."
        )
    thought = thought.rpartition("<think>")[2].strip()
    # up to the last closing tag: an opening one without it would be searched to the end, each anew
    blocks = _CALL.findall(rest[: rest.rfind("</tool_call>") + len("</tool_call>")])
    if not blocks:
        return Parsed(thought, error="Error: no complete <tool_call>...</tool_call> after </think>.")
    calls = []
    for block in blocks:
        try:
            calls.append(read_call(block))
        except ValueError as problem:
            return Parsed(thought, error=f"Error: {problem}")
    return Parsed(thought, tuple(calls))


def final_answer(call: Call) -> str | None:
    """What the agent ends the task with; None if the call is not `done`."""
    return str(call.arguments["response"]) if call.name == "done" else None


def read_call(block: str) -> Call:
    """One call's JSON, checked against the tool's arguments. Raises ValueError with what is wrong."""
    data = _json(block)
    if not isinstance(data, dict) or not isinstance(data.get("name"), str):
        raise ValueError('a tool call needs the form {"name": ..., "arguments": {...}}')
    name, given = data["name"], data.get("arguments", {})
    if name not in TOOLS:
        raise ValueError(f"there is no tool {name[:40]!r}; the tools are {', '.join(TOOLS)}")
    if isinstance(given, str):  # as some servers' APIs have them
        given = _json(given)
    if not isinstance(given, dict):
        raise ValueError(f"the arguments of {name} must be an object")
    given = in_code_names(name, given)
    expected = TOOLS[name].arguments
    unknown = [a for a in given if a not in expected]
    if unknown:
        raise ValueError(f"{name} has no argument {unknown[0][:40]!r}")
    arguments = {}
    for argument, (kind, default) in expected.items():
        if argument in given and given[argument] is not None:
            arguments[argument] = _read(given[argument], kind, f"{name}.{argument}")
        elif default is ...:
            raise ValueError(f"{name} needs the argument {argument}")
        elif default is not None:
            arguments[argument] = default
    return Call(name, arguments)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        raise ValueError("a tool call is not valid JSON") from None
    except ValueError:  # an integer too long to convert
        raise ValueError("a tool call holds a number out of range") from None


def in_code_names(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments under the paper's names as the released code has them.

    >>> in_code_names("click", {"x": 500, "y": 120, "click_type": "double"})
    {'point_2d': [500, 120], 'clicks': 2}
    """
    out = dict(given)
    for argument, others in PAPER_NAMES.get(name, {}).items():
        if argument in out or not all(other in out for other in others):
            continue
        values = [out.pop(other) for other in others]
        value = values if len(others) == 2 else values[0]
        known = argument == "clicks" and isinstance(value, str) and value in CLICK_TYPES
        out[argument] = CLICK_TYPES[value] if known else value
    return out


def _number(value: Any, where: str, low: float, high: float) -> float:
    if isinstance(value, str) and re.fullmatch(r"\s*-?\d{1,9}(\.\d{1,9})?\s*", value):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{where} must be a number")
    if not low <= value <= high:  # also refuses NaN
        raise ValueError(f"{where} must lie between {low:g} and {high:g}")
    return value


def _read(value: Any, kind: str, where: str) -> Any:
    match kind:
        case "point":
            if isinstance(value, str) and (m := _POINT.fullmatch(value)):
                value = [m[1], m[2]]
            elif isinstance(value, dict) and set(value) == {"x", "y"}:
                value = [value["x"], value["y"]]
            if not isinstance(value, list) or len(value) != 2:
                raise ValueError(f"{where} must be [x, y]")
            return [_number(v, where, 0, SCALE) for v in value]
        case "integer":
            return int(_number(value, where, 0, 1000))
        case "number":
            return _number(value, where, 0, 1000)
        case "boolean":
            if isinstance(value, str) and value.lower() in ("true", "false"):
                value = value.lower() == "true"
            if not isinstance(value, bool):
                raise ValueError(f"{where} must be true or false")
            return value
        case "strings":
            value = [value] if isinstance(value, str) else value
            if not isinstance(value, list) or not value or not all(isinstance(v, str) for v in value):
                raise ValueError(f"{where} must be a list of strings")
            return value
        case "string":
            if not isinstance(value, str):
                raise ValueError(f"{where} must be a string")
            return value
    raise AssertionError(f"unknown kind {kind}")
