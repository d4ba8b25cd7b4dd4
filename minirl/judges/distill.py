"""Distillation: a local judge learns to say what a teacher said of trajectories.

    labels --split--> train --training_row--> Trainer.clone --> checkpoints/judge
                      held out --a local or served judge--> verdicts --agreement.py--> tables

Stands before reinforcement, which the judge then rewards (`--reward.by judge`). OpenWebRL, section 4.3: an 8B
model learns the rationale and the verdict of 12.5K labelled rollouts; section 5.3 and table 3: how often it
agrees with its teacher on held-out ones. Beside it stand constant judges: it may have learned no more.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial

import torch

from minirl.checkpoint import Checkpoints
from minirl.config import to_json
from minirl.console import progress, say
from minirl.distributed import Ranks
from minirl.experiment import place_model
from minirl.judges import labels
from minirl.judges.agreement import Pair, pair_of, score, show
from minirl.judges.judge import open_judge, prompt_of
from minirl.judges.labels import Example, RunsImages, target
from minirl.judges.rubrics import Question, newest_screenshots
from minirl.judges.settings import JudgeScriptConfig
from minirl.model import Preprocessor, load_model, load_preprocessor
from minirl.rows import Row, TrajectoryRows, filter_by_length
from minirl.run_folder import Run, write_lines
from minirl.samplers.endpoint import ask_all
from minirl.trainer import Trainer, cloning_batches
from minirl.types import ImageStore


async def distil(config: JudgeScriptConfig, ranks: Ranks) -> None:
    """Train a judge on the labels that are not held out and save it as checkpoints/judge, what is held out as
    heldout.jsonl, and the losses as metrics.jsonl."""
    labels.refuse_training_run(config)
    examples = labels.read_examples((config.labelled or config.run_dir) / "labels.jsonl")
    train, heldout = labels.split(examples, config.goals, config.stages, config.seed)
    if config.shuffle_labels:
        train = labels.shuffled(train, config.seed)
    run = Run(config.run_dir, records=ranks.is_main)
    images = RunsImages(example.label.run for example in examples)
    question = Question.of(config.judge)
    config = replace(config, model=place_model(config, run.root / "model", ranks))
    preprocessor = load_preprocessor(config.model)
    torch.manual_seed(config.seed)
    load = partial(load_model, config.model, dtype="auto")
    trainer = Trainer(load, preprocessor, config, images, ranks)
    if ranks.is_main:
        write_lines(run.root / "heldout.jsonl", [vars(example.label) for example in heldout])
        (run.root / "metrics.jsonl").unlink(missing_ok=True)
    run.write_config(to_json(config))
    rate = sum(example.label.verdict for example in train) / len(train)
    say(f"learning from {len(train)} labels, {rate:.1%} of them SUCCESS; {len(heldout)} are held out")
    rows = training_rows(train, question, images, preprocessor, config.agent.context_tokens)
    losses = []
    with progress("distilling", len(cloning_batches(rows, config.sft, config.seed))) as meter:
        for metrics in trainer.clone(rows, config.seed):
            loss = metrics["loss"]
            losses.append(loss)
            run.add_metrics(len(losses), {"loss": loss, "lr": trainer.optimizer.param_groups[0]["lr"]})
            meter.advance(note=f"loss {loss:.3f}")
            await asyncio.sleep(0)  # lets the loop see Ctrl-C
    state = {"step": 0, "cursor": 0, "question": asdict(question)}
    Checkpoints(trainer, run.checkpoint_dir).export("judge", state)
    say(f"loss per token {losses[0]:.3f} to {losses[-1]:.3f}; the judge is in {run.checkpoint_dir / 'judge'}")


def training_rows(
    train: Sequence[Example],
    question: Question,
    images: ImageStore,
    preprocessor: Preprocessor,
    max_tokens: int,
) -> list[TrajectoryRows]:
    """Return a row for each example that has at most `max_tokens` tokens. ValueError if none does."""
    examples = []
    for n, example in enumerate(train):
        row = training_row(example, question, images, preprocessor)
        examples.append(TrajectoryRows(n, (row,)))
    return filter_by_length(examples, max_tokens, "--agent.context-tokens", "question")


def training_row(example: Example, question: Question, images: ImageStore, preprocessor: Preprocessor) -> Row:
    """Return the question as the prompt and the label as the response, whose tokens all weigh the same."""
    prompt = prompt_of(preprocessor, question.messages(example.trajectory, images))
    screenshots = newest_screenshots(example.trajectory, question.rubric.screenshots)
    names = tuple(name for _, name in screenshots)
    answer = target(example.label.rationale, example.label.verdict, preprocessor)
    _, ids = preprocessor.render_response(answer)
    return Row(prompt.ids + ids, len(prompt.ids), names, (0.0,) * len(ids), advantage=1.0)


async def score_judge(config: JudgeScriptConfig, ranks: Ranks) -> None:
    """Ask a judge about what was held out and print how far it agrees, beside constant ones. --judge.path or
    --judge.model names it; by default it is the one that this run distilled."""
    path = config.run_dir / "heldout.jsonl"
    if not path.is_file():
        raise ValueError(f"{path} is not there: run judge.py distil first")
    examples = labels.read_examples(path)
    images = RunsImages(example.label.run for example in examples)
    if not (config.judge.path or config.judge.model):
        distilled = str(config.run_dir / "checkpoints/judge")
        config = replace(config, judge=replace(config.judge, path=distilled))
    name = config.judge.path.removeprefix(f"{config.run_dir.parent}/") or config.judge.model
    async with open_judge(config, ranks, images) as judge:
        trajectories = [example.trajectory for example in examples]
        verdicts = await ask_all(judge, trajectories)
    pairs = []
    for example, verdict in zip(examples, verdicts, strict=True):
        pairs.append(pair_of(example.trajectory, example.label.verdict, verdict, name))
    scores = config.run_dir / "scores" / f"{name.replace('/', '_')}.jsonl"
    write_lines(scores, [vars(pair) for pair in pairs])
    always = [Pair(pair.truth, True) for pair in pairs]
    never = [Pair(pair.truth, False) for pair in pairs]
    show({"always SUCCESS": score(always), "always NOT SUCCESS": score(never), name: score(pairs)})
