"""Optimizer updates on rows: reinforcement and imitation, on one rank or many.

Stands behind train.py and sft.py. Every rank is given the same groups, cuts them into the same minibatches
and micro-batches, and computes its share of the latter. Weights of tokens are settled over the whole
minibatch before the first backward pass, and gradients are summed, so neither the size of the micro-batches
nor the number of ranks changes an update.

Shape suffixes: N response tokens of a micro-batch.
"""

from __future__ import annotations

import functools
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel

from minirl import prefix_tree
from minirl.config import Config
from minirl.context import answer_start
from minirl.distributed import Ranks, full_tensor
from minirl.loss import likelihood_loss, policy_loss, truncated_correction
from minirl.model import BLANK, BLANK_PNG, Preprocessor, compute_dtype, load_model
from minirl.policy import Policy, copy_local, make_policy
from minirl.rows import (
    Batch,
    MicroBatch,
    Row,
    TrajectoryRows,
    collate,
    dummy_row,
    everything,
    members_of,
    micro_batches,
    minibatches,
    share_out,
    weighted,
)
from minirl.types import Group

MAX_BAD_STEPS = 3  # consecutive updates without a finite gradient before training gives up


class Trainer:
    """One model, its optimizer, and the updates of reinforcement and imitation. Methods are collective calls:
    all ranks make them, with the same arguments."""

    def __init__(
        self,
        model: PreTrainedModel,
        preprocessor: Preprocessor,
        config: Config,
        image: Callable[[str], bytes],
        ranks: Ranks,
    ):
        self.preprocessor, self.config, self.ranks, self.device = preprocessor, config, ranks, ranks.device
        self.image = lambda name: BLANK_PNG if name == BLANK else image(name)
        self.policy = make_policy(model, preprocessor, config, ranks)
        self.reference: Policy | None = None
        self.bad_steps = 0

    def reset_optimizer(self) -> None:
        """Forgets the moments: reinforcement does not start from those of imitation."""
        vars(self).pop("optimizer", None)

    @functools.cached_property
    def optimizer(self) -> torch.optim.AdamW:
        """Adam, made when it is first needed: evaluation has no use for moments."""
        optim = self.config.optim
        trained = [weight for weight in self.policy.parameters() if weight.requires_grad]
        adam = torch.optim.AdamW(
            trained, lr=optim.lr, betas=optim.betas, weight_decay=optim.weight_decay, fused=True
        )
        for weight in trained:  # from the start, so that any checkpoint can be loaded
            moments = {name: torch.zeros_like(weight) for name in ("exp_avg", "exp_avg_sq")}
            adam.state[weight] = {"step": torch.zeros((), device=weight.device), **moments}
        return adam

    def keep_reference(self) -> None:
        """Freezes the weights as they are now as the reference of the KL term, if there is one."""
        if self.config.loss.kl:
            if self.reference is None:
                model = load_model(self.config.model, torch.device("cpu"), "auto")
                self.reference = make_policy(model, self.preprocessor, self.config, self.ranks, train=False)
            copy_local(self.policy, self.reference)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """All weights under their Hugging Face names, as they are computed with, gathered one at a time."""
        dtype = compute_dtype(self.config.model, self.device)
        for name, weight in self.policy.model.named_parameters():
            yield name, full_tensor(weight.detach().to(dtype))

    # --- updates -----------------------------------------------------------------------------------

    def rl_step(self, groups: Sequence[Group], seed: int, tick: Callable[[], None]) -> dict[str, float]:
        """All epochs of updates on one step's groups; metrics averaged over response tokens."""
        config, totals, norms, losses = self.config, {}, [], []
        self.policy.temperature = config.sampler.temperature
        in_answer = functools.partial(answer_start, self.preprocessor.tokenizer)
        counts = in_answer if config.loss.tokens == "answer" else everything
        members = members_of(groups, counts)
        if config.loss.method == "filtered-bc":
            members = [member for member in members if member.rows[0].advantage]
        if not members:
            raise ValueError("no success to learn from; the warm start must succeed sometimes")
        members, mismatch = self._scored(members)

        def loss_of(batch: Batch, logprobs_N: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            columns = (batch.old_N, batch.ref_N, batch.advantage_N, batch.weight_N)
            loss, sums = policy_loss(logprobs_N, *columns, config.loss)
            if config.loss.method != "grpo":
                loss = likelihood_loss(logprobs_N, batch.advantage_N, batch.weight_N)
            return loss, sums

        sizes = Counter(member.group for member in members)
        for epoch in range(config.batch.epochs):
            for part in minibatches(members, config.batch.minibatch_turns, seed + epoch):
                loss, norm, sums = self._update(weighted(part, config.loss, sizes), loss_of, config.optim.lr)
                losses.append(loss)
                norms.append(norm)
                add_up(totals, sums)
            tick()
        tokens = totals.pop("tokens")
        return {
            "loss": sum(losses) / len(losses),
            "ratio_mean": totals["ratio"] / tokens,
            "ratio_max": totals["ratio_max"],
            "clip_fraction": totals["clipped"] / tokens,
            "entropy": totals["entropy"] / tokens,
            "grad_norm": sum(norms) / len(norms),
            "lr": config.optim.lr,
            "updates": len(norms),
            "skipped": sum(not math.isfinite(loss + norm) for loss, norm in zip(losses, norms, strict=True)),
            **({"kl": totals["kl"] / tokens} if "kl" in totals else {}),
            **mismatch,
        }

    def sft_step(self, rows: Sequence[Row], lr: float) -> float:
        """One behaviour cloning update; the loss per response token."""
        tokens = sum(row.length for row in rows)
        self.policy.temperature = 1.0  # nothing was sampled
        rows = [replace(row, advantage=1.0, weights=(1 / tokens,) * row.length) for row in rows]

        def loss_of(batch: Batch, logprobs_N: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            return likelihood_loss(logprobs_N, batch.advantage_N, batch.weight_N), {}

        return self._update(rows, loss_of, lr, entropy=False)[0]

    def _update(
        self, rows: Sequence[Row], loss_of: Callable, lr: float, entropy: bool = True
    ) -> tuple[float, float, dict[str, float]]:
        """One optimizer step on a minibatch; (loss, gradient norm, metric sums), equal on all ranks.

        A step without a finite gradient changes nothing and is counted; several in a row are fatal.
        """
        torch.set_num_threads(self.config.threads or cores(self.ranks))  # Chromium is idle now
        self.policy.train()
        self.optimizer.zero_grad(set_to_none=True)
        own: dict[str, float] = {}
        for batch in self._batches(rows):
            inputs = (batch.inputs, batch.sources_N, batch.targets_N)
            logprobs_N, entropy_N = self.policy(*inputs, entropy=entropy)
            loss, sums = loss_of(batch, logprobs_N)
            (loss * self.ranks.world).backward()  # FSDP averages over ranks, and this is a sum
            sums["loss"] = loss.detach()
            if entropy_N is not None:
                sums["entropy"] = entropy_N[batch.weight_N > 0].sum()
            add_up(own, sums)
        totals: dict[str, float] = {}
        for sums in self.ranks.all_gather([own]):
            add_up(totals, sums)
        loss = totals.pop("loss")
        grad_norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.config.optim.grad_clip)
        norm = full_tensor(grad_norm).item()
        if math.isfinite(loss) and math.isfinite(norm):
            self.bad_steps = 0
            for group in self.optimizer.param_groups:
                group["lr"] = lr
            self.optimizer.step()
        else:
            self.bad_steps += 1
            if self.bad_steps >= MAX_BAD_STEPS:
                raise ValueError(
                    f"{MAX_BAD_STEPS} updates in a row had no finite gradient (loss {loss}, norm {norm}); "
                    "lower --optim.lr"
                )
        return loss, norm, totals

    # --- log-probs before the updates ----------------------------------------------------------------

    def _scored(self, members: Sequence[TrajectoryRows]) -> tuple[Sequence[TrajectoryRows], dict[str, float]]:
        """The members with the log-probs that the config asks for: the trainer's own of before the updates in
        place of the sampler's, corrected for their difference, and the reference's. And how far the sampler
        was off, in metrics."""
        config, metrics = self.config.loss, {}
        if config.kl:
            assert self.reference is not None, "keep_reference() comes before the first update"
            members = changed(members, [{"ref": s} for s in self._score(self.reference, members)])
        if config.old == "recompute":
            sampled = [row.old for member in members for row in member.rows]
            scores = self._score(self.policy, members)
            corrected = [
                truncated_correction(new, old, config.correction)
                for new, old in zip(scores, sampled, strict=True)
            ]
            metrics = mismatch_metrics(scores, sampled, corrected, config.correction)
            fields = [{"old": s, "weights": tuple(c)} for s, c in zip(scores, corrected, strict=True)]
            members = changed(members, fields)
        return members, metrics

    @torch.no_grad()
    def _score(self, policy: Policy, members: Sequence[TrajectoryRows]) -> list[tuple[float, ...]]:
        """Log-probs of every row's response, each rank computing a share."""
        torch.set_num_threads(self.config.threads or cores(self.ranks))
        policy.eval()
        policy.temperature = self.config.sampler.temperature
        rows = [row for member in members for row in member.rows]
        # a row's number travels as its advantage, so that the layouts may reorder rows as they like
        numbered = [replace(row, advantage=float(i)) for i, row in enumerate(rows)]
        found: list[tuple[int, float]] = []
        for batch in self._batches(numbered):
            logprobs_N, _ = policy(batch.inputs, batch.sources_N, batch.targets_N)
            counted_N = batch.weight_N > 0
            numbers, values = batch.advantage_N[counted_N].int(), logprobs_N[counted_N]
            found += zip(numbers.tolist(), values.tolist(), strict=True)
        if isinstance(policy, FSDPModule):
            policy.reshard()  # after a forward without a backward pass the root would stay as it was gathered
        out: list[list[float]] = [[] for _ in rows]
        for number, value in self.ranks.all_gather(found):
            out[number].append(value)
        return [tuple(values) for values in out]

    # --- micro-batches -------------------------------------------------------------------------------

    def _batches(self, rows: Sequence[Row]) -> Iterator[Batch]:
        """This rank's share of a minibatch as forward passes, in the config's layout; as many on every rank.
        Their order does not matter to the sum."""
        shares = share_out(self._parts(rows), self.ranks.world)
        own, spare = [part.rows for part in shares[self.ranks.rank]], dummy_row(self.preprocessor)
        for _, part in zip_longest(range(max(map(len, shares))), own, fillvalue=[]):
            if not part or (self.preprocessor.images is not None and not any(row.images for row in part)):
                part = [*part, spare]
            layout = collate if self.config.batch.layout == "per-turn" else prefix_tree.pack
            yield layout(part, self.preprocessor, self.image, self.device)

    def _parts(self, rows: Sequence[Row]) -> list[MicroBatch]:
        """The micro-batches of all ranks: within the token budget, and as nearly as it goes equally many, of
        equal size, for every rank."""
        budget, world = self.config.batch.micro_tokens, self.ranks.world
        full = self._cut(rows, budget)
        rounds = math.ceil(len(full) / world)
        if len(full) == rounds * world:
            return full
        tokens = math.ceil(sum(part.tokens for part in full) / (rounds * world))
        while len(parts := self._cut(rows, tokens)) > rounds * world and tokens < budget:
            tokens = min(budget, math.ceil(1.1 * tokens))  # rows do not fill it to the last token
        return parts

    def _cut(self, rows: Sequence[Row], tokens: int) -> list[MicroBatch]:
        """Micro-batches of about so many tokens, in the config's layout."""
        if self.config.batch.layout == "per-turn":
            return list(micro_batches(rows, tokens))
        together = sorted(rows, key=lambda row: row.ids)  # what begins alike lies in one forest
        return list(
            prefix_tree.micro_batches(together, self.config.batch.micro_tokens, self.preprocessor.pad, tokens)
        )


def cosine(update: int, total: int, warmup: float) -> float:
    """The share of the peak learning rate at a 0-based update: a linear rise, then half a cosine to 0."""
    rise = max(1, round(warmup * total))
    if update < rise:
        return (update + 1) / rise
    return 0.5 * (1 + math.cos(math.pi * (update - rise) / max(1, total - rise)))


def cores(ranks: Ranks) -> int:
    """This rank's share of the processor's cores."""
    return max(1, len(os.sched_getaffinity(0)) // ranks.here)


def changed(
    members: Sequence[TrajectoryRows], fields: Sequence[Mapping[str, tuple[float, ...]]]
) -> list[TrajectoryRows]:
    """The members with new values in their rows, in order."""
    each = iter(fields)
    return [replace(m, rows=tuple(replace(row, **next(each)) for row in m.rows)) for m in members]


def mismatch_metrics(
    trainer: Sequence[Sequence[float]],
    sampler: Sequence[Sequence[float]],
    corrected: Sequence[Sequence[float]],
    limit: float,
) -> dict[str, float]:
    """How the trainer's log-probs differ from the sampler's, which are of the same weights: the mean and the
    largest absolute difference, the mean correction, and the share of tokens at its limit."""
    pairs = [(a, b) for new, old in zip(trainer, sampler, strict=True) for a, b in zip(new, old, strict=True)]
    gaps = [abs(a - b) for a, b in pairs]
    flat = [c for row in corrected for c in row]
    return {
        "mismatch_mean": sum(gaps) / len(gaps),
        "mismatch_max": max(gaps),
        "correction_mean": sum(flat) / len(flat),
        "correction_cut": sum(limit > 0 and c >= limit for c in flat) / len(flat),
    }


def add_up(totals: dict[str, float], sums: Mapping[str, Tensor | float]) -> None:
    """Adds metric sums to their totals; of the largest ratio the larger one stays."""
    for name, value in sums.items():
        both = (totals.get(name, 0.0), float(value))
        totals[name] = max(both) if name == "ratio_max" else sum(both)
