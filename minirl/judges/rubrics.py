"""The judges' rubrics: what each judge reads of an episode, by which prompt it decides, and how it answers.

    Trajectory --Question.messages--> chat messages --a model (judge.py)--> text --parsers.py--> Verdict

Each prompts/NAME.md has four parts: the system prompt, templates for the evidence and for a step of it, and
what is asked below. OpenWebRL, section 4.3, appendices A.4 and B, and the released judges that it refers to;
AutoWebWorld, section 5.1, which does not say what is in a trace. The criteria are theirs, the words our own.
Deviations: the prompt asks for DeepShop's JSON, which its server enforces; AgentTrek's judge sees the answer
by itself, too; long texts lose their middle; equal screenshots take one place; the last act's is shown.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from itertools import groupby
from typing import Self

from minirl.agents.openwebrl import read_prompt
from minirl.config import Input, JudgeConfig, Parser
from minirl.types import ImageStore, Message, Stop, Trajectory, Turn

# Longest texts in characters; longer ones lose their middle
ANSWER_CHARS = 6000
CALLS_CHARS = 600  # of one step
THOUGHT_CHARS = 2000  # of one step
URL_CHARS = 300
FEEDBACK_CHARS = 300  # of one call
HISTORY_CHARS = 16_000  # of all steps: about 4,000 tokens, as many as three screenshots
TRACE_CHARS = 60_000  # of all steps with their thoughts: about 15,000 tokens


@dataclass(frozen=True)
class Rubric:
    """One kind of question, the parsers of its answers, and what stands over each screenshot."""

    parsers: tuple[Parser, ...]
    label: str = "\nScreenshot {when}:\n"
    no_screenshot: str = "\nThere is no screenshot.\n"
    final_only: bool = False  # one screenshot at most, the newest
    task_chars: int = 4000
    answer_chars: int = ANSWER_CHARS
    step_chars: int = HISTORY_CHARS  # of all steps together


LINE_FIRST: tuple[Parser, ...] = ("verdict-line", "not-success-first")
NUMBERED = "\nScreenshot {n} of {total}:\n"
RUBRICS = {
    "openwebrl": Rubric(LINE_FIRST, no_screenshot=""),
    "webvoyager": Rubric(LINE_FIRST[::-1], NUMBERED),
    "deepshop": Rubric(("structured",), NUMBERED),
    "agenttrek": Rubric(("status",), "\nThe final screenshot:\n", final_only=True, step_chars=TRACE_CHARS),
    "trace": Rubric(LINE_FIRST, step_chars=TRACE_CHARS),
    # openwebrl's for a judge too small for more: one line of prompt, the reports, the newest screenshot
    "brief": Rubric(LINE_FIRST, "", "", final_only=True, task_chars=300, answer_chars=300, step_chars=1500),
}


@cache
def prompt_parts(rubric: str) -> list[str]:
    text = files("minirl.judges").joinpath("prompts", f"{rubric}.md").read_text(encoding="utf-8")
    return [part.strip() for part in text.split("\n---\n")]


@dataclass(frozen=True)
class Question:
    """What a judge is asked about any episode. A distilled judge's checkpoint remembers its question."""

    input: Input = "openwebrl"
    screenshots: int = 3  # the newest ones, at most
    prompt: str | None = None  # in place of the rubric's system prompt; the form of the answer stays
    brief: bool = False  # "openwebrl" for a model too small for more

    @classmethod
    def of(cls, judge: JudgeConfig) -> Self:
        """Return a config's question. ValueError if its parser can't read the answers."""
        readable = RUBRICS[judge.input].parsers if judge.input != "rules" else ("rules",)
        if judge.parser not in readable:
            wanted = f"what only --judge.parser {' or '.join(readable)} can read"
            raise ValueError(f"--judge.input {judge.input} asks for {wanted}")
        text = read_prompt(judge.prompt) if judge.prompt else None
        return cls(judge.input, judge.screenshots, text, judge.brief)

    @property
    def rubric(self) -> str:
        return "brief" if self.brief and self.input == "openwebrl" else self.input

    def lacks_answer(self, trajectory: Trajectory) -> bool:
        """Return True if the agent ended without an answer, which the released code of these judges fails."""
        is_silent = trajectory.stop is Stop.DONE and not trajectory.answer.strip()
        return is_silent and self.input in ("openwebrl", "webvoyager", "deepshop")

    def screenshots_of(self, trajectory: Trajectory) -> list[tuple[str, str]]:
        """Return when the newest screenshots were taken ("before step 3") and their hashes, oldest first."""
        turns = trajectory.turns
        found = [(f"before step {n}", turn.images[-1]) for n, turn in enumerate(turns, 1) if turn.images]
        # What the last step changed, if it did more than end the episode, only the final screenshot shows.
        last = turns[-1].parsed.calls if turns else ()
        if trajectory.final_image and (not last or any(call.name != "done" for call in last)):
            found.append(("after the last step", trajectory.final_image))
        distinct = []
        for name, same in groupby(found, key=lambda shot: shot[1]):
            distinct.append((", the same ".join(when for when, _ in same), name))
        most = min(self.screenshots, 1) if RUBRICS[self.rubric].final_only else self.screenshots
        return distinct[-most:] if most else []

    def messages(self, trajectory: Trajectory, images: ImageStore) -> tuple[Message, ...]:
        """Return a system and a user message about an episode; what `images` raises comes through."""
        if self.input == "rules":
            raise ValueError("these tasks have rules, which a program reads: there is nothing to ask a judge")
        rubric, (system, template, step, question) = RUBRICS[self.rubric], prompt_parts(self.rubric)
        words = template.format(
            frame=prompt_parts("frame")[0],
            task=quoted(trajectory.task.instruction, rubric.task_chars),
            answer=quoted(trajectory.answer, rubric.answer_chars),
            n=len(trajectory.turns),
            steps=describe_steps(trajectory.turns, step, rubric.step_chars),
        )
        parts: list[str | bytes] = [f"{words}\n"]
        shown = self.screenshots_of(trajectory)
        for n, (when, name) in enumerate(shown, 1):
            parts += [rubric.label.format(when=when, n=n, total=len(shown)), images.get(name)]
        parts += ["" if shown else rubric.no_screenshot, f"\n{question}" if question else ""]
        system = system if self.prompt is None else self.prompt
        return ("system", (system,)), ("user", tuple(part for part in parts if part != ""))


def describe_steps(turns: Sequence[Turn], template: str, most: int) -> str:
    """Return the steps in the template's words, quoted. Of too many the first and the last ones stay."""
    as_json, texts = partial(json.dumps, ensure_ascii=False, default=str), []
    for n, turn in enumerate(turns, 1):
        call_chars = ANSWER_CHARS if most == TRACE_CHARS and n == len(turns) else CALLS_CHARS
        reports = " | ".join(one_line(line, FEEDBACK_CHARS) for line in turn.feedback)
        calls = "; ".join(f"{call.name}({as_json(dict(call.arguments))})" for call in turn.parsed.calls)
        text = template.format(
            n=n,
            page=one_line(turn.url, URL_CHARS) or "(no address)",
            thought=one_line(turn.parsed.thought, THOUGHT_CHARS) or "(none)",
            action=one_line(calls, call_chars) or "nothing that could be read as an action",
            report=cut_middle(reports, 4 * FEEDBACK_CHARS) or "no report",
        )
        texts.append(quoted(text, most))
    if sum(map(len, texts)) > most:
        room, head, tail = most, 0, len(texts)
        while room - len(texts[head]) >= 0.7 * most:
            room -= len(texts[head])
            head += 1
        while room - len(texts[tail - 1]) >= 0:
            room -= len(texts[tail - 1])
            tail -= 1
        texts[head:tail] = [f"(Steps {head + 1} to {tail} are left out.)"]
    return "\n".join(texts) or "(none)"


def quoted(text: str, most: int) -> str:
    """Return text that can't pass for the question's own: in lines with "> ", without control tokens."""
    text = cut_middle(text.strip().encode("utf-8", "replace").decode(), most).replace("<|", "< |")
    return "\n".join(f"> {line}" for line in text.splitlines()) or "(none)"


def one_line(text: str, most: int) -> str:
    return cut_middle(" ".join(text.split()), most)


def cut_middle(text: str, most: int) -> str:
    """Return at most `most` characters and a note: 'ab [6 characters left out] ij'."""
    if len(text) <= most:
        return text
    head = most // 2
    return f"{text[:head]} [{len(text) - most} characters left out] {text[head - most :]}"
