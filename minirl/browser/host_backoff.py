"""Sites that do not open: counted, left out for a while, then given another chance.

Stands between episodes, which tell how the first page went, and the task stream, whose tasks on a host that
is left out are passed over. Kept in the run folder, for a run that is resumed.

OpenWebRL, appendix A.1. Deviations: the released code leaves a host out after one failure and for good, where
its sampler does not look. Here it takes several failures in a row, it ends, and all ranks go by one list.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from pydantic import TypeAdapter

from minirl.distributed import Ranks
from minirl.run_folder import write_atomic
from minirl.types import Stop, Task, Trajectory

LONGEST = 24 * 3600.0  # seconds


@dataclass
class Record:
    """One host."""

    failures: int = 0  # tasks in a row
    bans: int = 0  # how often it was left out
    until: float = 0.0  # seconds since 1970
    reason: str = ""


RECORDS = TypeAdapter(dict[str, Record])


class HostBackoff:
    """`limit` tasks in a row whose first page did not open leave a host out for `seconds`, the next time for
    twice as long, up to a day. What ranks note counts from the next `agree` on, which all call together."""

    def __init__(self, path: Path | None, limit: int, seconds: float):
        self.path, self.limit, self.seconds, self.now = path, limit, seconds, time.time()
        self.records: dict[str, Record] = {}
        self.noted: list[tuple[str, str, str]] = []  # host, task, and why it failed: "" if it did not
        if path is not None and path.is_file():
            try:
                self.records = RECORDS.validate_json(path.read_bytes())
            except ValueError:
                raise ValueError(f"{path} is damaged; delete it to forget which hosts failed") from None

    def note(self, trajectory: Trajectory) -> None:
        """Note if an episode's first page opened. One that never got a browser says nothing."""
        task = trajectory.task
        if trajectory.stop is Stop.SITE_ERROR:
            self.noted.append((host_of(task), task.id, trajectory.error or "it did not open"))
        elif trajectory.turns:
            self.noted.append((host_of(task), task.id, ""))

    def agree(self, ranks: Ranks) -> list[str]:
        """Count and save what all ranks noted; return a line for every host that is left out from now on."""
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
            record.failures, record.reason = record.failures + 1, reason
            if record.failures >= self.limit and record.until <= self.now:
                seconds = min(self.seconds * 2**record.bans, LONGEST)
                record.failures, record.bans, record.until = 0, record.bans + 1, self.now + seconds
                news.append(f"{host} is left out for {seconds / 60:.0f} minutes: {reason}")
        if outcomes and ranks.is_main and self.path is not None:
            write_atomic(self.path, RECORDS.dump_json(self.records, indent=1))
        return news

    def left_out(self, task: Task) -> bool:
        """Return True if a task's host is left out for now."""
        return self.records.get(host_of(task), Record()).until > self.now


def host_of(task: Task) -> str:
    """Return the host of a task's first page."""
    return urlsplit(task.start_url).hostname or ""
