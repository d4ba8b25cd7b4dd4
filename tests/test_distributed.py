"""Several ranks do what one does: updates, log-probs, and the sharing out of a step's tasks."""

import asyncio
import os
import random
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import cache, partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from peers import alone, on_ranks
from training import distance, group_of, learn, make_groups, make_trainer, rows_of, save_text_model, weights
from workers import make_worker

from minirl import lora, prefix_tree
from minirl.config import BrowserConfig, Config, LossConfig, ModelConfig, RolloutConfig
from minirl.distributed import Ranks, TaskQueue, full_tensor
from minirl.model import load_model
from minirl.recipes import RECIPES, tiny
from minirl.rollout import Collected
from minirl.rows import balance, micro_batches
from minirl.types import Group, RunEnds, Task, Trajectory, Turn

LOSSES = {
    "openwebrl": LossConfig(),
    "kl": LossConfig("grpo", "webagent-r1", kl=0.1),
    "filtered-bc": LossConfig("filtered-bc", "token-mean"),
}
SETTINGS = {
    "plain": {},
    "replicas": {"optim": {"replicas": 2}},
    "checkpointing": {"model": {"gradient_checkpointing": True}},
    "frozen": {"model": {"freeze_vision": "always", "freeze": 1}},
    "cloning's own": {
        "sft": {"betas": (0.5, 0.9), "grad_clip": 0.01},
        "model": {"freeze_vision": "sft"},
    },
    "adapters": {"model": {"lora": 4, "gradient_checkpointing": True}},
    "small micro-batches": {"micro_tokens": 60},
    "per turn": {"layout": "per-turn", "micro_tokens": 100},
}


# than the plain settings; all others give the same weights
LEARNS_OTHERWISE = ("frozen", "cloning's own", "adapters")


def blind(group: Group) -> Group:
    """Without screenshots."""
    trajectories = []
    for t in group:
        turns = tuple(replace(turn, images=(), suffix=(43,)) for turn in t.turns)
        trajectories.append(replace(t, turns=turns))
    return tuple(trajectories)


def two_steps(ranks: Ranks, path: Path, loss: str, settings: dict, few: bool) -> tuple[dict, list[dict]]:
    """The weights after an update of imitation and two steps of two, and their metrics."""
    trainer = make_trainer(path, ranks, lr=2e-4, loss=LOSSES[loss], epochs=2, minibatch_turns=6, **settings)
    groups = make_groups(trainer.preprocessor)
    if few:  # one episode of one turn, without a screenshot: nothing for a second rank
        groups = [group_of(blind(groups[1])[:1], 1.0)]
    trainer.sft_update(rows_of(groups), lr=2e-4)
    trainer.reset_optimizer()
    trainer.keep_reference()
    metrics = [learn(trainer, groups, seed) for seed in range(2)]
    return {name: weight.numpy() for name, weight in weights(trainer).items()}, metrics


def assert_same(one: tuple[dict, list[dict]], other: tuple[dict, list[dict]], start: dict) -> None:
    """Equal metrics and weights. Adam makes whole steps of gradients that are rounding errors alone, so it is
    the distance of all weights that is compared."""
    for a, b in zip(one[1], other[1], strict=True):
        assert a == pytest.approx(b, rel=1e-3, abs=1e-4)
    ours, theirs = ({n: torch.from_numpy(w) for n, w in found[0].items()} for found in (one, other))
    moved, size = distance(theirs, start), sum((w**2).sum().item() for w in theirs.values()) ** 0.5
    assert moved > 1e-3 * size and distance(ours, theirs) < 1e-5 * size, (distance(ours, theirs), moved, size)


@pytest.fixture(scope="module")
def text_folder(preprocessor, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("text")
    return save_text_model(path, preprocessor, "Qwen2", tie_word_embeddings=False)


def text_step(ranks: Ranks, path: Path) -> tuple[dict, list[dict]]:
    trainer = make_trainer(path, ranks, lr=2e-4, minibatch_turns=6)
    groups = list(map(blind, make_groups(trainer.preprocessor)))
    metrics = [learn(trainer, groups, seed) for seed in range(2)]
    return {name: weight.numpy() for name, weight in weights(trainer).items()}, metrics


QUICK = (
    ("openwebrl", "plain", True),
    ("kl", "plain", False),
    ("kl", "replicas", False),
    ("openwebrl", "frozen", False),
)
# The other losses and cuts are tested on one rank, adapters also below in bfloat16
MORE = (
    ("openwebrl", "checkpointing", False),
    ("openwebrl", "cloning's own", False),
    ("kl", "adapters", False),
    ("openwebrl", "small micro-batches", False),
    ("openwebrl", "per turn", False),
    ("filtered-bc", "plain", False),
)
CASES = [*QUICK, *(pytest.param(case, marks=pytest.mark.more) for case in MORE)]


def adapted_half(ranks: Ranks, path: Path) -> list[dict]:
    """All weights, and what is streamed, after two steps in bfloat16: a shard has weights of two types."""
    trainer = make_trainer(path, ranks, lr=2e-4, model={"lora": 3, "dtype": "bfloat16"})
    for step in range(2):
        learn(trainer, make_groups(trainer.preprocessor), step)
    named = dict(trainer.policy.model.named_parameters())
    whole = {name: full_tensor(weight.detach()) for name, weight in named.items()}
    return [{name: w.float().numpy() for name, w in part.items()} for part in (whole, weights(trainer))]


def all_of(ranks: Ranks, path: Path, text_path: Path, cases: tuple) -> dict:
    found = {case: two_steps(ranks, path, case[0], SETTINGS[case[1]], case[2]) for case in cases}
    if cases == MORE:
        return found
    return found | {"text": text_step(ranks, text_path), "bfloat16": adapted_half(ranks, path)}


@pytest.fixture(scope="module")
def on_two(tiny_folder, text_folder) -> Callable[[tuple], list[dict]]:
    """`on_two(QUICK)`: what each of two ranks gets for all of these cases, since starting processes takes
    longer than a case."""
    return cache(lambda cases: on_ranks(2, all_of, tiny_folder, text_folder, cases))


@pytest.fixture(scope="module")
def on_one(tiny_folder, ranks) -> Callable[[str, str, bool], tuple[dict, list[dict]]]:
    """`on_one("kl", "plain", False)`: the same of this rank alone."""
    return cache(lambda loss, name, few: two_steps(ranks, tiny_folder, loss, SETTINGS[name], few))


def test_tests_compute_on_the_cpu(ranks):
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "" and ranks.device.type == "cpu"


@pytest.mark.parametrize("case", CASES, ids=lambda case: ", ".join(map(str, case)))
def test_two_ranks_train_as_one_does(tiny_folder, on_one, on_two, case):
    loss, settings, few = case
    start = load_model_weights(tiny_folder)
    one = on_one(loss, settings if settings in LEARNS_OTHERWISE else "plain", few)
    for found in on_two(MORE if case in MORE else QUICK):
        assert_same(found[case], one, start)
    still = {name for name, weight in one[0].items() if (torch.from_numpy(weight) == start[name]).all()}
    parts = (".visual.", ".embed_tokens.", ".layers.0.")
    frozen = {name for name in start if any(part in name for part in parts)}
    assert (still == frozen) == (settings == "frozen")


def test_a_text_model_on_two_ranks(text_folder, ranks, on_two):
    """An untied head, and no vision tower to keep busy."""
    one = text_step(ranks, text_folder)
    for found in on_two(QUICK):
        assert_same(found["text"], one, load_model_weights(text_folder))


def test_adapters_are_whole_and_float32_on_two_ranks_that_compute_in_bfloat16(tiny_folder, ranks, on_two):
    """Three rows of A on two ranks. W' is made of all of them; the base is as it was, one rank's update is
    near."""
    start = load_model_weights(tiny_folder)
    alone, _ = adapted_half(ranks, tiny_folder)
    for found in on_two(QUICK):
        whole, streamed = [{n: torch.from_numpy(w) for n, w in part.items()} for part in found["bfloat16"]]
        assert streamed.keys() == start.keys()
        gaps, sizes = 0.0, 0.0
        for name, weight in start.items():
            half = weight.bfloat16()
            assert torch.equal(whole[name], half.float())
            layer = name.removesuffix(".weight")
            if f"{layer}.lora_A" not in whole:
                assert torch.equal(streamed[name], half.float())
                continue
            a, b = whole[f"{layer}.lora_A"], whole[f"{layer}.lora_B"]
            assert a.shape[0] == b.shape[1] == 3 and not torch.equal(b, b.bfloat16().float())
            assert torch.equal(streamed[name], lora.merge(half, a, b).float())
            gaps += (b - torch.from_numpy(alone[f"{layer}.lora_B"])).abs().sum().item()
            sizes += b.abs().sum().item()
        assert gaps < 0.1 * sizes, (gaps, sizes)


def load_model_weights(path: Path) -> dict[str, torch.Tensor]:
    model = load_model(ModelConfig(path=str(path)), torch.device("cpu"))
    return {name: weight.detach() for name, weight in model.named_parameters()}


def test_a_wrong_share_is_noticed(tiny_folder, on_one):
    """The control: half of the episodes give other weights."""
    one = on_one("openwebrl", "plain", False)
    other = on_one("openwebrl", "plain", True)
    with pytest.raises(AssertionError):
        assert_same(other, one, load_model_weights(tiny_folder))


@pytest.mark.parametrize("layout", ["tree", "per-turn"])
@pytest.mark.parametrize("world", [1, 2, 3, 5])
def test_micro_batches_are_alike_on_all_ranks(preprocessor, layout, world):
    """Every row once, within the budget, and at most one micro-batch more on one rank than on another."""
    rows = rows_of(make_groups(preprocessor))
    cut = partial(prefix_tree.micro_batches, pad=preprocessor.pad, limit=70)
    shares = balance(rows, 70, world, cut if layout == "tree" else micro_batches)
    found = [row.ids for share in shares for part in share for row in part.rows]
    assert sorted(found) == sorted(row.ids for row in rows)
    largest = max(part.tokens for share in shares for part in share)
    counts = [len(share) for share in shares]
    assert largest <= 70 and len(counts) == world and max(counts) - min(counts) <= 1
    loads = [sum(part.tokens for part in share) for share in shares]
    assert max(loads) - min(loads) <= largest


def test_replicas_that_do_not_divide_the_ranks_are_refused():
    with pytest.raises(ValueError, match="--optim.replicas 2 does not divide the number of ranks, 3"):
        Ranks(0, 3, torch.device("cpu"), dist.HashStore(), None).mesh(2)


def test_no_task_is_taken_twice_and_all_ranks_know_what_became_of_it():
    store = dist.HashStore()
    ranks = [Ranks(r, 3, torch.device("cpu"), store, None) for r in range(3)]
    boards = [TaskQueue(rank, "step 0") for rank in ranks]
    for n, owner in enumerate((0, 1, 2, 1, 1)):
        assert boards[owner].claim(n) and [board.claimed() for board in boards] == [n + 1] * 3
        assert not any(board.claim(n) for board in boards if board is not boards[owner]), "it is taken"
    boards[1].post(3, True)
    boards[0].post(0, False)
    assert all(board.results() == {0: False, 3: True} and board.claimed() == 5 for board in boards)
    assert TaskQueue(ranks[0], "step 1").claim(0)  # another step


def test_all_results_are_one_question_to_the_store(ranks):
    """The store may be on another node, and is asked several times a second."""
    queue = TaskQueue(ranks, "asked")
    assert queue.results() == {} and all(queue.claim(n) for n in range(50))
    queue.post(7, True)
    queue.claimed()
    asked, store = [], queue.store

    class Noting:
        def __getattr__(self, name: str) -> Callable:
            asked.append(name)
            return getattr(store, name)

    queue.store = Noting()
    assert queue.results() == {7: True} and asked == ["check", "multi_get"]
    assert not queue.claim(7)  # also when it has ended


PLANS = [random.Random(i).choice([(0.0, 1.0), (0.0, 0.0), (1.0, 1.0)]) for i in range(60)]


class Stage:
    """Rollouts whose episodes end when they like, with rewards that the task alone decides."""

    def __init__(self, ranks: Ranks, seed: int, config: Config | None = None):
        self.random, self.ran = random.Random(f"{seed} {ranks.rank}"), []
        rollout = RolloutConfig(group=2, groups=6, max_steps=(5,))
        browser = BrowserConfig(episodes=4 * ranks.world_size)
        config = config or replace(tiny(), rollout=rollout, browser=browser)
        self.failure = ""
        self.tasks = [self[n] for n in range(len(PLANS))]
        self.rollouts = make_worker(config, sampler=self, ranks=ranks)
        self.rollouts.episode = self.episode

    def __getitem__(self, n: int) -> Task:
        return Task(f"task-{n}", "", "http://shop-0.test/")

    async def episode(self, task: Task, member: int, *_: object) -> Trajectory:
        self.ran.append(task.id)
        await asyncio.sleep(self.random.uniform(0, 0.15))
        reward = PLANS[int(task.id.removeprefix("task-"))][member]
        return Trajectory(task, member, turns=(Turn(0, (1,), (2,), (-0.1,), ""),), reward=reward)

    async def idle(self) -> None:
        pass

    def collect(self, cursor: int) -> Collected:
        return asyncio.run(self.rollouts.collect(self, cursor, 0, lambda n: None))


def collected(ranks: Ranks, seed: int) -> tuple[list[str], int, list[str], list[str]]:
    stage = Stage(ranks, seed)
    first = stage.collect(0)
    second = stage.collect(first.next_cursor)
    kept = [group[0].task.id for step in (first, second) for group in step.groups]
    finished = [trajectory.task.id for step in (first, second) for trajectory in step.finished]
    return kept, second.next_cursor, finished, stage.ran


EVEN = ["webagent_r1_3b", pytest.param("openwebrl_4b", marks=pytest.mark.more)]


def busiest(ranks: Ranks, recipe: str, late: bool) -> tuple[int, int, int]:
    """The most episodes and the most browsers that a rank has at once in a step of a paper's size, and how
    many episodes it begins; the others may come half a second after the first."""
    stage = Stage(ranks, 0, RECIPES[recipe]())
    worker, live, most, begun, own = stage.rollouts, set(), [0], [0], [0]

    async def episode(task: Task, member: int, *_: object) -> Trajectory:
        live.add((task.id, member))
        most[0], begun[0] = max(most[0], len(live)), begun[0] + 1
        try:
            async with worker.slots:
                own[0] = max(own[0], worker.share - worker.slots._value)
                await asyncio.sleep(stage.random.uniform(0.8, 1.2))
        finally:
            live.remove((task.id, member))
        return Trajectory(task, member, turns=(Turn(0, (1,), (2,), (-0.1,), ""),), reward=float(member % 2))

    worker.episode = episode
    ranks.barrier()
    if late and ranks.rank:
        time.sleep(0.5)
    stage.collect(0)
    return most[0], own[0], begun[0]


@pytest.mark.parametrize("late", [True, pytest.param(False, marks=pytest.mark.more)])
@pytest.mark.parametrize("recipe", EVEN)
def test_a_steps_episodes_are_shared_evenly_among_the_ranks(recipe, late):
    """Eight ranks, no one with more episodes than one and a half times its share in whole groups."""
    config = RECIPES[recipe]()
    total, group = config.browser.episodes, config.rollout.group
    share = {"webagent_r1_3b": 8, "openwebrl_4b": 10}[recipe]
    most = -(-3 * share // 2 // group) * group
    assert (total, most) in ((64, 12), (80, 15))
    found = on_ranks(8, busiest, recipe, late)
    assert all(held <= most and browsers <= share and begun for held, browsers, begun in found), found
    if recipe == "webagent_r1_3b":  # without dynamic sampling none is begun beyond those needed
        assert sum(begun for *_, begun in found) == 64 and all(held <= 8 for held, *_ in found), found


def evaluated(ranks: Ranks, config: Config, seconds: dict[int, float], wait: float) -> tuple[list, int, list]:
    """An evaluation of twelve tasks on a rank that takes so long for each; its collective calls wait less."""
    short = dist.new_group(backend="gloo", timeout=timedelta(seconds=wait))
    stage = Stage(ranks, 0, config)
    ticks: list[int] = []

    async def episode(task: Task, member: int, *_: object) -> Trajectory:
        stage.ran.append(task.id)
        await asyncio.sleep(seconds[ranks.rank])
        return Trajectory(task, member)

    async def settle() -> None:
        dist.barrier(short)

    stage.rollouts.episode, stage.rollouts.settle = episode, settle
    places = [(stage[n], n) for n in range(12)]
    done = asyncio.run(stage.rollouts.evaluate(places, "eval", 3, ticks.append))
    return [(t.task.id, t.member) for t in done], len(stage.ran), ticks


@pytest.mark.more
def test_ranks_take_an_evaluations_tasks_as_they_have_room_and_wait_for_the_slowest():
    """One rank takes twenty times as long as the other, and longer than a collective call waits."""
    config = replace(tiny(), browser=BrowserConfig(episodes=2))
    fast, slow = on_ranks(2, evaluated, config, {0: 0.2, 1: 4.0}, 2.0)
    everything = [(f"task-{n}", n) for n in range(12)]
    assert fast[0] == slow[0] == everything and fast[1] + slow[1] == 12
    assert slow[1] == 2, "one in its slot, and one behind it"
    assert fast[2][-1] == slow[2][-1] == 12 and fast[2] == sorted(fast[2])


def one_dies(ranks: Ranks) -> str:
    stage = Stage(ranks, 0)
    stage.failure = "out of memory" if ranks.rank == 1 else ""
    with pytest.raises(RunEnds) as death:
        stage.collect(0)
    return str(death.value)


def test_a_sampler_that_dies_ends_the_step_on_all_ranks():
    assert on_ranks(2, one_dies) == ["out of memory"] * 2


def test_the_groups_of_a_step_do_not_depend_on_who_ran_them():
    effective = [f"task-{n}" for n, plan in enumerate(PLANS) if len(set(plan)) == 2][:12]
    kept, cursor, finished, _ = collected(alone(), seed=0)
    assert kept == effective and cursor == int(effective[-1].removeprefix("task-")) + 1
    several = on_ranks(3, collected, 1)
    for answer in several:
        assert answer[:3] == (kept, cursor, finished)
    assert all(len(set(ran)) > 2 for *_, ran in several), "a rank had nothing to do"
