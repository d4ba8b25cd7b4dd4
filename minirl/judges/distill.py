"""Distillation: a local judge learns to say what a teacher said of trajectories.

    labels --split--> train --training_row--> Trainer.clone --> checkpoints/judge
                      held out --a local or served judge--> verdicts --agreement.py--> tables

Stands before reinforcement, which the judge then rewards (`--reward.by judge`). OpenWebRL, section 4.3: an 8B
model learns the rationale and the verdict of 12.5K labelled rollouts; section 5.3 and table 3: how often it
agrees with its teacher on held-out ones. Beside it stand constant judges: it may have learned no more.
"""

import asyncio
from dataclasses import asdict, replace
from functools import partial

import torch

from minirl.checkpoint import Checkpoints
from minirl.config import to_json
from minirl.console import progress, say
from minirl.context import control_tokens, escape_control_tokens
from minirl.distributed import Ranks
from minirl.experiment import place_model
from minirl.judges.agreement import is_success, pair_of, score, show
from minirl.judges.judge import open_judge, prompt_of
from minirl.judges.labels import HELD_OUT, LABELLED, copy_screenshots, open_run, split, target
from minirl.judges.rubrics import Question, newest_screenshots
from minirl.judges.settings import JudgeScriptConfig
from minirl.model import Preprocessor, load_model, load_preprocessor
from minirl.rows import Row, TrajectoryRows, filter_by_length
from minirl.run_folder import Run, write_lines
from minirl.samplers.endpoint import ask_all
from minirl.trainer import Trainer, cloning_batches
from minirl.types import ImageStore, Trajectory


async def distil(config: JudgeScriptConfig, ranks: Ranks) -> None:
    """Train a judge on the labels that are not held out and save it as checkpoints/judge, what is held out as
    a dump, and the losses as metrics.jsonl."""
    run = open_run(config, ranks)
    source = Run(config.labelled or config.run_dir)
    train, heldout = split(source.load_trajectories(LABELLED), config.goals, config.seed)
    if ranks.is_main:
        run.save_trajectories(HELD_OUT, heldout)
        for trajectory in heldout:
            copy_screenshots(trajectory, source.images, run)
    config = replace(config, model=place_model(config, run.root / "model", ranks))
    run.write_config(to_json(config))
    run.truncate_after(0)  # forgets the losses of an earlier judge
    preprocessor = load_preprocessor(config.model)
    torch.manual_seed(config.seed)
    load = partial(load_model, config.model, dtype="auto")
    trainer = Trainer(load, preprocessor, config, source.images, ranks)
    rate = sum(map(is_success, train)) / len(train)
    say(f"learning from {len(train)} labels, {rate:.1%} of them SUCCESS; {len(heldout)} are held out")
    question = Question.of(config.judge)
    examples = []
    for n, labelled in enumerate(train):
        row = training_row(labelled, question, source.images, preprocessor)
        examples.append(TrajectoryRows(n, (row,)))
    rows = filter_by_length(examples, config.agent.context_tokens, "--agent.context-tokens", "question")
    losses = []
    with progress("distilling", len(cloning_batches(rows, config.sft, config.seed))) as meter:
        for metrics in trainer.clone(rows, config.seed):
            loss = metrics["loss"]
            losses.append(loss)
            run.add_metrics(len(losses), {"loss": loss})
            meter.advance(note=f"loss {loss:.3f}")
            await asyncio.sleep(0)  # lets the loop see Ctrl-C
    state = {"step": 0, "cursor": 0, "question": asdict(question)}
    Checkpoints(trainer, run.checkpoint_dir).export("judge", state)
    say(f"loss per token {losses[0]:.3f} to {losses[-1]:.3f}; the judge is in {run.checkpoint_dir / 'judge'}")


def training_row(
    labelled: Trajectory, question: Question, images: ImageStore, preprocessor: Preprocessor
) -> Row:
    """Return the question as the prompt and the label as the response, whose tokens all weigh the same."""
    assert labelled.verdict
    prompt = prompt_of(preprocessor, question.messages(labelled, images))
    names = newest_screenshots(labelled, question.rubric.screenshots)
    answer = escape_control_tokens(target(labelled.verdict), control_tokens(preprocessor.tokenizer))
    if preprocessor.chat.opens_think:
        answer = f"</think>\n\n{answer}"
    _, ids = preprocessor.render_response(answer)
    return Row(prompt.ids + ids, len(prompt.ids), names, (0.0,) * len(ids), advantage=1.0)


async def score_judge(config: JudgeScriptConfig, ranks: Ranks) -> None:
    """Ask a judge about what was held out and print how far it agrees, beside constant ones. --judge.path or
    --judge.model names it; by default it is the one that this run distilled."""
    run = Run(config.run_dir)
    heldout = run.load_trajectories(HELD_OUT)
    if not (config.judge.path or config.judge.model):
        distilled = str(run.checkpoint_dir / "judge")
        config = replace(config, judge=replace(config.judge, path=distilled))
    name = config.judge.path.removeprefix(f"{config.run_dir.parent}/") or config.judge.model
    async with open_judge(config, ranks, run.images) as judge:
        verdicts = await ask_all(judge, heldout)
    pairs = [pair_of(labelled, verdict) for labelled, verdict in zip(heldout, verdicts, strict=True)]
    write_lines(run.root / "scores" / f"{name.replace('/', '_')}.jsonl", map(vars, pairs))
    always = [replace(pair, verdict=True) for pair in pairs]
    never = [replace(pair, verdict=False) for pair in pairs]
    show({"always SUCCESS": score(always), "always NOT SUCCESS": score(never), name: score(pairs)})
