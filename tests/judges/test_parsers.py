"""How judges' answers are read: a large corpus for each parser, and what no text may do to one."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minirl.config import Parser
from minirl.judges.parsers import JSON_CHARS, parse
from minirl.types import Verdict

PARSERS = get_args(Parser)

ANSWERS = json.loads(Path(__file__).with_name("answers.json").read_text())
PHRASES, STATUSES, OBJECTS = (ANSWERS[name] for name in ("not-success-first", "status", "structured"))


def answer(verdict: object, thought: object = "So.") -> str:
    return json.dumps({"thought": thought, "verdict": verdict})


OBJECTS |= {
    answer("SUCCESS", "x" * 50_000): True,
    answer("SUCCESS", "x" * JSON_CHARS): None,
    '{"thought": ' + "[" * 40_000 + "]" * 40_000 + ', "verdict": "SUCCESS"}': None,
    '{"thought": "So.", "n": ' + "9" * 10_000 + ', "verdict": "SUCCESS"}': None,
    "{" * 90_000 + "}": None,
}
# Every rationale above every form of a verdict's line, with every spelling in place of {}
CORPUS = [
    (f"{rationale}\n{ending.replace('{}', words) if '{{' not in ending else ending.format(words)}", expected)
    for rationale, ending, (words, expected) in product(
        ANSWERS["rationales"], ANSWERS["endings"], ANSWERS["spellings"].items()
    )
]
ENDINGS = {text: said for said in (True, False, None) for text in ANSWERS["verdict-line-endings"][str(said)]}
LINES = dict(CORPUS) | dict.fromkeys(ANSWERS["verdict-line"]) | ENDINGS
CORPORA = {"not-success-first": PHRASES, "status": STATUSES, "structured": OBJECTS, "verdict-line": LINES}


def test_the_corpus_is_large_and_holds_both_verdicts():
    assert len(CORPUS) >= 2000 and len({text for text, _ in CORPUS}) == len(CORPUS)
    assert 0.3 < sum(expected for _, expected in CORPUS) / len(CORPUS) < 0.7


@pytest.mark.parametrize("parser", CORPORA)
def test_every_answer_of_a_corpus_is_read(parser):
    corpus = CORPORA[parser]
    counts = [sum(expected is kind for expected in corpus.values()) for kind in (True, False, None)]
    assert len(corpus) >= 40 and min(counts) >= 8, counts
    found = {text: parse(parser, text) for text in corpus}
    wrong = [(text[:200], found[text]) for text in corpus if found[text].success is not corpus[text]]
    assert not wrong, f"{len(wrong)} wrong, the first: {wrong[:3]}"
    for verdict in found.values():
        assert verdict.error.startswith("the judge's answer") is (verdict.success is None)
        assert bool(verdict.error) is (verdict.success is None)


def test_a_verdict_may_end_the_last_line_as_people_write_it():
    """The traps are quotations, answers that are told again, lists, conditions and other results."""
    assert len(ENDINGS) >= 70 and min(sum(v is kind for v in ENDINGS.values()) for kind in (True, False)) > 15
    said = parse("verdict-line", "Two mugs.\nBoth are red, so my verdict is: SUCCESS")
    assert said == Verdict(True, "Two mugs.\nBoth are red, so my verdict is: SUCCESS")
    assert "contradict" in parse("verdict-line", "It said\nNOT SUCCESS\nthere.\nResult: SUCCESS").error


@pytest.mark.parametrize("text", ["Therefore, my verdict is: ", "Result: "])
def test_a_line_of_its_own_wins_over_a_sentence(text):
    """An ending is only looked for where there is no verdict: nothing else is read otherwise than before."""
    for alone, said in (("SUCCESS", True), ("NOT SUCCESS", False)):
        for words in ("SUCCESS", "NOT SUCCESS"):
            assert parse("verdict-line", f"{alone}\nThe mug: fine. {text}{words}").success is said


def test_the_released_rules_would_get_some_wrong():
    """The controls: a phrase anywhere, and success after the first status."""
    wrong = sum(("SUCCESS" in t.upper() and "NOT SUCCESS" not in t.upper()) is not said for t, said in CORPUS)
    assert wrong > len(CORPUS) / 4

    def phrase(text: str) -> bool | None:
        return ("NOT SUCCESS" not in text) if "SUCCESS" in text else None

    def after_status(text: str) -> bool:
        return "success" in "".join(text.lower().split("status:")[1:2])

    assert [t for t in PHRASES if phrase(t) and PHRASES[t] is False] == [
        "**NOT** SUCCESS",
        "__NOT__ __SUCCESS__",
        "NOT_SUCCESS",
        "NOT-SUCCESS",
        "NOT  SUCCESS",
        "All in all this is NOT\nSUCCESS",
        "`NOT` `SUCCESS`",
        "NOT A SUCCESS",
    ]
    assert sum(after_status(t) and STATUSES[t] is False for t in STATUSES) >= 5
    plain = ["SUCCESS", "NOT SUCCESS", "Verdict: SUCCESS", "The task is NOT SUCCESSFUL."]
    assert [parse("not-success-first", t).success for t in plain] == [phrase(t) for t in plain]


def test_reasons_are_kept_and_problems_are_said():
    said = parse("verdict-line", "<think>hm</think>\nTwo mugs.\nBoth red.\n\n**Verdict: SUCCESS**\n")
    assert said == Verdict(True, "Two mugs.\nBoth red.")
    assert parse("verdict-line", "It is unclear.").rationale == "It is unclear."
    assert "no line with a verdict" in parse("verdict-line", "It is fine.").error
    assert "contradict each other" in parse("verdict-line", "SUCCESS\nNOT SUCCESS").error
    assert parse("status", "Thoughts: two.\nStatus:\nsuccess") == Verdict(True, "Thoughts: two.")
    assert parse("structured", answer("NOT SUCCESS", " One. ")) == Verdict(False, "One.")
    assert parse("not-success-first", "One.\nNOT SUCCESS") == Verdict(False, "One.\nNOT SUCCESS")
    assert parse("verdict-line", "One.\nNOT SUCCESS") == Verdict(False, "One.")
    assert "contradict each other" in parse("status", "Status: success\nStatus: failure").error
    assert "a field is there twice" in parse("structured", '{"a": 1, "a": 2}').error
    assert "its verdict is 'MAYBE'" in parse("structured", answer("MAYBE")).error
    assert "a program decides" in parse("rules", "SUCCESS").error
    for parser in PARSERS:
        assert "still thinks" in parse(parser, "<think>SUCCESS").error


PIECES = (
    *("SUCCESS", "NOT ", "not ", "Status", ":", "success", "failure", "Thoughts:", "\n", " ", ". ", "> "),
    *("{", "}", "[", '"', "\\", ",", '"thought": "x"', '"verdict": "SUCCESS"', "```", "**", "1."),
    *("<think>", "</think>", "\x00", "\ud800", "\u2028"),
)
texts = st.text() | st.lists(st.sampled_from(PIECES)).map("".join)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(("SUCCESS", "NOT SUCCESS", "")),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(("thought", "verdict", "x")), inner),
)


@given(texts)
def test_any_text_is_read_without_an_error(text):
    for parser in PARSERS:
        verdict = parse(parser, text)
        assert bool(verdict.error) is (verdict.success is None)


@given(values)
def test_any_json_is_read_without_an_error(value):
    fine = (
        isinstance(value, dict)
        and isinstance(value.get("thought"), str)
        and value.get("verdict") in ("SUCCESS", "NOT SUCCESS")
    )
    success = parse("structured", json.dumps(value)).success
    assert (success is not None) is fine or not isinstance(value, dict)  # a list may hold one object
    if fine:
        assert success is (value["verdict"] == "SUCCESS")


@given(st.text(), st.booleans())
def test_whatever_the_thought_is_the_verdict_is_the_field(thought, expected):
    thought = thought.replace("</think>", "")
    text = answer("SUCCESS" if expected else "NOT SUCCESS", thought)
    assert parse("structured", f"```json\n{text}\n```").success is expected


@pytest.mark.parametrize(
    ("parser", "text"),
    [
        ("not-success-first", "It was **NOT\n SUCCESS**"),
        ("status", "Thoughts: no success.\n**Status**: not successful"),
        ("status", "Thoughts: no success. Status: unsuccessful"),
        ("structured", "```json\n" + answer("NOT SUCCESS", "No SUCCESS {so}.") + "\n```"),
        ("verdict-line", "No SUCCESS.\n**Verdict: NOT SUCCESS**"),
    ],
)
def test_a_failure_that_was_cut_off_is_never_a_success(parser, text):
    cut = [parse(parser, text[:n]).success for n in range(len(text) + 1)]
    assert cut[-1] is False and True not in cut


@pytest.mark.parametrize(
    "text",
    [
        *("Status" + " " * 300_000, ". " * 200_000 + "status", "NOT " * 100_000, "status:\n" * 50_000),
        *(". my verdict is " * 50_000, "so my verdict is:" + "*" * 300_000, "the my " * 50_000 + "verdict"),
        ". My verdict is: success" * 20_000 + "?",
    ],
)
def test_long_answers_do_not_hang_a_parser(text):
    assert [parse(parser, text).success for parser in PARSERS] == [None] * len(PARSERS)


@given(
    st.lists(
        st.sampled_from(("SUCCESS", "NOT", "NOT SUCCESS", "\n", ".", " ", "**", "<think>", "</think>", "it"))
    )
)
@example([".", "NOT SUCCESS", "\n", "SUCCESS"])
def test_a_success_is_only_read_from_a_line_that_says_so(parts):
    text = "".join(parts)
    if parse("verdict-line", text).success:
        lines = [line.strip(" *.") for line in text.rpartition("</think>")[2].splitlines()]
        assert "SUCCESS" in lines and "NOT SUCCESS" not in lines


@given(st.text(alphabet=st.characters(exclude_categories=["Lu", "Ll"])), st.booleans())
def test_a_verdict_after_anything_without_letters_is_read(text, expected):
    assert parse("verdict-line", f"{text}\n{'SUCCESS' if expected else 'NOT SUCCESS'}").success is expected
