"""`python -m minirl.world VERB`: what can be done with sites as files.

check judges an fsm.json, solve says how far its terminal pages are. Exit status 0: fine; 1: `check` has found
errors; 2: the command line or the file is of no use.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import tyro

from minirl.world import check as checks
from minirl.world.schema import load_fsm
from minirl.world.search import MAX_DEPTH, MAX_STATES, by_access, explore, symbolic

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


def _say(line: str) -> None:
    print(CONTROL.sub("?", line))


def main(argv: Sequence[str]) -> int:
    try:
        verbs = {"check": check, "solve": solve}
        return tyro.extras.subcommand_cli_from_dict(verbs, prog="python -m minirl.world", args=list(argv))
    except ValueError as error:
        print(f"minirl.world: {CONTROL.sub('?', str(error))}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
