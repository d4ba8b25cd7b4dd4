"""Puts the parts together: run folder, tasks, weights, browsers, benchmarks, judge.

    Config --open_experiment--> Experiment --worker()--> RolloutWorker

Stands between the scripts and all rooms. Of the flat modules only this one and __main__.py import rooms, here
each where it is needed: a run loads no more than it uses.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch.distributed.fsdp import FSDPModule
from transformers.utils.logging import disable_progress_bar

from minirl.checkpoint import Checkpoints
from minirl.config import Config, ModelConfig, to_json
from minirl.console import CONSOLE, progress, say
from minirl.distributed import Ranks
from minirl.episode import Harness
from minirl.model import Preprocessor, load_model, load_preprocessor
from minirl.rollout import RolloutWorker
from minirl.run_folder import Run, save_tasks
from minirl.trainer import Trainer, cores
from minirl.types import Agent, Sampler, Task, Trajectory

if TYPE_CHECKING:
    from minirl.benchmarks.task_sets import FindBenchmark, TaskSets
    from minirl.browser.pool import BrowserPool
    from minirl.browser.servers import Slots
    from minirl.cli.logger import Logger


@dataclass
class Experiment:
    """The parts that the scripts work with. `config.model.path` is a real folder or hub name by now."""

    config: Config
    run: Run
    log: Logger
    tasks: TaskSets
    preprocessor: Preprocessor
    ranks: Ranks
    loaded: Trainer | None  # not of a model that is served elsewhere, which only eval.py can ask

    @property
    def trainer(self) -> Trainer:
        assert self.loaded, "a served model is not trained"
        return self.loaded

    @cached_property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.trainer, self.run.checkpoint_dir)

    @contextlib.asynccontextmanager
    async def worker(self, rewarded: bool = True) -> AsyncIterator[RolloutWorker]:
        """Open browsers, sites and a sampler with the trainer's weights for as long as the block lasts.
        ValueError if an episode that is to be `rewarded` could not be."""
        from minirl.benchmarks.task_sets import choose_benchmarks, refuse_impossible
        from minirl.browser.host_backoff import HostBackoff
        from minirl.browser.servers import read_slots
        from minirl.judges.judge import EndpointJudge, open_judge

        config = self.config
        images = self.run.images
        tasks = self.tasks.all
        benchmark_of = choose_benchmarks(config)
        refuse_impossible(config.judge, tasks, benchmark_of, rewarded)
        if config.agent.kind != "autowebworld" and any(benchmark_of(task).recorded for task in tasks):
            raise ValueError("recorded steps are AutoWebWorld's: add --agent.kind autowebworld")
        file = config.task.servers
        slots = read_slots(file, config.browser.episodes, self.ranks) if file else None
        others = self.ranks.rank * self.ranks.share(config.browser.episodes)
        async with (
            open_browsers(config, tasks, benchmark_of, slots, others) as pool,
            self.sampler() as sampler,
            open_judge(config, self.ranks, images) as judge,
        ):
            endpoint = judge.endpoint if isinstance(judge, EndpointJudge) else None
            benchmarks = choose_benchmarks(config, endpoint)
            agent = make_agent(config, self.preprocessor)
            harness = Harness(config, self.preprocessor, agent, pool, images, benchmarks)
            yield RolloutWorker(harness, sampler, self.ranks, HostBackoff(), judge)

    @contextlib.asynccontextmanager
    async def sampler(self) -> AsyncIterator[Sampler]:
        """Open the sampler that the config names, with the trainer's weights."""
        from minirl.samplers.endpoint import RemoteSampler, open_endpoint
        from minirl.samplers.huggingface import HfSampler
        from minirl.samplers.vllm import VllmSampler

        config = self.config
        device = self.ranks.device
        kind = config.sampler.kind
        if kind == "remote":
            async with open_endpoint(config.endpoint) as endpoint:
                yield RemoteSampler(endpoint)
            return
        if kind == "vllm" or (kind == "auto" and device.type == "cuda"):
            with progress("starting vLLM"):
                sampler = VllmSampler(config, self.preprocessor, self.ranks)
        else:
            model = self.trainer.policy.model
            # one rank alone can't ask a sharded model; merged weights must not be written into the base
            if isinstance(self.trainer.policy, FSDPModule) or config.model.lora:
                model = load_model(config.model, device)
            # one thread is left to Chromium
            sampler = HfSampler(model, self.preprocessor, max(1, cores() - 1))
        try:
            sampler.sync(self.trainer.weights())
            yield sampler
        finally:
            sampler.close()

    async def demonstrate(self, worker: RolloutWorker) -> list[Trajectory]:
        """Return the successes of the dump that the config names, without those on held-out tasks, or the
        solutions of the demonstrated goals, acted out and confirmed by the task's rules."""
        from minirl.benchmarks.recorded import demonstrations
        from minirl.benchmarks.task_sets import drop_leaked
        from minirl.demonstrations import load_demonstrations
        from minirl.worlds.scripted_agent import act_out

        demos = self.config.sft.demos
        heldout = self.tasks.heldout
        benchmark_of = worker.harness.benchmark_of
        if demos is None:
            recorded = [task for task in self.tasks.demos if benchmark_of(task).recorded]
            live = [task for task in self.tasks.demos if not benchmark_of(task).recorded]
            if live and self.config.agent.kind == "autowebworld":
                raise ValueError("clone this agent's tasks as recorded steps: python -m minirl.worlds record")
            solutions = demonstrations(recorded, worker.harness)
            solutions += await act_out(live, worker)
            self.run.save_trajectories("demos", solutions)
            return solutions
        loaded = load_demonstrations(demos, worker.harness)
        wordings = {task.instruction for task in heldout}
        solutions = []
        for trajectory in loaded:
            task = trajectory.task
            # of a public record the site may not be known
            is_unlike = bool(task.start_url) or task.instruction not in wordings
            if is_unlike and drop_leaked([task], heldout, benchmark_of):
                solutions.append(trajectory)
        if len(solutions) < len(loaded):
            say(f"{len(loaded) - len(solutions)} demonstrations solve held-out tasks, and were left out")
        return solutions


@contextlib.asynccontextmanager
async def open_browsers(
    config: Config, tasks: Sequence[Task], benchmark_of: FindBenchmark, slots: Slots | None, others: int
) -> AsyncIterator[BrowserPool]:
    """Serve the sites of tasks that are served here, and open browsers if a task takes one. `slots` are free
    copies of other sites, one for each episode; the ranks before this one have `others` episodes."""
    from minirl.browser.pool import BrowserPool
    from minirl.worlds.render import SiteServer, sites_of

    live = [task for task in tasks if not benchmark_of(task).recorded]
    trusted = {place for task in tasks for place in benchmark_of(task).places(task)}
    hosts = {task.host for task in live}
    folders: dict[str, Path] = {}
    for task in tasks:
        folders |= benchmark_of(task).folders()
    with SiteServer(sites_of(tasks), folders) as server:
        sealed = hosts <= set(server.sites)  # then browsers need to reach nothing else
        pool = BrowserPool(config.browser, server.sites, sealed, trusted, slots, others)
        async with pool if live else contextlib.nullcontext():
            yield pool


def make_agent(config: Config, preprocessor: Preprocessor | None = None) -> Agent:
    """Return the agent that the config names; AutoWebWorld's speaks of its model's pixels, or if that is a
    served one, by default of the screenshot's."""
    from minirl.agents.autowebworld import AutoWebWorldAgent
    from minirl.agents.openwebrl import OpenWebRLAgent
    from minirl.agents.webagent_r1 import WebAgentR1Agent

    images = preprocessor.images if preprocessor else None
    if preprocessor and not images and config.agent.kind != "text":
        raise ValueError("this model can't see; use a vision-language model, or a text recipe as tiny-text")
    if config.agent.kind == "autowebworld":
        in_screenshot = config.sampler.kind == "remote" and config.sampler.points == "picture"
        resized = images.resized if images and not in_screenshot else lambda *size: size
        return AutoWebWorldAgent(config.agent, resized)
    if config.agent.kind == "visual":
        return OpenWebRLAgent(config.agent, preprocessor.chat if preprocessor else None)
    return WebAgentR1Agent(config.agent)


def place_model(config: Config, folder: Path, ranks: Ranks) -> ModelConfig:
    """Return which model to load: the recipe's, or a copy of the tiny one in `folder`, if it names that."""
    from minirl.tiny.checkpoints import build_tiny

    if config.model.path != "tiny":
        return config.model
    if ranks.is_main and not (folder / "config.json").is_file():
        build_tiny(folder, config)
    ranks.barrier()
    return replace(config.model, path=str(folder))


def open_experiment(config: Config, ranks: Ranks) -> Experiment:
    """Open run folder, tasks and weights."""
    from minirl.benchmarks.task_sets import make_task_sets
    from minirl.cli.logger import Logger

    disable_progress_bar()  # transformers' own, which is drawn even where there is no terminal
    CONSOLE.quiet = not ranks.is_main
    tasks = make_task_sets(config)
    run = Run(config.run_dir, records=ranks.is_main)
    source = Run(config.replay) if config.replay else run
    config = replace(config, model=place_model(config, source.root / "model", ranks))
    torch.manual_seed(config.seed)
    preprocessor = load_preprocessor(config.model)
    make_agent(config, preprocessor)  # ValueError before anything is written, if the model can't see
    trainer = None
    if config.sampler.kind != "remote":
        with progress("loading the model"):
            load = partial(load_model, config.model, dtype="auto")
            trainer = Trainer(load, preprocessor, config, source.images, ranks)
    run.write_config(to_json(config))  # last: where no model can be loaded, an earlier run's settings stay
    run.add_start()
    if ranks.is_main:
        save_tasks(config.run_dir / "heldout.jsonl", tasks.heldout)
    return Experiment(config, run, Logger(run, config.steps), tasks, preprocessor, ranks, trainer)
