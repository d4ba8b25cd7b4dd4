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
from statistics import fmean
from typing import Literal

import numpy as np

from minirl.benchmarks.protocols import Protocol, protocol_of
from minirl.console import print_table, say
from minirl.evaluation.results import (
    Paired,
    RateRow,
    Result,
    by_task,
    is_success,
    paired,
    read_results,
    rows_by,
    summary,
)
from minirl.run_folder import differences
from minirl.types import Stop

MAX_NAMED = 5  # aborted episodes that are named one by one
MAX_CELLS = 12  # rows of sites with difficulties: AutoWebWorld's table 4 has two kinds on three platforms
MEANS = {"micro": "", "macro": "the mean of sites, ", "kinds": "the mean of kinds, "}
RATE_COLUMNS = ("success", "95% interval", "n")
# How results count without a protocol; the settings are then those of `config.eval`.
UNNAMED = Protocol("", "", max_steps=0, aborted="leave out")


def protocol_or_none(name: str, after: Literal["done", "any"]) -> Protocol:
    """Return the protocol of a name; "" counts without one, by `after`, the endings that can succeed."""
    return protocol_of(name) if name else replace(UNNAMED, after=after)


def show(results: Sequence[Result], protocol: Protocol) -> RateRow:
    """Print the tables, how the episodes ended, and which were aborted. Returns the numbers."""
    overall = summary(results, protocol)
    say(f"protocol {protocol.name or 'none'}: {protocol.rule}")
    show_endings(results)
    sites = rows_by("site", results, protocol)
    kinds = rows_by("difficulty", results, protocol)
    show_rates("", [overall])
    for title, rows in (("site", sites), ("difficulty", kinds)):
        if len(rows) > 1:
            show_rates(title, rows)
    crossed = [replace(result, site=f"{result.site}, {result.difficulty}") for result in results]
    cells = rows_by("site", crossed, protocol)
    if len(sites) > 1 and len(kinds) > 1 and len(cells) <= MAX_CELLS:
        show_rates("site, difficulty", cells)
    show_means(results, protocol)
    share, interval, n = overall.success.cells
    rate = f"{share} ({interval})" if overall.success.episodes else "not known"
    tasks = len({result.task for result in results})
    counts = f"{overall.success.successes} of {n} episodes of {tasks} tasks"
    say(f"success: {rate}, {MEANS[protocol.average]}{counts}", "bold green")
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


def show_means(results: Sequence[Result], protocol: Protocol) -> None:
    """Print means of steps (OpenWebRL, figure 7: of all episodes), of tokens of responses (WebAgent-R1, table
    3: of a turn's) and of conversations (OpenWebRL, figure 3a), with what 90% of these have at most."""
    groups = {
        "all": results,
        "not aborted": [result for result in results if result.stop.is_agent_fault],
        "successes": [result for result in results if is_success(result, protocol)],
    }
    rows = []
    for name, part in groups.items():
        if part:
            steps = fmean(result.steps for result in part)
            tokens = fmean(result.response_tokens for result in part)
            lengths = [result.length for result in part]
            longest = np.quantile(lengths, 0.9, method="inverted_cdf")
            numbers = (steps, tokens, tokens / (steps or 1), fmean(lengths), longest)
            rows.append([name, str(len(part)), *(f"{number:.1f}" for number in numbers)])
    columns = ("steps", "responses", "a turn", "conversation", "90% within")
    print_table(["means", "n", *columns], rows, title="steps and tokens of an episode")
    say(f"cost of all: ${fsum(result.cost for result in results):.2f}")


def curve(results: Sequence[Result], budgets: Sequence[int], protocol: Protocol) -> None:
    """Print a table of the success within so many turns, where done alone can succeed. The agent is not told
    its budget, so an episode of the largest one shows what it would have done with less."""
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
