"""Token-exact history: the prompt of turn t is built from ids, never by re-templating text.

Stands between the episode and the sampler. A conversation is a list of steps, each made of

    head       what stays for good: task or feedback, tabs and URL      \
    ephemeral  the screenshot (or the page's HTML), newest turns only    >  the user's message
    tail       the closing of the user's message, the assistant's opening/
    response   the ids that were sampled, verbatim

and the prompt of the newest step is

    trunk  = start, then for every settled step: head, stand-in, tail, response, closing
    branch = for the last `keep` steps: head, ephemeral, tail (and response, closing of the older ones)

with the newest head moved to the trunk's end where it can be (`keep == 1`), because the trunk is what
turns share. The trunk only ever grows, so that turn t's prompt is `trunk[:shared] + branch` for the
trunk of the finished episode, which is what prefix caches and prefix-tree training feed on.

OpenWebRL section 3.2 (all reasoning, last K screenshots) and WebAgent-R1's dynamic context compression
(old pages become a stand-in) are this one rule with other pieces: each agent writes its messages as `Words`.
Deviation from both codebases: they rebuild and tokenise the conversation every turn, so that what is trained
differs from what was sampled.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from minirl.types import Message, Observation, Prompt

THINK_END, ANSWER = "</think>", "<answer>"

VISION_OPEN, IMAGE_PAD, VISION_CLOSE = "<|vision_start|>", "<|image_pad|>", "<|vision_end|>"
_MARKS = ("\ue000S\ue000", "\ue000U\ue000", "\ue000A\ue000", "\ue000V\ue000")


@dataclass(frozen=True)
class ChatFormat:
    """The text that a model's chat template puts around messages, found by rendering marks.

    For ChatML: `start` = "<|im_start|>system\\n", `to_user` = "<|im_end|>\\n<|im_start|>user\\n",
    `to_assistant` = "<|im_end|>\\n<|im_start|>assistant\\n<think>\\n" and `close` (after a sampled end
    token) = "\\n<|im_start|>user\\n".
    """

    start: str
    to_user: str
    to_assistant: str
    close: str
    opens_think: bool  # the template already wrote "<think>", so responses come without it
    drops_end: bool = False  # past responses stand in the history without their end token
    most_chars: int = 0  # of history and page together; 0: no limit

    @classmethod
    def from_template(cls, tokenizer: PreTrainedTokenizerBase) -> ChatFormat:
        system, user, assistant, user2 = _MARKS
        roles = ("system", "user", "assistant", "user")
        messages = [{"role": r, "content": m} for r, m in zip(roles, _MARKS, strict=True)]
        try:
            text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
            start, rest = text.split(system)
            to_user, rest = rest.split(user)
            _, rest = rest.split(assistant)
            close, to_assistant = rest.split(user2)
        except (ValueError, TemplateError):  # TemplateError: a template may refuse a role
            raise ValueError(
                "the model's chat template does not render system, user and assistant messages once each; "
                "use a chat model (Instruct or Thinking)"
            ) from None
        return cls(
            start=start,
            to_user=to_user,
            to_assistant=to_assistant,
            close=close.removeprefix(tokenizer.eos_token),
            opens_think=to_assistant.rstrip().endswith("<think>"),
        )


class Words(NamedTuple):
    """A user's message as text: what stays, what only the newest turns show, what follows, and what stands
    for the page later."""

    head: str
    page: str
    tail: str
    stand_in: str = ""


# Turns a message's number, the task, the observation and the feedback on the last turn into the message
WordsFn = Callable[[int, str, Observation, tuple[str, ...]], Words]


@dataclass(frozen=True)
class Step:
    """One user message and, once sampled, its response; all ids but the image."""

    head: tuple[int, ...]
    ephemeral: tuple[int, ...]
    tail: tuple[int, ...]
    image: bytes | None
    words: Words
    response: tuple[int, ...] = ()
    answer: str = ""  # the response as text


class Context:
    """The conversation of one episode. Call `observe`, sample from the prompt, call `respond`, repeat.

    `image_tokens(png)` is the number of image pads the model's processor makes of a screenshot; `keep`
    the number of newest observations shown in full; `words` (an agent's) writes the messages. Without
    `reasoning` the ids of a past response begin at its `</think>`.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        chat: ChatFormat,
        system: str,
        task: str,
        image_tokens: Callable[[bytes], int],
        words: WordsFn,
        keep: int = 1,
        reasoning: bool = True,
    ):
        if keep < 1:
            raise ValueError(f"--agent.screenshots must be at least 1, not {keep}")
        self.tokenizer, self.chat, self.task, self.reasoning = tokenizer, chat, task, reasoning
        self.image_tokens, self.keep = image_tokens, keep
        self.close = self._ids(chat.close)
        self.trunk: list[int] = list(self._ids(chat.start + system + chat.to_user))
        self.system, self.words = system, words
        self.settled: list[Step] = []
        self.recent: list[Step] = []  # the last `keep` steps, the newest last; older ones are in the trunk
        self.heads_in_trunk = 0  # 1 while the newest head already ends the trunk
        self.control = control_tokens(tokenizer)

    def observe(self, observation: Observation, feedback: tuple[str, ...] = ()) -> Prompt:
        """Open the next step with an observation and the feedback on the last calls; return its prompt."""
        if len(self.recent) == self.keep:
            self._settle(self.recent.pop(0))
        self.recent.append(self._step(observation, feedback))
        if self.keep == 1:
            self.trunk += self.recent[0].head
            self.heads_in_trunk = 1
        return self.prompt()

    def prompt(self) -> Prompt:
        branch: list[int] = []
        for i, step in enumerate(self.recent):
            branch += () if self.heads_in_trunk else step.head
            branch += step.ephemeral + step.tail
            if i < len(self.recent) - 1:
                branch += self._kept(step) + self.close
        images = tuple(step.image for step in self.recent if step.image is not None)
        return Prompt(tuple(self.trunk) + tuple(branch), shared=len(self.trunk), images=images)

    def messages(self) -> tuple[Message, ...]:
        """Return the conversation up to the newest observation as chat messages, for a served model. They
        show and leave out the same as the prompt."""
        out: list[Message] = [("system", (self.system,))] if self.system else []
        for i, step in enumerate(self.settled + self.recent):
            head, page, tail, stand_in = step.words
            if i < len(self.settled):
                parts: tuple[str | bytes, ...] = (head + stand_in + tail,)
            elif step.image is None:
                parts = (head + page + tail,)
            else:
                parts = (f"{head}{page}screenshot:\n", step.image, "\n" + tail)
            out.append(("user", parts))
            if step.response:
                said = step.answer if self.reasoning else step.answer.rpartition(THINK_END)[2]
                out.append(("assistant", (said,)))
        return tuple(out)

    def respond(self, response_ids: tuple[int, ...], answer: str = "") -> None:
        """Keep the sampled ids of the newest step, verbatim; `answer` is their text, for `messages`."""
        step = self.recent[-1]
        assert not step.response, "respond() once per observe()"
        self.recent[-1] = replace(step, response=tuple(response_ids), answer=answer)

    def _settle(self, step: Step) -> None:
        """Move a step whose observation is no longer shown into the trunk."""
        if not self.heads_in_trunk:
            self.trunk += step.head
        self.trunk += self._ids(step.words.stand_in) + step.tail + self._kept(step) + self.close
        self.heads_in_trunk = 0
        self.settled.append(replace(step, image=None))  # its screenshot would only take memory

    def _kept(self, step: Step) -> tuple[int, ...]:
        """Return the ids that stay of a past response: all, or without `reasoning` those from `</think>` on.
        Where the template has written `<think>`, the tag stays to close it; elsewhere it goes too."""
        if self.chat.drops_end and step.response[-1:] == (self.tokenizer.eos_token_id,):
            return step.response[:-1]
        if self.reasoning:
            return step.response
        ends = think_ends(self.tokenizer, step.response)
        return step.response[ends[0] if self.chat.opens_think else ends[1] :]

    def _step(self, observation: Observation, feedback: tuple[str, ...]) -> Step:
        text, page = self._inert(observation.text), self._inert(observation.page_text)
        if self.chat.most_chars:
            said = sum(len(step.answer) + len(step.words.head + step.words.stand_in) for step in self.settled)
            page = page[: max(0, self.chat.most_chars - said)]
        n = len(self.settled) + len(self.recent)
        seen, told = replace(observation, text=text, page_text=page), tuple(map(self._inert, feedback))
        words = self.words(n, self._inert(self.task), seen, told)
        return Step(
            head=self._ids(words.head),
            ephemeral=self._ephemeral(words.page, observation),
            tail=self._ids(words.tail + self.chat.to_assistant),
            image=observation.image,
            words=words,
        )

    def _ephemeral(self, page: str, observation: Observation) -> tuple[int, ...]:
        image = observation.image
        parts = (page,) if image is None else (f"{page}screenshot:\n", image, "\n")
        return ids_with_pictures(parts, self.tokenizer, self.image_tokens)

    def _ids(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"]) if text else ()

    def _inert(self, text: str) -> str:
        return inert(text, self.control)


def ids_with_pictures(
    parts: Iterable[str | bytes], tokenizer: PreTrainedTokenizerBase, image_tokens: Callable[[bytes], int]
) -> tuple[int, ...]:
    """Return the ids of texts and screenshots (PNG bytes) in their order. A screenshot becomes as many image
    pads as `image_tokens` says, between the vision tokens; the texts before it are tokenised in one piece."""
    pad = tokenizer.convert_tokens_to_ids(IMAGE_PAD)
    ids: list[int] = []
    text = ""
    for part in parts:
        if isinstance(part, str):
            text += part
            continue
        ids += tokenizer(text + VISION_OPEN, add_special_tokens=False)["input_ids"]
        ids += [pad] * image_tokens(part)
        text = VISION_CLOSE
    if text:
        ids += tokenizer(text, add_special_tokens=False)["input_ids"]
    return tuple(ids)


def control_tokens(tokenizer: PreTrainedTokenizerBase) -> re.Pattern[str] | None:
    """Return the pattern of the texts that the tokenizer reads as added tokens, if it has any."""
    added = sorted(tokenizer.get_added_vocab(), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, added))) if added else None


def inert(text: str, control: re.Pattern[str] | None) -> str:
    """Return text from a page or a user with a blank behind the first character of each control token, so
    that it can't forge one. Halves of surrogate pairs, which JavaScript allows, become question marks."""
    text = text.encode("utf-8", "replace").decode()
    return control.sub(lambda m: m[0][0] + " " + m[0][1:], text) if control else text


def answer_start(tokenizer: PreTrainedTokenizerBase, ids: tuple[int, ...]) -> int:
    """Return where the first `<answer>` begins in a response's ids, as one token or several; 0 without
    one."""
    if ANSWER not in tokenizer.decode(ids):
        return 0
    end = bisect_left(range(len(ids)), True, key=lambda i: ANSWER in tokenizer.decode(ids[: i + 1])) + 1
    return bisect_left(range(end), True, key=lambda i: ANSWER not in tokenizer.decode(ids[i:end])) - 1


def think_ends(tokenizer: PreTrainedTokenizerBase, ids: tuple[int, ...]) -> tuple[int, int]:
    """Return where the last `</think>` begins and ends in a response's ids; (0, 0) without one. Where it is
    not one token, the ids that hold a part of it are counted in."""
    tag = tokenizer.convert_tokens_to_ids(THINK_END)
    if tag is not None and tag != tokenizer.unk_token_id and tag in ids:
        start = len(ids) - 1 - ids[::-1].index(tag)
        return start, start + 1
    if THINK_END not in tokenizer.decode(ids):
        return 0, 0
    start = max(i for i in range(len(ids)) if THINK_END in tokenizer.decode(ids[i:]))
    end = min(i for i in range(start, len(ids) + 1) if THINK_END in tokenizer.decode(ids[start:i]))
    return start, end
