"""Sites that do not open, which the task stream passes over (OpenWebRL, appendix A.1).

Deviations from the released code:
1. It leaves a host out after one failure; here it takes several tasks in a row.
2. All ranks go by one list, which the next run forgets.
"""

from minirl.distributed import Ranks
from minirl.types import Stop, Task, Trajectory

MAX_FAILURES = 3  # tasks in a row whose first page did not open leave their host out


class HostBackoff:
    """The hosts that failed. What a rank notes counts from the next `agree`, which all call together."""

    def __init__(self) -> None:
        self.failures: dict[str, int] = {}  # by host: tasks in a row
        self.noted: list[tuple[str, str, str]] = []  # host, task, and why it failed: "" if it did not

    def note(self, trajectory: Trajectory) -> None:
        """Note whether an episode's first page opened. One that never got a browser says nothing of it."""
        failure = trajectory.error if trajectory.stop is Stop.SITE_ERROR else ""
        if failure or trajectory.turns:
            self.noted.append((trajectory.task.host, trajectory.task.id, failure))

    def agree(self, ranks: Ranks) -> list[str]:
        """Count what all ranks noted; return a line for every host that is left out from now on."""
        # The episodes of one task count once, and as a failure if all have failed
        outcomes = {}
        for host, task, failure in ranks.all_gather(self.noted):
            outcomes[host, task] = failure and outcomes.get((host, task), failure)
        self.noted = []

        # Where no site at all opens, the fault is more likely this machine's network
        hosts = {host for host, _ in outcomes}
        if len(hosts) > 1 and all(outcomes.values()):
            return [f"no site opened at all, so none is left out for it: {max(outcomes.values())}"]

        news = []
        for (host, _), failure in outcomes.items():
            failures = self.failures.get(host, 0)
            if failures < MAX_FAILURES:
                self.failures[host] = failures + 1 if failure else 0
                if self.failures[host] == MAX_FAILURES:
                    news.append(f"{host} is left out from now on: {failure}")
        return news

    def left_out(self, task: Task) -> bool:
        return self.failures.get(task.host, 0) == MAX_FAILURES
