"""The records that flow through minirl, in the order in which they are made, and the protocols of the rooms.

    Task -> (episode) -> Trajectory of Turns -> Group -> rows -> loss -> weights -> sampler

Records are frozen; later stages derive new ones (`dataclasses.replace`). Token ids are plain tuples, so that
records can be compared, dumped and read back.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, Frame, Page
    from torch import Tensor

    from minirl.config import BrowserConfig
    from minirl.context import ChatFormat, UserMessage
    from minirl.distributed import Ranks
    from minirl.episode import Harness


Ids = tuple[int, ...]  # of tokens
Json = dict[str, Any]  # an object of JSON
Fields = Mapping[str, Any]  # values by name, read-only
Feedback = tuple[str, ...]  # what an agent is told: a line for each of its calls
Point = tuple[float, float]  # x and y in the page's pixels
Message = tuple[str, tuple[str | bytes, ...]]  # of a chat: the role, and texts and PNG bytes in their order


class Stop(Enum):
    """How an episode ended; minirl/rewards.py may later make it JUDGE_ERROR or BLOCKED."""

    DONE = "done"  # the agent's final call, or the page or the record ended it
    MAX_STEPS = "max_steps"
    FORMAT_ERROR = "format_error"  # `agent.format_errors` unreadable responses in a row
    REPEATED = "repeated"  # `agent.repeats` equal responses in a row
    LENGTH = "length"  # a response hit its token limit, or the prompt the context limit
    TIMEOUT = "timeout"  # the episode's deadline passed
    SAMPLER_ERROR = "sampler_error"  # the sampler refused or failed this request
    ENV_ERROR = "env_error"  # the page or the renderer failed (crash, hang)
    SITE_ERROR = "site_error"  # the task's first page did not open
    BLOCKED = "blocked"  # it failed, and ended on a bot wall
    INFRA_ERROR = "infra_error"  # no browser was free in time, it died, or minirl has a bug
    JUDGE_ERROR = "judge_error"  # there is no verdict

    @property
    def is_agent_fault(self) -> bool:
        """Return True if the ending says something about the policy; all others make a trajectory invalid."""
        return self in (Stop.DONE, Stop.MAX_STEPS, Stop.FORMAT_ERROR, Stop.REPEATED, Stop.LENGTH)


ROUNDING = 1e-6  # what rewards that are meant to be equal may differ by, as 0.1 + 0.2 and 0.3
# The endings after which an episode can succeed, by `reward.after`
GRADED = {"done": (Stop.DONE,), "any": tuple(stop for stop in Stop if stop.is_agent_fault)}


@dataclass(frozen=True)
class Task:
    """One thing to do on one site. `goal` is its Benchmark's; on generated sites a page and a state of it:

    >>> Task("shop-0-17", "Order 2 red mugs", "http://shop-0.test/",
    ...      {"page": "DONE", "where": [{"path": "$.colour", "cond": "eq", "value": "red"}]}).id
    'shop-0-17'
    """

    id: str
    instruction: str
    start_url: str
    goal: Fields = field(default_factory=dict)
    meta: Fields = field(default_factory=dict)  # benchmark, site, difficulty, ...

    @property
    def host(self) -> str:
        """Return the first page's host, "" if there is none."""
        return urlsplit(self.start_url).hostname or ""

    @property
    def site(self) -> str:
        """Return the site that the meta names, or the first page's host."""
        return str(self.meta.get("site") or self.host)


@dataclass(frozen=True)
class Call:
    """One tool call as parsed: `Call("click", {"point_2d": [500, 120]})`, coordinates 0-1000."""

    name: str
    arguments: Fields = field(default_factory=dict)
    problem: str = ""  # why it can't be read, if it can't


@dataclass(frozen=True)
class Parsed:
    """A response as the agent's `parse` understood it."""

    thought: str = ""
    calls: tuple[Call, ...] = ()
    error: str | None = None  # the line that the model is shown
    kind: str = ""  # of the error, by which metrics count it


@dataclass(frozen=True)
class Observation:
    """What the agent sees: `text` (tabs, URL) stays in the history, the visual agent's `image` (PNG) or the
    text agent's `page_text` (simplified HTML) only in the newest turns."""

    text: str
    image: bytes | None = None
    page_text: str = ""
    url: str = ""
    state: str = ""  # of the page, as its benchmark names it, if credit is given by states


@dataclass(frozen=True)
class Prompt:
    """What the sampler reads: ids with a run of image pads for each of `images`, which are PNG bytes. The
    first `shared` ids are the beginning of the trajectory's prefix; the rest is this turn's suffix.

    >>> p = Prompt((1, 2, 3, 9, 9, 4), shared=3, images=(b"png",))  # 9 is the image pad
    >>> p.ids[:p.shared], p.ids[p.shared:]
    ((1, 2, 3), (9, 9, 4))
    """

    ids: Ids
    shared: int
    images: tuple[bytes, ...] = ()
    messages: tuple[Message, ...] = ()  # the same for a served model, as chat messages


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn: temperature 0 takes the most probable one, top_k 0 is no limit. Training draws
    from the whole distribution, because its log-probs are what the loss normalises."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0


@dataclass(frozen=True)
class Request:
    """One prompt for the sampler. The seed is its own, so the response does not depend on other requests."""

    prompt: Prompt
    seed: int
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    seconds: float = 120.0  # that the response may take, in training too (OpenWebRL, table 8)


@dataclass(frozen=True)
class Sample:
    """What the sampler returns for one request. `logprobs[i]` is that of `ids[i]` under the distribution that
    was sampled (temperature and suppressed tokens applied). The end token is in `ids` if it was sampled."""

    ids: Ids
    logprobs: tuple[float, ...]
    finish: str  # "stop" (end token sampled) or "length" (token limit hit)
    version: int = 0  # how many weight syncs the sampler had seen
    cached: int = 0  # tokens of the prompt that the sampler did not compute again
    text: str | None = None  # a served model's response; it gives neither ids nor log-probs
    counted: tuple[int, int] = (0, 0)  # tokens of prompt and response, as the served model counts them


@dataclass(frozen=True)
class Turn:
    """One prompt, one sampled response, and what came of it.

    The prompt is `prefix[:shared] + suffix`, where `prefix` is the trajectory's; only `response_ids` are ever
    trained on. With prefix (1, 2, 3, 5, 6) and

        Turn(shared=3, suffix=(9, 9, 4), response_ids=(7, 2), logprobs=(-0.1, -0.7), ...)

    the model read 1 2 3 9 9 4 and wrote 7 2: the row is 1 2 3 9 9 4 7 2, and the loss covers the last two.
    """

    shared: int
    suffix: Ids
    response_ids: Ids  # none if a served model wrote it, and then there is no suffix either
    logprobs: tuple[float, ...]
    text: str  # the decoded response; where there are ids, never tokenised again for reinforcement
    images: tuple[str, ...] = ()  # the prompt's, by content hash
    parsed: Parsed = field(default_factory=Parsed)
    feedback: Feedback = ()  # one line per call
    observation: str = ""  # the texts of what the agent saw before responding
    page_text: str = ""
    url: str = ""
    state: str = ""  # as in Observation
    advantage: float | None = None  # its own, if turns do not share their trajectory's
    finish: str = "stop"  # these three as in Sample
    version: int = 0
    counted: tuple[int, int] = (0, 0)
    seconds: Mapping[str, float] = field(default_factory=dict)  # by phase: sample, act, observe
    trained: bool = True  # False: history of a public record, which is shown but not trained on

    @property
    def context_tokens(self) -> int:
        """Return how many ids prompt and response have; the last turn's are the whole conversation's."""
        return self.shared + len(self.suffix) + len(self.response_ids)


@dataclass(frozen=True)
class Verdict:
    """A judge's decision about a trajectory; `success` is None if there is none, and `error` tells why."""

    success: bool | None
    rationale: str = ""
    error: str = ""


@dataclass(frozen=True)
class Score:
    """The value that a task's own rules give a finished episode."""

    value: float | None  # 0 to 1; None: they can't tell, and the episode must not count
    details: Fields = field(default_factory=dict)  # the evidence, for people and reports


@dataclass(frozen=True)
class Trajectory:
    """One episode: the turns, how it ended, and what it was worth."""

    task: Task
    member: int  # which of the group's G episodes this is
    prefix: Ids = ()
    turns: tuple[Turn, ...] = ()
    stop: Stop = Stop.DONE
    answer: str = ""
    success: bool = False
    reward: float = 0.0
    error: str = ""  # the reason behind an invalid ending; of a bug, its traceback
    final_state: Fields = field(default_factory=dict)  # the score's details
    verdict: Verdict | None = None  # the judge's, if one was asked
    final_image: str = ""  # hash of the screenshot after the last action
    blocked: str = ""  # the sign that the last page is a bot wall (minirl/browser/blocked.js), if it is
    seconds: float = 0.0
    dollars: float = 0.0  # what served models have charged for it, a judge among them
    group: int | None = None  # index of its GRPO group in the step
    advantage: float | None = None  # group-relative

    @property
    def valid(self) -> bool:
        return self.stop.is_agent_fault and len(self.turns) > 0

    @property
    def response_tokens(self) -> int:
        return sum(len(turn.response_ids) for turn in self.turns)

    def prompt_ids(self, t: int) -> Ids:
        """Return the ids that turn `t` was sampled from."""
        return self.prefix[: self.turns[t].shared] + self.turns[t].suffix


# One task's episodes. Those that are not `valid` have left; with `--reward.invalid mask` they count as a 0
Group = tuple[Trajectory, ...]


class ToolFailure(Exception):
    """A call could not be carried out; the message is for the agent, and the episode goes on."""


class PageHangs(ToolFailure):
    """A call did not come back in time."""


class BrowserFault(Exception):
    """Something that is not the agent's fault has spoiled the episode, which ends with `stop`."""

    def __init__(self, stop: Stop, message: str):
        super().__init__(message)
        self.stop = stop


class SamplerError(Exception):
    """The sampler refused or failed a request; the episode that asked ends with Stop.SAMPLER_ERROR."""


class RunEnds(ValueError):
    """Nothing more can be collected, as of a sampler that died; raised between updates, on all ranks. An
    episode that raises it ends the run there."""


Tokenizer = Any  # a transformers tokenizer, whose own annotations leave its answers' types open
Judge = Callable[[Trajectory], Awaitable[Verdict]]  # minirl/judges/; a failure has success None


class ImageStore(Protocol):  # of screenshots, by content hash
    def get(self, name: str, /) -> bytes: ...


class Sampler(Protocol):
    """Draws responses: minirl/samplers/."""

    failure: str  # why it can't go on, "" while it can

    async def generate(self, request: Request) -> Sample: ...
    async def idle(self) -> None: ...  # wait until cancelled requests are no longer decoded
    def sleep(self) -> None: ...  # free the memory that an update needs, until `sync`
    def sync(self, weights: Iterable[tuple[str, "Tensor"]]) -> None: ...  # by Hugging Face name
    def close(self) -> None: ...


class Session(Protocol):
    """One episode's browser, in which agents act and which benchmarks read: minirl/browser/session.py."""

    config: "BrowserConfig"
    context: "BrowserContext"  # Playwright's, with all tabs
    page: "Page"  # Playwright's: the current tab
    guard: Any  # which addresses it may open, and where they are: minirl/browser/access.py
    news: list[str]  # what happened by itself, a sentence each
    scale: float  # pixels of a screenshot for one of the page's
    seen: bytes | str  # the page as the agent has seen it last, until an action has settled
    answer: bool | None  # whether dialogs are accepted; None: as usual
    look: Any  # how an agent that reads pages sees them: awaited, it returns a text
    unseen: bytes  # a screenshot, taken to see what an action changed, for the next observation

    @property
    def width(self) -> int: ...  # of the current tab, in pixels
    @property
    def height(self) -> int: ...

    # awaits a call of Playwright's, with a time limit; raises ToolFailure or BrowserFault
    async def do(self, work: Awaitable[Any], seconds: float | None = None) -> Any: ...
    async def start(self, url: str) -> None: ...  # opens the task's first page
    async def goto(self, url: str) -> int: ...  # returns the HTTP status, or 0
    async def travel(self, step: int) -> None: ...  # -1 back, 1 forward; ToolFailure if there is nothing
    async def pace(self) -> None: ...  # waits for the next turn on the page's host
    async def arm(self, point: Point | None) -> Any: ...  # before an action; returns what is there
    async def settle(self, quiet: bool = False) -> Any: ...  # after it: what has changed
    # returns the innermost frame at a point, or with the focus, and a script's answer from there
    async def ask(self, name: str, point: Point | None = None, *rest: Any) -> tuple["Frame", Any]: ...
    async def press(self, key: str) -> None: ...
    async def revive(self) -> None: ...  # stops what makes the page hang
    async def screenshot(self) -> bytes: ...  # PNG
    async def tabs(self) -> tuple[list[tuple[str, str]], int]: ...  # URLs and titles, and the current one's
    async def new_tab(self) -> int: ...
    async def switch_tab(self, index: int) -> None: ...
    async def close_tab(self) -> int: ...
    def take_news(self) -> list[str]: ...
    async def blocked(self) -> str: ...  # why the page keeps visitors out, or ""


class Browsers(Protocol):  # opens an episode's session, its pages of a size if one is given
    def session(self, size: tuple[int, int] | None = None) -> AbstractAsyncContextManager[Session]: ...


class Hosts(Protocol):
    """Leaves out the sites whose first pages fail: minirl/browser/host_backoff.py."""

    def note(self, trajectory: Trajectory) -> None: ...
    def agree(self, ranks: "Ranks") -> list[str]: ...  # all ranks call it; returns lines for the user
    def left_out(self, task: Task) -> bool: ...


PolicyFn = Callable[[int, Prompt, Session], Awaitable[Sample]]  # answers turn t; a script reads the page, too


class Agent(Protocol):
    """What an agent observes, writes and does: minirl/agents/."""

    system: str
    message_format: "ChatFormat | None"  # in place of the model's own
    final_call: tuple[str, str]  # the name of the call that ends an episode, and of its argument: the answer

    # the n-th message to the model; the feedback is on the last turn
    def user_message(
        self, n: int, instruction: str, observation: Observation, feedback: Feedback
    ) -> "UserMessage": ...
    async def observe(self, session: Session) -> Observation: ...
    def parse(self, text: str) -> Parsed: ...
    async def act(self, session: Session, call: Call) -> str: ...  # returns a line of feedback
    def history(self, task: Task) -> Sequence[str]: ...  # the responses before a recorded step
    def visible_feedback(self, parsed: Parsed, feedback: Feedback) -> Feedback: ...


class Benchmark(Protocol):
    """What a family of tasks brings along: how an episode begins, and what it was worth."""

    judged: bool  # the judge scores these tasks, and `score` is never asked
    recorded: bool  # an episode is one turn, nothing is carried out, and `score` reads the whole response

    def identity(self, task: Task) -> set[tuple[str, ...]]: ...  # two tasks that share a name are the same
    def missing(self, task: Task) -> list[str]: ...  # unset environment variables that it needs
    def places(self, task: Task) -> set[tuple[str, int]]: ...  # hosts and ports of its own
    def folders(self) -> dict[str, Path]: ...  # of pages that are served here, by host
    def needs_judge(self, task: Task) -> bool: ...  # if scoring takes a language model
    def session(self, harness: "Harness", task: Task) -> AbstractAsyncContextManager[Session]: ...
    async def prepare(self, session: Session, task: Task) -> None: ...  # logs in, between first page and look
    async def has_ended(self, session: Session, task: Task) -> bool: ...  # if the page has ended the episode
    async def score(self, task: Task, session: Session, answer: str) -> Score: ...  # by page and answer
    async def state(self, session: Session) -> str: ...  # names the page's state; "": use address and looks
