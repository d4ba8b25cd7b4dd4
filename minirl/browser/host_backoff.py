"""Sites that do not open: counted, left out for a while, then given another chance.

Stands between episodes, which tell how the first page went, and the task stream, whose tasks on a host that
is left out are passed over. Kept in the run folder, so that a resumed run knows them.

OpenWebRL, appendix A.1. Deviations: the released code leaves a host out after one failure and for good, and
writes the list where its sampler does not look. Here it takes several failures in a row, it ends, and all
ranks go by the same list.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

from minirl.distributed import Ranks
from minirl.run_folder import write_atomic
from minirl.types import Stop, Task, Trajectory

LONGEST = 24 * 3600.0  # seconds


@dataclass
class Record:
    """One host: tasks that failed in a row, how often it was left out, until when, and the last reason."""

    failures: int = 0
    bans: int = 0
    until: float = 0.0  # seconds since 1970
    reason: str = ""


class HostBackoff:
    """`limit` tasks in a row whose first page did not open leave a host out for `seconds`, the next time for
    twice as long, up to a day. What ranks note counts from the next `agree` on, which all of them call
    together."""

    def __init__(self, path: Path | None, limit: int, seconds: float):
        self.path, self.limit, self.seconds = path, limit, seconds
        self.records: dict[str, Record] = {}
        self.noted: list[tuple[str, str, str]] = []  # host, task, and why it failed: "" if it did not
        self.now = time.time()
        if path is not None and path.is_file():
            try:
                records = json.loads(path.read_text(encoding="utf-8"))
                self.records = {host: Record(**record) for host, record in records.items()}
            except (ValueError, TypeError, AttributeError):
                raise ValueError(f"{path} is damaged; delete it to forget which hosts failed") from None

    def note(self, trajectory: Trajectory) -> None:
        """Whether an episode's first page opened. One that never got a browser says nothing."""
        host = host_of(trajectory.task)
        if trajectory.stop is Stop.SITE_ERROR:
            self.noted.append((host, trajectory.task.id, trajectory.error or "it did not open"))
        elif trajectory.turns:
            self.noted.append((host, trajectory.task.id, ""))

    def agree(self, ranks: Ranks) -> list[str]:
        """Counts what was noted on all ranks and saves it; one line for every host that is now left out."""
        gathered: Sequence[tuple[str, str, str]] = ranks.all_gather(self.noted)
        # a group's episodes fail together, and count once
        noted = {(host, task, bool(reason)): (host, reason) for host, task, reason in gathered}.values()
        self.noted, self.now, news = [], ranks.broadcast(time.time()), []
        if len({host for host, _ in noted}) > 1 and all(reason for _, reason in noted):
            return [f"no site opened at all, so none is left out for it: {next(iter(noted))[1]}"]
        for host, reason in noted:
            if not reason:
                self.records.pop(host, None)
                continue
            record = self.records.setdefault(host, Record())
            record.failures, record.reason = record.failures + 1, reason
            if record.failures >= self.limit and record.until <= self.now:
                seconds = min(self.seconds * 2**record.bans, LONGEST)
                record.failures, record.bans, record.until = 0, record.bans + 1, self.now + seconds
                news.append(f"{host} is left out for {seconds / 60:.0f} minutes: {reason}")
        if noted and ranks.is_main and self.path is not None:
            records = {host: asdict(record) for host, record in self.records.items()}
            write_atomic(self.path, json.dumps(records, indent=1).encode())
        return news

    def left_out(self, task: Task) -> bool:
        record = self.records.get(host_of(task))
        return record is not None and record.until > self.now


def host_of(task: Task) -> str:
    return urlsplit(task.start_url).hostname or ""
