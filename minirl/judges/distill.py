"""Distillation: a judge of our own learns to say what a teacher said of trajectories.

    labels --split--> train --training_row--> Trainer.clone --> checkpoints/judge
                      held out --a local or served judge--> verdicts --agreement.py--> tables

Stands before reinforcement, which the judge then rewards (`--judge.path`, `--reward.by judge`). OpenWebRL,
section 4.3: an 8B model learns the rationale and the verdict of 12.5K labelled rollouts; section 5.3 and
table 3: how often it agrees with its teacher on held-out ones. Beside it stand constant judges, because it
may have learned no more than how often tasks succeed; `--shuffle-labels` trains one that can't learn more.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from functools import partial
from hashlib import sha256
from pathlib import Path

import torch

from minirl.checkpoint import Checkpoints
from minirl.config import to_json
from minirl.console import progress, say
from minirl.distributed import Ranks
from minirl.experiment import open_model
from minirl.judges import labels
from minirl.judges.agent_reward_bench import FolderImages, read_agent_reward_bench
from minirl.judges.agreement import Pair, pair_of, score, show
from minirl.judges.judge import ask_all, open_judge, prompt_of
from minirl.judges.labels import Example, Label, RunsImages, target
from minirl.judges.rubrics import Question
from minirl.judges.settings import JudgeScriptConfig
from minirl.model import Preprocessor, load_preprocessor
from minirl.rows import Row, TrajectoryRows
from minirl.run_folder import Run, to_line, write_atomic
from minirl.trainer import Trainer, cloning_batches
from minirl.types import ImageStore

TOKENIZER_TEXTS = 400  # examples that a small tokenizer learns from
SAID_EVERY = 20  # updates between two lines of a distillation

BuildModel = Callable[[Path, Iterable[str], int], Path]  # folder, texts for the tokenizer, seed


async def distil(config: JudgeScriptConfig, ranks: Ranks, build_tiny: BuildModel) -> None:
    """Train a judge on the labels that are not held out, and save it as checkpoints/judge. heldout.jsonl has
    what is held out, for `score_judge`, and metrics.jsonl the losses. `build_tiny` makes `--model.path tiny`.
    """
    labels.refuse_training_run(config)
    examples = labels.read_examples((config.labelled or config.run_dir) / "labels.jsonl")
    train, heldout = labels.split(examples, config.goals, config.stages, config.seed)
    if config.shuffle_labels:
        train = labels.shuffled(train, config.seed)
    run, images = Run(config.run_dir, records=ranks.is_main), RunsImages(e.label.run for e in examples)
    question = Question.of(config.judge)
    if config.model.path == "tiny":
        folder = run.root / "model"
        if ranks.is_main:
            texts = []
            for e in random.Random(config.seed).sample(train, min(len(train), TOKENIZER_TEXTS)):
                parts = [part for _, parts in question.messages(e.trajectory, images) for part in parts]
                texts += [part for part in parts if isinstance(part, str)]
                texts.append(target(e.label.rationale, e.label.verdict))
            build_tiny(folder, texts, config.seed)
        ranks.barrier()
        config = replace(config, model=replace(config.model, path=str(folder)))
    preprocessor = load_preprocessor(config.model)
    torch.manual_seed(config.seed)
    with progress("loading the model"):
        trainer = Trainer(partial(open_model, config), preprocessor, config, images, ranks)
    if ranks.is_main:
        write_atomic(run.root / "heldout.jsonl", b"".join(to_line(vars(e.label)) for e in heldout))
        (run.root / "metrics.jsonl").unlink(missing_ok=True)
    run.write_config(to_json(config))
    rate = sum(example.label.verdict for example in train) / len(train)
    say(f"learning from {len(train)} labels, {rate:.1%} of them SUCCESS; {len(heldout)} are held out")
    rows = training_rows(train, question, images, preprocessor, config.agent.context_tokens)
    total, losses = len(cloning_batches(rows, config.sft, config.seed)), []
    with progress("distilling", total) as meter:
        for loss in trainer.clone(rows, config.sft, config.seed):
            losses.append(loss)
            run.add_metrics(len(losses), {"loss": loss, "lr": trainer.optimizer.param_groups[0]["lr"]})
            meter.advance(note=f"loss {loss:.3f}")
            if len(losses) % SAID_EVERY == 0:
                say(f"update {len(losses)}/{total}: loss {loss:.3f}")
            await asyncio.sleep(0)  # lets the loop see Ctrl-C
    state = {"step": 0, "cursor": 0, "question": asdict(question)}
    Checkpoints(trainer, run.checkpoint_dir).export("judge", state)
    went = f"the loss per token went from {losses[0]:.3f} to {losses[-1]:.3f}"
    say(f"{went}; the judge is in {run.checkpoint_dir / 'judge'}")


def training_rows(
    train: Sequence[Example], question: Question, images: ImageStore, preprocessor: Preprocessor, most: int
) -> list[TrajectoryRows]:
    """Return a row for each example that has at most `most` tokens. ValueError if none does."""
    rows = []
    with progress("reading the labels", len(train)) as meter:
        for example in train:
            rows.append(training_row(example, question, images, preprocessor))
            meter.advance()
    fitting = [TrajectoryRows(n, (row,)) for n, row in enumerate(rows) if len(row.ids) <= most]
    if not fitting:
        raise ValueError(f"no question has at most --agent.context-tokens {most} tokens")
    if left_out := len(rows) - len(fitting):
        say(f"{left_out} questions were longer than --agent.context-tokens, and were left out")
    return fitting


def training_row(example: Example, question: Question, images: ImageStore, preprocessor: Preprocessor) -> Row:
    """Return the question about a trajectory as a prompt, and its label as the response."""
    prompt = prompt_of(preprocessor, question.messages(example.trajectory, images))
    names = tuple(name for _, name in question.screenshots_of(example.trajectory))
    tokenizer = preprocessor.tokenizer
    answer = target(example.label.rationale, example.label.verdict, preprocessor) + tokenizer.eos_token
    ids = tuple(tokenizer(answer, add_special_tokens=False)["input_ids"])
    return Row(prompt.ids + ids, len(prompt.ids), names, (0.0,) * len(ids), advantage=1.0)


async def score_judge(config: JudgeScriptConfig, ranks: Ranks) -> None:
    """Ask a judge about what was held out and print how far it agrees, beside the judges that were asked the
    same before. --judge.path or --judge.model names it; by default it is the one that this run distilled."""
    own = config.run_dir / "checkpoints" / "judge"
    if not (config.judge.path or config.judge.model):
        if not own.is_dir():
            raise ValueError(f"{own} is not there: run judge.py distil first, or give --judge.path")
        config = replace(config, judge=replace(config.judge, path=str(own)))
    path, images = config.run_dir / "heldout.jsonl", None
    if config.bench is not None:
        images, examples = FolderImages(config.bench), []
        for n, (trajectory, truth) in enumerate(read_agent_reward_bench(config.bench)):
            label = Label("", trajectory.task.id, n, "", "", truth, source="people")
            examples.append(Example(label, trajectory))
    elif path.is_file():
        examples = labels.read_examples(path)
    else:
        raise ValueError(f"{path} is not there: run judge.py distil first, or give --bench FOLDER")
    images = images or RunsImages(e.label.run for e in examples)
    name, path = config.judge.path or config.judge.model, Path(config.judge.path)
    if config.judge.path and path.is_relative_to(config.out):
        name = str(path.relative_to(config.out))
    async with open_judge(config, ranks, images) as judge:
        verdicts = await ask_all(judge, [e.trajectory for e in examples], config.judge.concurrency)
    pairs = [
        pair_of(e.trajectory, e.label.verdict, verdict, judge=name, name=e.label.name, part=e.label.part)
        for e, verdict in zip(examples, verdicts, strict=True)
    ]
    # Judges are compared on the same test only, which a digest tells from others.
    test = json.dumps(sorted((e.label.name, e.label.verdict) for e in examples))
    folder = config.run_dir / "scores" / sha256(test.encode()).hexdigest()[:8]
    file = re.sub(r"[^A-Za-z0-9.-]+", "_", name).strip("_.")[-100:] + ".jsonl"
    write_atomic(folder / file, b"".join(to_line(vars(pair)) for pair in pairs))
    show_scores(folder, name)
    for example, pair in zip(examples, pairs, strict=True):
        if pair.verdict not in (None, pair.truth):
            return say(f"a mistake: {example.trajectory.task.instruction!r}: {pair.rationale!r}")


def show_scores(folder: Path, name: str) -> None:
    """Print the paper's table 3 with every judge whose answers are in the folder, under what a constant judge
    would reach, and the parts of the judge of that name."""
    judges = [labels.read_records(path, Pair) for path in sorted(folder.glob("*.jsonl"))]
    truths = [pair.truth for pair in judges[0]]
    words = {True: "SUCCESS", False: "NOT SUCCESS"}
    scores = {f"always {words[verdict]}": score([Pair(t, verdict) for t in truths]) for verdict in words}
    for pairs in judges:
        rows = score(pairs)
        scores[pairs[0].judge] = rows if pairs[0].judge == name else rows[:1]
    show(scores)
    rate = sum(truths) / len(truths)
    right = f"always says {words[rate >= 0.5]} is right in {max(rate, 1 - rate):.1%}"
    say(f"{len(truths)} episodes, {rate:.1%} are successes: a judge that {right}")
