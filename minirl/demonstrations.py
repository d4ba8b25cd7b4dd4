"""Demonstrations from text: what a served model said, as the ids that our model would have read and said.

Stands between dumped trajectories and imitation. The conversation is told again through the same `Context`
that episodes use, so that a cloned turn has exactly the prompt that the model will see; here, and only here,
a response is tokenised. Log-probs are zeros: nobody of ours sampled it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from minirl.config import AgentConfig
from minirl.episode import Interface, conversation, shown
from minirl.model import Preprocessor
from minirl.types import Observation, Trajectory


def tokenised(
    trajectory: Trajectory,
    preprocessor: Preprocessor,
    interface: Interface,
    agent: AgentConfig,
    image: Callable[[str], bytes],
) -> Trajectory:
    """The trajectory with ids. `interface` is our agent's, `image` finds a screenshot by its name."""
    tokenizer, chat = preprocessor.tokenizer, preprocessor.chat
    context = conversation(agent, preprocessor, interface, trajectory.task)
    feedback: tuple[str, ...] = ()
    turns = []
    for turn in trajectory.turns:
        screenshot = image(turn.images[-1]) if turn.images else None
        seen = Observation(turn.observation, screenshot, turn.page_text, url=turn.url)
        prompt = context.observe(seen, feedback)
        text = turn.text
        if chat.opens_think:  # what the template has written already
            text = text.removeprefix("<think>").removeprefix("\n")
        said = text + (tokenizer.eos_token if turn.finish == "stop" else "")
        ids = tuple(tokenizer(said, add_special_tokens=False)["input_ids"])
        context.respond(ids, turn.text)
        turns.append(
            replace(
                turn,
                shared=prompt.shared,
                branch=prompt.ids[prompt.shared :],
                response_ids=ids,
                logprobs=(0.0,) * len(ids),
                text=text,
            )
        )
        feedback = shown(agent, turn.parsed, turn.feedback)
    return replace(trajectory, trunk=tuple(context.trunk), turns=tuple(turns))
