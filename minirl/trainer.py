"""Optimizer updates on rows: reinforcement and behaviour cloning, on one rank or many.

Stands behind train.py and sft.py. Every rank is given the same trajectories, cuts them into the same
micro-batches, and computes its share. Tokens are weighted over the whole minibatch and gradients summed, so
neither the size of micro-batches nor the number of ranks changes an update. N: their response tokens.
"""

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, zip_longest
from operator import mul

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel

from minirl import prefix_tree
from minirl import rows as per_turn
from minirl.config import Config, SftConfig
from minirl.distributed import Ranks, full_tensor
from minirl.loss import likelihood_loss, policy_loss, truncated_correction
from minirl.model import Preprocessor, compute_dtype, load_preprocessor
from minirl.policy import Policy, copy_weights, make_policy
from minirl.rows import Batch, Row, TrajectoryRows, balance, dummy_row, minibatches, resized, weighted
from minirl.types import ImageStore

MAX_BAD_STEPS = 3  # consecutive updates without a finite gradient before training gives up
VALIDATION_UPDATES = 10  # of cloning, between two looks at the loss of the examples held back
Metrics = dict[str, float]


@dataclass(eq=False)
class Trainer:
    """One model and its optimizer. Methods are collective calls, with the same arguments on all ranks."""

    open_model: Callable[[], PreTrainedModel]
    preprocessor: Preprocessor
    config: Config
    images: ImageStore
    ranks: Ranks
    reference: Policy | None = None
    bad_steps: int = 0

    def __post_init__(self) -> None:
        self.policy = make_policy(self.open_model(), self.preprocessor, self.config, self.ranks)

    @cached_property
    def optimizer(self) -> torch.optim.AdamW:
        """Return AdamW, made when it is first needed: evaluation has no use for moments."""
        optim = self.config.optim
        trained = [weight for weight in self.policy.parameters() if weight.requires_grad]
        adam = torch.optim.AdamW(trained, optim.lr, optim.betas, weight_decay=optim.weight_decay, fused=True)
        for weight in trained:  # from the start, so that any checkpoint can be loaded
            moments = {name: torch.zeros_like(weight) for name in ("exp_avg", "exp_avg_sq")}
            adam.state[weight] = {"step": torch.zeros((), device=weight.device), **moments}
        return adam

    @cached_property
    def cloning_preprocessor(self) -> Preprocessor:
        """Return the preprocessor of cloning, which scales screenshots down to --sft.max-pixels."""
        most, model = self.config.sft.max_pixels if self.preprocessor.images else None, self.config.model
        return load_preprocessor(replace(model, max_pixels=most)) if most else self.preprocessor

    def reset_optimizer(self) -> None:
        """Forget the moments and cloning's screenshots, as between cloning and reinforcement."""
        for name in ("optimizer", "cloning_preprocessor"):
            vars(self).pop(name, None)

    def keep_reference(self) -> None:
        """Keep the weights as they are now as the reference of the KL term, if the loss has one."""
        if self.config.loss.kl:
            if self.reference is None:
                args = (self.open_model(), self.preprocessor, self.config, self.ranks)
                self.reference = make_policy(*args, train=False)
            copy_weights(self.policy, self.reference)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield all weights by Hugging Face name, in the computing type, gathered one at a time."""
        dtype = compute_dtype(self.config.model, self.ranks.device)
        for name, weight in self.policy.model.named_parameters():
            yield name, full_tensor(weight.detach().to(dtype))

    def update(self, trajectories: Sequence[TrajectoryRows], step: int, tick: Callable[[], None]) -> Metrics:
        """Make all updates on the trajectories of a step, counted from 0, `tick`ing after every epoch; return
        metrics."""
        config, steps, seed = self.config, [], self.config.seed + 1000 * step
        lr = config.optim.lr * (1 - step / config.steps if config.optim.decay else 1)
        trajectories, mismatch = self._with_scores(trajectories)
        self.policy.temperature = config.sampler.temperature
        sizes = Counter(trajectory.group for trajectory in trajectories)
        for epoch in range(config.batch.epochs):
            for minibatch in minibatches(trajectories, config.batch.minibatch_turns, seed + epoch):
                steps.append(self._step(weighted(minibatch, config.loss, sizes), lr))
            tick()
        totals, first = add_up(steps), steps[0]  # whose policy is still the one that was sampled from
        own = {"mismatch_mean": first["gap"] / first["tokens"], "mismatch_max": first["gap_max"]}
        names = {"ratio_mean": "ratio", "clip_fraction": "clipped", "entropy": "entropy", "kl": "kl"}
        return {
            **{name: sum(step[name] for step in steps) / len(steps) for name in ("loss", "grad_norm")},
            "ratio_max": totals["ratio_max"],
            "lr": lr,
            "updates": len(steps),
            "skipped": sum(not math.isfinite(step["loss"] + step["grad_norm"]) for step in steps),
            **{name: totals[key] / totals["tokens"] for name, key in names.items() if key in totals},
            **(mismatch or own),
        }

    def _with_scores(self, trajectories: Sequence[TrajectoryRows]) -> tuple[list[TrajectoryRows], Metrics]:
        """Return the trajectories with the reference's log-probs and the trainer's (with corrected weights,
        in place of the sampler's) where the loss needs them; and then how far the sampler was off."""
        config, metrics = self.config.loss, {}
        rows = [row for trajectory in trajectories for row in trajectory.rows]
        if config.kl:
            assert self.reference is not None, "keep_reference() comes before the first update"
            scores = self._score(self.reference, rows)
            rows = [replace(row, ref=ref) for row, ref in zip(rows, scores, strict=True)]
        if config.old == "recompute":
            scores = self._score(self.policy, rows)
            old = chain(*(row.old for row in rows))
            gaps = [abs(a - b) for a, b in zip(chain(*scores), old, strict=True)]
            metrics = {"mismatch_mean": sum(gaps) / len(gaps), "mismatch_max": max(gaps)}
            for i, (row, new) in enumerate(zip(rows, scores, strict=True)):
                factors = truncated_correction(new, row.old)
                rows[i] = replace(row, old=new, weights=tuple(map(mul, row.weights, factors)))
        each = iter(rows)
        return [replace(t, rows=tuple(next(each) for _ in t.rows)) for t in trajectories], metrics

    @torch.no_grad()
    def _score(
        self, policy: Policy, rows: Sequence[Row], temperature: float | None = None
    ) -> list[tuple[float, ...]]:
        """Return the log-probs of every row's response, of which each rank computes a share."""
        torch.set_num_threads(cores())
        policy.eval()
        policy.temperature = temperature or self.config.sampler.temperature
        found: list[tuple[int, tuple[float, ...]]] = []
        for batch in self._batches([replace(row, index=i) for i, row in enumerate(rows)]):
            logprobs_N, _ = policy(batch.inputs, batch.sources_N, batch.targets_N)
            per_row = logprobs_N.split([row.length for row in batch.rows])
            found += [(row.index, tuple(x.tolist())) for row, x in zip(batch.rows, per_row, strict=True)]
        if isinstance(policy, FSDPModule):
            policy.reshard()  # after a forward without a backward pass the root would stay as it was gathered
        scores = dict(self.ranks.all_gather(found))
        return [scores[i] for i in range(len(rows))]  # the dummy row's index is none of them

    def clone(self, examples: list[TrajectoryRows], seed: int) -> Iterator[Metrics]:
        """Make the updates of `cloning_batches` at a rate that rises and falls; yield the `loss` of each and,
        every VALIDATION_UPDATES, that of the examples held back, with whose least the weights end."""
        sft, best, kept = self.config.sft, math.inf, []
        held = [row for example in held_back(examples, sft) for row in example.rows]
        batches = cloning_batches(examples, sft, seed)
        for i, batch in enumerate(batches, 1):
            rows = [row for example in batch for row in example.rows]
            found = {"loss": self.sft_step(rows, sft.lr * cosine(i - 1, len(batches), sft.warmup))}
            if held and (i % VALIDATION_UPDATES == 0 or i == len(batches)):
                scores = list(chain(*self._score(self.policy, held, temperature=1.0)))
                found["validation"] = -sum(scores) / len(scores)
                if found["validation"] < best:
                    best = found["validation"]
                    kept = [weight.detach().clone() for weight in self.policy.parameters()]
            yield found
        with torch.no_grad():
            for weight, was in zip(self.policy.parameters(), kept, strict=bool(kept)):
                weight.copy_(was)

    def sft_step(self, rows: Sequence[Row], lr: float) -> float:
        """Make one update that clones the rows' responses; return the loss per response token."""
        tokens = sum(row.length for row in rows)
        self.policy.temperature = 1.0  # nothing was sampled
        rows = [replace(row, advantage=1.0, weights=(1 / tokens,) * row.length) for row in rows]
        return self._step(rows, lr, cloning=True)["loss"]

    def _step(self, rows: Sequence[Row], lr: float, cloning: bool = False) -> Metrics:
        """Make one optimizer step on a minibatch; return its loss, gradient norm and metric sums, equal on
        all ranks. Without a finite gradient it changes nothing; ValueError after several in a row."""
        config, own = self.config, []
        optim = config.sft if cloning else config.optim
        torch.set_num_threads(cores())  # Chromium is idle now
        self.policy.train()
        for batch in self._batches(rows, cloning):
            inputs, columns = (batch.sources_N, batch.targets_N), (batch.advantage_N, batch.weight_N)
            logprobs_N, entropy_N = self.policy(batch.inputs, *inputs, entropy=not cloning)
            loss, sums = likelihood_loss(logprobs_N, *columns), {}
            if entropy_N is not None:  # reinforcement
                surrogate, sums = policy_loss(logprobs_N, batch.old_N, batch.ref_N, *columns, config.loss)
                sums["entropy"] = entropy_N[batch.weight_N > 0].sum()
                loss = surrogate if config.loss.method == "grpo" else loss
            (loss * self.ranks.world).backward()  # FSDP averages over ranks, and this is a sum
            own.append({name: float(value) for name, value in (sums | {"loss": loss.detach()}).items()})
        totals = add_up(self.ranks.all_gather(own))
        if cloning and config.model.freeze_vision == "sft" and self.preprocessor.images:
            for weight in self.policy.model.model.visual.parameters():
                weight.grad = None  # requires_grad can't change once a weight is sharded
        grad_norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), optim.grad_clip)
        loss, norm = totals["loss"], full_tensor(grad_norm).item()
        finite = math.isfinite(loss + norm)
        self.bad_steps = 0 if finite else self.bad_steps + 1
        if finite:
            self.optimizer.param_groups[0].update(lr=lr, betas=optim.betas, weight_decay=optim.weight_decay)
            self.optimizer.step()
        elif self.bad_steps >= MAX_BAD_STEPS:
            raise ValueError(f"{MAX_BAD_STEPS} updates in a row had no finite gradient; lower --optim.lr")
        self.optimizer.zero_grad(set_to_none=True)  # rollouts have their memory
        return totals | {"grad_norm": norm}

    def _batches(self, rows: Sequence[Row], cloning: bool = False) -> Iterator[Batch]:
        """Yield this rank's share of a minibatch as forward passes, of which every rank has as many. The next
        one's screenshots are prepared while the last is computed."""
        budget, cut, layout = self.config.batch.micro_tokens, per_turn.micro_batches, per_turn.collate
        preprocessor = self.cloning_preprocessor if cloning else self.preprocessor
        if preprocessor is not self.preprocessor:
            rows = [resized(row, preprocessor, self.images) for row in rows]
        if self.config.batch.layout == "tree":
            cut = partial(prefix_tree.micro_batches, pad=preprocessor.pad, limit=budget)
            layout = prefix_tree.pack
        shares, parts = balance(rows, budget, self.ranks.world, cut), []
        own, spare = [part.rows for part in shares[self.ranks.rank]], dummy_row(preprocessor)
        for _, part in zip_longest(range(max(map(len, shares))), own, fillvalue=[]):
            if not part or (preprocessor.images and not any(row.images for row in part)):
                part = [*part, spare]
            parts.append((part, preprocessor, self.images, self.ranks.device))
        with ThreadPoolExecutor(1, thread_name_prefix="ahead") as thread:
            ready = thread.submit(layout, *parts[0])
            for following in parts[1:]:
                batch, ready = ready.result(), thread.submit(layout, *following)
                yield batch
            yield ready.result()


def cloning_batches(examples: list[TrajectoryRows], sft: SftConfig, seed: int) -> list[list[TrajectoryRows]]:
    """Return the minibatches of every cloning update, shuffled anew in every epoch."""
    examples = examples[len(held_back(examples, sft)) :]
    epochs = (minibatches(examples, sft.batch, seed + epoch) for epoch in range(sft.epochs))
    return [batch for epoch in epochs for batch in epoch][: sft.max_steps]


def held_back(examples: list[TrajectoryRows], sft: SftConfig) -> list[TrajectoryRows]:
    """Return the examples that are not cloned, but tell when to stop."""
    return examples[: round(sft.held_back * len(examples))]


def cosine(update: int, total: int, warmup: float) -> float:
    """Return the share of the peak learning rate at a 0-based update: a linear rise, half a cosine to 0."""
    rise = max(1, round(warmup * total))
    if update < rise:
        return (update + 1) / rise
    return 0.5 * (1 + math.cos(math.pi * (update - rise) / max(1, total - rise)))


def cores() -> int:
    """Return this rank's share of the processor's cores."""
    return max(1, len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", 1)))


def add_up(records: Sequence[Metrics]) -> Metrics:
    """Return the sum of each metric, or the largest value of one whose name ends in `_max`."""
    totals: Metrics = {}
    for name, value in chain(*(record.items() for record in records)):
        both = (totals.get(name, 0.0), value)
        totals[name] = max(both) if name.endswith("_max") else sum(both)
    return totals
