"""Hosts that fail are left out, on all ranks."""

from dataclasses import replace

from peers import alone

from minirl.browser.host_backoff import MAX_FAILURES, HostBackoff
from minirl.types import Stop, Task, Trajectory, Turn

BAD, GOOD = Task("b", "", "https://bad.test/x"), Task("g", "", "https://good.test/")
TURN = Turn(0, (), (), (), "")


def failed(n: int, task: Task = BAD) -> Trajectory:
    return Trajectory(replace(task, id=f"b{n}"), 0, stop=Stop.SITE_ERROR, error="net::ERR_CONNECTION_RESET")


def reached(task: Task = BAD) -> Trajectory:
    return Trajectory(task, 0, turns=(TURN,))


def test_failures_in_a_row_leave_a_host_out():
    listed = HostBackoff()
    without_browser = Trajectory(BAD, 0, stop=Stop.INFRA_ERROR)
    repeated = [failed(3)] * 5  # a task's episodes count once
    for trajectory in (failed(0), failed(1), reached(), failed(2), *repeated, without_browser, reached(GOOD)):
        listed.note(trajectory)
    assert listed.agree(alone()) == [] and not listed.left_out(BAD)
    listed.note(failed(4))
    assert not listed.left_out(BAD)  # not before all ranks know
    assert listed.agree(alone()) == ["bad.test is left out from now on: net::ERR_CONNECTION_RESET"]
    assert listed.left_out(BAD) and not listed.left_out(GOOD)
    listed.note(reached())  # an episode that had begun before
    assert listed.agree(alone()) == [] and listed.left_out(BAD)


def test_a_task_has_failed_if_all_its_episodes_have():
    """However late one of them fails, as under a limit of requests."""
    listed = HostBackoff()
    for n in range(MAX_FAILURES):
        for trajectory in (reached(replace(BAD, id=f"b{n}")), failed(n), failed(n)):
            listed.note(trajectory)
    listed.note(reached(GOOD))
    assert listed.agree(alone()) == [] and not listed.left_out(BAD)


def test_a_network_that_is_down_is_not_the_sites_fault():
    listed = HostBackoff()
    for n in range(MAX_FAILURES):
        listed.note(failed(n))
        listed.note(failed(n, GOOD))
    (line,) = listed.agree(alone())
    assert line.startswith("no site opened at all") and not listed.left_out(BAD)
