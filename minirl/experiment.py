"""Puts the parts together for train.py, sft.py and eval.py: run folder, tasks, weights, browsers.

Everything is made from a `Config`; nothing here decides anything about learning.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
from torch.distributed.tensor import DTensor
from transformers.utils.logging import disable_progress_bar

from minirl.benchmarks.task_files import load_tasks, save_tasks
from minirl.benchmarks.verify import TaskVerifier
from minirl.benchmarks.webarena import tasks as webarena
from minirl.benchmarks.webarena.evaluators import needs_judge
from minirl.benchmarks.webarena.lookups import asking
from minirl.browser.pool import BrowserPool
from minirl.checkpoint import Checkpoints
from minirl.config import Config, to_json
from minirl.console import CONSOLE, Logger, progress, say
from minirl.demonstrations import tokenised
from minirl.distributed import Ranks
from minirl.episode import interface_of
from minirl.judges.judge import EndpointJudge
from minirl.judges.local import open_judge
from minirl.model import Preprocessor, load_model, load_preprocessor
from minirl.rollout import RolloutWorker
from minirl.run_folder import Run
from minirl.samplers import vllm
from minirl.samplers.endpoint import open_endpoint
from minirl.samplers.huggingface import HfSampler
from minirl.samplers.remote import RemoteSampler
from minirl.samplers.vllm import VllmSampler
from minirl.tiny import checkpoints as tiny
from minirl.trainer import Trainer, cores
from minirl.types import Task, Trajectory
from minirl.worlds.interpreter import World
from minirl.worlds.render import SiteServer
from minirl.worlds.scripted_agent import Form, Script, ScriptedPolicy
from minirl.worlds.shop import make_shop, make_tasks

# Evaluations of the whole held-out set: the name of the dump, and what people read
PAGES_OF = 24  # tasks whose pages a small tokenizer learns from
PHASES = {"before": "before training", "after_sft": "after SFT", "after_rl": "after RL"}


@dataclass(frozen=True)
class TaskSets:
    """Which goals serve what. `heldout` shares no goal with the others; `demos` and `validation` are
    parts of `train`, disjoint unless every training goal is demonstrated."""

    train: list[Task]
    demos: list[Task]
    validation: list[Task]
    heldout: list[Task]


def make_task_sets(config: Config) -> TaskSets:
    """The config's tasks, generated or from files. ValueError if a held-out goal is also trained on."""
    task = config.task
    world = make_shop(task.seed)
    train, heldout = make_tasks(world, task.train_goals, config.eval.episodes, seed=task.seed)
    if task.train != "shop":
        train = load_tasks(Path(task.train))
    if task.heldout != "shop":
        heldout = load_tasks(Path(task.heldout))
    trained = {name for t in train for name in names_of(t)}
    leaked = [t.id for t in heldout if names_of(t) & trained]
    if leaked and config.sampler.kind != "remote":  # which trains nothing, and may teach
        raise ValueError(f"{len(leaked)} held-out tasks are also training tasks, {leaked[0]} for one")
    n = task.demo_goals
    return TaskSets(train, train[:n], train[n : n + config.sft.eval_episodes] or train, heldout)


def names_of(task: Task) -> set[tuple[str, ...]]:
    """What makes two tasks the same: the site, with the wording or with the goal. WebArena numbers its own:
    many of them share an answer, such as "2", and some their wording."""
    if task.goal.get("kind") == "webarena":
        return {("webarena", task.id)}
    host = urlsplit(task.start_url).netloc
    names = {(host, task.instruction)}
    return names | {(host, json.dumps(task.goal, sort_keys=True))} if task.goal else names


def refuse_other_settings(config: Config) -> None:
    """ValueError if the run's folder was made with another model, seed, task set or agent: its warm start,
    evaluations and held-out tasks would not be this run's."""
    saved, given = Run(config.run_dir).config(), to_json(config)
    if given["model"]["path"] == "tiny":
        given["model"]["path"] = str((config.replay or config.run_dir) / "model")
    given["eval"] = {"episodes": config.eval.episodes}
    sections = ("seed", "task", "model", "agent", "sft", "eval", *(("warm_start",) if config.loss.kl else ()))
    defaults = to_json(Config(recipe=""))  # of settings that are younger than the run
    for section in sections if saved else ():  # with a KL term the warm start is its reference
        old, new = saved.get(section), given[section]
        if not isinstance(new, dict):
            old, new = {section: old}, {section: new}
        elif isinstance(old, dict):
            old = {**defaults[section], **old}
        for name, value in new.items():
            if old.get(name) != value:
                flag = name if name == section else f"{section}.{name}"
                made = f"{config.run_dir} was made with {flag} {old.get(name)}, not {value}"
                raise ValueError(f"{made}; choose another --name")


def refuse_remote(config: Config) -> None:
    """ValueError if a served model is to be trained."""
    if config.sampler.kind == "remote":
        raise ValueError(
            "--sampler remote: a served model's weights can't be trained; evaluate it with eval.py, "
            "or clone what it did with --sft.demos"
        )


def worlds_of(tasks: Sequence[Task]) -> list[World]:
    """The generated sites that the tasks live on, told by their host names."""
    hosts = {m[1] for t in tasks if (m := re.match(r"http://shop-(\d+)\.test(/|$)", t.start_url))}
    return [make_shop(int(seed)) for seed in sorted(hosts, key=int)]


def refuse_unjudged(config: Config, tasks: Sequence[Task], rewarded: bool = True) -> None:
    """ValueError if nothing could say whether a task was fulfilled, or where its site is. Episodes that are
    not to be rewarded may end without a verdict."""
    judge = config.judge
    if names := webarena.missing(tasks):
        raise ValueError(f"set {', '.join(names)} to the addresses of WebArena's sites")
    for task in tasks:
        if task.goal.get("kind") == "webarena" and needs_judge(task) and not judge.model:
            raise ValueError(f"task {task.id} wants an answer judged: give --judge.model and --judge.url")
        if rewarded and not (task.goal or judge.model or judge.path):
            raise ValueError(f"task {task.id} has no goal to check: give --judge.model, or --judge.path")


@dataclass
class Experiment:
    """What the scripts work with. `config.model.path` is a real folder or hub name by now."""

    config: Config
    run: Run
    log: Logger
    tasks: TaskSets
    preprocessor: Preprocessor
    trainer: Trainer | None  # neither is there if the model is served elsewhere, which only eval.py allows
    checkpoints: Checkpoints | None
    ranks: Ranks

    @contextlib.asynccontextmanager
    async def rollouts(self) -> AsyncIterator[RolloutWorker]:
        """Browsers, sites and a sampler on the trainer's weights, for as long as the block lasts."""
        sets = self.tasks
        refuse_unjudged(self.config, sets.train + sets.heldout, rewarded=False)
        worlds = worlds_of(sets.train + sets.heldout)
        with SiteServer(worlds, self.config.browser.site_port) as server:
            hosts = {urlsplit(task.start_url).hostname for task in sets.train + sets.heldout}
            sealed, trusted = hosts <= set(server.hosts), webarena.places(sets.train + sets.heldout)
            opening = BrowserPool(self.config.browser, server.sites, sealed, trusted)
            judging = open_judge(self.config, self.ranks)
            async with opening as pool, self._sampler() as sampler, judging as judge:
                ask = asking(judge.endpoint) if isinstance(judge, EndpointJudge) else None
                verify = TaskVerifier(self.config.task.rules, ask)
                where = (sampler, pool, verify, self.run.put_image, self.ranks, self.run.root / "hosts.json")
                yield RolloutWorker(self.config, self.preprocessor, *where, judge, self.run.image)

    @contextlib.asynccontextmanager
    async def _sampler(self) -> AsyncIterator[HfSampler | VllmSampler | RemoteSampler]:
        if self.trainer is None:
            async with open_endpoint(self.config.endpoint) as endpoint:
                yield RemoteSampler(endpoint)
            return
        sampler = self._own_sampler(self.trainer)
        try:
            sampler.sync(self.trainer.weights())
            yield sampler
        finally:
            sampler.close()

    def _own_sampler(self, trainer: Trainer) -> HfSampler | VllmSampler:
        device = self.ranks.device
        if vllm.is_chosen(self.config.sampler.kind, device):
            with progress("starting vLLM"):
                return VllmSampler(self.config, self.preprocessor, self.ranks)
        model = trainer.policy.model
        if any(isinstance(weight, DTensor) for weight in model.parameters()):
            model = load_model(self.config.model, device)  # a sharded one can't be asked by one rank alone
        threads = self.config.threads or max(1, cores(self.ranks) - 1)
        return HfSampler(model, self.preprocessor, self.config.sampler, threads)

    async def evaluate(self, rollouts: RolloutWorker, tasks: Sequence[Task], label: str, step: int) -> float:
        """Held-out success, recorded under `label`."""
        await self.reset_sites()
        trajectories = await self.run_tasks(rollouts, tasks, label)
        valid = [t for t in trajectories if t.stop.is_agent_fault]  # as eval.py counts, without aborted ones
        if len(valid) < len(trajectories):
            say(f"{label}: {len(trajectories) - len(valid)} episodes failed for reasons not the agent's")
        if not valid:
            raise ValueError(f"{label}: no episode counts; of the first one: {trajectories[0].error}")
        name = PHASES.get(label, label)
        row = self.log.evaluation(name, step, sum(t.success for t in valid), len(valid))
        return row["success"]

    async def reset_sites(self) -> None:
        """Has WebArena's sites put back to how they were, if the config says who does that."""
        if self.config.task.reset and self.ranks.is_main:
            with progress("resetting the sites"):
                await webarena.reset(self.config.task.reset)
        self.ranks.barrier()

    def evaluated(self) -> dict[str, dict[str, Any]]:
        """The evaluations that have been recorded, by name."""
        return self.ranks.broadcast({row["label"]: row for row in self.run.evals()})

    async def run_tasks(self, rollouts: RolloutWorker, tasks: Sequence[Task], label: str) -> list[Trajectory]:
        with progress(f"evaluating {label}", len(tasks)) as meter:
            trajectories = await rollouts.evaluate(
                tasks, label, self.config.eval.max_steps, lambda done: meter.advance(done - meter.done)
            )
        self.run.save_trajectories(label, trajectories)
        return trajectories

    async def demonstrate(self, rollouts: RolloutWorker) -> list[Trajectory]:
        """The demonstrated goals' shortest solutions, acted out; only what the verifier confirms. Or the
        successes of a dump."""
        if self.config.sft.demos is not None:
            return self._dumped(self.config.sft.demos, rollouts)
        worlds = {world.name: world for world in worlds_of(self.tasks.demos)}

        async def act_out(task: Task) -> Trajectory:
            world = worlds.get(str(task.meta.get("world")))
            if world is None:
                raise ValueError(f"task {task.id} has no scripted solution; give --warm-start a checkpoint")
            policy = ScriptedPolicy(world, task, self.preprocessor, form_of(self.config))
            trajectory = await rollouts.episode(task, 0, policy, self.config.eval.max_steps)
            meter.advance(self.ranks.world)
            if not trajectory.success:
                say(f"demonstration {task.id} dropped: {trajectory.stop.value} {trajectory.error}")
            return trajectory

        with progress("recording demonstrations", len(self.tasks.demos)) as meter:
            own = self.tasks.demos[self.ranks.rank :: self.ranks.world]
            tried = await asyncio.gather(*map(act_out, own))
        found = self.ranks.all_gather([trajectory for trajectory in tried if trajectory.success])
        place = {task.id: n for n, task in enumerate(self.tasks.demos)}
        out = sorted(found, key=lambda trajectory: place[trajectory.task.id])
        self.run.save_trajectories("demos", out)
        return out

    def _dumped(self, path: Path, rollouts: RolloutWorker) -> list[Trajectory]:
        """The successful trajectories of a file in a run's trajectories folder, with ids if they had none;
        their screenshots are copied into this run."""
        source = Run(path.resolve().parents[1])
        found = [t for t in source.load_trajectories(path.stem) if t.success and t.valid]
        if not found:
            raise ValueError(f"--sft.demos {path} holds no success to clone")
        heldout = {name for task in self.tasks.heldout for name in names_of(task)}
        if leaked := [t.task.id for t in found if names_of(t.task) & heldout]:
            raise ValueError(f"--sft.demos {path} solves held-out tasks, {leaked[0]} for one")
        for name in {image for trajectory in found for turn in trajectory.turns for image in turn.images}:
            self.run.put_image(source.image(name))
        how = (self.preprocessor, rollouts.interface, self.config.agent, source.image)
        return [t if t.trunk else tokenised(t, *how) for t in found]


def form_of(config: Config) -> Form:
    """How scripted solutions are spelled."""
    if config.agent.kind == "visual":
        return "tools"
    return "thinking" if config.agent.thinking else "action"


def _build_tiny(path: Path, config: Config, tasks: TaskSets) -> None:
    """The small checkpoint, with a tokenizer that knows the words of its world, or a text agent's pages."""
    worlds = worlds_of(tasks.train)
    if config.agent.kind == "text":
        with progress("reading pages for the tokenizer"):
            pages = _pages(config, worlds, tasks.train[:PAGES_OF])
            with ThreadPoolExecutor(1) as thread:  # whoever opens the parts may be in a loop of its own
                texts = thread.submit(asyncio.run, pages).result()
        tiny.build_text(path, texts, config.seed)
        return
    words = [word for world in worlds for rows in world.data.values() for row in rows
             for word in (row["id"], row["title"])]  # fmt: skip
    texts = tiny.corpus(words, tasks.train[0].start_url)
    texts += ["choose choose " + task.instruction for task in tasks.train[:20]]
    tiny.build(path, texts, seed=config.seed)


async def _pages(config: Config, worlds: Sequence[World], tasks: Sequence[Task]) -> list[str]:
    """What the text agent sees and says while the tasks are solved."""
    interface, by_name = interface_of(config.agent), {world.name: world for world in worlds}
    texts = [interface.system]
    with SiteServer(worlds) as server:
        async with BrowserPool(config.browser, server.sites, sealed=True) as pool:
            for task in tasks:
                script = Script(by_name[str(task.meta["world"])], task, form_of(config))
                async with pool.session() as session:
                    await session.start(task.start_url)
                    while not script.ended:
                        seen = await interface.observe(session)
                        said = await script.respond(session)
                        texts += interface.frame(len(texts) - 1, task.instruction, seen, ()) + (said,)
                        await interface.act(session, interface.parse(said).calls[0])
    return texts


def open_experiment(config: Config, ranks: Ranks) -> Experiment:
    """Run folder, tasks and weights; builds the tiny checkpoint if the recipe names it."""
    disable_progress_bar()  # transformers' own, which is drawn even where there is no terminal
    CONSOLE.quiet = not ranks.is_main
    tasks = make_task_sets(config)
    run = Run(config.run_dir, records=ranks.is_main)
    if config.model.path == "tiny":
        path = (config.replay or config.run_dir) / "model"
        if ranks.is_main and not (path / "config.json").is_file():
            _build_tiny(path, config, tasks)
        config = replace(config, model=replace(config.model, path=str(path)))
    ranks.barrier()
    torch.manual_seed(config.seed)
    preprocessor = load_preprocessor(config.model)
    trainer = checkpoints = None
    if config.sampler.kind != "remote":
        with progress("loading the model"):
            model = load_model(config.model, torch.device("cpu"), "auto")
            image = Run(config.replay).image if config.replay else run.image
            trainer = Trainer(model, preprocessor, config, image, ranks)
        checkpoints = Checkpoints(trainer, run.checkpoint_dir)
    # last: a model that can't be loaded leaves an earlier run's settings as they were
    run.write_config(to_json(config))
    if ranks.is_main:
        save_tasks(config.run_dir / "heldout.jsonl", tasks.heldout)
    log = Logger(run, config.wandb, total=config.steps)
    return Experiment(config, run, log, tasks, preprocessor, trainer, checkpoints, ranks)
