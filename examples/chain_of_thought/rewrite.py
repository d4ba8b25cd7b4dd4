"""R1-CoT: a reasoning model writes the thoughts of demonstrations; their actions stay as they are.

    python sft.py tiny-text
    python examples/chain_of_thought/rewrite.py runs/tiny_text/trajectories/demos.jsonl \\
        --endpoint.url URL --endpoint.model NAME
    python sft.py tiny-text --name cot --sft.demos runs/tiny_text/trajectories/demos_thoughts.jsonl

Reads a dump of the text agent's demonstrations and writes another one beside it, without token ids: sft.py
makes those. Paper: WebAgent-R1, section 3.4 and table 5, whose prompt is in our words. Deviations:
1. If a thought is cut off, or changes the action, the demonstration's own stays; these turns are counted.
2. Reinforcement cuts responses at 1,024 tokens as in the paper, and so longer thoughts.
"""

import asyncio
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import tyro

from minirl.agents.webagent_r1 import LEFT_OUT, parse, split
from minirl.config import EndpointConfig
from minirl.console import printable, say
from minirl.run_folder import Run
from minirl.samplers.endpoint import Endpoint, EndpointError, ask_all, open_endpoint
from minirl.types import Trajectory, Turn

TAGS = re.compile(r"</?(?:think|answer)>")
PROMPT = Path(__file__).with_name("prompt.md")
FIELDS = ("task", "history", "page", "action", "remarks")
FIELD = re.compile(r"\{(" + "|".join(FIELDS) + r")\}")


async def with_thoughts(
    demos: Sequence[Trajectory], config: EndpointConfig, max_tokens: int, prompt: Path = PROMPT
) -> list[Trajectory]:
    """Return the demonstrations with new thoughts in every turn that is trained on, and without token ids.
    ValueError if more than half of these turns keep their thoughts, or the prompt lacks a field."""
    template = prompt.read_text("utf-8").rstrip("\n")
    missing = set(FIELDS) - set(FIELD.findall(template))
    if missing:
        raise ValueError(f"{prompt} lacks the field {{{sorted(missing)[0]}}}, which prompt.md has")
    places = []
    for demo in demos:
        places += [(demo, n) for n, turn in enumerate(demo.turns) if turn.trained]

    async with open_endpoint(config) as endpoint:

        async def rewrite(place: tuple[Trajectory, int]) -> Turn:
            return await rewritten(endpoint, *place, max_tokens, template)

        new_turns = await ask_all(rewrite, places, phase="writing thoughts")

    n_unchanged = 0
    for new, (demo, n) in zip(new_turns, places, strict=True):
        n_unchanged += new is demo.turns[n]
    line = f"{n_unchanged} of {len(places)} turns keep the thoughts that they had"
    if 2 * n_unchanged > len(places):
        advice = f"see that --endpoint.url {config.url} answers, or raise --max-tokens ({max_tokens})"
        raise ValueError(f"{line}: {advice}")
    if n_unchanged:
        say(line)

    following = iter(new_turns)
    out = []
    for demo in demos:
        turns = [without_ids(next(following) if turn.trained else turn) for turn in demo.turns]
        out.append(replace(demo, prefix=(), turns=tuple(turns)))
    return out


async def rewritten(endpoint: Endpoint, demo: Trajectory, n: int, max_tokens: int, template: str) -> Turn:
    """Return a turn with the thought that the model gives; the very same turn if that is of no use."""
    turn = demo.turns[n]
    fields = {
        "task": demo.task.instruction,
        "history": json.dumps([earlier_round(k, past) for k, past in enumerate(demo.turns[:n])], indent=2),
        "page": turn.page_text,
        "action": action_text(turn.text),
        "remarks": turn.parsed.thought,
    }
    question = FIELD.sub(lambda field: fields[field[1]], template)
    try:
        reply = await endpoint.ask([("user", (question,))], max_tokens, temperature=0.0)
    except EndpointError as error:
        say(f"{demo.task.id}, turn {n}: {error}")
        return turn
    thought = "" if reply.finish == "length" else f"{reply.reasoning}\n\n{reply.text}"
    text = with_thought(thought, turn.text)
    parsed = parse(text)
    if text == turn.text or parsed.calls != turn.parsed.calls:
        return turn
    return replace(turn, text=text, parsed=parsed)


def earlier_round(n: int, turn: Turn) -> dict[str, str]:
    """Return an earlier round as the model is told of it."""
    action = action_text(turn.text)
    return {"round": str(n), "observation": LEFT_OUT, "remarks": turn.parsed.thought, "action": action}


def without_ids(turn: Turn) -> Turn:
    return replace(turn, shared=0, suffix=(), response_ids=(), logprobs=())


def action_text(response: str) -> str:
    """Return the action of a response as it is written there: `go_backward()`."""
    return split(response)[1].strip()


def with_thought(thought: str, response: str) -> str:
    """Return the response with another thought; its tags are dropped, so that it can't close itself."""
    thought = " ".join(TAGS.sub(" ", thought).split())
    if not thought:
        return response
    return f"<think> {thought} </think> <answer> {action_text(response)} </answer>"


def main(
    dump: tyro.conf.Positional[Path],
    endpoint: EndpointConfig,
    max_tokens: int = 4096,
    prompt: Path = PROMPT,
) -> None:
    """The successes of a dump with new thoughts, as NAME_thoughts.jsonl beside it.

    Args:
        dump: RUN/trajectories/NAME.jsonl, of the text agent.
        max_tokens: The longest answer, hidden reasoning included.
        prompt: Another file for the question, with the fields of prompt.md.
    """
    run = Run(dump.resolve().parents[1])
    demos = [t for t in run.load_trajectories(dump.stem) if t.success and t.valid]
    label = f"{dump.stem}_thoughts"
    run.save_trajectories(label, asyncio.run(with_thoughts(demos, endpoint, max_tokens, prompt)))
    say(f"--sft.demos {run.trajectory_path(label)}")


if __name__ == "__main__":
    try:
        tyro.cli(main)
    except (ValueError, OSError) as error:
        sys.exit(printable(f"rewrite: {error}"))
