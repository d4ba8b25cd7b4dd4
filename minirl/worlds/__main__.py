"""`python -m minirl.worlds VERB`: what can be done with sites as files.

make draws sites, check judges an fsm.json, solve says how far its terminal pages are, replay acts solutions
out in Chromium. Exit status 0: fine; 1: `check` has found errors, or `replay` a page that does not do what
its machine says; 2: the command line or the file is of no use.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import tyro

from minirl.config import BrowserConfig
from minirl.worlds import lint as checks
from minirl.worlds.folder import load_world, save_outcomes, save_world
from minirl.worlds.fsm_file import load_fsm
from minirl.worlds.generate import PROFILES, make_site, shape
from minirl.worlds.infer_bindings import world_of
from minirl.worlds.replay import Outcome, replay_sites
from minirl.worlds.search import MAX_DEPTH, MAX_STATES, by_access, explore, symbolic
from minirl.worlds.themes import THEMES

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")  # a file's strings must not move a terminal's cursor


def check(
    file: tyro.conf.Positional[Path],
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False,
    max_states: int = checks.MAX_STATES,
) -> int:
    """Everything that is wrong with a site's fsm.json: errors make tasks fail or mean nothing.

    Args:
        file: An fsm.json, as released with AutoWebWorld or as in the paper's appendix.
        json_: Print a list of {"severity", "code", "where", "message"}.
        max_states: Where the search for what can be reached stops.
    """
    findings = checks.check(file, max_states)
    if json_:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
    else:
        for finding in findings:
            _say(f"{finding.severity}: {finding.where}: {finding.message} [{finding.code}]")
        errors = sum(finding.severity == "error" for finding in findings)
        _say(f"{file}: {errors} errors, {len(findings) - errors} warnings")
    return 1 if any(finding.severity == "error" for finding in findings) else 0


def solve(
    file: tyro.conf.Positional[Path],
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False,
    plain: bool = False,
    max_depth: int = MAX_DEPTH,
    max_states: int = MAX_STATES,
) -> int:
    """The shortest way to every terminal page, by breadth-first search.

    Args:
        file: An fsm.json.
        json_: Print {"hops", "states", "unreached_pages", "complete"}.
        plain: True shortest paths; by default interceptors such as cookie banners are answered first, as in
            the released search.
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
        print(json.dumps(answer | {"complete": graph.is_complete}, indent=1))
        return 0
    methods = by_access(world, plain, max_depth, max_states)
    for page, count in hops.items():
        if count is None:
            _say(f"{page}: not reached")
            continue
        at = lambda state, page=page: state.page == page  # noqa: E731
        through = f", by {' or '.join(methods[page])}" if methods[page] else ""
        _say(f"{page}: {count} actions, {graph.count(at)} shortest ways{through}")
        _say("  " + " > ".join(step.action_id for step in graph.path(graph.nearest(at)[0])))
    rest = "" if graph.is_complete else "; there are more than were looked at"
    _say(f"{len(graph.nodes)} states on {len(reached)} of {len(world.fsm.pages)} pages{rest}")
    return 0


def make(
    out: Path,
    theme: str | None = None,
    seed: int = 0,
    count: int = 1,
    difficulty: Literal["easy", "medium", "hard"] | None = None,
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
    for n in range(count):
        # all themes, then all themes at the next level, then the next seed
        level, later = n // len(themes) % len(levels), n // (len(themes) * len(levels))
        world = make_site(themes[n % len(themes)], seed + later, levels[level])
        save_world(world, out / world.name)
        shapes[shape(world)] += 1
        _say(f"{out / world.name}: {len(world.fsm.pages)} pages, {len(world.fsm.terminal_pages)} tasks' ends")
    if count > 1:
        often = f", the most frequent {max(shapes.values())} times"
        _say(f"{count} sites of {len(shapes)} different shapes{often if len(shapes) < count else ''}")
    return 0


def render(file: tyro.conf.Positional[Path], out: Path, data: Path | None = None) -> int:
    """A released fsm.json as a site, with its records or with invented ones.

    Args:
        file: An fsm.json.
        out: The site's folder.
        data: JSON: an object of lists of records.
    """
    documents = json.loads(data.read_text(encoding="utf-8")) if data else {}
    if not isinstance(documents, dict):
        raise ValueError(f"{data}: must be an object of lists of records")
    world, guesses = world_of(out.name.lower(), load_fsm(file), documents)
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
    start = time.monotonic()
    outcomes = asyncio.run(replay_sites(worlds, config, seed, pictures=out is not None, tick=_report))
    seconds = time.monotonic() - start
    kept = [outcome for outcome in outcomes if not outcome.replay.reason]
    if out is not None:
        save_outcomes(kept, out)
    actions = sum(len(outcome.replay.steps) for outcome in kept) / max(1, len(kept))
    pages = sum(len(world.fsm.pages) for world in worlds)
    _say(f"{len(worlds)} sites, {pages} pages, {len(kept)} of {len(outcomes)} trajectories kept")
    _say(f"{actions:.1f} actions and {seconds / max(1, len(outcomes)):.2f} s a trajectory, at no cost")
    return 0 if len(kept) == len(outcomes) else 1


def _report(outcome: Outcome) -> None:
    if outcome.replay.reason:
        _say(f"dropped: {outcome.world}, {outcome.terminal}: {outcome.replay.reason}")


def _say(line: str) -> None:
    print(CONTROL.sub("?", line))


def main(argv: Sequence[str]) -> int:
    try:
        verbs = {"make": make, "check": check, "solve": solve, "render": render, "replay": replay}
        return tyro.extras.subcommand_cli_from_dict(verbs, prog="python -m minirl.worlds", args=list(argv))
    except (ValueError, OSError) as error:
        print(f"minirl.worlds: {CONTROL.sub('?', str(error))}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
