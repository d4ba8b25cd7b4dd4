"""A person as a policy: a typed line becomes a response like a model's.

    prompt --ask--> a line --read_line--> calls --Person--> the ids of a response --> the episode

A line is a tool's name and its arguments in the order of minirl/agents/openwebrl.py, which checks them.
"""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import dataclass
from importlib import resources

from minirl.agents.openwebrl import SCALE, TOOLS, read_call
from minirl.browser.session import Session
from minirl.console import say
from minirl.model import Preprocessor
from minirl.types import BrowserFault, Call, Prompt, Sample, Stop

RULES = f"""X and Y run from 0 at the left or top to {SCALE}; the last arguments may be left out.
One line is one response, with ";" between its calls.
JSON works too: {{"name": "go_back", "arguments": {{}}}}"""


@dataclass
class Person:
    """A person as a policy: asks at the keyboard until there is at least one call."""

    preprocessor: Preprocessor

    async def __call__(self, t: int, prompt: Prompt, session: Session) -> Sample:
        if t == 0:
            say(usage(), "dim")
        calls: list[Call] = []
        while not calls:
            match ask():
                case None | "quit":
                    raise BrowserFault(Stop.CANCELLED, "given up by hand")
                case "help":
                    say(usage(), "dim")
                case "look":
                    script = (resources.files("minirl.cli") / "look.js").read_text()
                    for name, x, y, _ in await session.do(session.page.evaluate(script)):
                        say(f"  {x * SCALE:4.0f} {y * SCALE:4.0f}  {name}")
                case line:
                    try:
                        calls = read_line(line)
                    except ValueError as problem:
                        say(f"  {problem}; `help` lists the calls", "red")

        # as a model would have to write them
        blocks = [json.dumps({"name": call.name, "arguments": dict(call.arguments)}) for call in calls]
        text = ("" if self.preprocessor.chat.opens_think else "<think>\n") + "</think>"
        text += "".join(f"<tool_call>{block}</tool_call>" for block in blocks)
        tokenizer = self.preprocessor.tokenizer
        ids = tuple(tokenizer(text + tokenizer.eos_token, add_special_tokens=False)["input_ids"])
        return Sample(ids, (0.0,) * len(ids), "stop")


def ask() -> str | None:
    """Return one line from the keyboard; None at its end or on Ctrl-C.

    Blocks the event loop on purpose. Ctrl-C would wait for the loop too, so meanwhile it interrupts at once.
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


def usage() -> str:
    """Return the tools with their arguments in order, as they are typed."""
    lines = ["look: what can be clicked", "help", "quit"]
    for name, tool in TOOLS.items():
        arguments = ("X Y" if kind == "point" else argument for argument, (kind, _) in tool.arguments.items())
        lines.append(" ".join([name, *arguments]))
    return "\n  ".join(lines) + "\n" + RULES


def read_line(line: str) -> list[Call]:
    """Return the calls on a line: tools' names with their arguments in order, or JSON. ValueError otherwise.

    >>> [call.name for call in read_line("click 500 120; go_back; done so be it")]
    ['click', 'go_back', 'done']
    """
    if line.startswith("{"):
        return [read_call(line)]
    calls = []
    for part in filter(None, map(str.strip, line.split(";"))):
        name, _, rest = part.partition(" ")
        arguments = TOOLS[name].arguments if name in TOOLS else {}
        given, typed = {}, rest.split()
        if [kind for kind, _ in arguments.values()] == ["string"]:  # a text is all that follows
            typed = [rest.strip()][: bool(rest)]
        for argument, (kind, _) in arguments.items():
            n = {"point": 2, "strings": len(typed)}.get(kind, 1)
            taken, typed = typed[:n], typed[n:]
            if taken:
                given[argument] = taken if kind in ("point", "strings") else taken[0]
        if typed and name in TOOLS:
            raise ValueError(f"{part!r} is not understood")
        calls.append(read_call(json.dumps({"name": name, "arguments": given})))
    return calls
