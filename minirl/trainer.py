"""Optimizer updates on rows: reinforcement and behaviour cloning, on one rank or many.

Stands behind train.py and sft.py. Every rank is given the same trajectories, cuts them into the same
micro-batches, and computes its share. Tokens are weighted over the whole minibatch and gradients summed, so
neither the size of micro-batches nor the number of ranks changes an update. Shape suffix: N response tokens.
"""

import itertools
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel

from minirl import lora, prefix_tree
from minirl import rows as per_turn
from minirl.config import Config, SftConfig
from minirl.distributed import Ranks, full_tensor
from minirl.loss import likelihood_loss, policy_loss
from minirl.model import Preprocessor, compute_dtype, release_memory
from minirl.policy import Policy, make_policy
from minirl.rows import Batch, Row, TrajectoryRows, balance, dummy_row, minibatches, weighted
from minirl.types import ImageStore

MAX_BAD_UPDATES = 3  # consecutive updates without a finite gradient before training gives up
MAX_MISMATCH = 0.3  # nats a token between sampler and trainer, in the mean, on the same weights (docs/gpu.md)
VALIDATION_UPDATES = 10  # of cloning, between two looks at the loss of the validation split
# The metrics that are means over tokens, and the sums that they are made of
MEANS = {
    "ratio_mean": "ratio",
    "clip_fraction": "clipped",
    "clip_high": "clipped_high",
    "entropy": "entropy",
    "kl": "kl",
}
Metrics = dict[str, float]
Scores = list[tuple[float, ...]]  # the log-probs of each row's response


@dataclass(eq=False)
class Trainer:
    """One model and its optimizer. Methods are collective calls, with the same arguments on all ranks."""

    load: Callable[[], PreTrainedModel]
    preprocessor: Preprocessor
    config: Config
    images: ImageStore
    ranks: Ranks
    reference: Policy | None = None
    bad_updates: int = 0

    def __post_init__(self) -> None:
        self.policy = make_policy(self.load(), self.preprocessor, self.config, self.ranks)
        self.trained = [weight for weight in self.policy.parameters() if weight.requires_grad]
        self.rate = lora.RATE if self.config.model.lora else 1.0  # times the learning rates

    @cached_property
    def optimizer(self) -> torch.optim.AdamW:
        """Return AdamW, made when it is first needed: evaluation has no use for moments."""
        adam = torch.optim.AdamW(self.trained, fused=True)  # `_step` sets rate, betas and decay
        # moments from the start, so that any checkpoint can be loaded
        for weight in self.trained:
            adam.state[weight] = {
                "step": torch.zeros((), device=weight.device),
                "exp_avg": torch.zeros_like(weight),
                "exp_avg_sq": torch.zeros_like(weight),
            }
        return adam

    def reset_optimizer(self) -> None:
        """Forget the moments, as between cloning and reinforcement."""
        vars(self).pop("optimizer", None)

    def keep_reference(self) -> None:
        """Keep the weights as they are now as the reference of the KL term, if the loss has one. With
        adapters, still untrained then, the reference is the policy with them switched off."""
        if not self.config.loss.kl:
            return
        if self.config.model.lora:
            self.reference = self.policy
            return
        if not self.reference:
            self.reference = make_policy(self.load(), self.preprocessor, self.config, self.ranks, train=False)
        self.reference.load_state_dict(self.policy.state_dict())

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield all weights by Hugging Face name, in the computing type, gathered one at a time, adapters
        merged into theirs."""
        dtype = compute_dtype(self.config.model, self.ranks.device)
        model = self.policy.model
        adapters = lora.adapters_of(model)
        for name, weight in model.named_parameters():
            layer_name, _, kind = name.rpartition(".")
            is_adapted = f"{layer_name}.lora_A" in adapters
            if kind == "lora_A":  # a packed layer has no parameter `weight`
                yield f"{layer_name}.weight", model.get_submodule(layer_name).merged(self.ranks.device)
            elif not is_adapted or kind == "bias":
                yield name, full_tensor(weight.detach().to(dtype))

    def update(self, trajectories: Sequence[TrajectoryRows], step: int, tick: Callable[[], None]) -> Metrics:
        """Make all updates on the trajectories of a step, counted from 0, `tick`ing after every epoch; return
        metrics. ValueError if the sampler's log-probs are too far from this model's."""
        config = self.config
        seed = config.seed + 1000 * step
        lr = self.rate * config.optim.lr
        if config.optim.decay:
            lr *= 1 - step / config.steps
        self.policy.temperature = config.sampler.temperature
        trajectories = self._with_reference(trajectories)
        sizes = Counter(trajectory.group for trajectory in trajectories)
        epochs = []
        for epoch in range(config.batch.epochs):
            chosen = minibatches(trajectories, config.batch.minibatch_turns, seed + epoch)
            epochs.append([self._share(weighted(minibatch, config.loss, sizes)) for minibatch in chosen])
        batches = self._batches([part for shares in epochs for share in shares for part in share])
        same_weights = not config.replay and not config.rollout.delay
        updates = []
        for shares in epochs:
            for share in shares:
                updates.append(self._update_once(batches, len(share), lr))
                mismatch = step_metrics(updates)["mismatch_mean"]  # of the first one
                if mismatch > MAX_MISMATCH and same_weights:
                    problem = f"the sampler's log-probs are {mismatch:.2f} nats from the trainer's"
                    raise ValueError(f"{problem}: it does not sample from these weights; try --sampler hf")
            tick()
        return step_metrics(updates) | {"lr": lr}

    def _with_reference(self, trajectories: Sequence[TrajectoryRows]) -> Sequence[TrajectoryRows]:
        """Return the trajectories with the reference's log-probs, if the loss has a KL term."""
        if not self.config.loss.kl:
            return trajectories
        assert self.reference, "keep_reference() comes before the first update"
        rows = [row for trajectory in trajectories for row in trajectory.rows]
        with lora.switched_off(self.reference):
            scores = iter(self._score(self.reference, rows))
        scored = []
        for trajectory in trajectories:
            part = tuple(replace(row, ref=next(scores)) for row in trajectory.rows)
            scored.append(replace(trajectory, rows=part))
        return scored

    @torch.no_grad()
    def _score(self, policy: Policy, rows: Sequence[Row], temperature: float | None = None) -> Scores:
        """Return the log-probs of every row's response at a temperature, by default the sampler's; each rank
        computes a share."""
        torch.set_num_threads(cores())
        policy.eval()
        policy.temperature = temperature or self.config.sampler.temperature
        numbered = [replace(row, index=i) for i, row in enumerate(rows)]
        share = []
        for batch in self._batches(self._share(numbered)):
            logprobs_N, _ = policy(batch.inputs, batch.sources_N, batch.targets_N)
            per_row = logprobs_N.split([row.length for row in batch.rows])
            for row, logprobs in zip(batch.rows, per_row, strict=True):
                share.append((row.index, tuple(logprobs.tolist())))
        # FSDP reshards its root in the backward pass, which there is none of: it would stay gathered
        if isinstance(policy, FSDPModule):
            policy.reshard()
        scores = dict(self.ranks.all_gather(share))
        return [scores[i] for i in range(len(rows))]  # the dummy row's index is none of them

    def clone(self, examples: list[TrajectoryRows], seed: int) -> Iterator[Metrics]:
        """Make the updates of `cloning_batches` at a rate that rises and falls; yield the `loss` of each and,
        every VALIDATION_UPDATES, that of the validation split. The weights end where that was least."""
        sft = self.config.sft
        validation = [row for example in validation_split(examples, sft) for row in example.rows]
        batches = cloning_batches(examples, sft, seed)
        best_loss = math.inf
        best_weights = []
        for update, batch in enumerate(batches, start=1):
            rows = [row for example in batch for row in example.rows]
            lr = self.rate * sft.lr * cosine(update - 1, len(batches), sft.warmup)
            metrics = {"loss": self.sft_update(rows, lr)}
            is_due = update % VALIDATION_UPDATES == 0 or update == len(batches)
            if validation and is_due:
                scores = self._score(self.policy, validation, temperature=1.0)
                logprobs = [logprob for row in scores for logprob in row]
                loss = -sum(logprobs) / len(logprobs)
                metrics["validation"] = loss
                if loss < best_loss:
                    best_loss = loss
                    best_weights = [weight.detach().clone() for weight in self.trained]
            yield metrics
        if best_weights:
            with torch.no_grad():
                for weight, best in zip(self.trained, best_weights, strict=True):
                    weight.copy_(best)

    def sft_update(self, rows: Sequence[Row], lr: float) -> float:
        """Make one update that clones the rows' responses; return the loss per response token."""
        tokens = sum(row.length for row in rows)
        self.policy.temperature = 1.0  # nothing was sampled
        imitated = [replace(row, advantage=1.0, weights=(1 / tokens,) * row.length) for row in rows]
        share = self._share(imitated)
        return self._update_once(self._batches(share), len(share), lr, cloning=True)["loss"]

    def _update_once(self, batches: Iterator[Batch], count: int, lr: float, cloning: bool = False) -> Metrics:
        """Make one optimizer step on the next `count` forward passes, a minibatch; return its loss, gradient
        norm and metric sums, equal on all ranks. Without a finite gradient it changes nothing; ValueError
        after several in a row."""
        optim = self.config.sft if cloning else self.config.optim
        torch.set_num_threads(cores())  # Chromium is idle now
        self.policy.train()
        passes = [self._backward(batch, cloning) for batch in itertools.islice(batches, count)]
        totals = add_up(self.ranks.all_gather(passes))
        # requires_grad can't change once a weight is sharded
        if cloning and self.config.model.freeze_vision == "sft" and self.preprocessor.images:
            self.policy.model.model.visual.zero_grad()
        grad_norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), optim.grad_clip)
        totals["grad_norm"] = full_tensor(grad_norm).item()
        if is_finite(totals):
            self.bad_updates = 0
            self.optimizer.param_groups[0].update(lr=lr, betas=optim.betas, weight_decay=optim.weight_decay)
            self.optimizer.step()
        else:
            self.bad_updates += 1
            if self.bad_updates >= MAX_BAD_UPDATES:
                raise ValueError(
                    f"{MAX_BAD_UPDATES} updates in a row had no finite gradient: lower --optim.lr or --sft.lr"
                )
        self.optimizer.zero_grad(set_to_none=True)  # rollouts have their memory
        release_memory()
        return totals

    def _backward(self, batch: Batch, cloning: bool) -> Metrics:
        """Add a forward pass's gradients to the weights'; return its loss and metric sums."""
        places = batch.sources_N, batch.targets_N
        logprobs_N, entropy_N = self.policy(batch.inputs, *places, entropy=not cloning)
        loss = likelihood_loss(logprobs_N, batch.advantage_N, batch.weight_N)
        sums: dict[str, Tensor] = {}
        if entropy_N is not None:  # reinforcement
            config = self.config.loss
            surrogate, sums = policy_loss(
                logprobs_N, batch.old_N, batch.ref_N, batch.advantage_N, batch.weight_N, config
            )
            sums["entropy"] = entropy_N[batch.weight_N > 0].sum()
            if config.method == "grpo":
                loss = surrogate
        (loss * self.ranks.world_size).backward()  # FSDP averages over ranks, and this is a sum
        sums["loss"] = loss.detach()
        return {name: float(value) for name, value in sums.items()}

    def _share(self, rows: Sequence[Row]) -> list[list[Row]]:
        """Return the rows of this rank's forward passes on a minibatch; all ranks have as many passes."""
        budget = self.config.batch.micro_tokens
        preprocessor = self.preprocessor
        cut = per_turn.micro_batches
        if self.config.batch.layout == "tree":
            cut = partial(prefix_tree.micro_batches, pad=preprocessor.pad, limit=budget)
        shares = balance(rows, budget, self.ranks.world_size, cut)
        share = [part.rows for part in shares[self.ranks.rank]]
        # a rank with fewer passes makes empty ones: FSDP waits for every rank in every module
        longest = max(len(parts) for parts in shares)
        share += [[] for _ in range(longest - len(share))]
        dummy = dummy_row(preprocessor)
        for part in share:
            lacks_images = preprocessor.images and not any(row.images for row in part)
            if not part or lacks_images:
                part.append(dummy)
        return share

    def _batches(self, parts: Sequence[list[Row]]) -> Iterator[Batch]:
        """Yield forward passes. The next one's screenshots are prepared while one is computed, also
        while an optimizer step is made between them."""
        layout = prefix_tree.pack if self.config.batch.layout == "tree" else per_turn.collate
        place = {"images": self.images, "device": self.ranks.device}
        prepare = partial(layout, preprocessor=self.preprocessor, **place)
        with ThreadPoolExecutor(1, thread_name_prefix="ahead") as thread:
            ahead = thread.submit(prepare, parts[0])
            for following in parts[1:]:
                batch = ahead.result()
                ahead = thread.submit(prepare, following)
                yield batch
            yield ahead.result()


def cloning_batches(examples: list[TrajectoryRows], sft: SftConfig, seed: int) -> list[list[TrajectoryRows]]:
    """Return the minibatches of every cloning update, shuffled anew in every epoch."""
    trained = examples[len(validation_split(examples, sft)) :]
    batches = []
    for epoch in range(sft.epochs):
        if sft.max_steps and len(batches) >= sft.max_steps:
            break
        batches += minibatches(trained, sft.batch, seed + epoch)
    return batches[: sft.max_steps]


def validation_split(examples: list[TrajectoryRows], sft: SftConfig) -> list[TrajectoryRows]:
    """Return the examples that are not cloned, but tell when to stop (--sft.held-back), rounded down."""
    return examples[: int(sft.held_back * len(examples))]


def cosine(update: int, total: int, warmup: float) -> float:
    """Return the share of the peak learning rate at a 0-based update: a linear rise, half a cosine to 0."""
    rise = max(1, round(warmup * total))
    if update < rise:
        return (update + 1) / rise
    return 0.5 * (1 + math.cos(math.pi * (update - rise) / max(1, total - rise)))


def cores() -> int:
    """Return this rank's share of the processor's cores."""
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    affinity = getattr(os, "sched_getaffinity", None)  # macOS has none
    available = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, available // ranks)


def step_metrics(updates: Sequence[Metrics]) -> Metrics:
    """Return the metrics of a step from those of its updates."""
    totals = add_up(updates)
    first = updates[0]  # whose policy is still the one that was sampled from
    metrics = {
        "loss": totals["loss"] / len(updates),
        "grad_norm": totals["grad_norm"] / len(updates),
        "ratio_max": totals["ratio_max"],
        "updates": len(updates),
        "skipped": sum(not is_finite(update) for update in updates),
        "mismatch_mean": first["gap"] / first["tokens"],
        "mismatch_max": first["gap_max"],
    }
    for name, key in MEANS.items():
        if key in totals:
            metrics[name] = totals[key] / totals["tokens"]
    return metrics


def is_finite(metrics: Metrics) -> bool:
    return math.isfinite(metrics["loss"] + metrics["grad_norm"])


def add_up(records: Sequence[Metrics]) -> Metrics:
    """Return the sum of each metric, or the largest value of one whose name ends in `_max`."""
    totals: Metrics = {}
    for record in records:
        for name, value in record.items():
            before = totals.get(name, 0.0)
            totals[name] = max(before, value) if name.endswith("_max") else before + value
    return totals
