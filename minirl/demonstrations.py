"""Demonstrations: successful trajectories to clone, from scripted solutions or from dumps.

Stands between the task set and the warm start (sft.py). OpenWebRL section 3.3. Only here is a response
tokenised: what a served model has said is told again through the `Context` that episodes use, so a cloned
turn has exactly the prompt that the model will see. Its log-probs are zeros: no policy of ours sampled it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from minirl.episode import Harness, conversation
from minirl.run_folder import Run
from minirl.types import Observation, Trajectory


def load_demonstrations(path: Path, run: Run, harness: Harness) -> list[Trajectory]:
    """Return the successes of a file in a run's trajectories folder, with ids if they had none. Their
    screenshots are copied into `run`. ValueError if there is none."""
    source = Run(path.resolve().parents[1])
    found = [t for t in source.load_trajectories(path.stem) if t.success and t.valid]
    if not found:
        raise ValueError(f"--sft.demos {path} holds no success to clone")
    for name in {image for trajectory in found for turn in trajectory.turns for image in turn.images}:
        run.images.put(source.images.get(name))
    return [t if t.trunk else tokenised(t, replace(harness, images=source.images)) for t in found]


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
        turns.append(turn)
        feedback = agent.visible_feedback(turn.parsed, turn.feedback)
    return replace(trajectory, trunk=tuple(context.trunk), turns=tuple(turns))
