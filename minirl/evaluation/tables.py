"""Print an evaluation: rates with intervals, sites, difficulties, endings; or two of them compared.

    Results --show--> tables            two files of results --compare--> the paired difference

Stands at the end of eval.py; results.py does the counting. OpenWebRL, section 4: the success rate with
aborted tasks as failures, and the one without them, always both.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import fsum
from pathlib import Path
from statistics import mean
from typing import Any

from rich.table import Table

from minirl.benchmarks.protocols import Protocol, protocol_of
from minirl.config import JudgeConfig
from minirl.console import CONSOLE, new_table, say
from minirl.evaluation.results import Paired, Result, Row, by_task, paired, read_results, rows_by, summary
from minirl.run_folder import differences
from minirl.types import Sampling, Stop

NAMED = 5  # aborted episodes that are named one by one
PARTS = {"difficulty": "difficulty", "widget": "widgets"}  # further tables, and a result's field
RATE_COLUMNS = ("success", "95% interval", "n")
RULES = JudgeConfig(input="rules")
# How results count without a protocol; the settings are then those of `config.eval`.
UNNAMED = Protocol("", "", aborted="leave out", sampling=Sampling(), judge=RULES, max_steps=0)


def named(protocol: str, reward: Mapping[str, Any]) -> Protocol:
    """Return the protocol of a name; "" counts without one, as the config's `reward` says."""
    return protocol_of(protocol) if protocol else replace(UNNAMED, after=reward.get("after", "done"))


def show(results: Sequence[Result], protocol: Protocol) -> Row:
    """Print the tables, how the episodes ended, and which were aborted. Returns the numbers."""
    s, sites = summary(results, protocol), rows_by("site", results, protocol)
    aborted = [r for r in results if not r.stop.is_agent_fault]
    say(f"protocol {protocol.name or 'none'}: {protocol.rule}")
    endings = Counter(sorted(r.stop.value for r in results)).most_common()
    say(f"ended by {', '.join(f'{stop} {n}' for stop, n in endings)}")
    for r in aborted[:NAMED]:
        say(f"aborted: {r.task}: {r.stop.value}: {r.reason or 'no reason is known'}")
    if len(aborted) > NAMED:
        say(f"aborted: {len(aborted) - NAMED} more; the file of results has them")
    cells = [("all, aborted as failures", *s.all_tasks.cells), ("without aborted", *s.without_aborted.cells)]
    if live := is_live(results, protocol):
        cells.append(("blocked by its site", *s.blocked.cells))
    CONSOLE.print(new_table("", *RATE_COLUMNS, rows=cells))
    kinds = [("site", sites if len(sites) > 1 else [])]
    kinds += [(kind, rows_by(field, results, protocol)) for kind, field in PARTS.items()]
    for kind, rows in kinds:
        cells = [(row.name, *row.all_tasks.cells, *row.without_aborted.cells) for row in rows]
        if rows:
            columns = (*RATE_COLUMNS, "without aborted", *RATE_COLUMNS[1:])
            CONSOLE.print(new_table(kind, *columns, rows=cells))
        if rows and live:
            cells = [(row.name, *row.blocked.cells) for row in rows]
            CONSOLE.print(new_table(kind, "blocked", *RATE_COLUMNS[1:], rows=cells))
    fields = ("steps", "prompt_tokens", "response_tokens")
    valid = [r for r in results if r.stop.is_agent_fault]
    steps, prompt, response = (mean([getattr(r, name) for r in valid] or [0]) for name in fields)
    say(
        f"means of the {len(valid)} episodes that were not aborted: {steps:.1f} steps, {prompt:.0f} prompt "
        f"tokens, {response:.0f} response tokens; cost of all: ${fsum(r.cost for r in results):.2f}"
    )
    share, interval, n = s.success.cells
    share = f"{share} ({interval})" if s.success.episodes else "not known"
    macro = f"the mean of {len(sites)} sites, " if protocol.average == "macro" else ""
    counts = f"{s.success.successes} of {n} episodes of {len({r.task for r in results})} tasks"
    say(f"success: {share}, {macro}{counts}", "bold green")
    return s


def is_live(results: Sequence[Result], protocol: Protocol) -> bool:
    """Return True if tables show the share of blocked episodes: where judges decide, or if there are any."""
    return protocol.judge.input != "rules" or any(r.stop is Stop.BLOCKED for r in results)


def curve(results: Sequence[Result], budgets: Sequence[int], protocol: Protocol) -> Table:
    """Return a table of the success within so many turns. The agent is not told its budget, so an episode of
    the largest one shows what it would have done with less."""
    rows, live = [], is_live(results, protocol)
    for most in sorted(set(budgets)):
        s = summary(results if most == max(budgets) else within(results, most), protocol)
        rows.append((str(most), *s.success.cells, *s.blocked.cells[:live]))
    return new_table("turns", *RATE_COLUMNS, *("blocked",) * live, rows=rows)


def within(results: Sequence[Result], turns: int) -> list[Result]:
    """Return the results as they would have been with a budget of so many turns. `steps` are finished turns:
    an episode that was aborted, except by its judge or its site, was aborted in the turn after these."""

    def is_cut(r: Result) -> bool:
        began_another = not r.stop.is_agent_fault and r.stop not in (Stop.JUDGE_ERROR, Stop.BLOCKED)
        return r.steps + began_another > turns

    return [replace(r, success=False, stop=Stop.MAX_STEPS) if is_cut(r) else r for r in results]


def compare(first: Path, second: Path) -> Paired:
    """Print how much better the second file of results is than the first, task by task."""
    (one, ours), (two, theirs) = read_results(first), read_results(second)
    protocol = named(one.protocol, one.config.get("reward", {}))
    if {(one.protocol, one.rule), (two.protocol, two.rule)} != {(one.protocol, protocol.rule)}:
        raise ValueError(f"{first} and {second} were not counted by the same rule of today; evaluate again")
    p = paired(by_task(ours, protocol), by_task(theirs, protocol))
    say(f"protocol {protocol.name or 'none'}: {protocol.rule}")
    say(f"they differ in {', '.join(d[0] for d in differences(one.config, two.config)) or 'no setting'}")
    say(f"first:  {p.first:.1%} {first}\nsecond: {p.second:.1%} {second}")
    wins = f"the second wins {p.better}, loses {p.worse}, and {p.tasks - p.better - p.worse} are even"
    left_out = f"; {p.unpaired} tasks that only one has are left out" if p.unpaired else ""
    say(f"of {p.tasks} common tasks {wins}{left_out}")
    if protocol.average == "macro":
        say("every task weighs the same here; the protocol's own rate is the mean of its sites' rates")
    points = [f"{100 * value:+.1f}" for value in (p.difference, p.low, p.high)]
    say(f"difference: {points[0]} points (95% interval {points[1]} to {points[2]})", "bold green")
    return p
