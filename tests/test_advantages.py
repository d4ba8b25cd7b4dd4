"""What a group makes of its rewards: numbers worked out by hand."""

from dataclasses import replace

import pytest

from minirl.advantages import advantages, assign_advantages, is_effective, make_group, shuffle_rewards
from minirl.config import LossConfig
from minirl.types import Group, Stop, Task, Trajectory, Turn

TASK = Task("shop-0-17", "Order 2 red mugs", "http://shop-0.test/")
TURN = Turn(3, (9,), (7, 2), (-0.1, -0.7), "")


def episode(stop: Stop = Stop.DONE, success: bool = False, reward: float = 0.0, member: int = 0):
    return Trajectory(TASK, member, turns=(TURN,), stop=stop, success=success, reward=reward)


def group_of(*rewards: float, task: Task = TASK) -> Group:
    return tuple(replace(episode(reward=r, member=m), task=task) for m, r in enumerate(rewards))


def of(group: Group) -> tuple[float, ...]:
    """The advantages of a group's members."""
    return tuple(t.advantage for t in group)


@pytest.mark.parametrize(
    ("episodes", "invalid"),
    [
        ([episode(), episode(Stop.TIMEOUT), episode(Stop.INFRA_ERROR)], "drop"),
        ([episode(Stop.TIMEOUT)] * 8, "drop"),
        ([episode(Stop.TIMEOUT), episode(Stop.JUDGE_ERROR)], "mask"),
        ([episode()], "mask"),
    ],
)
def test_what_can_not_be_compared_is_no_group(episodes, invalid):
    """Fewer than two valid episodes; masked ones alone."""
    assert make_group(episodes, invalid) is None


def test_masked_episodes_stay_in_the_statistics_as_zeros():
    """Rewards 1, 0 and the broken one's 0: mean 1/3, deviation sqrt((4/9 + 1/9 + 1/9) / 2) = 0.577350. So the
    success gets (2/3) / 0.577350 = 1.154701 and the failure -0.577350; without it +-0.5 / sqrt(0.5)."""
    broken = episode(Stop.ENV_ERROR, member=2, success=True, reward=1.0)  # whatever it says of itself
    episodes = [episode(reward=1.0, success=True), episode(reward=0.0, member=1), broken]
    group = make_group(episodes, "mask")
    assert [t.member for t in group] == [0, 1, 2]
    assert (group[2].reward, group[2].success) == (0.0, False)
    assert group[2].stop is Stop.ENV_ERROR
    (masked,) = assign_advantages([group], LossConfig(std_eps=0.0))
    assert of(masked) == pytest.approx((1.154701, -0.577350, 0.0), abs=1e-6)
    left = make_group(episodes, "drop")  # here the broken one leaves before the statistics
    assert [t.member for t in left] == [0, 1]
    (dropped,) = assign_advantages([left], LossConfig(std_eps=0.0))
    assert of(dropped) == pytest.approx((0.707107, -0.707107), abs=1e-6)
    assert make_group(episodes) == make_group(episodes, "drop")


def test_a_masked_episode_has_no_weight_in_imitation_either():
    """Mean 1/3: exp(2/3) and exp(-1/3); the masked one, here without a turn, would have exp(-1/3) too."""
    empty = replace(episode(Stop.SITE_ERROR, member=2), turns=())
    group = make_group([episode(reward=1.0), episode(member=1), empty], "mask")
    (awr,) = assign_advantages([group], LossConfig(method="awr"))
    assert of(awr) == pytest.approx((1.9477340, 0.7165313, 0.0))
    (cloning,) = assign_advantages([group], LossConfig(method="filtered-bc"))
    assert of(cloning) == (1.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("rewards", "effective"),
    [
        ((0, 0, 0), False), ((1, 1), False), ((-1, -1), False), ((1, 0), True), ((0, -1, 0), True),
        ((0.1 + 0.2, 0.3, 0.3, 0.3), False),  # unequal by rounding
        ((0.949999988079071, 0.95, 0.95, 0.95), False),  # in float32
        ((sum([0.1] * 10), 1.0, 1.0, 1.0), False),
        ((0.95, 0.96, 0.95, 0.95), True),
    ],
)  # fmt: skip
def test_only_unequal_rewards_teach(rewards, effective):
    assert is_effective(group_of(*rewards)) is effective
    assert any(advantages(rewards, eps=1e-6)) is effective


@pytest.mark.parametrize(
    ("rewards", "eps", "expected"),
    [
        # mean 1/2; deviation sqrt((4 * 1/4) / 3) = 1/sqrt(3); so +-(1/2) * sqrt(3)
        ((1, 0, 0, 1), 0.0, (0.866025, -0.866025, -0.866025, 0.866025)),
        # a format error: mean 0, deviation sqrt(2/3) = 0.816497
        ((1, 0, -1, 0), 0.0, (1.224745, 0, -1.224745, 0)),
        # epsilon is added to the unbiased deviation, sqrt(2 * 1/4 / 1): (1 - 0.5) / (0.707107 + 0.1)
        ((1, 0), 0.1, (0.619496, -0.619496)),
        # mean 1/4, deviation sqrt((9/16 + 3/16) / 3) = 1/2
        ((1, 0, 0, 0), 0.0, (1.5, -0.5, -0.5, -0.5)),
    ],
)
def test_advantages_by_hand(rewards, eps, expected):
    assert advantages(rewards, eps) == pytest.approx(expected, abs=1e-6)
    groups = [group_of(*rewards), group_of(0, 0, 1)]  # every group is compared with itself alone
    ready, _ = assign_advantages(groups, LossConfig(std_eps=eps))
    assert of(ready) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("method", "rewards", "expected"),
    [
        # A format error's -1 is no negative example, and the other rewards of the group don't matter.
        ("filtered-bc", (1, 0, -1, 1), (1, 0, 0, 1)),
        ("filtered-bc", (1, 1), (1, 1)),
        ("filtered-bc", (0, -1), (0, 0)),
        # AWR weighs an episode by the exponential of how much better it is than its group, up to 20.
        ("awr", (1, 0, -1, 0), (2.7182818, 1, 0.3678794, 1)),  # mean 0: e, 1, 1/e, 1
        ("awr", (1, 0, 0, 0), (2.1170000, 0.7788008, 0.7788008, 0.7788008)),  # mean 1/4: exp(3/4), exp(-1/4)
        ("awr", (10, 0), (20.0, 0.0067379)),  # exp(5) = 148, exp(-5)
    ],
)
def test_weights_of_imitation_by_hand(method, rewards, expected):
    other = group_of(1, 0, 0)  # of no consequence
    _, ready = assign_advantages([other, group_of(*rewards)], LossConfig(method=method))
    assert of(ready) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("success", "expected"), [(1.0, (1, 0, 0)), (0.8, (1, 1, 0))])
def test_what_is_enough_for_a_success_is_imitated(success, expected):
    (ready,) = assign_advantages([group_of(1.0, 0.83, 0.79)], LossConfig(method="filtered-bc"), success)
    assert of(ready) == expected


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
