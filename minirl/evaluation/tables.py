"""Print an evaluation: rates with intervals, sites, difficulties, endings; or two of them compared.

    Results --show--> tables            two files of results --compare--> the paired difference

Stands at the end of eval.py; results.py does the counting. OpenWebRL, section 5: the success rate with
aborted tasks as failures, and the one without them, always both.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import fsum
from pathlib import Path
from typing import Literal

from minirl.benchmarks.protocols import Protocol, protocol_of
from minirl.config import JudgeConfig
from minirl.console import print_table, say
from minirl.evaluation.results import Paired, RateRow, Result, by_task, paired, read_results, rows_by, summary
from minirl.run_folder import differences
from minirl.types import Sampling, Stop

MAX_NAMED = 5  # aborted episodes that are named one by one
RATE_COLUMNS = ("success", "95% interval", "n")
# How results count without a protocol; the settings are then those of `config.eval`.
UNNAMED = Protocol(
    "", "", aborted="leave out", sampling=Sampling(), judge=JudgeConfig(input="rules"), max_steps=0
)


def protocol_or_none(name: str, after: Literal["done", "any"]) -> Protocol:
    """Return the protocol of a name; "" counts without one, by `after`, the endings that can succeed."""
    return protocol_of(name) if name else replace(UNNAMED, after=after)


def show(results: Sequence[Result], protocol: Protocol) -> RateRow:
    """Print the tables, how the episodes ended, and which were aborted. Returns the numbers."""
    overall = summary(results, protocol)
    say(f"protocol {protocol.name or 'none'}: {protocol.rule}")
    show_endings(results)
    sites = rows_by("site", results, protocol)
    show_rates("", [overall])
    for kind, rows in (("site", sites), ("difficulty", rows_by("difficulty", results, protocol))):
        if len(rows) > 1:
            show_rates(kind, rows)
    show_means(results)
    share, interval, n = overall.success.cells
    rate = f"{share} ({interval})" if overall.success.episodes else "not known"
    macro = f"the mean of {len(sites)} sites, " if protocol.average == "macro" else ""
    tasks = len({result.task for result in results})
    say(f"success: {rate}, {macro}{overall.success.successes} of {n} episodes of {tasks} tasks", "bold green")
    return overall


def show_endings(results: Sequence[Result]) -> None:
    """Print how many episodes ended in each way, and why the first ones that were aborted were."""
    endings = Counter(sorted(result.stop.value for result in results))
    say(f"ended by {', '.join(f'{stop} {n}' for stop, n in endings.most_common())}")
    aborted = [result for result in results if not result.stop.is_agent_fault]
    for result in aborted[:MAX_NAMED]:
        say(f"aborted: {result.task}: {result.stop.value}: {result.reason or 'no reason is known'}")


def show_rates(kind: str, rows: Sequence[RateRow]) -> None:
    """Print a table: the success rate with aborted episodes as failures, then without them."""
    cells = [(row.name, *row.all_tasks.cells, *row.without_aborted.cells) for row in rows]
    print_table([kind, *RATE_COLUMNS, "without aborted", *RATE_COLUMNS[1:]], cells)


def show_means(results: Sequence[Result]) -> None:
    valid = [result for result in results if result.stop.is_agent_fault]
    steps = sum(result.steps for result in valid) / max(len(valid), 1)
    tokens = sum(result.response_tokens for result in valid) / max(len(valid), 1)
    dollars = fsum(result.cost for result in results)
    say(
        f"means of the {len(valid)} episodes that were not aborted: {steps:.1f} steps, {tokens:.0f} response "
        f"tokens; cost of all: ${dollars:.2f}"
    )


def curve(results: Sequence[Result], budgets: Sequence[int], protocol: Protocol) -> None:
    """Print a table of the success within so many turns. The agent is not told its budget, so an episode of
    the largest one shows what it would have done with less."""
    rows = []
    for turns in sorted(set(budgets)):
        part = results if turns == max(budgets) else within(results, turns)
        rows.append((str(turns), *summary(part, protocol).success.cells))
    print_table(["turns", *RATE_COLUMNS], rows)


def within(results: Sequence[Result], turns: int) -> list[Result]:
    """Return the results as they would have been with a budget of so many turns."""
    cut = []
    for result in results:
        # `steps` are finished turns: an episode that was aborted, except by its judge or its site, was
        # aborted in the turn after these
        aborted = not result.stop.is_agent_fault and result.stop not in (Stop.JUDGE_ERROR, Stop.BLOCKED)
        if result.steps + aborted > turns:
            result = replace(result, success=False, stop=Stop.MAX_STEPS)
        cut.append(result)
    return cut


def compare(first: Path, second: Path) -> Paired:
    """Print how much better the second file of results is than the first, task by task."""
    one = read_results(first)
    two = read_results(second)
    evaluation = one.evaluation
    if (evaluation.protocol, evaluation.rule) != (two.evaluation.protocol, two.evaluation.rule):
        raise ValueError(f"{first} and {second} were not counted by the same rule; evaluate again")
    protocol = protocol_or_none(evaluation.protocol, evaluation.config["reward"]["after"])
    pair = paired(by_task(one.results, protocol), by_task(two.results, protocol))
    unlike = differences(evaluation.config, two.evaluation.config)
    even = pair.tasks - pair.better - pair.worse
    say(f"protocol {protocol.name or 'none'}: {protocol.rule}")
    say(f"they differ in {', '.join(unlike) or 'no setting'}")
    say(f"first:  {pair.first:.1%} {first}\nsecond: {pair.second:.1%} {second}")
    say(f"of {pair.tasks} common tasks the second wins {pair.better}, loses {pair.worse}, {even} are even")
    say(f"{pair.unpaired} tasks that only one has are left out; all others weigh the same")
    points, low, high = (f"{100 * value:+.1f}" for value in (pair.difference, pair.low, pair.high))
    say(f"difference: {points} points (95% interval {low} to {high})", "bold green")
    return pair
