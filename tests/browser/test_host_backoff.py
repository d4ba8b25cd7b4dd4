"""Hosts that fail are left out for a while, on all ranks, and come again."""

from __future__ import annotations

from dataclasses import replace

import pytest
from peers import alone

from minirl.browser import host_backoff
from minirl.browser.host_backoff import MAX_FAILURES, PAUSE_SECONDS, HostBackoff
from minirl.types import Stop, Task, Trajectory, Turn

BAD, GOOD = Task("b", "", "https://bad.test/x"), Task("g", "", "https://good.test/")
TURN = Turn(0, (), (), (), "")


def failed(n: int, task: Task = BAD) -> Trajectory:
    return Trajectory(replace(task, id=f"b{n}"), 0, stop=Stop.SITE_ERROR, error="net::ERR_CONNECTION_RESET")


def reached(task: Task = BAD) -> Trajectory:
    return Trajectory(task, 0, turns=(TURN,))


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(host_backoff.time, "time", lambda: now[0])
    return now


def test_failures_in_a_row_leave_a_host_out_until_the_time_is_over(clock):
    listed = HostBackoff()
    without_browser = Trajectory(BAD, 0, stop=Stop.INFRA_ERROR)
    repeated = [failed(3)] * 5  # a task's episodes count once
    for trajectory in (failed(0), failed(1), reached(), failed(2), *repeated, without_browser, reached(GOOD)):
        listed.note(trajectory)
    assert listed.agree(alone()) == [] and not listed.left_out(BAD)
    listed.note(failed(4))
    assert not listed.left_out(BAD)  # not before all ranks know
    assert listed.agree(alone()) == ["bad.test is left out for 60 minutes: net::ERR_CONNECTION_RESET"]
    assert listed.left_out(BAD) and not listed.left_out(GOOD)
    clock[0] += PAUSE_SECONDS + 1
    assert listed.agree(alone()) == [] and not listed.left_out(BAD)


def test_episodes_that_fail_while_a_host_is_out_do_not_lengthen_it(clock):
    listed = HostBackoff()
    for n in range(2 * MAX_FAILURES):
        listed.note(failed(n))
        listed.agree(alone())
        clock[0] += 30
    assert listed.until["bad.test"] == 1000 + 30 * (MAX_FAILURES - 1) + PAUSE_SECONDS


def test_a_network_that_is_down_is_not_the_sites_fault(clock):
    listed = HostBackoff()
    for n in range(MAX_FAILURES):
        listed.note(failed(n))
        listed.note(failed(n, GOOD))
    (line,) = listed.agree(alone())
    assert line.startswith("no site opened at all") and not listed.left_out(BAD)
