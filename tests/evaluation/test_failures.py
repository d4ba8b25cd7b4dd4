"""Phrases, lengths and error categories of made-up episodes, counted by hand."""

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from minirl.evaluation.failures import PROXIES, category_of, error_rows, proxies_of, proxy_rows, step_metrics
from minirl.types import Call, Parsed, Stop, Task, Trajectory, Turn, Verdict

PROXY = ("name", "turns", "rate", "mean", "p90")
ERROR = ("category", "count", "share", "paper")
TASK = Task("shop-0-17", "Order 2 red mugs", "http://shop-0.test/")
CALL = '\n</think>\n\n<tool_call>\n{"name": "click", "arguments": {}}\n</tool_call>'


def turn(text: str = "", tokens: int = 0, *feedback: str, prompt: int = 0, error: str | None = None) -> Turn:
    parsed = Parsed(text, (Call("click", {}),), error)
    return Turn(prompt, (), (7,) * tokens, (-0.1,) * tokens, text + CALL, parsed=parsed, feedback=feedback)


def episode(*turns: Turn, **fields: object) -> Trajectory:
    return Trajectory(TASK, 0, turns=turns or (turn(),), **fields)


PHRASES = tomllib.loads((Path(__file__).parents[1] / "data" / "phrases.toml").read_text())
SAID = PHRASES["said"]


@pytest.mark.parametrize(("family", "said"), [(family, said) for family in SAID for said in SAID[family]])
def test_phrases_are_found_in_any_case(family, said):
    for words in (said, said.upper(), said.lower(), f"Hm. {said} Well."):
        assert family in proxies_of(turn(words))


def test_plain_words_are_of_no_family_and_responses_of_several_up_to_their_first_call():
    assert [said for said in PHRASES["plain"] if proxies_of(turn(said))] == []
    assert proxies_of(turn("I've tried that, and a CAPTCHA came.")) == {"history", "blocker"}
    call = '<tool_call>{"name": "write", "arguments": {"message": "captcha, so far"}}</tool_call>'
    assert proxies_of(replace(turn(), text=f"Type it.</think>{call} I've tried.")) == frozenset()


def test_how_often_and_at_what_length_by_hand():
    """Seven turns: history in three (100, 200 and 600 tokens), blocker in two of these."""
    first = episode(
        turn("So far so good.", 100), turn("So far a CAPTCHA.", 200), turn("I click.", 40), turn("On.", 60)
    )
    second = episode(turn("I've tried. Access denied.", 600), turn("Now this.", 80), turn("Go back.", 30))
    rows = {row["name"]: tuple(row.values()) for row in proxy_rows([first, second])}
    assert list(rows) == ["history", "blocker", "retry", "proof", "any", "none", "all"]
    assert rows["history"] == ("history", 3, 3 / 7, 300, 600)
    assert rows["blocker"] == ("blocker", 2, 2 / 7, 400, 600)
    assert rows["retry"] == ("retry", 1, 1 / 7, 30, 30)
    assert rows["proof"] == ("proof", 0, 0.0, None, None)
    assert rows["any"] == ("any", 4, 4 / 7, 232.5, 600)
    assert rows["none"] == ("none", 3, 3 / 7, 60, 80)
    assert rows["all"] == ("all", 7, 1.0, 1110 / 7, 600)
    assert proxy_rows([])[-1] == dict(zip(PROXY, ("all", 0, None, None, None), strict=True))
    served = proxy_rows([episode(turn("So far."), turn("Click."))])
    assert tuple(served[0].values()) == ("history", 1, 0.5, None, None), "its tokens are not known"


YES, NO, NONE = Verdict(True, ""), Verdict(False, ""), Verdict(None, "", "no answer")
FAILED = "click: failed, there is nothing to click on."
IDLE = "click: clicked button at [1, 1]. Nothing on the page changed."
WORKS = "click: clicked button at [1, 1]. Now at http://shop-0.test/."


@pytest.mark.parametrize(
    ("trajectory", "verdict", "category"),
    [
        (episode(success=True), None, None),
        (episode(success=True), YES, None),
        (episode(success=True), NO, "evaluation"),  # the site's state says otherwise
        (episode(stop=Stop.JUDGE_ERROR), None, "evaluation"),
        (episode(), NONE, "evaluation"),
        (episode(answer="A CAPTCHA.", stop=Stop.BLOCKED), NO, "blocked"),
        (replace(episode(stop=Stop.SITE_ERROR), turns=()), None, "access"),
        (episode(answer="The site shows a CAPTCHA."), NO, "access"),
        (episode(turn("Here is Cloudflare."), stop=Stop.MAX_STEPS), None, "access"),
        (episode(turn("A captcha."), turn("It went away."), stop=Stop.MAX_STEPS), None, "reasoning"),
        (episode(stop=Stop.FORMAT_ERROR), None, "form"),
        (replace(episode(stop=Stop.LENGTH), turns=()), None, "form"),  # the first page did not fit
        (episode(turn("", 1, FAILED, WORKS, WORKS)), NO, "grounding"),  # one of three
        (episode(turn("", 1, WORKS, WORKS), turn("", 1, IDLE, WORKS)), NO, "reasoning"),  # one of four
        (episode(turn("", 1, IDLE), turn("", 1, WORKS), stop=Stop.MAX_STEPS), None, "grounding"),
        (episode(turn("", 1, "Error: failed, or so", error="Error"), turn("", 1, WORKS)), NO, "reasoning"),
        (episode(), NO, "reasoning"),
    ],
)
def test_why_an_episode_failed(trajectory, verdict, category):
    assert category_of(replace(trajectory, verdict=verdict)) == category


@pytest.mark.parametrize(
    "line",
    [
        "Failed: `click` execution failed: there is nothing to click on.",
        '`click` on <button> "Go" at (1, 1) executed. Note: no visible navigation or new tab detected.',
        "`scroll` down by 50% at (1, 1) executed. Note: page scroll position did not change and may be at a "
        "boundary.",
        '`write` typed "a" into <input>. Note: the actual value is "b", which differs from the typed text.',
        FAILED,
        IDLE,
        "scroll: the page did not move down; it may be at its end.",
        "write: typed 'a'. But input now holds 'b', which differs from what was typed.",
    ],
)
def test_calls_that_missed_are_told_by_their_feedback_in_both_wordings(line):
    """That of OpenWebRL's table 5, and that of earlier versions' dumps."""
    works = "Succeed: `click` on <button> executed. Page navigated to http://shop-0.test/."
    for done in (works, WORKS):
        assert category_of(episode(turn("", 1, line), turn("", 1, done))) == "grounding"
        assert category_of(episode(turn("", 1, done), turn("", 1, done))) == "reasoning"


@pytest.mark.parametrize("stop", Stop)
def test_every_failure_has_a_category(stop):
    category = category_of(episode(stop=stop))
    assert category is not None
    others = (Stop.BLOCKED, Stop.JUDGE_ERROR)
    assert (category == "access") is (not stop.is_agent_fault and stop not in others)


def test_categories_are_counted_beside_the_papers():
    failures = [episode(stop=Stop.SITE_ERROR)] * 2 + [episode(stop=Stop.LENGTH), episode()]
    assert error_rows([*failures, episode(success=True)]) == [
        dict(zip(ERROR, ("access", 2, 0.5, 0.51), strict=True)),
        dict(zip(ERROR, ("form", 1, 0.25, None), strict=True)),
        dict(zip(ERROR, ("reasoning", 1, 0.25, 0.27), strict=True)),
    ]
    assert error_rows([]) == []


def test_a_steps_metrics_are_shares_of_turns_and_counts_of_failures():
    done = replace(episode(turn("So far."), turn("Click.")), success=True)
    failed = episode(turn("I see the list."), turn("Click."), stop=Stop.FORMAT_ERROR)
    found = step_metrics([done, failed])
    assert found["proxy/history"] == 0.25 and found["proxy/retry"] == 0 and found["error/form"] == 1
    assert set(found) == {f"proxy/{name}" for name in PROXIES} | {"error/form"}, "these turns have no ids"
    ids = [replace(turn("So far."), response_ids=(1,) * n) for n in (10, 30)]
    found = step_metrics([episode(*ids, replace(turn("Click."), response_ids=(1,) * 4))])
    assert (found["proxy_mean/history"], found["proxy_mean/none"]) == (20, 4)
    assert found["proxy_p90/history"] >= 28 and "proxy_mean/retry" not in found
