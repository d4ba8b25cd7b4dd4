"""tests/bench/gpu.py runs, in small and on the CPU, and notices what is wrong."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parent / "bench/gpu.py"


@pytest.fixture(scope="module")
def gpu() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_bench", BENCH)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def run(gpu: ModuleType, out: Path, *stages: str) -> dict[str, dict]:
    status = gpu.main(["--device", "cpu", "--small", "--out", str(out), "--only", *stages])
    lines = {line["name"]: line for line in map(json.loads, out.read_text().splitlines())}
    assert list(lines) == list(stages)
    assert status == 0 and all("error" not in line for line in lines.values()), lines
    return lines


def test_the_stages_without_vllm(gpu, tmp_path):
    lines = run(gpu, tmp_path / "out.jsonl", "ceilings", "model", "loss", "attention", "trainer")
    assert not any(line["failed"] for line in lines.values())
    assert lines["trainer"]["cosine"] > 0.999 and lines["trainer"]["tree_mfu"] > 0


@pytest.mark.vllm
def test_the_stages_with_vllm(gpu, tmp_path):
    lines = run(gpu, tmp_path / "out.jsonl", "model", "sampler", "throughput", "step")
    assert not any(line["failed"] for line in lines.values())
    assert lines["sampler"]["greedy_same"] == 1 and lines["throughput"]["ratio"] > 0


def test_a_stage_that_cannot_run_says_why(gpu, tmp_path, capsys):
    args = gpu.Args(device="cpu", small=True)
    assert "took longer than 0 s" in gpu.start("ceilings", tmp_path, args, 0.2)["error"]
    assert gpu.start("trainer", tmp_path / "nowhere", args, 100)["error"].startswith("exit status 1: ")
    assert gpu.main(["--device", "cpu", "--only", "trainer"]) == 0
    assert json.loads(capsys.readouterr().out)["skipped_because"] == "the stage `model` has made none"
    assert "no NVIDIA GPU" in gpu.missing("ceilings", gpu.Args(), tmp_path)


def test_figures_out_of_bounds_and_figures_that_are_missing_are_named(gpu):
    cpu, cuda = gpu.Args(device="cpu"), gpu.Args()
    good = {"gap_mean": 0.01, "gap_p99": 0.1, "bias": 0.0, "stale_mean": 1.0, "woken_mean": 0.01}
    assert gpu.failed("sampler", good, cpu) == []
    assert gpu.failed("sampler", good | {"bias": -0.01, "gap_p99": float("nan")}, cpu) == ["gap_p99", "bias"]
    assert gpu.failed("sampler", good, cuda) == ["slept", "sync_s"]
