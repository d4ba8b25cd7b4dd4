"""WebArena-Verified: its records, the log of requests in a real Chromium, and verdicts by its own package,
which the extra `webarena-verified` installs; without it what asks for a verdict is skipped."""

import ast
import gzip
import importlib
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
from stand_in import record_of

from minirl.agents import webagent_r1
from minirl.benchmarks.task_files import load_tasks
from minirl.benchmarks.task_sets import choose_benchmarks, make_task_sets, refuse_impossible
from minirl.benchmarks.webarena import verified
from minirl.benchmarks.webarena.tasks import sites_from_environment
from minirl.benchmarks.webarena.verified import LOGGED, VerifiedBenchmark, verdict, verified_task
from minirl.config import BrowserConfig, JudgeConfig, TaskConfig
from minirl.recipes import tiny
from minirl.types import Session, Task

CONFIG = BrowserConfig(browsers=1, width=500, height=400, quiet_ms=50, private=True)
DATA = Path(__file__).parents[1] / "data" / "webarena_verified"
EPISODES = [json.loads(line) for line in (DATA / "episodes.jsonl").read_text().splitlines()]
pytestmark = pytest.mark.usefixtures("local")
browsing = pytest.mark.asyncio(loop_scope="module")
is_installed = importlib.util.find_spec("webarena_verified") is not None
installed = pytest.mark.skipif(not is_installed, reason="webarena-verified is not installed")
POST = {"sites": ["reddit"], "task_id": 600, "start_urls": ["__REDDIT__"], "eval": []}
POST["intent"] = "Post my question in a forum where I'm likely to get an answer"
QUESTION = "what is the recommended console to buy these days?"  # the title that task 600 asks for
DONE = {"task_type": "MUTATE", "status": "SUCCESS", "retrieved_data": None, "error_details": None}
SHOWN = DONE | {"task_type": "NAVIGATE"}


def test_a_record_as_a_task(tmp_path):
    two = {"sites": ["gitlab", "reddit"], "start_urls": ["__GITLAB__", "__REDDIT__/f/all"]}
    task = verified_task(POST | two)
    assert (task.id, task.start_url) == ("webarena-verified-600", "http://gitlab.test")
    assert task.goal == {"kind": "webarena-verified", "task_id": 600}
    assert (task.meta["tabs"], task.meta["site"]) == (["http://reddit.test/f/all"], "multi-site")
    assert task.instruction.startswith(POST["intent"] + "\n")
    for name in ("task_type", "status", "retrieved_data", "error_details", "NOT_FOUND_ERROR"):
        assert f'"{name}"' in task.instruction
    file = tmp_path / "own.jsonl"
    file.write_text(json.dumps(asdict(task)))
    assert load_tasks(file) == [task]
    for name, wrong in [("task_id", "7"), ("intent", " "), ("start_urls", ["ftp://a"]), ("sites", [])]:
        file.write_text(json.dumps(POST | {name: wrong}))
        with pytest.raises(ValueError, match=f"line 1: {name}"):
            load_tasks(file)


def test_it_is_webarenas_task_and_never_held_out_of_its_training(tmp_path):
    rules = {"eval_types": ["string_match"], "reference_answers": {"exact_match": "x"}}
    train = record_of("reddit", "__REDDIT__", "x", **rules) | {"task_id": 600}
    (tmp_path / "train.json").write_text(json.dumps(train))
    heldout = tmp_path / "heldout.json"
    config = replace(tiny(), task=TaskConfig(str(tmp_path / "train.json"), str(heldout)))
    heldout.write_text(json.dumps(POST | {"task_id": 601}))
    assert make_task_sets(config).heldout[0].id == "webarena-verified-601"
    heldout.write_text(json.dumps(POST))
    with pytest.raises(ValueError, match="1 held-out tasks are also training tasks, webarena-verified-600"):
        make_task_sets(config)


def test_without_the_package_or_the_sites_nothing_starts(monkeypatch):
    task, benchmark_of = verified_task(POST), choose_benchmarks(tiny())
    assert isinstance(benchmark_of(task), VerifiedBenchmark) and not benchmark_of(task).judged
    assert benchmark_of(task).folders() == {} and len({benchmark_of(task), VerifiedBenchmark()}) == 1
    for folder, problem in [(None, "pip install .*webarena-verified"), (DATA, "set REDDIT to")]:
        monkeypatch.setattr(verified, "folder_of", lambda name, folder=folder: folder)
        monkeypatch.delenv("REDDIT", raising=False)
        with pytest.raises(ValueError, match=problem):
            refuse_impossible(JudgeConfig(), [task], benchmark_of, True)


@pytest.mark.parametrize(
    ("address", "is_logged"),
    [
        ("/", True),
        ("/a.css", False),
        ("/a/b.woff2?v=2", False),
        ("/logo.jpeg#top", False),
        ("/page?next=/a.png", True),
        ("/a.js/page", True),
        ("/a.json", True),
        ("/acss", True),
    ],
)
def test_only_the_assets_that_the_package_never_reads_are_not_logged(address, is_logged):
    url = f"http://shop.test{address}"
    assert (LOGGED.match(url) is not None) is is_logged
    if is_installed:
        event = importlib.import_module("webarena_verified.types.tracing").NetworkEvent
        assert event(data=MappingProxyType({"request": {"url": url}})).is_evaluation_event is is_logged


@asynccontextmanager
async def begun(pool: Any, record: dict[str, Any]) -> AsyncIterator[tuple[VerifiedBenchmark, Task, Session]]:
    """As an episode does: the session, the first page, and the login."""
    benchmark, task = VerifiedBenchmark(), verified_task(record)
    async with benchmark.session(SimpleNamespace(browsers=pool), task) as session:
        await session.start(task.start_url)
        await benchmark.prepare(session, task)
        yield benchmark, task, session


async def post(session: Session, title: str) -> None:
    await session.goto(f"{sites_from_environment()['REDDIT']}/submit/consoles")
    await session.page.fill("[name='submission[title]']", title)
    await session.page.fill("[name='submission[forum]']", "10039")
    async with session.page.expect_navigation():
        await session.page.click("button")


@browsing
async def test_the_log_has_what_the_browser_asked(world, pool, monkeypatch):
    async def read(folder: Path, answer: str) -> list[dict[str, Any]]:
        return json.loads((folder / "network.har").read_text())["log"]["entries"]

    monkeypatch.setattr(verified, "verdict", read)
    async with begun(pool, POST) as (benchmark, task, session):
        await post(session, QUESTION)
        await session.page.evaluate("fetch('/a.css').then(() => fetch('/f/1/x?y=a.css'))")
        entries = await benchmark.score(task, session, "")
        folder = benchmark.logs[session.context]
    assert not folder.exists()
    asked = [(entry["request"]["method"], entry["request"]["url"].split("/", 3)[3]) for entry in entries]
    assert asked[0] == ("GET", "") and ("POST", "login_check") in asked
    assert asked[-4:-2] == [("GET", "submit/consoles"), ("POST", "submit/consoles")]
    assert asked[-2:] == [("GET", "f/consoles/1/"), ("GET", "f/1/x?y=a.css")]
    sent, answered = entries[-3]["request"], entries[-3]["response"]
    assert sent["postData"]["text"].endswith("submission%5Bforum%5D=10039") and answered["status"] == 302


@installed
@browsing
async def test_a_post_is_a_success_if_the_log_and_the_answer_have_it(world, pool):
    outcomes = {}
    for name, title, answer in [
        ("right", QUESTION, DONE),
        ("another title", "what is it?", DONE),
        ("another answer", QUESTION, SHOWN),
        ("nothing sent", "", DONE),
    ]:
        async with begun(pool, POST) as (benchmark, task, session):
            if title:
                await post(session, title)
            score = await benchmark.score(task, session, json.dumps(answer))
        outcomes[name] = score.value, [rule["status"] for rule in score.details["rules"]]
    assert outcomes == {
        "right": (1.0, ["success", "success"]),
        "another title": (0.0, ["success", "failure"]),
        "another answer": (0.0, ["failure", "success"]),
        "nothing sent": (0.0, ["success", "failure"]),
    }


@installed
@browsing
async def test_a_page_is_shown_if_it_was_the_last_one_opened(world, pool):
    record = POST | {"task_id": 44, "sites": ["gitlab"], "start_urls": ["__GITLAB__"]}  # "Open my todos page"
    todos = f"{world.sites['GITLAB']}/dashboard/todos"
    found = []
    for places in ([todos], [todos, f"{world.sites['GITLAB']}/a"], [f"{world.sites['GITLAB']}/?u={todos}"]):
        async with begun(pool, record) as (benchmark, task, session):
            for place in places:
                await session.goto(place)
            found.append((await benchmark.score(task, session, json.dumps(SHOWN))).value)
    assert found == [1.0, 0.0, 0.0]


def folder_of(root: Path, task_id: int) -> Path:
    """A folder as an episode has it, with the log of the published ones."""
    folder = root / str(task_id)
    folder.mkdir(exist_ok=True)
    (folder / "network.har").write_bytes(gzip.decompress((DATA / "network.har.gz").read_bytes()))
    return folder


@installed
async def test_the_published_episodes_have_the_published_verdicts(tmp_path):
    found = []
    for episode in EPISODES:
        folder = folder_of(tmp_path, episode["record"]["task_id"])
        score = await verdict(folder, episode["agent_response"])
        expected = episode["eval_result"]
        assert score.value == expected["score"]
        for rule, published in zip(score.details["rules"], expected["evaluators_results"], strict=True):
            names = [assertion["assertion_name"] for assertion in published["assertions"] or ()]
            assert [assertion["assertion_name"] for assertion in rule["assertions"] or ()] == names
            assert rule["status"] == published["status"]
        found.append(score.value)
    assert found == [0.0, 1.0]
    wrong = EPISODES[1]["agent_response"].replace('"count": 12', '"count": 13')
    assert (await verdict(folder_of(tmp_path, 108), wrong)).value == 0


@installed
@pytest.mark.parametrize("answer", ["", "\ud800", '{"task_type": 7}', "9" * 10**6])
async def test_what_is_no_answer_is_a_failure(tmp_path, answer):
    assert (await verdict(folder_of(tmp_path, 108), answer)).value == 0.0


@installed
async def test_where_the_package_does_not_end_or_has_no_log_there_is_no_score(tmp_path, monkeypatch):
    assert (await verdict(folder_of(tmp_path, 812), "")).value is None  # it has 0 to 811
    empty = folder_of(tmp_path, 108)
    (empty / "network.har").write_text('{"log": {"entries": []}}')
    none = await verdict(empty, EPISODES[1]["agent_response"])
    assert none.value is None and none.details["reason"].startswith("Failed to evaluate task 108")
    number = next(n for n, record in records().items() if '"format": "distance"' in json.dumps(record))
    far = {"task_type": "RETRIEVE", "status": "SUCCESS", "retrieved_data": ["9**9 m"]}
    folder = folder_of(tmp_path, number)
    assert (await verdict(folder, json.dumps(far))).value == 0
    monkeypatch.setattr(verified, "VERDICT_SECONDS", 5.0)
    (folder / "eval_result.json").unlink()
    none = await verdict(folder, json.dumps(far | {"retrieved_data": ["9**9**9**9 km"]}))
    assert none.value is None and "TimeoutError" in none.details["reason"]


@cache
def records() -> dict[int, dict[str, Any]]:
    """The package's tasks by number."""
    package = importlib.import_module("webarena_verified")
    file = Path(package.__file__).parent / "assets" / "dataset" / "webarena-verified.json"
    return {record["task_id"]: record for record in json.loads(file.read_text())}


@installed
def test_all_tasks_load(tmp_path):
    (tmp_path / "tasks.json").write_text(json.dumps([*records().values()]))
    tasks = load_tasks(tmp_path / "tasks.json")
    sites = {"shopping": 187, "shopping_admin": 182, "gitlab": 180, "map": 109, "reddit": 106}
    sites["multi-site"] = 48
    assert Counter(task.meta["site"] for task in tasks) == sites and len(tasks) == 812
    assert not any("__" in url for task in tasks for url in (task.start_url, *task.meta["tabs"]))


def answers(random: random.Random) -> Iterator[tuple[int, dict[str, Any]]]:
    """Answers to every task: the expected one, other spellings of it, parts of it, and wrong ones."""
    for number, record in records().items():
        expected = record["eval"][0]["expected"]
        data = []
        for item in expected.get("retrieved_data") or ():  # in a list are alternatives
            data.append(random.choice(item) if isinstance(item, list) else item)
        right = expected | {"retrieved_data": data or None}
        spelled = [f" {item} ".upper() if isinstance(item, str) else str(item) for item in data]
        yield number, right
        yield number, right | {"retrieved_data": spelled or [], "task_type": right["task_type"].lower()}
        wrong = [{"status": "NOT_FOUND_ERROR"}, {"task_type": "NAVIGATE"}, {"retrieved_data": [*data, "7"]}]
        yield number, right | random.choice([*wrong, {"retrieved_data": data[1:]}, {"status": "", "x": None}])
        if number < 64:  # 2,500 in all
            yield number, right | {"retrieved_data": data[::-1] or 7, "error_details": 'a "quote"\n\\'}


@installed
@pytest.mark.parametrize("share", [pytest.param(1, marks=pytest.mark.more), 40])
async def test_answers_get_the_verdict_that_the_package_gives_them_directly(tmp_path, monkeypatch, share):
    """The text that an agent's call carries, by way of our files, against the object itself. The package's
    command runs in this process: to start it 2,500 times would take an hour."""
    command = importlib.import_module("webarena_verified.__main__")
    config = importlib.import_module("webarena_verified.types.config").WebArenaVerifiedConfig
    sites = {f"__{name}__": {"urls": [address]} for name, address in sites_from_environment().items()}
    api = importlib.import_module("webarena_verified.api")
    package = api.WebArenaVerified(config=config(environments=sites))
    log = json.loads(gzip.decompress((DATA / "network.har.gz").read_bytes()))["log"]["entries"][:2]

    async def here(python: str, *arguments: str, **pipes: Any) -> Any:
        parsed = command.create_parser().parse_args([*arguments[2:]])

        async def wait() -> None:
            command.eval_tasks(parsed)

        return SimpleNamespace(wait=wait, returncode=0)

    monkeypatch.setattr(verified.asyncio, "create_subprocess_exec", here)
    monkeypatch.setattr(command, "_create_evaluator", lambda config: package)  # it reads all tasks
    asked = [*answers(random.Random(0))]
    assert len(asked) == 2500
    found = []
    for number, answer in asked[::share]:
        said = f"exit(message={json.dumps(answer)!r})"
        (call,) = webagent_r1.parse(said).calls
        folder = tmp_path / f"{len(found)}" / str(number)
        folder.mkdir(parents=True)
        (folder / "network.har").write_text(json.dumps({"log": {"entries": log}}))
        score = await verdict(folder, call.arguments["message"])
        direct = package.evaluate_task(task_id=number, agent_response=answer, network_trace=log)
        assert (score.value, direct.error_msg) == (direct.score, None), (number, answer)
        statuses = [rule.status for rule in direct.evaluators_results]
        assert [rule["status"] for rule in score.details["rules"]] == statuses
        found.append(score.value)
        assert ast.literal_eval(said[len("exit(message=") : -1]) == call.arguments["message"]
    assert 0 < sum(found) < len(found) == len(asked[::share])
