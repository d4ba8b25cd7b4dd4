"""How judges' answers are read: answers with their verdicts, and what no text may do to a parser."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minirl.judges.parsers import parse_json, parse_last_line, parse_phrase, parse_status, read_verdict
from minirl.types import Verdict

PARSERS = {"last line": parse_last_line, "phrase": parse_phrase, "status": parse_status, "json": parse_json}
ANSWERS = json.loads(Path(__file__).with_name("answers.json").read_text())


def answer(verdict: object, thought: object = "So.") -> str:
    return json.dumps({"thought": thought, "verdict": verdict})


@pytest.mark.parametrize("name", PARSERS)
def test_every_answer_is_read(name):
    verdicts = {text: read_verdict(PARSERS[name], text) for text in ANSWERS[name]}
    wrong = [(text, v) for text, v in verdicts.items() if v.success is not ANSWERS[name][text]]
    assert not wrong, f"{len(wrong)} wrong, the first: {wrong[:3]}"
    for verdict in verdicts.values():
        assert verdict.error.startswith("the judge's answer") is (verdict.success is None)


@pytest.mark.parametrize(
    ("name", "text", "verdict"),
    [
        ("last line", "<think>hm</think>\nTwo mugs.\n\n**Verdict: SUCCESS**\n", Verdict(True, "Two mugs.")),
        ("last line", "One.\nNOT SUCCESS", Verdict(False, "One.")),
        ("phrase", "One.\nNOT SUCCESS", Verdict(False, "One.\nNOT SUCCESS")),
        ("status", "Thoughts: two.\n**Status:**\nsuccess", Verdict(True, "Thoughts: two.")),
        ("json", answer("NOT SUCCESS", " One. "), Verdict(False, "One.")),
    ],
)
def test_reasons_are_kept(name, text, verdict):
    assert read_verdict(PARSERS[name], text) == verdict


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("last line", "It is fine.", "its last line is no verdict"),
        ("phrase", "It is fine.", "neither SUCCESS nor NOT SUCCESS"),
        ("status", "It is fine.", "it has no status"),
        ("status", "Status: maybe", "its status is 'maybe'"),
        ("json", "It is fine.", "it is no JSON object"),
        ("json", answer("MAYBE"), "its verdict is 'MAYBE'"),
        *((name, "<think>SUCCESS", "still thinks") for name in PARSERS),
    ],
)
def test_problems_are_named(name, text, problem):
    verdict = read_verdict(PARSERS[name], text)
    assert problem in verdict.error and verdict.rationale == text


PIECES = (
    *("SUCCESS", "NOT ", "not ", "Status", ":", "success", "failure", "\n", " ", ". ", "> ", "```", "**"),
    *("{", "}", "[", '"', "\\", ",", '"thought": "x"', '"verdict": "SUCCESS"', "1."),
    *("<think>", "</think>", "\x00", "\ud800", "\u2028"),
)


@given(st.text() | st.lists(st.sampled_from(PIECES)).map("".join))
def test_any_text_is_read_without_an_error(text):
    for parser in PARSERS.values():
        verdict = read_verdict(parser, text)
        assert bool(verdict.error) is (verdict.success is None)


@given(st.text(), st.booleans())
def test_whatever_the_reasons_are_the_verdict_stands_where_the_prompt_asks_for_it(reasons, expected):
    reasons = reasons.replace("</think>", "").removeprefix("<think>")
    words, status = ("SUCCESS", "success") if expected else ("NOT SUCCESS", "failure")
    texts = {"last line": f"So: {reasons}\n{words}", "status": f"So: {reasons}\nStatus: {status}"}
    texts["json"] = f"```json\n{answer(words, reasons)}\n```"
    for name, text in texts.items():
        assert read_verdict(PARSERS[name], text).success is expected


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("phrase", "It was **NOT\n SUCCESS**"),
        ("status", "Thoughts: no success.\n**Status**: not successful"),
        ("json", "```json\n" + answer("NOT SUCCESS", "No SUCCESS {so}.") + "\n```"),
        ("last line", "No SUCCESS.\n**Verdict: NOT SUCCESS**"),
    ],
)
def test_a_failure_that_was_cut_off_is_never_a_success(name, text):
    cut = [read_verdict(PARSERS[name], text[:n]).success for n in range(len(text) + 1)]
    assert cut[-1] is False and True not in cut


@pytest.mark.parametrize(
    "text",
    [
        *("Status" + " " * 300_000, ". " * 200_000 + "status", "NOT " * 100_000, "status:\n" * 50_000),
        *("the my " * 50_000 + "verdict", "my verdict is:" + "*" * 300_000, "\n" * 300_000 + "x"),
        *("[" * 200_000, '{"thought": ' + "[" * 40_000 + "]" * 40_000 + "}", '{"n": ' + "9" * 10_000 + "}"),
    ],
)
def test_long_answers_do_not_hang_a_parser(text):
    assert not any(read_verdict(parser, text).success is not None for parser in PARSERS.values())
