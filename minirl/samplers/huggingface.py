"""The transformers sampler: token ids and images in, sampled ids and their log-probs out.

The default where there is no GPU. Every rank has one, on the trainer's own model if that is whole, or else
on a copy that `sync` fills. It batches dynamically: whatever requests wait when the last batch is done are
decoded together, in one thread beside the event loop, while Chromium runs the other episodes' actions.

A sampler, here or in minirl/samplers/vllm.py, has `generate` (Request -> Sample), `idle` and `sleep` (before
an update), `sync` (after it), `failure` (why it will not answer again, if so) and `close`.
The distribution is softmax(logits / temperature) over the vocabulary less the suppressed tokens, in
float32, and `Sample.logprobs` are of that distribution. Every request brings its own seed, so what an
episode samples does not depend on which other episodes share its batches.

Shape suffixes: B requests of a batch, U of them with different prompts, L padded length, V vocabulary.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from minirl.config import SamplerConfig
from minirl.model import Preprocessor, positions
from minirl.types import Prompt, Request, Sample, SamplerError, Sampling


def request_seed(*parts: object) -> int:
    """A seed from names: `request_seed(run seed, step, task id, member, turn)`, equal on every machine."""
    digest = hashlib.sha256("|".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


class HfSampler:
    """Dynamic batching over a transformers model. Use one per process, inside a running event loop."""

    def __init__(
        self, model: PreTrainedModel, preprocessor: Preprocessor, config: SamplerConfig, threads: int = 1
    ):
        self.model, self.preprocessor, self.config, self.threads = model, preprocessor, config, threads
        self.device = model.device
        self.version, self.failure = 0, ""
        self.waiting: list[tuple[Request, asyncio.Future[Sample]]] = []
        self.pump: asyncio.Task[None] | None = None
        # one thread of its own: every thread that calls torch keeps its own pool of spinning workers
        self.thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="sampler")

    async def generate(self, request: Request) -> Sample:
        future = asyncio.get_running_loop().create_future()
        self.waiting.append((request, future))
        if self.pump is None or self.pump.done():
            self.pump = asyncio.create_task(self._pump())
        try:
            return await asyncio.wait_for(future, self.config.request_seconds)
        except TimeoutError:
            raise SamplerError("the sampler did not answer in time") from None

    async def idle(self) -> None:
        """Waits until nothing is decoded, not even for requests that were given up: an update may not change
        weights that the thread still reads."""
        while self.pump is not None and not self.pump.done():
            await asyncio.wait([self.pump])

    def sleep(self, keep: bool = False) -> None:
        """Frees nothing: the weights are the trainer's own, or too small to matter."""

    def wake(self) -> None:
        """Nothing sleeps."""

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Takes the updated weights, named as in the model."""
        own = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, weight in weights:
                if weight.data_ptr() != own[name].data_ptr():  # else the trainer's own
                    own[name].copy_(weight)
        self.version += 1

    def close(self) -> None:
        self.thread.shutdown(wait=True, cancel_futures=True)

    async def _pump(self) -> None:
        """Decodes batch after batch until nobody waits; a cancelled request is skipped.

        A batch is the oldest request and those nearest to it in length: padding to the longest of a mixed
        batch costs half the throughput.
        """
        while self.waiting:
            self.waiting = [(r, f) for r, f in self.waiting if not f.done()]
            if not self.waiting:
                break
            oldest = self.waiting[0][0]
            alike = [pair for pair in self.waiting if pair[0].sampling == oldest.sampling]
            length = len(oldest.prompt.ids)
            near = sorted(alike, key=lambda pair: abs(len(pair[0].prompt.ids) - length))
            batch = near[: self.config.max_batch]
            taken = {id(future) for _, future in batch}
            self.waiting = [pair for pair in self.waiting if id(pair[1]) not in taken]
            loop = asyncio.get_running_loop()
            try:
                samples = await loop.run_in_executor(self.thread, self._decode, [r for r, _ in batch])
            except Exception as error:  # it ends the episodes that asked, not the run
                for _, future in batch:
                    if not future.done():
                        future.set_exception(SamplerError(f"{type(error).__name__}: {error}"))
                continue
            for (_, future), sample in zip(batch, samples, strict=True):
                if not future.done():
                    future.set_result(sample)

    @torch.inference_mode()
    def _decode(self, requests: list[Request]) -> list[Sample]:
        torch.set_num_threads(self.threads)
        self.model.eval()
        cache = DynamicCache(config=self.model.config.get_text_config())
        logits_BV, attention_BL, position_B = self._prefill(requests, cache)
        generators = [torch.Generator().manual_seed(r.seed) for r in requests]
        ids: list[list[int]] = [[] for _ in requests]
        logprobs: list[list[float]] = [[] for _ in requests]
        finish = ["length"] * len(requests)
        live = list(range(len(requests)))  # which requests the rows of the batch belong to
        while True:
            chosen, chosen_logprobs = self._sample(
                logits_BV, requests[0].sampling, [generators[i] for i in live]
            )
            keep = []
            for row, i in enumerate(live):
                ids[i].append(chosen[row])
                logprobs[i].append(chosen_logprobs[row])
                if chosen[row] in self.preprocessor.end:
                    finish[i] = "stop"
                elif len(ids[i]) < requests[i].max_tokens:
                    keep.append(row)
            if not keep:
                break
            if len(keep) < len(live):
                rows = torch.tensor(keep, device=self.device)
                cache.batch_select_indices(rows)
                attention_BL, position_B = attention_BL[rows], position_B[rows]
                live = [live[row] for row in keep]
                chosen = [chosen[row] for row in keep]
            attention_BL = torch.cat([attention_BL, attention_BL.new_ones(len(live), 1)], 1)
            step_B1 = torch.tensor(chosen, device=self.device)[:, None]
            out = self.model(
                input_ids=step_B1,
                attention_mask=attention_BL,
                position_ids=self._axes(position_B[:, None]),
                past_key_values=cache,
                use_cache=True,
            )
            logits_BV, position_B = out.logits[:, -1], position_B + 1
        version = self.version
        rows = zip(ids, logprobs, finish, strict=True)
        return [Sample(tuple(i), tuple(lp), f, version) for i, lp, f in rows]

    def _axes(self, position_BL: Tensor) -> Tensor:
        """Text positions as the model wants them: three equal axes for MRoPE, one otherwise."""
        return position_BL.expand(3, -1, -1) if self.preprocessor.images else position_BL

    def _prefill(self, requests: list[Request], cache: DynamicCache) -> tuple[Tensor, Tensor, Tensor]:
        """Reads the prompts into the cache: the first tokens' logits (B, V), which of the cache's places are
        tokens (B, L), and every row's next position (B,).

        A group's episodes begin alike, so a prompt that several of them have is read once. Padding comes
        after the tokens, where a causal model does not see it: without a mask attention skips the half above
        the diagonal, and the first logits are read at each prompt's own end.
        """
        prompts = list(dict.fromkeys(request.prompt for request in requests))
        inputs, end_U, next_U = self._padded(prompts)
        ends, which_U = end_U.unique(return_inverse=True)
        out = self.model(**inputs, past_key_values=cache, use_cache=True, logits_to_keep=ends)
        logits_UV = out.logits[torch.arange(len(end_U), device=self.device), which_U]
        attention_UL = torch.arange(inputs["input_ids"].shape[1], device=self.device) <= end_U[:, None]
        if len(prompts) == len(requests):
            return logits_UV, attention_UL.long(), next_U
        rows_B = torch.tensor([prompts.index(request.prompt) for request in requests], device=self.device)
        cache.batch_select_indices(rows_B)
        return logits_UV[rows_B], attention_UL.long()[rows_B], next_U[rows_B]

    def _padded(self, prompts: list[Prompt]) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Right-padded prompts; each one's last place (B,), and the position that comes after it (B,)."""
        B, L = len(prompts), max(len(prompt.ids) for prompt in prompts)
        ids_BL = np.zeros((B, L), dtype=np.int64)
        position_3BL = np.zeros((3, B, L), dtype=np.int64)
        patches, grids = [], []
        images, merge = (
            self.preprocessor.images,
            self.preprocessor.images.merge if self.preprocessor.images else 1,
        )
        for b, prompt in enumerate(prompts):
            ids = np.asarray(prompt.ids)
            prepared = [images.prepare(png) for png in prompt.images] if images else []
            row_grids = [grid for _, grid in prepared]
            ids_BL[b, : len(ids)] = ids
            position_3BL[:, b, : len(ids)] = positions(ids, row_grids, self.preprocessor.pad, merge)
            patches += [pixels for pixels, _ in prepared]
            grids += row_grids
        next_B = position_3BL.max(axis=(0, 2)) + 1
        inputs = {
            "input_ids": torch.from_numpy(ids_BL).to(self.device),
            "position_ids": torch.from_numpy(position_3BL if images else position_3BL[0]).to(self.device),
        }
        if patches:
            inputs["pixel_values"] = torch.cat(patches).to(self.device, self.model.dtype)
            inputs["image_grid_thw"] = torch.tensor(grids, device=self.device)
        end_B = torch.tensor([len(prompt.ids) - 1 for prompt in prompts], device=self.device)
        return inputs, end_B, torch.from_numpy(next_B).to(self.device)

    def _sample(
        self, logits_BV: Tensor, how: Sampling, generators: list[torch.Generator]
    ) -> tuple[list[int], list[float]]:
        """One token per row by the exponential race, which needs one uniform draw per token and row."""
        logits_BV = logits_BV.float()
        logits_BV[:, list(self.preprocessor.suppressed)] = float("-inf")
        if how.temperature == 0:
            logprobs_BV = logits_BV.log_softmax(-1)
            chosen_B = logprobs_BV.argmax(-1)
        else:
            logprobs_BV = (logits_BV / how.temperature).log_softmax(-1)
            race_BV = torch.stack(
                [torch.empty(logits_BV.shape[1]).exponential_(generator=g) for g in generators]
            )
            allowed_BV = truncate(logprobs_BV, how.top_p, how.top_k)
            chosen_B = (allowed_BV.exp() / race_BV.to(self.device)).argmax(-1)
        chosen_logprobs_B = logprobs_BV.gather(1, chosen_B[:, None])[:, 0]
        return chosen_B.tolist(), chosen_logprobs_B.tolist()


def truncate(logprobs_BV: Tensor, top_p: float, top_k: int) -> Tensor:
    """Removes (-inf) what top-k and top-p sampling leave out; the most probable token always stays."""
    if top_k:
        kth_B1 = logprobs_BV.topk(min(top_k, logprobs_BV.shape[1])).values[:, -1:]
        logprobs_BV = logprobs_BV.masked_fill(logprobs_BV < kth_B1, float("-inf"))
    if top_p < 1:
        ordered_BV, index_BV = logprobs_BV.softmax(-1).sort(descending=True)
        late_BV = ordered_BV.cumsum(-1) - ordered_BV >= top_p
        late_BV[:, 0] = False
        out_BV = torch.zeros_like(late_BV).scatter(1, index_BV, late_BV)
        logprobs_BV = logprobs_BV.masked_fill(out_BV, float("-inf"))
    return logprobs_BV
