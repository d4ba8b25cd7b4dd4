"""WebAgent-R1's ablations in small: R1, R1-Zero and R1-CoT, with and without thoughts (its figures 3 and 5).

    python tests/bench/variants.py

Each variant is one run of train.py, as in learning.py: found again if it is there, and gone on with if it was
interrupted; R1 is the very run of learning.py. Zero starts from a model that has only cloned a few
demonstrations, for as long as it takes to write actions at all: random weights never would, where the paper's
base model does. CoT's thoughts come from a scripted endpoint, which repeats the task before it names the
element; there is no CoT without thoughts. The table has success, response length and turns before and after
reinforcement; the last line is JSON.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import tyro
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import learning  # noqa: E402
from endpoint_server import say, serve  # noqa: E402

from minirl.store import Run  # noqa: E402

FORMAT_ONLY = ["--sft.max-steps", "30", "--sft.stop-success", "None"]
TEACHER = "scripted"


@dataclass
class Args:
    seed: int = 0
    out: Path = Path("runs/learning")
    flags: str = ""
    """Further flags for train.py, separated by blanks."""


def thought(request: dict[str, Any]) -> str:
    """The task again, then the element that the demonstration's next action is about."""
    asked = request["messages"][0]["content"][0]["text"]
    task = asked.partition("this request:")[2].strip().splitlines()[0]
    action = re.findall(r"^and do: (.*)$", asked, flags=re.MULTILINE)[-1]
    number = re.search(r'element="(\d+)"', action)
    found = re.search(rf'id="{number[1]}"[^<]*(?:<span[^>]*>)? ?([^<]*?) ?<', asked) if number else None
    return f"{task} # Element: {found[1] if found else 'done'}"


def measured(run: Run, label: str) -> dict[str, float]:
    """Of an evaluation: success, tokens a response, turns an episode."""
    trajectories = [t for t in run.load_trajectories(label) if t.valid]
    return {
        "success": round(mean(t.success for t in trajectories), 3),
        "tokens": round(
            sum(t.response_tokens for t in trajectories) / sum(len(t.turns) for t in trajectories), 1
        ),
        "turns": round(mean(len(t.turns) for t in trajectories), 2),
    }


def main() -> None:
    args = tyro.cli(Args)
    bench = learning.Args(recipe="tiny-text", out=args.out, flags=args.flags)
    rows: dict[str, Any] = {}
    with serve([say(thought)]) as server:
        teacher = ["--endpoint.url", server.url, "--endpoint.model", TEACHER]
        longer = ["--agent.response-tokens", "80", "--eval.response-tokens", "80", "--sft.thoughts"]
        variants = {
            "R1": [],
            "R1, no thoughts": ["--agent.no-thinking"],
            "Zero": FORMAT_ONLY,
            "Zero, no thoughts": [*FORMAT_ONLY, "--agent.no-thinking"],
            "CoT": [*longer, *teacher],
        }
        for name, flags in variants.items():
            folder = "_".join([f"seed{args.seed}", *re.findall(r"\w+", name.removeprefix("R1").lower())])
            run = learning.train(bench, folder, args.seed, *flags)
            rows[name] = {"before": measured(run, "after_sft"), "after": measured(run, "after_rl")}
    table = Table("", "success before", "after", "tokens before", "after", "turns before", "after")
    for name, row in rows.items():
        cells = [
            str(row[when][what]) for what in ("success", "tokens", "turns") for when in ("before", "after")
        ]
        table.add_row(name, *cells)
    Console(stderr=True).print(table)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
