"""Demonstrations: what somebody else has said becomes what our model would have read and said.

Stands between the readers (minirl/data/readers.py) and the warm start (sft.py). OpenWebRL section 3.3. Only
here is a response tokenised: it is told again through the `Context` that episodes use, so a cloned turn has
exactly the prompt that the model will see. Its log-probs are zeros: no policy of ours sampled it.
"""

from dataclasses import replace

from minirl.episode import Harness, conversation
from minirl.types import Observation, Trajectory


def tokenised(trajectory: Trajectory, harness: Harness) -> Trajectory:
    """Return the trajectory with the ids that our model would have read and said."""
    preprocessor, agent = harness.preprocessor, harness.agent
    context = conversation(agent, harness.config.agent, preprocessor, trajectory.task)
    feedback: tuple[str, ...] = ()
    turns = []
    for turn in trajectory.turns:
        screenshot = harness.images.get(turn.images[-1]) if turn.images else None
        seen = Observation(turn.observation, screenshot, turn.page_text, url=turn.url)
        prompt = context.observe(seen, feedback)
        text, ids = preprocessor.said(turn.text, turn.finish == "stop")
        context.respond(ids, turn.text)
        branch, zeros = prompt.ids[prompt.shared :], (0.0,) * len(ids)
        turn = replace(turn, shared=prompt.shared, branch=branch, response_ids=ids, logprobs=zeros, text=text)
        turns.append(replace(turn, images=tuple(harness.images.put(image) for image in prompt.images)))
        feedback = agent.visible_feedback(turn.parsed, turn.feedback)
    return replace(trajectory, trunk=tuple(context.trunk), turns=tuple(turns))
