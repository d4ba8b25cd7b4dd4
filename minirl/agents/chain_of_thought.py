"""R1-CoT: a reasoning model writes the thoughts of demonstrations; their actions stay as they are.

Stands between demonstrations and cloning, for the text agent. Paper: WebAgent-R1, section 3.4. Deviation: if
a thought is cut off, or changes the action, the demonstration's own stays; these are counted and reported.
"""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources

from minirl.agents.webagent_r1 import parse, split
from minirl.console import progress, say
from minirl.demonstrations import tokenised
from minirl.episode import Harness
from minirl.samplers.endpoint import EndpointError, open_endpoint
from minirl.types import Trajectory, Turn

TAGS = re.compile(r"</?(?:think|answer)>")
PROMPT = resources.files("minirl.agents").joinpath("prompts/chain_of_thought.md").read_text("utf-8")


async def with_thoughts(demos: Sequence[Trajectory], harness: Harness) -> list[Trajectory]:
    """Return the demonstrations with new thoughts, as the ids that our model would have read and said.
    ValueError if more than half of the turns keep the thoughts that they had."""
    served, tokens = harness.config.endpoint, harness.config.sft.thought_tokens

    async def rewrite(demo: Trajectory, n: int) -> Turn:
        turn, text, task = demo.turns[n], demo.turns[n].text, demo.task
        if not turn.trained:
            return turn
        history = "\n".join(spelled(earlier.text) for earlier in demo.turns[:n]) or "nothing"
        facts = {"task": task.instruction, "history": history, "page": turn.page_text}
        question = PROMPT.rstrip("\n").format(**facts, action=spelled(text))
        try:
            reply = await endpoint.ask([("user", (question,))], tokens, temperature=0.0)
            text = thought_before("" if reply.finish == "length" else reply.text, text)
        except EndpointError as error:
            say(f"{task.id}, turn {n}: {error}")
        meter.advance()
        parsed = parse(text)
        is_usable = text != turn.text and parsed.calls == turn.parsed.calls  # the action is as it was
        return replace(turn, text=text, parsed=parsed) if is_usable else turn

    total = sum(turn.trained for demo in demos for turn in demo.turns)
    async with open_endpoint(served) as endpoint:
        with progress("writing thoughts", total) as meter:
            work = [[rewrite(demo, n) for n in range(len(demo.turns))] for demo in demos]
            new = await asyncio.gather(*(asyncio.gather(*turns) for turns in work))
    told = [(turn, demo) for demo, turns in zip(demos, new, strict=True) for turn in turns if turn.trained]
    kept = sum(turn in demo.turns for turn, demo in told)
    line = f"{kept} of {total} turns keep the thoughts that they had"
    if 2 * kept > total:
        advice = f"see that --endpoint.url {served.url} answers, or raise --sft.thought-tokens ({tokens})"
        raise ValueError(f"{line}: {advice}")
    if kept:
        say(line)
    return [tokenised(replace(d, turns=tuple(turns)), harness) for d, turns in zip(demos, new, strict=True)]


def spelled(said: str) -> str:
    """Return the action of a response as it is spelled there: `go_backward()`."""
    return split(said)[1].strip()


def thought_before(thought: str, said: str) -> str:
    """Return the response with another thought; its tags are dropped, so that it can't close itself."""
    words = " ".join(TAGS.sub(" ", thought).split())
    return f"<think> {words} </think> <answer> {spelled(said)} </answer>" if words else said
