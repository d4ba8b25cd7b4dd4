"""`python -m minirl.worlds VERB`: what can be done with sites as files.

Exit status 0: fine; 1: `check` has found errors, or `replay` a page that does not do what its machine says;
2: the command line or the file is of no use.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal, TextIO

import tyro

from minirl.config import BrowserConfig
from minirl.worlds import lint
from minirl.worlds.folder import load_world, save_outcomes, save_world
from minirl.worlds.fsm_file import load_fsm, read_json
from minirl.worlds.generate import PROFILES, make_site, shape
from minirl.worlds.infer_bindings import world_of
from minirl.worlds.replay import Outcome, replay_sites
from minirl.worlds.search import MAX_DEPTH, MAX_STATES, by_access, explore, symbolic
from minirl.worlds.themes import THEMES

File = tyro.conf.Positional[Path]
Difficulty = Literal["easy", "medium", "hard"]
Json = Annotated[bool, tyro.conf.arg(name="json")]


def check(file: File, json_: Json = False, max_states: int = lint.MAX_STATES) -> int:
    """Everything that is wrong with a site's fsm.json: errors make tasks fail or mean nothing.

    Args:
        file: An fsm.json, as released with AutoWebWorld.
        json_: Print a list of {"severity", "code", "where", "message"}.
        max_states: Where the search for what can be reached stops.
    """
    findings = lint.check(file, max_states)
    errors = sum(finding.severity == "error" for finding in findings)
    if json_:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        for finding in findings:
            _say(f"{finding.severity}: {finding.where}: {finding.message} [{finding.code}]")
        _say(f"{file}: {errors} errors, {len(findings) - errors} warnings")
    return int(errors > 0)


def solve(
    file: File,
    json_: Json = False,
    plain: bool = False,
    max_depth: int = MAX_DEPTH,
    max_states: int = MAX_STATES,
) -> int:
    """The shortest way to every terminal page, by breadth-first search.

    Args:
        file: An fsm.json.
        json_: Print {"hops", "states", "unreached_pages", "complete"}.
        plain: Do not answer interceptors such as cookie banners first, as the released search does.
        max_depth: The longest path.
        max_states: The most states.
    """
    world = symbolic(load_fsm(file))
    graph = explore(world, plain=plain, max_depth=max_depth, max_states=max_states)
    reached = {node.state.page for node in graph.nodes.values()}
    hops = {page: graph.hops(page) for page in world.fsm.terminal_pages}
    if json_:
        unreached = [page for page in world.fsm.pages if page not in reached]
        answer = {"hops": hops, "states": len(graph.nodes), "unreached_pages": unreached}
        print(json.dumps({**answer, "complete": graph.is_complete}, indent=1))
        return 0
    methods = by_access(world, plain, max_depth, max_states)
    for page, count in hops.items():
        if count is None:
            _say(f"{page}: not reached")
        else:
            through = f", by {' or '.join(methods[page])}" if methods[page] else ""
            _say(f"{page}: {count} actions, {graph.count(page)} shortest ways{through}")
            _say("  " + " > ".join(step.action_id for step in graph.path(graph.nearest(page)[0])))
    rest = "" if graph.is_complete else "; there are more than were looked at"
    _say(f"{len(graph.nodes)} states on {len(reached)} of {len(world.fsm.pages)} pages{rest}")
    return 0


def make(
    out: Path, theme: str | None = None, seed: int = 0, count: int = 1, difficulty: Difficulty | None = None
) -> int:
    """Sites from a theme and a seed, or many: themes, difficulties and seeds in turn.

    Args:
        out: A folder, in which every site gets its own.
        theme: What the sites are about; by default everything in turn.
        seed: The first site's.
        count: How many.
        difficulty: How large; by default all in turn.
    """
    themes = [theme] if theme else list(THEMES)
    levels = [difficulty] if difficulty else list(PROFILES) if count > 1 else ["medium"]
    shapes: Counter[str] = Counter()
    # all themes, then all themes at the next level, then the next seed
    cases = itertools.product(range(seed, seed + count), levels, themes)
    for later, level, name in itertools.islice(cases, count):
        world = make_site(name, later, level)
        save_world(world, out / world.name)
        shapes[shape(world)] += 1
        _say(f"{out / world.name}: {len(world.fsm.pages)} pages, {len(world.fsm.terminal_pages)} tasks' ends")
    if count > 1:
        often = f", the most frequent {max(shapes.values())} times"
        _say(f"{count} sites of {len(shapes)} different shapes{often if len(shapes) < count else ''}")
    return 0


def render(file: File, out: Path, data: Path | None = None) -> int:
    """A released fsm.json as a site, with its records or with invented ones.

    Args:
        file: An fsm.json.
        out: The site's folder.
        data: JSON: an object of lists of records.
    """
    world, guesses = world_of(out.name.lower(), load_fsm(file), read_json(data) if data else {})
    for guess in guesses:
        _say(f"guessed: {guess}")
    save_world(world, out)
    _say(f"{out / 'index.html'}: {len(world.fsm.pages)} pages")
    return 0


def replay(
    folders: tyro.conf.Positional[tuple[Path, ...]],
    out: Path | None = None,
    seed: int = 0,
    workers: int = 8,
    browsers: int = 2,
) -> int:
    """One shortest solution per terminal page, acted out in Chromium and compared after every action.

    Args:
        folders: Sites that `make` has made.
        out: A folder for the trajectories that matched: steps.jsonl and pictures.
        seed: Which solution, where there are several.
        workers: How many at a time.
        browsers: Chromium processes.
    """
    if not folders:
        raise ValueError("name the folders of the sites to be replayed")
    worlds = [load_world(folder) for folder in folders]
    config = BrowserConfig(browsers=browsers, episodes=workers, width=1280, height=720)

    def tell(outcome: Outcome) -> None:
        if outcome.replay.reason:
            _say(f"dropped: {outcome.world}, {outcome.terminal}: {outcome.replay.reason}")

    start = time.monotonic()
    outcomes = asyncio.run(replay_sites(worlds, config, seed, pictures=out is not None, tick=tell))
    seconds = (time.monotonic() - start) / max(1, len(outcomes))
    kept = [outcome for outcome in outcomes if not outcome.replay.reason]
    if out is not None:
        save_outcomes(kept, out)
    actions = sum(len(outcome.replay.steps) for outcome in kept) / max(1, len(kept))
    pages = sum(len(world.fsm.pages) for world in worlds)
    _say(f"{len(worlds)} sites, {pages} pages, {len(kept)} of {len(outcomes)} trajectories kept")
    _say(f"{actions:.1f} actions and {seconds:.2f} s a trajectory, at no cost")
    return int(len(kept) < len(outcomes))


def _say(line: str, file: TextIO | None = None) -> None:
    """Print a line without a terminal's control characters, which a file's strings may hold."""
    print(re.sub(r"[\x00-\x1f\x7f-\x9f]", "?", line), file=file)


def main(argv: Sequence[str]) -> int:
    """Run one verb and return the exit status."""
    verbs = {"make": make, "check": check, "solve": solve, "render": render, "replay": replay}
    try:
        return tyro.extras.subcommand_cli_from_dict(verbs, prog="python -m minirl.worlds", args=list(argv))
    except (ValueError, OSError, OverflowError) as error:  # the last: for an integer larger than any float
        _say(f"minirl.worlds: {error}", sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
