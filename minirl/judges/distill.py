"""Distillation: a judge of our own learns to say what a teacher said of trajectories.

    labels --split--> train --rows--> Trainer.imitate --> checkpoints/judge
                      held out --questions--> LocalJudge, or a served one --verdicts--> tables

Stands before reinforcement, which the judge then rewards (`--judge.path`; on sites that can be asked for
their state, with `--reward.by judge`). OpenWebRL, section 4.3: an 8B model is trained on 12.5K labelled
rollouts to predict the rationale and the verdict; section 5.3 and table 3: how often it agrees with its
teacher on held-out ones. It is behaviour cloning as in sft.py: the prompt is the judge's question
(minirl/judges/judge.py), the response the reasons, the verdict on a line of its own and the end token,
and the
loss is on the response.

Beside a judge's numbers stand those of constant ones, because a judge may have learned no more than how
often tasks succeed; `--shuffle-labels` trains the control that can learn nothing else.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path

import torch

from minirl.checkpoint import Checkpoints
from minirl.config import Config, JudgeConfig, to_json
from minirl.console import progress, say
from minirl.distributed import Ranks
from minirl.judges.agreement import Pair, Row, count, pair_of, read_agent_reward_bench, score, show
from minirl.judges.judge import judge_messages, judge_prompt, newest_screenshots
from minirl.judges.labels import (
    Example,
    label_runs,
    labels_path,
    read_examples,
    shuffled,
    split,
    target,
    world_teacher,
)
from minirl.judges.local import Judge, open_judge, question_of
from minirl.model import Preprocessor, load_model, load_preprocessor
from minirl.rows import Row as TrainingRow
from minirl.run_folder import Run, read_lines, to_line, write_atomic
from minirl.tiny import checkpoints as tiny
from minirl.trainer import Trainer, cosine
from minirl.types import Trajectory, Verdict

TOKENIZER_TEXTS = 400  # examples that a small tokenizer learns from
SAID_EVERY = 20  # updates between two lines of a distillation


# --- label ---------------------------------------------------------------------------------------------


async def label(config: Config, ranks: Ranks) -> None:
    """Labels the dumps of `--runs` with the teacher, and says how many of each kind there are."""
    refuse_training_run(config)
    if config.distil.teacher == "world":
        counts = await label_runs(config, world_teacher, "world")
    else:
        if not config.judge.model:
            raise ValueError("--teacher endpoint needs --judge.model, the name under which it is served")
        async with open_judge(replace(config, judge=replace(config.judge, path="")), ranks) as teacher:
            counts = await label_runs(config, teacher, config.judge.model)
    for what, number in counts.most_common():
        say(f"{number} {what}")
    path = labels_path(Run(config.run_dir))
    if not path.exists():
        raise ValueError(f"nothing could be labelled: {', '.join(counts) or 'the dumps are empty'}")
    verdicts = Counter(record["verdict"] for _, record in read_lines(path))
    total, share = verdicts.total(), verdicts[True] / verdicts.total()
    say(f"{path} holds {total} labels; {share:.1%} are SUCCESS")


def refuse_training_run(config: Config) -> None:
    """ValueError if the run's folder belongs to a policy."""
    if Run(config.run_dir).labels():
        raise ValueError(f"{config.run_dir} holds a policy's run; choose another --name")


# --- what is trained on --------------------------------------------------------------------------------


def training_row(
    preprocessor: Preprocessor, example: Example, judge: JudgeConfig, image: Callable[[str], bytes]
) -> TrainingRow:
    """The question about a trajectory as a prompt, and its label as the response."""
    names: list[str] = []

    def shown(name: str) -> bytes:
        names.append(name)
        return image(name)

    messages = judge_messages(example.trajectory, shown, **question_of(judge))
    prompt = judge_prompt(preprocessor, messages)
    said = (
        target(example.label.rationale, example.label.verdict, preprocessor)
        + preprocessor.tokenizer.eos_token
    )
    ids = tuple(preprocessor.tokenizer(said, add_special_tokens=False)["input_ids"])
    return TrainingRow(prompt.ids + ids, len(prompt.ids), tuple(names), (0.0,) * len(ids), advantage=1.0)


def image_of(examples: Sequence[Example]) -> Callable[[str], bytes]:
    """Finds a screenshot in whichever run it was seen. Names are hashes, so equal ones are equal pictures."""
    runs: dict[str, Run] = {}
    for example in examples:
        run = runs.setdefault(example.label.run, Run(Path(example.label.run)))
        names = [name for turn in example.trajectory.turns for name in turn.images]
        runs |= dict.fromkeys([*names, example.trajectory.final_image], run)
    return lambda name: runs[name].image(name)


def batches(examples: Sequence[Example], size: int, epochs: int, seed: int) -> Iterator[list[Example]]:
    """Random order in every epoch, `size` at a time; what remains joins the last batch if it is less than
    half of one."""
    for epoch in range(epochs):
        order = random.Random(f"{seed}|{epoch}").sample(list(examples), len(examples))
        while order:
            end = size if len(order) >= 1.5 * size else len(order)
            yield order[:end]
            order = order[end:]


def updates_of(config: Config, examples: int) -> int:
    """How many updates the config asks for."""
    of_one_epoch = sum(1 for _ in batches([None] * examples, config.sft.batch, 1, 0))
    return min(config.sft.epochs * of_one_epoch, config.sft.max_steps or 10**9)


# --- distil --------------------------------------------------------------------------------------------


async def distil(config: Config, ranks: Ranks) -> None:
    """Trains a judge on the labels that are not held out, and saves it as checkpoints/judge. What is held out
    is in heldout.jsonl, for `score_judge`; losses are in metrics.jsonl."""
    refuse_training_run(config)
    labels = config.distil.labelled or config.run_dir
    examples = read_examples(labels_path(Run(labels)))
    train, heldout = split(examples, config.distil, config.seed)
    if config.distil.shuffle_labels:
        train = shuffled(train, config.seed)
    image = image_of(examples)
    run = Run(config.run_dir, records=ranks.is_main)
    config = with_model(config, train, image, ranks)
    preprocessor = load_preprocessor(config.model)
    with progress("loading the model"):
        model = load_model(config.model, torch.device("cpu"), "auto")
    torch.manual_seed(config.seed)
    trainer = Trainer(model, preprocessor, config, image, ranks)
    if ranks.is_main:
        write_atomic(run.root / "heldout.jsonl", b"".join(to_line(vars(e.label)) for e in heldout))
        (run.root / "metrics.jsonl").unlink(missing_ok=True)
    run.write_config(to_json(config))
    rate = sum(example.label.verdict for example in train) / len(train)
    say(f"learning from {len(train)} labels, {rate:.1%} of them SUCCESS; {len(heldout)} are held out")
    first, last = await imitate(trainer, train, run, image)
    state = {"step": 0, "cursor": 0, "question": question_of(config.judge)}
    checkpoints = Checkpoints(trainer, run.checkpoint_dir)
    checkpoints.export("judge", state)
    where = run.checkpoint_dir / "judge"
    say(f"the loss per token went from {first:.3f} to {last:.3f}; the judge is in {where}")


async def imitate(
    trainer: Trainer, train: Sequence[Example], run: Run, image: Callable[[str], bytes]
) -> tuple[float, float]:
    """All updates; the loss of the first and of the last one. Rows are made batch by batch, since all of them
    would fill the memory. ValueError if no question fits into the context."""
    config, judge, sft = trainer.config, trainer.config.judge, trainer.config.sft
    total, losses = updates_of(config, len(train)), []
    too_long: set[tuple[str, str, int]] = set()
    with progress("distilling", total) as meter:
        for update, part in enumerate(batches(train, sft.batch, sft.epochs, config.seed)):
            if update == total:
                break
            rows = {e.label.key: training_row(trainer.preprocessor, e, judge, image) for e in part}
            long = {key for key, row in rows.items() if len(row.ids) > config.agent.context_tokens}
            too_long |= long
            if fitting := [row for key, row in rows.items() if key not in long]:
                lr = sft.lr * cosine(update, total, sft.warmup)
                losses.append(trainer.imitate(fitting, lr))
                run.add_metrics(update + 1, {"loss": losses[-1], "lr": lr})
            meter.advance(note=f"loss {losses[-1]:.3f}" if losses else "")
            if (update + 1) % SAID_EVERY == 0 and losses:
                say(f"update {update + 1}/{total}: loss {losses[-1]:.3f}")
            await asyncio.sleep(0)  # lets the loop see Ctrl-C
    if not losses:
        raise ValueError(
            f"no question has at most --agent.context-tokens {config.agent.context_tokens} tokens"
        )
    if too_long:
        say(f"{len(too_long)} questions were longer than --agent.context-tokens, and were left out")
    return losses[0], losses[-1]


def with_model(
    config: Config, train: Sequence[Example], image: Callable[[str], bytes], ranks: Ranks
) -> Config:
    """The config with a real folder or hub name as its model: `tiny` is built, with a tokenizer that has
    learned from questions and labels."""
    if config.model.path != "tiny":
        return config
    path = config.run_dir / "model"
    if ranks.is_main:
        texts = []
        for example in random.Random(config.seed).sample(list(train), min(len(train), TOKENIZER_TEXTS)):
            messages = judge_messages(example.trajectory, image, **question_of(config.judge))
            texts += [part for _, parts in messages for part in parts if isinstance(part, str)]
            texts.append(target(example.label.rationale, example.label.verdict))
        tiny.build_judge(path, texts, config.seed)
    ranks.barrier()
    return replace(config, model=replace(config.model, path=str(path)))


# --- score ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Question:
    """A trajectory that a judge is tested on."""

    name: str  # the same for the same trajectory in every scoring
    trajectory: Trajectory
    truth: bool
    image: Callable[[str], bytes]
    part: str = ""


def questions_of(config: Config) -> list[Question]:
    """The held-out labels of the run, or AgentRewardBench's episodes."""
    if config.distil.bench is not None:
        folder = config.distil.bench
        episodes = enumerate(read_agent_reward_bench(folder))
        find = partial(read_below, folder)
        return [Question(f"{n}/{t.task.id}", t, truth, find) for n, (t, truth) in episodes]
    path = config.run_dir / "heldout.jsonl"
    if not path.is_file():
        raise ValueError(f"{path} is not there: run judge.py distil first, or give --bench FOLDER")
    examples = read_examples(path)
    image = image_of(examples)
    return [
        Question("/".join(map(str, e.label.key)), e.trajectory, e.label.verdict, image, e.label.part)
        for e in examples
    ]


def read_below(folder: Path, name: str) -> bytes:
    return (folder / name).read_bytes()


async def score_judge(config: Config, ranks: Ranks) -> None:
    """Asks a judge about what was held out and prints how far it agrees, beside the judges that were asked
    the same before. --judge.path or --judge.model names it; by default it is the one that this run
    distilled."""
    own = config.run_dir / "checkpoints" / "judge"
    if not (config.judge.path or config.judge.model):
        if not own.is_dir():
            raise ValueError(f"{own} is not there: run judge.py distil first, or give --judge.path")
        config = replace(config, judge=replace(config.judge, path=str(own)))
    questions, path = questions_of(config), Path(config.judge.path)
    name = config.judge.path or config.judge.model
    if config.judge.path and path.is_relative_to(config.out):
        name = str(path.relative_to(config.out))
    at_once, swapped = config.judge.concurrency, []
    async with open_judge(config, ranks) as judge:
        verdicts = await ask_all(judge, questions, at_once)
        if config.judge.brief and config.judge.path:
            swapped = await ask_all(judge, exchanged(questions), at_once)
    folder = config.run_dir / "scores" / digest_of_set(questions)
    save_scores(folder, name, questions, verdicts)
    print_scores(folder, questions, name, verdicts)
    if swapped:
        pairs = [(a, b) for a, b in zip(verdicts, swapped, strict=True) if a.success is not None]
        same = sum(a.success == b.success for a, b in pairs)
        say(f"with another episode's screenshot {same} of {len(pairs)} verdicts stay as they are")


def exchanged(questions: Sequence[Question]) -> list[Question]:
    """The same with the newest screenshot of another episode: verdicts that stay were read from the text.
    (Black ones would be no test: nothing that a small model has seen looks like that.)"""
    half = len(questions) // 2
    out = []
    for question, other in zip(questions, [*questions[half:], *questions[:half]], strict=True):
        newest = newest_screenshots(other.trajectory, 1)
        image = partial(picture_of, other, newest[0][1]) if newest else question.image
        out.append(replace(question, image=image))
    return out


def picture_of(question: Question, name: str, _: str) -> bytes:
    """That picture, whichever is asked for."""
    return question.image(name)


async def ask_all(judge: Judge, questions: Sequence[Question], at_once: int) -> list[Verdict]:
    slots = asyncio.Semaphore(at_once)

    async def ask(question: Question) -> Verdict:
        async with slots:
            verdict = await judge(question.trajectory, question.image)
        meter.advance()
        return verdict

    with progress("judging", len(questions)) as meter:
        return list(await asyncio.gather(*map(ask, questions)))


def digest_of_set(questions: Sequence[Question]) -> str:
    """Tells sets of questions apart: judges are compared on the same one only."""
    told = [(question.name, question.truth) for question in questions]
    return sha256(json.dumps(sorted(told)).encode()).hexdigest()[:8]


def save_scores(folder: Path, name: str, questions: Sequence[Question], verdicts: Sequence[Verdict]) -> None:
    """One file for each judge, with what it said."""
    lines = []
    for question, verdict in zip(questions, verdicts, strict=True):
        pair = pair_of(question.trajectory, question.truth, verdict)
        said = {"rationale": verdict.rationale, "error": verdict.error}
        lines.append({"judge": name, "name": question.name, "part": question.part, **vars(pair), **said})
    file = re.sub(r"[^A-Za-z0-9.-]+", "_", name).strip("_.")[-100:] + ".jsonl"
    write_atomic(folder / file, b"".join(map(to_line, lines)))


def rows_of(pairs: Sequence[Pair], parts: Sequence[str]) -> list[Row]:
    """`agreement.score`, with a row for each part of the held-out labels behind the first one."""
    overall, *others = score(pairs)
    named = sorted(set(parts) - {""})
    by_part = [[p for p, part in zip(pairs, parts, strict=True) if part == name] for name in named]
    return [overall, *(count("split", *each) for each in zip(named, by_part, strict=True)), *others]


def print_scores(folder: Path, questions: Sequence[Question], name: str, verdicts: Sequence[Verdict]) -> None:
    """Every judge that was asked these questions in the paper's table 3, under what a constant judge would
    reach; this judge's parts; and one of its mistakes in its own words."""
    truths = [question.truth for question in questions]
    rate = sum(truths) / len(truths)
    usual = rate >= 0.5
    scores: dict[str, list[Row]] = {}
    for constant in (True, False):
        pairs = [Pair(truth, constant) for truth in truths]
        scores[f"always {'SUCCESS' if constant else 'NOT SUCCESS'}"] = score(pairs)[:1]
    for path in sorted(folder.glob("*.jsonl")):
        records = [record for _, record in read_lines(path)]
        pairs = [Pair(r["truth"], r["verdict"], r["benchmark"], r["site"], r["task"]) for r in records]
        rows = rows_of(pairs, [record["part"] for record in records])
        scores[records[0]["judge"]] = rows if records[0]["judge"] == name else rows[:1]
    show(scores)
    say(
        f"{len(truths)} episodes, {rate:.1%} are successes: who always says "
        f"{'SUCCESS' if usual else 'NOT SUCCESS'} is right in {max(rate, 1 - rate):.1%}"
    )
    for question, verdict in zip(questions, verdicts, strict=True):
        if verdict.success is not None and verdict.success != question.truth:
            return say(f"a mistake: {question.trajectory.task.instruction!r}: {verdict.rationale!r}")
