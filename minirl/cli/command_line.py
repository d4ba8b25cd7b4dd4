"""Read the command line of the scripts: RECIPE [flags], and --help.

    argv --recipe_name--> a recipe's Config --read_flags--> Config --check--> Config

eval.py and judge.py have more settings and their own first screen of help.
"""

import asyncio
import contextlib
import functools
import inspect
import io
import os
import re
import signal
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import tyro
from pydantic import TypeAdapter, ValidationError

from minirl.config import Config
from minirl.console import printable
from minirl.judges.rubrics import Question
from minirl.recipes import RECIPES

C = TypeVar("C", bound=Config)

# The settings that people change most: the first screen of --help
COMMON = ("name", "steps", "seed", "resume", "model.path", "task.train", "task.heldout", "rollout.group",
          "rollout.groups", "optim.lr")  # fmt: skip
MEANING = re.compile(r'^    (\w+): [^#\n]*(?:# |\n    """)(.*?)(?:\. |\.?"""|$)', re.MULTILINE)
BOUNDS = {"ge": "at least", "gt": "above", "lt": "below"}


def from_command_line(argv: Sequence[str], prog: str) -> Config:
    """Return the config of `RECIPE [flags]`, by default tiny's, whose values can work."""
    name, flags = recipe_name(argv, RECIPES)
    return check(read_flags(RECIPES[name](), flags, f"{prog} {name}", COMMON))


def check(config: C) -> C:
    """Return the config if its values can work. ValueError names the flag to change."""
    check_bounds(config)
    Question.of(config.judge)
    agent, judge, loss, rollout = config.agent, config.judge, config.loss, config.rollout
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
        raise ValueError("--agent.history webrl needs --agent.kind text and --agent.no-thinking")
    if config.task.demo_goals > config.task.train_goals:
        raise ValueError("--task.demo-goals can't exceed --task.train-goals")
    if config.batch.micro_tokens < agent.context_tokens:
        raise ValueError("--batch.micro-tokens must be at least --agent.context-tokens")
    return config


def check_bounds(config: Config) -> None:
    """Raise ValueError for the first value outside its bounds, which are as in `Annotated[int, Ge(1)]`."""
    try:
        TypeAdapter(type(config)).validate_python(asdict(config))
    except ValidationError as error:
        fault = error.errors()[0]
        flag = ".".join(str(name) for name in fault["loc"] if isinstance(name, str)).replace("_", "-")
        bounds = (f"{BOUNDS.get(rule, rule)} {limit:g}" for rule, limit in fault.get("ctx", {}).items())
        raise ValueError(f"--{flag} must be {' '.join(bounds)}") from None


def recipe_name(argv: Sequence[str], recipes: Mapping[str, Callable[[], Config]]) -> tuple[str, list[str]]:
    """Return the recipe that a command line begins with, or the first, and the flags behind it."""
    if not argv or argv[0].startswith("-"):
        return next(iter(recipes)), list(argv)
    name = argv[0].replace("-", "_")
    if name not in recipes:
        raise ValueError(f"unknown recipe {argv[0]!r}; there are {', '.join(recipes)}")
    return name, list(argv[1:])


def read_flags(default: C, flags: Sequence[str], prog: str, common: Sequence[str]) -> C:
    """Return `default` with the flags' values; `--help` prints the `common` settings, `--help-all` all."""
    if {"-h", "--help"} & set(flags):
        print_help(default, prog, common)
        sys.exit(0)
    args, said = ["--help" if flag == "--help-all" else flag for flag in flags], io.StringIO()
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
    """Print the common settings with their values and meanings."""
    print(f"usage: {prog} [flags]\n\nThe settings that people change most (--help-all prints all):\n")
    for path in common:
        *sections, name = path.split(".")
        owner = functools.reduce(getattr, sections, config)
        value = getattr(owner, name)
        shown = "" if value is None else f"[{value}] "
        print(f"  --{path.replace('_', '-'):18} {shown}{meaning(type(owner), name)}")


def meaning(kind: type, field: str) -> str:
    """Return the first sentence behind or below a field of a dataclass, which may be its parent's."""
    sources = map(inspect.getsource, reversed(kind.__mro__[:-1]))
    return dict(MEANING.findall("\n".join(sources))).get(field, "")


def run_async(work: Coroutine[Any, Any, None]) -> None:
    """Run a script's coroutine. A scheduler's SIGTERM and a lost terminal's SIGHUP cancel it as Ctrl-C does;
    what torchrun ends dies at once, or it would wait for ranks that are stuck."""
    terminals = [number for number in (1, 2) if os.isatty(number)]

    async def heeding() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def end(cause: signal.Signals) -> None:
            for number in terminals if cause is signal.SIGHUP else []:  # writing to a lost one would fail
                os.dup2(os.open(os.devnull, os.O_WRONLY), number)
            if not task.cancelling():  # a SIGHUP comes from the shell and from the kernel
                task.cancel()

        for cause in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(cause) is signal.SIG_DFL and "RANK" not in os.environ:  # nohup ignores one
                loop.add_signal_handler(cause, end, cause)
        await work

    asyncio.run(heeding())


def run_main(main: Callable[[Sequence[str]], None]) -> None:
    """Run a script's `main`; print a user's mistake in one line, and exit with status 2."""
    try:
        main(sys.argv[1:])
    except (ValueError, OSError) as problem:
        print(f"{Path(sys.argv[0]).name}: {printable(str(problem))}", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("interrupted", file=sys.stderr)
        sys.exit(130)
