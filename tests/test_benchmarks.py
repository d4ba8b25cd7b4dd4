"""The scripts of benchmarks/: all can be imported; those for a GPU run in small on the CPU."""

import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from peers import last_line
from PIL import Image
from rich.console import Console

from minirl.agents.autowebworld import action_of
from minirl.benchmarks.recorded import recorded_task
from minirl.config import to_json
from minirl.console import progress
from minirl.recipes import tiny, tiny_text
from minirl.run_folder import Run

pytestmark = pytest.mark.more
ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
STAGES = ["ceilings", "model", "loss", "attention", "trainer"]


@pytest.fixture(scope="module")
def gpu() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_bench", BENCHMARKS / "gpu.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def load(monkeypatch) -> Callable[[str], ModuleType]:
    """Import a script by its name."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


def lines_of(file: Path, key: str) -> dict[str, dict]:
    return {line[key]: line for line in map(json.loads, file.read_text().splitlines()) if key in line}


def test_all_scripts_find_what_they_import():
    names = [file.stem for file in BENCHMARKS.glob("*.py")]
    assert len(names) >= 15
    code = f"import importlib\nfor name in {names}: importlib.import_module(name)"
    subprocess.run([sys.executable, "-c", code], cwd=BENCHMARKS, check=True)


def test_the_phases_of_a_run_are_told_by_its_progress(load, monkeypatch):
    shown = io.StringIO()
    monkeypatch.setattr("minirl.console.CONSOLE", Console(file=shown, width=100))
    for phase in ("step 1: episodes", "step 1: updating", "evaluating after_sft", "cloning"):
        with progress(phase, 4) as meter:
            meter.advance(4)
    shown.write("step 1/10  success 0.1\nafter SFT:  38.3% of 256\n")
    phases = map(load("seconds").phase_of, shown.getvalue().splitlines())
    assert [phase for phase in phases if phase] == ["episodes", "updates", "evaluations", "cloning"]


def test_a_thought_names_the_element_that_is_next(load):
    """A row has its words in a span, a button at once."""
    page = (
        '<div id="3" class="row" data-text="pearl"> <span> pearl </span> </div> <button id="4"> Buy </button>'
    )
    names = []
    for number in (3, 4):
        asked = f'this request:\nOrder.\n{page}\nand do: do(action="Click", element="{number}")'
        request = {"messages": [{"content": [{"text": asked}]}]}
        names.append(load("variants").thought(request))
    assert names == ["Order. # Element: pearl", "Order. # Element: Buy"]


def test_zero_is_cloned_for_less_long_than_the_recipe(load):
    assert 0 < int(load("variants").ZERO[1]) < tiny_text().sft.max_steps


def test_a_step_that_is_cloned_clicks_where_its_thought_says(load, tmp_path):
    """220 thousandths of 480 pixels are 105.6, 160 of 360 are 57.6; its box is one that a record may have."""
    Image.new("RGB", (480, 360)).save(tmp_path / "a.png")
    row = {"instruction": "Order.", "img_filename": "a.png", "action": "click", "bbox": [90, 10, 190, 70]}
    row |= {"history": "", "thought": "choose delta 220 160"}
    task = recorded_task(load("steps").to_clone(row), tmp_path, "a")
    assert action_of(task.goal) == {"action": "click", "coordinate": [106, 58]}


@pytest.mark.parametrize(
    "command",
    [
        "tree.py --turns=3 --group-turns=3 --hybrid-turns=3 --scale=60 --repeats=1 --enough=0",
        "minibatches.py --turns 3 --groups 2 --minibatch 8",
        "worlds.py --sites 4 --no-browser",
        "counts.py --sites 2 --workers 1",
        "loss.py --tokens 64 --vocabulary 500 --repeats 1",
    ],
)
def test_a_small_run_ends_with_a_line_of_json(command):
    assert last_line(*command.split())


def test_whether_an_agent_looks_is_measured_beside_its_run(tiny_folder, tmp_path):
    """The rows lie where eval.py's do: a run's own rows have its steps, from which it goes on."""
    run = Run(tmp_path / "run")
    run.write_config(to_json(tiny()))
    run.add_eval("after SFT", step=0, success=0.5, low=0.4, high=0.6, n=8)
    shutil.copytree(tiny_folder, run.checkpoint_dir / "sft")
    rates = last_line("seeing.py", "--run", str(run.root), "--n", "2")
    assert rates.pop("gain") is None
    assert rates == dict.fromkeys(["unseen_sites", "seen_sites", "other_screenshot", "blank"], 0.0)
    assert [row["label"] for row in run.evals()] == ["after SFT"]
    rows = Run(tmp_path / "run-eval").evals()
    assert [row["label"] for row in rows] == ["unseen sites", "seen sites", "other screenshot", "blank"]
    assert [(row["step"], row["n"]) for row in rows] == [(0, 2)] * 4
    assert (tmp_path / "run-eval/report.html").is_file()


def test_whether_an_agent_looks_is_not_asked_on_other_sites_than_its_run_had(load, tmp_path):
    seeing = load("seeing")
    config = tiny()
    run = Run(tmp_path / "run")
    run.write_config(to_json(replace(config, task=replace(config.task, train="sites/train"))))
    with pytest.raises(ValueError, match="the run has --task.train sites/train: give it as --train"):
        seeing.tasks_of(seeing.Args(run.root), config)
    task = seeing.tasks_of(seeing.Args(run.root, train="sites/train"), config)
    assert (task.train, task.heldout, task.short) == ("sites/train", config.task.heldout, 0)


def test_the_ablations_table_and_picture_are_of_the_figures_that_are_there(tmp_path):
    """176 of 256 is 68.8%, of which the interval is 62.8% to 74.1%, as docs/log.md has it."""
    recipe = "OpenWebRL, table 4: as the recipe has it"
    figures = [{"before": 0.25, "after": 0.6875, "n": 256}, None]
    earlier = tmp_path / "earlier.json"
    earlier.write_text(json.dumps({recipe: figures}))
    script = [sys.executable, str(BENCHMARKS / "ablations.py"), "--list", "--out", str(tmp_path)]
    flags = ["--only", "table 4", "--earlier", str(earlier), "--plot", str(tmp_path / "plot.svg")]
    run = subprocess.run([*script, *flags], capture_output=True, text=True, check=True)
    assert "62.8% to 74.1%" in run.stderr
    printed = json.loads(run.stdout.splitlines()[-1])
    assert printed[recipe][:2] == figures
    assert not any(printed["OpenWebRL, table 4: without feedback"])
    plot = (tmp_path / "plot.svg").read_text()
    assert plot.count("absent") == 5
    # the axis begins at 330 and is 400 wide
    assert 'cx="430.0"' in plot and 'cx="605.0"' in plot

    docs = ROOT / "docs"
    flags = ["--earlier", str(docs / "ablations.json"), "--plot", str(tmp_path / "docs.svg")]
    subprocess.run([*script, *flags], capture_output=True, check=True)
    assert (tmp_path / "docs.svg").read_text() == (docs / "ablations.svg").read_text()


def test_the_calls_of_the_first_run_on_a_gpu_run_in_small_on_the_cpu(tmp_path):
    """Further checks, then the stages that need no vLLM."""
    places = {name: str(tmp_path / name.lower()) for name in ("OUT", "SITE", "PACK")}
    env = os.environ | {"PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""} | places
    subprocess.run(["bash", str(BENCHMARKS / "gpu_pack/go.sh"), "cpu-check"], env=env, check=True)
    checks = lines_of(tmp_path / "out/gpu.jsonl", "check")
    assert list(checks) == ["replay", "settings", "decoding"]
    assert not any("error" in line for line in checks.values()), checks
    assert checks["replay"]["steps"] == [1, 2] and checks["decoding"]["gap_max"] < 1e-3
    stages = lines_of(tmp_path / "out/gpu.jsonl", "name")
    assert list(stages) == STAGES and not any("error" in line for line in stages.values()), stages
    assert not any(line["failed"] for line in stages.values())
    assert stages["trainer"]["cosine"] > 0.999 and stages["trainer"]["tree_mfu"] > 0


def test_the_trainers_stage_with_a_hybrid(gpu, tmp_path):
    out = tmp_path / "out.jsonl"
    flags = ["--hybrid", "--out", str(out), "--only", "model", "trainer"]
    status = gpu.main(["--device", "cpu", "--small", *flags])
    lines = lines_of(out, "name")
    assert status == 0 and lines["model"]["layers"] == 4 and not lines["trainer"]["failed"], lines


@pytest.mark.vllm
def test_the_stages_with_vllm(gpu, tmp_path):
    names = ["model", "sampler", "throughput", "step"]
    out = tmp_path / "out.jsonl"
    status = gpu.main(["--device", "cpu", "--small", "--out", str(out), "--only", *names])
    lines = lines_of(out, "name")
    assert list(lines) == names and status == 0, lines
    assert not any("error" in line or line["failed"] for line in lines.values()), lines
    assert lines["sampler"]["greedy_same"] == 1 and lines["throughput"]["ratio"] > 0


@pytest.mark.vllm
@pytest.mark.timeout(900)
def test_the_vllm_sampler_is_measured_in_small():
    figures = last_line("sampler.py", "--pairs", "1", "--turns", "2", "--long", "2")
    assert figures["prefix_hit_ratio"] > 0.9
    assert min(figures.values()) > 0


def test_a_stage_that_cannot_run_says_why(gpu, tmp_path, capsys):
    args = gpu.Args(device="cpu", small=True)
    assert "took longer than 0 s" in gpu.start("ceilings", tmp_path, args, 0.2)["error"]
    failure = gpu.start("trainer", tmp_path / "nowhere", args, 100)
    assert failure["error"].startswith("exit status 1: ") and failure["error"].endswith(failure["stderr"][-1])
    assert failure["stderr"][0].startswith("Traceback") or len(failure["stderr"]) == gpu.STDERR_LINES
    assert gpu.main(["--device", "cpu", "--only", "trainer"]) == 0
    assert json.loads(capsys.readouterr().out)["skipped_because"] == "the stage `model` has made none"
    assert "no NVIDIA GPU" in gpu.missing("ceilings", gpu.Args(), tmp_path)


def test_figures_out_of_bounds_and_figures_that_are_missing_are_named(gpu):
    cpu, cuda = gpu.Args(device="cpu"), gpu.Args()
    good = {"gap_mean": 0.01, "gap_p99": 0.1, "bias": 0.0, "stale_mean": 1.0, "woken_mean": 0.01}
    assert gpu.failed("sampler", good, cpu) == []
    assert gpu.failed("sampler", good | {"bias": -0.01, "gap_p99": float("nan")}, cpu) == ["gap_p99", "bias"]
    assert gpu.failed("sampler", good, cuda) == ["slept", "sync_s"]
