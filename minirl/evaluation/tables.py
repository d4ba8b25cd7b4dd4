"""Print an evaluation: rates with intervals, sites, difficulties, endings; or two of them compared.

    Results --show--> tables            two files of results --compare--> the paired difference

Stands at the end of eval.py; results.py and statistics.py do the counting. OpenWebRL, section 4: the success
rate with aborted tasks as failures, and the one without them, always both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rich.table import Table
from rich.text import Text

from minirl.benchmarks.protocols import GPT_41, Protocol, protocol_of
from minirl.console import CONSOLE, new_table, say
from minirl.evaluation.failures import ErrorRow, ProxyRow
from minirl.evaluation.results import Rate, Result, Summary, by_task, read_results, summary, unlike
from minirl.evaluation.statistics import Paired, paired
from minirl.types import Sampling, Stop, Task

NAMED = 5  # aborted episodes that are named one by one
RATE_COLUMNS = ("success", "95% interval", "n")
# How results count without a protocol; the settings are then those of `config.eval`.
UNNAMED = Protocol("", "", 0, aborted="leave out", sampling=Sampling(), judge=GPT_41, max_steps=0)


def named(protocol: str) -> Protocol:
    """Return the protocol of a name; "" counts without one."""
    return protocol_of(protocol) if protocol else UNNAMED


def cells(rate: Rate) -> tuple[str, str, str]:
    share = f"{rate.rate:.1%}" if rate.episodes else "-"
    return share, f"{rate.low:.1%} to {rate.high:.1%}", str(rate.episodes)


def show(results: Sequence[Result], protocol: Protocol, tasks: Sequence[Task]) -> Summary:
    """Print the tables, how the episodes ended, and which were aborted. Returns the numbers."""
    s = summary(results, protocol)
    say_rule(protocol)
    endings = sorted(Counter(ending(r.stop) for r in results).items(), key=lambda item: (-item[1], item[0]))
    say(f"ended by {', '.join(f'{stop} {n}' for stop, n in endings)}")
    say_aborted(results, tasks)

    table = new_table("", *RATE_COLUMNS)
    table.add_row("all, aborted as failures", *cells(s.all_tasks))
    table.add_row("without aborted", *cells(s.without_aborted))
    CONSOLE.print(table)
    for kind, rows in (("site", s.sites if len(s.sites) > 1 else ()), ("difficulty", s.difficulties)):
        table = new_table(kind, *RATE_COLUMNS, "without aborted", *RATE_COLUMNS[1:])
        for row in rows:
            table.add_row(Text(row.name), *cells(row.all_tasks), *cells(row.without_aborted))
        if rows:
            CONSOLE.print(table)

    say(
        f"means of the {len(results) - s.aborted} episodes that were not aborted: {s.steps:.1f} steps, "
        f"{s.prompt_tokens:.0f} prompt tokens, {s.response_tokens:.0f} response tokens; "
        f"cost of all: ${s.cost:.2f}"
    )
    rate, _, n = cells(s.success)
    share = f"{rate} ({s.success.low:.1%} to {s.success.high:.1%})" if s.success.episodes else "not known"
    macro = f"the mean of {len(s.sites)} sites, " if protocol.average == "macro" else ""
    say(f"success: {share}, {macro}{s.success.successes} of {n} episodes of {s.tasks} tasks", "bold green")
    return s


def say_rule(protocol: Protocol) -> None:
    say(f"{f'protocol {protocol.name}' if protocol.name else 'no protocol'}: {protocol.rule}")


def say_aborted(results: Sequence[Result], tasks: Sequence[Task]) -> None:
    """Print the first aborted episodes by name, "webvoyager-Allrecipes--0", with the reason."""
    benchmarks = {task.id: str(task.meta.get("benchmark", "")) for task in tasks}
    several = len({r.seed for r in results}) > 1
    aborted = [r for r in results if not r.stop.is_agent_fault]
    for r in aborted[:NAMED]:
        benchmark = benchmarks.get(r.task, "")
        name = r.task if r.task.startswith(benchmark) else f"{benchmark}-{r.task}"
        name += f", seed {r.seed}" if several else ""
        say(f"aborted: {name}: {ending(r.stop)}: {r.reason or 'no reason is known'}")
    if len(aborted) > NAMED:
        say(f"aborted: {len(aborted) - NAMED} more; the file of results has them")


def ending(stop: Stop) -> str:
    """Return how an episode ended; a site that did not open is a kind of infra_error."""
    return "infra_error (site_error)" if stop is Stop.SITE_ERROR else stop.value


def curve(results: Sequence[Result], budgets: Sequence[int], protocol: Protocol) -> Table:
    """Return a table of the success within so many turns. The agent is not told its budget, so an episode of
    the largest one shows what it would have done with less. (Under a protocol that scores episodes which did
    not end by themselves, too, these count at the largest one only.)"""
    table = new_table("turns", *RATE_COLUMNS)
    for most in sorted(set(budgets)):
        known = results if most == max(budgets) else within(results, most)
        table.add_row(str(most), *cells(summary(known, protocol).success))
    return table


def within(results: Sequence[Result], turns: int) -> list[Result]:
    """Return the results as they would have been with a budget of so many turns. `steps` are finished turns:
    an episode that was aborted, except by its judge, was aborted in the turn after these."""

    def is_cut(r: Result) -> bool:
        began_another = not r.stop.is_agent_fault and r.stop is not Stop.JUDGE_ERROR
        return r.steps + began_another > turns

    return [replace(r, success=False, stop=Stop.MAX_STEPS) if is_cut(r) else r for r in results]


def failures_table(rows: Sequence[ErrorRow]) -> Table:
    """Return why episodes failed, beside the shares that the paper found on Online-Mind2Web."""
    table = new_table("failed for", "episodes", "share", "figure 9")
    for row in rows:
        paper = "-" if row.paper is None else f"{row.paper:.0%}"
        table.add_row(row.category, str(row.count), f"{row.share:.0%}", paper)
    return table


def proxies_table(rows: Sequence[ProxyRow]) -> Table:
    """Return the phrases that turns hold, and how long these turns are. There is at least one turn."""
    table = new_table("turns that speak of", "turns", "share", "mean tokens", "90th percentile")
    for row in rows:
        lengths = ("-" if length is None else f"{length:.0f}" for length in (row.mean, row.p90))
        table.add_row(row.name, str(row.turns), f"{row.rate:.0%}", *lengths)
    return table


def compare(first: Path, second: Path) -> Paired:
    """Print how much better the second file of results is than the first, task by task. ValueError if they
    were counted differently, have no task in common, or can't be read."""
    (one, ours), (two, theirs) = read_results(first), read_results(second)
    if one.protocol != two.protocol:
        names = f"{one.protocol or 'none'} and {two.protocol or 'none'}"
        raise ValueError(f"{first} and {second} were evaluated under different protocols: {names}")
    if one.rule != two.rule:
        raise ValueError(f"{first} and {second} were evaluated under different rules")
    protocol = named(one.protocol)
    if protocol.rule != one.rule:
        raise ValueError(f"protocol {one.protocol} has another rule by now; evaluate again")

    p = paired(by_task(ours, protocol), by_task(theirs, protocol))
    say_rule(protocol)
    say(f"they differ in {', '.join(unlike(one.config, two.config)) or 'no setting'}")
    table = new_table("", "file", "success")
    table.columns[1].justify = "left"
    table.add_row("first", Text(str(first)), f"{p.first:.1%}")
    table.add_row("second", Text(str(second)), f"{p.second:.1%}")
    CONSOLE.print(table)
    wins = f"the second wins {p.better}, loses {p.worse}, and {p.tasks - p.better - p.worse} are even"
    left_out = f"; {p.unpaired} tasks that only one has are left out" if p.unpaired else ""
    say(f"of {p.tasks} common tasks {wins}{left_out}")
    if protocol.average == "macro":
        say("every task weighs the same here; the protocol's own rate is the mean of its sites' rates")
    points = [f"{100 * value:+.1f}" for value in (p.difference, p.low, p.high)]
    say(f"difference: {points[0]} points (95% interval {points[1]} to {points[2]})", "bold green")
    return p
