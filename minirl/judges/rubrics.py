"""The judges' rubrics: what each judge reads of an episode, and by which prompt it decides.

    Trajectory --Question.messages--> chat messages --a model (judge.py)--> text --parsers.py--> Verdict

A rubric's prompts/NAME.md has four parts: system prompt, templates for the evidence and a step of it, and
what is asked below. Papers: OpenWebRL, section 4.3, appendices A.4 and B (table 8: three screenshots), with
the released judges that it refers to; AutoWebWorld, section 5.1, which does not say what is in a trace.
Deviations:
1. The criteria are theirs, the words are not; all ask for the same two words on the last line.
2. AgentTrek's judge sees the answer by itself, too.
3. Long texts lose their middle.
4. The screenshot after the last step is shown if that step did more than end the episode.
"""

import json
from dataclasses import dataclass
from functools import cache
from typing import Self

from minirl.config import Input, JudgeConfig
from minirl.package_files import text_of
from minirl.types import ImageStore, Message, Stop, Trajectory, Turn

MAX_CHARS = 4000  # of a task, an answer, and of each text in a step


@dataclass(frozen=True)
class Rubric:
    """What one kind of judge is shown, and how it is asked."""

    screenshots: int = 3  # the newest ones, at most
    history_chars: int = 16_000  # of all steps: about 4,000 tokens, as many as three screenshots
    greedy: bool = False  # ask at temperature 0, as the released evaluator does
    # The released code of these judges fails an agent that ends the episode without an answer
    needs_answer: bool = True


RUBRICS = {
    "openwebrl": Rubric(),
    "webvoyager": Rubric(greedy=True),
    "deepshop": Rubric(greedy=True),
    # AgentTrek's judge sees the final screenshot alone, so the three of OpenWebRL's table 8 can't be meant
    "agenttrek": Rubric(screenshots=1, history_chars=60_000, needs_answer=False),
    "trace": Rubric(screenshots=0, history_chars=60_000, needs_answer=False),
    # openwebrl's for a judge too small for more: one line of prompt, the reports, the newest screenshot
    "brief": Rubric(screenshots=1, history_chars=1500),
}


@cache
def prompt_parts(rubric: str) -> list[str]:
    return [part.strip() for part in text_of(f"judges/prompts/{rubric}.md").split("\n---\n")]


@dataclass(frozen=True)
class Question:
    """What a judge is asked about any episode. A distilled judge's checkpoint remembers its question."""

    input: Input = "openwebrl"
    prompt: str | None = None  # in place of the rubric's system prompt; the form of the answer stays

    @classmethod
    def of(cls, judge: JudgeConfig) -> Self:
        """Return a config's question."""
        return cls(judge.input, judge.prompt.read_text("utf-8") if judge.prompt else None)

    @property
    def rubric(self) -> Rubric:
        """Return the rubric. ValueError if there is none."""
        if self.input == "rules":
            raise ValueError("these tasks have rules, which a program reads: there is nothing to ask a judge")
        return RUBRICS[self.input]

    def messages(self, trajectory: Trajectory, images: ImageStore) -> tuple[Message, ...]:
        """Return a system and a user message about an episode. ValueError or OSError from `images` for a
        screenshot that is gone."""
        rubric = self.rubric
        system, template, step_template, request = prompt_parts(self.input)
        steps = [describe_step(n, turn, step_template) for n, turn in enumerate(trajectory.turns, start=1)]
        evidence = template.format(
            frame=prompt_parts("frame")[0],
            task=quoted(trajectory.task.instruction),
            answer=quoted(trajectory.answer),
            n=len(steps),
            steps=quoted("\n".join(steps), rubric.history_chars),
        )
        parts: list[str | bytes] = [f"{evidence}\n"]
        screenshots = newest_screenshots(trajectory, rubric.screenshots)
        for n, name in enumerate(screenshots, start=1):
            if len(screenshots) > 1:
                parts.append(f"\nScreenshot {n} of {len(screenshots)}:\n")
            parts.append(images.get(name))
        if request:
            parts.append(f"\n{request}")
        return ("system", (self.prompt or system,)), ("user", tuple(parts))


def lacks_answer(trajectory: Trajectory) -> bool:
    """Return True if the agent ended the episode itself, without an answer."""
    return trajectory.stop is Stop.DONE and not trajectory.answer.strip()


def newest_screenshots(trajectory: Trajectory, limit: int) -> tuple[str, ...]:
    """Return the hashes of at most `limit` screenshots, oldest first."""
    turns = trajectory.turns
    names = [turn.images[-1] for turn in turns if turn.images]
    # What the last step changed, if it did more than end the episode, only the final screenshot shows
    last_calls = turns[-1].parsed.calls if turns else ()
    only_ended = bool(last_calls) and all(call.name in ("done", "answer") for call in last_calls)
    if trajectory.final_image and not only_ended:
        names.append(trajectory.final_image)
    return tuple(names[max(0, len(names) - limit) :])


def describe_step(n: int, turn: Turn, template: str) -> str:
    calls = []
    for call in turn.parsed.calls:
        arguments = json.dumps(dict(call.arguments), ensure_ascii=False, default=str)
        calls.append(f"{call.name}({arguments})")
    return template.format(
        n=n,
        page=one_line(turn.url) or "(no address)",
        thought=one_line(turn.parsed.thought) or "(none)",
        action=one_line("; ".join(calls)) or "nothing that could be read as an action",
        report=one_line(" | ".join(turn.feedback)) or "no report",
    )


def one_line(text: str) -> str:
    return cut_middle(" ".join(text.split()), MAX_CHARS)


def quoted(text: str, max_chars: int = MAX_CHARS) -> str:
    """Return text that can't pass for the question's own: in lines with "> ", without control tokens."""
    valid = text.strip().encode("utf-8", "replace").decode()
    harmless = cut_middle(valid, max_chars).replace("<|", "< |")
    return "\n".join(f"> {line}" for line in harmless.splitlines()) or "(none)"


def cut_middle(text: str, max_chars: int) -> str:
    """Return at most `max_chars` characters and a note: 'ab [6 characters left out] ij'."""
    n_cut = len(text) - max_chars
    if n_cut <= 0:
        return text
    head = max_chars // 2
    return f"{text[:head]} [{n_cut} characters left out] {text[head + n_cut :]}"
