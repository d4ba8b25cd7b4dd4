"""The records that flow through minirl, in the order in which they are made, and the protocols of the rooms.

    Task -> (episode) -> Trajectory of Turns -> Group -> rows -> loss -> weights -> sampler

Records are frozen dataclasses: the stage that owns a record makes it once, and later stages derive new ones
(`dataclasses.replace`). Token ids are plain tuples of ints, so that a record can be compared, dumped and read
back without a tensor library.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor


class Stop(Enum):
    """How an episode ended. The only place in which this is decided is the episode itself."""

    DONE = "done"  # the agent called `done`
    MAX_STEPS = "max_steps"  # the turn budget ran out
    FORMAT_ERROR = "format_error"  # `agent.format_errors` unreadable responses in a row
    REPEATED = "repeated"  # the same response again and again
    LENGTH = "length"  # a response hit its token limit, or the prompt the context limit
    TIMEOUT = "timeout"  # the episode's deadline passed
    SAMPLER_ERROR = "sampler_error"  # the sampler refused or failed this request
    ENV_ERROR = "env_error"  # the page or the renderer failed (crash, hang)
    SITE_ERROR = "site_error"  # the task's first page did not open
    INFRA_ERROR = "infra_error"  # the browser could not be had, or is gone
    JUDGE_ERROR = "judge_error"  # no verdict could be had
    CANCELLED = "cancelled"  # the batch was full before this episode ended

    @property
    def is_agent_fault(self) -> bool:
        """Return True if the ending says something about the policy. Every other ending makes a trajectory
        invalid: it leaves before means, deviations and filters are taken."""
        return self in (Stop.DONE, Stop.MAX_STEPS, Stop.FORMAT_ERROR, Stop.REPEATED, Stop.LENGTH)


BY_DONE = (Stop.DONE,)  # the endings after which an episode can succeed, mostly


@dataclass(frozen=True)
class Task:
    """One thing to do on one site.

    `goal` belongs to the verifier that the recipe chooses and means nothing to anybody else; for
    synthetic worlds it is a page and conditions on that page's state:

    >>> Task("shop-0-17", "Order 2 red mugs", "http://shop-0.test/",
    ...      {"page": "DONE", "where": [{"path": "$.colour", "cond": "eq", "value": "red"}]}).id
    'shop-0-17'
    """

    id: str
    instruction: str
    start_url: str
    goal: Mapping[str, Any] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)  # benchmark, site, difficulty, ...


@dataclass(frozen=True)
class Call:
    """One tool call as parsed: `Call("click", {"point_2d": [500, 120]})`, coordinates 0-1000."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Parsed:
    """A response as the recipe's `parse` understood it. `error` is None or the line shown to the model."""

    thought: str = ""
    calls: tuple[Call, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class Observation:
    """What the agent sees: `text` stays in the history, `image` or `page_text` only in the newest turns.

    The visual recipes fill `text` (tabs, URL) and `image` (PNG bytes); the text recipe fills
    `page_text` (simplified HTML). `url` and `title` are for people and logs.
    """

    text: str
    image: bytes | None = None
    page_text: str = ""
    url: str = ""
    title: str = ""


# A chat message: the role, and its parts in order, texts and PNG bytes
Message = tuple[str, tuple[str | bytes, ...]]


@dataclass(frozen=True)
class Prompt:
    """Exactly what the sampler reads: ids with image pads in place, and the images in their order.

    `shared` is the number of leading ids taken from the trajectory's trunk; the rest is this turn's
    branch. `images` holds PNG bytes; `len(images)` runs of image pads occur in `ids`.

    >>> p = Prompt((1, 2, 3, 9, 9, 4), shared=3, images=(b"png",))  # 9 is the image pad
    >>> p.ids[:p.shared], p.ids[p.shared:]
    ((1, 2, 3), (9, 9, 4))
    """

    ids: tuple[int, ...]
    shared: int
    images: tuple[bytes, ...] = ()
    messages: tuple[Message, ...] = ()  # the same for a served model, which is asked in chat messages


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn: softmax(logits / temperature), cut to the top k and the top p of its mass.

    Temperature 0 takes the most probable token; top_k 0 is no limit. Training draws from the whole
    distribution, because its log-probs are what the loss normalises.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0


@dataclass(frozen=True)
class Request:
    """One prompt for the sampler. The seed is the request's own, so that what is drawn does not depend on
    what else is sampled at the time."""

    prompt: Prompt
    seed: int
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)


class SamplerError(Exception):
    """The sampler refused or failed a request; the episode that asked ends with Stop.SAMPLER_ERROR."""


class SamplerDied(ValueError):
    """The sampler will not answer again, and no episode can go on; raised on all ranks at once."""


@dataclass(frozen=True)
class Sample:
    """What the sampler returns for one request.

    `logprobs[i]` is the log-probability of `ids[i]` under the distribution that was sampled
    (temperature and suppressed tokens applied). The end token is part of `ids` when it was sampled;
    nothing is appended otherwise.

    >>> Sample((7, 8, 2), (-0.1, -0.7, -0.2), "stop").finish
    'stop'
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: str  # "stop" (end token sampled) or "length" (token limit hit)
    version: int = 0  # how many weight syncs the sampler had seen
    cached: int = 0  # tokens of the prompt that the sampler did not compute again
    text: str | None = None  # what a served model said; it gives neither ids nor log-probs
    counted: tuple[int, int] = (0, 0)  # tokens of prompt and response, as the served model counts them


@dataclass(frozen=True)
class Turn:
    """One prompt, one sampled response, and what came of it.

    The prompt is `trunk[:shared] + branch`, where `trunk` is the trajectory's; only `response_ids`
    are ever trained on. With trunk (1, 2, 3, 5, 6) and

        Turn(shared=3, branch=(9, 9, 4), response_ids=(7, 2), logprobs=(-0.1, -0.7), ...)

    the model read 1 2 3 9 9 4 and said 7 2: the row is 1 2 3 9 9 4 7 2, and the loss covers the last
    two positions. `images` names the screenshots by content hash, in prompt order.
    """

    shared: int
    branch: tuple[int, ...]
    response_ids: tuple[int, ...]  # none if a served model said it, and then there is no branch either
    logprobs: tuple[float, ...]
    text: str  # the decoded response, for parsing and for people; where there are ids, never tokenised again
    images: tuple[str, ...] = ()
    parsed: Parsed = field(default_factory=Parsed)
    feedback: tuple[str, ...] = ()  # one line per call
    observation: str = ""  # the text part of what the agent saw before responding
    page_text: str = ""  # and the page, if it saw that as text
    url: str = ""
    finish: str = "stop"
    version: int = 0
    cached: int = 0
    counted: tuple[int, int] = (0, 0)  # as in Sample
    seconds: Mapping[str, float] = field(default_factory=dict)  # by phase: sample, act, observe


@dataclass(frozen=True)
class Verdict:
    """What a judge says of a trajectory: True, False, or None if no verdict could be had, and then why.

    >>> Verdict(True, "The order page shows two red mugs.").success
    True
    """

    success: bool | None
    rationale: str = ""
    error: str = ""  # why there is no verdict


@dataclass(frozen=True)
class Score:
    """What a task's own rules say of a finished episode. `value` is 0 to 1, or None if they can't tell and
    the episode must not count; `details` is what was read, for people and reports."""

    value: float | None
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Trajectory:
    """One episode: the turns, how it ended, and what it was worth."""

    task: Task
    member: int  # which of the group's G episodes this is
    trunk: tuple[int, ...] = ()
    turns: tuple[Turn, ...] = ()
    stop: Stop = Stop.DONE
    answer: str = ""
    success: bool = False
    reward: float = 0.0
    error: str = ""  # the reason behind an invalid ending, with the traceback's last line
    final_state: Mapping[str, Any] = field(default_factory=dict)  # what the verifier read
    verdict: Verdict | None = None  # the judge's, if one was asked
    final_image: str = ""  # hash of the screenshot after the last action
    seconds: float = 0.0
    dollars: float = 0.0  # what served models have charged for it, a judge among them
    # of the browser: seconds to acquire it and to start, its uptime, MB of JavaScript, requests
    diagnostics: Mapping[str, float] = field(default_factory=dict)

    @property
    def valid(self) -> bool:
        return self.stop.is_agent_fault and len(self.turns) > 0

    @property
    def response_tokens(self) -> int:
        return sum(len(turn.response_ids) for turn in self.turns)

    def prompt_ids(self, t: int) -> tuple[int, ...]:
        """Return the ids that turn `t` was sampled from."""
        return self.trunk[: self.turns[t].shared] + self.turns[t].branch


@dataclass(frozen=True)
class Group:
    """One task and its trajectories; `advantages[i]` belongs to every token of `trajectories[i]`.

    With rewards (1, 0, 0, 1), mean 0.5 and unbiased deviation 0.577, the advantages are
    (0.866, -0.866, -0.866, 0.866). A trajectory that is not `valid` is in neither statistic and has
    been removed before the group is made; with `--reward.invalid mask` it counts there as a 0, its own
    advantage is 0, and it is not trained on.
    """

    task: Task
    trajectories: tuple[Trajectory, ...]
    advantages: tuple[float, ...] = ()


# --- failures of the environment -----------------------------------------------------------------------


class ToolFailure(Exception):
    """A call could not be carried out; the message is for the agent, and the episode goes on."""


class BrowserFault(Exception):
    """The browser, the renderer or the site is gone; the episode ends with `stop`."""

    def __init__(self, stop: Stop, message: str):
        super().__init__(message)
        self.stop = stop


# --- what money is spent on -------------------------------------------------------------------------------


@dataclass
class Bill:
    """What served models have charged within one `billed()` block, in dollars."""

    dollars: float = 0.0


_BILL: ContextVar[Bill | None] = ContextVar("bill", default=None)


@contextmanager
def billed() -> Iterator[Bill]:
    """Collect what served models charge while the block runs, in this task and those it starts."""
    bill = Bill()
    token = _BILL.set(bill)
    try:
        yield bill
    finally:
        _BILL.reset(token)


def charge(dollars: float) -> None:
    """Add a served model's price to the bill of the enclosing `billed()` block, if there is one."""
    if (bill := _BILL.get()) is not None:
        bill.dollars += dollars


# --- the parts that experiment.py plugs together ------------------------------------------------------------


class ImageStore(Protocol):
    """Screenshots by content hash. A dict serves where only `get` is needed."""

    def get(self, name: str) -> bytes: ...
    def put(self, png: bytes) -> str: ...


class Sampler(Protocol):
    """Draws responses: minirl/samplers/. `failure` says why it can't go on; it is "" while it can."""

    failure: str

    async def generate(self, request: Request) -> Sample: ...
    async def idle(self) -> None: ...
    def sleep(self) -> None: ...
    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None: ...
    def close(self) -> None: ...


class Session(Protocol):
    """An episode's tabs in one browser context: minirl/browser/session.py. Agents and benchmarks use more of
    it than the core does."""

    async def start(self, url: str) -> None: ...
    def diagnostics(self) -> dict[str, float]: ...


class Browsers(Protocol):
    """Hands out sessions: minirl/browser/pool.py."""

    def session(self) -> AbstractAsyncContextManager[Any]: ...


class Agent(Protocol):
    """What an agent sees, says and does: minirl/agents/. `message_format` is a context.ChatFormat in place of
    the model's own, or None; `words` returns an observation's message as context.Words."""

    system: str
    message_format: Any

    def words(self, n: int, instruction: str, seen: Observation, feedback: tuple[str, ...]) -> Any: ...
    async def observe(self, session: Any) -> Observation: ...
    def parse(self, text: str) -> Parsed: ...
    async def act(self, session: Any, call: Call) -> str: ...
    def final_answer(self, call: Call) -> str | None: ...
    def visible_feedback(self, parsed: Parsed, feedback: tuple[str, ...]) -> tuple[str, ...]: ...


class Benchmark(Protocol):
    """What a family of tasks brings along: how an episode begins, and what it was worth.

    `judged`: the judge scores these tasks, and `score` is never asked. `identity` returns names that two
    tasks share if and only if they are the same task; `missing` the environment variables that must be set
    before the tasks can be run; `places` the hosts and ports that they live on and that may be private;
    `needs_judge` whether scoring a task takes a language model. `prepare` logs in and opens further tabs,
    between the first page and the first look; `score` reads the page that the agent has left, and its answer.
    """

    judged: bool

    def identity(self, task: Task) -> set[tuple[str, ...]]: ...
    def missing(self, tasks: Sequence[Task]) -> list[str]: ...
    def places(self, tasks: Sequence[Task]) -> set[tuple[str, int]]: ...
    def needs_judge(self, task: Task) -> bool: ...
    async def prepare(self, session: Any, task: Task) -> None: ...
    async def score(self, task: Task, session: Any, answer: str) -> Score: ...


class Judge(Protocol):
    """Reads a finished trajectory: minirl/judges/. A failure to judge is a Verdict with success None."""

    async def __call__(self, trajectory: Trajectory) -> Verdict: ...
