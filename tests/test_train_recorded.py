"""AutoWebWorld's recipe as a user runs it, with a random Qwen2.5-VL: on recorded steps, without Chromium, and
live."""

from pathlib import Path

import pytest
from recorded import STEPS, save_qwen2_5_vl, write_steps

import sft
import train
from minirl.run_folder import Run

SMALL = {
    "agent.response-tokens": 32, "agent.context-tokens": 1500, "batch.micro-tokens": 4096,
    "eval.episodes": 3, "eval.response-tokens": 8, "rollout.group": 4, "rollout.groups": 3,
    "sft.epochs": 1, "sft.batch": 4, "steps": 2,
}  # fmt: skip


@pytest.fixture
def argv(tiny_folder, preprocessor, tmp_path, png, monkeypatch) -> list[str]:
    monkeypatch.setenv("MINIRL_CHROMIUM", "/nowhere")
    model = save_qwen2_5_vl(tmp_path / "qwen", tiny_folder, preprocessor)
    past = {"history": "Step 1: <think>a</think><action>{'action': 'wait'}</action>"}
    for name, rows, width in (("train", [row | past for row in STEPS], 96), ("heldout", STEPS[:3], 100)):
        (tmp_path / name).mkdir()
        write_steps(tmp_path / name, png, rows, size=(width, 64))
    flags = {"model.path": model, "name": tmp_path / "runs/autowebworld_3b", **SMALL}
    flags |= {f"task.{name}": tmp_path / name / "steps.json" for name in ("train", "heldout")}
    return ["autowebworld-3b", "--agent.brief", *(f"--{name}={value}" for name, value in flags.items())]


def test_step_wise_grpo_and_cloning_run_without_a_browser(argv, tmp_path):
    train.run([*argv, "--optim.lr", "1e-2"])
    run = Run(tmp_path / "runs/autowebworld_3b")
    first, second = run.metrics()
    assert (first["lr"], second["lr"]) == (1e-2, 5e-3), "a linear fall to 0 behind the last step"
    assert first["episodes"] == 12 and first["turns"] == 1 and first["updates"] == 1
    for name in ("action", "coordinate", "format"):
        assert first[f"reward/{name}"] == 0, "random weights say nothing that can be read"
    assert first["ratio_mean"] == pytest.approx(1, abs=1e-3), "what was sampled is what is trained"
    assert [row["label"] for row in run.evals()] == ["before training", "after RL"]

    sft.run([*argv, "--name", str(tmp_path / "runs/cloned"), "--sft.lr", "1e-2"])
    cloned = Run(tmp_path / "runs/cloned")
    assert len(cloned.load_trajectories("demos")) == len(STEPS)
    assert (cloned.checkpoint_dir / "sft/config.json").is_file()


def test_a_broken_record_ends_the_script_in_one_line(argv, tmp_path, ended):
    file = Path(tmp_path / "train/steps.json")
    file.write_text(file.read_text().replace('"hover"', '"hoover"'))
    code, said = ended(train, *argv)
    (line,) = [line for line in said.splitlines() if "record" in line]
    assert code == 2 and "steps.json, record 2: " in line and "not 'hoover'" in line


def test_another_agent_is_told_that_it_cannot(argv, ended):
    code, said = ended(train, *argv, "--agent.kind", "visual")
    assert code == 2 and "recorded steps are AutoWebWorld's: add --agent.kind autowebworld" in said


@pytest.mark.more  # without a browser it is trained above
def test_the_same_agent_is_trained_live(argv, tmp_path, ended, monkeypatch):
    """In shops, whose machine decides; cloned it can only be what was recorded."""
    monkeypatch.undo()  # Chromium is there again
    live = ["--task.train=shops:400-407", "--task.demo-goals=4", "--task.heldout=shops:90001-90002"]
    live += ["--steps=1", "--rollout.max-steps=2", "--rollout.group=2", "--browser.episodes=4"]
    live += ["--eval.max-steps=2", "--eval.episodes=1"]
    train.run([*argv, *live])
    run = Run(tmp_path / "runs/autowebworld_3b")
    (step,) = run.metrics()
    assert (step["episodes"], step["turns"], step["invalid"]) == (6, 2, 0)  # no response has an end: a turn
    assert step["ratio_mean"] == pytest.approx(1, abs=1e-3) and "reward/action" not in step
    (first, *_) = run.load_trajectories("step_00001")
    assert first.turns[0].url.startswith("http://shop-40") and first.turns[0].images
    code, said = ended(sft, *argv, *live, f"--name={tmp_path}/cloned")
    assert code == 2 and "clone this agent's tasks as recorded steps: python -m minirl.worlds record" in said
