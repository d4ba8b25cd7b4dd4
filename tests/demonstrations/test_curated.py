"""End to end on generated shops: a served teacher's rollouts, verdicts, curation, cloning, publication."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from endpoint_server import Act, say, serve
from public_records import PUBLIC
from safetensors.torch import load_file
from shopping import SHOP, tasks
from test_train import SMALL_FLAGS
from workers import make_worker

import sft
from examples.publish import __main__ as publish
from minirl.benchmarks.world import WorldBenchmark
from minirl.browser.pool import BrowserPool
from minirl.data import __main__ as script
from minirl.evaluation.results import read_results
from minirl.recipes import tiny
from minirl.run_folder import Run, save_tasks
from minirl.worlds.render import SiteServer
from minirl.worlds.scripted_agent import ScriptedPolicy

TASKS = tasks(3)
DONE = 'nothing</think><tool_call>{"name": "done", "arguments": {"response": "done"}}</tool_call>'


async def solutions(run: Run, preprocessor) -> dict[str, list[str]]:
    """What solves each task, turn by turn, by its wording."""
    config, found = tiny(), dict[str, list[str]]()
    with SiteServer([SHOP]) as server:
        browser = replace(config.browser, browsers=1)
        async with BrowserPool(browser, server.sites, sealed=True) as pool:
            worker = make_worker(config, preprocessor, None, pool, run.images, WorldBenchmark())
            for task in TASKS:
                policy = ScriptedPolicy(SHOP, task, preprocessor, config.agent)
                solved = await worker.episode(task, 0, policy, 6)
                found[task.instruction] = [turn.text for turn in solved.turns]
    return found


def teacher(solutions: Mapping[str, Sequence[str]]) -> Act:
    """Solves each task once, and gives up at once when it is asked again."""
    begun: list[str] = []

    def words(request: dict) -> str:
        roles = [message["role"] for message in request["messages"]]
        (asked,) = re.findall(
            "<user_request>\n(.*?)\n</user_request>", request["messages"][1]["content"][0]["text"]
        )
        if "assistant" not in roles:
            begun.append(asked)
        return DONE if begun.count(asked) > 1 else solutions[asked][roles.count("assistant")]

    return say(words)


def rollouts(eval_script: ModuleType, out: Path, said: Mapping[str, Sequence[str]]) -> Run:
    """The run in which eval.py has left two rollouts of each task by a served model."""
    save_tasks(out / "pool.jsonl", TASKS)
    flags = ["--name", str(out / "teacher"), "--tasks", str(out / "pool.jsonl"), "--seeds", "0", "1"]
    flags += ["--browser.browsers", "1", "--browser.episodes", "1", "--endpoint.price", "10", "0"]
    with serve([teacher(said)]) as server:
        served = ["--sampler", "remote", "--endpoint.url", server.url, "--endpoint.model", "scripted"]
        eval_script.run(["tiny", *flags, *served])
    return Run(out / "teacher-eval")


def read(path: Path, out: Path, recipe: str, module: ModuleType = script) -> Path:
    """The dump of a file of public records."""
    module.run(["read", str(path), "--out", str(out), "--recipe", recipe])
    return Run(out).trajectory_path("demos")


def cloned(out: Path, demos: Path, recipe: str = "tiny") -> Run:
    """A run of two updates on demonstrations, evaluated on held-out shops before and after."""
    sft.run(
        [recipe, "--name", str(out / recipe), *SMALL_FLAGS, "--sft.max-steps", "2", "--sft.demos", str(demos)]
    )
    run = Run(out / recipe)
    assert [(row["label"], row["n"]) for row in run.evals()] == [("before training", 3), ("after SFT", 3)]
    return run


@pytest.mark.more
def test_from_a_teachers_rollouts_to_weights_and_the_same_through_what_is_published(
    eval_script, preprocessor, tmp_path
):
    said = asyncio.run(solutions(Run(tmp_path / "acted"), preprocessor))
    run = rollouts(eval_script, tmp_path, said)
    verdicts = [(t.task.id, t.member, t.success) for t in run.load_trajectories("eval_scripted")]
    assert verdicts == [(task.id, n, n == 0) for n in (0, 1) for task in TASKS]
    results = read_results(run.root / "results-eval_scripted.json").results
    assert all(result.cost == pytest.approx(0.001 * result.steps) for result in results), "100 tokens each"

    script.run(["curate", str(run.root), "--dumps", "eval_scripted", "--preset", "1.9k"])
    demos = run.load_trajectories("demos")
    assert {t.task.id for t in demos} == {task.id for task in TASKS} and all(t.success for t in demos)
    flags = ["--out", str(tmp_path / "set"), "--license", "cc0-1.0", "--source", "generated shops"]
    publish.run(["write", str(run.trajectory_path("demos")), *flags])

    published = tmp_path / "set" / "data" / "train.parquet"
    places = run.trajectory_path("demos"), read(published, tmp_path / "read", "tiny", publish)
    students = [cloned(tmp_path / str(n), place) for n, place in enumerate(places)]
    heldout = {t.task.start_url for student in students for t in student.load_trajectories("after_sft")}
    assert len(heldout) == 3 and heldout.isdisjoint(t.task.start_url for t in demos)
    one, other = (load_file(student.checkpoint_dir / "sft" / "model.safetensors") for student in students)
    assert one.keys() == other.keys() and all(one[name].equal(other[name]) for name in one)


@pytest.mark.slow
def test_public_records_are_cloned_by_the_text_agent(tmp_path, capsys):
    dump = read(PUBLIC / "webrl_policy.json", tmp_path / "read", "tiny_text")
    run = cloned(tmp_path, dump, "tiny_text")
    assert "3 responses to clone, in 3 of 3 records" in capsys.readouterr().out
    assert (run.checkpoint_dir / "sft" / "model.safetensors").is_file()
