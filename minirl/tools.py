"""OpenWebRL's 13 browser tools: what the model is told, how its response is parsed, what a call does.

Stands between the episode and the browser; together with `observe` below it is the visual recipe's
interface: three functions, `observe(session)`, `parse(text)` and `act(session, call)`. Paper: section 3.1
and appendix A.3. Names and arguments are those of the released code (`point_2d`, `message`, ...), which
released data and checkpoints use. Deviations: coordinates are 0-1000 of the viewport everywhere, in the
schema and in feedback as well (the released texts mix in pixels); calls of one response stop at the first
failure or at `done`.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from minirl.browser import Session, ToolFailure
from minirl.types import Call, Observation, Parsed

SCALE = 1000  # coordinates run from 0 to SCALE on both axes
FEEDBACK_CHARS = 512


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

_JSON_KINDS = {
    "point": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2},
    "strings": {"type": "array", "items": {"type": "string"}},
}


def schemas() -> list[dict[str, Any]]:
    """The tools as JSON schemas, in the shape that chat templates and OpenAI-compatible servers take."""
    out = []
    for name, tool in TOOLS.items():
        properties = {a: _JSON_KINDS.get(kind, {"type": kind}) for a, (kind, _) in tool.arguments.items()}
        required = [a for a, (_, default) in tool.arguments.items() if default is ...]
        parameters = {"type": "object", "properties": properties, "required": required}
        function = {"name": name, "description": tool.description, "parameters": parameters}
        out.append({"type": "function", "function": function})
    return out


def system_prompt(brief: bool) -> str:
    """What the model is told first. `brief` leaves out the schemas: for models that are trained on the
    format anyway and are too small to read."""
    if brief:
        return "Use the browser."
    tools = "\n".join(json.dumps(schema, ensure_ascii=False) for schema in schemas())
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


def read_call(block: str) -> Call:
    """One call's JSON, checked against the tool's arguments. Raises ValueError with what is wrong."""
    try:
        data = json.loads(block)
    except (json.JSONDecodeError, RecursionError):
        raise ValueError("a tool call is not valid JSON") from None
    except ValueError:  # an integer too long to convert
        raise ValueError("a tool call holds a number out of range") from None
    if not isinstance(data, dict) or not isinstance(data.get("name"), str):
        raise ValueError('a tool call needs the form {"name": ..., "arguments": {...}}')
    name, given = data["name"], data.get("arguments", {})
    if name not in TOOLS:
        raise ValueError(f"there is no tool {name[:40]!r}; the tools are {', '.join(TOOLS)}")
    if not isinstance(given, dict):
        raise ValueError(f"the arguments of {name} must be an object")
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
            if not isinstance(value, list) or len(value) != 2:
                raise ValueError(f"{where} must be [x, y]")
            return [_number(v, where, 0, SCALE) for v in value]
        case "integer":
            return int(_number(value, where, 0, 1000))
        case "number":
            return _number(value, where, 0, 1000)
        case "boolean":
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


# --- observing -------------------------------------------------------------------------------------


async def observe(session: Session) -> Observation:
    """The tabs and a screenshot of the current one."""
    tabs, active = await session.tabs()
    image = await session.screenshot()
    lines = [
        f"screen size: {session.width} x {session.height}",
        f"Current tab: {active}",
        "Available tabs:",
    ]
    for i, (url, title) in enumerate(tabs):
        lines.append(f"- Tab {i}{' (active)' if i == active else ''}: {url} - {title[:50]}")
    url, title = tabs[active]
    return Observation("\n".join(lines), image=image, url=url, title=title)


# --- acting ----------------------------------------------------------------------------------------

_ALIASES = {
    "ctrl": "Control", "control": "Control", "cmd": "Meta", "command": "Meta", "win": "Meta",
    "alt": "Alt", "option": "Alt", "shift": "Shift", "esc": "Escape", "escape": "Escape",
    "enter": "Enter", "return": "Enter", "tab": "Tab", "space": "Space", "backspace": "Backspace",
    "del": "Delete", "delete": "Delete", "up": "ArrowUp", "down": "ArrowDown", "left": "ArrowLeft",
    "right": "ArrowRight", "pageup": "PageUp", "pgup": "PageUp", "pagedown": "PageDown",
    "pgdn": "PageDown", "home": "Home", "end": "End", "insert": "Insert",
}  # fmt: skip


async def act(session: Session, call: Call) -> str:
    """Runs one call and says what it did, in at most FEEDBACK_CHARS characters.

    Raises ToolFailure with the reason if the call could not be carried out, and BrowserFault if the
    browser itself is gone.
    """
    url, tabs = session.page.url, len(session.context.pages)
    did = await _run(session, call)
    if call.name != "done":
        await session.settle()
    if session.page.url != url and call.name not in ("switch_tab", "new_tab", "close_tab"):
        did += f" Now at {session.page.url}."
    if len(session.context.pages) > tabs and call.name != "new_tab":
        did += " A new tab opened and is now the current one."
    return shorten(f"{call.name}: {did}")


def shorten(text: str) -> str:
    """Whitespace collapsed, and the middle cut out of what is too long: the head says what, the tail why."""
    text = " ".join(text.split())
    if len(text) <= FEEDBACK_CHARS:
        return text
    head = int(0.7 * (FEEDBACK_CHARS - 5))
    return text[:head] + " ... " + text[head + 5 - FEEDBACK_CHARS :]


async def _run(session: Session, call: Call) -> str:
    arguments = call.arguments
    match call.name:
        case "click":
            return await _click(session, arguments)
        case "hover":
            x, y = _pixels(session, arguments["point_2d"])
            target = await session.describe(x, y)
            await session.do(session.page.mouse.move(x, y))
            return f"pointer over {target}."
        case "drag":
            return await _drag(session, arguments)
        case "write":
            return await _write(session, arguments["message"])
        case "press_keys":
            return await _press(session, arguments)
        case "scroll":
            return await _scroll(session, arguments)
        case "wait":
            seconds = min(arguments["seconds"], 30)
            await asyncio.sleep(seconds)
            return f"waited {seconds:g} s."
        case "done":
            return "task ended."
        case "goto_url":
            await session.goto(arguments["url"])
            return "page opened."
        case "go_back":
            await session.do(session.page.go_back(wait_until="commit"))
            return "went back."
        case "new_tab":
            return f"opened tab {await session.new_tab()}."
        case "switch_tab":
            await session.switch_tab(arguments["tab_index"])
            return f"tab {arguments['tab_index']} is the current one."
        case "close_tab":
            return f"closed; tab {await session.close_tab()} is the current one."
    raise AssertionError(f"tool {call.name} has no implementation")


def _pixels(session: Session, point: list[float]) -> tuple[float, float]:
    """0-1000 to CSS pixels; the right and bottom edges belong to the last pixel."""
    x, y = point[0] * session.width / SCALE, point[1] * session.height / SCALE
    return min(x, session.width - 1), min(y, session.height - 1)


async def _click(session: Session, arguments: Mapping[str, Any]) -> str:
    x, y = _pixels(session, arguments["point_2d"])
    button = arguments["button"]
    if button not in ("left", "middle", "right"):
        raise ToolFailure(f"there is no {button!r} mouse button")
    target = await session.describe(x, y)
    clicks = min(max(arguments["clicks"], 1), 3)
    await session.do(session.page.mouse.click(x, y, button=button, click_count=clicks))
    return f"clicked {target}."


async def _drag(session: Session, arguments: Mapping[str, Any]) -> str:
    mouse = session.page.mouse
    x0, y0 = _pixels(session, arguments["start_point_2d"])
    x1, y1 = _pixels(session, arguments["end_point_2d"])
    target = await session.describe(x0, y0)
    await session.do(mouse.move(x0, y0))
    await session.do(mouse.down())
    await session.do(mouse.move(x1, y1, steps=min(max(arguments["steps"], 1), 100)))
    await session.do(mouse.up())
    return f"dragged {target}."


async def _write(session: Session, message: str) -> str:
    if not message:
        raise ToolFailure("message is empty")
    keyboard = session.page.keyboard
    await session.do(keyboard.press("Control+A"))
    await session.do(keyboard.press("Backspace"))
    await session.do(keyboard.type(message))
    return f"typed {message!r}."


async def _press(session: Session, arguments: Mapping[str, Any]) -> str:
    keys = [key if len(key) == 1 else _ALIASES.get(key.lower(), key) for key in arguments["keys"]]
    if arguments["is_hotkey"]:
        keys = ["+".join(keys)]
    for key in keys:
        for _ in range(min(max(arguments["presses"], 1), 50)):
            await session.do(session.page.keyboard.press(key))
    return f"pressed {', '.join(keys)}."


async def _scroll(session: Session, arguments: Mapping[str, Any]) -> str:
    steps = {"down": (0, 1), "up": (0, -1), "right": (1, 0), "left": (-1, 0)}
    if arguments["direction"] not in steps:
        raise ToolFailure(f"direction must be one of {', '.join(steps)}")
    dx, dy = steps[arguments["direction"]]
    amount = min(max(arguments["amount"], 0), 1)
    point = _pixels(session, arguments["point_2d"]) if "point_2d" in arguments else None
    moved = await session.scroll(dx * amount * session.width, dy * amount * session.height, point)
    return f"scrolled {arguments['direction']}." if moved else "nothing moved; the end is reached."
