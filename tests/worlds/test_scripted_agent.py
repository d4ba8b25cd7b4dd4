"""Demonstrations in a real Chromium, their verifier, and which goals serve what."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
from peers import alone

from minirl.benchmarks.task_files import save_tasks
from minirl.browser.pool import BrowserPool
from minirl.browser.session import Session
from minirl.config import Config
from minirl.experiment import Experiment, make_task_sets, worlds_of
from minirl.model import Preprocessor
from minirl.recipes import tiny
from minirl.rollout import RolloutWorker
from minirl.run_folder import Run
from minirl.types import BrowserFault, Prompt, Sample, Stop, Task, ToolFailure, Trajectory
from minirl.worlds.render import SiteServer, read_state
from minirl.worlds.scripted_agent import ScriptedPolicy, WorldVerifier
from minirl.worlds.shop import make_shop, make_tasks

in_browser = pytest.mark.asyncio(loop_scope="module")  # one for the whole module

SHOPS = [make_shop(0), make_shop(1)]
TASKS = [task for shop in SHOPS for task in make_tasks(shop, 3, 1, seed=7)[0]]
CONFIG = replace(tiny(), browser=replace(tiny().browser, browsers=1))


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def pool() -> AsyncIterator[BrowserPool]:
    with SiteServer(SHOPS) as server:
        async with BrowserPool(CONFIG.browser, server.sites, sealed=True) as pool:
            yield pool


@pytest.fixture
def rollouts(pool: BrowserPool, preprocessor: Preprocessor, tmp_path: Path) -> RolloutWorker:
    return RolloutWorker(CONFIG, preprocessor, None, pool, WorldVerifier(), Run(tmp_path).put_image, alone())


def script(task: Task, preprocessor: Preprocessor) -> ScriptedPolicy:
    return ScriptedPolicy(SHOPS[TASKS.index(task) // 3], task, preprocessor)


# --- demonstrations ---------------------------------------------------------------------------------


@in_browser
async def test_every_demonstration_is_verified(rollouts, preprocessor):
    policies = [script(task, preprocessor) for task in TASKS]
    runs = [rollouts.episode(task, 0, policy, 6) for task, policy in zip(TASKS, policies, strict=True)]
    for t in await asyncio.gather(*runs):
        assert (t.stop, t.success, t.reward, t.error) == (Stop.DONE, True, 1.0, ""), t.task.id
        wanted = {one["path"].removeprefix("$."): one["value"] for one in t.task.goal["where"]}
        assert t.final_state == {"page": "DONE", "signature": wanted}
        for turn in t.turns:  # what is cloned is something that the agent can say, and that worked
            assert turn.parsed.error is None and turn.parsed.thought.startswith("choose ")
            assert turn.response_ids[-1] == preprocessor.tokenizer.eos_token_id
            assert not any("fail" in line or "not executed" in line for line in turn.feedback)


@pytest.mark.parametrize(
    "meddling",
    ["minirl.dispatch('CATEGORY_BACK')", "minirl.dispatch('CATEGORY_OPEN_PRODUCT', {product: 'acorn'})"],
)
@in_browser
async def test_a_page_that_is_not_in_the_predicted_state_ends_the_demonstration(
    rollouts, preprocessor, meddling
):
    policy = script(TASKS[0], preprocessor)

    async def meddled(t: int, prompt: Prompt, session: Session) -> Sample:
        if t == 1:
            assert await session.page.evaluate(meddling)
        return await policy(t, prompt, session)

    t = await rollouts.episode(TASKS[0], 0, meddled, 6)
    assert (t.stop, t.success, t.valid, len(t.turns)) == (Stop.ENV_ERROR, False, False, 1)
    assert t.error.startswith("the page shows ") and "CATEGORY" in t.error


@in_browser
async def test_a_page_that_is_no_world_has_no_state(rollouts, preprocessor):
    async with rollouts.pool.session() as session:
        with pytest.raises(BrowserFault, match="the page shows no state"):
            await script(TASKS[0], preprocessor).script.respond(session)


def test_a_task_without_a_solution_is_refused(preprocessor):
    where = [{"path": "$.size", "cond": "eq", "value": "tiny"}]  # no size of this shop
    task = replace(TASKS[0], goal={"page": "DONE", "where": where})
    with pytest.raises(ValueError, match="has no solution in shop-0"):
        ScriptedPolicy(SHOPS[0], task, preprocessor)


# --- the verifier -----------------------------------------------------------------------------------


@in_browser
async def test_the_verifier_reads_the_page(rollouts, preprocessor):
    """The order of the first task, judged by the goal of the second."""
    policy = script(TASKS[0], preprocessor)
    t = await rollouts.episode(TASKS[1], 0, policy, 6)
    assert (t.stop, t.success, t.reward, t.final_state["page"]) == (Stop.DONE, False, 0.0, "DONE")


@in_browser
async def test_the_verifier_is_not_fooled_by_other_pages(rollouts):
    async with rollouts.pool.session() as session:
        assert await WorldVerifier()(TASKS[0], session, "") == (False, {})  # about:blank
        await session.start(TASKS[0].start_url)
        success, state = await WorldVerifier()(TASKS[0], session, "")
        assert (success, state["page"]) == (False, "HOME")


@in_browser
async def test_a_page_that_hangs_while_it_is_verified_is_nobodys_failure(rollouts):
    """Only the time limit of browser calls can end it: the renderer never answers."""
    async with rollouts.pool.session() as session:
        await session.start(TASKS[0].start_url)
        session.config = replace(CONFIG.browser, action_seconds=0.5)
        await session.page.evaluate("setTimeout(() => { for (;;); }, 50)")
        await asyncio.sleep(0.2)
        with pytest.raises(ToolFailure, match="did not finish in time"):  # an episode's ENV_ERROR
            await WorldVerifier()(TASKS[0], session, "")


@in_browser
async def test_read_state_is_what_the_page_shows(rollouts):
    async with rollouts.pool.session() as session:
        await session.start(TASKS[3].start_url)
        assert (await read_state(session.page)).page == "HOME"


# --- demonstrate ------------------------------------------------------------------------------------


def parts(config: Config, tasks: list[Task], preprocessor: Preprocessor, folder: Path) -> Any:
    """As much of `Experiment` as demonstrations need: no weights."""
    sets = SimpleNamespace(demos=tasks)
    one = {"run": Run(folder), "ranks": alone()}
    return SimpleNamespace(config=config, tasks=sets, preprocessor=preprocessor, **one)


@in_browser
async def test_only_what_the_verifier_confirms_is_kept(rollouts, preprocessor, tmp_path, capsys):
    class Picky(WorldVerifier):
        async def __call__(self, task: Task, session: Session, answer: str) -> tuple[bool, dict[str, Any]]:
            success, state = await super().__call__(task, session, answer)
            return success and task is not TASKS[1], state

    rollouts.verify = Picky()
    kept = await Experiment.demonstrate(parts(CONFIG, TASKS[:3], preprocessor, tmp_path), rollouts)
    assert [t.task.id for t in kept] == [TASKS[0].id, TASKS[2].id]
    saved: list[Trajectory] = Run(tmp_path).load_trajectories("demos")
    assert [t.task.id for t in saved] == [TASKS[0].id, TASKS[2].id]
    assert f"demonstration {TASKS[1].id} dropped: done" in capsys.readouterr().out


@in_browser
async def test_a_task_of_another_site_cannot_be_demonstrated(rollouts, preprocessor, tmp_path):
    task = Task("foreign", "Find it.", "https://example.org/")
    with pytest.raises(ValueError, match="foreign has no scripted solution"):
        await Experiment.demonstrate(parts(CONFIG, [task], preprocessor, tmp_path), rollouts)


# --- which goals serve what -------------------------------------------------------------------------


def goals(tasks: list[Task]) -> set[str]:
    return {json.dumps([task.start_url, dict(task.goal)], sort_keys=True) for task in tasks}


@pytest.mark.parametrize("seed", range(5))
def test_held_out_goals_are_never_trained_on(seed):
    config = tiny()
    sets = make_task_sets(replace(config, task=replace(config.task, seed=seed)))
    assert len(sets.train) == config.task.train_goals and len(sets.heldout) == config.eval.episodes
    assert len(sets.demos) == config.task.demo_goals
    assert len(sets.validation) == config.sft.eval_episodes
    assert not goals(sets.heldout) & (goals(sets.train) | goals(sets.demos) | goals(sets.validation))
    assert not goals(sets.demos) & goals(sets.validation)
    assert goals(sets.demos) | goals(sets.validation) <= goals(sets.train)
    assert len(goals(sets.train)) == len(sets.train) and len(goals(sets.heldout)) == len(sets.heldout)
    assert [world.name for world in worlds_of(sets.train)] == [f"shop-{seed}"]


def test_a_task_file_that_leaks_is_refused(tmp_path):
    config = tiny()
    sets = make_task_sets(config)
    leaked = [replace(sets.train[5], id="another-name"), *sets.heldout[:2]]
    save_tasks(tmp_path / "heldout.jsonl", leaked)
    config = replace(config, task=replace(config.task, heldout=str(tmp_path / "heldout.jsonl")))
    with pytest.raises(ValueError, match="1 held-out tasks are also training tasks, another-name for one"):
        make_task_sets(config)


def test_task_files_take_the_place_of_generated_tasks(tmp_path):
    config = tiny()
    train, heldout = make_tasks(SHOPS[1], 5, 3, seed=0)
    save_tasks(tmp_path / "train.jsonl", train)
    save_tasks(tmp_path / "heldout.jsonl", heldout)
    task = replace(
        config.task,
        train=str(tmp_path / "train.jsonl"),
        heldout=str(tmp_path / "heldout.jsonl"),
        demo_goals=2,
    )
    sets = make_task_sets(replace(config, task=task))
    assert (sets.train, sets.heldout, sets.demos) == (train, heldout, train[:2])
    assert sets.validation == train[2:]
