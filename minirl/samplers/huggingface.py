"""The transformers sampler: token ids and images in, sampled ids and their log-probs out.

The default where there is no GPU. Every rank has one, on the trainer's own model if that is whole, or else on
a copy that `sync` fills. The requests that wait when the last batch is done are decoded together, in one
thread beside the event loop. The distribution is softmax(logits / temperature) over the vocabulary less the
suppressed tokens, in float32. A request has its own seed, so its sample does not depend on the others.
Shape suffixes: B requests of a batch, U of them with different prompts, L padded length, V vocabulary.
"""

import asyncio
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel, TopKLogitsWarper, TopPLogitsWarper

from minirl.model import Preprocessor, encode, is_hybrid, padded_inputs, release_memory
from minirl.types import Request, Sample, SamplerError


@dataclass
class Answer:
    """A response that is being decoded."""

    request: Request
    generator: torch.Generator
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ended: bool = False  # by an end token

    def sample(self, version: int) -> Sample:
        return Sample(tuple(self.ids), tuple(self.logprobs), "stop" if self.ended else "length", version)


class HfSampler:
    """Dynamic batching over a transformers model, inside a running event loop; a local judge has its own."""

    max_batch = 12  # most requests that are decoded together

    def __init__(self, model: PreTrainedModel, preprocessor: Preprocessor, threads: int = 1):
        self.model = model
        self.preprocessor = preprocessor
        self.threads = threads
        self.device = model.device
        self.pad_left = is_hybrid(model)
        self.version = 0
        self.failure = ""
        self.waiting: list[tuple[Request, asyncio.Future[Sample]]] = []
        self.pump: asyncio.Task[None] | None = None
        # one thread of its own: every thread that calls torch keeps its own pool of spinning workers
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sampler")

    async def generate(self, request: Request) -> Sample:
        """Return the response. SamplerError if decoding fails or takes longer than it may."""
        future = asyncio.get_running_loop().create_future()
        self.waiting.append((request, future))
        if self.pump is None or self.pump.done():
            self.pump = asyncio.create_task(self._pump())
        return await answer_within(request.seconds, future)

    async def idle(self) -> None:
        """Wait until nothing is decoded, not even for requests that were given up."""
        while self.pump and not self.pump.done():
            await asyncio.wait([self.pump])

    def sleep(self) -> None:
        release_memory()  # the weights are the trainer's own, or small

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        parameters = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, weight in weights:
                if weight.data_ptr() != parameters[name].data_ptr():  # else it is the trainer's model
                    parameters[name].copy_(weight)
        self.version += 1

    def close(self) -> None:
        """End the thread, and the requests that wait for it."""
        self.thread.shutdown(cancel_futures=True)

    async def _pump(self) -> None:
        """Decode batch after batch until no request waits: the oldest with those nearest to it in length, as
        mixed batches cost half the throughput."""
        loop = asyncio.get_running_loop()
        while True:
            waiting = [(request, future) for request, future in self.waiting if not future.done()]
            if not waiting:
                break
            oldest, _ = waiting[0]
            batch = [pair for pair in waiting if pair[0].sampling == oldest.sampling]
            batch.sort(key=lambda pair: abs(len(pair[0].prompt.ids) - len(oldest.prompt.ids)))
            requests, futures = zip(*batch[: self.max_batch], strict=True)
            self.waiting = [pair for pair in waiting if pair[1] not in futures]
            try:
                outcomes = await loop.run_in_executor(self.thread, self._decode, requests)
            except Exception as error:  # it ends the episodes that asked, not the run
                outcomes = [SamplerError(f"{type(error).__name__}: {error}") for _ in requests]
            settle(zip(futures, outcomes, strict=True))

    @torch.inference_mode()
    def _decode(self, requests: Sequence[Request]) -> list[Sample]:
        """Return one response for every request, all drawn with the first one's `sampling`."""
        torch.set_num_threads(self.threads)
        self.model.eval()
        cache: Any = DynamicCache(config=self.model.config.get_text_config())
        logits_BV, attention_BL, position_B = self._prefill(requests, cache)
        answers = [Answer(request, torch.Generator().manual_seed(request.seed)) for request in requests]
        live = answers  # those that have not ended: the rows of the batch
        while True:
            chosen = self._sample(logits_BV, live)
            keep = []
            for row, answer in enumerate(live):
                token, logprob = chosen[row]
                answer.ids.append(token)
                answer.logprobs.append(logprob)
                answer.ended = token in self.preprocessor.end
                if not answer.ended and len(answer.ids) < answer.request.max_tokens:
                    keep.append(row)
            if not keep:
                break
            if len(keep) < len(live):  # rows that have ended leave the batch
                rows = torch.tensor(keep, device=self.device)
                cache.reorder_cache(rows)
                attention_BL = attention_BL[rows]
                position_B = position_B[rows]
                live = [live[row] for row in keep]
            attention_BL = torch.cat([attention_BL, attention_BL.new_ones(len(live), 1)], 1)
            position_B1 = position_B[:, None]
            out = self.model(
                input_ids=torch.tensor([answer.ids[-1:] for answer in live], device=self.device),
                attention_mask=attention_BL,
                # for text MRoPE's three axes are equal
                position_ids=position_B1.expand(3, -1, -1) if self.preprocessor.images else position_B1,
                past_key_values=cache,
                use_cache=True,
            )
            logits_BV = out.logits[:, -1]
            position_B = position_B + 1
        return [answer.sample(self.version) for answer in answers]

    def _prefill(self, requests: Sequence[Request], cache: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Read the prompts into the cache, each once; return the first tokens' logits (B, V), which places
        are tokens (B, L), and every row's next position (B,). Padding behind the tokens needs no mask. Before
        them it needs one, and that is where it stands if layers have a state, which would have read it."""
        prompts = list(dict.fromkeys(request.prompt for request in requests))
        encoded = [encode(prompt.ids, prompt.images, self.preprocessor) for prompt in prompts]
        inputs = padded_inputs(encoded, self.preprocessor, self.device, self.pad_left)
        if "pixel_values" in inputs:
            inputs["pixel_values"] = inputs["pixel_values"].to(self.model.dtype)
        L = inputs["input_ids"].shape[1]
        place_L = torch.arange(L, device=self.device)
        end_U = torch.tensor([len(prompt.ids) - 1 for prompt in prompts], device=self.device)
        attention_UL = (place_L <= end_U[:, None]).long()
        if self.pad_left:
            attention_UL = attention_UL.flip(1)
            inputs["attention_mask"] = attention_UL
            end_U = end_U.new_full((len(prompts),), L - 1)
        next_U = torch.tensor([row.position_3L.max() + 1 for row in encoded], device=self.device)
        ends, which_U = end_U.unique(return_inverse=True)
        out = self.model(**inputs, past_key_values=cache, use_cache=True, logits_to_keep=ends)
        logits_UV = out.logits[torch.arange(len(prompts), device=self.device), which_U]
        if len(prompts) == len(requests):
            return logits_UV, attention_UL, next_U
        rows_B = torch.tensor([prompts.index(request.prompt) for request in requests], device=self.device)
        cache.reorder_cache(rows_B)
        return logits_UV[rows_B], attention_UL[rows_B], next_U[rows_B]

    def _sample(self, logits_BV: Tensor, live: Sequence[Answer]) -> list[tuple[int, float]]:
        """Return a token and its log-prob per row: the exponential race (Gumbel-max), argmax p / Exp(1)."""
        sampling = live[0].request.sampling
        logits_BV = logits_BV.float()
        logits_BV[:, list(self.preprocessor.suppressed)] = float("-inf")
        logprobs_BV = (logits_BV / (sampling.temperature or 1.0)).log_softmax(-1)
        if sampling.temperature == 0:
            chosen_B = logprobs_BV.argmax(-1)
        else:
            V = logits_BV.shape[1]
            draws = [torch.empty(V).exponential_(generator=answer.generator) for answer in live]
            allowed_BV = truncate(logprobs_BV, sampling.top_p, sampling.top_k)
            chosen_B = (allowed_BV.exp() / torch.stack(draws).to(self.device)).argmax(-1)
        chosen_logprobs_B = logprobs_BV.gather(1, chosen_B[:, None])[:, 0]
        return list(zip(chosen_B.tolist(), chosen_logprobs_B.tolist(), strict=True))


async def answer_within(seconds: float, future: asyncio.Future[Sample]) -> Sample:
    """Return a request's result. SamplerError if it comes too late."""
    try:
        # not wait_for, which before Python 3.12 swallows a cancellation that comes with the answer
        async with asyncio.timeout(seconds):
            return await future
    except TimeoutError:
        raise SamplerError("the sampler did not answer in time") from None


def settle(outcomes: Iterable[tuple[asyncio.Future[Sample], Sample | SamplerError]]) -> None:
    """Hand over results, in the event loop's thread, to requests that have not been cancelled meanwhile."""
    for future, outcome in outcomes:
        if future.done():
            continue
        if isinstance(outcome, Sample):
            future.set_result(outcome)
        else:
            future.set_exception(outcome)


def truncate(logprobs_BV: Tensor, top_p: float, top_k: int) -> Tensor:
    """Return the log-probs, -inf for tokens that top-k and top-p leave out; the most probable one stays."""
    ids: Any = None  # which neither of them reads
    scores_BV: Any = logprobs_BV
    if top_k:
        scores_BV = TopKLogitsWarper(top_k)(ids, scores_BV)
    return TopPLogitsWarper(top_p)(ids, scores_BV) if top_p < 1 else scores_BV
