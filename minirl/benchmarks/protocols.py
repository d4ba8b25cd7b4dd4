"""The named protocols under which benchmarks are evaluated: sampling, judge, and which episodes count.

    NAME-official          the benchmark's own judge; every task counts, an aborted one as a failure
    NAME-without-aborted   greedy sampling and GPT-4.1 as the judge; aborted episodes are left out

OpenWebRL, section 5 and appendices A.6 (table 8) and B; AutoWebWorld, sections 5.1, 5.2.2 and 5.5;
WebAgent-R1, section 3.1 and its released evaluation: protocols.toml has their figures. As in OpenWebRL
blocked pages are aborted: an episode that failed before one ends as `blocked`. How the paper tells them is
not stated; here it is by what the last page is like (minirl/browser/blocked.js), never by the agent's words.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

from pydantic import TypeAdapter

from minirl.config import Config, JudgeConfig
from minirl.package_files import table_of
from minirl.types import Sampling, Stop, Task

# What a judge's settings have from the benchmark; where it is served is the user's affair.
JUDGE = ("model", "input", "seconds", "response_tokens")
GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=1)


@dataclass(frozen=True)
class Protocol:
    name: str
    benchmark: str  # as in a task's meta
    max_steps: int
    sampling: Sampling = GREEDY
    judge: JudgeConfig = JudgeConfig(input="rules")
    aborted: Literal["fail", "leave out"] = "fail"
    sites: tuple[str, ...] = ()  # only tasks of these; () is all
    average: Literal["micro", "macro", "kinds"] = "micro"
    """Every episode weighs the same; or every site; or every kind, as ScreenSpot's text and icon."""
    after: Literal["done", "any"] = "done"  # the endings that can be a success, as `reward.after`
    response_tokens: int = 4096
    format_errors: int | None = None  # as `agent.format_errors`; None: the run's
    browsers: int = 16  # at once
    request_seconds: float = 120.0  # of one response of the agent
    episode_seconds: float = 600.0

    @property
    def rule(self) -> str:
        aborted = ", ".join(stop.value for stop in Stop if not stop.is_agent_fault)
        fate = "a failure" if self.aborted == "fail" else "left out"
        who = "that the agent ended with done" if self.after == "done" else "that was not aborted"
        rule = f"An aborted episode ({aborted}) is {fate}; only one {who} can succeed."
        if self.average != "micro":
            groups = "sites" if self.average == "macro" else "kinds"
            rule += f" The rate is the mean of the rates of all {groups} that have an episode left."
        return rule

    def counts(self, stop: Stop) -> bool:
        return self.aborted == "fail" or stop.is_agent_fault

    def select(self, tasks: Sequence[Task]) -> list[Task]:
        """Return the tasks that the protocol evaluates. ValueError if there are none."""
        chosen = [task for task in tasks if task.meta.get("benchmark") == self.benchmark]
        if self.sites:
            chosen = [task for task in chosen if task.meta.get("site") in self.sites]
        if not chosen:
            where = f" on {', '.join(self.sites)}" if self.sites else ""
            raise ValueError(f"protocol {self.name} needs tasks of the benchmark {self.benchmark}{where}")
        return chosen


# The released code sends no temperature and tests for NOT SUCCESS anywhere (appendix A.4), which a rationale
# that quotes the words upsets; here an answer must end in a line with the verdict.
GPT_41 = JudgeConfig(model="gpt-4.1", input="openwebrl")


def _without_aborted(official: Protocol) -> Protocol:
    """Return OpenWebRL's second metric. Where a program decides, GPT-4.1 answers what the program asks."""
    judge = GPT_41
    if official.judge.input == "rules":
        judge = replace(official.judge, model=GPT_41.model if official.judge.model else "")
    name = official.name.removesuffix("-official") + "-without-aborted"
    return replace(official, name=name, aborted="leave out", sampling=GREEDY, judge=judge)


_DATA = table_of("benchmarks/protocols.toml")["protocols"]
_OFFICIAL = TypeAdapter(tuple[Protocol, ...]).validate_python(_DATA)
_PAIRS = [(official, _without_aborted(official)) for official in _OFFICIAL]
PROTOCOLS = tuple(protocol for pair in _PAIRS for protocol in pair)


def protocol_of(name: str) -> Protocol:
    by_name = {protocol.name: protocol for protocol in PROTOCOLS}
    if name not in by_name:
        raise ValueError(f"no protocol {name!r}; there are {', '.join(by_name)}")
    return by_name[name]


def apply(protocol: Protocol, config: Config) -> Config:
    """Return the config under a protocol. A judge that it names stays, and the agent but for its sampling,
    its limits of a response and of turns, and `format_errors`: it sees what it was trained to see."""
    judge = {name: getattr(protocol.judge, name) for name in JUDGE}
    if config.judge.model or config.judge.path:
        judge["model"] = config.judge.model
    agent = config.agent
    if protocol.format_errors is not None:
        agent = replace(agent, format_errors=protocol.format_errors)
    limits = asdict(protocol.sampling)
    limits |= {"response_tokens": protocol.response_tokens, "max_steps": protocol.max_steps}
    return replace(
        config,
        agent=agent,
        browser=replace(config.browser, episodes=protocol.browsers, episode_seconds=protocol.episode_seconds),
        endpoint=replace(config.endpoint, seconds=protocol.request_seconds),
        eval=replace(config.eval, **limits),
        judge=replace(config.judge, **judge),
        reward=replace(config.reward, after=protocol.after),
    )
