"""Read the command line of the scripts: RECIPE [flags], and --help.

    argv --recipe_name--> a recipe's Config --read_flags--> Config --check--> Config

eval.py and judge.py have settings beside a run's; each script has its own first screen of help. A user's
mistake becomes one line and exit status 2.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import inspect
import io
import itertools
import operator
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from minirl.config import Config
from minirl.recipes import RECIPES

C = TypeVar("C", bound=Config)

# The settings that people change most: the first screen of --help
COMMON = ("name", "steps", "seed", "resume", "model.path", "task.train", "task.heldout", "rollout.group",
          "rollout.groups", "optim.lr")  # fmt: skip
BOUNDS = {"ge": "at least", "gt": "above", "lt": "below"}
Recipes = Mapping[str, Callable[[], Config]]


def from_command_line(argv: Sequence[str], prog: str) -> Config:
    """Return the config of `RECIPE [flags]`, by default tiny's. ValueError for flags that can't be understood
    or can't work."""
    name, flags = recipe_name(argv, RECIPES)
    return check(read_flags(RECIPES[name](), flags, f"{prog} {name}", COMMON))


def check(config: Config) -> Config:
    """Return the config if its values can work. ValueError names the flag to change."""
    from minirl.judges.rubrics import Question  # the prompts are read only where there is a command line

    check_bounds(config)
    Question.of(config.judge)
    agent, judge, loss, rollout = config.agent, config.judge, config.loss, config.rollout
    if agent.kind == "autowebworld" and not config.plan:
        raise ValueError(f"recipe {config.recipe}: the {agent.kind} agent is not built yet")
    if config.reward.by == "judge" and not (judge.model or judge.path):
        raise ValueError("--reward.by judge needs one: give --judge.path, or --judge.model")
    if loss.method == "filtered-bc" and rollout.dynamic:
        raise ValueError("--loss.method filtered-bc learns from a fixed batch: add --rollout.no-dynamic")
    if loss.method != "grpo" and (loss.kl or loss.old != "sampler"):
        raise ValueError(f"--loss.method {loss.method} has neither --loss.kl nor --loss.old recompute")
    if len(rollout.max_steps) != len(rollout.stage_steps) + 1:
        raise ValueError("--rollout.max-steps needs one value more than --rollout.stage-steps")
    if config.zero and config.warm_start is not None:
        raise ValueError("--zero starts from the model itself: leave out --warm-start")
    if agent.history == "webrl" and (agent.kind != "text" or agent.thinking):
        raise ValueError(
            "--agent.history webrl is the text agent's, and has no thoughts: give --agent.kind text and "
            "--agent.no-thinking, or --agent.history chat"
        )
    if agent.kind != "text" and (loss.tokens == "answer" or config.sft.thoughts):
        raise ValueError("--loss.tokens answer and --sft.thoughts are the text agent's")
    if config.sft.thoughts and not (agent.thinking and config.endpoint.model):
        raise ValueError("--sft.thoughts needs --agent.thinking and --endpoint.model")
    if config.task.demo_goals > config.task.train_goals:
        raise ValueError("--task.demo-goals can't exceed --task.train-goals")
    if config.batch.micro_tokens < agent.context_tokens:
        raise ValueError("--batch.micro-tokens must be at least --agent.context-tokens")
    return config


def check_bounds(config: Any, prefix: str = "--") -> None:
    """Raise ValueError for the first value outside its bounds, which are as in `Annotated[int, Ge(1)]`."""
    for name, kind in get_type_hints(type(config), include_extras=True).items():
        value, flag = getattr(config, name), prefix + name.replace("_", "-")
        if dataclasses.is_dataclass(value):
            check_bounds(value, f"{flag}.")
        numbers = [x for x in (value if isinstance(value, tuple) else (value,)) if isinstance(x, int | float)]
        # the bounds of the type itself, of a variant (`Annotated[...] | None`) or of a tuple's items
        bounds = [bound for part in (kind, *get_args(kind)) for bound in getattr(part, "__metadata__", ())]
        for bound, (rule, words) in itertools.product(bounds, BOUNDS.items()):
            limit = getattr(bound, rule, None)
            if limit is not None and not all(getattr(operator, rule)(x, limit) for x in numbers):
                raise ValueError(f"{flag} must be {words} {limit}")


def recipe_name(argv: Sequence[str], recipes: Recipes) -> tuple[str, list[str]]:
    """Return the recipe that a command line begins with, by default the first, and the flags behind it."""
    if not argv or argv[0].startswith("-"):
        return next(iter(recipes)), list(argv)
    name = argv[0].replace("-", "_")
    if name not in recipes:
        raise ValueError(f"unknown recipe {argv[0]!r}; there are {', '.join(recipes)}")
    return name, list(argv[1:])


def read_flags(default: C, flags: Sequence[str], prog: str, common: Sequence[str]) -> C:
    """Return `default` with the flags' values in place of its own. `--help` prints the `common` settings and
    `--help-all` all of them; both exit. ValueError, in one line, for flags that can't be understood."""
    import tyro  # not at import time: everything else works without a command line

    if {"-h", "--help"} & set(flags):
        print_help(default, prog, common)
        sys.exit(0)
    args = ["--help" if flag == "--help-all" else flag for flag in flags]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(type(default), args=args, default=default, prog=prog)
    except SystemExit as stop:
        if stop.code in (0, None):
            raise
        # tyro draws a box in colours around what is wrong; people were promised one line
        words = re.sub(r"[│╭╮╰╯─╷╵┃━]+", " ", re.sub(r"\x1b\[[0-9;]*m", "", said.getvalue()))
        raise ValueError(" ".join(words.split())[:400]) from None


def print_help(config: Config, prog: str, common: Sequence[str]) -> None:
    """Print the common settings with their values and meanings, and the names of the others' sections."""
    print(f"usage: {prog} [flags]\n\nThe settings that people change most (--help-all prints all):\n")
    for path in common:
        owner, (*sections, name) = config, path.split(".")
        for section in sections:
            owner = getattr(owner, section)
        value = getattr(owner, name)
        words = "" if value is None else f"[{value}] "
        print(f"  --{path.replace('_', '-'):18} {words}{meanings(type(owner)).get(name, '')}")
    sections = [name for name, value in vars(config).items() if dataclasses.is_dataclass(value)]
    print(f"\nSections, as in --optim.lr: {', '.join(sections)}.")


def meanings(kind: type) -> dict[str, str]:
    """Return the first sentence below each field of a dataclass, its parents' fields included."""
    found: dict[str, str] = {}
    for owner in reversed(kind.__mro__[:-1]):
        body = ast.parse(inspect.cleandoc(inspect.getsource(owner))).body[0].body
        for field, below in itertools.pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                words = " ".join(inspect.cleandoc(below.value.value).split())
                found[field.target.id] = words.split(". ")[0]
    return found


def run_main(main: Callable[[Sequence[str]], None]) -> None:
    """Run a script's `main`. A user's mistake becomes one line and exit status 2, without a traceback
    (unless MINIRL_TRACEBACK is set, for those who look for a mistake of ours)."""
    try:
        main(sys.argv[1:])
    except (ValueError, OSError) as problem:
        if "MINIRL_TRACEBACK" in os.environ:
            raise
        print(f"{Path(sys.argv[0]).name}: {problem}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
