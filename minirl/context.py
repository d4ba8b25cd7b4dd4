"""Token-exact history: the prompt of turn t is built from ids, never by re-templating text.

Stands between the episode and the sampler. OpenWebRL, section 4.1 (all reasoning, last K screenshots) and
WebAgent-R1's dynamic context compression (section 2.3: old pages become a placeholder) are this one rule (see
Context) with other pieces: each agent writes its messages as `UserMessage`.

Deviations:
1. Both codebases rebuild and tokenise the conversation every turn, so that what is trained differs from what
   was sampled.
2. A chat template that writes today's date, as Llama 3.2's, always writes DAY: a run that is resumed
   tomorrow, and its evaluation, have the same prompts.
3. A chat template that strips past thoughts, as Qwen3.5's where no tool has answered, is not asked about
   them: `reasoning` alone says whether they stay, and what stays are the ids that were sampled.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from multiprocessing.pool import ThreadPool
from typing import TYPE_CHECKING, NamedTuple, Self

from minirl.config import AgentConfig
from minirl.console import first_line
from minirl.types import Agent, Feedback, Ids, Message, Observation, Prompt, Tokenizer

if TYPE_CHECKING:
    from minirl.model import Preprocessor

THINK_END = "</think>"
CALL = re.compile(r"<tool_call>(.*?)(</tool_call>|\Z)", re.DOTALL)  # an open one ends the search

VISION_OPEN = "<|vision_start|>"
IMAGE_PAD = "<|image_pad|>"
VISION_CLOSE = "<|vision_end|>"
ROLES = ["system", "user", "assistant", "user"]
DAY = date(2024, 7, 26)  # which Llama 3.2's template falls back on
MAX_TEMPLATE_SECONDS = 10.0


@dataclass(frozen=True)
class ChatFormat:
    """The text that a model's chat template puts around messages, found by rendering marks."""

    start: str  # in ChatML "<|im_start|>system\n"
    to_user: str  # "<|im_end|>\n<|im_start|>user\n"
    to_assistant: str  # "<|im_end|>\n<|im_start|>assistant\n<think>\n"
    close: str  # after a sampled end token: "\n<|im_start|>user\n"
    opens_think: bool  # the template already wrote "<think>", so responses come without it
    closing: str = ""  # "</think>" if it wrote a whole thought, so that they come without one
    end: str = ""  # the token that ends a response: "<|im_end|>"
    drops_end: bool = False  # past responses stand in the history without their end token
    max_chars: int = 0  # of history and page together; 0: no limit
    tags: bool = False  # it writes tool calls in tags, as Qwen3.5's: <function=wait><parameter=seconds>

    @classmethod
    def from_template(cls, tokenizer: Tokenizer) -> Self:
        messages = [{"role": role, "content": f"\ue000{role}\ue000"} for role in ROLES]
        options = {"tokenize": False, "add_generation_prompt": True, "strftime_now": DAY.strftime}
        render = partial(tokenizer.apply_chat_template, messages, **options)
        problem = f"choose a chat model with --model.path: this chat template can't say {', '.join(ROLES)}"
        try:
            # in a thread, because this one can end the program where a stranger's template does not end
            with ThreadPool(1) as thread:
                text = thread.apply_async(render).get(MAX_TEMPLATE_SECONDS)
        except Exception as error:  # a template is a program: it may refuse a role, or raise anything
            raise ValueError(f"{problem}: {first_line(error)}") from None
        parts = re.split("\ue000(.*?)\ue000", text)
        if parts[1::2] != ROLES:
            raise ValueError(f"{problem}, but {', '.join(parts[1::2]) or 'nothing'}")
        start, to_user, _, close, to_assistant = parts[::2]
        # A turn may end in another token than a text does, and in a blank before it
        ended = re.match(rf"\s*(?=\S)({control_tokens(tokenizer).pattern})", close)
        return cls(
            start=start,
            to_user=to_user,
            to_assistant=to_assistant,
            close=close[ended.end() :] if ended else close,
            opens_think=to_assistant.rstrip().endswith("<think>"),
            closing=THINK_END if to_assistant.rstrip().endswith(THINK_END) else "",
            end=ended[1] if ended else tokenizer.eos_token,
            tags="<function=" in str(tokenizer.chat_template),
        )


class UserMessage(NamedTuple):
    """A user's message as text: `head` stays for good, `page` is shown while the turn is recent, `tail`
    closes the message, `placeholder` replaces an old page."""

    head: str
    page: str
    tail: str
    placeholder: str = ""


@dataclass(frozen=True)
class PromptTurn:
    """One user message and, once sampled, its response: as ids, and as texts for a served model."""

    head: Ids  # what stays for good: task or feedback, tabs and URL
    ephemeral: Ids  # the screenshot or the page's HTML, of the newest turns only
    tail: Ids  # the closing of the user's message, the assistant's opening
    image: bytes | None
    message: UserMessage
    response: Ids = ()  # the ids that were sampled, verbatim
    answer: str = ""  # the response as text


class Context:
    """The conversation of one episode: call `observe`, sample from its prompt, call `respond`, repeat.

    The prompt of the newest turn is prefix + suffix, where

        prefix  = start, then for every settled turn: head, placeholder, tail, response, close
        suffix = for the last `keep` turns: head, ephemeral, tail (and response, close of the older ones)

    with the newest head at the prefix's end if `keep == 1`. The prefix only ever grows, so turn t's prompt is
    `prefix[:shared] + suffix` with the prefix of the finished episode: prefix caches and prefix-tree training
    feed on that. Without `reasoning` past responses begin at `</think>`.
    """

    def __init__(self, preprocessor: "Preprocessor", agent: Agent, config: AgentConfig, task: str):
        self.preprocessor = preprocessor
        self.agent = agent
        self.keep = config.screenshots
        self.reasoning = config.reasoning
        self.chat: ChatFormat = agent.message_format or preprocessor.chat
        self.escape = partial(escape_control_tokens, control=control_tokens(preprocessor.tokenizer))
        self.task = self.escape(task)
        self.close = self._ids(self.chat.close)
        self.prefix: list[int] = list(self._ids(self.chat.start + agent.system + self.chat.to_user))
        self.settled: list[PromptTurn] = []
        self.recent: list[PromptTurn] = []  # the last `keep`, the newest last; older ones are in the prefix

    def observe(self, observation: Observation, feedback: Feedback = ()) -> Prompt:
        """Open the next turn with an observation and the feedback on the last calls; return its prompt."""
        if len(self.recent) == self.keep:
            self._settle(self.recent.pop(0))
        self.recent.append(self._turn(observation, feedback))
        # The newest head stays where it is, so with one turn in the suffix it can be in the prefix already.
        if self.keep == 1:
            self.prefix += self.recent[0].head
        suffix = []
        for turn in self.recent:
            if self.keep > 1:
                suffix += turn.head
            suffix += turn.ephemeral + turn.tail
            if turn is not self.recent[-1]:
                suffix += self._kept(turn) + self.close
        images = tuple(turn.image for turn in self.recent if turn.image)
        return Prompt((*self.prefix, *suffix), shared=len(self.prefix), images=images)

    def messages(self) -> tuple[Message, ...]:
        """Return the conversation up to the newest observation as chat messages, for a served model. They
        show and leave out the same as the prompt."""
        messages: list[Message] = [("system", (self.agent.system,))] if self.agent.system else []
        for i, turn in enumerate(self.settled + self.recent):
            head, page, tail, placeholder = turn.message
            parts: tuple[str | bytes, ...] = (head + page + tail,)
            if i < len(self.settled):
                parts = (head + placeholder + tail,)
            elif turn.image:
                parts = (f"{head}{page}screenshot:\n", turn.image, "\n" + tail)
            messages.append(("user", parts))
            if turn.response:
                answer = turn.answer if self.reasoning else turn.answer.rpartition(THINK_END)[2]
                messages.append(("assistant", (answer,)))
        return tuple(messages)

    def respond(self, response_ids: Ids, answer: str = "") -> None:
        """Keep the sampled ids of the newest turn, verbatim; `answer` is their text, for `messages`."""
        assert not self.recent[-1].response, "respond() once per observe()"
        self.recent[-1] = replace(self.recent[-1], response=tuple(response_ids), answer=answer)

    def _settle(self, turn: PromptTurn) -> None:
        """Move a turn whose observation is no longer shown into the prefix."""
        if self.keep > 1:
            self.prefix += turn.head
        self.prefix += self._ids(turn.message.placeholder) + turn.tail + self._kept(turn) + self.close
        self.settled.append(replace(turn, image=None))  # its screenshot would only take memory

    def _kept(self, turn: PromptTurn) -> Ids:
        """Return the ids that stay of a past response: all, or without `reasoning` those from `</think>` on.
        Where the template has written `<think>`, the tag stays to close it; elsewhere it goes too. One that
        was cut off gets the end token that it lacks."""
        response = turn.response
        has_end = response[-1:] and response[-1] in self.preprocessor.end
        if self.chat.drops_end:
            return response[:-1] if has_end else response
        if response and not has_end:
            response += tuple(self.preprocessor.end)[:1]
        if self.reasoning:
            return response
        start, end = think_ends(self.preprocessor.tokenizer, response)
        return response[start if self.chat.opens_think else end :]

    def _turn(self, observation: Observation, feedback: Feedback) -> PromptTurn:
        page = self.escape(observation.page_text)
        if self.chat.max_chars:
            history = sum(
                len(old.answer + old.message.head + old.message.placeholder) for old in self.settled
            )
            page = page[: max(0, self.chat.max_chars - history)]
        visible = replace(observation, text=self.escape(observation.text), page_text=page)
        number = len(self.settled) + len(self.recent)
        message: UserMessage = self.agent.user_message(
            number, self.task, visible, tuple(map(self.escape, feedback))
        )
        image = observation.image
        ephemeral = (f"{message.page}screenshot:\n", image, "\n") if image else (message.page,)
        return PromptTurn(
            head=self._ids(message.head),
            ephemeral=self._ids(*ephemeral),
            tail=self._ids(message.tail + self.chat.to_assistant),
            image=image,
            message=message,
        )

    def _ids(self, *parts: str | bytes) -> Ids:
        return ids_with_pictures(parts, self.preprocessor)


def ids_with_pictures(parts: Iterable[str | bytes], preprocessor: "Preprocessor") -> Ids:
    """Return the ids of texts and screenshots (PNG bytes) in their order. A screenshot becomes pads between
    the vision tokens; the texts before it are tokenised in one piece."""
    ids = []
    text = ""
    for part in parts:
        if isinstance(part, str):
            text += part
            continue
        ids += preprocessor.tokenise(text + VISION_OPEN)
        ids += [preprocessor.pad] * preprocessor.image_tokens(part)
        text = VISION_CLOSE
    if text:
        ids += preprocessor.tokenise(text)
    return tuple(ids)


def calls_in_tags(text: str) -> str:
    """Return a text with its JSON tool calls rewritten in tags, as Qwen3.5's chat template writes them.

    >>> calls_in_tags('<tool_call>{"name": "wait", "arguments": {"seconds": 2}}</tool_call>')
    '<tool_call>\\n<function=wait>\\n<parameter=seconds>\\n2\\n</parameter>\\n</function>\\n</tool_call>'
    """
    return CALL.sub(_in_tags, text)


def _in_tags(call: re.Match[str]) -> str:
    try:
        record = json.loads(call[1])
    except (ValueError, RecursionError):  # others' responses may hold anything
        return call[0]
    match record:
        case {"name": str(name), "arguments": dict(arguments)}:
            lines = ["<tool_call>", f"<function={name}>"]
        case _:
            return call[0]
    for argument, value in arguments.items():
        written = json.dumps(value) if isinstance(value, (list, dict)) else str(value)
        lines += [f"<parameter={argument}>", written, "</parameter>"]
    return "\n".join([*lines, "</function>", "</tool_call>"])


def control_tokens(tokenizer: Tokenizer) -> re.Pattern[str]:
    """Return the pattern of the texts that the tokenizer reads as tokens of their own."""
    added = sorted([tokenizer.eos_token, *tokenizer.get_added_vocab()], key=len, reverse=True)
    return re.compile("|".join(map(re.escape, added)))


def escape_control_tokens(text: str, control: re.Pattern[str]) -> str:
    """Return text from a page or a user with a blank in each control token: it can't forge one. Halves of
    surrogate pairs, which JavaScript allows, become question marks."""
    text = text.encode("utf-8", "replace").decode()
    return control.sub(lambda token: token[0][0] + " " + token[0][1:], text)


def think_ends(tokenizer: Tokenizer, ids: Ids) -> tuple[int, int]:
    """Return where the last `</think>`, one token or several, begins and ends in a response's ids; (0, 0)
    without it."""
    if THINK_END not in tokenizer.decode(ids):
        return 0, 0
    # the tag stands near the end, before the call
    start = len(ids) - 1
    while THINK_END not in tokenizer.decode(ids[start:]):
        start -= 1
    end = start + 1
    while THINK_END not in tokenizer.decode(ids[start:end]):
        end += 1
    return start, end
