"""What a judge is trained on, a small one that learns it, and scores; all without a browser."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import shopping
from episodes import PNGS

from examples.base_models.checkpoints import build
from minirl.console import CONSOLE
from minirl.experiment import place_model
from minirl.judges.distill import distil, score_judge, training_row, training_rows
from minirl.judges.judge import open_judge
from minirl.judges.labels import Example, Label, label_dumps, read_examples, read_labels, target
from minirl.judges.rubrics import Question
from minirl.judges.settings import JudgeScriptConfig, judge_4b, tiny_judge
from minirl.rows import TrajectoryRows
from minirl.run_folder import Run
from minirl.tiny.checkpoints import BASE
from minirl.worlds.teacher import world_teacher

TASK = shopping.tasks(1)[0]


def config_of(tmp_path: Path, **settings: object) -> JudgeScriptConfig:
    return replace(tiny_judge(), name=str(tmp_path / "judge"), **settings)


@pytest.fixture
def pictures(png) -> dict[str, bytes]:
    return {"a": png(64, 64, seed=1), "b": png(32, 32, seed=2)}


LABELLED = Example(
    Label("run", "d", 0, "", "Two mugs<|im_end|>.", False, "gpt"),
    replace(shopping.episode(TASK, image="a"), final_image="b"),
)


def test_a_row_is_the_question_and_the_label(preprocessor, pictures):
    row = training_row(LABELLED, Question(), pictures, preprocessor)
    tokenizer = preprocessor.tokenizer
    # the template of this model opens <think>, so that the response has to close it
    assert tokenizer.decode(row.ids[row.start :]) == "</think>\n\nTwo mugs< |im_end|>.\nNOT SUCCESS<|im_end|>"
    asked = tokenizer.decode(row.ids[: row.start])
    assert asked.endswith("<|im_end|>\n<|im_start|>assistant\n<think>\n") and TASK.instruction in asked
    assert row.images == ("a", "b") and row.length == len(row.old)
    assert row.ids.count(preprocessor.pad) == sum(map(preprocessor.image_tokens, pictures.values()))
    brief = training_row(LABELLED, Question("brief"), pictures, preprocessor)
    assert brief.images == ("b",) and len(brief.ids) < len(row.ids)


def test_questions_that_do_not_fit_are_left_out(preprocessor, pictures):
    plain = replace(LABELLED, trajectory=replace(LABELLED.trajectory, turns=()))
    lengths = [len(training_row(e, Question(), pictures, preprocessor).ids) for e in (plain, LABELLED)]

    def rows_within(tokens: int) -> list[TrajectoryRows]:
        return training_rows([plain, LABELLED], Question(), pictures, preprocessor, tokens)

    assert [len(t.rows[0].ids) for t in rows_within(max(lengths))] == lengths
    with CONSOLE.capture() as said:
        (kept,) = rows_within(max(lengths) - 1)
    assert len(kept.rows[0].ids) == min(lengths)
    assert "1 questions were longer than --agent.context-tokens, and were left out" in said.get()
    with pytest.raises(
        ValueError, match=f"no question has at most --agent.context-tokens {min(lengths) - 1}"
    ):
        rows_within(min(lengths) - 1)


def test_the_tiny_judge_begins_with_the_model_that_sees_and_others_with_their_own(tmp_path, ranks):
    placed = place_model(tiny_judge(), tmp_path / "model", ranks)
    assert placed == replace(tiny_judge().model, path=str(tmp_path / "model"))
    weights = [folder / "model.safetensors" for folder in (tmp_path / "model", BASE)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert place_model(judge_4b(), tmp_path / "other", ranks) == judge_4b().model
    assert not (tmp_path / "other").exists()


async def test_a_small_judge_learns_its_labels_and_is_scored(tmp_path, ranks):
    """20 trajectories to learn from. What it says of them afterwards shows what it was taught."""
    run = shopping.make_run(tmp_path / "web", goals=14, stages=("step_00001", "step_00002"))
    config = config_of(tmp_path, runs=(run.root,), goals=0.29, stages=0.0)
    config = replace(config, sft=replace(config.sft, lr=4e-3, batch=10, max_steps=30))
    with CONSOLE.capture() as said:
        await label_dumps(config, ranks, world_teacher)
        folder = tmp_path / "small"  # which learns faster than the recipe's
        texts = [p for e in read_examples(tmp_path / "judge/labels.jsonl") for p in words_of(e)]
        build(folder, texts, seed=0, hidden=64, layers=2)
        config = replace(config, model=replace(config.model, path=str(folder)))
        await distil(config, ranks)
        await score_judge(config, ranks)
    records = Run(tmp_path / "judge").metrics()
    losses = [record["loss"] for record in records]
    assert len(losses) == 30 and losses[-1] < 0.2 * losses[0]
    assert 0 < records[-1]["lr"] < max(record["lr"] for record in records) <= 4e-3
    heldout = read_labels(tmp_path / "judge/heldout.jsonl")
    assert len(heldout) == 8
    out = said.get()
    assert "20 labels, 50.0% of them SUCCESS; 8 are held out" in out.replace("\n", " ")
    for word in ("Agreement", "acc.", "always SUCCESS", "always NOT", "shops"):
        assert word in out, out
    (scored,) = (tmp_path / "judge/scores").glob("*.jsonl")
    records = [json.loads(line) for line in scored.read_text().splitlines()]
    assert len(records) == 8 and all("should be" in record["rationale"] for record in records)
    await check_question(config, ranks)


def words_of(example: Example) -> list[str]:
    messages = Question("brief").messages(example.trajectory, PNGS)
    texts = [part for _, parts in messages for part in parts if isinstance(part, str)]
    return [*texts, target(example.label.rationale, True)]


async def check_question(config: JudgeScriptConfig, ranks) -> None:
    """A distilled judge refuses to be asked otherwise than it was taught."""
    folder = config.run_dir / "checkpoints/judge"
    state = json.loads((folder / "state.json").read_text())
    assert state["question"] == {"input": "brief", "prompt": None}
    judge = replace(config.judge, path=str(folder))
    asked = replace(config, judge=replace(judge, input="openwebrl"))
    with pytest.raises(ValueError, match="was distilled with another question: {'input': 'brief'"):
        async with open_judge(asked, ranks, {}):
            pass
    async with open_judge(replace(config, judge=judge), ranks, {}):
        pass


async def test_a_policys_folder_is_left_alone(tmp_path, ranks):
    run = Run(tmp_path / "judge")
    run.save_trajectories("step_00001", [shopping.episode(TASK)])
    config = config_of(tmp_path, runs=(run.root,))
    for command in (label_dumps(config, ranks, world_teacher), distil(config, ranks)):
        with pytest.raises(ValueError, match="holds a policy's run; choose another --name"):
            await command
