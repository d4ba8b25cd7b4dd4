"""The named protocols under which benchmarks are evaluated: what is sampled, who judges, and what counts.

Stands before an evaluation, which takes its settings from here, and after it, when
minirl/evaluation/results.py counts.
Every benchmark has two protocols:

    NAME-official          the benchmark's own judge; every task counts, an aborted one as a failure
    NAME-without-aborted   greedy sampling and GPT-4.1 as the judge; aborted episodes are left out

OpenWebRL, section 4 and appendices A.6 (table 8) and B; AutoWebWorld, section 5.1; WebAgent-R1, section 4.1
and its released evaluation. A comment says where a figure is not from a paper, or where none has one.

Deviation: OpenWebRL calls blocked pages aborted too, and does not say how they are recognised. Here an
episode is aborted by how it ended (`Stop`), so an agent that gives up before a block page has failed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from minirl.types import Sampling, Stop, Task

# What the judge reads. All but the last two see the task and the final answer, and ...
Input = Literal[
    "openwebrl",  # the actions with the environment's feedback, and the last screenshots by step
    "webvoyager",  # the last screenshots
    "agenttrek",  # thoughts and actions, and the final screenshot
    "deepshop",  # the last screenshots
    "trace",  # the instruction and the interaction trace
    "rules",  # the final page, its address and the answer; a program reads them, a model only if a task asks
]
# How the judge's words become a verdict
Parser = Literal[
    "not-success-first",  # "NOT SUCCESS" anywhere is a failure, else "SUCCESS" anywhere is one
    "verdict-line",  # a line of its own says SUCCESS or NOT SUCCESS
    "status",  # "success" after "status:"
    "structured",  # JSON with the fields thought and verdict
    "rules",  # nothing to parse: a score, 0 or 1
]
# Longest response of a judge that reasons before it answers: the server counts its reasoning, too. Ours.
REASONING_TOKENS = 16_384
# The parsers that can read what the prompt of an input asks for
READABLE: Mapping[Input, tuple[Parser, ...]] = {
    "openwebrl": ("verdict-line", "not-success-first"),
    "webvoyager": ("not-success-first", "verdict-line"),
    "agenttrek": ("status",),
    "deepshop": ("structured",),
    "trace": ("verdict-line", "not-success-first"),
    "rules": ("rules",),
}
BY_DONE = (Stop.DONE,)
BY_AGENT = tuple(stop for stop in Stop if stop.is_agent_fault)


@dataclass(frozen=True)
class Judge:
    """Who decides: what of a JudgeConfig belongs to the benchmark. `temperature` None: not stated, or the
    model has none; then it is not sent."""

    model: str
    input: Input
    parser: Parser
    screenshots: int
    temperature: float | None = None
    seconds: float = 120.0
    response_tokens: int = 1024


@dataclass(frozen=True)
class Protocol:
    """One way to evaluate on one benchmark. Limits are per episode unless they say otherwise."""

    name: str
    benchmark: str  # as in a task's meta
    tasks: int  # how many the benchmark has
    aborted: Literal["fail", "leave out"]
    sampling: Sampling
    judge: Judge
    max_steps: int
    sites: tuple[str, ...] = ()  # only tasks of these; () is all
    average: Literal["micro", "macro"] = "micro"  # every episode weighs the same, or every site
    succeeds_by: tuple[Stop, ...] = BY_DONE  # after any other ending there is no success
    response_tokens: int = 4096
    context_tokens: int = 32768
    screenshots: int = 1  # the newest, in the agent's prompt
    browsers: int = 16  # at once, of all ranks together
    request_seconds: float = 120.0  # of one response of the agent
    episode_seconds: float = 600.0

    @property
    def rule(self) -> str:
        """What counts, in words for people."""
        aborted = ", ".join(stop.value for stop in Stop if not stop.is_agent_fault)
        who = (
            "one that the agent ended with done"
            if self.succeeds_by == BY_DONE
            else "one that was not aborted"
        )
        rule = f"Every episode counts, only {who} can succeed, and an aborted one ({aborted}) is a failure."
        if self.aborted == "leave out":
            rule = (
                f"An aborted episode ({aborted}) is left out of successes and episodes, "
                f"and of the others only {who} can succeed."
            )
        if self.average == "macro":
            rule += " The rate is the mean of the rates of all sites that have an episode left."
        return rule

    def counts(self, stop: Stop) -> bool:
        """Whether an episode that ended so is in the denominator."""
        return self.aborted == "fail" or stop.is_agent_fault

    def select(self, tasks: Sequence[Task]) -> list[Task]:
        """The tasks that the protocol evaluates. ValueError if there are none."""
        own = [task for task in tasks if task.meta.get("benchmark") == self.benchmark]
        own = [task for task in own if not self.sites or task.meta.get("site") in self.sites]
        if not own:
            where = f" on {', '.join(self.sites)}" if self.sites else ""
            raise ValueError(f"protocol {self.name} needs tasks of the benchmark {self.benchmark}{where}")
        return own


def protocol_of(name: str) -> Protocol:
    """ValueError names the protocols that there are."""
    found = [protocol for protocol in PROTOCOLS if protocol.name == name]
    if not found:
        raise ValueError(f"no protocol {name!r}; there are {', '.join(p.name for p in PROTOCOLS)}")
    return found[0]


# ---- OpenWebRL: table 8 ----------------------------------------------------------------------------

OFFICIAL = Sampling(temperature=0.6, top_p=0.95, top_k=20)
GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=1)
# Three screenshots: table 8. The released code sends no temperature and tests for NOT SUCCESS anywhere
# (appendix A.4), which a rationale that quotes the words upsets; ours must end in a line with the verdict.
GPT_41 = Judge("gpt-4.1", input="openwebrl", parser="verdict-line", screenshots=3)

# Table 8 shows a judge three screenshots, whichever it is. FARA's own harness shows WebVoyager's the last 30,
# and WebVoyager's own the last one. Temperature 0: WebVoyager's own script; the paper does not say.
WEBVOYAGER = Protocol(
    name="webvoyager-official",
    benchmark="webvoyager",
    tasks=595,  # FARA's
    aborted="fail",
    sampling=OFFICIAL,
    judge=Judge("gpt-4o", input="webvoyager", parser="not-success-first", screenshots=3, temperature=0.0),
    max_steps=30,
)

# AgentTrek's judge sees the final screenshot alone, so table 8's three can't be meant.
ONLINE_MIND2WEB = Protocol(
    name="online-mind2web-official",
    benchmark="online-mind2web",
    tasks=300,
    aborted="fail",
    sampling=OFFICIAL,
    judge=Judge(
        "o4-mini", input="agenttrek", parser="status", screenshots=1, response_tokens=REASONING_TOKENS
    ),
    max_steps=30,
)

# Molmo-Web's judge. The number of screenshots is table 8's; the temperature is the released evaluator's.
DEEPSHOP = Protocol(
    name="deepshop-official",
    benchmark="deepshop",
    tasks=150,
    aborted="fail",
    sampling=OFFICIAL,
    judge=Judge("gpt-4o", input="deepshop", parser="structured", screenshots=3, temperature=0.0),
    max_steps=30,
)

# ---- WebAgent-R1: WebArena-Lite --------------------------------------------------------------------

# Sampling, response limit and steps are the released evaluation's, the context is the paper's. The model is
# asked for tasks with fuzzy_match only, 40 of 165. An episode that runs out of steps is scored like others,
# by the page and the answer that it has. Table 2's average is over tasks (74 of 165 are its 44.8); ten are on
# several sites and in no column. No source has the number of browsers, the longest time of a response or of
# an episode, or what a lost browser counts: here as in OpenWebRL. A text agent sees no screenshots.
WEBARENA_LITE = Protocol(
    name="webarena-lite-official",
    benchmark="webarena-lite",
    tasks=165,
    aborted="fail",
    sampling=Sampling(temperature=1.0, top_p=0.9),
    judge=Judge("gpt-4-1106-preview", input="rules", parser="rules", screenshots=0, temperature=0.0),
    max_steps=30,
    succeeds_by=BY_AGENT,
    response_tokens=2048,
    context_tokens=16384,
    screenshots=0,
)

# ---- AutoWebWorld: WebVoyager on nine sites --------------------------------------------------------

NINE_SITES = (
    "Apple",
    "ArXiv",
    "BBC News",
    "Cambridge Dictionary",
    "Coursera",
    "Google Flights",
    "Google Map",
    "Huggingface",
    "Wolfram Alpha",
)
# Section 5.1 has the steps, the judge, what it reads, the current screenshot and the nine sites; table 3's
# columns name them, and its overall rates are plain means of the columns (27.42 is 246.81 / 9). Which edition
# of the tasks is not stated, but the rates fit FARA's: 7.32 on Google Flights is 3 of 41. Not stated either:
# the sampling (here OpenWebRL's greedy one), response and context limits, time limits, browsers, how the
# judge's words are parsed, whether the trace has screenshots, and what an aborted task counts (a failure).
# The limit is 15 actions; here it is 15 turns, in each of which OpenWebRL's agent may do several things.
AUTOWEBWORLD = Protocol(
    name="autowebworld-official",
    benchmark="webvoyager",
    tasks=353,  # FARA's, on these sites
    aborted="fail",
    sampling=GREEDY,
    judge=Judge(
        "gemini-3-flash",
        input="trace",
        parser="verdict-line",
        screenshots=0,
        response_tokens=REASONING_TOKENS,
    ),
    max_steps=15,
    sites=NINE_SITES,
    average="macro",
)

# ---- Without aborted tasks -------------------------------------------------------------------------


def _without_aborted(official: Protocol) -> Protocol:
    """OpenWebRL's second metric, which the paper has for its own three benchmarks; for the others it is ours.
    Where a program decides it goes on doing so: GPT-4.1 then only answers what the program asks."""
    judge = replace(official.judge, model=GPT_41.model) if official.judge.input == "rules" else GPT_41
    name = official.name.removesuffix("-official") + "-without-aborted"
    return replace(official, name=name, aborted="leave out", sampling=GREEDY, judge=judge)


_OFFICIAL = (WEBVOYAGER, ONLINE_MIND2WEB, DEEPSHOP, WEBARENA_LITE, AUTOWEBWORLD)
PROTOCOLS = tuple(protocol for official in _OFFICIAL for protocol in (official, _without_aborted(official)))
