"""How judges' answers are read: answers with their verdicts, and what no text may do to the parser."""

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from minirl.judges.labels import target
from minirl.judges.parsers import read_verdict
from minirl.types import Verdict

ANSWERS = json.loads(Path(__file__).with_name("answers.json").read_text())


def test_every_answer_is_read():
    verdicts = {text: read_verdict(text) for text in ANSWERS}
    wrong = [(text, v) for text, v in verdicts.items() if v.success is not ANSWERS[text]]
    assert not wrong, f"{len(wrong)} wrong, the first: {wrong[:3]}"
    assert all(bool(verdict.error) is (verdict.success is None) for verdict in verdicts.values())


def test_reasons_are_kept_and_problems_named():
    text = "<think>hm</think>\nTwo mugs.\n\n**Verdict: SUCCESS**\n"
    assert read_verdict(text) == Verdict(True, "Two mugs.")
    assert read_verdict("One.\nNOT SUCCESS") == Verdict(False, "One.")
    for text, problem in (("It is fine.", "is no verdict: 'It is fine'"), ("<think>SUCCESS", "still thinks")):
        verdict = read_verdict(text)
        assert problem in verdict.error and verdict.rationale == text


PIECES = ("SUCCESS", "NOT ", "not ", "success", "\n", " ", ". ", "> ", "```", "**", "{", '"', "1.")
PIECES += ("<think>", "</think>", "\x00", "\ud800", "\u2028")


@given(st.text() | st.lists(st.sampled_from(PIECES)).map("".join), st.booleans())
def test_any_text_is_read_and_a_target_reads_as_its_verdict(text, success):
    verdict = read_verdict(text)
    assert bool(verdict.error) is (verdict.success is None)
    reasons = text.replace("</think>", "")
    assert read_verdict(target(Verdict(success, f"So: {reasons}"))).success is success


def test_a_failure_that_was_cut_off_is_never_a_success():
    text = "No SUCCESS.\n**Verdict: NOT SUCCESS**"
    cut = [read_verdict(text[:n]).success for n in range(len(text) + 1)]
    assert cut[-1] is False and True not in cut
