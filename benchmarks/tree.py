"""What do prefix trees save? The same trajectories forward and backward in three layouts.

    python benchmarks/tree.py

`one`: one row per turn, one row per forward pass. `padded`: one row per turn, all rows of a trajectory in
one batch. `tree`: all turns in one row, each shared token once. The model is a small Qwen3 with random
weights and about the proportions of the 4B one; observations are text, since each screenshot is seen once
in every layout. Lengths are OpenWebRL's divided by `--scale`, so that attention has about the share of the
work that it has at full size. First T trajectories of their own, then G5T30: a group of 5 with a system
prompt as long as OpenWebRL's, in one tree; last, as H, a trajectory in a small Qwen3.5, where three of four
layers are gated delta rules in plain PyTorch.

Seconds are CPU-seconds of one thread, the least of some repeats; memory is the peak above what the model
takes, in a process of its own for each measurement; it keeps what it frees (see measure.py). All layouts
must give the same log-probs and gradients. `flop_ratio` is what the counts of operations promise,
`flop_ratio_4b` the same for the 4B model at full length.

The last line is JSON: seconds, memory and tokens per number of turns and layout, and the group's ratios.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
import torch
import tyro
from measure import Cost, cost, fresh
from rich.console import Console
from rich.table import Table
from transformers import (
    PreTrainedModel,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from minirl.cli.memory_plan import CHUNK
from minirl.model import Preprocessor
from minirl.policy import Policy
from minirl.prefix_tree import enable, lay_out_trunks, pack
from minirl.rows import Batch, Row, collate
from minirl.tree_attention import Chain, Tree

GROUP = 5
TEXT_ONLY = Preprocessor(None, None, images=None, suppressed=(), end=())  # nothing here is tokenised


@dataclass
class Args:
    turns: list[int] = field(default_factory=lambda: [30, 15, 5])
    group_turns: int = 30
    hybrid_turns: int = 15
    scale: float = 8.0
    """Tokens are OpenWebRL's divided by this; 8 needs 10 GB for 30 padded turns."""
    repeats: int = 3
    enough: float = 40.0
    """No further repeat after so many seconds."""


@dataclass(frozen=True)
class Lengths:
    """Tokens of each part of a trajectory."""

    system: int = 1500
    response: int = 400
    feedback: int = 60
    observation: int = 1300

    def divided(self, by: float) -> Lengths:
        return Lengths(*(round(n / by) for n in asdict(self).values()))


@dataclass(frozen=True)
class Dims:
    """The sizes of a Qwen3 model."""

    vocab_size: int = 512
    hidden_size: int = 256
    num_hidden_layers: int = 2
    num_attention_heads: int = 8
    num_key_value_heads: int = 2
    head_dim: int = 48
    intermediate_size: int = 976


@dataclass(frozen=True)
class HybridDims(Dims):
    """The sizes of a Qwen3.5 model."""

    num_hidden_layers: int = 4
    linear_num_key_heads: int = 4
    linear_num_value_heads: int = 8
    linear_key_head_dim: int = 48
    linear_value_head_dim: int = 48


LONG_SYSTEM = Lengths(system=4000)
SMALL = Dims()
QWEN3_4B = Dims(151936, 2560, 36, 32, 8, 128, 9728)
HYBRID = HybridDims()


@dataclass(frozen=True)
class Outcome:
    cost: Cost
    tokens: int
    logprobs: np.ndarray
    grad_norms: np.ndarray  # one per parameter


def trajectory_rows(lengths: Lengths, turns: int, trajectories: int = 1) -> list[Row]:
    """Random trajectories with one system prompt. Observations have ids of their own, so that a turn's
    branch leaves the prefix where its observation begins."""
    rng = np.random.default_rng(0)
    half = SMALL.vocab_size // 2

    def ids(n: int, kind: int = 0) -> tuple[int, ...]:
        return tuple((rng.integers(half, size=n) + kind * half).tolist())

    rows = []
    system = ids(lengths.system)
    for _ in range(trajectories):
        prefix = system
        for _ in range(turns):
            prompt = prefix + ids(lengths.observation, kind=1)
            response = ids(lengths.response)
            old = (0.0,) * lengths.response
            weights = (1 / lengths.response,) * lengths.response
            rows.append(Row(prompt + response, len(prompt), (), old, 1.0, len(prefix), weights))
            prefix += response + ids(lengths.feedback)
    return rows


def batches(layout: str, rows: Sequence[Row]) -> Iterator[Batch]:
    cpu = torch.device("cpu")
    if layout == "tree":
        yield pack(rows, TEXT_ONLY, {}, cpu)
    else:
        for part in [[row] for row in rows] if layout == "one" else [rows]:
            yield collate(part, TEXT_ONLY, {}, cpu)


def new_model(dims: Dims) -> PreTrainedModel:
    torch.manual_seed(0)
    settings = asdict(dims) | {"attn_implementation": "sdpa"}
    if isinstance(dims, HybridDims):
        return Qwen3_5ForCausalLM(Qwen3_5TextConfig(**settings)).train()
    return Qwen3ForCausalLM(Qwen3Config(**settings)).train()


def run(layout: str, dims: Dims, lengths: Lengths, turns: int, trajectories: int, args: Args) -> Outcome:
    torch.set_num_threads(1)
    model = new_model(dims)
    if layout == "tree":
        enable(model)
    policy = Policy(model, TEXT_ONLY, temperature=1.0)

    def update(rows: Sequence[Row]) -> tuple[int, torch.Tensor]:
        model.zero_grad()
        tokens = 0
        out = []
        for batch in batches(layout, rows):
            logprobs_N, _ = policy(batch.inputs, batch.sources_N, batch.targets_N)
            (logprobs_N * batch.weight_N).sum().backward()
            tokens += batch.inputs["input_ids"].numel()
            out.append(logprobs_N.detach())
        return tokens, torch.cat(out)

    update(trajectory_rows(Lengths().divided(20), turns=2))
    rows = trajectory_rows(lengths, turns, trajectories)
    spent, (tokens, logprobs_N) = cost(lambda: update(rows), args.repeats, args.enough)
    norms = np.array([p.grad.norm().item() for p in model.parameters()])
    return Outcome(spent, tokens, logprobs_N.numpy(), norms)


def compare(layouts: Sequence[str], *what: object) -> dict[str, Outcome]:
    """Measures the layouts. They must have computed the same."""
    outcomes: dict[str, Outcome] = {}
    for layout in layouts:
        print(f"{layout} {what[:-1]}", file=sys.stderr)
        outcomes[layout] = fresh(run, layout, *what, keep=True)
        print(f"  {outcomes[layout].cost}, {outcomes[layout].tokens} tokens", file=sys.stderr)
    oracle = outcomes["one"]
    for layout, other in outcomes.items():
        np.testing.assert_allclose(other.logprobs, oracle.logprobs, rtol=0, atol=1e-4, err_msg=layout)
        # a hybrid's decays have gradients of almost nothing, and more rounding than that
        least = 1e-6 * oracle.grad_norms.max()
        np.testing.assert_allclose(other.grad_norms, oracle.grad_norms, rtol=1e-3, atol=least, err_msg=layout)
    return outcomes


# --- counting operations ---------------------------------------------------------------------------


def flops(dims: Dims, chains: Sequence[Chain], responses: int) -> int:
    """Operations of a forward pass over these chains; forward and backward are three times that. Linear
    layers for every token, the head for `responses` tokens, attention to exactly what a token sees; of a
    gated delta rule the products with the state and within chunks."""
    d = dims
    heads = d.num_attention_heads * d.head_dim
    kv_heads = d.num_key_value_heads * d.head_dim
    weights = d.hidden_size * (2 * heads + 2 * kv_heads + 3 * d.intermediate_size)
    tokens = pairs = 0
    for chain in chains:
        length = chain.end - chain.start
        before = sum(end - start for start, end in chain.prefix)
        tokens += length
        pairs += length * before + length * (length + 1) // 2
    layer = 2 * weights * tokens + 4 * heads * pairs
    layers = d.num_hidden_layers * layer
    if isinstance(d, HybridDims):
        k = d.linear_key_head_dim
        v = d.linear_value_head_dim
        gated = layer + 2 * d.hidden_size * heads * tokens  # queries have a gate
        channels = (
            2 * d.linear_num_key_heads * k + 3 * d.linear_num_value_heads * v + 2 * d.linear_num_value_heads
        )
        rule = d.linear_num_value_heads * (6 * k * v + CHUNK * (5 * k + 3 * v))
        delta = 2 * d.hidden_size * (channels + 3 * d.intermediate_size) + rule
        layers = d.num_hidden_layers // 4 * (gated + 3 * delta * tokens)
    return layers + 2 * d.hidden_size * d.vocab_size * responses


def chains_of(rows: Sequence[Row]) -> Tree:
    """The chains of all rows in one tree."""
    keys = [np.array(row.ids) for row in rows]
    forest = lay_out_trunks(rows, keys)
    for row_keys in keys:
        forest.add(row_keys)
    return tuple(forest.chains)


def flop_ratio(dims: Dims, rows: Sequence[Row]) -> float:
    """One row per turn, over all rows in one tree."""
    responses = sum(len(row.ids) - row.start for row in rows)
    alone = [Chain(0, len(row.ids)) for row in rows]
    return flops(dims, alone, responses) / flops(dims, chains_of(rows), responses)


# --- the report ------------------------------------------------------------------------------------


def numbers(outcome: Outcome) -> dict[str, float]:
    spent = outcome.cost
    return {
        "s": round(spent.seconds, 2),
        "wall": round(spent.wall, 2),
        "mb": round(spent.mb),
        "tokens": outcome.tokens,
    }


def main() -> None:
    args = tyro.cli(Args)
    table = Table("", "layout", "tokens", "s", "wall s", "MB", "tree is faster by", "FLOP ratio to tree")
    result: dict[str, dict] = {}

    def report(name: str, outcomes: dict[str, Outcome], ratio: float) -> None:
        result[name] = {layout: numbers(outcome) for layout, outcome in outcomes.items()}
        for layout, n in result[name].items():
            faster = "" if layout == "tree" else f"{n['s'] / result[name]['tree']['s']:.2f}x"
            promised = f"{ratio:.2f}x" if layout == "one" else ""
            cells = (n["tokens"], n["s"], n["wall"], n["mb"], faster, promised)
            table.add_row(name, layout, *map(str, cells), end_section=layout == "tree")

    lengths = Lengths().divided(args.scale)
    for turns in args.turns:
        outcomes = compare(("one", "padded", "tree"), SMALL, lengths, turns, 1, args)
        report(f"T{turns}", outcomes, flop_ratio(SMALL, trajectory_rows(lengths, turns)))

    lengths = LONG_SYSTEM.divided(args.scale)
    turns = args.group_turns
    name = f"G{GROUP}T{turns}"
    outcomes = compare(("one", "tree"), SMALL, lengths, turns, GROUP, args)
    ratio = flop_ratio(SMALL, trajectory_rows(lengths, turns, GROUP))
    report(name, outcomes, ratio)
    result[name] |= {
        "ratio": round(outcomes["one"].cost.seconds / outcomes["tree"].cost.seconds, 2),
        "flop_ratio": round(ratio, 2),
        "flop_ratio_4b": round(flop_ratio(QWEN3_4B, trajectory_rows(LONG_SYSTEM, turns, GROUP)), 2),
        "sizes": {**asdict(lengths), **asdict(SMALL)},
    }

    lengths = Lengths().divided(args.scale)
    turns = args.hybrid_turns
    outcomes = compare(("one", "tree"), HYBRID, lengths, turns, 1, args)
    ratio = flop_ratio(HYBRID, trajectory_rows(lengths, turns))
    report(f"H{turns}", outcomes, ratio)
    faster = outcomes["one"].cost.seconds / outcomes["tree"].cost.seconds
    result[f"H{turns}"] |= {"ratio": round(faster, 2), "flop_ratio": round(ratio, 2)}
    Console(width=110).print(table)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
