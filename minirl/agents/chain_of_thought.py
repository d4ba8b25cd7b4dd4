"""R1-CoT: a reasoning model writes the thoughts of demonstrations; their actions stay as they are.

Stands between demonstrations and cloning, for the text agent. Paper: WebAgent-R1, section 3.4. Deviation: if
a thought is cut off, or changes the action, the demonstration's own stays; these are counted and reported.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources

from minirl.agents.webagent_r1 import parse, split
from minirl.console import say
from minirl.demonstrations import tokenised
from minirl.episode import Harness
from minirl.samplers.endpoint import EndpointError, ask_all, open_endpoint
from minirl.types import Trajectory, Turn

TAGS = re.compile(r"</?(?:think|answer)>")
PROMPT = resources.files("minirl.agents").joinpath("prompts/chain_of_thought.md").read_text("utf-8")


async def with_thoughts(demos: Sequence[Trajectory], harness: Harness) -> list[Trajectory]:
    """Return the demonstrations with new thoughts, as the ids that our model would have read and said.
    ValueError if more than half of the turns keep the thoughts that they had."""
    served, tokens = harness.config.endpoint, harness.config.sft.thought_tokens

    async def rewritten(place: tuple[Trajectory, int]) -> Turn:
        demo, n = place
        turn, text, task = demo.turns[n], demo.turns[n].text, demo.task
        history = "\n".join(spelled(earlier.text) for earlier in demo.turns[:n]) or "nothing"
        facts = {"task": task.instruction, "history": history, "page": turn.page_text}
        question = PROMPT.rstrip("\n").format(**facts, action=spelled(text))
        try:
            reply = await endpoint.ask([("user", (question,))], tokens, temperature=0.0)
            text = thought_before("" if reply.finish == "length" else reply.text, text)
        except EndpointError as error:
            say(f"{task.id}, turn {n}: {error}")
        parsed = parse(text)
        is_usable = text != turn.text and parsed.calls == turn.parsed.calls  # the action is as it was
        return replace(turn, text=text, parsed=parsed) if is_usable else turn

    told = [(demo, n) for demo in demos for n, turn in enumerate(demo.turns) if turn.trained]
    async with open_endpoint(served) as endpoint:
        turns = await ask_all(rewritten, told, phase="writing thoughts")
    kept = sum(turn is demo.turns[n] for turn, (demo, n) in zip(turns, told, strict=True))
    line = f"{kept} of {len(told)} turns keep the thoughts that they had"
    if 2 * kept > len(told):
        advice = f"see that --endpoint.url {served.url} answers, or raise --sft.thought-tokens ({tokens})"
        raise ValueError(f"{line}: {advice}")
    if kept:
        say(line)
    new = iter(turns)
    whole = [replace(d, turns=tuple(next(new) if t.trained else t for t in d.turns)) for d in demos]
    return [tokenised(demo, harness) for demo in whole]


def spelled(said: str) -> str:
    """Return the action of a response as it is spelled there: `go_backward()`."""
    return split(said)[1].strip()


def thought_before(thought: str, said: str) -> str:
    """Return the response with another thought; its tags are dropped, so that it can't close itself."""
    words = " ".join(TAGS.sub(" ", thought).split())
    return f"<think> {words} </think> <answer> {spelled(said)} </answer>" if words else said
