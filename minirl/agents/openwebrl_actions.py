"""What the tools do in the browser, and the textual feedback on it.

    call --arm--> the page is marked --the action--> --settle--> what changed --> one line of feedback

Stands between an episode and its session; with minirl/agents/openwebrl.py it is the visual recipe's
interface. Paper:
section 3.1, appendix A.2 and table 5. Deviations: points are told in the model's own 0-1000 frame, not in
pixels; typing where nothing takes text fails instead of vanishing; a click counts as without effect only if
nothing on the page changed, not whenever the address stayed; keys that do not exist fail.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from minirl.agents.openwebrl import SCALE
from minirl.browser.page_scripts import CHOOSE, FOCUS, SCROLL, Settled, names_of, number_of, record, text_of
from minirl.browser.session import PageHangs, Session
from minirl.types import Call, Observation, ToolFailure

FEEDBACK_CHARS = 512
URL_CHARS = 300  # of an address in what the agent sees
VALUE_CHARS = 100  # of a field's text in feedback
LONGEST_WAIT = 30  # seconds
MOST_PRESSES, MOST_CLICKS = 50, 3
LOADING = ("click", "drag", "write", "press_keys", "go_back")  # calls that may ask a host for something
MODIFIERS = ("Control", "Shift", "Alt", "Meta")
DIRECTIONS = {"down": (0, 1), "up": (0, -1), "right": (1, 0), "left": (-1, 0)}
CLOSED = "closed"  # a component that does not let its fields be seen
WRITTEN_WHOLE = ("select", "date", "time", "month", "week", "datetime-local", "color", "range")

# What keys are called elsewhere: by people, by other browser drivers and by desktop automation
ALIASES = {
    "ctrl": "Control", "control": "Control", "ctrlleft": "Control", "ctrlright": "Control",
    "cmd": "Meta", "command": "Meta", "win": "Meta", "super": "Meta", "meta": "Meta",
    "alt": "Alt", "option": "Alt", "shift": "Shift", "shiftleft": "Shift", "shiftright": "Shift",
    "esc": "Escape", "escape": "Escape", "enter": "Enter", "return": "Enter", "tab": "Tab",
    "space": "Space", "spacebar": "Space", "backspace": "Backspace", "del": "Delete", "delete": "Delete",
    "up": "ArrowUp", "down": "ArrowDown", "left": "ArrowLeft", "right": "ArrowRight",
    "arrowup": "ArrowUp", "arrowdown": "ArrowDown", "arrowleft": "ArrowLeft", "arrowright": "ArrowRight",
    "pageup": "PageUp", "pgup": "PageUp", "page_up": "PageUp", "pagedown": "PageDown",
    "pgdn": "PageDown", "page_down": "PageDown", "home": "Home", "end": "End", "insert": "Insert",
    "capslock": "CapsLock", "plus": "+", "minus": "-",
}  # fmt: skip


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
        url = url if len(url) <= URL_CHARS else url[:URL_CHARS] + "..."  # a page can make it endless
        lines.append(f"- Tab {i}{' (active)' if i == active else ''}: {url} - {title}")
    url, title = tabs[active]
    return Observation("\n".join(lines), image=image, url=url, title=title)


async def act(session: Session, call: Call) -> str:
    """Runs one call and says what it did, in at most FEEDBACK_CHARS characters.

    Raises ToolFailure with the reason if the call could not be carried out, and BrowserFault if the
    browser itself is gone.
    """
    if call.name == "done":
        return "done: task ended."
    if call.name in LOADING:
        await session.pace()
    return await carry_out(session, call, _run)


async def carry_out(session: Session, call: Call, run: Callable[[Session, Call], Awaitable[str]]) -> str:
    """What every agent's calls share: a time limit, a page that hangs, the news, the length."""
    seconds = session.config.action_seconds
    if call.name.lower() == "wait":  # on purpose, so it does not count
        seconds += LONGEST_WAIT
    try:
        async with asyncio.timeout(seconds):
            said = await run(session, call)
    except (TimeoutError, PageHangs):
        await session.revive()
        await _let_go(session, call)
        raise ToolFailure(" ".join(["the browser did not finish in time.", *session.take_news()])) from None
    except ToolFailure as failure:
        await _let_go(session, call)
        raise ToolFailure(" ".join([str(failure), *session.take_news()])) from None
    return shorten(" ".join([f"{call.name}: {said}", *session.take_news()]))


async def _let_go(session: Session, call: Call) -> None:
    """A hotkey that failed half-way must not turn all that follows into hotkeys."""
    if call.name == "press_keys":
        for key in MODIFIERS:
            with contextlib.suppress(ToolFailure):
                await session.do(session.page.keyboard.up(key))


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
            return await _hover(session, arguments["point_2d"])
        case "drag":
            return await _drag(session, arguments)
        case "write":
            return await write(session, arguments["message"])
        case "press_keys":
            return await press(session, arguments)
        case "scroll":
            return await scroll(session, arguments)
        case "wait":
            return await wait(session, min(arguments["seconds"], LONGEST_WAIT))
        case "goto_url":
            status = await session.goto(arguments["url"])
            failed = f" The server answered with status {status}." if status >= 400 else ""
            return f"now at {session.page.url}.{failed}"
        case "go_back":
            if not await session.back():
                raise ToolFailure("there is no earlier page in this tab")
            await session.settle()
            return f"now at {session.page.url}."
        case "new_tab":
            return f"opened tab {await session.new_tab()}."
        case "switch_tab":
            await session.switch_tab(arguments["tab_index"])
            await session.settle()
            return f"tab {arguments['tab_index']} is the current one, at {session.page.url}."
        case "close_tab":
            index = await session.close_tab()
            return f"closed; tab {index} is the current one, at {session.page.url}."
    raise AssertionError(f"tool {call.name} has no implementation")


# --- what an action has changed ----------------------------------------------------------------------


class Before:
    """The browser as it was before an action."""

    def __init__(self, session: Session):
        self.session, self.url, self.tabs = session, session.page.url, len(session.context.pages)

    def notes(self, found: Settled, after_click: bool = False) -> str:
        """What is different now, in a few sentences; none if nothing is worth telling."""
        url, tabs, notes = self.session.page.url, len(self.session.context.pages), []
        if found.error:
            notes.append(f"The page that it leads to could not be loaded ({found.error}).")
        elif tabs > self.tabs:
            notes.append(f"A new tab opened and is now the current one, at {url}.")
        elif tabs < self.tabs:
            notes.append(f"The tab closed; the current one is at {url}.")
        elif url != self.url:
            notes.append(f"Now at {url}.")
        elif found.fresh:
            notes.append("The page was loaded anew.")
        if found.state:
            notes.append(f"It is now {found.state}.")
        if found.moved:
            notes.append("It has moved away from under the pointer, and may not have got the click.")
        if found.focus:
            has = "It has the focus." if found.focus == "it" else f"The focus is on {found.focus}."
            notes.append(has)
        if found.added:
            notes.append(f"New: {'; '.join(found.added)}.")
        if found.gone:
            notes.append(f"Gone: {'; '.join(found.gone)}.")
        if after_click and not (notes or found.changes or found.revalued or self.session.news):
            notes.append("Nothing on the page changed.")
        return "".join(f" {note}" for note in notes)


def pixels(session: Session, point: Sequence[float]) -> tuple[float, float]:
    """0-1000 to CSS pixels; the right and bottom edges belong to the last pixel."""
    x, y = point[0] * session.width / SCALE, point[1] * session.height / SCALE
    return min(x, session.width - 1), min(y, session.height - 1)


def name_of(answer: Mapping[str, Any]) -> str:
    """What a pointer has hit; a page that spoils our scripts leaves that open."""
    return text_of(answer.get("target")) or "something"


def place(point: Sequence[float]) -> str:
    return f"[{point[0]:g}, {point[1]:g}]"


# --- the pointer -------------------------------------------------------------------------------------


async def _click(session: Session, arguments: Mapping[str, Any]) -> str:
    button = arguments["button"]
    if button not in ("left", "middle", "right"):
        raise ToolFailure(f"there is no {button!r} mouse button")
    clicks, point = min(max(arguments["clicks"], 1), MOST_CLICKS), arguments["point_2d"]
    answer, notes = await click_at(session, pixels(session, point), button, clicks)
    if options := names_of(answer.get("options")):
        notes = f" Its list is not in the screenshot; write one of: {', '.join(options)}."
    return f"clicked {name_of(answer)} at {place(point)}.{notes}"


async def click_at(
    session: Session, point: tuple[float, float], button: str = "left", clicks: int = 1
) -> tuple[Mapping[str, Any], str]:
    """What was under a point, in CSS pixels, and what clicking it has changed."""
    before, answer = Before(session), await session.arm(point)
    await session.do(session.page.mouse.click(*point, button=button, click_count=clicks))
    return answer, before.notes(await session.settle(), after_click=True)


async def hover_at(session: Session, point: tuple[float, float]) -> tuple[Mapping[str, Any], str]:
    before, answer = Before(session), await session.arm(point)
    await session.do(session.page.mouse.move(*point))
    return answer, before.notes(await session.settle())


async def _hover(session: Session, point: Sequence[float]) -> str:
    answer, notes = await hover_at(session, pixels(session, point))
    return f"the pointer is over {name_of(answer)} at {place(point)}.{notes}"


async def _drag(session: Session, arguments: Mapping[str, Any]) -> str:
    mouse, start, end = session.page.mouse, arguments["start_point_2d"], arguments["end_point_2d"]
    steps = min(max(arguments["steps"], 1), 100)
    before, answer = Before(session), await session.arm(pixels(session, start))
    await session.do(mouse.move(*pixels(session, start)))
    await session.do(mouse.down())
    try:
        await session.do(mouse.move(*pixels(session, end), steps=steps))
    finally:  # a button that stays down would spoil all that follows
        await session.do(mouse.up())
    notes = before.notes(await session.settle(), after_click=True)
    return f"dragged {name_of(answer)} from {place(start)} to {place(end)}.{notes}"


async def scroll(session: Session, arguments: Mapping[str, Any]) -> str:
    direction, share = arguments["direction"], min(max(arguments["amount"], 0), 1)
    if direction not in DIRECTIONS:
        raise ToolFailure(f"direction must be one of {', '.join(DIRECTIONS)}")
    (dx, dy), point = DIRECTIONS[direction], None
    if "point_2d" in arguments:
        point = pixels(session, arguments["point_2d"])
        await session.do(session.page.mouse.move(*point))
    before = Before(session)
    await session.arm(point)
    pixel = (dx * share * session.width, dy * share * session.height)
    _, answer = await session.ask(SCROLL, point, *pixel)
    notes = before.notes(await session.settle())
    name, moved = text_of(answer.get("name")) or "the page", number_of(answer.get("moved"))
    end = {"down": "bottom", "up": "top", "right": "right end", "left": "left end"}[direction]
    if moved < 1:
        return f"{name} did not move {direction}; it may be at its {end}.{notes}"
    whole = session.width if dx else session.height
    ends = f" That is its {end}." if answer.get("ends") is True else ""
    return f"scrolled {name} {direction} by {moved / whole:.0%} of the screen.{ends}{notes}"


# --- the keyboard ------------------------------------------------------------------------------------


async def write(session: Session, message: str) -> str:
    if not message:
        raise ToolFailure("message is empty")
    frame, field = await session.focus()
    name, kind = text_of(field.get("name")), text_of(field.get("kind"))
    before = Before(session)
    if kind in WRITTEN_WHOLE:
        await session.arm()
        value = await session.do(frame.evaluate(CHOOSE, [message]))
        if value is None:
            raise ToolFailure(f"{name} does not take {message[:VALUE_CHARS]!r}. {_what_fits(kind)}")
        notes = before.notes(await session.settle(quiet=True))
        return f"{name} is now {text_of(value)!r}.{notes}"
    if field.get("editable") is not True:
        holds = f"{name} has the focus" if name else "nothing has the focus"
        raise ToolFailure(f"{holds}, which takes no text; click on a field first")
    await session.arm()
    keyboard = session.page.keyboard
    if text_of(field.get("value")).strip() or kind == CLOSED:
        await session.do(keyboard.press("ControlOrMeta+A"))
        await session.do(keyboard.press("Backspace"))
    await session.do(keyboard.type(message), session.config.action_seconds)
    found = await session.settle(quiet=True)
    notes = before.notes(found)
    if not found.fresh and not frame.is_detached():
        now = record(await session.do(frame.evaluate(FOCUS)))
        notes += _mismatch(message, kind, now, name)
    return f"typed {message[:VALUE_CHARS]!r} into {name}.{notes}"


def _what_fits(kind: str) -> str:
    """The format of fields that are written as a whole."""
    formats = {
        "date": "Write a date as 2026-03-31.",
        "time": "Write a time as 14:05.",
        "month": "Write a month as 2026-03.",
        "week": "Write a week as 2026-W09.",
        "datetime-local": "Write date and time as 2026-03-31T14:05.",
        "color": "Write a colour as #00aaff.",
        "range": "Write a number.",
        "select": "Write one of its options.",
    }
    return formats[kind]


def _mismatch(message: str, kind: str, field: Mapping[str, Any], name: str) -> str:
    """A field may hold something else than what was typed: cut, completed, or in its own format."""
    value = text_of(field.get("value"), 10_000)
    is_same_field = text_of(field.get("kind")) == kind != CLOSED and field.get("editable") is True
    if not is_same_field or " ".join(value.split()) == " ".join(message.split()):
        return ""
    return f" But {name} now holds {value[:VALUE_CHARS]!r}, which differs from what was typed."


async def press(session: Session, arguments: Mapping[str, Any]) -> str:
    keys = [normal(key) for key in arguments["keys"]]
    if arguments["is_hotkey"]:
        keys = ["+".join(keys)]
    before, presses = Before(session), min(max(arguments["presses"], 1), MOST_PRESSES)
    await session.arm()
    for key in keys:
        for _ in range(presses):
            await session.do(session.page.keyboard.press(key))
    notes = before.notes(await session.settle(quiet=True))
    times = f" {presses} times" if presses > 1 else ""
    return f"pressed {', '.join(keys)}{times}.{notes}"


def normal(key: str) -> str:
    """A key, or several joined by +, by the names that Chromium's driver has.

    >>> normal("pgdn"), normal("ctrl+a"), normal("f5"), normal("+")
    ('PageDown', 'Control+a', 'F5', '+')
    """
    if len(key) > 1 and "+" in key[1:-1]:
        return "+".join(normal(part) for part in key.split("+"))
    if len(key) in (2, 3) and key[0] in "fF" and key[1:].isdigit():
        return key.upper()
    return key if len(key) == 1 else ALIASES.get(key.strip().lower(), key)


async def wait(session: Session, seconds: float) -> str:
    before = Before(session)
    await session.arm()
    await asyncio.sleep(seconds)
    return f"waited {seconds:g} s.{before.notes(await session.settle())}"
