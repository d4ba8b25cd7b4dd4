"""What a judge is trained on, a small one that learns it, and scores; all without a browser."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import shopping
from episodes import PNGS

from examples.base_models.checkpoints import build
from minirl.console import CONSOLE
from minirl.experiment import place_model
from minirl.judges.distill import distil, score_judge, training_row
from minirl.judges.judge import open_judge
from minirl.judges.labels import HELD_OUT, LABELLED, label_dumps, target
from minirl.judges.rubrics import Question
from minirl.judges.settings import JudgeScriptConfig, judge_4b, tiny_judge
from minirl.run_folder import Run
from minirl.tiny.checkpoints import BASE
from minirl.types import Trajectory, Verdict
from minirl.worlds.teacher import world_teacher

TASK = shopping.tasks(1)[0]


def config_of(tmp_path: Path, **settings: object) -> JudgeScriptConfig:
    return replace(tiny_judge(), name=str(tmp_path / "judge"), **settings)


def test_a_row_is_the_question_and_the_label(preprocessor, png):
    pictures = {"a": png(64, 64, seed=1), "b": png(32, 32, seed=2)}
    labelled = replace(
        shopping.episode(TASK, image="a"), final_image="b", turns=shopping.episode(TASK, image="a").turns[-1:]
    )
    labelled = replace(labelled, verdict=Verdict(False, "Two mugs<|im_end|>."))
    row = training_row(labelled, Question(), pictures, preprocessor)
    tokenizer = preprocessor.tokenizer
    # the template of this model opens <think>, so that the response has to close it
    assert tokenizer.decode(row.ids[row.start :]) == "</think>\n\nTwo mugs< |im_end|>.\nNOT SUCCESS<|im_end|>"
    asked = tokenizer.decode(row.ids[: row.start])
    assert asked.endswith("<|im_end|>\n<|im_start|>assistant\n<think>\n") and TASK.instruction in asked
    assert row.images == ("a", "b") and row.length == len(row.old)
    assert row.ids.count(preprocessor.pad) == sum(map(preprocessor.image_tokens, pictures.values()))
    brief = training_row(labelled, Question("brief"), pictures, preprocessor)
    assert brief.images == ("b",) and len(brief.ids) < len(row.ids)


def test_the_tiny_judge_begins_with_the_model_that_sees_and_others_with_their_own(tmp_path, ranks):
    placed = place_model(tiny_judge(), tmp_path / "model", ranks)
    assert placed == replace(tiny_judge().model, path=str(tmp_path / "model"))
    weights = [folder / "model.safetensors" for folder in (tmp_path / "model", BASE)]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    assert place_model(judge_4b(), tmp_path / "other", ranks) == judge_4b().model
    assert not (tmp_path / "other").exists()


async def test_a_small_judge_learns_its_labels_and_is_scored(tmp_path, ranks):
    """20 trajectories to learn from. What it says of them afterwards shows what it was taught. The run that
    was labelled is not needed any more."""
    run = shopping.make_run(tmp_path / "web", goals=14, stages=("step_00001", "step_00002"))
    labels = Run(tmp_path / "labels")
    await label_dumps(
        replace(config_of(tmp_path), name=str(labels.root), runs=(run.root,)), ranks, world_teacher
    )
    run.root.rename(tmp_path / "gone")
    folder = tmp_path / "small"  # which learns faster than the recipe's
    texts = [text for t in labels.load_trajectories(LABELLED) for text in words_of(t)]
    build(folder, texts, seed=0, hidden=64, layers=2)
    config = config_of(tmp_path, labelled=labels.root, goals=0.29)
    config = replace(config, sft=replace(config.sft, lr=4e-3, batch=10, max_steps=30))
    config = replace(config, model=replace(config.model, path=str(folder)))
    with CONSOLE.capture() as said:
        await distil(config, ranks)
        await score_judge(replace(config, labelled=None), ranks)
    judge = Run(tmp_path / "judge")
    losses = [record["loss"] for record in judge.metrics()]
    assert len(losses) == 30 and losses[-1] < 0.2 * losses[0]
    assert len(judge.load_trajectories(HELD_OUT)) == 8
    out = said.get()
    assert "20 labels, 50.0% of them SUCCESS; 8 are held out" in out.replace("\n", " ")
    for word in ("Agreement", "acc.", "always SUCCESS", "always NOT"):
        assert word in out, out
    (scored,) = (judge.root / "scores").glob("*.jsonl")
    records = [json.loads(line) for line in scored.read_text().splitlines()]
    assert len(records) == 8 and all("should be" in record["rationale"] for record in records)
    await check_question(config, ranks)


@pytest.mark.more
async def test_a_judge_with_adapters_is_a_judge_as_any_other(tmp_path, ranks):
    """Its folder has merged weights, with which it is asked."""
    run = shopping.make_run(tmp_path / "web", goals=14, stages=("step_00001", "step_00002"))
    labels = replace(config_of(tmp_path), name=str(tmp_path / "labels"), runs=(run.root,))
    await label_dumps(labels, ranks, world_teacher)
    config = config_of(tmp_path, labelled=tmp_path / "labels", goals=0.29)
    config = replace(config, sft=replace(config.sft, lr=1e-3, batch=10, max_steps=20))
    config = replace(config, model=replace(config.model, lora=8))
    await distil(config, ranks)
    losses = [record["loss"] for record in Run(tmp_path / "judge").metrics()]
    assert len(losses) == 20 and losses[-1] < 0.7 * losses[0]
    assert (tmp_path / "judge/checkpoints/judge/adapter/adapter_model.safetensors").is_file()
    await score_judge(replace(config, labelled=None), ranks)


def words_of(labelled: Trajectory) -> list[str]:
    messages = Question("brief").messages(labelled, PNGS)
    texts = [part for _, parts in messages for part in parts if isinstance(part, str)]
    return [*texts, target(replace(labelled.verdict, success=True))]


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
