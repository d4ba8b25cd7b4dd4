"""The transformers sampler: its log-probs are the trainer's, and no request feels the company it has."""

import asyncio
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_vllm import NEAR, gap, open_trainer, rows_of
from training import logprobs_of

from minirl.config import ModelConfig
from minirl.model import load_model, request_seed
from minirl.policy import Policy
from minirl.rows import Row
from minirl.samplers import huggingface
from minirl.samplers.huggingface import Answer, HfSampler, truncate
from minirl.types import Prompt, Request, Sample, SamplerError, Sampling


@pytest.fixture
def new_sampler(model, preprocessor):
    """`new_sampler(temperature=0.8)`; `end` replaces the ids that end a response."""
    made = []

    def make(end=None, max_batch: int = 12, model=model, **how) -> HfSampler:
        speaks = preprocessor if end is None else replace(preprocessor, end=end)
        made.append(HfSampler(model, speaks))
        made[-1].max_batch = max_batch
        made[-1].how = Sampling(**how)  # what `sample_all` asks for
        return made[-1]

    yield make
    for sampler in made:
        sampler.close()


async def sample_all(sampler: HfSampler, prompts: list[Prompt], max_tokens: int = 12) -> list[Sample]:
    requests = [Request(p, request_seed("test", n), max_tokens, sampler.how) for n, p in enumerate(prompts)]
    return await asyncio.gather(*(sampler.generate(request) for request in requests))


OFTEN = tuple(range(10, 800, 6))  # one token in six ends the response, so that rows end at different times


def plain_logprobs(model, preprocessor, prompt: Prompt, said: tuple[int, ...], temperature: float = 1.0):
    """Log-probs (V,) of the next token, by transformers alone: no cache, no batch, its own positions."""
    ids_1L = torch.tensor([prompt.ids + said])
    images = {}
    if prompt.images:
        pixels, grids = zip(*map(preprocessor.images.prepare, prompt.images), strict=True)
        images = {"pixel_values": torch.cat(pixels), "image_grid_thw": torch.tensor(grids)}
    with torch.no_grad():
        out = model(input_ids=ids_1L, mm_token_type_ids=(ids_1L == preprocessor.pad).int(), **images)
    logits_V = out.logits[0, -1]
    logits_V[list(preprocessor.suppressed)] = float("-inf")
    return (logits_V / temperature).log_softmax(-1)


async def test_temperature_0_takes_plain_transformers_most_probable_token(
    model, preprocessor, new_sampler, prompts
):
    samples = await sample_all(new_sampler(end=OFTEN, temperature=0), prompts, max_tokens=5)
    for prompt, sample in zip(prompts, samples, strict=True):
        for i, (token, logprob) in enumerate(zip(sample.ids, sample.logprobs, strict=True)):
            expected_V = plain_logprobs(model, preprocessor, prompt, sample.ids[:i])
            assert logprob == pytest.approx(expected_V[token].item(), abs=1e-5)
            assert token == expected_V.argmax()


@pytest.fixture(scope="module")
def hybrid(hybrid_folder):
    """The small Qwen3.5, whose words are the same."""
    return load_model(ModelConfig(path=str(hybrid_folder))).eval()


def assert_alike(one: Sample, other: Sample, near: float = 1e-5) -> None:
    assert one.ids == other.ids and one.finish == other.finish
    assert one.logprobs == pytest.approx(other.logprobs, abs=near)


@pytest.mark.parametrize(("kind", "near"), [("model", 1e-5), ("hybrid", 1e-4)])
async def test_log_probs_are_the_policys_and_nobody_feels_the_company(
    request, preprocessor, new_sampler, prompts, kind, near
):
    """Prompts of different lengths, some asked for twice, in one batch from which rows leave at different
    times. A hybrid's rows have states that must move with them."""
    model = request.getfixturevalue(kind)
    sampler = new_sampler(end=OFTEN, model=model, temperature=0.8)
    asked = [*prompts, *prompts[::-2]]
    samples = await sample_all(sampler, asked)
    assert len({len(sample.ids) for sample in samples}) >= 3, "the test needs rows that end early"
    policy = Policy(model, preprocessor, temperature=0.8)
    for n, (prompt, sample) in enumerate(zip(asked, samples, strict=True)):
        images = {str(i): png for i, png in enumerate(prompt.images)}
        row = Row(prompt.ids + sample.ids, len(prompt.ids), tuple(images), sample.logprobs, 0.0)
        logprobs_N = logprobs_of(policy, [row], preprocessor, images)
        torch.testing.assert_close(torch.tensor(row.old), logprobs_N, atol=near, rtol=0)
        # by transformers' own positions, too
        last_V = plain_logprobs(model, preprocessor, prompt, sample.ids[:-1], 0.8)
        assert sample.logprobs[-1] == pytest.approx(last_V[sample.ids[-1]].item(), abs=near)
        alone = await sampler.generate(Request(prompt, request_seed("test", n), 12, sampler.how))
        assert_alike(alone, sample, near)
    other = await sampler.generate(Request(prompts[0], 1, 12, sampler.how))
    assert other.ids != samples[0].ids, "of another seed"


@pytest.mark.more
async def test_a_hybrids_log_probs_are_the_trainers_after_every_update(hybrid_folder, ranks, prompts):
    """Three updates on trees, synced into a sampler with weights of its own. Before the sync they differ."""
    trainer = open_trainer(hybrid_folder, ranks)
    sampler = HfSampler(load_model(ModelConfig(path=str(hybrid_folder))), trainer.preprocessor)
    sampler.how = Sampling(temperature=0.8)
    for _ in range(3):
        rows = rows_of(prompts, await sample_all(sampler, prompts))
        assert gap(trainer, rows) < NEAR
        trainer.sft_update(rows, lr=3e-3)
        assert gap(trainer, rows) > 100 * NEAR
        sampler.sync(trainer.weights())
    assert gap(trainer, rows_of(prompts, await sample_all(sampler, prompts))) < NEAR
    sampler.close()


async def test_a_prompt_that_several_requests_share_is_read_once(new_sampler, prompts, monkeypatch):
    sampler, read, plain = new_sampler(end=OFTEN, temperature=1.0), [], huggingface.padded_inputs
    watched = lambda rows, *_: read.append(len(rows)) or plain(rows, *_)  # noqa: E731
    monkeypatch.setattr(huggingface, "padded_inputs", watched)
    asked = [Request(prompts[n], request_seed("share", i), 12) for i, n in enumerate((2, 0, 2, 3, 0, 2))]
    together = await asyncio.gather(*map(sampler.generate, asked))
    assert read == [3]
    assert len({sample.ids for sample in together}) == len(together)


async def test_requests_of_two_samplings_that_wait_at_once_are_each_drawn_in_their_own_way(
    new_sampler, prompts
):
    sampler, how = new_sampler(end=OFTEN), (Sampling(1.0), Sampling(0.0))
    asked = [Request(prompts[0], 2, 12, how[n % 2]) for n in range(4)]
    together = await asyncio.gather(*map(sampler.generate, asked))
    alone = [await sampler.generate(request) for request in asked[:2]]
    assert [one.ids for one in together] == [one.ids for one in alone] * 2
    assert together[0].ids != together[1].ids


def test_request_seeds_are_the_same_on_every_machine():
    # the first eight bytes of sha256("0|3|shop-0-17|2"), halved so that torch takes them
    assert request_seed(0, 3, "shop-0-17", 2) == 0x5910AB5D35991713 // 2
    assert request_seed(0, 3, "shop-0-17", 3) != request_seed(0, 3, "shop-0-17", 2)


async def test_waiting_requests_are_decoded_together_up_to_max_batch(new_sampler, prompts):
    """And each knows how many syncs the sampler had seen."""
    sampler, sizes = new_sampler(max_batch=4), []
    plain = sampler._decode
    sampler._decode = lambda requests: sizes.append(len(requests)) or plain(requests)
    assert {sample.version for sample in await sample_all(sampler, prompts, max_tokens=1)} == {0}
    assert sizes == [4, 2]
    sampler.sync([])
    assert (await sampler.generate(Request(prompts[1], 0, 1))).version == 1


async def test_a_response_ends_with_the_first_end_token_or_at_its_limit(preprocessor, new_sampler, prompts):
    limits = (4, 4, 4, 4, 1, 3) * 2
    sampler = new_sampler(end=OFTEN)
    requests = [Request(prompts[n % 6], n, limit) for n, limit in enumerate(limits)]
    samples = await asyncio.gather(*map(sampler.generate, requests))
    assert {sample.finish for sample in samples} == {"stop", "length"}
    for sample, limit in zip(samples, limits, strict=True):
        assert len(sample.logprobs) == len(sample.ids) <= limit
        assert not set(sample.ids[:-1]) & set(OFTEN)
        if sample.finish == "stop":
            assert sample.ids[-1] in OFTEN  # kept, because it was sampled
        else:
            assert len(sample.ids) == limit and sample.ids[-1] not in OFTEN
    everything = tuple(range(len(preprocessor.tokenizer)))
    sample = await new_sampler(end=everything).generate(Request(prompts[0], 0, max_tokens=1))
    assert (len(sample.ids), sample.finish) == (1, "stop"), "an end token at the limit"


async def test_suppressed_tokens_are_never_sampled(model, preprocessor, new_sampler, prompts):
    """Not even where the model wants nothing else."""

    def insist(module, args, out):
        out.logits[..., list(preprocessor.suppressed)] += 1e4

    sampler, greedy = new_sampler(temperature=1.0), new_sampler(temperature=0)
    calm = await sample_all(sampler, prompts)
    with model.register_forward_hook(insist):
        insisted, most_probable = await sample_all(sampler, prompts), await sample_all(greedy, prompts)
    for sample in insisted + most_probable:
        assert not set(sample.ids) & set(preprocessor.suppressed)
    assert insisted == calm  # and their log-probs are as if those tokens did not exist


PROBABILITIES = (0.5, 0.3, 0.15, 0.05)


def test_tokens_come_as_often_as_their_probability_says(new_sampler):
    sampler = new_sampler(temperature=1.0)
    sampler.preprocessor = replace(sampler.preprocessor, suppressed=())
    n = 4000
    logits_BV = torch.tensor([PROBABILITIES]).log().expand(n, 4).clone() + 7.0
    request = Request(Prompt((1,), 0), 0, 1)
    live = [Answer(request, torch.Generator().manual_seed(request_seed(i))) for i in range(n)]
    chosen, logprobs = zip(*sampler._sample(logits_BV, live), strict=True)
    shares = np.bincount(chosen, minlength=4) / n
    assert shares == pytest.approx(PROBABILITIES, abs=0.025)  # three standard deviations of the first
    assert np.exp(logprobs) == pytest.approx([PROBABILITIES[token] for token in chosen], abs=1e-5)


@pytest.mark.parametrize(
    ("top_p", "top_k", "kept"),
    [
        (1.0, 0, {0, 1, 2, 3}),
        (1.0, 2, {0, 1}),
        (1.0, 9, {0, 1, 2, 3}),  # more than there are
        (0.49, 0, {0}),  # the first alone reaches it
        (0.79, 0, {0, 1}),
        (0.81, 0, {0, 1, 2}),  # 0.8 is not enough
        (0.0, 0, {0}),  # the most probable one always stays
        (0.6, 2, {0}),  # of the two that top-k leaves, 0.5 / 0.8 = 0.625 is enough
        (0.63, 2, {0, 1}),
    ],
)
def test_truncation_by_hand(top_p, top_k, kept):
    order = torch.tensor([[2, 0, 3, 1], [3, 1, 0, 2]])  # two rows, unsorted: token order[i] has the i-th
    logprobs_BV = torch.empty(2, 4).scatter(1, order, torch.tensor([PROBABILITIES] * 2).log())
    left_BV = truncate(logprobs_BV, top_p, top_k)
    stays_BV = left_BV > float("-inf")
    for row, stays in zip(order, stays_BV, strict=True):
        assert {i for i in range(4) if stays[row[i]]} == kept
    assert torch.equal(left_BV[stays_BV], logprobs_BV[stays_BV])


async def test_top_k_one_is_greedy_and_log_probs_stay_untruncated(new_sampler, prompts):
    greedy = await sample_all(new_sampler(end=(), temperature=0), prompts, max_tokens=4)
    first = await sample_all(new_sampler(end=(), temperature=1.0, top_k=1), prompts, max_tokens=4)
    for one, other in zip(greedy, first, strict=True):
        assert_alike(one, other)


class Gate:
    """Holds a sampler's decoding until it is opened, and remembers which seeds were decoded together."""

    def __init__(self, sampler: HfSampler):
        self.entered, self.opened, self.batches = threading.Event(), threading.Event(), []
        self.plain, sampler._decode = sampler._decode, self.decode

    def decode(self, requests: list[Request]) -> list[Sample]:
        self.batches.append([request.seed for request in requests])
        self.entered.set()
        assert self.opened.wait(60)
        return self.plain(requests)


def start(sampler: HfSampler, prompts: list[Prompt], n: int) -> list[asyncio.Task[Sample]]:
    """Requests of seeds 1, 2, ... for at most n tokens."""
    requests = [Request(prompt, seed, n) for seed, prompt in enumerate(prompts, 1)]
    return [asyncio.create_task(sampler.generate(request)) for request in requests]


async def test_what_is_cancelled_disturbs_nobody_and_is_not_decoded_if_it_waits(new_sampler, prompts):
    sampler = new_sampler(max_batch=2)
    undisturbed = await sampler.generate(Request(prompts[0], 1, 6))
    gate = Gate(sampler)
    stays, decoded, waits, follows = start(sampler, [prompts[n] for n in (0, 0, 1, 1)], 6)
    await asyncio.to_thread(gate.entered.wait, 60)
    decoded.cancel()
    waits.cancel()
    gate.opened.set()
    assert (await stays).ids == undisturbed.ids
    await follows
    assert gate.batches == [[1, 2], [4]]
    for cancelled in (decoded, waits):
        with pytest.raises(asyncio.CancelledError):
            await cancelled
    (lonely,) = start(sampler, prompts[:1], 3)
    await asyncio.sleep(0)
    lonely.cancel()
    assert (await sampler.generate(Request(prompts[1], 2, 3))).ids, "it goes on after everybody left"


async def test_a_cancellation_counts_even_if_it_comes_with_the_answer(new_sampler, prompts):
    sampler = new_sampler()
    asked = asyncio.create_task(sampler.generate(Request(prompts[0], 0, 4, sampler.how)))
    await asyncio.sleep(0)
    ((_, future),) = sampler.waiting
    future.set_result(Sample((1,), (0.0,), "length"))
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked


async def test_idle_waits_for_what_is_decoded_for_nobody(new_sampler, prompts):
    sampler = new_sampler()
    await sampler.idle()  # at once: nothing was ever asked
    gate, returned = Gate(sampler), []
    decode = sampler._decode
    sampler._decode = lambda requests: (decode(requests), returned.append(True))[0]
    (lonely,) = start(sampler, prompts[:1], 3)
    await asyncio.to_thread(gate.entered.wait, 60)
    lonely.cancel()
    await asyncio.wait([lonely])
    idle = asyncio.create_task(sampler.idle())
    await asyncio.wait([idle], timeout=0.1)
    assert not idle.done() and not returned
    gate.opened.set()
    await idle
    assert returned


async def test_a_failure_reaches_everybody_in_the_batch_and_nobody_after(new_sampler, prompts):
    sampler = new_sampler()
    plain = sampler._decode

    def fail(requests):
        raise RuntimeError("out of memory")

    sampler._decode = fail
    requests = [Request(prompt, 0, 3) for prompt in prompts[:3]]
    failures = await asyncio.gather(*map(sampler.generate, requests), return_exceptions=True)
    assert list(map(repr, failures)) == ["SamplerError('RuntimeError: out of memory')"] * 3
    sampler._decode = plain
    assert (await sampler.generate(requests[0])).ids


async def test_a_request_that_takes_too_long_is_given_up_and_a_closed_sampler_says_so(new_sampler, prompts):
    sampler = new_sampler()
    gate = Gate(sampler)
    with pytest.raises(SamplerError, match="in time"):
        await sampler.generate(Request(prompts[0], 1, 3, seconds=0.05))
    gate.opened.set()
    sampler.close()
    with pytest.raises(SamplerError, match="shutdown"):
        await sampler.generate(Request(prompts[0], 1, 3))
