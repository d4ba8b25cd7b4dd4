"""`python -m minirl.worlds VERB`: what can be done with sites as files.

The verbs that open a browser import what they need themselves, so that the others begin at once.

Exit status 0: fine; 1: `check` has found errors, or `replay` or `author` a page that does not do what its
machine says; 2: the command line or the file is of no use.
"""

import asyncio
import json
import math
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Literal

import tyro

from minirl.benchmarks.task_files import load_tasks
from minirl.cli.command_line import check_bounds, run_main
from minirl.config import BrowserConfig, EndpointConfig, Positive
from minirl.console import progress, say
from minirl.run_folder import save_tasks, write_atomic
from minirl.samplers.endpoint import open_endpoint
from minirl.types import Json
from minirl.worlds import lint
from minirl.worlds import tasks as tasks_of_sites
from minirl.worlds.fsm_file import load_fsm, read_json
from minirl.worlds.generate import LEVELS, THEMES, make_site
from minirl.worlds.looks import text_of
from minirl.worlds.released import COUNT, make_walks, world_of
from minirl.worlds.render import load_world, name_of, save_world
from minirl.worlds.search import explore, symbolic
from minirl.worlds.shop import shops_named, shops_of, tasks_of

TEMPLATE = EndpointConfig()  # which serves nobody
DESKTOP = BrowserConfig(episodes=8, height=720)
PATIENT = EndpointConfig(seconds=600.0)
Level = Literal["first", "easy", "medium", "hard"]
SPLITS = ("train", "heldout", "train", "validation", "train")
Folders = tyro.conf.Positional[tuple[Path, ...]]
File = tyro.conf.Positional[Path]


def check(file: File) -> int:
    """Everything that is wrong with a site's fsm.json: errors make tasks fail or mean nothing."""
    findings = lint.check(file)
    errors, warnings = lint.counts(findings)
    for finding in findings:
        say(f"{finding.severity}: {finding.where}: {finding.message} [{finding.code}]")
    say(f"{file}: {errors} errors, {warnings} warnings")
    return int(errors > 0)


def solve(file: File, plain: bool = False) -> int:
    """A shortest way to every terminal page of an fsm.json, by breadth-first search, as JSON.

    Args:
        plain: Do not answer interceptors such as cookie banners first, as the released search does.
    """
    fsm = load_fsm(file)
    graph = explore(symbolic(fsm), plain=plain)
    nearest = graph.nearest()
    paths: Json = dict.fromkeys(fsm.terminal_pages)
    for page in nearest.keys() & paths:
        paths[page] = [step.action_id for step in graph.path(nearest[page])]
    answer = {
        "states": len(graph.nodes),
        "complete": graph.is_complete,
        "unreached_pages": [page for page in fsm.pages if page not in nearest],
        "paths": paths,
    }
    print(json.dumps(answer, indent=1))
    return 0


def make(
    out: Path,
    sites: Path | None = None,
    themes: tuple[str, ...] = (),
    skins: tuple[str, ...] = (),
    seed: int = 0,
    count: int = 1,
    level: Level | None = None,
    tasks: int = tasks_of_sites.COUNT,
) -> int:
    """Sites with their tasks: one in the folder OUT, or several in OUT/train, OUT/heldout and OUT/validation.
    All levels and themes take turns, then comes the next seed. OUT/index.html shows what there is.

    Args:
        sites: A TOML file whose `sites` name those to be made, as shop-medium-900, all in OUT.
        themes: What the sites are about, by default all.
        skins: What they look like, by default whatever each seed draws. Theme, skin and machine are drawn
            apart, so that each can be held out: --skins table feed for training, --skins magazine for tests.
        level: How many steps a task takes: first 3 to 5 (clicks on large tiles, for small models), easy 5 to
            8, medium 10 to 15, hard 20 to 40.
        tasks: How many tasks a site is to have.
    """
    levels = [level] if level else list(LEVELS)
    themes = themes or tuple(THEMES)
    folders = []
    names = []
    if sites:
        names = tomllib.loads(sites.read_text("utf-8")).get("sites", [])
        folders = [out] * len(names)
    for n in range(0 if sites else count):
        # one of each level for training, then one of each held out ...
        split = SPLITS[n // len(levels) % len(SPLITS)] if count > 1 else ""
        later = seed + n // math.lcm(len(levels), len(themes))
        folders.append(out / split)
        names.append(f"{themes[n % len(themes)]}-{levels[n % len(levels)]}-{later}")
    if not names:
        raise ValueError("no site to make: --count 1, or a file whose `sites` names some")
    rows = []
    with progress("making sites", len(names)) as meter:
        for n, name in enumerate(names):
            skin = Random(f"{seed} {n}").choice(skins or ("",))
            rows.append(save_site(name, skin, folders[n], tasks, out))
            meter.advance()
    places = ", ".join(dict.fromkeys(str(folder) for folder in folders))
    say(f"{len(rows)} sites, {sum(len(row['tasks']) for row in rows)} tasks in {places}")
    write_atomic(out / "index.html", text_of("index.html.j2", rows=rows).encode())
    say(f"to look at: {out}/index.html; to train: python train.py tiny --task.train {folders[0]} ...")
    return 0


def save_site(name: str, skin: str, folder: Path, count: int, out: Path) -> Json:
    """Make the site of a name such as shop-medium-900, and save it with its tasks. Return its row of the
    table in OUT/index.html."""
    parts = re.fullmatch(r"(.+)-(first|easy|medium|hard)-(\d{1,9})", name)
    if not parts:
        raise ValueError(f"{name!r} names no site; write theme, level and seed, as shop-medium-900")
    world = make_site(parts[1], int(parts[3]), parts[2], skin)
    tasks = tasks_of_sites.make_tasks(world, count)
    place = folder / world.name
    save_world(world, place)
    save_tasks(place / "tasks.jsonl", tasks)
    return {"folder": place.relative_to(out), "pages": len(world.fsm.pages), "tasks": tasks}


def render(file: File, out: Path, data: Path | None = None, tasks: int = COUNT) -> int:
    """A released fsm.json as a site in the folder OUT, with tasks: walks to its terminal pages.

    Args:
        data: Its records, a JSON object of lists of them; otherwise some are invented.
        tasks: How many tasks the site is to have.
    """
    world = world_of(name_of(out), load_fsm(file), read_json(data) if data else {})
    save_world(world, out)
    save_tasks(out / "tasks.jsonl", make_walks(world, tasks))
    say(f"{out / 'index.html'}: {len(world.fsm.pages)} pages")
    return 0


def replay(folders: Folders, browser: BrowserConfig = DESKTOP) -> int:
    """The solution of every task, acted out in Chromium, with the state compared after every action.

    Args:
        folders: Sites that `make` or `render` has made.
    """
    from minirl.worlds.replay import replay_sites

    if not folders:
        raise ValueError("name the folders of the sites to be replayed")
    check_bounds(browser, "browser")
    worlds = [load_world(folder) for folder in folders]
    tasks = [task for folder in folders for task in load_tasks(folder / "tasks.jsonl")]
    replays = asyncio.run(replay_sites(worlds, browser, tasks))
    failed = [outcome for outcome in replays if outcome.reason]
    for outcome in failed:
        say(f"dropped: {outcome.task.meta['world']}, {outcome.task.id}: {outcome.reason}")
    say(f"{len(worlds)} sites, {len(replays) - len(failed)} of {len(replays)} trajectories kept")
    return int(bool(failed))


def record(
    tasks: tyro.conf.Positional[str],
    out: Path,
    sites: tuple[Path, ...] = (),
    count: int = 100,
    ways: Positive = 4,
    grounding: float = 0.2,
    seed: int = 0,
    browser: BrowserConfig = DESKTOP,
    endpoint: EndpointConfig = TEMPLATE,
) -> int:
    """Recorded steps of AutoWebWorld's form: the solutions of tasks, acted out, in OUT/steps.json.

    Args:
        tasks: A file of tasks on the sites, or shops as `shops:400-499`.
        sites: The folders of these sites.
        count: How many orders in shops.
        ways: In how many ways each task is acted out at most, of which one is kept; 1: as it was made. There
            are 1.7 on average at the level easy, 2 at medium, 3 at hard: so many times as long it takes.
        grounding: The share of rows that are one step with an instruction of its own.
        endpoint: Its --endpoint.model writes the thoughts; without, a template does.
    """
    from minirl.worlds.steps import one_of_each, recorded, save_steps

    check_bounds(browser, "browser")
    if not 0 <= grounding < 1 or ways < 1:
        raise ValueError("--grounding is at least 0 and below 1, and --ways at least 1")
    shops = shops_named(tasks)
    chosen = tasks_of(shops, count) if shops else load_tasks(Path(tasks))
    worlds = {world.name: world for world in (*shops_of(chosen), *map(load_world, sites))}
    replays = asyncio.run(recorded(chosen, worlds, browser, ways))
    drawn = one_of_each(replays, seed)
    say(f"{len(replays)} trajectories of {len(drawn)} goals: one of each is drawn")
    asyncio.run(save_steps(drawn, out, endpoint, grounding, seed))
    return 0


def reword(file: File, out: Path, endpoint: EndpointConfig = TEMPLATE) -> int:
    """A file's tasks with their instructions in the words of the model at --endpoint.model, in the file OUT.
    An instruction stays as it is where the model leaves out what it names, or tells its answer."""
    from minirl.worlds.wording import reword_tasks

    save_tasks(out, asyncio.run(reword_tasks(load_tasks(file, any_goal=True), endpoint)))
    return 0


def author(
    name: tyro.conf.Positional[str],
    out: Path | None = None,
    rounds: int = 4,
    dollars: float = 10.0,
    tokens: Positive = 64_000,
    endpoint: EndpointConfig = PATIENT,
) -> int:
    """A site like the one that is named, as Trello, written by the model at --endpoint.model: a machine that
    passes `check`, then a Vue project that does what the machine says. Needs Node.js. The same command goes
    on where it ended.

    Args:
        out: The site's folder, by default one of its name in sites/.
        rounds: How often the machine, and then the pages, are repaired at most.
        dollars: What the answers of a run may cost; without --endpoint.price nothing is counted.
        tokens: The longest answer.
    """
    from minirl.worlds.authoring import Author, write_site

    out = out or Path("sites") / name

    async def write() -> list[str]:
        async with open_endpoint(endpoint) as served:
            author = Author(served, dollars, tokens, rounds, out / "answers")
            return await write_site(author, name, out)

    faults = asyncio.run(write())
    save_tasks(out / "tasks.jsonl", make_walks(load_world(out)))
    for fault in faults:
        say(f"still wrong with the pages: {fault}")
    say(f"{out / 'index.html'}: {'drawn by minirl' if faults else 'as the model has written it'}")
    return int(bool(faults))


def run(argv: Sequence[str]) -> int:
    """Run one verb and return the exit status."""
    verbs = {f.__name__: f for f in (make, check, solve, render, replay, reword, record, author)}
    return tyro.extras.subcommand_cli_from_dict(verbs, prog="python -m minirl.worlds", args=argv)


if __name__ == "__main__":
    run_main(run)
