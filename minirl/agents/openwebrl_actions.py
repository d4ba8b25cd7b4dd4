"""What OpenWebRL's 13 tools do in the browser, and the textual feedback on it.

    call --arm--> the page is marked --the action--> --settle--> what changed --> one line of feedback

The model is told the name, docstring and arguments of each of `TOOL_FUNCTIONS`; webagent_r1.py shares pointer
and keyboard. Paper: section 4.1, appendix A.2, table 5. Deviations:
1. Points are told in the model's own 0-1000 frame; the released records have them in pixels.
2. Typing where nothing takes text, and keys that do not exist, fail.
3. A click counts as without effect only if the screen stayed as it was, not whenever the address did.
4. More is told than in table 5: state, focus, what moved or scrolled, a list's options. Named is the control
   at a point, where the released code names the innermost element.
5. A text is typed over the old one, without Backspace; a long one is inserted, but for its last letter.
"""

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Annotated, Any

from annotated_types import Predicate
from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import from_json

from minirl.agents.feedback import screen, shorten, watched
from minirl.browser.page_scripts import PageAnswer, looks_the_same, script
from minirl.package_files import table_of
from minirl.types import Call, Feedback, Observation, PageHangs, Parsed, Session, ToolFailure

SCALE = 1000  # coordinates run from 0 to SCALE on both axes
VALUE_CHARS = 100  # of a field's value in a line of feedback,
URL_CHARS = 300  # and of an address in an observation
MAX_WAIT_SECONDS = 30
MAX_PRESSES = 50
MAX_CLICKS = 3
MAX_DRAG_STEPS = 100
HOLD_SECONDS = 0.1  # before what is dragged is let go
FAILED = "Failed: "  # begins the episode's line on a call that raised ToolFailure
_QUOTED = re.compile(r"""(['"])(?:\\.|(?!\1)[^\\])*(?:\1|\\?\Z)""", re.DOTALL)
CLOSED = "closed"  # a component that does not let its fields be seen
RICH = "rich"  # a text with paragraphs of its own
MAX_KEYS = 32  # the longest text that is typed key by key; fields for codes need that, each letter in its own


def escape_breaks(text: str) -> str:
    """Return what a model has written with the line breaks and tabs in its quoted texts escaped."""
    return _QUOTED.sub(lambda quoted: r"\n".join(quoted[0].splitlines()).replace("\t", r"\t"), text)


def _as_list(given: Any) -> Any:
    """Return a list that is written as a text: "[500, 120]", or one key."""
    if not isinstance(given, str):
        return given
    return from_json(given) if given[:1] + given[-1:] == "[]" else [given]


def no_fraction(point: Sequence[float]) -> bool:
    """Return False for a point in fractions of the picture: read as 0 to 1000 it would be a corner."""
    return max(point) > 1 or all(number % 1 == 0 for number in point)


Number = Annotated[float | int, Field(ge=0, le=SCALE), WithJsonSchema({"type": "number"})]
Point = Annotated[
    list[Number], Field(min_length=2, max_length=2), BeforeValidator(_as_list), Predicate(no_fraction)
]
Keys = Annotated[list[str], BeforeValidator(_as_list)]

TABLES = table_of("agents/openwebrl.toml")
DIRECTIONS = TABLES["directions"]
WRITTEN_WHOLE = TABLES["written_whole"]
ALIASES: dict[str, str] = {}
for _key, _others in TABLES["keys"].items():
    ALIASES |= dict.fromkeys([_key.lower(), *_others], _key)


async def observe(session: Session) -> Observation:
    """Return the tabs as text and a screenshot of the current one as PNG."""
    image = await session.screenshot()
    tabs, active = await session.tabs()
    text = f"screen size: {session.width} x {session.height}\nCurrent tab: {active}\nAvailable tabs:"
    for i, (url, title) in enumerate(tabs):
        note = " (active)" if i == active else ""
        text += f"\n- Tab {i}{note}: {url[:URL_CHARS]} - {title}"  # a page can make its address endless
    return Observation(text, image=image, url=tabs[active][0])


async def act(session: Session, call: Call) -> str:
    """Run one call; return what it did. ToolFailure says why not; BrowserFault: the browser is gone."""
    return await carry_out(session, call, TOOL_FUNCTIONS[call.name](session, **call.arguments))


async def carry_out(session: Session, call: Call, work: Awaitable[str]) -> str:
    """Run a call of any agent under an action's time limit; return a line of feedback and the browser's news.
    Those are in a ToolFailure, too."""
    await session.pace()
    session.unseen = b""
    try:
        async with asyncio.timeout(session.config.action_seconds):
            result = await work
        return shorten(" ".join([f"Succeed: {result}", *session.take_news()]))
    except (TimeoutError, PageHangs):
        await session.revive()
        reason = "the browser did not finish in time"
    except ToolFailure as failure:
        reason = str(failure)
    session.unseen = b""  # it may be from before what the action did

    # A hotkey that failed half-way must not turn later keys into hotkeys
    if call.name == "press_keys":
        for key in ("Control", "Shift", "Alt", "Meta"):
            with suppress(ToolFailure):
                await session.do(session.page.keyboard.up(key))
    lines = [f"{reason.strip('. ')}.", *session.take_news()]
    raise ToolFailure(shorten(" ".join(lines)).removesuffix("."))


def visible_feedback(agent: Any, parsed: Parsed, feedback: Feedback) -> Feedback:
    """Return all lines, or in the ablation those on what failed; agents have this as a method."""
    if agent.config.feedback or parsed.error:
        return feedback
    return tuple(line for line in feedback if line.startswith(FAILED))


def pixels(session: Session, point: Point) -> tuple[float, float]:
    """Convert 0-1000 to CSS pixels; the right and bottom edges belong to the last pixel."""
    x = point[0] * session.width / SCALE
    y = point[1] * session.height / SCALE
    return min(x, session.width - 1), min(y, session.height - 1)


def _place(point: Point) -> str:
    return f"({point[0]:.0f}, {point[1]:.0f})"


async def click(session: Session, point_2d: Point, clicks: int = 1, button: str = "left") -> str:
    """Click at a point of the page."""
    point = pixels(session, point_2d)
    count = min(max(clicks, 1), MAX_CLICKS)
    async with watched(session, point, is_click=True) as effect:
        mouse: Any = session.page.mouse  # which itself refuses a button that it does not have
        await session.do(mouse.click(*point, button=button, click_count=count))
    options = ", ".join(effect.options)
    listed = f" Its list is not in the screenshot; write one of: {options}." if options else ""
    if effect.kind == "select-multiple":
        listed = f" To choose several of its list, write them between commas: {options}."
    return f"`click` on {effect.name} at {_place(point_2d)} executed.{listed}{effect.notes}"


async def hover(session: Session, point_2d: Point) -> str:
    """Move the pointer to a point."""
    point = pixels(session, point_2d)
    async with watched(session, point) as effect:
        await session.do(session.page.mouse.move(*point))
    return f"`hover` on {effect.name} at {_place(point_2d)} executed.{effect.notes}"


async def drag(session: Session, start_point_2d: Point, end_point_2d: Point, steps: int = 10) -> str:
    """Drag from one point to another."""
    mouse = session.page.mouse
    start = pixels(session, start_point_2d)
    end = pixels(session, end_point_2d)
    async with watched(session, start, quiet=True, is_click=True) as effect:
        await session.do(mouse.move(*start))
        await session.do(mouse.down())
        try:
            await session.do(mouse.move(*end, steps=min(max(steps, 1), MAX_DRAG_STEPS)))
            # a hand holds there, too, which some lists wait for before they make room
            for _ in range(2):
                await session.do(mouse.move(*end))
                await asyncio.sleep(HOLD_SECONDS)
        finally:  # a button that stays down would spoil all that follows
            await session.do(mouse.up())
    return f"`drag` executed.{effect.notes}"


async def scroll(
    session: Session, direction: str = "down", amount: Number = 0.5, point_2d: Point | None = None
) -> str:
    """Scroll the page, or the area under a point, by a share (0-1) of the viewport."""
    if direction not in DIRECTIONS:
        raise ToolFailure(f"direction must be one of {', '.join(DIRECTIONS)}")
    dx, dy, end = DIRECTIONS[direction]
    mouse = session.page.mouse
    point = None
    place = ""
    if point_2d:
        point = pixels(session, point_2d)
        place = f" at {_place(point_2d)}"
        await session.do(mouse.move(*point))
    share = min(amount, 1)
    async with watched(session, point) as effect:
        dx *= share * session.width
        dy *= share * session.height
        _, answer = await session.ask("scroll", point, dx, dy)
        before = b""
        # What a script can't move a wheel may: a map, a closed component, a page in a frame
        if answer.distance < 1 and (point or not answer.ends):
            if not point:
                await session.do(mouse.move(session.width / 2, session.height / 2))
            before = await screen(session)
            await session.do(mouse.wheel(dx, dy))
    notes = effect.notes
    if answer.distance >= 1:
        if answer.name not in ("", "the page"):
            notes += f" It moved {answer.name}."
        if answer.ends:
            notes += f" That is its {end}."
    elif not before or looks_the_same(before, await screen(session), effect.masks):
        notes += " Note: page scroll position did not change and may be at a boundary."
    return f"`scroll` {direction} by {share:.0%}{place} executed.{notes}"


async def write(session: Session, message: str) -> str:
    """Replace the text of the focused field."""
    if not message:
        raise ToolFailure("message is empty")
    text = message.replace("\r\n", "\n")
    frame, field = await session.ask("focus")
    name = field.name
    advice = WRITTEN_WHOLE.get(field.kind)
    if not (advice or field.editable):
        holds = f"{name} has the focus" if name else "nothing has the focus"
        raise ToolFailure(f"{holds}, which takes no text; click on a field first")
    outcome = ""
    async with watched(session, quiet=True) as effect:
        if advice:
            text = await session.do(frame.evaluate(script("choose"), [message]))
            if not isinstance(text, str):
                raise ToolFailure(f"{name} does not take '{message[:VALUE_CHARS]}'. {advice}")
            outcome = f' It is now "{text[:VALUE_CHARS]}".'
        else:
            await _type_over(session, frame, field.kind, text)
    outcome += effect.notes

    # The field may hold something else than was written: cut, completed, in its own format, or as before
    if not (effect.fresh or frame.is_detached() or frame.page.is_closed()):
        field_now = PageAnswer.read(await session.do(frame.evaluate(script("focus"))))
        if field_now.kind == field.kind != CLOSED and not _is_held(field_now, text):
            outcome = effect.notes + _difference(field_now.value, text)
    return f'`write` typed "{message}" into {name}.{outcome}'


async def _type_over(session: Session, frame: Any, kind: str, text: str) -> None:
    """Replace what a field of this kind holds. Several lines are inserted in one piece: after an Enter key a
    code editor indents and a chat sends. So is a long text, which keys would take too long for. The last
    letter is typed, because pages react to keys."""
    keyboard = session.page.keyboard
    await session.do(keyboard.press("ControlOrMeta+a"))
    has_lines = "\n" in text[:-1]
    typed = text
    if has_lines and kind == RICH:
        typed = ""  # the caret is not behind several paragraphs that were inserted
    elif has_lines or len(text) > MAX_KEYS:
        typed = text[-1]
    if has_lines and kind == CLOSED and await session.do(frame.evaluate(script("paste"), [text])) is True:
        return
    seconds = session.config.action_seconds
    if typed != text:
        await session.do(keyboard.insert_text(text.removesuffix(typed)), seconds)
    await session.do(keyboard.type(typed), seconds)


def _difference(value: str, text: str) -> str:
    """Return a sentence on a field that holds something else than the text."""
    quoted = json.dumps(value[:VALUE_CHARS], ensure_ascii=False)
    if len(value) > VALUE_CHARS:
        quoted += f" and {len(value) - VALUE_CHARS} letters more"
    kind = " in blanks or line breaks" if value.split() == text.split() else ""
    return f" Note: the field's actual value is {quoted}, which differs from the typed text{kind}."


def _is_held(field: PageAnswer, text: str) -> bool:
    """Tell if a field holds a text, but for blanks at the end; where it makes paragraphs of lines, empty ones
    do not count."""
    if field.kind == RICH:
        text = re.sub(r"\n+", "\n", text)
    return field.value.rstrip() == text.rstrip()


async def press_keys(session: Session, keys: Keys, is_hotkey: bool = False, presses: int = 1) -> str:
    """Press keys one after the other, or together as a hotkey."""
    names = [normal(key) for key in keys]
    presses = min(max(presses, 1), MAX_PRESSES)
    async with watched(session, quiet=True) as effect:
        for name in ["+".join(names)] if is_hotkey else names:
            for _ in range(presses):
                await session.press(name)
    return f"`press_keys` {names} executed.{effect.notes}"


def normal(key: str) -> str:
    """Return a key, or several joined by +, as Chromium's driver names them.

    >>> normal("pgdn"), normal("ctrl+a"), normal("+")
    ('PageDown', 'Control+a', '+')
    """
    if "+" in key[1:-1]:
        return "+".join(normal(part.strip()) for part in key.split("+"))
    return ALIASES.get(key.strip().lower(), key)


async def wait(session: Session, seconds: Number = 3) -> str:
    """Let the page settle for some seconds."""
    seconds = min(seconds, MAX_WAIT_SECONDS, session.config.action_seconds * 2 / 3)
    async with watched(session) as effect:
        await asyncio.sleep(seconds)
    return f"waited {seconds:g} seconds.{effect.notes}"


async def done(session: Session, response: str) -> str:
    """End the task with a final answer."""
    return f"task marked as done. Response: {response}"


async def goto_url(session: Session, url: str) -> str:
    """Open an address in the current tab."""
    status = await session.goto(url)
    failed = f" The server answered with status {status}." if status >= 400 else ""
    return f"`goto_url` navigated to {session.page.url}.{failed}"


async def go_back(session: Session) -> str:
    """Go back in the current tab's history."""
    await session.travel(-1)
    return "`go_back` executed."


async def new_tab(session: Session) -> str:
    """Open an empty tab."""
    return f"`new_tab` opened blank tab (tab {await session.new_tab()})."


async def switch_tab(session: Session, tab_index: int) -> str:
    """Make another tab the current one."""
    await session.switch_tab(tab_index)
    await session.settle()
    return f"`switch_tab` switched to tab {tab_index} ({session.page.url})."


async def close_tab(session: Session) -> str:
    """Close the current tab."""
    _, old_index = await session.tabs()
    index = await session.close_tab()
    return f"`close_tab` closed tab {old_index}, now on tab {index}."


# In the order in which the model is told of them
_TOOLS = (click, write, press_keys, scroll, wait, done, goto_url, go_back, new_tab, switch_tab, close_tab)
TOOL_FUNCTIONS: dict[str, Callable[..., Awaitable[str]]] = {f.__name__: f for f in (*_TOOLS, drag, hover)}
