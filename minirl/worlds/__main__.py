"""`python -m minirl.worlds VERB`: what can be done with sites as files.

Exit status 0: fine; 1: `check` has found errors, or `replay` a page that does not do what its machine says;
2: the command line or the file is of no use.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TextIO

import tyro

from minirl.config import BrowserConfig
from minirl.console import printable
from minirl.worlds import lint
from minirl.worlds.fsm_file import load_fsm, read_json
from minirl.worlds.generate import LEVELS, THEMES, make_site
from minirl.worlds.infer_bindings import world_of
from minirl.worlds.render import load_world, name_of, save_world
from minirl.worlds.replay import replay_sites, save_replays
from minirl.worlds.search import SEARCH_SECONDS, explore, symbolic

Difficulty = Literal["easy", "medium", "hard"]
Folders = tyro.conf.Positional[tuple[Path, ...]]
File = tyro.conf.Positional[Path]


def check(file: File) -> int:
    """Everything that is wrong with a site's fsm.json: errors make tasks fail or mean nothing."""
    findings = lint.check(file)
    errors = sum(finding.severity == "error" for finding in findings)
    for finding in findings:
        _say(f"{finding.severity}: {finding.where}: {finding.message} [{finding.code}]")
    _say(f"{file}: {errors} errors, {len(findings) - errors} warnings")
    return int(errors > 0)


def solve(file: File, plain: bool = False) -> int:
    """A shortest way to every terminal page of an fsm.json, by breadth-first search, as JSON.

    Args:
        plain: Do not answer interceptors such as cookie banners first, as the released search does.
    """
    fsm = load_fsm(file)
    graph = explore(symbolic(fsm), plain=plain, seconds=SEARCH_SECONDS)
    reached = {node.state.page for node in graph.nodes.values()}
    answer: dict[str, Any] = {"states": len(graph.nodes), "complete": graph.is_complete}
    answer["unreached_pages"] = [page for page in fsm.pages if page not in reached]
    answer["hops"] = {page: graph.hops(page) for page in fsm.terminal_pages}
    nearest = {page: graph.nearest(page)[0] for page in fsm.terminal_pages if page in reached}
    answer["paths"] = {page: [step.action_id for step in graph.path(key)] for page, key in nearest.items()}
    print(json.dumps(answer, indent=1))
    return 0


def make(
    out: Path, theme: str = "", seed: int = 0, count: int = 1, difficulty: Difficulty | None = None
) -> int:
    """Sites, each in a folder in OUT: all themes, then the next difficulty, then the next seed."""
    levels = [difficulty] if difficulty else list(LEVELS) if count > 1 else ["medium"]
    cases = itertools.product(range(seed, seed + count), levels, [theme] if theme else THEMES)
    for later, level, name in itertools.islice(cases, count):
        world = make_site(name, later, level)
        save_world(world, out / world.name)
        _say(f"{out / world.name}: {len(world.fsm.pages)} pages, {len(world.fsm.terminal_pages)} to end on")
    return 0


def render(file: File, out: Path, data: Path | None = None) -> int:
    """A released fsm.json as a site in the folder OUT. DATA is its records, a JSON object of lists of them;
    otherwise some are invented."""
    world, guesses = world_of(name_of(out), load_fsm(file), read_json(data) if data else {})
    for guess in guesses:
        _say(f"guessed: {guess}")
    save_world(world, out)
    _say(f"{out / 'index.html'}: {len(world.fsm.pages)} pages")
    return 0


def replay(
    folders: Folders, out: Path | None = None, seed: int = 0, workers: int = 8, browsers: int = 2
) -> int:
    """One shortest solution per terminal page, acted out in Chromium and compared after every action.

    Args:
        folders: Sites that `make` has made.
        out: A folder for the trajectories that matched: steps.jsonl and pictures.
        seed: Which solution, where there are several.
        workers: How many episodes at a time.
    """
    if not folders:
        raise ValueError("name the folders of the sites to be replayed")
    worlds = [load_world(folder) for folder in folders]
    config = BrowserConfig(browsers=browsers, episodes=workers, width=1280, height=720)
    replays = asyncio.run(replay_sites(worlds, config, seed, pictures=out is not None))
    kept = {place: replay for place, replay in replays.items() if not replay.reason}
    for place in replays.keys() - kept.keys():
        _say(f"dropped: {', '.join(place)}: {replays[place].reason}")
    if out is not None:
        save_replays(kept, out)
    _say(f"{len(worlds)} sites, {len(kept)} of {len(replays)} trajectories kept")
    return int(len(kept) < len(replays))


def _say(line: str, file: TextIO | None = None) -> None:
    """Print a line without a terminal's control characters, which a file's strings may hold."""
    print(printable(line).replace("\n", "?"), file=file)


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
