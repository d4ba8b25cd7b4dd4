"""R1-CoT: a reasoning model writes the thoughts of demonstrations; their actions stay as they are.

Stands between demonstrations and imitation, for the text agent. Paper: WebAgent-R1, section 3.4. Deviation:
a thought that is cut off, or does not leave the action readable as it was, is dropped and the demonstration's
own kept, which is counted and told.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace

from minirl.agents.webagent_r1 import parse, split
from minirl.config import Config
from minirl.console import progress, say
from minirl.demonstrations import tokenised
from minirl.episode import interface_of
from minirl.model import Preprocessor
from minirl.samplers.endpoint import EndpointError, open_endpoint, text
from minirl.types import Trajectory, Turn

TAGS = re.compile(r"</?(?:think|answer)>")

ASK = """\
Someone is using a website to fulfil this request:

{task}

So far they have done:
{history}

Now they see this page, as simplified HTML:

{page}

and do: {action}

Write what they think at this moment, in the first person and in at most three sentences: what on the page
matters, and why this is the right thing to do next. Write only the thought."""


async def with_thoughts(
    demos: Sequence[Trajectory], config: Config, preprocessor: Preprocessor
) -> list[Trajectory]:
    """The demonstrations with new thoughts, as the ids that our model would have read and said. ValueError
    if most of them keep the thoughts that they had."""
    interface, kept, tokens = interface_of(config.agent), 0, config.sft.thought_tokens

    async def rewrite(demo: Trajectory, n: int) -> Turn:
        nonlocal kept
        turn, said = demo.turns[n], [spelled(turn.text) for turn in demo.turns[:n]]
        asked = ASK.format_map({
            "task": demo.task.instruction,
            "history": "\n".join(said) or "nothing",
            "page": turn.page_text,
            "action": spelled(turn.text),
        })  # fmt: skip
        try:
            reply = await endpoint.ask([{"role": "user", "content": [text(asked)]}], tokens, temperature=0.0)
            thought = "" if reply.finish == "length" else reply.text
            new = replace(turn, text=thought_before(thought, turn.text))
        except EndpointError as error:
            say(f"{demo.task.id}, turn {n}: {error}")
            new = turn
        if parse(new.text).calls != turn.parsed.calls or new.text == turn.text:
            kept += 1
            new = turn
        meter.advance()
        return replace(new, parsed=parse(new.text))

    async def whole(demo: Trajectory) -> Trajectory:
        turns = await asyncio.gather(*(rewrite(demo, n) for n in range(len(demo.turns))))
        return tokenised(
            replace(demo, turns=tuple(turns)), preprocessor, interface, config.agent, lambda name: b""
        )

    total = sum(len(demo.turns) for demo in demos)
    async with open_endpoint(config.endpoint) as endpoint:
        with progress("writing thoughts", total) as meter:
            out = await asyncio.gather(*map(whole, demos))
    if 2 * kept > total:
        raise ValueError(
            f"{kept} of {total} turns keep the thoughts that they had: {config.endpoint.model} at "
            f"--endpoint.url {config.endpoint.url} gave nothing usable; see that it answers, and raise "
            f"--sft.thought-tokens ({tokens}) if it reasons for longer"
        )
    if kept:
        say(f"{kept} of {total} turns keep the thoughts that they had")
    return out


def spelled(said: str) -> str:
    """The action of a response, as it stands there.

    >>> spelled('<think> a list </think> <answer> go_backward() </answer>')
    'go_backward()'
    """
    return split(said)[1].strip()


def thought_before(thought: str, said: str) -> str:
    """The response with another thought. Tags in it are dropped: it must not close itself or answer."""
    words = " ".join(TAGS.sub(" ", thought).split())
    return f"<think> {words} </think> <answer> {spelled(said)} </answer>" if words else said
