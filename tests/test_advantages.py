"""Who gets which reward, and what a group makes of it: numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import pytest

from minirl.advantages import (
    advantages,
    assign_advantages,
    excuse,
    gate,
    is_effective,
    make_group,
    needs_verdict,
    reward,
    shuffle_rewards,
)
from minirl.config import LossConfig, RewardConfig
from minirl.types import Call, Group, Parsed, Stop, Task, Trajectory, Turn, Verdict

TASK = Task("shop-0-17", "Order 2 red mugs", "http://shop-0.test/")
TURN = Turn(3, (9,), (7, 2), (-0.1, -0.7), "")


def episode(stop: Stop = Stop.DONE, success: bool = False, reward: float = 0.0, member: int = 0):
    return Trajectory(TASK, member, turns=(TURN,), stop=stop, success=success, reward=reward)


def group_of(*rewards: float, task: Task = TASK) -> Group:
    return tuple(replace(episode(reward=r, member=m), task=task) for m, r in enumerate(rewards))


def of(group: Group) -> tuple[float, ...]:
    """The advantages of a group's members."""
    return tuple(t.advantage for t in group)


# --- the gate --------------------------------------------------------------------------------------

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
    Stop.CANCELLED: (0.0, 0.0, False),
}


@pytest.mark.parametrize("stop", Stop)
def test_only_done_earns_and_only_format_errors_cost(stop):
    succeeded, failed, says_something = GATE[stop]
    assert (reward(stop, 1.0), reward(stop, 0.0)) == (succeeded, failed)
    assert episode(stop).valid is says_something


@pytest.mark.parametrize("stop", Stop)
def test_where_any_ending_is_graded_the_rules_alone_decide_and_format_errors_cost_failures(stop):
    config = RewardConfig(after="any", format_error=-0.5)
    *_, says_something = GATE[stop]
    failed = -0.5 if stop is Stop.FORMAT_ERROR else 0.0
    assert (reward(stop, 1.0, config), reward(stop, 0.0, config)) == (float(says_something), failed)


def test_an_episode_without_a_turn_is_not_valid():
    assert not replace(episode(), turns=()).valid


# --- the judge's gate --------------------------------------------------------------------------------

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
        ((ENDS,), "Two.", True, True),
        ((UNREAD, READ, ENDS), "Two.", False, True),
        ((UNREAD, UNREAD, ENDS), "Two.", False, True),
        ((WORDLESS, ENDS), "Two.", False, True),
        ((READ, UNREAD), "Two.", False, False),
        ((READ, WORDLESS), "Two.", False, False),
        ((READ, ENDS), "", False, False),
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
        assert gate(replace(trajectory, verdict=YES), gates).reward == float(passes)
        assert gate(replace(trajectory, verdict=YES), gates).success is passes
        for verdict in (NO, NONE, None) if not passes else (NO,):
            gated = gate(replace(trajectory, verdict=verdict), gates)
            assert (gated.reward, gated.success, gated.stop) == (0.0, False, Stop.DONE)


@pytest.mark.parametrize("verdict", [YES, NO, NONE, None])
@pytest.mark.parametrize("stop", [stop for stop in Stop if stop is not Stop.DONE])
def test_only_what_the_agent_ended_itself_is_judged(stop, verdict):
    trajectory = judged(READ, ENDS, stop=stop, error="why", success=True, reward=1.0)
    assert not needs_verdict(trajectory) and not needs_verdict(trajectory, "none")
    trajectory = replace(trajectory, verdict=verdict)
    gated = gate(trajectory)
    assert gated == replace(trajectory, success=False, reward=GATE[stop][0])


def test_three_format_errors_cost_one():
    trajectory = judged(READ, UNREAD, UNREAD, UNREAD, stop=Stop.FORMAT_ERROR, answer="")
    assert (
        gate(replace(trajectory, verdict=None)).reward
        == gate(replace(trajectory, verdict=YES), "last").reward
        == -1.0
    )


@pytest.mark.parametrize(
    ("verdict", "error"), [(NONE, "the judge's answer can't be used"), (None, "no judge was asked")]
)
def test_no_verdict_is_no_failure(verdict, error):
    gated = gate(judged(READ, ENDS, verdict=verdict))
    assert (gated.stop, gated.error) == (Stop.JUDGE_ERROR, error)
    assert (gated.success, gated.reward, gated.valid) == (False, 0.0, False)


def test_a_verdict_changes_nothing_else():
    trajectory = judged(READ, ENDS, seconds=3.0, final_image="x")
    said, denied = replace(trajectory, verdict=YES), replace(trajectory, verdict=NO)
    assert gate(said) == replace(said, success=True, reward=1.0)
    assert gate(denied) == denied
    again = replace(gate(said), verdict=NO)
    assert gate(again) == denied, "what was said before does not count"


EXCUSED = (Stop.DONE, Stop.MAX_STEPS, Stop.REPEATED)


@pytest.mark.parametrize("stop", Stop)
def test_a_failure_before_a_page_that_keeps_visitors_out_is_nobodys_fault(stop):
    failed = judged(READ, ENDS, stop=stop, error="why", blocked="it answered 403")
    excused = replace(failed, stop=Stop.BLOCKED, error="blocked: it answered 403")
    assert excuse(failed) == (excused if stop in EXCUSED else failed)
    assert excuse(replace(failed, blocked="")) == replace(failed, blocked="")
    assert not excused.valid and excuse(excused) == excused


def test_a_success_before_such_a_page_stays_one_and_format_errors_still_cost():
    won = replace(gate(judged(READ, ENDS, verdict=YES)), blocked="it answered 403")
    assert excuse(won) == won and (won.success, won.reward) == (True, 1.0)
    costly = gate(
        judged(UNREAD, UNREAD, UNREAD, stop=Stop.FORMAT_ERROR, answer="", blocked="it answered 403")
    )
    assert excuse(costly).reward == -1.0
    lost = excuse(gate(judged(READ, ENDS, verdict=NO, blocked="it answered 403")))
    assert make_group([lost, won, replace(won, member=1)]) == (won, replace(won, member=1))


# --- groups ----------------------------------------------------------------------------------------


def test_invalid_episodes_leave_before_the_statistics():
    """With the broken one as a zero, the mean would be 1/3 and the deviation 0.577."""
    broken = episode(Stop.ENV_ERROR, member=2)
    group = make_group([episode(reward=1.0), episode(reward=0.0, member=1), broken])
    assert [t.member for t in group] == [0, 1]
    (ready,) = assign_advantages([group], LossConfig(std_eps=0.0))
    assert of(ready) == pytest.approx((sqrt(0.5), -sqrt(0.5)))  # +-0.5 over sqrt(0.5)


def test_fewer_than_two_valid_episodes_are_no_group():
    assert make_group([episode(), episode(Stop.TIMEOUT), episode(Stop.INFRA_ERROR)]) is None
    assert make_group([episode(Stop.CANCELLED)] * 8) is None
    assert make_group([]) is None


def test_masked_episodes_stay_in_the_statistics_as_zeros():
    """Rewards 1, 0 and the broken one's 0: mean 1/3, deviation sqrt((4/9 + 1/9 + 1/9) / 2) = 0.577350. So the
    success gets (2/3) / 0.577350 = 1.154701 and the failure -0.577350; without the broken one +-0.707107."""
    broken = episode(Stop.ENV_ERROR, member=2, success=True, reward=1.0)  # whatever it says of itself
    episodes = [episode(reward=1.0, success=True), episode(reward=0.0, member=1), broken]
    group = make_group(episodes, "mask")
    assert [t.member for t in group] == [0, 1, 2]
    assert (group[2].reward, group[2].success) == (0.0, False)
    assert group[2].stop is Stop.ENV_ERROR
    (masked,) = assign_advantages([group], LossConfig(std_eps=0.0))
    assert of(masked) == pytest.approx((1.154701, -0.577350, 0.0), abs=1e-6)
    (dropped,) = assign_advantages([make_group(episodes, "drop")], LossConfig(std_eps=0.0))
    assert of(dropped) == pytest.approx((0.707107, -0.707107), abs=1e-6)
    assert make_group(episodes) == make_group(episodes, "drop")


def test_a_masked_episode_has_no_weight_in_any_method():
    """Mean 1/3: exp(2/3) and exp(-1/3); the masked one would have exp(-1/3) too."""
    group = make_group([episode(reward=1.0), episode(member=1), episode(Stop.JUDGE_ERROR, member=2)], "mask")
    (awr,) = assign_advantages([group], LossConfig(method="awr"))
    assert of(awr) == pytest.approx((1.9477340, 0.7165313, 0.0))
    (cloning,) = assign_advantages([group], LossConfig(method="filtered-bc"))
    assert of(cloning) == (1.0, 0.0, 0.0)


def test_masked_zeros_count_where_groups_are_filtered_too():
    """As in the released code: one success beside a broken episode makes a group of unequal rewards."""
    episodes = [episode(reward=1.0), episode(Stop.TIMEOUT, member=1)]
    assert is_effective(make_group(episodes, "mask")) and make_group(episodes) is None
    assert not is_effective(make_group([episode(), episode(Stop.TIMEOUT, member=1)], "mask"))


def test_a_group_of_masked_episodes_alone_is_none():
    assert make_group([episode(Stop.TIMEOUT), episode(Stop.JUDGE_ERROR)], "mask") is None
    assert make_group([episode()], "mask") is None
    assert make_group([], "mask") is None


def test_an_episode_without_a_turn_is_masked_like_any_other():
    empty = replace(episode(member=1), turns=(), stop=Stop.SITE_ERROR)
    (ready,) = assign_advantages([make_group([episode(reward=1.0), empty], "mask")], LossConfig())
    assert ready[1].advantage == 0.0 and len(ready) == 2


@pytest.mark.parametrize(
    ("rewards", "effective"),
    [((0, 0, 0), False), ((1, 1), False), ((-1, -1), False), ((1, 0), True), ((0, -1, 0), True)],
)
def test_only_unequal_rewards_teach(rewards, effective):
    assert is_effective(group_of(*rewards)) is effective


# --- advantages ------------------------------------------------------------------------------------


def test_advantages_of_a_balanced_group():
    # mean 1/2; deviation sqrt((4 * 1/4) / 3) = 1/sqrt(3); so +-(1/2) * sqrt(3)
    assert advantages((1, 0, 0, 1), eps=0.0) == pytest.approx((0.866025, -0.866025, -0.866025, 0.866025))


def test_advantages_with_a_format_error():
    # rewards 1, 0, -1, 0: mean 0, deviation sqrt(2/3) = 0.816497
    assert advantages((1, 0, -1, 0), eps=0.0) == pytest.approx((1.224745, 0, -1.224745, 0))


def test_epsilon_is_added_to_the_deviation():
    # (1 - 0.5) / (0.707107 + 0.1)
    assert advantages((1, 0), eps=0.1) == pytest.approx((0.619496, -0.619496), abs=1e-6)


@pytest.mark.parametrize(("eps", "advantage"), [(1e-6, 0.70710578), (1e-4, 0.70700680)])
def test_the_papers_epsilons_on_an_unbiased_deviation(eps, advantage):
    """0.5 / (0.70710678 + eps): the deviation of 1 and 0 is sqrt(2 * 1/4 / 1), and not 1/2."""
    (ready,) = assign_advantages([group_of(1, 0)], LossConfig(std_eps=eps))
    assert of(ready) == pytest.approx((advantage, -advantage), abs=5e-9)


def test_equal_rewards_have_no_advantage():
    assert advantages((1, 1, 1), eps=1e-6) == (0.0, 0.0, 0.0)


def test_every_group_is_compared_with_itself_alone():
    ready = assign_advantages(
        [group_of(1, 0), group_of(0, 0), group_of(1, 0, 0, 0)], LossConfig(std_eps=1e-9)
    )
    assert of(ready[0]) == pytest.approx((0.707107, -0.707107), abs=1e-6)
    assert of(ready[1]) == (0.0, 0.0)
    # mean 1/4, deviation sqrt((9/16 + 3/16) / 3) = 1/2
    assert of(ready[2]) == pytest.approx((1.5, -0.5, -0.5, -0.5))


def test_filtered_behaviour_cloning_imitates_successes_only():
    """A format error's -1 is no negative example, and the other rewards of the group don't matter."""
    config = LossConfig(method="filtered-bc")
    ready = assign_advantages([group_of(1, 0, -1, 1), group_of(1, 1), group_of(0, -1)], config)
    assert [of(group) for group in ready] == [(1.0, 0.0, 0.0, 1.0), (1.0, 1.0), (0.0, 0.0)]


def test_awr_weighs_an_episode_by_how_much_better_it_is_than_its_group():
    groups = [group_of(1, 0), group_of(1, 0, -1, 0), group_of(1, 1), group_of(1, 0, 0, 0)]
    ready = assign_advantages(groups, LossConfig(method="awr"))
    assert of(ready[0]) == pytest.approx((1.6487213, 0.6065307))  # exp(1/2), exp(-1/2)
    assert of(ready[1]) == pytest.approx((2.7182818, 1, 0.3678794, 1))  # mean 0: e, 1, 1/e, 1
    assert of(ready[2]) == (1.0, 1.0)  # no better than the others
    # mean 1/4: exp(3/4) and exp(-1/4)
    assert of(ready[3]) == pytest.approx((2.1170000, 0.7788008, 0.7788008, 0.7788008))


def test_awr_weighs_by_the_exponential_and_stops_at_20():
    def weights(*rewards: float) -> tuple[float, ...]:
        return of(assign_advantages([group_of(*rewards)], LossConfig(method="awr"))[0])

    assert weights(2, 0) == pytest.approx((2.7182818, 0.3678794))  # exp(1), exp(-1)
    assert weights(10, 0) == pytest.approx((20.0, 0.0067379), rel=1e-5)  # exp(5) = 148, exp(-5)
    assert weights(4000, 0) == pytest.approx((20.0, 0.0)), "exp(2000) would overflow"


# --- the control -----------------------------------------------------------------------------------


def test_shuffled_rewards_stay_in_their_group_and_move():
    groups = [
        group_of(*[float(m < good) for m in range(8)], task=replace(TASK, id=str(i)))
        for i, good in enumerate([1, 2, 3, 4, 5, 6, 7])
    ]
    shuffled = shuffle_rewards(groups, seed=3)
    moved = 0
    for before, after in zip(groups, shuffled, strict=True):
        old, new = ([t.reward for t in group] for group in (before, after))
        assert sorted(new) == sorted(old)
        assert [t.member for t in after] == list(range(8))  # the episodes stay where they are
        assert [replace(t, reward=0.0) for t in after] == [replace(t, reward=0.0) for t in before]
        moved += old != new
    assert moved >= 5
    assert shuffle_rewards(groups, seed=3) == shuffled
    assert shuffle_rewards(groups, seed=4) != shuffled


def test_a_masked_member_keeps_its_zero_when_rewards_are_shuffled():
    members = [episode(reward=1.0), episode(Stop.ENV_ERROR, member=1), episode(member=2)]
    group = make_group(members, "mask")
    rewards = {tuple(t.reward for t in shuffle_rewards([group], s)[0]) for s in range(20)}
    assert rewards == {(1.0, 0.0, 0.0), (0.0, 0.0, 1.0)}


def test_every_member_gets_the_reward_equally_often():
    """One success in four: over many shuffles each place has it a quarter of the time."""
    places = [0, 0, 0, 0]
    for seed in range(400):
        (group,) = shuffle_rewards([group_of(1, 0, 0, 0)], seed)
        places[[t.reward for t in group].index(1.0)] += 1
    assert all(70 <= count <= 130 for count in places), places
