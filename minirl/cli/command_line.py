"""Read the command line of the scripts: RECIPE [flags].

    argv --recipe_name--> a recipe's Config --read_flags--> Config --check--> Config

`--help` lists all settings with their values; tyro makes it from the dataclasses.
"""

import asyncio
import contextlib
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
BOUNDS = {"ge": "at least", "gt": "above", "lt": "below"}
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
BOXES = re.compile(r"[│╭╮╰╯─╷╵┃━]+")
MAX_PROBLEM = 400  # characters


def from_command_line(argv: Sequence[str], prog: str) -> Config:
    """Return the config of `RECIPE [flags]`, by default tiny's. ValueError if its values can't work."""
    name, flags = recipe_name(argv, RECIPES)
    return check(read_flags(RECIPES[name](), flags, f"{prog} {name}"))


def recipe_name(argv: Sequence[str], recipes: Mapping[str, Callable[[], Config]]) -> tuple[str, list[str]]:
    """Return the recipe that a command line begins with, or the first one, and the flags after it."""
    if not argv or argv[0].startswith("-"):
        return list(recipes)[0], list(argv)
    name = argv[0].replace("-", "_")
    if name not in recipes:
        raise ValueError(f"unknown recipe {argv[0]!r}; there are {', '.join(recipes)}")
    return name, list(argv[1:])


def read_flags(default: C, flags: Sequence[str], prog: str) -> C:
    """Return `default` with the flags' values. ValueError says in one line what can't be understood."""
    errors = io.StringIO()
    try:
        with contextlib.redirect_stderr(errors):
            return tyro.cli(type(default), args=flags, default=default, prog=prog)
    except SystemExit as stop:
        if stop.code in (0, None):  # after --help
            raise
        # tyro draws a coloured box around what is wrong
        text = COLOURS.sub("", errors.getvalue())
        words = BOXES.sub(" ", text).split()
        raise ValueError(" ".join(words)[:MAX_PROBLEM]) from None


def check(config: C) -> C:
    """Return the config if its values can work together. ValueError names the flag to change."""
    check_bounds(config)
    Question.of(config.judge)
    agent, judge, loss, rollout = config.agent, config.judge, config.loss, config.rollout
    if config.reward.by == "judge" and not (judge.model or judge.path):
        raise ValueError("--reward.by judge needs one: give --judge.path, or --judge.model")
    if loss.method == "filtered-bc" and rollout.dynamic:
        raise ValueError("--loss.method filtered-bc learns from a fixed batch: add --rollout.no-dynamic")
    if loss.method != "grpo" and (loss.kl or loss.old != "sampler"):
        raise ValueError(f"--loss.method {loss.method} has neither --loss.kl nor --loss.old recompute")
    if len(rollout.max_steps) % 2 == 0:
        raise ValueError("--rollout.max-steps: the last stage has turns alone, as in 15 90 30")
    if agent.answers == "webrl" and agent.kind != "text":
        raise ValueError("--agent.answers webrl needs --agent.kind text")
    if config.batch.micro_tokens < agent.context_tokens:
        raise ValueError("--batch.micro-tokens must be at least --agent.context-tokens")
    return config


def check_bounds(config: Config) -> None:
    """Raise ValueError for the first value outside its bounds, which are as in `Annotated[int, Ge(1)]`."""
    try:
        TypeAdapter(type(config)).validate_python(asdict(config))
    except ValidationError as error:
        fault = error.errors()[0]
        names = [name for name in fault["loc"] if isinstance(name, str)]
        flag = ".".join(names).replace("_", "-")
        bounds = [f"{BOUNDS.get(rule, rule)} {limit:g}" for rule, limit in fault.get("ctx", {}).items()]
        raise ValueError(f"--{flag} must be {' '.join(bounds)}") from None


def run_async(work: Coroutine[Any, Any, None]) -> None:
    """Run a script's coroutine. A scheduler's SIGTERM and a lost terminal's SIGHUP cancel it as Ctrl-C does.

    Under torchrun a signal ends the process at once: it might wait for ranks that are stuck.
    """
    terminals = [number for number in (1, 2) if os.isatty(number)]

    async def cancellable() -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None

        def cancel(cause: signal.Signals) -> None:
            # writing to a lost terminal would fail
            if cause is signal.SIGHUP:
                for number in terminals:
                    os.dup2(os.open(os.devnull, os.O_WRONLY), number)
            # SIGHUP comes twice: from the shell and from the kernel
            if not task.cancelling():
                task.cancel()

        for cause in (signal.SIGTERM, signal.SIGHUP):
            is_ignored = signal.getsignal(cause) is not signal.SIG_DFL  # by nohup
            if not is_ignored and "RANK" not in os.environ:
                loop.add_signal_handler(cause, cancel, cause)
        await work

    asyncio.run(cancellable())


def run_main(main: Callable[[Sequence[str]], None]) -> None:
    """Run the `main` of a script or a package; print a user's mistake in one line, and exit with status 2."""
    try:
        main(sys.argv[1:])
    except (ValueError, OSError) as problem:
        name = Path(sys.argv[0].removesuffix("/__main__.py")).name
        print(f"{name}: {printable(str(problem))}", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("interrupted", file=sys.stderr)
        sys.exit(130)
