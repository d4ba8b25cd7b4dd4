"""Read a judge's answer: text in, a Verdict out.

    text --read_verdict--> Verdict(True, "The cart shows two red mugs.")

Every rubric (rubrics.py) asks for SUCCESS or NOT SUCCESS alone on the last line. An answer that has neither
there is no verdict. Deviations from the papers' released codes:
1. OpenWebRL's and WebVoyager's take the first phrase anywhere that spells a verdict, even one in the reasons.
2. AgentTrek's takes the word after "Status:", DeepShop's a JSON object.
3. OpenWebRL's and AgentTrek's count an answer that can't be read as a failure.
"""

import re

from minirl.context import THINK_END
from minirl.types import Verdict

# Emphasis, fences, headings, quotes and brackets, which models put around a verdict
_MARKS = re.compile(r"[*_`#\"'“”‘’()\[\]{}]")
_VERDICT = re.compile(r"(?:(?:(?:the|my|final) )*verdict(?: is)? ?[:–—-] ?)?(not[ -])?success(?:ful)?", re.I)


def read_verdict(text: str) -> Verdict:
    """Return the verdict of the last line with words, such as "**Verdict:** NOT SUCCESS."; the lines above
    are the rationale. What a model thinks up to `</think>` is not read. A verdict without success says why
    the answer can't be used."""
    answer = text.rpartition(THINK_END)[2].strip()
    if answer.startswith("<think>"):
        return Verdict(None, answer, "the judge's answer ends while it still thinks")
    lines = answer.splitlines()
    while lines and not without_marks(lines[-1]):
        lines.pop()
    last_line = without_marks(lines[-1]) if lines else ""
    verdict = _VERDICT.fullmatch(last_line)
    if not verdict:
        return Verdict(None, answer, f"the last line of the judge's answer is no verdict: {last_line[:80]!r}")
    return Verdict(not verdict[1], "\n".join(lines[:-1]).strip())


def without_marks(text: str) -> str:
    """Return the text in one line, without emphasis and quotes around words or punctuation at the end."""
    return " ".join(_MARKS.sub(" ", text).split()).rstrip(".!,;: ")
