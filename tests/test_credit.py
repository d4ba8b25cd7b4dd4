"""Which turns of an episode its reward is due to."""

from dataclasses import replace

import pytest

from minirl.advantages import assign_advantages
from minirl.config import LossConfig
from minirl.credit import assign_credit, returns, state_of
from minirl.rows import make_rows
from minirl.types import Stop, Task, Trajectory, Turn

TASK = Task("t", "go", "http://site.test/")


def episode(member: int, reward: float, *states: str, stop: Stop = Stop.DONE) -> Trajectory:
    turns = tuple(Turn(0, (1,), (2, 3), (-0.1, -0.2), "x", state=state) for state in states)
    return Trajectory(TASK, member, (), turns, stop, reward=reward, success=reward == 1)


GROUP = (episode(0, 1.0, "list", "item"), episode(1, 0.0, "list", "list", "item"))


def credited(config: LossConfig, *group: Trajectory) -> list[list[float]]:
    groups = assign_credit(assign_advantages([group], config), config)
    rows = make_rows(groups, config)
    return [[row.advantage for row in trajectory.rows] for trajectory in rows]


def test_a_return_is_less_the_longer_it_takes():
    assert returns(episode(0, 1.0, "a", "b", "c")) == pytest.approx([0.9025, 0.95, 1.0])


@pytest.mark.parametrize(
    ("credit", "expected"),
    [
        # 0.95, 1, 0, 0, 0 have the mean 0.39 and the deviation 0.5343
        ("return-to-go", [[1.048, 1.142], [-0.730, -0.730, -0.730]]),
        ("gigpo", [[1.862, 1.414], [-1.284, -1.284, -1.414]]),
    ],
)
def test_each_turn_gets_its_credit(credit, expected):
    config = LossConfig(credit=credit, std_eps=0.0)
    values = credited(config, *GROUP)
    assert [pytest.approx(row, abs=1e-3) for row in expected] == values


def test_a_state_that_one_turn_began_in_adds_nothing():
    config = LossConfig(credit="gigpo", std_eps=0.0)
    first, second = credited(config, episode(0, 1.0, "a", "b"), episode(1, 0.0, "a", "c"))
    assert first[1] == pytest.approx(0.707, abs=1e-3) and second[1] == pytest.approx(-0.707, abs=1e-3)


def test_without_states_pages_that_look_alike_are_one():
    turn = Turn(0, (1,), (2,), (-0.1,), "x", images=("old", "new"), url="http://site.test/")
    assert state_of(turn) == state_of(replace(turn, images=("other", "new"), text="y"))
    assert state_of(turn) != state_of(replace(turn, images=("new", "old")))
    assert state_of(turn) != state_of(replace(turn, page_text="<p>"))


def test_a_replay_gives_its_own_credit():
    """A dump has the advantages of the run that wrote it."""
    dumped = assign_credit(assign_advantages([GROUP], LossConfig()), LossConfig(credit="gigpo", std_eps=0.0))
    permuted = [replace(t, reward=1 - t.reward) for t in dumped[0]]
    assert credited(LossConfig(std_eps=0.0), *permuted) == [
        pytest.approx([-0.707, -0.707], abs=1e-3),
        pytest.approx([0.707, 0.707, 0.707], abs=1e-3),
    ]


def test_an_episode_that_a_browser_spoiled_takes_no_part():
    spoiled = episode(2, 0.0, "list", "item", stop=Stop.INFRA_ERROR)
    config = LossConfig(credit="gigpo", std_eps=0.0)
    groups = assign_credit(assign_advantages([(GROUP[0], spoiled, GROUP[1])], config), config)
    assert [t.member for t in groups[0]] == [0, 2, 1]
    assert [turn.advantage for turn in groups[0][1].turns] == [None, None]
