"""vLLM in process: its log-probs are the trainer's after every update, and what is cancelled leaves no trace.

Two small models: a Qwen3-VL with pictures (tied embeddings), and a Llama (its head is its own).
"""

import asyncio
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from peers import alone, on_ranks
from training import logprobs_of, make_trainer, save_text_model

from minirl import lora
from minirl.config import AgentConfig, BrowserConfig, ModelConfig, SamplerConfig
from minirl.distributed import Ranks
from minirl.recipes import tiny
from minirl.rows import Row
from minirl.samplers import vllm_engine
from minirl.samplers.vllm import VllmSampler
from minirl.samplers.vllm_engine import engine_environment
from minirl.trainer import Trainer
from minirl.types import Prompt, Request, Sample, SamplerError, Sampling

HOT = Sampling(temperature=0.8)
CONTEXT = 256  # tokens
NEAR = 1e-4  # of two log-probs that are the same


class FakeEngine:
    """Writes down what it is told; takes weights as an engine does."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., bool]:
        return lambda *given, **named: self.told.append(" ".join([name, *map(str, given)])) or True

    def has_unfinished_requests(self) -> bool:
        return False

    def sleep(self, level: int) -> None:
        self.told.append(f"sleep {level}")

    def collective_rpc(self, work: Callable | str, kwargs: dict | None = None) -> None:
        weights = list(kwargs["weights_iterator"]) if kwargs else []
        self.told.append(f"{work if isinstance(work, str) else work.__name__} {len(weights)}")


@pytest.fixture
def sampler_of(tiny_folder, monkeypatch) -> Callable[..., VllmSampler]:
    """`sampler_of(fake)`: a sampler with a fake for its engine, where vLLM need not be."""
    monkeypatch.setitem(sys.modules, "vllm.exceptions", SimpleNamespace(VLLMClientError=KeyError))
    monkeypatch.setattr(vllm_engine, "stop_engine", lambda engine: None)
    monkeypatch.setattr(vllm_engine, "engine_input", lambda prompt, _: prompt)
    monkeypatch.setattr(vllm_engine, "sampling_params", lambda request, _: request)
    config = replace(tiny(), model=ModelConfig(path=str(tiny_folder)))

    def make(fake: FakeEngine, ranks: Ranks) -> VllmSampler:
        monkeypatch.setattr(VllmSampler, "_start", lambda self: setattr(self, "engine", fake))
        return VllmSampler(config, None, ranks)

    return make


def test_sleeping_and_waking_on_a_gpu(model, sampler_of, monkeypatch):
    """Weights are dropped, not copied; memory for the cache comes back after they do; what was computed with
    the old ones goes. Twice asleep is asleep once, and a sync without sleep wakes nothing."""
    fake = FakeEngine()
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    sampler = sampler_of(fake, replace(alone(), device=torch.device("cuda", 0)))
    weights = list(model.named_parameters())
    reloaded = f"reload_weights {len(weights)}"
    resets = ["reset_prefix_cache", "reset_mm_cache", "reset_encoder_cache"]
    sampler.sync(weights)
    assert fake.told == [reloaded, *resets]
    fake.told.clear()
    sampler.sleep()
    sampler.sleep()
    sampler.sync(weights)
    woken = ["sleep 2", "wake_up ['weights']", "clear_forgotten 0", reloaded, "wake_up ['kv_cache']"]
    assert fake.told == [*woken, *resets]
    assert sampler.version == 2 and not sampler.asleep
    sampler.close()


def test_an_engine_finds_its_rank_where_it_starts_and_leaves_the_environment_as_it_was(monkeypatch):
    """torchrun's ranks stay, without it they are this process's; so do the user's own settings of vLLM."""
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    for name in ("LOCAL_RANK", "VLLM_NO_USAGE_STATS"):
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    with engine_environment(replace(alone(), rank=5, device=torch.device("cuda", 1))):
        assert (os.environ["RANK"], os.environ["LOCAL_RANK"]) == ("3", "1")
        assert (os.environ["VLLM_LOGGING_LEVEL"], os.environ["VLLM_NO_USAGE_STATS"]) == ("DEBUG", "1")
        assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0", "the engine is in this process"
    assert dict(os.environ) == before


def test_what_waking_forgets_is_cleared():
    """A text model has no such tensors, nor has a CPU's worker."""
    left_over = [torch.ones(3) for _ in range(4)]
    state = SimpleNamespace(
        rope_state=SimpleNamespace(positions=left_over[0]),
        encoder_runner=SimpleNamespace(inputs_embeds=left_over[1]),
    )
    model = SimpleNamespace(deepstack_input_embeds=left_over[2:])
    worker = SimpleNamespace(get_model=lambda: model, model_runner=SimpleNamespace(model_state=state))
    vllm_engine.clear_forgotten(worker)
    assert not any(tensor.any() for tensor in left_over)
    state.rope_state, model.deepstack_input_embeds = None, None
    vllm_engine.clear_forgotten(worker)
    del worker.model_runner.model_state
    vllm_engine.clear_forgotten(worker)


@pytest.mark.parametrize(("capability", "backend"), [((10, 0), "FLASH_ATTN"), ((9, 0), None)])
def test_b200s_attention_is_the_one_that_needs_no_compiler(preprocessor, monkeypatch, capability, backend):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    gpu = replace(alone(), device=torch.device("cuda", 0))
    assert vllm_engine.engine_settings(tiny(), preprocessor, gpu).get("attention_backend") == backend


@pytest.mark.parametrize(("kind", "is_bounded"), [("visual", True), ("autowebworld", False)])
def test_the_largest_picture_is_a_screenshot_unless_it_was_recorded(preprocessor, kind, is_bounded):
    """vLLM makes room for the largest, and refuses larger ones."""
    config = replace(
        tiny(), agent=replace(tiny().agent, kind=kind), browser=BrowserConfig(width=32, height=32)
    )
    settings = vllm_engine.engine_settings(config, preprocessor, alone())
    largest = settings["mm_processor_kwargs"]["size"]["longest_edge"]
    assert largest == (32 * 32 if is_bounded else preprocessor.images.size["longest_edge"])


@pytest.mark.vllm
def test_a_step_has_as_many_tokens_as_one_of_llm(tiny_folder, preprocessor, monkeypatch):
    """On a GPU nothing sets them, and by another name vLLM would take 2048: one screenshot at a time."""
    from vllm import EngineArgs, LLMEngine
    from vllm.platforms import current_platform

    config = replace(tiny(), model=ModelConfig(path=str(tiny_folder)))
    gpu = replace(alone(), device=torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert "max_num_batched_tokens" not in vllm_engine.engine_settings(config, preprocessor, gpu)
    found = []
    monkeypatch.setattr(LLMEngine, "from_engine_args", lambda args, **options: found.append(options))
    vllm_engine.start_engine(config, preprocessor, alone())
    monkeypatch.setattr(type(current_platform), "is_cpu", lambda self: False)
    monkeypatch.setattr(type(current_platform), "get_device_total_memory", lambda *_: 150 << 30)
    monkeypatch.setattr(type(current_platform), "get_device_name", lambda *_: "NVIDIA H200")
    tokens, _ = EngineArgs.get_batch_defaults(1)
    assert tokens[found[0]["usage_context"]] == 16384


class Scripted(FakeEngine):
    """Answers each request with its own number, one token a step; refuses empty prompts, and dies of 13."""

    def __init__(self) -> None:
        super().__init__()
        self.left: dict[str, Request] = {}

    def add_request(self, name: str, prompt: Prompt, request: Request) -> None:
        if not prompt.ids:
            raise ValueError("empty")
        self.left[name] = request

    def abort_request(self, names: list[str]) -> None:
        self.left.pop(names[0], None)

    def has_unfinished_requests(self) -> bool:
        return bool(self.left)

    def step(self) -> list[SimpleNamespace]:
        time.sleep(0.001)
        assert all(request.seed != 13 for request in self.left.values()), "thirteen"
        outputs = []
        for name in [name for name, request in self.left.items() if request.seed < 100]:  # others never end
            logprobs, ids = SimpleNamespace(logprobs=[-0.5]), [self.left.pop(name).seed]
            text = SimpleNamespace(token_ids=ids, logprobs=logprobs, finish_reason="stop")
            outputs.append(SimpleNamespace(request_id=name, outputs=[text], num_cached_tokens=None))
        return outputs


async def test_requests_calls_and_death_without_vllm(model, sampler_of):
    """Many at once; one that is refused, one that is cancelled; calls between steps; and an engine that dies
    ends those that wait, those that come later, and every call: waiting for idleness, and a sync, in which
    other ranks would wait for this one's part."""
    fake = Scripted()
    sampler, prompt = sampler_of(fake, alone()), Prompt((1, 2), 0)
    sampler.sync(model.named_parameters())
    samples = await asyncio.gather(*(sampler.generate(Request(prompt, n, 8)) for n in range(12)))
    assert [s.ids for s in samples] == [(n,) for n in range(12)] and samples[0].version == 1
    with pytest.raises(SamplerError, match="vLLM refused a prompt: empty"):
        await sampler.generate(Request(Prompt((), 0), 1, 8))
    endless = asyncio.create_task(sampler.generate(Request(prompt, 100, 8)))
    await asyncio.sleep(0.05)
    assert len(fake.left) == 1 and not endless.done()
    endless.cancel()
    await sampler.idle()
    assert not fake.left and not sampler.futures
    sampler.sync(model.named_parameters())
    answers = [sampler.generate(Request(prompt, n, 8)) for n in (100, 13)]
    for answer in await asyncio.gather(*answers, return_exceptions=True):
        assert isinstance(answer, SamplerError) and "the vLLM engine died: AssertionError" in str(answer)
    with pytest.raises(SamplerError, match="thirteen"):
        await sampler.generate(Request(prompt, 1, 8))
    await sampler.idle()
    sampler.sleep()
    streamed = iter(model.named_parameters())
    sampler.sync(streamed)
    assert next(streamed, None) is None and "thirteen" in sampler.failure
    sampler.close()


@pytest.fixture(scope="module", params=["visual", "text"])
def trainer(request, tiny_folder, preprocessor, ranks, tmp_path_factory) -> Trainer:
    folder = tiny_folder
    if request.param == "text":
        settings = {"hidden_size": 128, "tie_word_embeddings": False}  # heads of 32: vLLM's least on a CPU
        folder = save_text_model(tmp_path_factory.mktemp("llama"), preprocessor, "Llama", **settings)
    return open_trainer(folder, ranks)


def open_trainer(folder: Path, ranks: Ranks, lora: int = 0) -> Trainer:
    """With a sampler's settings, and a mask that the sampler's share: two words are suppressed beside
    vision's."""
    trainer = make_trainer(folder, ranks, model={"lora": lora})
    agent, settings = AgentConfig(context_tokens=CONTEXT, screenshots=2), SamplerConfig(temperature=0.8)
    trainer.config = replace(trainer.config, agent=agent, sampler=settings)
    words = tuple({*trainer.preprocessor.suppressed, 70, 71})
    trainer.preprocessor = replace(trainer.preprocessor, suppressed=words)
    trainer.policy.suppressed_V[[70, 71]] = -1e30
    trainer.images = PICTURES
    return trainer


@pytest.fixture(scope="module")
def engine(trainer, ranks) -> Iterator[VllmSampler]:
    vllm_engine.CPU_CACHE_BYTES = 1 << 25  # all of it is in use before memory is first measured
    sampler = VllmSampler(trainer.config, trainer.preprocessor, ranks)
    yield sampler
    sampler.close()


@pytest.fixture
async def sampler(engine, trainer) -> AsyncIterator[VllmSampler]:
    """With the trainer's weights as they are."""
    await engine.idle()
    engine.sync(trainer.weights())
    yield engine
    await engine.idle()


PICTURES: dict[str, bytes] = {}  # by the names under which rows know them


@pytest.fixture
def asked(trainer, prompts) -> list[Prompt]:
    """Six prompts; a model that can't see is given their words."""
    if trainer.preprocessor.images is None:
        words = set(range(10, 600))
        return [Prompt(tuple(i for i in p.ids if i in words), 0) for p in prompts]
    return prompts


async def sample(sampler: VllmSampler, prompts: list[Prompt], how=HOT, n: int = 12) -> list[Sample]:
    requests = [Request(prompt, seed, n, how) for seed, prompt in enumerate(prompts)]
    return await asyncio.gather(*map(sampler.generate, requests))


def rows_of(prompts: list[Prompt], samples: list[Sample]) -> list[Row]:
    rows = []
    for prompt, said in zip(prompts, samples, strict=True):
        names = tuple(str(hash(png)) for png in prompt.images)
        PICTURES.update(zip(names, prompt.images, strict=True))
        weights = (1.0,) * len(said.ids)
        rows.append(Row(prompt.ids + said.ids, len(prompt.ids), names, said.logprobs, 1.0, 0, weights))
    return rows


def gap(trainer: Trainer, rows: list[Row], temperature: float = 0.8) -> float:
    """The largest difference between the rows' log-probs and the trainer's."""
    policy, gaps = trainer.policy.eval(), []
    policy.temperature = temperature
    for row in rows:
        logprobs_N = logprobs_of(policy, [row], trainer.preprocessor, PICTURES)
        gaps.append((logprobs_N - torch.tensor(row.old)).abs().max().item())
    return max(gaps)


@pytest.mark.vllm
async def test_log_probs_are_the_trainers_after_every_update(trainer, sampler, asked):
    """Three updates in a row. Before the sync they differ; so do the log-probs of another temperature, and
    those that count suppressed words."""
    for update in range(3):
        rows = rows_of(asked, await sample(sampler, asked))
        assert gap(trainer, rows) < NEAR
        assert {s.version for s in await sample(sampler, asked)} == {sampler.version}
        trainer.sft_update(rows, lr=3e-3)
        stale = rows_of(asked, await sample(sampler, asked))
        assert gap(trainer, stale) > 0.01, update
        sampler.sync(trainer.weights())
    rows = rows_of(asked, await sample(sampler, asked))
    assert gap(trainer, rows) < NEAR

    assert gap(trainer, rows, 1.0) > 0.01, "raw log-probs would pass"
    mask_V, unmasked_V = trainer.policy.suppressed_V, torch.zeros_like(trainer.policy.suppressed_V)
    trainer.policy.suppressed_V = unmasked_V
    assert gap(trainer, rows) > 10 * NEAR, "log-probs over the whole vocabulary would pass"
    trainer.policy.suppressed_V = mask_V


@pytest.mark.vllm
@pytest.mark.parametrize("rank", [1, 16, 64])
async def test_log_probs_are_the_trainers_with_adapters(trainer, sampler, asked, rank, ranks, monkeypatch):
    """Three updates of what is merged into the engine's weights. The control streams another scale."""
    adapted = open_trainer(Path(trainer.config.model.path), ranks, rank)
    base = adapted.policy.model.get_decoder().layers[0].self_attn.q_proj.weight
    before = base.clone()
    sampler.sync(adapted.weights())
    for _ in range(3):
        rows = rows_of(asked, await sample(sampler, asked))
        assert gap(adapted, rows) < NEAR
        adapted.sft_update(rows, lr=3e-3)
        assert gap(adapted, rows_of(asked, await sample(sampler, asked))) > 0.01
        sampler.sync(adapted.weights())
    assert gap(adapted, rows_of(asked, await sample(sampler, asked))) < NEAR
    for _ in range(50):
        sampler.sync(adapted.weights())
    assert gap(adapted, rows_of(asked, await sample(sampler, asked))) < NEAR
    assert torch.equal(base, before)
    monkeypatch.setattr(lora, "SCALE", 4.0)
    sampler.sync(list(adapted.weights()))
    monkeypatch.undo()
    assert gap(adapted, rows_of(asked, await sample(sampler, asked))) > 0.01


@pytest.mark.vllm
async def test_a_weight_that_is_left_out_is_noticed(trainer, sampler, asked):
    """vLLM itself would go on with what it had: without our check its log-probs are wrong."""
    name = "lm_head.weight" if trainer.preprocessor.images is None else "model.language_model.norm.weight"
    with torch.no_grad():
        dict(trainer.policy.model.named_parameters())[name].mul_(1.5)
    others = [(n, w) for n, w in trainer.weights() if n != name]
    with pytest.raises(AssertionError, match=name):
        sampler.sync(others)
    assert gap(trainer, rows_of(asked, await sample(sampler, asked))) > 0.01
    sampler.sync(trainer.weights())
    assert gap(trainer, rows_of(asked, await sample(sampler, asked))) < NEAR


@pytest.mark.vllm
async def test_greedy_sampling_and_limits(trainer, sampler, asked):
    """The most probable words; an end word ends a response and is part of it, nothing else is added."""
    samples = await sample(sampler, asked, Sampling(0.0), n=6)
    assert gap(trainer, rows_of(asked, samples), 1.0) < NEAR
    assert {(len(s.ids), s.finish) for s in samples} == {(6, "length")}
    end = samples[0].ids[2]
    sampler.preprocessor = replace(trainer.preprocessor, end=(end,))
    (ended,) = await sample(sampler, asked[:1], Sampling(0.0), n=6)
    sampler.preprocessor = trainer.preprocessor
    first = samples[0].ids.index(end)
    assert ended.ids == samples[0].ids[: first + 1] and ended.finish == "stop"


@pytest.mark.vllm
async def test_more_prompts_than_fit_into_one_step(trainer, sampler):
    """Then vLLM would compute a part of one, and its random generator could not follow on a CPU."""
    long = [Prompt(tuple(range(100 + n, 330 + n)), 0) for n in range(16)] * 4  # 14,720 tokens of new prompts
    samples = await sample(sampler, long, n=3)
    assert gap(trainer, rows_of(long, samples)) < NEAR


@pytest.mark.vllm
async def test_what_is_sampled_depends_on_the_seed_and_not_on_company(trainer, sampler, asked):
    """Suppressed words are none of it, though nearly all words are equally probable here."""
    how = Sampling(2.0)  # updates of earlier tests have made it very sure of itself
    together = await sample(sampler, asked * 4, how)
    for seed, (prompt, expected) in enumerate(zip(asked, together, strict=False)):
        assert (await sampler.generate(Request(prompt, seed, 12, how))).ids == expected.ids
    other = await sampler.generate(Request(asked[0], 99, 12, how))
    assert other.ids != together[0].ids
    assert not {i for s in together for i in s.ids} & set(trainer.preprocessor.suppressed)


@pytest.mark.vllm
async def test_a_prefix_is_computed_once_for_every_version(trainer, sampler):
    """In whole blocks of 32 tokens: of a prompt of 100 the first 96 are known the second time."""
    prompt = Prompt(tuple(range(100, 200)), 0)
    for _ in range(2):
        cached = [(await sample(sampler, [prompt], n=2))[0].cached for _ in range(2)]
        assert cached == [0, 96]
        sampler.sync(trainer.weights())


@pytest.mark.vllm
async def test_a_screenshot_is_encoded_once_for_every_version(trainer, sampler, asked):
    if trainer.preprocessor.images is None:
        pytest.skip("a text model")
    shown = next(prompt for prompt in asked if len(prompt.images) == 1)
    encoded = []
    tower = sampler.engine.collective_rpc(lambda worker: worker.get_model().visual)[0]
    with tower.register_forward_hook(lambda *_: encoded.append(1)):
        for n in range(3):
            await sample(sampler, [replace(shown, ids=(50 + n, *shown.ids))], n=2)
        assert len(encoded) == 1
        sampler.sync(trainer.weights())
        await sample(sampler, [shown], n=2)
        assert len(encoded) == 2


def assert_empty(sampler: VllmSampler) -> None:
    assert not sampler.futures
    assert sampler.engine.get_num_unfinished_requests() == 0
    scheduler = sampler.engine.engine_core.engine_core.scheduler
    assert not scheduler.requests and not scheduler.running and not scheduler.waiting
    assert scheduler.kv_cache_manager.usage == 0


@pytest.mark.vllm
async def test_a_thousand_requests_a_third_of_them_cancelled(sampler, asked):
    """Nothing is left in the engine."""
    rng, limit = random.Random(0), asyncio.Semaphore(32)

    async def one(n: int) -> bool:
        prompt = rng.choice(asked)
        request = Request(replace(prompt, ids=(*rng.choices(range(100, 600), k=40), *prompt.ids)), n, 8, HOT)
        async with limit:
            work = asyncio.create_task(sampler.generate(request))
            if n % 3 == 0:
                await asyncio.sleep(rng.uniform(0, 0.1))
                work.cancel()
            return isinstance((await asyncio.gather(work, return_exceptions=True))[0], Sample)

    answered = await asyncio.gather(*map(one, range(1000)))
    await sampler.idle()
    assert all(answered[n] for n in range(1000) if n % 3)
    assert sum(answered) < 950, "the test needs requests that are cancelled while they run"
    assert_empty(sampler)


@pytest.mark.vllm
async def test_prompts_that_cannot_be_served_are_refused_alone(trainer, sampler, asked, png):
    """Longer than the context; a picture of more tokens than the encoder's cache holds; too slow."""
    with pytest.raises(SamplerError, match="in time"):
        await sampler.generate(Request(asked[0], 0, 200, HOT, seconds=0.02))
    await sampler.idle()
    assert_empty(sampler)
    bad, processor = [Prompt((10,) * CONTEXT, 0)], sampler.engine.input_processor
    limit = processor.mm_encoder_cache_size
    if trainer.preprocessor.images is not None:
        huge = png(64, 32)
        pads = (trainer.preprocessor.pad,) * trainer.preprocessor.image_tokens(huge)
        processor.mm_encoder_cache_size = 1
        bad.append(Prompt((3, *pads, 4), 0, (huge,)))
    requests = [Request(p, n, 8, HOT) for n, p in enumerate([asked[0], *bad, asked[1]])]
    answers = await asyncio.gather(*map(sampler.generate, requests), return_exceptions=True)
    processor.mm_encoder_cache_size = limit
    refused = answers[1:-1]
    assert all(isinstance(answer, SamplerError) for answer in refused), refused
    for answer, reason in zip(refused, ("longer than the maximum", "encoder cache"), strict=False):
        assert reason in str(answer)
    await sampler.idle()
    assert_empty(sampler)


def sharded(ranks: Ranks, folder: Path) -> tuple[float, float, float]:
    """Two updates on weights cut in two, with an engine on every rank: how far the sampler is off at first,
    after the updates, and once its weights are synced."""
    trainer = open_trainer(folder, ranks)
    sampler = VllmSampler(trainer.config, trainer.preprocessor, ranks)
    sampler.sync(trainer.weights())
    prompts = [Prompt(tuple(range(10 + 7 * n + ranks.rank, 40 + 9 * n)), 0) for n in range(4)]

    def difference() -> tuple[float, list[Row]]:
        rows = rows_of(prompts, asyncio.run(sample(sampler, prompts)))
        rows = ranks.all_gather(rows)
        scores = trainer._score(trainer.policy, rows)
        pairs = zip(scores, [row.old for row in rows], strict=True)
        return max(abs(a - b) for new, old in pairs for a, b in zip(new, old, strict=True)), rows

    before, rows = difference()
    for _ in range(2):
        trainer.sft_update(rows, lr=3e-3)
    stale, _ = difference()
    sampler.sync(trainer.weights())
    after, _ = difference()
    sampler.close()
    return before, stale, after


@pytest.mark.vllm
def test_two_ranks_sync_from_shards(tiny_folder):
    for before, stale, after in on_ranks(2, sharded, tiny_folder):
        assert before < NEAR and after < NEAR and stale > 0.01
