"""Sites that a served model writes: a machine for a site's name, then a Vue project that follows it.

    NAME --write_machine--> World --write_pages--> src/*.vue --npm--> a page --replay--> faults, repaired

Stands behind `python -m minirl.worlds author`. What a model says is data here, and code only for Vite and a
closed browser. Answers are kept, so a run goes on where another ended. Paper: AutoWebWorld, sections 4.1
and 4.2; a machine is asked for in the size of the released code's profile "hard".

1. lint.py validates, and a machine must also be drawn, and solved with its records; the best of all rounds
   counts.
2. The runtime is ours, where released sites have each their own.
3. What replay finds is repaired like a build's log.
"""

import asyncio
import os
import re
import subprocess
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from minirl.config import BrowserConfig
from minirl.console import say
from minirl.run_folder import write_atomic
from minirl.samplers.endpoint import Endpoint, EndpointError
from minirl.worlds.fsm_file import load_fsm, read_json
from minirl.worlds.interpreter import World
from minirl.worlds.lint import Finding, check, counts
from minirl.worlds.looks import text_of
from minirl.worlds.released import make_walks, world_of
from minirl.worlds.render import describe, embedded, name_of, save_world
from minirl.worlds.replay import replay_sites
from minirl.worlds.search import solve
from minirl.worlds.widgets import WIDGETS

OURS = ("vite.config.js", "index.html.j2", "src/main.js", "src/machine.js.j2")
THEIRS = re.compile(r"(style|todo)\.md|src/(?!main\.js|machine\.js)([\w-]+/){0,4}[\w-]+\.(vue|js|css|md)")
WRITTEN = re.compile(r"^=== (\S+)\n((?:(?!=== ).*\n)*)=== end$", re.MULTILINE)
BATCH = 4  # pages that are written between two reviews
LOG = 6000  # characters of what a command says, the last ones
LIMITED = ("timeout", "300")  # which ends what a command has started, too
INSTALL = (*LIMITED, "npm", "install", "--ignore-scripts", "--no-audit", "--no-fund")
BUILD = (*LIMITED, "node", "node_modules/vite/bin/vite.js", "build")
REPLAYED = BrowserConfig(browsers=1, episodes=2, width=1280, height=720)


@dataclass
class Author:
    """A served model, and what a run may spend on it. The call that exceeds `dollars` is the last one."""

    endpoint: Endpoint
    dollars: float
    tokens: int  # of one answer
    rounds: int  # of repair, of the machine and then of the pages
    answers: Path  # the folder in which answers are kept: what was asked before is not asked again

    async def ask(self, template: str, **values: Any) -> str:
        """Return an answer. ValueError if the budget is used, or there is no whole answer."""
        question = text_of(template, **values)
        key = f"{self.endpoint.config.model}|{self.tokens}|{question}"
        file = self.answers / f"{sha256(key.encode()).hexdigest()}.txt"
        if file.is_file():
            return file.read_text("utf-8", "replace")
        dollars = self.endpoint.dollars
        try:
            if dollars >= self.dollars:
                raise EndpointError(f"the budget is used, ${dollars:.2f}: raise --dollars")
            reply = await self.endpoint.ask([("user", (question,))], self.tokens)
            if reply.finish == "length":
                raise EndpointError(f"an answer was cut off: raise --tokens {self.tokens}")
        except EndpointError as error:
            raise ValueError(f"{error}; the same command goes on from here") from None
        write_atomic(file, reply.text.encode(errors="replace"))
        return reply.text


async def write_site(author: Author, name: str, out: Path) -> list[str]:
    """Write a site like `name` into a folder, drawn by us until the model's pages are right. Return what is
    still wrong with those. It is built elsewhere, because the folder may have come with code."""
    with TemporaryDirectory() as place:
        project = Path(place)
        write_atomic(project / "package.json", text_of("author/package.json").encode())
        log = await asyncio.to_thread(run, INSTALL, project)  # before anything is paid for
        if log:
            raise ValueError(f"Node.js, 20.19 or newer, and its npm must bring vue and vite: {log}")
        world = await write_machine(author, name, out)
        save_world(world, out)
        spent = author.endpoint.dollars
        built, faults = await write_pages(author, name, world, project)
        for file in (*project.glob("*.*"), *project.glob("src/**/*.*")):
            copy = out / "vue" / file.relative_to(project)
            if copy.resolve().is_relative_to(out.resolve()):  # a link may be in the way
                write_atomic(copy, file.read_bytes())
    if not faults:
        save_world(built, out)
    say(f"{name}: machine ${spent:.4f}, pages ${author.endpoint.dollars - spent:.4f}")
    return faults


class Attempt(NamedTuple):
    """A machine that the model has written, what is wrong with it, and its site if it has no errors."""

    file: Path
    findings: list[Finding]
    world: World | None


async def write_machine(author: Author, name: str, out: Path) -> World:
    """Return the site of the first machine without findings, or the best. ValueError if errors are left."""
    best = None
    for n in range(author.rounds + 1):
        answer = await author.ask(
            "author/machine.md.j2",
            name=name,
            example=text_of("author/example.json"),
            widgets=WIDGETS,
            machine=best.file.read_text("utf-8") if best else "",
            findings=best.findings if best else [],
            round=n,
        )
        machine = answer[answer.find("{") : answer.rfind("}") + 1]
        draft = out / f"draft-{n}.json"
        write_atomic(draft, machine.encode(errors="replace"))
        attempt = read_machine(draft)
        errors, warnings = counts(attempt.findings)
        say(f"{name}: machine, round {n}: {errors} errors, {warnings} warnings")
        if not best or (errors, warnings) < counts(best.findings):
            best = attempt
        if not best.findings:
            break
    if not best or not best.world:
        raise ValueError(f"no draft in {out} is without errors, which `check` tells: raise --rounds")
    return best.world


def read_machine(draft: Path) -> Attempt:
    """Return the machine in a draft, with all that is wrong with it."""
    attempt = Attempt(draft, check(draft), None)
    errors, _ = counts(attempt.findings)
    if errors:
        return attempt
    try:
        document = read_json(draft)
        world = world_of(name_of(draft.parent), load_fsm(document), document.get("data", {}))
        describe(world)
        for page in world.fsm.terminal_pages:
            if solve(world, page) is None:
                raise ValueError(f"no way leads to {page} with the records in data")
    except (ValueError, LookupError, TypeError, AttributeError) as error:  # anything may be nested anywhere
        attempt.findings.append(Finding("error", "unplayable", "site", str(error) or repr(error)))
        return attempt
    return attempt._replace(world=world)


async def write_pages(author: Author, name: str, world: World, folder: Path) -> tuple[World, list[str]]:
    """Return the site with the pages of a project that is written into a folder, built and repaired, and what
    is then still wrong with them."""
    site = describe(world)
    machine = text_of("author/machine.js.j2", runtime="// ... itself ...")
    written = {}  # texts by path
    for path in OURS:
        text = text_of(f"author/{Path(path).name}", world=embedded(world), runtime=text_of("runtime.js"))
        write_atomic(folder / path.removesuffix(".j2"), text.encode())

    async def step(stage: str, **more: Any) -> None:
        values = {"name": name, "machine": machine, **site, "stage": stage, "files": written, **more}
        answer = await author.ask("author/project.md.j2", **values)
        for path, text in WRITTEN.findall(answer):
            if not THEIRS.fullmatch(path):
                say(f"refused to write {path}")
                continue
            written[path] = text
            write_atomic(folder / path, text.encode(errors="replace"))

    await step("guidelines")
    ids = list(site["pages"])
    for start in range(0, len(ids), BATCH):
        batch = ids[start : start + BATCH]
        await step("pages", batch=batch)
        await step("review", batch=batch)
    n = 0
    while True:
        built, faults = await build(world, folder)
        is_built = built is not world
        outcome = f"{len(faults)} faults" if is_built else "not built"
        say(f"{name}: pages, round {n}: {outcome}")
        if not faults or n == author.rounds:
            return built, faults
        n += 1
        await step("replay" if is_built else "build", round=n, faults=faults)


async def build(world: World, folder: Path) -> tuple[World, list[str]]:
    """Return the site as the project in a folder draws it, and what replay finds wrong with that; where it
    can't be built, the site as it was, and the log."""
    log = await asyncio.to_thread(run, BUILD, folder)
    if log:
        return world, [log]
    html = (folder / "dist/index.html").read_text("utf-8")
    built = replace(world, html=html, style={**world.style, "look": "built"})
    replays = await replay_sites([built], REPLAYED, make_walks(world))
    reasons = [replay.reason[:600] for replay in replays if replay.reason]
    return built, list(dict.fromkeys(reasons))


def run(command: tuple[str, ...], folder: Path) -> str:
    """Return the end of what a command says that fails, without what differs from one time to the next."""
    # packages are strangers' code, and the log is shown to a model: no key of the environment reaches them
    ran = subprocess.run(
        command,
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(Path.home()), "NO_COLOR": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        errors="replace",
    )
    if not ran.returncode:
        return ""
    log = f"{ran.stdout}{ran.stderr}".replace(str(folder.resolve()), "")
    log = re.sub(r"\b[\d.]{1,9} ?m?s\b|\n +at .*", "", log)  # times, and where in Vite it was noticed
    return f"{log[-LOG:]}\nexit status {ran.returncode}"
