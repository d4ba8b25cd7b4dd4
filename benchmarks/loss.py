"""What does the fused log-prob save? Forward and backward of a loss over the log-probs of N tokens.

    python benchmarks/loss.py

`ours` is what `Policy` calls, which goes through the vocabulary in blocks; `plain` holds all logits: a
matrix product, log_softmax, gather. Both must give the same log-probs and gradients. Seconds are CPU-seconds
of one thread, the median of repeats; memory is the peak above inputs and weights. Every repeat is a process
of its own, and the two take turns.

The last line is JSON, ours over plain: at hidden size 64, where the vocabulary is nearly all of the work, and
at 1024, where the matrix products count, of which ours does one more: it computes the logits again.

Shape suffixes: N tokens, H hidden size, V vocabulary.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
import tyro
from measure import Cost, cost, fresh
from rich.console import Console
from rich.table import Table
from torch import Tensor

from minirl.loss import token_logprobs
from minirl.policy import NEVER

SUPPRESSED = [3, 7]  # some tokens that are never sampled; no target is one of them


@dataclass
class Args:
    tokens: int = 1500
    vocabulary: int = 151_936
    repeats: int = 5
    wide_repeats: int = 1
    """Repeats at hidden size 1024, about a minute each."""


def ours(hidden_NH: Tensor, weight_VH: Tensor, targets_N: Tensor, bias_V: Tensor) -> Tensor:
    return token_logprobs(hidden_NH, targets_N, weight_VH, bias_V, temperature=1.0)


def plain(hidden_NH: Tensor, weight_VH: Tensor, targets_N: Tensor, bias_V: Tensor) -> Tensor:
    logits_NV = hidden_NH @ weight_VH.T + bias_V
    return logits_NV.log_softmax(-1).gather(-1, targets_N[:, None])[:, 0]


PATHS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {"ours": ours, "plain": plain}


def run(path: str, tokens: int, vocabulary: int, hidden: int) -> tuple[Cost, list[Tensor]]:
    """What it costs, the log-probs, the gradient of the hidden states, and of the weight per token id (all of
    it would be 600 MB to hand over)."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    hidden_NH = torch.randn(tokens, hidden).requires_grad_()
    weight_VH = (torch.randn(vocabulary, hidden) / hidden**0.5).requires_grad_()
    targets_N = torch.randint(SUPPRESSED[-1] + 1, vocabulary, (tokens,))
    advantage_N = torch.randn(tokens)
    bias_V = torch.zeros(vocabulary)
    bias_V[SUPPRESSED] = NEVER

    def update(*inputs: Tensor) -> Tensor:
        logprobs_N = PATHS[path](*inputs)
        (logprobs_N * advantage_N[: len(logprobs_N)]).sum().backward()
        return logprobs_N.detach()

    update(torch.randn(8, hidden), torch.randn(64, hidden, requires_grad=True), torch.arange(8), bias_V[:64])
    spent, logprobs_N = cost(lambda: update(hidden_NH, weight_VH, targets_N, bias_V))
    return spent, [logprobs_N, hidden_NH.grad, weight_VH.grad @ torch.randn(hidden)]


def compare(args: Args, hidden: int, repeats: int, table: Table) -> dict[str, float]:
    """Ours over plain: median seconds, peak memory."""
    costs: dict[str, list[Cost]] = {path: [] for path in PATHS}
    for repeat in range(repeats):
        computed = {}
        for path in PATHS:
            spent, computed[path] = fresh(run, path, args.tokens, args.vocabulary, hidden)
            costs[path].append(spent)
            print(f"H={hidden} {repeat + 1}/{repeats} {path}: {spent}", file=sys.stderr)
        for mine, other in zip(computed["ours"], computed["plain"], strict=True):
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-4)
    seconds = {path: median(c.seconds for c in costs[path]) for path in PATHS}
    wall = {path: median(c.wall for c in costs[path]) for path in PATHS}
    mb = {path: median(c.mb for c in costs[path]) for path in PATHS}
    for path in PATHS:
        cells = (hidden, path, f"{seconds[path]:.2f}", f"{wall[path]:.2f}", f"{mb[path]:.0f}")
        table.add_row(*map(str, cells), end_section=path == "plain")
    return {
        "peak_ratio": round(mb["ours"] / mb["plain"], 3),
        "time_ratio": round(seconds["ours"] / seconds["plain"], 3),
    }


def main() -> None:
    args = tyro.cli(Args)
    table = Table("hidden size", "", "s", "wall s", "MB")
    result: dict = compare(args, 64, args.repeats, table)
    result["H1024"] = compare(args, 1024, args.wide_repeats, table)
    Console(width=110).print(table)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
