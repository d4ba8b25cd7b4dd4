"""Read a judge's answer: text in, a Verdict out.

    text --read_verdict(parse_last_line, text)--> Verdict(True, "The cart shows two red mugs.")

Each rubric (rubrics.py) has one parser, which reads the verdict from where the prompt asks for it. An answer
that has none there is no verdict. Deviations from the papers' released codes:
1. OpenWebRL's takes the first phrase anywhere that spells a verdict, even one in the reasons; here the last
   line is the verdict.
2. WebVoyager's and AgentTrek's take UNSUCCESSFUL for a success; here it is none.
3. OpenWebRL's and AgentTrek's count an answer that can't be read as a failure; here it is no verdict.
"""

import json
import re
from collections.abc import Callable

from minirl.context import THINK_END
from minirl.types import Verdict

VerdictParser = Callable[[str], Verdict]  # raises ValueError if the text has no verdict

# Emphasis, fences, headings, quotes and brackets, which models put around a verdict
MARKS = "*_`#\"'“”‘’()[]{}"
_MARKS = re.compile(rf"[{re.escape(MARKS)}]")
_VERDICT = re.compile(r"(?:(?:(?:the|my|final) )*verdict(?: is)? ?[:–—-] ?)?(not[ -])?success(?:ful)?", re.I)
_PHRASE = re.compile(r"(?<![A-Za-z])(NOT[\s*_`-]+(?:A\s+)?)?SUCCESS")
_AROUND = f"[ {re.escape(MARKS)}]*"
_STATUS = re.compile(rf"(?:^|[.!?;] ){_AROUND}status{_AROUND}:", re.IGNORECASE | re.MULTILINE)
STATUSES = {
    "success": True,
    "successful": True,
    "failure": False,
    "failed": False,
    "unsuccessful": False,
    "not success": False,
    "not successful": False,
}


def read_verdict(parser: VerdictParser, text: str) -> Verdict:
    """Return the verdict in a judge's answer, or one without success that says why it can't be read. What a
    model thinks up to `</think>` is not read."""
    answer = text.rpartition(THINK_END)[2].strip()
    if answer.startswith("<think>"):
        return Verdict(None, answer, "the judge's answer ends while it still thinks")
    try:
        return parser(answer)
    except ValueError as problem:
        return Verdict(None, answer, f"the judge's answer can't be used: {problem}")


def parse_last_line(answer: str) -> Verdict:
    """Return the verdict of the last line with words, such as "**Verdict:** NOT SUCCESS."; the lines above
    are the rationale. OpenWebRL's and AutoWebWorld's."""
    lines = answer.splitlines()
    while lines and not without_marks(lines[-1]):
        lines.pop()
    if not lines:
        raise ValueError("it is empty")
    verdict = _VERDICT.fullmatch(without_marks(lines[-1]))
    if verdict is None:
        raise ValueError("its last line is no verdict")
    return Verdict(verdict[1] is None, "\n".join(lines[:-1]).strip())


def parse_phrase(answer: str) -> Verdict:
    """Return a failure if NOT SUCCESS stands anywhere, else a success if SUCCESS does. WebVoyager's."""
    negations = _PHRASE.findall(answer)
    if not negations:
        raise ValueError("it has neither SUCCESS nor NOT SUCCESS")
    return Verdict(not any(negations), answer)


def parse_status(answer: str) -> Verdict:
    """Return the success or failure that follows the last "Status:", which begins a line or a sentence.
    AgentTrek's."""
    labels = list(_STATUS.finditer(answer))
    if not labels:
        raise ValueError("it has no status")
    status = without_marks(answer[labels[-1].end() :]).lower()
    if status not in STATUSES:
        raise ValueError(f"its status is {status[:80]!r}, neither success nor failure")
    rationale = answer[: labels[-1].start()].strip(MARKS + " \n")
    return Verdict(STATUSES[status], rationale)


def parse_json(answer: str) -> Verdict:
    """Return the verdict of the JSON object with the texts `thought` and `verdict`. DeepShop's."""
    start, end = answer.find("{"), answer.rfind("}")
    try:
        fields = json.loads(answer[start : end + 1])
    except (ValueError, RecursionError) as problem:
        raise ValueError(f"it is no JSON object ({problem})") from None
    thought, verdict = fields.get("thought"), fields.get("verdict")
    if not isinstance(thought, str) or not isinstance(verdict, str):
        raise ValueError("its JSON has no thought and verdict, both strings")
    if verdict.upper() not in ("SUCCESS", "NOT SUCCESS"):
        raise ValueError(f"its verdict is {verdict[:80]!r}, neither SUCCESS nor NOT SUCCESS")
    return Verdict(verdict.upper() == "SUCCESS", thought.strip())


def without_marks(text: str) -> str:
    """Return the text in one line, without emphasis and quotes around words or punctuation at the end."""
    return " ".join(_MARKS.sub(" ", text).split()).rstrip(".!,;: ")
