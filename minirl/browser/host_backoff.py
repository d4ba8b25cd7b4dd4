"""Sites that do not open, which the task stream passes over for a while (OpenWebRL, appendix A.1).

Deviations: the released code leaves a host out after one failure and for good; here it takes several in a
row, it ends, and all ranks go by one list.
"""

import time
from dataclasses import dataclass
from urllib.parse import urlsplit

from minirl.distributed import Ranks
from minirl.types import Stop, Task, Trajectory

LONGEST = 24 * 3600.0  # seconds


@dataclass
class Record:
    failures: int = 0  # tasks in a row
    bans: int = 0  # how often the host was left out
    until: float = 0.0  # seconds since 1970


class HostBackoff:
    """`limit` tasks in a row whose first page did not open leave a host out for `seconds`, the next time for
    twice as long, up to a day. What ranks note counts from the next `agree` on, which all call together."""

    def __init__(self, limit: int, seconds: float):
        self.limit, self.seconds, self.now = limit, seconds, time.time()
        self.records: dict[str, Record] = {}
        self.noted: list[tuple[str, str, str]] = []  # host, task, and why it failed: "" if it did not

    def note(self, trajectory: Trajectory) -> None:
        """Note if an episode's first page opened. One that never got a browser says nothing."""
        failure = trajectory.error if trajectory.stop is Stop.SITE_ERROR else ""
        if failure or trajectory.turns:
            self.noted.append((host_of(trajectory.task), trajectory.task.id, failure))

    def agree(self, ranks: Ranks) -> list[str]:
        """Count what all ranks noted; return a line for every host that is left out from now on."""
        # a group's episodes fail together, and count once
        noted = {(host, task, not why): (host, why) for host, task, why in ranks.all_gather(self.noted)}
        self.noted, self.now, news, outcomes = [], ranks.broadcast(time.time()), [], list(noted.values())
        if len({host for host, _ in outcomes}) > 1 and all(reason for _, reason in outcomes):
            return [f"no site opened at all, so none is left out for it: {outcomes[0][1]}"]
        for host, reason in outcomes:
            if not reason:
                self.records.pop(host, None)
                continue
            record = self.records.setdefault(host, Record())
            record.failures += 1
            if record.failures >= self.limit and record.until <= self.now:
                seconds = min(self.seconds * 2**record.bans, LONGEST)
                record.failures, record.bans, record.until = 0, record.bans + 1, self.now + seconds
                news.append(f"{host} is left out for {seconds / 60:.0f} minutes: {reason}")
        return news

    def left_out(self, task: Task) -> bool:
        return self.records.get(host_of(task), Record()).until > self.now


def host_of(task: Task) -> str:
    return urlsplit(task.start_url).hostname or ""
