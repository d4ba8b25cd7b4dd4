"""Recorded steps: what is written of solutions acted out in Chromium, and what is mixed in."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from endpoint_server import say, serve, status
from recorded import qwen_preprocessor, save_qwen2_5_vl
from workers import make_worker
from worlds_command import main

from minirl.agents.autowebworld import ACTIONS, action_of
from minirl.benchmarks.recorded import rewards
from minirl.benchmarks.task_files import load_tasks
from minirl.benchmarks.world import WorldBenchmark
from minirl.browser.pool import BrowserPool
from minirl.config import BrowserConfig
from minirl.recipes import RECIPES
from minirl.run_folder import Run, save_tasks
from minirl.types import Sample, Stop, Task
from minirl.worlds.fsm_file import load_goal
from minirl.worlds.generate import make_site
from minirl.worlds.hand import Operation, row_of
from minirl.worlds.interpreter import State, World, share_met
from minirl.worlds.render import SiteServer, save_world
from minirl.worlds.replay import Replay, replay_sites
from minirl.worlds.shop import make_shop, make_tasks
from minirl.worlds.solutions import solution_of, state_after, ways_of
from minirl.worlds.steps import mixed, one_of_each
from minirl.worlds.tasks import make_tasks as tasks_in_words


def recorded(out: Path, tasks: str, *flags: str) -> list[dict]:
    argv = ["record", tasks, "--out", str(out), "--browser.episodes", "3", "--browser.browsers", "1", *flags]
    assert main(argv) == 0
    return json.loads((out / "steps.json").read_text())


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> tuple[Path, Path]:
    """A generated site, and a file of three tasks on it, the first one twice."""
    world, folder = make_site("shop", 11, "easy"), tmp_path_factory.mktemp("site")
    save_world(world, folder / world.name)
    tasks = tasks_in_words(world, 3)
    save_tasks(folder / "tasks.jsonl", [*tasks, replace(tasks[0], id="again")])
    return folder / world.name, folder / "tasks.jsonl"


def test_a_sites_solutions_become_rows_that_the_reward_calls_right(site, tmp_path, capsys):
    """As the released loader reads them, and ours."""
    folder, tasks = site
    rows = recorded(tmp_path, str(tasks), "--sites", str(folder), "--grounding", "0", "--ways", "1")
    released = {"instruction", "img_filename", "action", "bbox", "history"}
    known = released | {"thought", "text", "value", "to", "state"}
    assert all(released <= row.keys() <= known for row in rows)
    loaded = load_tasks(tmp_path / "steps.json")
    assert {tuple(task.meta["size"]) for task in loaded} == {(1280, 720)}
    kinds = {row["action"] for row in rows}
    assert {"click", "answer"} < kinds <= set(ACTIONS)
    goals = {task.instruction: replace(load_goal(task.goal), answer=()) for task in load_tasks(tasks)}
    for row in rows:
        state = State(row["state"]["page"], row["state"]["signature"])
        assert (share_met(state, goals[row["instruction"]]) == 1) == (row["action"] == "answer")
    starts = [row for row in rows if not row["history"]]
    distinct = len(load_tasks(tasks)) - 1
    assert len(starts) == distinct and sum(row["action"] == "answer" for row in rows) == distinct
    for task, row in zip(loaded, rows, strict=True):
        done = len(task.meta["past"])
        assert row["history"].count("Step ") == done and task.instruction == row["instruction"]
        # what the next row of the trajectory tells as said here is right here
        after = [t for t in loaded if t.instruction == task.instruction and len(t.meta["past"]) == done + 1]
        for one in after:
            assert one.meta["past"][:done] == task.meta["past"]
            thought, action = one.meta["past"][done]
            said = f"<think>{thought}</think><action>{action}</action>"
            assert set(rewards(said, task.goal, (1, 1)).values()) == {1.0}, (said, task.goal)


@pytest.mark.more
async def test_what_was_recorded_solves_the_task_live(tiny_folder, preprocessor, tmp_path):
    """Turn by turn in the model's pixels, with the state machine as the verifier; control: not without the
    last click."""
    seeing = qwen_preprocessor(save_qwen2_5_vl(tmp_path / "qwen", tiny_folder, preprocessor), 28 * 28 * 60)
    shop = make_shop(400)
    (task,) = make_tasks(shop, 1)
    browser = BrowserConfig(browsers=1, width=480, height=360, quiet_ms=0)
    config = replace(RECIPES["autowebworld_3b"](), browser=browser)
    (solved,) = await replay_sites([shop], browser, [task], has_pictures=True)
    *clicks, answer = [action_of(row_of(one.operation, "")) for one in solved.records]
    with SiteServer([shop]) as server:
        async with BrowserPool(browser, server.sites, sealed=True) as pool:
            worker = make_worker(config, seeing, None, pool, Run(tmp_path).images, WorldBenchmark())
            for said, is_solved in ((clicks, True), (clicks[:-1], False)):
                sayings = [worker.harness.agent.say("so", action, (480, 360)) for action in [*said, answer]]
                ids = [seeing.render_response(saying)[1] for saying in sayings]

                async def policy(t, prompt, session, ids=ids) -> Sample:
                    return Sample(ids[t], (0.0,) * len(ids[t]), "stop")

                done = await worker.episode(task, 0, policy, 15)
                assert (done.stop, done.error, done.answer) == (Stop.DONE, "", "done")
                assert (done.success, len(done.turns)) == (is_solved, len(ids)) and len(ids) > 3
                prompt = seeing.tokenizer.decode(done.prompt_ids(len(ids) - 1))
                assert all(one in prompt for one in sayings[:-1]), "all thoughts and actions stay"
                assert prompt.count("<|vision_start|>") == 1, "of the screenshots the newest"


@pytest.mark.more
def test_a_served_model_writes_thoughts_and_its_cost_is_told(tmp_path, capsys, monkeypatch):
    """One that fails leaves the template's; one that would close itself can't."""
    monkeypatch.setattr("minirl.samplers.endpoint.MAX_REQUESTS", 1)  # so the answers come in order
    acts = [say("I <think>look</think> first."), status(400), say("More.")]
    with serve(acts) as server:
        flags = ("--endpoint.url", server.url, "--endpoint.model", "m", "--endpoint.price", "0", "1000")
        window = ["--count", "2", "--browser.width", "480", "--browser.height", "360"]
        rows = recorded(tmp_path, "shops:400-401", *window, *flags)
        asked = len(server.requests)
    assert any(part["type"] == "image_url" for part in server.requests[0]["messages"][0]["content"])
    steps = [row for row in rows if row["thought"][:5] != "I see"]
    alone = len(rows) - len(steps)
    assert asked == len(steps) and alone == round(len(steps) / 4), "2 to 8"
    thoughts = [row["thought"] for row in steps]
    assert thoughts.count("I look first.") == 1 and thoughts.count("More.") == asked - 2
    said = capsys.readouterr().out
    # 20 tokens for each answer, at a tenth of a cent for a token
    assert f"${0.02 * (asked - 1):.2f}" in said and "has the template's thought: " in said
    assert load_tasks(tmp_path / "steps.json")


def test_one_of_each_set_of_trajectories_with_the_same_goal():
    tasks = [Replay(Task(str(n), "x", f"http://{site}.test/", {"page": page})) for n, (site, page) in
             enumerate([("a", "P"), ("a", "P"), ("a", "Q"), ("b", "P"), ("a", "P")])]  # fmt: skip
    chosen = [replay.task for replay in one_of_each(tasks, seed=0)]
    assert [task.goal["page"] for task in chosen] == ["P", "Q", "P"] and len({t.id for t in chosen}) == 3
    assert {one_of_each(tasks, seed)[0].task.id for seed in range(20)} == {"0", "1", "4"}


def test_a_goal_is_reached_in_several_ways():
    """Each by one use of a list more than its own; none goes against what the instruction says."""
    kinds = set()
    for world in (make_site("shop", 11, "medium"), make_site("hotels", 3, "hard")):
        tasks = tasks_in_words(world)
        ways = {task.id: ways_of(task, world) for task in tasks}
        assert max(map(len, ways.values())) > 2
        for task in tasks:
            own, *others = ways[task.id]
            assert own is task and len({json.dumps(one.meta["solution"]) for one in others}) == len(others)
            first = task.meta["finds"][0]
            if "rank" in first["target"] or task.meta["mode"] == "search":
                assert not any(one.id.startswith(f"{task.id}-{first['list'].upper()}-") for one in others)
            for one in others:
                (added,) = [step for step in one.meta["solution"] if step not in task.meta["solution"]]
                assert len(one.meta["solution"]) == len(task.meta["solution"]) + 1, added
                end = state_after(world, solution_of(one, world))
                assert share_met(end, task.goal) == 1 or "answer" in task.goal
                kinds.add(one.meta["way"])
    assert kinds == {"search", "checkbox", "slider", "sort"}


@pytest.mark.more
def test_another_seed_draws_another_way_and_one_that_fails_leaves_the_others(tmp_path, capsys, monkeypatch):
    world = make_site("shop", 11, "medium")
    save_world(world, tmp_path / world.name)
    (task, *_) = [one for one in tasks_in_words(world) if len(ways_of(one, world)) > 2]
    save_tasks(tmp_path / "tasks.jsonl", [task])
    flags = ("--sites", str(tmp_path / world.name), "--grounding", "0")
    count = len(ways_of(task, world))
    paths = []
    for seed in range(3):
        rows = recorded(tmp_path / f"{seed}", str(tmp_path / "tasks.jsonl"), *flags, "--seed", str(seed))
        assert f"{count} trajectories of 1 goals: one of each is drawn" in capsys.readouterr().out
        assert sum(row["action"] == "answer" for row in rows) == 1
        paths.append(sorted(json.dumps(row["bbox"]) for row in rows))
    assert paths[0] != paths[1] or paths[0] != paths[2]

    def broken(task: Task, world: World) -> list[Task]:
        """The task's own way goes nowhere."""
        own, *others = ways_of(task, world)
        return [replace(own, meta={**own.meta, "solution": []}), *others]

    monkeypatch.setattr("minirl.worlds.steps.ways_of", broken)
    assert recorded(tmp_path / "broken", str(tmp_path / "tasks.jsonl"), *flags)
    said = capsys.readouterr().out
    assert f"{count - 1} trajectories of 1 goals" in said and f"dropped: {task.id}: task" in said


def test_operations_as_moves():
    box = (9.6, 20.2, 30.0, 40.0)

    def move(op: str, **more: Any) -> dict[str, Any]:
        return row_of(Operation(op, "#a", **more), "Go")

    assert move("click", box=box) == {"action": "click", "bbox": [10, 20, 30, 40], "words": "Go"}
    assert move("key_press", text="Enter") == {"action": "press_enter", "bbox": []}
    assert move("type_text", box=box, text="Ada") == {"action": "type_text", "bbox": [], "text": "Ada"}
    assert move("scroll", box=box, text="up") == {"action": "scroll", "bbox": [], "value": "up"}
    drag = move("drag", box=box, start=(18.0, 30.0), end=(80.4, 30.0))
    assert (drag["bbox"], drag["to"], drag["words"]) == ([18, 30, 18, 30], [80, 30, 80, 30], "Go")


def test_grounding_rows_are_two_in_ten_and_stand_alone():
    row = {"instruction": "Buy it.", "action": "click", "bbox": [], "history": "Step 1: x", "thought": "y"}
    rows = [row | {"img_filename": f"{n}.png", "words": f"B</think>{n}" if n < 60 else ""} for n in range(80)]
    found = mixed(rows, 0.2, seed=0)
    alone = [row for row in found if row["instruction"] != "Buy it."]
    assert (len(found), len(alone)) == (100, 20) and all(not row["history"] for row in alone)
    assert {row["instruction"] for row in alone} <= {f'Click on "B</think>{n}".' for n in range(60)}
    assert all("</think>" not in row["thought"] and "words" not in row for row in alone)
    assert mixed(rows, 0.2, seed=0) == found != mixed(rows, 0.2, seed=1)
    for n in range(1, 101):
        assert abs(sum(row["instruction"] != "Buy it." for row in found[:n]) - 0.2 * n) < 1, "of the first n"
    assert len(mixed(rows, 0, seed=0)) == 80 and len(mixed(rows, 0.9, seed=0)) == 140, "as many as there are"


SITE_IS_UNKNOWN = "is on no site that is given: name its folder with --sites"
NO_EPISODES = "--browser.episodes: Input should be greater than or equal to 1"
OUT_OF_RANGE = "--grounding is at least 0 and below 1, and --ways at least 1"


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("record {out}/none.jsonl --out {out}", "there is no file"),
        ("record {tasks} --out {out}", SITE_IS_UNKNOWN),
        ("record {tasks} --out {out} --browser.episodes 0", NO_EPISODES),
        ("replay {folder} --browser.episodes 0", NO_EPISODES),
        ("record {tasks} --out {out} --grounding 1", OUT_OF_RANGE),
        ("record {tasks} --out {out} --grounding -0.1", OUT_OF_RANGE),
        ("record {tasks} --out {out} --ways 0", OUT_OF_RANGE),
    ],
)
def test_mistakes_are_told_in_one_line_before_anything_is_acted_out(tmp_path, site, capsys, command, problem):
    folder, tasks = site
    given = command.format(out=tmp_path, tasks=tasks, folder=folder)
    assert main(given.split()) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert problem in told
