"""What only a GPU can show, on the small model: `pytest -m gpu`. benchmarks/gpu.py is for full size."""

import asyncio
import gc
from collections.abc import Iterator

import pytest
import torch
from test_vllm import HOT, open_trainer, rows_of, sample
from training import learn, make_trainer
from training import rows_of as rows_of_groups

from minirl.distributed import Ranks
from minirl.rows import Row
from minirl.samplers.vllm import VllmSampler
from minirl.trainer import Trainer
from minirl.tree_attention import Chain, JoinedAttention, segment_attention
from minirl.types import Sample, Sampling

pytestmark = pytest.mark.gpu

TREE = (
    Chain(0, 700),
    Chain(700, 900, ((0, 300),)),
    Chain(900, 901, ((0, 700),)),
    Chain(901, 1200, ((0, 10), (700, 800))),
)


def scores(trainer: Trainer, rows: list[Row]) -> torch.Tensor:
    return torch.tensor([x for row in trainer._score(trainer.policy, rows) for x in row])


def test_log_probs_in_bfloat16_are_near_those_in_float32(tiny_folder, ranks, groups):
    exact, half = (make_trainer(tiny_folder, ranks, model={"dtype": d}) for d in ("float32", "bfloat16"))
    rows = rows_of_groups(groups)
    assert ranks.device.type == "cuda"
    assert 0 < (scores(exact, rows) - scores(half, rows)).abs().mean() < 0.05


@pytest.mark.parametrize("heads", [(32, 8), (4, 4), (4, 1)])
def test_joined_pieces_are_as_near_to_float32_as_the_segment_loop(heads):
    """Outputs and gradients; and the control, that a tree matters."""

    def computed(kernel, dtype: torch.dtype, tree=TREE) -> list[torch.Tensor]:
        torch.manual_seed(0)
        q, k, v = (
            torch.randn(1, 1200, n, 128, device="cuda").transpose(1, 2) for n in (heads[0], *heads[1:] * 2)
        )
        q, k, v = (x.to(dtype).requires_grad_() for x in (q, k, v))
        out = kernel(q, k, v, tree, None)
        out.backward(torch.randn(out.shape, device="cuda").to(dtype))
        return [out.detach().float(), q.grad.float(), k.grad.float(), v.grad.float()]

    exact, half = computed(segment_attention, torch.float32), torch.bfloat16
    pairs = zip(computed(JoinedAttention.apply, half), computed(segment_attention, half), exact, strict=True)
    for joined, segment, truth in pairs:
        errors = [((x - truth).norm() / truth.norm()).item() for x in (joined, segment)]
        assert errors[0] < max(0.01, 1.2 * errors[1]), errors
    other = computed(JoinedAttention.apply, half, (Chain(0, 1200),))[0]
    assert (other - exact[0]).norm() / exact[0].norm() > 0.1


def test_updates_leave_only_weights_and_moments_behind(tiny_folder, ranks, groups):
    trainer, held = make_trainer(tiny_folder, ranks), []
    for _ in range(3):
        metrics = learn(trainer, groups)
        assert metrics["skipped"] == 0 and metrics["grad_norm"] > 0
        assert all(weight.grad is None for weight in trainer.policy.parameters())
        gc.collect()
        held.append(torch.cuda.memory_allocated())
    assert held[1] == held[2]


@pytest.fixture(scope="module")
def pair(tiny_folder, ranks: Ranks) -> Iterator[tuple[Trainer, VllmSampler]]:
    """A trainer and the one engine that a process can put to sleep."""
    trainer = open_trainer(tiny_folder, ranks)
    sampler = VllmSampler(trainer.config, trainer.preprocessor, ranks)
    sampler.sync(trainer.weights())
    yield trainer, sampler
    sampler.close()


async def ask(sampler: VllmSampler, prompts: list, how: Sampling = HOT) -> list[Sample]:
    samples = await sample(sampler, prompts, how)
    await sampler.idle()
    return samples


def off(trainer: Trainer, rows: list[Row]) -> float:
    """The mean difference between the rows' log-probs and the trainer's."""
    return (scores(trainer, rows) - torch.tensor([x for row in rows for x in row.old])).abs().mean().item()


@pytest.mark.vllm
def test_the_sampler_and_the_trainer_agree_after_updates(pair, prompts):
    """Twice; before the sync they do not."""
    trainer, sampler = pair
    for _ in range(2):
        rows = rows_of(prompts, asyncio.run(ask(sampler, prompts)))
        assert off(trainer, rows) < 0.03
        trainer.sft_update(rows, lr=3e-3)
        assert off(trainer, rows) > 0.1
        sampler.sync(trainer.weights())


@pytest.mark.vllm
def test_sleep_frees_memory_and_waking_restores_all_of_it(pair, prompts):
    """In between, what was free is filled with other numbers."""
    trainer, sampler = pair
    before = [s.ids for s in asyncio.run(ask(sampler, prompts, Sampling(0.0)))]
    for _ in range(3):
        free, total = torch.cuda.mem_get_info()
        sampler.sleep()
        slept, _ = torch.cuda.mem_get_info()
        assert slept - free > 0.9 * trainer.config.sampler.gpu_memory * total
        torch.full((slept - (2 << 30),), 0x7F, dtype=torch.uint8, device="cuda")
        torch.cuda.empty_cache()
        sampler.sync(trainer.weights())
    assert [s.ids for s in asyncio.run(ask(sampler, prompts, Sampling(0.0)))] == before
    assert off(trainer, rows_of(prompts, asyncio.run(ask(sampler, prompts)))) < 0.03
