"""WebArena-Verified: WebArena's 812 tasks with corrected instructions, scored by their authors' own package.

    webarena-verified dataset-get --output TASKS.json      record --verified_task--> Task

Its rules compare a structured answer, by the types of its values, and what the browser has asked of servers
(ServiceNow, webarena-verified 1.2.3, which the extra of that name installs). No rule is repeated here: the
package is called, in a process of its own, because it calculates with what agents write (a distance may be
"9**9**9**9 km"). Deviations:

1. The words that ask for the structured answer are our own; it is the text of the agent's last call. The
   record's schema of the answer is not told, as it is not by the package's own prompts.
2. The log of requests, Playwright's HAR, begins before the login and leaves out assets, which no rule reads.
3. Sites that have accounts are logged in to by their forms, as WebArena's.
4. Where the package has no verdict, or none in time, there is no score.
"""

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal
from weakref import WeakKeyDictionary

from playwright.async_api import BrowserContext

from minirl.benchmarks.fields import Addresses, Record, Text, Texts, read
from minirl.benchmarks.webarena.benchmark import WebArenaBenchmark
from minirl.benchmarks.webarena.tasks import meta_of, sites_from_environment, with_addresses
from minirl.package_files import folder_of
from minirl.types import Fields, Score, Session, Task

if TYPE_CHECKING:
    from minirl.episode import Harness

VERDICT_SECONDS = 60.0
EVALUATE = ("-m", "webarena_verified", "eval-tasks", "--task-ids")
INSTALL = 'WebArena-Verified scores by its own package: pip install "minirl-web[webarena-verified]"'
ASSETS = r"\.(css|js|png|jpe?g|gif|svg|woff2?|ttf|ico|webp)"
LOGGED = re.compile(rf"^(?![^?#]*{ASSETS}([?#]|$))")  # the addresses that a rule may read
ANSWER_FORM = """
Give your answer as one JSON object with these fields and nothing else:
"task_type": "RETRIEVE" if the task asks for data, "MUTATE" if it asks to create, change or delete something,
"NAVIGATE" if it asks to open a page;
"status": "SUCCESS", or what prevents it: "NOT_FOUND_ERROR" (what it asks for does not exist),
"ACTION_NOT_ALLOWED_ERROR" (the site does not offer it), "PERMISSION_DENIED_ERROR" (the account may not),
"DATA_VALIDATION_ERROR" (what it needs is missing or invalid) or "UNKNOWN_ERROR";
"retrieved_data": null, but for RETRIEVE a list, also of a single item: of numbers, booleans or strings, and
of objects only if the task asks for them;
"error_details": null, or a sentence if the status is not SUCCESS."""


class VerifiedRecord(Record):
    task_id: int
    sites: Texts
    intent: Text
    start_urls: Addresses


class VerifiedGoal(Record):
    """Names a task of the package, which has the rules."""

    kind: Literal["webarena-verified"]
    task_id: int


def is_verified(task: Task) -> bool:
    return task.goal.get("kind") == "webarena-verified"


def verified_task(record: Fields) -> Task:
    """Return a record as a task, with the sites' addresses in it. ValueError names what is malformed."""
    fields = read(VerifiedRecord, with_addresses(record))
    start, *tabs = fields.start_urls
    goal = {"kind": "webarena-verified", "task_id": fields.task_id}
    meta = meta_of("webarena-verified", fields.sites, tabs)
    instruction = f"{fields.intent}\n{ANSWER_FORM}"
    return Task(f"webarena-verified-{fields.task_id}", instruction, start, goal, meta)


@dataclass(frozen=True)
class VerifiedBenchmark(WebArenaBenchmark):
    logs: WeakKeyDictionary[BrowserContext, Path] = field(default_factory=WeakKeyDictionary, compare=False)

    def identity(self, task: Task) -> set[tuple[str, ...]]:
        """Return the number that the task has in WebArena, too."""
        return {("webarena", f"webarena-{task.goal['task_id']}")}

    def missing(self, task: Task) -> list[str]:
        if folder_of("webarena_verified") is None:
            raise ValueError(INSTALL)
        return super().missing(task)

    @asynccontextmanager
    async def session(self, harness: "Harness", task: Task) -> AsyncIterator[Session]:
        """Open a session whose requests are logged from the first on."""
        with TemporaryDirectory() as root:
            folder = Path(root, str(task.goal["task_id"]))
            folder.mkdir()
            async with super().session(harness, task) as session:
                await session.do(session.context.tracing.start_har(folder / "network.har", url_filter=LOGGED))
                self.logs[session.context] = folder
                yield session

    async def score(self, task: Task, session: Session, answer: str) -> Score:
        """Return the package's score, 0 or 1."""
        await session.do(session.context.tracing.stop_har(), VERDICT_SECONDS)
        return await verdict(self.logs[session.context], answer)


async def verdict(folder: Path, answer: str) -> Score:
    """Return the package's score of an answer, with the requests that the folder, a task's number, has in its
    network.har; no value if the package fails or takes too long."""
    sites = sites_from_environment().items()
    environments = {f"__{name}__": {"urls": [address]} for name, address in sites}
    folder.joinpath("run_config.json").write_text(json.dumps({"environments": environments}))
    folder.joinpath("agent_response.json").write_text(answer, "utf-8", "replace")
    arguments = (*EVALUATE, folder.name, "--output-dir", str(folder.parent))
    nothing = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stdout=nothing, stderr=nothing)
    try:
        async with asyncio.timeout(VERDICT_SECONDS):
            await process.wait()
        result = json.loads(folder.joinpath("eval_result.json").read_text())
    except (TimeoutError, OSError) as error:
        return Score(None, {"reason": f"WebArena-Verified's package gave no verdict: {error!r}"})
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if "error_msg" in result:
        return Score(None, {"reason": result["error_msg"]})
    return Score(result["score"], {"score": result["score"], "rules": result["evaluators_results"]})
