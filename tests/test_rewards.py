"""Who gets which reward."""

from dataclasses import replace

import pytest

from minirl.advantages import make_group
from minirl.config import RewardConfig
from minirl.rewards import apply_reward_gates, mark_blocked, needs_verdict, reward
from minirl.types import Call, Parsed, Stop, Task, Trajectory, Turn, Verdict

TASK = Task("shop-0-17", "Order 2 red mugs", "http://shop-0.test/")
TURN = Turn(3, (9,), (7, 2), (-0.1, -0.7), "")


# stop: (reward of a success, reward of a failure, says something about the policy)
GATE = {
    Stop.DONE: (1.0, 0.0, True),
    Stop.MAX_STEPS: (0.0, 0.0, True),
    Stop.FORMAT_ERROR: (-1.0, -1.0, True),
    Stop.REPEATED: (0.0, 0.0, True),
    Stop.LENGTH: (0.0, 0.0, True),
    Stop.TIMEOUT: (0.0, 0.0, False),
    Stop.SAMPLER_ERROR: (0.0, 0.0, False),
    Stop.SITE_ERROR: (0.0, 0.0, False),
    Stop.ENV_ERROR: (0.0, 0.0, False),
    Stop.BLOCKED: (0.0, 0.0, False),
    Stop.INFRA_ERROR: (0.0, 0.0, False),
    Stop.JUDGE_ERROR: (0.0, 0.0, False),
}


ANY = RewardConfig(after="any", format_error=-0.5)


@pytest.mark.parametrize("stop", Stop)
def test_only_done_earns_and_only_format_errors_cost(stop):
    """Where any ending is graded the rules alone decide, and format errors cost failures."""
    succeeded, failed, says_something = GATE[stop]
    assert (reward(stop, 1.0), reward(stop, 0.0)) == (succeeded, failed)
    assert judged(TURN, stop=stop).valid is says_something
    failed = -0.5 if stop is Stop.FORMAT_ERROR else 0.0
    assert (reward(stop, 1.0, ANY), reward(stop, 0.0, ANY)) == (float(says_something), failed)


READ = replace(TURN, parsed=Parsed("so", (Call("click", {"point_2d": [1, 1]}),)))
UNREAD = replace(TURN, parsed=Parsed("so", error="Error: no </think> in the response."))
WORDLESS = replace(TURN, parsed=Parsed("so"))  # no error, and no call either
ENDS = replace(TURN, parsed=Parsed("so", (Call("done", {"response": "Two."}),)))

YES, NO = Verdict(True, "Two red mugs."), Verdict(False, "One is blue.")
NONE = Verdict(None, "Hm.", "the judge's answer can't be used")


def judged(*turns: Turn, stop: Stop = Stop.DONE, answer: str = "Two.", **fields) -> Trajectory:
    return Trajectory(TASK, 0, turns=turns, stop=stop, answer=answer, **fields)


@pytest.mark.parametrize(
    ("turns", "answer", "every", "last"),
    [
        ((READ, ENDS), "Two.", True, True),
        ((UNREAD, READ, ENDS), "Two.", False, True),
        ((WORDLESS, ENDS), "Two.", False, True),
        ((READ, UNREAD), "Two.", False, False),
        ((READ, WORDLESS), "Two.", False, False),
        ((READ, ENDS), " \n", False, False),
        ((), "Two.", False, False),
    ],
)
def test_format_and_answer_come_before_the_judge(turns, answer, every, last):
    """R = 1 only if the responses are in the format, there is an answer, and the judge says SUCCESS. An
    evaluation asks the judge about everything that the agent ended."""
    for gates, passes in (("every", every), ("last", last), ("none", bool(turns))):
        trajectory = judged(*turns, answer=answer)
        assert needs_verdict(trajectory, gates) is passes
        assert apply_reward_gates(replace(trajectory, verdict=YES), gates).reward == float(passes)
        assert apply_reward_gates(replace(trajectory, verdict=YES), gates).success is passes
        for verdict in (NO, NONE, None) if not passes else (NO,):
            gated = apply_reward_gates(replace(trajectory, verdict=verdict), gates)
            assert (gated.reward, gated.success, gated.stop) == (0.0, False, Stop.DONE)


@pytest.mark.parametrize("verdict", [YES, NO, NONE, None])
@pytest.mark.parametrize("stop", [stop for stop in Stop if stop is not Stop.DONE])
def test_only_what_the_agent_ended_itself_is_judged(stop, verdict):
    trajectory = judged(READ, ENDS, stop=stop, error="why", success=True, reward=1.0)
    assert not needs_verdict(trajectory) and not needs_verdict(trajectory, "none")
    trajectory = replace(trajectory, verdict=verdict)
    gated = apply_reward_gates(trajectory)
    assert gated == replace(trajectory, success=False, reward=GATE[stop][0])


@pytest.mark.parametrize("stop", Stop)
def test_where_any_ending_is_graded_an_evaluation_judges_all_that_are_the_agents_own(stop):
    """Without a gate an empty answer is the judge's affair; training's gates refuse it before."""
    limited = judged(READ, READ, stop=stop, answer="")
    assert needs_verdict(limited, "none", ANY) is limited.valid is GATE[stop][2]
    assert not any(needs_verdict(limited, gates, ANY) for gates in ("every", "last"))
    passed = apply_reward_gates(replace(limited, verdict=YES), "none", ANY)
    assert (passed.success, passed.reward, passed.stop) == (limited.valid, float(limited.valid), stop)
    denied = apply_reward_gates(replace(limited, verdict=NO), "none", ANY)
    assert (denied.success, denied.reward) == (False, -0.5 if stop is Stop.FORMAT_ERROR else 0.0)
    trained = apply_reward_gates(replace(limited, verdict=YES), "every", ANY)
    assert (trained.success, trained.reward) == (denied.success, denied.reward)


@pytest.mark.parametrize(
    ("verdict", "error"), [(NONE, "the judge's answer can't be used"), (None, "no judge was asked")]
)
def test_no_verdict_is_no_failure(verdict, error):
    gated = apply_reward_gates(judged(READ, ENDS, verdict=verdict))
    assert (gated.stop, gated.error) == (Stop.JUDGE_ERROR, error)
    assert (gated.success, gated.reward, gated.valid) == (False, 0.0, False)


def test_a_verdict_changes_nothing_else():
    trajectory = judged(READ, ENDS, seconds=3.0, final_image="x")
    passed, denied = replace(trajectory, verdict=YES), replace(trajectory, verdict=NO)
    assert apply_reward_gates(passed) == replace(passed, success=True, reward=1.0)
    assert apply_reward_gates(denied) == denied
    again = replace(apply_reward_gates(passed), verdict=NO)
    assert apply_reward_gates(again) == denied, "an earlier verdict does not count"


EXCUSED = (Stop.DONE, Stop.MAX_STEPS, Stop.REPEATED)


@pytest.mark.parametrize("stop", Stop)
def test_a_failure_before_a_page_that_keeps_visitors_out_is_nobodys_fault(stop):
    failed = judged(READ, ENDS, stop=stop, error="why", blocked="it answered 403")
    excused = replace(failed, stop=Stop.BLOCKED, error="blocked: it answered 403")
    assert mark_blocked(failed) == (excused if stop in EXCUSED else failed)
    assert mark_blocked(replace(failed, blocked="")) == replace(failed, blocked="")
    assert not excused.valid and mark_blocked(excused) == excused


def test_a_success_before_such_a_page_stays_one_and_format_errors_still_cost():
    won = replace(apply_reward_gates(judged(READ, ENDS, verdict=YES)), blocked="it answered 403")
    assert mark_blocked(won) == won and (won.success, won.reward) == (True, 1.0)
    costly = apply_reward_gates(
        judged(UNREAD, UNREAD, UNREAD, stop=Stop.FORMAT_ERROR, answer="", blocked="it answered 403")
    )
    assert mark_blocked(costly).reward == -1.0
    lost = mark_blocked(apply_reward_gates(judged(READ, ENDS, verdict=NO, blocked="it answered 403")))
    assert make_group([lost, won, replace(won, member=1)]) == (won, replace(won, member=1))
