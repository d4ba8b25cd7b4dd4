"""The front doors as a user runs them: train, resume, interrupt, replay, and what they leave on disk."""

import asyncio
import json
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import AsyncMock, Mock, call

import pytest
from peers import ROOT, start
from safetensors.torch import load_file
from training import distance

import sft
import train as script
from examples.base_models import checkpoints as base_models
from minirl.checkpoint import checkpoints
from minirl.cli import lifecycle
from minirl.cli.offline import Replay
from minirl.recipes import tiny
from minirl.rollout import Collected
from minirl.run_folder import Run
from minirl.types import Task, Trajectory, Turn

# Small in every number; not dynamic, because a model cloned for so few updates never succeeds.
SMALL = {
    "eval.episodes": 3,
    "eval.response-tokens": 8,
    "agent.response-tokens": 48,
    "task.train": "shops:600-611",
    "task.demo-goals": 4,
    "sft.max-steps": 24,  # until some responses end by themselves, and rewards differ
    "sft.batch": 8,
    "rollout.group": 3,
    "rollout.groups": 2,
    "reward.partial": 0.5,  # without a success only a failure's worth can differ
    "browser.episodes": 6,
    "optim.lr": 1e-5,  # so that ratios stay near 1 through all passes of a step
}
SMALL_FLAGS = ["--rollout.no-dynamic", *(f"--{name}={value}" for name, value in SMALL.items())]
METRICS = (
    "reward success tokens_mean tokens_p90 turns response_tokens groups_submitted groups_kept "
    "groups_dropped ratio_mean clip_fraction entropy seconds/rollout seconds/train"
)


def small(run: Path, *flags: str) -> list[str]:
    """For train.py as a user starts it, with `start`; what follows on such a run is started in this process,
    which has all imports behind it, with `script.run`."""
    return ["tiny", "--name", str(run), *SMALL_FLAGS, *flags]


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """A run of two steps."""
    run = tmp_path_factory.mktemp("runs") / "tiny"
    done = start("train.py", *small(run, "--steps", "2", "--eval-every", "1"))
    assert done.returncode == 0, done.stderr
    assert "after RL" in "".join(done.stdout.splitlines()[-4:]), "the table comes last"
    return run


def test_a_run_leaves_metrics_evaluations_dumps_and_a_report(finished):
    run = Run(finished)
    metrics = run.metrics()
    assert [m["step"] for m in metrics] == [1, 2]
    for key in METRICS.split():
        assert key in metrics[0], key
    assert any(key.startswith("stop/") for key in metrics[0])
    labels = ["before training", "after SFT", "eval_step_00001", "eval_step_00002", "after RL"]
    assert [(row["label"], row["n"]) for row in run.evals()] == [(label, 3) for label in labels]
    rates = [(row["success"], row["step"]) for row in run.evals()[2:4]]
    best = json.loads((run.checkpoint_dir / "best/state.json").read_text())
    assert (best["success"], best["step"]) == max(rates), "the last weights, too, may be the best"
    assert {"before", "after_sft", "after_rl", "demos", "step_00001", "step_00002"} <= set(run.labels())
    assert run.report_path.is_file() and (run.root / "config.json").is_file()


def test_the_first_step_is_on_policy(finished):
    """With the weights that sampled, the trainer's log-probs are the sampler's: every ratio is 1. The
    mean over a step's passes has moved away by the end, but not far at this learning rate."""
    first = Run(finished).metrics()[0]
    assert first["grad_norm"] > 0, "all rewards were equal: nothing is tested here"
    assert first["ratio_mean"] == pytest.approx(1, abs=0.02)


@pytest.mark.more
def test_two_ranks_run_the_whole_loop_as_one_does(finished, tmp_path):
    """Browsers, sampler, updates, evaluations and checkpoints: the same episodes, and the same losses."""
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
    done = start(*command, *small(tmp_path / "tiny", "--steps", "2", "--eval-every", "1"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("report: ") == 1, "one rank speaks for all"
    one, two = Run(finished), Run(tmp_path / "tiny")
    for mine, theirs in zip(two.metrics(), one.metrics()[:2], strict=True):
        for name in ("reward", "response_tokens", "turns", "episodes", "groups_kept"):
            assert mine[name] == theirs[name], name
        for name in ("loss", "ratio_mean", "entropy", "grad_norm"):
            assert mine[name] == pytest.approx(theirs[name], rel=1e-2, abs=1e-3), (mine, theirs)
    assert [row["label"] for row in two.evals()] == [row["label"] for row in one.evals()]
    assert two.labels() == one.labels()
    assert [p.name for p in checkpoints(two.checkpoint_dir)] == ["step_00001", "step_00002"]


def test_resume_goes_on_and_shows_no_step_twice(finished, capsys):
    script.run(small(finished, "--steps", "3", "--resume"))
    assert "resumed after step 2" in capsys.readouterr().out
    assert [m["step"] for m in Run(finished).metrics()] == [1, 2, 3]


@pytest.mark.more
def test_replay_trains_on_the_dumps_without_a_browser(finished, monkeypatch):
    """No Chromium can be found, and the losses are those of the run that left the dumps."""
    monkeypatch.setenv("MINIRL_CHROMIUM", "/nowhere")
    flags = ["--replay", str(finished), "--warm-start", str(finished / "checkpoints/sft")]
    script.run(small(finished.parent / "replay", "--steps", "2", *flags))
    losses = [m["loss"] for m in Run(finished.parent / "replay").metrics()]
    original = [m["loss"] for m in Run(finished).metrics()]
    assert losses == pytest.approx(original[:2], rel=1e-4, abs=1e-7) and any(losses)


@pytest.mark.more
def test_the_notebook_repeats_the_first_step_by_hand(finished, tmp_path, monkeypatch):
    """Its cells, one after the other; they assert that each number is the package's."""
    (tmp_path / "runs").symlink_to(finished.parent)
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((ROOT / "examples" / "notebook.ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    names: dict = {}
    for number, code in enumerate(cells):
        exec(compile(code, f"cell {number}", "exec"), names)
    assert len(cells) >= 5 and names["gain"] > 0 and names["losses"]


@pytest.mark.more  # tests/test_lora.py has its parts, one by one
def test_a_run_with_adapters_is_resumed_replayed_and_evaluated(tmp_path, eval_script):
    """Cloning, then reinforcement on what was cloned, with the base for a reference: in the first step the
    trainer's log-probs are the sampler's. A replay that was stopped ends as one that was not."""
    run, adapters = tmp_path / "tiny", ["--model.lora", "4", "--loss.kl", "0.01"]
    script.run(small(run, "--steps", "2", *adapters))
    script.run(small(run, "--steps", "3", "--resume", *adapters))
    metrics = Run(run).metrics()
    assert [m["step"] for m in metrics] == [1, 2, 3]
    assert all(m["mismatch_mean"] < 1e-4 and m["kl"] >= 0 for m in metrics)
    assert metrics[0]["grad_norm"] > 0 and metrics[0]["lr"] == pytest.approx(1e-4)
    sft = run / "checkpoints/sft"
    for folder, base in ((sft, run / "model"), (run / "checkpoints/step_00003", sft)):
        settings = json.loads((folder / "adapter/adapter_config.json").read_text())
        assert settings["base_model_name_or_path"] == str(base)
    losses = {}
    for name, stops in (("straight", ["2"]), ("stopped", ["1", "2"])):
        for n, steps in enumerate(stops):
            flags = ["--replay", str(run), "--steps", steps, *(["--resume"] if n else [])]
            script.run(small(tmp_path / name, *flags, *adapters))
        losses[name] = [m["loss"] for m in Run(tmp_path / name).metrics()]
    assert losses["straight"] == losses["stopped"] and len(losses["stopped"]) == 2
    assert losses["straight"][0] == pytest.approx(metrics[0]["loss"], rel=1e-4, abs=1e-7)
    eval_script.run(["tiny", "--name", str(run), "--limit", "2", "--eval.response-tokens", "8"])
    (row,) = Run(tmp_path / "tiny-eval").evals()
    assert row["n"] == 2 and row["checkpoint"] == str(run / "checkpoints/step_00003")


def heeding_interrupts(command: list[str]) -> subprocess.Popen[str]:
    """Shells start what runs in the background with SIGINT ignored, and children inherit that: tests that run
    there would wait for ever. A handler is not inherited: the default takes its place."""
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    finally:
        signal.signal(signal.SIGINT, usual)


@pytest.mark.more  # tests/cli/test_lifecycle.py has what is saved, tests/test_run_folder.py the lock
@pytest.mark.parametrize("cause", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_interrupt_saves_and_can_be_resumed(finished, tmp_path, cause):
    """From the finished run's cloned weights. Before the signal it is tried to train there twice."""
    run = tmp_path / "tiny"
    start = ["--warm-start", str(finished / "checkpoints/sft")]
    flags = small(run, "--steps", "1000", "--save-every", "1000", *start)
    child = heeding_interrupts([sys.executable, str(ROOT / "train.py"), *flags])
    metrics = run / "metrics.jsonl"
    deadline = time.monotonic() + 200
    while not (metrics.exists() and metrics.read_text().count("\n") >= 1):
        assert time.monotonic() < deadline and child.poll() is None, child.communicate()[0]
        time.sleep(0.2)
    with pytest.raises(OSError, match=f"'{run}/lock' could not be acquired"):
        script.run(small(run, "--steps", "1", "--resume", *start))
    child.send_signal(cause)
    said, _ = child.communicate(timeout=60)
    assert child.returncode == 130, said
    assert "Traceback" not in said and "--resume" in said
    saved = checkpoints(run / "checkpoints")
    state = json.loads((saved[-1] / "state.json").read_text())
    assert state["step"] >= 1 and state["cursor"] > 0
    steps = state["step"] + 1
    script.run(small(run, "--steps", str(steps), "--resume", *start))
    assert [m["step"] for m in Run(run).metrics()] == [*range(1, steps + 1)], "none is shown twice"


def episodes(run: Run) -> dict[str, list]:
    """What each dump's episodes said, were told and earned, in any order. Not what they saw: two browsers may
    draw a pixel differently by 1 of 255."""
    kept = {}
    for label in run.labels():
        rows = [
            (t.task.id, t.member, t.reward, [(turn.text, turn.feedback) for turn in t.turns])
            for t in run.load_trajectories(label)
        ]
        kept[label] = sorted(rows)
    return kept


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_training_that_is_killed_ten_times_ends_as_one_that_was_not(tmp_path):
    """kill -9 at random moments of cloning, episodes, updates and evaluations, while they are written too."""
    flags = ["--steps", "3", "--save-every", "1", "--sft.max-steps=6"]
    whole, killed = Run(tmp_path / "whole"), Run(tmp_path / "killed")
    started = time.monotonic()
    done = start("train.py", *small(whole.root, *flags))
    assert done.returncode == 0, done.stderr
    seconds = time.monotonic() - started

    rng = random.Random(0)
    starts = killed.root / "starts.jsonl"
    for n in range(1, 11):
        resume = ["--resume"] if killed.root.exists() else []
        argv = [sys.executable, str(ROOT / "train.py"), *small(killed.root, *flags, *resume)]
        process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        # started up: from here on any moment will do
        while process.poll() is None and not (starts.exists() and len(starts.read_text().splitlines()) == n):
            time.sleep(0.1)
        time.sleep(rng.uniform(0, seconds / 8))
        process.kill()
        _, err = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL, err
    done = start("train.py", *small(killed.root, *flags, "--resume"))
    assert done.returncode == 0, done.stderr
    assert episodes(killed) == episodes(whole)
    losses = [[row["loss"] for row in run.metrics()] for run in (whole, killed)]
    assert losses[1] == pytest.approx(losses[0], abs=1e-6) and len(losses[0]) == 3

    # Sums in another order differ in their last digits, which Adam makes larger
    names = (whole.root / "checkpoints/sft", *(run.checkpoint_dir / "step_00003" for run in (whole, killed)))
    begun, one, other = (load_file(folder / "model.safetensors") for folder in names)
    assert distance(one, other) < 0.01 * distance(one, begun)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--task.train", "/nowhere.jsonl"], "/nowhere.jsonl"),
        (["--replay", "/nowhere"], "--replay /nowhere"),
        ([], "MINIRL_CHROMIUM"),
    ],
)
def test_bad_input_is_one_line_and_status_2(ended, tmp_path, monkeypatch, flags, said):
    monkeypatch.setenv("MINIRL_CHROMIUM", "/nowhere")
    code, err = ended(script, *small(tmp_path / "tiny", *flags))
    assert code == 2 and said in err and err.count("\n") == 1


TASK = Task("t", "Do it.", "http://shop-0.test/")
TURN = Turn(0, (1,), (2,), (-0.1,), "")


def collecting(collected: Collected, **settings: object) -> tuple[Mock, Mock]:
    """An experiment, and a worker that collects this in each of its steps."""
    config = replace(tiny(), eval_every=0, save_every=100, **settings)
    experiment = Mock(config=config, tasks=SimpleNamespace(train=[TASK]))
    experiment.trainer.update.side_effect = lambda *_: {}
    return experiment, Mock(collect=AsyncMock(return_value=collected))


@pytest.mark.parametrize("shuffle", [False, True])
async def test_shuffled_rewards_are_what_is_learned(shuffle):
    """The control of every claim: the same rewards, at other episodes of their groups."""
    group = tuple(Trajectory(TASK, m, turns=(TURN,), reward=float(m)) for m in range(8))
    step = Collected([group], 0, [], submitted=1, dropped=0)
    experiment, worker = collecting(step, steps=3, shuffle_rewards=shuffle)
    await script.train(experiment, worker, {"step": 0, "cursor": 0})
    updates = experiment.trainer.update.call_args_list
    learned = [tuple(t.rows[0].advantage for t in rows) for (rows, *_), _ in updates]
    expected = tuple((m - 3.5) / 6**0.5 for m in range(8))  # the unbiased variance of 0 to 7 is 6
    assert len(learned) == 3 and len({*learned}) == (3 if shuffle else 1), "every step is shuffled anew"
    for found in learned:
        assert sorted(found) == pytest.approx(expected, abs=1e-3)
        assert (list(found) == sorted(found)) is not shuffle


@pytest.mark.more
def test_a_hybrid_is_cloned_and_reinforced(tmp_path):
    """sft.py and two steps of train.py on shops with a Qwen3.5, whose calls are in tags: trees in its
    updates, the sampler's log-probs the trainer's."""
    words = base_models.vocabulary()
    folder = str(base_models.build(tmp_path / "model", words, seed=0, hidden=64, kind="hybrid"))
    flags = ["--model.path", folder, "--agent.context-tokens", "2048"]  # tags are longer than JSON
    cloned = start("sft.py", *small(tmp_path / "cloned", *flags))
    assert cloned.returncode == 0, cloned.stderr
    demos = Run(tmp_path / "cloned").load_trajectories("demos")
    texts = [turn.text for demo in demos for turn in demo.turns]
    assert texts and all("<function=" in text and '"name"' not in text for text in texts)
    warm = str(tmp_path / "cloned" / "checkpoints" / "sft")
    trained = start(
        "train.py", *small(tmp_path / "run", "--model.path", folder, "--warm-start", warm, "--steps=2")
    )
    assert trained.returncode == 0, trained.stderr
    steps = Run(tmp_path / "run").metrics()
    gaps = [step["mismatch_max"] for step in steps if "mismatch_max" in step]
    assert len(gaps) == 2 and max(gaps) < 1e-4


@pytest.mark.parametrize(
    ("delay", "expected"),
    [(0, "c0 u0 s c1 u1 s c2 u2 s"), (1, "c0 c1 u0 s c2 u1 s u2 s")],
)
async def test_with_a_delay_episodes_are_of_the_weights_before_the_last_update(delay, expected):
    """Each step's tasks go on where those of the step before ended, and what is learned is in its order."""
    group = tuple(Trajectory(TASK, m, turns=(TURN,), reward=float(m)) for m in range(8))
    config = replace(tiny().rollout, delay=delay)
    experiment, worker = collecting(Mock(), steps=3, rollout=config)
    order = []

    def collect(stream, cursor, step, tick) -> Collected:
        assert cursor == 10 * step
        order.append(f"c{step}")
        return Collected([group], cursor + 10, [], submitted=1, dropped=0)

    worker.collect.side_effect = collect
    worker.sync.side_effect = lambda weights: order.append("s")
    experiment.trainer.update.side_effect = lambda rows, step, tick: order.append(f"u{step}") or {}
    await script.train(experiment, worker, {"step": 0, "cursor": 0})
    assert " ".join(order) == expected


@pytest.mark.more
def test_a_delayed_run_finds_the_screenshots_that_were_taken_ahead(tmp_path):
    """Checkpoints after every step delete screenshots that no dump names."""
    script.run(small(tmp_path / "run", "--steps", "3", "--rollout.delay", "1"))
    gaps = [row["mismatch_mean"] for row in Run(tmp_path / "run").metrics()]
    assert len(gaps) == 3 and gaps[0] < 1e-4 < min(gaps[1:])


@pytest.mark.parametrize(("n", "remedy"), [(7, "; --resume goes on after step 7"), (0, "")])
async def test_a_run_that_finds_nothing_more_to_learn_from_keeps_what_it_has(n, remedy):
    step = Collected([], 0, [], submitted=6, dropped=6, reason="gave up after 6 groups")
    experiment, worker = collecting(step)
    told = f"step {n + 1}: no group to learn from. gave up after 6 groups{remedy}$"
    state = {"step": n, "cursor": 0}
    with pytest.raises(ValueError, match=told), lifecycle.saving(experiment, state):
        await script.train(experiment, worker, state)
    assert experiment.checkpoints.mock_calls == [call.save("step_00007", state)] * bool(n) + [call.finish()]


async def test_ctrl_c_ends_a_replay_between_two_steps():
    experiment, _ = collecting(Mock())
    source = Mock(step_labels=lambda: ["step_00001"], load_groups=lambda label: [])
    with pytest.raises(asyncio.CancelledError):
        asyncio.current_task().cancel()
        await script.train(experiment, Replay(source), {"step": 0, "cursor": 0})


EXPORT = call.checkpoints.export("sft", {"step": 0, "cursor": 0})


async def test_a_warm_start_clones_what_was_demonstrated_and_says_how_what_was_held_back_fares(
    monkeypatch, capsys
):
    wanted = replace(tiny().sft, batch=2, epochs=1, max_steps=3, held_back=0.2)
    experiment = Mock(config=replace(tiny(), sft=wanted, seed=7), tasks=SimpleNamespace(heldout=[]))
    experiment.demonstrate = AsyncMock(return_value=[Trajectory(TASK, 0, turns=(TURN,))] * 5)

    def clone(examples, seed):
        assert (len(examples), seed) == (5, 7)
        yield from ({"loss": 3.0}, {"loss": 2.0, "validation": 2.5}, {"loss": 1.0})
        experiment.trainer.weights.return_value = "the best"

    experiment.trainer.clone = clone
    monkeypatch.setattr(sft, "evaluate", AsyncMock())
    await sft.warm_start(experiment, experiment.worker)
    done = [one for one in experiment.mock_calls if one in (call.worker.sync("the best"), EXPORT)]
    assert done == [call.worker.sync("the best"), EXPORT], "the best weights are put back first"
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("cloning: ")]
    assert said == ["cloning: update 2, loss 2.000, of those held back 2.500"]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--steps", "3"], "go on with --resume, or choose another --name"),
        (["--resume", "--task.train", "shops:1-9"], "was made with task.train shops:600-611, not shops:1-9;"),
        (["--replay", "{run}"], "holds a run already; go on with --resume, or choose another --name"),
        (["--resume", "--warm-start", "none"], "was made with warm_start sft, not none;"),
        (["--resume", "--seed", "1"], "was made with seed 0, not 1;"),
        (["--resume", "--shuffle-rewards"], "was made with shuffle_rewards False, not True;"),
        (["--resume", "--name", "{run}y"], "--resume: there is no run in"),
    ],
)
def test_two_runs_are_never_mixed_in_one_folder(ended, finished, flags, said):
    """What is refused is refused before anything in the folder has changed."""
    run = finished
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    flags = [flag.format(run=run) for flag in flags]
    code, err = ended(script, *small(finished, *flags))
    assert code == 2 and said in err and err.count("\n") == 1
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before


def test_weights_that_a_run_started_from_are_not_cloned_anew(ended, finished):
    code, err = ended(sft, *small(finished, "--resume"))
    assert code == 2 and "--resume and --replay are for train.py" in err
    code, err = ended(sft, "tiny", "--replay", str(finished))
    assert code == 2 and "--resume and --replay are for train.py" in err
    code, err = ended(sft, "tiny", "--warm-start", "clones/sft")
    assert code == 2 and "to clone from it, --model.path clones/sft" in err


def test_resuming_a_finished_run_says_so_and_changes_nothing(finished, capsys):
    run, files = Run(finished), [path for path in finished.rglob("*") if path.is_file()]
    before = [path.stat().st_mtime_ns for path in files]
    steps = len(run.metrics())
    with pytest.raises(SystemExit) as stop:
        script.run(small(finished, "--steps", str(steps), "--resume"))
    assert stop.value.code == 0
    assert f"has finished its {steps} steps; a larger --steps goes on" in capsys.readouterr().out
    assert [path.stat().st_mtime_ns for path in files] == before
