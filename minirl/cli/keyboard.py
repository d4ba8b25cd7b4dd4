"""A person as a policy: what is typed becomes a response like a model's.

    prompt --ask--> a line --read_line--> calls --Person--> the ids of a response --> the episode

The short form of a call is a word and its arguments in order; its meaning is that of
minirl/agents/openwebrl.py,
which also checks it. Part of the demo.
"""

from __future__ import annotations

import json
import re
import signal
import sys
from dataclasses import dataclass
from typing import Any

from minirl.agents.openwebrl import SCALE, TOOLS, read_call
from minirl.browser.session import Session
from minirl.console import say
from minirl.model import Preprocessor
from minirl.types import BrowserFault, Call, Prompt, Sample, Stop

HELP = """\
  click X Y [BUTTON [CLICKS]]   hover X Y         drag X Y X Y
  write TEXT                    press KEY ...     press ctrl+a
  scroll [DIRECTION [SHARE]]    wait [SECONDS]    done [ANSWER]
  goto URL    back    newtab    tab N             close
  look: what can be clicked     help              quit
X and Y run from 0 at the left or top to 1000. One line is one response, with ";"
between its calls. JSON works too: {"name": "go_back", "arguments": {}}"""

# the short form's words: a tool, and the arguments in the order in which they are typed
SHORT = {
    "click": ("click", "point_2d", "button", "clicks"),
    "hover": ("hover", "point_2d"),
    "drag": ("drag", "start_point_2d", "end_point_2d"),
    "write": ("write", "message"),
    "press": ("press_keys", "keys"),
    "scroll": ("scroll", "direction", "amount"),
    "wait": ("wait", "seconds"),
    "done": ("done", "response"),
    "goto": ("goto_url", "url"),
    "back": ("go_back",),
    "newtab": ("new_tab",),
    "tab": ("switch_tab", "tab_index"),
    "close": ("close_tab",),
}

LOOK = """() => [...document.querySelectorAll('a, button, input, select, textarea, [role=button]')].map(e => {
  const r = e.getBoundingClientRect(), x = r.left + r.width / 2, y = r.top + r.height / 2;
  const name = e.getAttribute('aria-label') || e.innerText || e.placeholder || e.tagName.toLowerCase();
  return [name.trim().replace(/\\s+/g, ' '), x / innerWidth, y / innerHeight, r.width > 0 && !e.disabled];
}).filter(([, x, y, works]) => works && 0 <= x && x <= 1 && 0 <= y && y <= 1)"""


@dataclass
class Person:
    """Asks at the keyboard until there is at least one call."""

    preprocessor: Preprocessor
    greeted: bool = False

    async def __call__(self, t: int, prompt: Prompt, session: Session) -> Sample:
        if not self.greeted:
            say(HELP, "dim")
            self.greeted = True
        calls: list[Call] = []
        while not calls:
            line = ask()
            if line is None or line in ("quit", "exit"):
                raise BrowserFault(Stop.CANCELLED, "given up by hand")
            if line == "help":
                say(HELP, "dim")
            elif line == "look":
                for name, x, y, _ in await session.do(session.page.evaluate(LOOK)):
                    say(f"  {x * SCALE:4.0f} {y * SCALE:4.0f}  {name}")
            else:
                try:
                    calls = read_line(line)
                except ValueError as problem:
                    say(f"  {problem}; `help` lists the calls", "red")
        return self.sample(calls)

    def sample(self, calls: list[Call]) -> Sample:
        """The calls as a model would have to write them."""
        blocks = [json.dumps({"name": call.name, "arguments": dict(call.arguments)}) for call in calls]
        opening = "" if self.preprocessor.chat.opens_think else "<think>\n"
        text = f"{opening}</think>" + "".join(f"<tool_call>{block}</tool_call>" for block in blocks)
        tokenizer = self.preprocessor.tokenizer
        ids = tuple(tokenizer(text + tokenizer.eos_token, add_special_tokens=False)["input_ids"])
        return Sample(ids, (0.0,) * len(ids), "stop")


def ask() -> str | None:
    """One line from the keyboard; None at its end or on Ctrl-C.

    Blocks the event loop on purpose: nothing else has to go on meanwhile. Ctrl-C would wait for the loop
    too, so for the time of the question it interrupts, as it does outside of asyncio.
    """
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        line = input("your calls> ")
    except (EOFError, KeyboardInterrupt):
        print()
        return None
    finally:
        signal.signal(signal.SIGINT, usual)
    if not sys.stdin.isatty():
        print(line)  # a terminal shows what is typed into it
    return line.strip()


def read_line(line: str) -> list[Call]:
    """The calls on a line of the short form or JSON; ValueError says what is wrong.

    >>> [call.name for call in read_line("click 500 120; back; done")]
    ['click', 'go_back', 'done']
    """
    if line.lstrip().startswith("{"):
        return [read_call(line)]
    return [read_call(json.dumps(spell(part))) for part in re.split(r"\s*;\s*", line.strip()) if part]


def spell(part: str) -> dict[str, Any]:
    """One call of the short form, as data. Numbers stay text here: `read_call` checks them."""
    name, *rest = part.split()
    tool, *arguments = SHORT.get(name.lower(), ("",))
    given: dict[str, Any] = {}
    if tool in ("write", "done"):  # all that follows is one text
        rest = rest and [part.partition(" ")[2].strip()]
        rest = rest or (["done"] if tool == "done" else [])
    elif tool == "press_keys" and len(rest) == 1 and "+" in rest[0][1:-1]:
        rest, given["is_hotkey"] = rest[0].split("+"), True
    for argument in arguments:
        kind = TOOLS[tool].arguments[argument][0]
        n = {"point": 2, "strings": len(rest)}.get(kind, 1)
        if rest:
            given[argument] = rest[:n] if kind in ("point", "strings") else rest[0]
        rest = rest[n:]
    if not tool or rest:
        raise ValueError(f"{part!r} is not understood")
    return {"name": tool, "arguments": given}
