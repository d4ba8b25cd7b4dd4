"""What finished episodes are like: how the agent reasons, and why it fails.

    trajectories --> rows of numbers --> metrics.jsonl --> the report's curves

Stands behind the loop; nothing here is trained on. (Turns and lengths over training are minirl/metrics.py's.)
OpenWebRL, section 5.2 and appendix D: four families of phrases in a response's reasoning show what it does
with its words, and how often and at what length that happens says more than the mean length. Appendix E: why
episodes fail. Pure functions.

Deviations: the paper's patterns are not in its text, so these were written anew from the phrases of its table
10, and their rates are comparable with each other, not with the paper's. The paper's error categories were
given by hand to 100 episodes; here rules give them, from how the episode stopped, what the browser reported
and what the judge said.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Literal

from minirl.metrics import percentile
from minirl.types import Stop, Trajectory, Turn, Verdict

# --- what a response does with its words -----------------------------------------------------------------

# A requirement as a task states it, and the word that it is met by something: within one sentence, a proof
_CONSTRAINT = (
    r"(?:\b(?:under|below|over|above|less than|more than|at least|at most|up to) [$€£]?\d"
    r"|\bwithin \d+ ?(?:miles?|km|minutes?|hours?|days?)\b|[$€£] ?\d|\d ?stars?\b"
    r"|\bgluten[- ]free\b|\bvegan\b|\bvegetarian\b|\bnon-?stop\b|\bfree shipping\b|\bin stock\b)"
)
_MET = r"\b(?:meets?|satisf(?:y|ies|ied)|fulfil(?:s|ls|led)?|matche?s?|confirms?|verif(?:y|ies)|which is)\b"
_WITHIN = r"(?:[^.!?\n]|\.\d){0,200}"
_DEMANDS = r"(?:requirements?|criteria|criterion|conditions?|constraints?)"

PATTERNS: Mapping[str, tuple[str, ...]] = {
    "history": (
        r"\b(?:I|we)(?:['’]ve| have)?(?: already| previously| also)? (?:tried|attempted)\b",
        r"\b(?:I|we)(?:['’]ve| have| already)(?: already)? (?:checked|visited|searched|looked)\b",
        r"\b(?:previous|earlier|past|prior) (?:attempts?|tries|steps?|actions?|searches)\b",
        r"\bso far\b",
        r"\b(?:multiple|several|many|various|different) (?:approaches|attempts|ways|sources|times)\b",
        r"\ball (?:of )?(?:these |the )?(?:sources|attempts|approaches|options)(?: have)? failed\b",
    ),
    "blocker": (
        r"captchas?\b|\bcloudflare\b|\bforbidden\b|\b(?:error|status|HTTP) 403\b|\b403 error\b",
        r"\baccess (?:is |was |has been )?(?:denied|blocked|restricted)\b",
        r"\bverification (?:is |page|required|check|challenge)",
        r"\bverify (?:that )?(?:you|I)(?: are| am|['’]re|['’]m) (?:a )?(?:human|not a robot)\b",
        r"\banti-?(?:bot|automation|scraping)\b|\bbot (?:detection|protection)\b",
        r"\bautomated (?:access|traffic|requests?|queries)\b",
        r"\b(?:can(?:no|['’])t|unable to|not able to) (?:solve|bypass|pass|complete) (?:the |this )?"
        r"(?:verification|challenge|puzzle)\b",
    ),
    "retry": (
        r"\bone (?:more|final|last) (?:approach|try|attempt|time|search|option)\b",
        r"\b(?:try|use|attempt) (?:a |an |the |some )?(?:different|another|alternative|new) \w+",
        r"\balternative (?:sources?|approach(?:es)?|sites?|websites?|ways?|methods?|routes?)\b",
        r"\b(?:go|going|navigate|return|head) back\b",
        r"\b(?:search|navigate|go|look|visit)(?:ing)? (?:\w+ ){0,3}directly\b",
        r"\blet(?: me|['’]s) (?:reconsider|rethink|start over)\b|\btry again\b",
    ),
    "proof": (
        r"\b(?:meets?|satisf(?:y|ies)|fulfil(?:s|ls)?) (?:all |both |each |every |any )?(?:of )?"
        r"(?:the |these |those |my |its |your )?(?:\w+ )?" + _DEMANDS + r"\b",
        rf"\ball (?:of )?(?:the )?{_DEMANDS} (?:are |were |have been )?(?:met|satisfied|fulfilled)\b",
        rf"\b(?:first|second|third|next|last|final) {_DEMANDS}\b",
        rf"{_CONSTRAINT}{_WITHIN}{_MET}|{_MET}{_WITHIN}{_CONSTRAINT}",
    ),
}
PROXIES = {name: re.compile("|".join(patterns), re.IGNORECASE) for name, patterns in PATTERNS.items()}


@dataclass(frozen=True)
class ProxyRow:
    """How many turns match a family of phrases, and how long these are in tokens. `rate` is None if there are
    no turns, `mean` and `p90` if none of the matching ones has token ids."""

    name: str
    turns: int
    rate: float | None
    mean: float | None
    p90: float | None


def proxies_of(turn: Turn) -> frozenset[str]:
    """The families that a response's reasoning matches: what it says before its first call. Several may.

    >>> sorted(proxies_of(Turn(0, (), (), (), "I have tried the search. Let me go back.</think>")))
    ['history', 'retry']
    """
    reasoning = turn.text.partition("<tool_call>")[0]
    return frozenset(name for name, pattern in PROXIES.items() if pattern.search(reasoning))


def proxy_rows(trajectories: Sequence[Trajectory]) -> list[ProxyRow]:
    """Of all turns: one row for each family, one for the turns that match any, one for those that match none,
    and one for all."""
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    found = [(proxies_of(turn), len(turn.response_ids)) for turn in turns]

    def row(name: str, lengths: Sequence[int]) -> ProxyRow:
        known = [length for length in lengths if length]  # what a served model said has no ids
        return ProxyRow(
            name,
            len(lengths),
            rate=len(lengths) / len(turns) if turns else None,
            mean=mean(known) if known else None,
            p90=percentile(known, 0.9) if known else None,
        )

    rows = [row(name, [length for names, length in found if name in names]) for name in PROXIES]
    rows.append(row("any", [length for names, length in found if names]))
    rows.append(row("none", [length for names, length in found if not names]))
    return [*rows, row("all", [length for _, length in found])]


# --- why episodes fail -------------------------------------------------------------------------------------

Category = Literal["access", "grounding", "reasoning", "evaluation", "form"]

# Figure 9: the share of each in 100 failures on Online-Mind2Web
PAPER_SHARES: Mapping[Category, float] = {
    "access": 0.51,
    "reasoning": 0.27,
    "grounding": 0.13,
    "evaluation": 0.09,
}
MISSES = 1 / 3  # of an episode's calls: from here on it is called a failure of grounding

_MISSED = re.compile(
    r"\bfailed, |Nothing on the page changed\.|did not move \w+;|which differs from what was typed"
)


@dataclass(frozen=True)
class ErrorRow:
    """How many failures are of one category, their share of all failures, and the paper's."""

    category: Category
    count: int
    share: float
    paper: float | None


def category_of(trajectory: Trajectory, verdict: Verdict | None = None) -> Category | None:
    """Why an episode failed; None if it did not, or was only cut off at the end of a batch.

    access      the browser, the site or its guards, or our own sampler: something did not open, crashed, took
                too long, or the agent ended on a blocker (the last response or the answer names one)
    evaluation  no verdict could be had, or the judge denies what `trajectory.success` affirms
    form        responses that could not be read, or were cut off (the paper has no such category)
    grounding   a third of the calls or more failed or changed nothing
    reasoning   everything else: the agent acted well, and did the wrong things or too few of them
    """
    if trajectory.success:
        return "evaluation" if verdict is not None and verdict.success is False else None
    if trajectory.stop is Stop.CANCELLED:
        return None
    if trajectory.stop is Stop.JUDGE_ERROR or (verdict is not None and verdict.success is None):
        return "evaluation"
    said = trajectory.answer + "\n" + (trajectory.turns[-1].text if trajectory.turns else "")
    if not trajectory.stop.is_agent_fault or PROXIES["blocker"].search(said):
        return "access"
    if trajectory.stop in (Stop.FORMAT_ERROR, Stop.LENGTH):
        return "form"
    told = [line for turn in trajectory.turns if not turn.parsed.error for line in turn.feedback]
    missed = sum(bool(_MISSED.search(line)) for line in told)
    return "grounding" if told and missed / len(told) >= MISSES else "reasoning"


def error_rows(trajectories: Sequence[Trajectory], verdicts: Sequence[Verdict | None] = ()) -> list[ErrorRow]:
    """The categories of all failures, the most frequent first. `verdicts` belong to the trajectories one by
    one, or are left out."""
    assert len(verdicts) in (0, len(trajectories)), (len(verdicts), len(trajectories))
    paired = zip(trajectories, verdicts or [None] * len(trajectories), strict=True)
    found = Counter(category for t, v in paired if (category := category_of(t, v)) is not None)
    return [
        ErrorRow(category, count, count / found.total(), PAPER_SHARES.get(category))
        for category, count in found.most_common()
    ]


def step_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Of a training step, as metrics.jsonl has it and the report draws it: the share of turns that each
    family of phrases matches, mean and 90th percentile of their tokens (figure 3c), of turns that match
    none, too, and how many episodes failed for which reason."""
    found: dict[str, float | None] = {}
    for row in proxy_rows(trajectories):
        if row.name in PROXIES:
            found[f"proxy/{row.name}"] = row.rate
        if row.name in PROXIES or row.name == "none":
            found |= {f"proxy_mean/{row.name}": row.mean, f"proxy_p90/{row.name}": row.p90}
    errors = error_rows(trajectories, [said_of(trajectory) for trajectory in trajectories])
    found |= {f"error/{row.category}": float(row.count) for row in errors}
    return {name: value for name, value in found.items() if value is not None}


def said_of(trajectory: Trajectory) -> Verdict | None:
    """The verdict that an episode was given, if a judge was asked about it."""
    if "verdict" not in trajectory.final_state:
        return None
    return Verdict(trajectory.final_state["verdict"], str(trajectory.final_state.get("rationale", "")))
