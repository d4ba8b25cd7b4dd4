"""The judges' rubrics: what each judge reads of an episode, by which prompt it decides, and how it answers.

    Trajectory --Question.messages--> chat messages --a model (judge.py)--> text --parsers.py--> Verdict

Each prompts/NAME.md has four parts: the system prompt, templates for the evidence and for a step of it, and
what is asked below. Papers: OpenWebRL, section 4.3, appendices A.4 and B (table 8: three screenshots), with
the released judges that it refers to; AutoWebWorld, section 5.1, which does not say what is in a trace.
Deviations:
1. The criteria are theirs, the words are not.
2. The prompt asks for DeepShop's JSON, which its server enforces.
3. AgentTrek's judge sees the answer by itself, too.
4. Long texts lose their middle.
5. Equal screenshots take one place.
6. The screenshot after the last step is shown if that step did more than end the episode.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Self

from minirl.config import Input, JudgeConfig
from minirl.judges.parsers import VerdictParser, parse_json, parse_last_line, parse_phrase, parse_status
from minirl.types import Call, ImageStore, Message, Stop, Trajectory, Turn

# The longest texts in characters; longer ones lose their middle
ANSWER_CHARS = 6000
CALLS_CHARS = 600  # of one step
THOUGHT_CHARS = 2000  # of one step
URL_CHARS = 300
FEEDBACK_CHARS = 300  # of one call
HISTORY_CHARS = 16_000  # of all steps: about 4,000 tokens, as many as three screenshots
TRACE_CHARS = 60_000  # of all steps with their thoughts: about 15,000 tokens


@dataclass(frozen=True)
class Rubric:
    """One kind of question, the parser of its answers, and what stands over each screenshot."""

    parser: VerdictParser = parse_last_line
    label: str = "\nScreenshot {when}:\n"
    no_screenshot: str = "\nThere is no screenshot.\n"
    screenshots: int = 3  # the newest ones, at most
    greedy: bool = False  # ask at temperature 0, as the released evaluator does
    task_chars: int = 4000
    answer_chars: int = ANSWER_CHARS
    step_chars: int = HISTORY_CHARS  # of all steps together


NUMBERED = "\nScreenshot {n} of {total}:\n"
RUBRICS = {
    "openwebrl": Rubric(no_screenshot=""),
    "webvoyager": Rubric(parse_phrase, NUMBERED, greedy=True),
    "deepshop": Rubric(parse_json, NUMBERED, greedy=True),
    # AgentTrek's judge sees the final screenshot alone, so the three of OpenWebRL's table 8 can't be meant
    "agenttrek": Rubric(parse_status, "\nThe final screenshot:\n", screenshots=1, step_chars=TRACE_CHARS),
    "trace": Rubric(screenshots=0, step_chars=TRACE_CHARS),
    # openwebrl's for a judge too small for more: one line of prompt, the reports, the newest screenshot
    "brief": Rubric(
        label="", no_screenshot="", screenshots=1, task_chars=300, answer_chars=300, step_chars=1500
    ),
}
# The released code of these judges fails an agent that ends the episode without an answer
NEED_ANSWER = ("openwebrl", "brief", "webvoyager", "deepshop")


@cache
def prompt_parts(rubric: str) -> list[str]:
    text = files("minirl.judges").joinpath("prompts", f"{rubric}.md").read_text(encoding="utf-8")
    return [part.strip() for part in text.split("\n---\n")]


@dataclass(frozen=True)
class Question:
    """What a judge is asked about any episode. A distilled judge's checkpoint remembers its question."""

    input: Input = "openwebrl"
    prompt: str | None = None  # in place of the rubric's system prompt; the form of the answer stays

    @classmethod
    def of(cls, judge: JudgeConfig) -> Self:
        """Return a config's question."""
        prompt = judge.prompt.read_text("utf-8") if judge.prompt else None
        return cls(judge.input, prompt)

    @property
    def rubric(self) -> Rubric:
        """Return the rubric. ValueError if there is none."""
        if self.input == "rules":
            raise ValueError("these tasks have rules, which a program reads: there is nothing to ask a judge")
        return RUBRICS[self.input]

    def lacks_answer(self, trajectory: Trajectory) -> bool:
        """Return True if the agent ended without an answer, and the judge's released code fails that."""
        is_silent = trajectory.stop is Stop.DONE and not trajectory.answer.strip()
        return is_silent and self.input in NEED_ANSWER

    def messages(self, trajectory: Trajectory, images: ImageStore) -> tuple[Message, ...]:
        """Return a system and a user message about an episode. ValueError or OSError from `images` for a
        screenshot that is gone."""
        rubric = self.rubric
        system, template, step_template, request = prompt_parts(self.input)
        evidence = template.format(
            frame=prompt_parts("frame")[0],
            task=quoted(trajectory.task.instruction, rubric.task_chars),
            answer=quoted(trajectory.answer, rubric.answer_chars),
            n=len(trajectory.turns),
            steps=describe_steps(trajectory.turns, step_template, rubric.step_chars),
        )
        parts: list[str | bytes] = [f"{evidence}\n"]
        screenshots = newest_screenshots(trajectory, rubric.screenshots)
        for n, (when, name) in enumerate(screenshots, start=1):
            label = rubric.label.format(when=when, n=n, total=len(screenshots))
            if label:
                parts.append(label)
            parts.append(images.get(name))
        if not screenshots and rubric.no_screenshot:
            parts.append(rubric.no_screenshot)
        if request:
            parts.append(f"\n{request}")
        return ("system", (self.prompt or system,)), ("user", tuple(parts))


def newest_screenshots(trajectory: Trajectory, limit: int) -> list[tuple[str, str]]:
    """Return when at most `limit` screenshots were taken ("before step 3") and their hashes, oldest first."""
    screenshots: list[tuple[str, str]] = []
    for n, turn in enumerate(trajectory.turns, start=1):
        if turn.images:
            screenshots.append((f"before step {n}", turn.images[-1]))
    # What the last step changed, if it did more than end the episode, only the final screenshot shows
    last_calls = trajectory.turns[-1].parsed.calls if trajectory.turns else ()
    only_ended = bool(last_calls) and all(call.name == "done" for call in last_calls)
    if trajectory.final_image and not only_ended:
        screenshots.append(("after the last step", trajectory.final_image))
    distinct: list[tuple[str, str]] = []
    for when, name in screenshots:
        if distinct and distinct[-1][1] == name:
            earlier, _ = distinct.pop()
            when = f"{earlier}, the same {when}"
        distinct.append((when, name))
    return distinct[max(0, len(distinct) - limit) :]


def describe_steps(turns: Sequence[Turn], template: str, max_chars: int) -> str:
    """Return the steps in the template's words, quoted. Of too many the first and the last ones stay."""
    steps: list[str] = []
    for n, turn in enumerate(turns, start=1):
        # In a trace the answer is in the last action alone
        has_answer = max_chars == TRACE_CHARS and n == len(turns)
        calls = "; ".join(describe_call(call) for call in turn.parsed.calls)
        reports = " | ".join(one_line(report, FEEDBACK_CHARS) for report in turn.feedback)
        step = template.format(
            n=n,
            page=one_line(turn.url, URL_CHARS) or "(no address)",
            thought=one_line(turn.parsed.thought, THOUGHT_CHARS) or "(none)",
            action=one_line(calls, ANSWER_CHARS if has_answer else CALLS_CHARS)
            or "nothing that could be read as an action",
            report=cut_middle(reports, 4 * FEEDBACK_CHARS) or "no report",
        )
        steps.append(quoted(step, max_chars))
    return "\n".join(without_middle(steps, max_chars)) or "(none)"


def describe_call(call: Call) -> str:
    arguments = json.dumps(dict(call.arguments), ensure_ascii=False, default=str)
    return f"{call.name}({arguments})"


def without_middle(steps: list[str], max_chars: int) -> list[str]:
    """Return the steps if they have at most `max_chars` characters. If not, the first ones take at most 0.3
    of these, the last ones take the rest, and a line stands for the others."""
    if sum(map(len, steps)) <= max_chars:
        return steps
    room = max_chars
    head, tail = 0, len(steps)
    while room - len(steps[head]) >= 0.7 * max_chars:
        room -= len(steps[head])
        head += 1
    while room >= len(steps[tail - 1]):
        tail -= 1
        room -= len(steps[tail])
    return [*steps[:head], f"(Steps {head + 1} to {tail} are left out.)", *steps[tail:]]


def quoted(text: str, max_chars: int) -> str:
    """Return text that can't pass for the question's own: in lines with "> ", without control tokens."""
    valid = text.strip().encode("utf-8", "replace").decode()
    harmless = cut_middle(valid, max_chars).replace("<|", "< |")
    return "\n".join(f"> {line}" for line in harmless.splitlines()) or "(none)"


def one_line(text: str, max_chars: int) -> str:
    return cut_middle(" ".join(text.split()), max_chars)


def cut_middle(text: str, max_chars: int) -> str:
    """Return at most `max_chars` characters and a note: 'ab [6 characters left out] ij'."""
    if len(text) <= max_chars:
        return text
    head = max_chars // 2
    tail = len(text) - (max_chars - head)
    return f"{text[:head]} [{len(text) - max_chars} characters left out] {text[tail:]}"
