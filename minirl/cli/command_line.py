"""Read the command line of the scripts: RECIPE [flags].

    argv --recipe_name--> a recipe's Config --read_flags--> Config --check--> Config

`--help` lists the recipes, then all settings with their values; tyro makes it from the dataclasses. Nothing
here imports torch, which takes seconds.
"""

import asyncio
import os
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
from minirl.recipes import LIST, RECIPES

C = TypeVar("C", bound=Config)


def from_command_line(argv: Sequence[str], prog: str, about: str | None = "") -> Config:
    """Return the config of `RECIPE [flags]`, by default tiny's. ValueError if its values can't work."""
    name, flags = recipe_name(argv, RECIPES)
    return check(read_flags(RECIPES[name](), flags, f"{prog} {name}", f"{about}{LIST}"))


def recipe_name(argv: Sequence[str], recipes: Mapping[str, Callable[[], Config]]) -> tuple[str, list[str]]:
    """Return the recipe that a command line begins with, or the first one, and the flags after it."""
    if not argv or argv[0].startswith("-"):
        return list(recipes)[0], list(argv)
    name = argv[0].replace("-", "_")
    if name not in recipes:
        names = ", ".join(recipes).replace("_", "-")
        raise ValueError(f"unknown recipe {argv[0]!r}; there are {names}")
    return name, list(argv[1:])


def recipe_named(text: str) -> Config:
    """Return a recipe's settings. ValueError if there is none of this name."""
    name, _ = recipe_name([text], RECIPES)
    return RECIPES[name]()


def read_flags(default: C, flags: Sequence[str], prog: str, about: str | None) -> C:
    """Return `default` with the flags' values. What can't be understood ends the program with status 2.
    `--help` begins with the text `about`."""
    return tyro.cli(type(default), args=flags, default=default, prog=prog, description=about)


def check(config: C) -> C:
    """Return the config if its values can work together. ValueError names the flag to change."""
    check_bounds(config)
    Question.of(config.judge)  # OSError if --judge.prompt can't be read
    agent = config.agent
    judge = config.judge
    loss = config.loss
    rollout = config.rollout
    if config.reward.by == "judge" and not (judge.model or judge.path):
        raise ValueError("--reward.by judge needs one: give --judge.path, or --judge.model")
    if loss.method == "filtered-bc" and rollout.dynamic:
        raise ValueError("--loss.method filtered-bc learns from a fixed batch: add --rollout.no-dynamic")
    if loss.method != "grpo":
        if loss.kl:
            raise ValueError(f"--loss.method {loss.method} has no --loss.kl: add --loss.kl 0")
        if loss.credit != "trajectory":
            raise ValueError(f"--loss.method {loss.method} weighs all turns alike: drop --loss.credit")
    if loss.credit == "return-to-go" and config.reward.invalid == "mask":
        raise ValueError("--loss.credit return-to-go compares valid turns alone: add --reward.invalid drop")
    if config.model.base_bits == 4 and not config.model.lora:
        raise ValueError("--model.base-bits 4 packs what adapters stand beside: add --model.lora 16")
    if len(rollout.max_steps) % 2 == 0:
        raise ValueError("--rollout.max-steps: give an odd number of values, turns last, as in 15 90 30")
    if agent.answers == "webrl" and agent.kind != "text":
        raise ValueError("--agent.answers webrl needs --agent.kind text")
    if config.batch.micro_tokens < agent.context_tokens:
        raise ValueError("--batch.micro-tokens must be at least --agent.context-tokens")
    return config


def check_bounds(config: Any, *group: str) -> None:
    """Raise ValueError for the first value outside its bounds, which are as in `Annotated[int, Ge(1)]`. With
    `group`, they are settings of that."""
    try:
        TypeAdapter(type(config)).validate_python(asdict(config))
    except ValidationError as error:
        fault = error.errors()[0]
        names = [name for name in fault["loc"] if isinstance(name, str)]
        flag = ".".join([*group, *names]).replace("_", "-")
        raise ValueError(f"--{flag}: {fault['msg']}") from None


def run_async(work: Coroutine[Any, Any, None]) -> None:
    """Run a script's coroutine. A scheduler's SIGTERM cancels it as Ctrl-C does.

    Under torchrun a signal ends the process at once: it might wait for ranks that are stuck.
    """

    async def cancellable() -> None:
        task = asyncio.current_task()
        assert task
        if "RANK" not in os.environ:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        await work

    asyncio.run(cancellable())


def run_main(main: Callable[[Sequence[str]], Any]) -> None:
    """Run the `main` of a script or a package; exit with the status that it returns, if that is a number but
    0, or print a user's mistake in one line, and exit with status 2."""
    try:
        status = main(sys.argv[1:])
        if isinstance(status, int) and status:
            sys.exit(status)
    except (ValueError, OSError) as problem:
        name = Path(sys.argv[0].removesuffix("/__main__.py")).name
        print(f"{name}: {printable(str(problem))}", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("interrupted", file=sys.stderr)
        sys.exit(130)
