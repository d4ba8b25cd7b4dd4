"""Demonstrations: what somebody else has said becomes what our model would have read and said.

    RUN/trajectories/LABEL.jsonl --load_demonstrations--> trajectories with token ids

Stands before the warm start (sft.py). OpenWebRL, section 4.2. The dump is of a run of ours, maybe of another
model or prompt, of a served teacher, or of public records (`python -m minirl.data read`), which hold texts
without ids. Only here is a response tokenised: it goes through the `Context` that episodes use, so a cloned
turn has exactly the prompt that the model will see. Its log-probs are zeros: no policy of ours sampled it.
"""

from dataclasses import replace
from pathlib import Path

from minirl.episode import Harness, conversation
from minirl.run_folder import Run
from minirl.types import Feedback, Observation, Trajectory


def load_demonstrations(path: Path, harness: Harness) -> list[Trajectory]:
    """Return a dump's successes with the ids that our model would have read and said; their screenshots are
    put where the harness's are. ValueError if the file is no dump, or holds no success."""
    file = path.resolve()
    if file.parent.name != "trajectories" or file.name != f"{path.stem}.jsonl":
        fix = "read public records into one first, with python -m minirl.data read"
        raise ValueError(f"--sft.demos {path} is no dump in a run's trajectories folder: {fix}")
    run = Run(file.parent.parent)
    successes = [episode for episode in run.load_trajectories(path.stem) if episode.success and episode.valid]
    if not successes:
        raise ValueError(f"--sft.demos {path} holds no success to clone")
    closing = harness.preprocessor.chat.closing
    for episode in successes:
        for turn in episode.turns:
            for name in turn.images:
                harness.images.put(run.images.get(name))
            problem = harness.agent.parse(closing + turn.text).error
            if problem and not turn.parsed.error:
                raise ValueError(f"--sft.demos {path} is of another agent: {problem}")
    # also where there are ids, which may be another tokenizer's, and of another prompt
    return [tokenised(episode, harness) for episode in successes]


def tokenised(trajectory: Trajectory, harness: Harness) -> Trajectory:
    """Return the trajectory with the ids that our model would have read and said."""
    preprocessor = harness.preprocessor
    agent = harness.agent
    context = conversation(agent, harness.config.agent, preprocessor, trajectory.task)
    feedback: Feedback = ()
    turns = []
    for turn in trajectory.turns:
        screenshot = harness.images.get(turn.images[-1]) if turn.images else None
        observation = Observation(turn.observation, screenshot, turn.page_text, url=turn.url)
        prompt = context.observe(observation, feedback)
        text, ids = preprocessor.render_response(turn.text, turn.finish == "stop")
        context.respond(ids, turn.text)
        retold = replace(
            turn,
            shared=prompt.shared,
            suffix=prompt.ids[prompt.shared :],
            response_ids=ids,
            logprobs=(0.0,) * len(ids),
            text=text,
            images=tuple(harness.images.put(image) for image in prompt.images),
        )
        turns.append(retold)
        feedback = agent.visible_feedback(turn.parsed, turn.feedback)
    return replace(trajectory, prefix=tuple(context.prefix), turns=tuple(turns))
