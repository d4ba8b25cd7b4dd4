"""The parsers of judges' answers: text in, a Verdict out.

    text --parse("verdict-line", ...)--> Verdict(True, "The cart shows two red mugs.")

An answer that can't be read with certainty is no verdict. Deviations: OpenWebRL's released code takes the
first phrase that spells a verdict, even one in the reasons, WebVoyager's takes UNSUCCESSFUL for a SUCCESS, so
does AgentTrek's; here it stands alone or ends the last line. The first and the last count others as failures.
"""

import json
import re
from itertools import zip_longest
from typing import Any

from minirl.config import Parser
from minirl.context import THINK_END
from minirl.types import Verdict

JSON_CHARS = 100_000  # a longer object is not parsed
MARKS = "*_`#\"'“”‘’()[]{} \t\u00a0"  # emphasis, fences, headings, quotes and brackets around a verdict
_TAG = re.compile(r"</?verdict>", re.IGNORECASE)
_BULLET = re.compile(r"^(?:[-+*•]|\d{1,2}[.)])\s+")
_VERDICT_NAME = r"(?:(?:the|my|our|final|overall)\s+)*(?:verdict|judge?ment|decision|evaluation)"
_VERDICT_IS = re.compile(rf"{_VERDICT_NAME}(?:\s+is)?[{re.escape(MARKS)}]*[:=–—-]", re.IGNORECASE)
_VERDICT = re.compile(r"(not[\s_*`-]+)?success(?:ful)?", re.IGNORECASE)
# The end of a line whose sentence the next line continues, which then is no verdict
_CONTINUES = re.compile(r"(?:\bnot|n['’]t|\bno)(?:\s+an?)?[\s*_`]*$", re.IGNORECASE)
# How people end an answer that has no such line: "Result: SUCCESS", "..., so my verdict is: NOT SUCCESS."
_SO = r"(?:therefore|thus|hence|so|overall|finally|accordingly|consequently|in (?:conclusion|summary|short))"
_OWN, _NOUN = r"(?:(?:the|my|our|your|this|final|overall) )*", r"(?:verdict|judge?ment|decision|conclusion)"
_IS = r"(?: is\b ?[:=–—-]?| ?[:=–—-]) ?"
_SAID = r"(?P<quote>[\"'“‘])? ?(?P<no>not[ -](?:an? )?|un)?success(?:ful)?[.!]? ?(?(quote)[\"'”’])[.!]?"
_ENDING = re.compile(
    rf"(?i)(?:^(?:{_SO}[,:]? )?{_OWN}(?:{_NOUN}|result|outcome)"
    rf"|(?:[.!;]|,(?= {_SO})) (?:{_SO},? )?{_OWN}{_NOUN}){_IS}{_SAID}$"
)
_PHRASE = re.compile(r"(?<![A-Za-z])(NOT[\s*_`~-]+(?:A[\s*_`~-]+)?)?SUCCESS")
_FAILED = ("failure", "failed", "fail", "unsuccessful", "not success", "not successful")
_STATUSES = {"success": True, "successful": True} | dict.fromkeys(_FAILED, False)
_AROUND = f"[{re.escape(MARKS)}]*"
_STATUS = re.compile(rf"(?:[-+•]|\d{{1,2}}[.)])?{_AROUND}(?:final\s+)?status{_AROUND}:", re.IGNORECASE)
_AT_THE_END = re.compile(rf"[.!?:;,]\s[\s{re.escape(MARKS)}]*status{_AROUND}:(?P<word>[^:]*)$", re.IGNORECASE)


def parse(parser: Parser, text: str) -> Verdict:
    """Return the verdict in a judge's answer; one that can't be read has success None and an error. What a
    model thinks up to `</think>` is not read."""
    answer = text.rpartition(THINK_END)[2].strip()
    if answer.startswith("<think>"):
        return Verdict(None, answer, "the judge's answer ends while it still thinks")
    try:
        if parser == "rules":
            raise ValueError("a program decides by rules, not a judge")
        return PARSERS[parser](answer)
    except ValueError as problem:
        return Verdict(None, answer, f"the judge's answer can't be used: {problem}")


def parse_lines(answer: str) -> Verdict:
    """Return the verdict on a line of its own, OpenWebRL's and AutoWebWorld's; the other lines are the
    rationale. Quotations ("> SUCCESS") and lists do not count, nor does a SUCCESS between other lines. Where
    there is none, the last line may end in a sentence that says it."""
    lines = answer.splitlines()
    worded = [n for n, line in enumerate(lines) if _TAG.sub("", line).strip(MARKS)]
    reasons: list[str] = []
    verdicts: set[bool] = set()
    before, certain = "", False
    for n, line in enumerate(lines):
        verdict, is_named = verdict_of_line(line)
        if verdict is None:
            reasons.append(line)
        else:
            verdicts |= {True, False} if _CONTINUES.search(before) else {verdict}
            certain |= n in (worded[0], worded[-1]) or is_named
        before = line if line.strip() else before
    if not certain and worded and verdicts_at_end(lines[worded[-1]]):
        verdicts.update(*map(verdicts_at_end, lines))
        certain = not _CONTINUES.search("".join(lines[: worded[-1]]))
    if len(verdicts) > 1:
        raise ValueError("its verdicts contradict each other")
    if not certain:
        raise ValueError("it has no line with a verdict")
    return Verdict(verdicts.pop(), "\n".join(reasons).strip())


def verdict_of_line(line: str) -> tuple[bool | None, bool]:
    """Return the verdict that a line like "**Verdict:** success." is, or None, and if it is called one."""
    line = _TAG.sub(" ", line).strip()
    words = _BULLET.sub("", line, count=1).strip(MARKS)
    label = _VERDICT_IS.match(words)
    if _BULLET.match(line) and not label:  # one of several that are listed
        return None, False
    words = words[label.end() :] if label else words
    found = _VERDICT.fullmatch(words.lstrip(MARKS + ".").rstrip(MARKS + ".!,;:"))
    return (not found[1] if found else None), label is not None


def verdicts_at_end(line: str) -> set[bool]:
    """Return the verdicts in a line's last sentence and the one before it, unless they are quoted."""
    said: set[bool] = set()
    words = " ".join(re.sub(r"</?verdict>|[*_`#]", " ", line, flags=re.IGNORECASE).split())
    for _ in range(0 if line.startswith(">") or _BULLET.match(line) else 2):
        if found := _ENDING.search(words):
            words = words[: found.start()]
            if words.count('"') % 2 == 0 and words.count("“") <= words.count("”"):
                said.add(not found["no"])
    return said


def parse_phrase(answer: str) -> Verdict:
    """Return a failure if NOT SUCCESS stands anywhere, else a success if SUCCESS does (WebVoyager's)."""
    found = [match[1] for match in _PHRASE.finditer(answer)]
    if not found:
        raise ValueError("it has neither SUCCESS nor NOT SUCCESS")
    return Verdict(not any(found), answer)


def parse_status(answer: str) -> Verdict:
    """Return the success or failure after "Status:" at a line's beginning, there or on the line below
    (AgentTrek's). Where no line begins so, it may end the answer's last line."""
    lines = [line for line in answer.splitlines() if line.strip(MARKS)]
    reasons, words = [], []
    for line, below in zip_longest(lines, lines[1:], fillvalue=""):
        if label := _STATUS.match(line.strip(MARKS)):
            words.append(line.strip(MARKS)[label.end() :] or below)
        elif status_of(line) is None:
            reasons.append(line)
    if not words and reasons and (end := _AT_THE_END.search(reasons[-1].strip(MARKS))):
        words = [end["word"]]
    found = {status_of(word) for word in words} - {None}
    if len(found) != 1:
        raise ValueError("its statuses contradict each other" if found else "it has no status")
    return Verdict(found.pop(), "\n".join(reasons).strip())


def status_of(text: str) -> bool | None:
    return _STATUSES.get(" ".join(text.strip(MARKS).rstrip(MARKS + ".!,;").lower().split()))


def parse_json(answer: str) -> Verdict:
    """Return the verdict of the one JSON object with the strings thought and verdict (DeepShop's)."""
    start, end = answer.find("{"), answer.rfind("}")
    if end - start > JSON_CHARS:
        raise ValueError(f"its JSON is longer than {JSON_CHARS} characters")
    try:
        fields = json.loads(answer[start : end + 1], object_pairs_hook=without_repeats)
    except (ValueError, RecursionError) as problem:
        raise ValueError(f"it is no JSON object ({problem})") from None
    thought, verdict = fields.get("thought"), fields.get("verdict")
    if not isinstance(thought, str) or not isinstance(verdict, str):
        raise ValueError("its JSON has no thought and verdict, both strings")
    words = " ".join(verdict.upper().replace("_", " ").split())
    if words not in ("SUCCESS", "NOT SUCCESS"):
        raise ValueError(f"its verdict is {verdict[:80]!r}, neither SUCCESS nor NOT SUCCESS")
    return Verdict(words == "SUCCESS", thought.strip())


def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a field is there twice")
    return found


PARSERS = {"verdict-line": parse_lines, "not-success-first": parse_phrase, "status": parse_status}
PARSERS["structured"] = parse_json
