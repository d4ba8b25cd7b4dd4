"""Hosts that fail are left out for a while, on all ranks, and come again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from peers import alone

from minirl.browser import host_backoff
from minirl.browser.host_backoff import HostBackoff
from minirl.types import Stop, Task, Trajectory, Turn

BAD, GOOD = Task("b", "", "https://bad.test/x"), Task("g", "", "https://good.test/")
TURN = Turn(0, (), (), (), "")


def failed(task: Task = BAD, n: int = 0) -> Trajectory:
    return Trajectory(replace(task, id=f"b{n}"), 0, stop=Stop.SITE_ERROR, error="net::ERR_CONNECTION_RESET")


def reached(task: Task = BAD) -> Trajectory:
    return Trajectory(task, 0, turns=(TURN,))


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(host_backoff.time, "time", lambda: now[0])
    return now


def test_failures_in_a_row_leave_a_host_out_until_the_time_is_over(clock):
    listed = HostBackoff(limit=3, seconds=60)
    for trajectory in (failed(n=0), failed(n=1), reached(), failed(n=2), failed(n=3), reached(GOOD)):
        listed.note(trajectory)
    assert listed.agree(alone()) == [] and not listed.left_out(BAD)
    listed.note(failed(n=4))
    assert not listed.left_out(BAD)  # not before all ranks know
    assert listed.agree(alone()) == ["bad.test is left out for 1 minutes: net::ERR_CONNECTION_RESET"]
    assert listed.left_out(BAD) and not listed.left_out(GOOD)
    clock[0] += 61
    listed.agree(alone())
    assert not listed.left_out(BAD)


def test_the_next_time_is_twice_as_long_up_to_a_day_and_a_success_forgets(clock):
    listed, spans = HostBackoff(limit=1, seconds=3600), []
    for _ in range(7):
        listed.note(failed())
        listed.agree(alone())
        spans.append((listed.records["bad.test"].until - clock[0]) / 3600)
        clock[0] = listed.records["bad.test"].until
    assert spans == [1, 2, 4, 8, 16, 24, 24]
    listed.note(reached())
    listed.agree(alone())
    assert listed.records == {}


def test_episodes_that_fail_while_a_host_is_out_do_not_lengthen_it(clock):
    listed = HostBackoff(limit=1, seconds=60)
    for _ in range(2):
        listed.note(failed())
        listed.agree(alone())
        clock[0] += 30
    assert listed.records["bad.test"].until == 1060


def test_an_episode_without_a_browser_says_nothing_about_its_host():
    listed = HostBackoff(limit=1, seconds=60)
    listed.note(Trajectory(BAD, 0, stop=Stop.INFRA_ERROR))
    assert listed.noted == []


def test_the_episodes_of_one_task_count_once(clock):
    listed = HostBackoff(limit=2, seconds=60)
    for _ in range(5):
        listed.note(failed())
    listed.agree(alone())
    assert listed.records["bad.test"].failures == 1 and not listed.left_out(BAD)


def test_a_network_that_is_down_is_not_the_sites_fault(clock):
    listed = HostBackoff(limit=1, seconds=60)
    for trajectory in (failed(), failed(GOOD)):
        listed.note(trajectory)
    (line,) = listed.agree(alone())
    assert line.startswith("no site opened at all") and listed.records == {}
