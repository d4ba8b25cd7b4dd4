"""What people read of an evaluation: rates with intervals, sites, difficulties, endings; and of two of them.

    Results --show--> tables            two files of results --compare--> the paired difference

Stands at the end of eval.py; minirl/evaluation/results.py and minirl/evaluation/compare.py do the
counting. OpenWebRL, section 4:
the success rate with aborted tasks as failures, and the one without them, always both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from minirl.benchmarks.protocols import GPT_41, Protocol, protocol_of
from minirl.console import CONSOLE, say
from minirl.evaluation.compare import Paired, paired
from minirl.evaluation.failures import ErrorRow, ProxyRow
from minirl.evaluation.results import Rate, Result, Row, Summary, by_task, read_results, summary
from minirl.types import Sampling, Stop, Task

NAMED = 5  # aborted episodes that are named one by one
NOT_RUN = (Stop.SITE_ERROR, Stop.INFRA_ERROR)  # nothing of the task could be tried
# How results count without a protocol; the settings are then those of `config.eval`.
UNNAMED = Protocol("", "", 0, aborted="leave out", sampling=Sampling(), judge=GPT_41, max_steps=0)


def named(protocol: str) -> Protocol:
    """The protocol of a name; "" is no protocol's, but counts all the same."""
    return protocol_of(protocol) if protocol else UNNAMED


# ---- One evaluation --------------------------------------------------------------------------------


def show(results: Sequence[Result], protocol: Protocol, tasks: Sequence[Task]) -> Summary:
    """Prints the tables, how the episodes ended, and which say nothing about the agent."""
    s = summary(results, protocol)
    say(f"{f'protocol {protocol.name}' if protocol.name else 'no protocol'}: {protocol.rule}")
    say(f"ended by {endings(results)}")
    aborted = [r for r in results if not r.stop.is_agent_fault]
    names = {task.id: name_of(task) for task in tasks}
    several = len({r.seed for r in results}) > 1
    for r in aborted[:NAMED]:
        who = names.get(r.task, r.task) + (f", seed {r.seed}" if several else "")
        say(f"aborted: {who}: {ending(r.stop)}: {r.reason or 'no reason is known'}")
    if len(aborted) > NAMED:
        say(f"aborted: {len(aborted) - NAMED} more; the file of results has them")
    table = rates_table("")
    table.add_row("all, aborted as failures", *cells(s.all_tasks))
    table.add_row("without aborted", *cells(s.without_aborted))
    CONSOLE.print(table)
    if len(s.sites) > 1:
        CONSOLE.print(rows_table("site", s.sites))
    if s.difficulties:
        CONSOLE.print(rows_table("difficulty", s.difficulties))
    n = len(results) - s.aborted
    say(
        f"means of the {n} episodes that were not aborted: {s.steps:.1f} steps, {s.prompt_tokens:.0f} prompt "
        f"tokens, {s.response_tokens:.0f} response tokens; cost of all: ${s.cost:.2f}"
    )
    rate = s.success
    share = f"{rate.rate:.1%} ({rate.low:.1%} to {rate.high:.1%})" if rate.episodes else "not known"
    mean = f"the mean of {len(s.sites)} sites, " if protocol.average == "macro" else ""
    counted = f"{rate.successes} of {rate.episodes} episodes of {s.tasks} tasks"
    say(f"success: {share}, {mean}{counted}", "bold green")
    return s


def name_of(task: Task) -> str:
    """A task among those of other benchmarks: "webvoyager-Allrecipes--0"."""
    benchmark = str(task.meta.get("benchmark", ""))
    return task.id if task.id.startswith(benchmark) else f"{benchmark}-{task.id}"


def ending(stop: Stop) -> str:
    """How an episode ended; what could not be run at all is one kind of ending, with its own name behind it.

    >>> [ending(stop) for stop in (Stop.DONE, Stop.SITE_ERROR, Stop.INFRA_ERROR)]
    ['done', 'infra_error (site_error)', 'infra_error']
    """
    if stop in NOT_RUN and stop is not Stop.INFRA_ERROR:
        return f"{Stop.INFRA_ERROR.value} ({stop.value})"
    return stop.value


def endings(results: Sequence[Result]) -> str:
    stops = Counter(ending(r.stop) for r in results)
    return ", ".join(f"{stop} {count}" for stop, count in sorted(stops.items(), key=lambda s: (-s[1], s[0])))


def curve(results: Sequence[Result], budgets: Sequence[int], protocol: Protocol) -> Table:
    """Success within so many turns. The agent is not told its budget, so that an episode of the largest one
    shows what it would have done with less. (Under a protocol that scores episodes without an ending of their
    own, too, these count at the largest one only.)"""
    table = rates_table("turns")
    for most in sorted(set(budgets)):
        known = results if most == max(budgets) else within(results, most)
        table.add_row(str(most), *cells(summary(known, protocol).success))
    return table


def within(results: Sequence[Result], turns: int) -> list[Result]:
    """The results as they would have been with a budget of so many turns. `steps` are finished turns, so that
    what was aborted, unless by its judge, was aborted in the turn after these."""

    def is_cut(r: Result) -> bool:
        began_another = not r.stop.is_agent_fault and r.stop is not Stop.JUDGE_ERROR
        return r.steps + began_another > turns

    return [replace(r, success=False, stop=Stop.MAX_STEPS) if is_cut(r) else r for r in results]


def failures_table(rows: Sequence[ErrorRow]) -> Table:
    """Why episodes failed, beside the shares that the paper found on Online-Mind2Web."""
    table = Table("failed for")
    for column in ("episodes", "share", "figure 9"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(row.category, str(row.count), f"{row.share:.0%}", percent(row.paper))
    return table


def proxies_table(rows: Sequence[ProxyRow]) -> Table:
    """What turns speak of, and how long these are."""
    table = Table("turns that speak of")
    for column in ("turns", "share", "mean tokens", "90th percentile"):
        table.add_column(column, justify="right")
    for row in rows:
        lengths = ("-" if length is None else f"{length:.0f}" for length in (row.mean, row.p90))
        table.add_row(row.name, str(row.turns), percent(row.rate), *lengths)
    return table


def percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def rates_table(first: str) -> Table:
    table = Table(first)
    for column in ("success", "95% interval", "n"):
        table.add_column(column, justify="right")
    return table


def rows_table(first: str, rows: Sequence[Row]) -> Table:
    """A row per site or difficulty, with aborted episodes and without them."""
    table = rates_table(first)
    for column in ("without aborted", "95% interval", "n"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(Text(row.name), *cells(row.all_tasks), *cells(row.without_aborted))
    return table


def cells(rate: Rate) -> tuple[str, str, str]:
    share = f"{rate.rate:.1%}" if rate.episodes else "-"
    return share, f"{rate.low:.1%} to {rate.high:.1%}", str(rate.episodes)


# ---- Two evaluations -------------------------------------------------------------------------------


def compare(first: Path, second: Path) -> Paired:
    """Prints how much better the second file of results is than the first, task by task. ValueError if they
    were counted differently, have no task in common, or can't be read."""
    (one, ours), (two, theirs) = read_results(first), read_results(second)
    if (one.protocol, one.rule) != (two.protocol, two.rule):
        names = " and ".join(e.protocol or "none" for e in (one, two))
        unlike = f"different protocols: {names}" if one.protocol != two.protocol else "different rules"
        raise ValueError(f"{first} and {second} were evaluated under {unlike}")
    protocol = named(one.protocol)
    if protocol.rule != one.rule:
        raise ValueError(f"protocol {one.protocol} has another rule by now; evaluate again")
    p = paired(by_task(ours, protocol), by_task(theirs, protocol))
    say(f"{f'protocol {protocol.name}' if protocol.name else 'no protocol'}: {protocol.rule}")
    say(f"they differ in {', '.join(differences(one.config, two.config)) or 'nothing but what came of it'}")
    table = Table("", "file")
    table.add_column("success", justify="right")
    for place, path, rate in (("first", first, p.first), ("second", second, p.second)):
        table.add_row(place, Text(str(path)), f"{rate:.1%}")
    CONSOLE.print(table)
    left = f"; {p.unpaired} tasks that only one has are left out" if p.unpaired else ""
    say(
        f"of {p.tasks} common tasks the second wins {p.better}, loses {p.worse}, "
        f"and {p.tasks - p.better - p.worse} are even{left}"
    )
    if protocol.average == "macro":
        say("every task weighs the same here; the protocol's own rate is the mean of its sites' rates")
    points = [f"{100 * value:+.1f}" for value in (p.difference, p.low, p.high)]
    say(f"difference: {points[0]} points (95% interval {points[1]} to {points[2]})", "bold green")
    return p


def differences(one: Mapping[str, Any], two: Mapping[str, Any]) -> list[str]:
    """The names of settings that are not the same.

    >>> differences({"seed": 0, "eval": {"top_k": 0, "top_p": 1}}, {"seed": 1, "eval": {"top_k": 5}})
    ['eval.top_k', 'eval.top_p', 'seed']
    """
    found = []
    for name in sorted(one.keys() | two.keys()):
        old, new = one.get(name), two.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found += [f"{name}.{inner}" for inner in differences(old, new)]
        elif old != new:
            found.append(name)
    return found
