"""Six tasks in a real application, django-oscar, acted out by both agents; and copies of it for episodes."""

import asyncio
import json
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from peers import ROOT, Idle, alone
from playwright.async_api import Locator

from minirl.benchmarks.task_files import load_tasks
from minirl.benchmarks.task_sets import choose_benchmarks
from minirl.browser.host_backoff import HostBackoff
from minirl.browser.pool import BrowserPool
from minirl.browser.servers import read_slots
from minirl.config import AgentConfig, BrowserConfig, Config, TaskConfig
from minirl.episode import Harness
from minirl.experiment import make_agent
from minirl.model import Preprocessor
from minirl.rollout import RolloutWorker
from minirl.run_folder import Run
from minirl.types import Prompt, Sample, Session, Stop, Task, Trajectory

pytestmark = pytest.mark.apps

APPLICATION = ROOT / "examples/own_application"
PYTHON = ROOT / ".venv-apps/bin/python"
ADDRESS = "http://127.0.0.1:8001"  # in tasks.jsonl
NUMBER = """e => (window.top[Symbol.for('minirl.numbered')] || [])
    .findIndex(n => n === e || e.contains(n) || n.contains(e))"""


class Hand:
    """Does the steps of a script, each (what, where, text), in the words of an agent. What is out of sight is
    scrolled to first, as a model would have to."""

    def __init__(self, preprocessor: Preprocessor, kind: str, *steps: tuple[str, ...]):
        self.preprocessor = preprocessor
        self.kind = kind
        self.steps = list(steps)

    async def __call__(self, t: int, prompt: Prompt, session: Session) -> Sample:
        _, ids = self.preprocessor.render_response(await self.respond(session))
        return Sample(ids, (0.0,) * len(ids), "stop")

    async def respond(self, session: Session) -> str:
        what, where, text = (*self.steps[0], "", "")[:3]
        if what == "answer":
            return (
                visual(("done", {"response": where})) if self.kind == "visual" else f'exit(message="{where}")'
            )
        place = locate(session, where)
        assert await place.count(), f"{session.page.url} has no {where}"
        box = await place.bounding_box()
        assert box, f"{where} has no place"
        x, y = box["x"] + box["width"] / 2, box["y"] + min(box["height"] / 2, 30)
        if not 0 <= y < session.height:
            way = "down" if y > 0 else "up"
            amount = min(1.0, abs(y - session.height / 2) / session.height)
            if self.kind == "visual":
                return visual(("scroll", {"direction": way, "amount": round(amount, 3)}))
            return f'do(action="Scroll {way.title()}")'
        del self.steps[0]
        if self.kind == "visual":
            point = [round(1000 * x / session.width), round(1000 * y / session.height)]
            calls = [("click", {"point_2d": point})]
            if what != "click":
                calls.append(("write", {"message": text}))
            return visual(*calls)
        number = await place.evaluate(NUMBER)
        assert number >= 0, f"{where} has no number"
        action = {"click": "Click", "write": "Type", "choose": "Select Dropdown Option"}[what]
        argument = f", argument={text!r}" if what != "click" else ""
        return f'do(action="{action}"{argument}, element="{number}")'


def visual(*calls: tuple[str, dict]) -> str:
    blocks = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in calls]
    return "so</think>" + "".join(f"<tool_call>{block}</tool_call>" for block in blocks)


def locate(session: Session, where: str) -> Locator:
    """The first element that a selector names; behind > > it stands in a frame."""
    frame, inside, selector = where.rpartition(" >> frame >> ")
    scope = session.page.frame_locator(frame) if inside else session.page
    return scope.locator(selector).first


BUY = [("click", "button.ship-address"), ("click", "#view_preview"), ("click", "#place-order")]
LOGIN = [
    ("write", "#id_login-username", "customer@shop.test"),
    ("write", "#id_login-password", "agents-welcome"),
    ("click", "button[name=login_submit]"),
]
SEARCH = "form[action='/search/'] [type=submit]"
EDITOR = "iframe.tox-edit-area__iframe >> frame >> body"
SCRIPTS = {
    "price": [("write", "#id_q", "glass teapot"), ("click", SEARCH), ("answer", "27.40")],
    "order": [
        ("click", ".side_categories a:has-text('Black tea')"),
        ("click", "h3 a:has-text('Assam')"),
        ("click", "#add_to_basket_form button"),
        ("click", "#messages a:has-text('View cart')"),
        ("write", "#id_form-0-quantity", "2"),
        ("click", "button:has-text('Update')"),
        ("click", "a:has-text('Proceed to checkout')"),
        *BUY,
        ("answer", "It is ordered."),
    ],
    "review": [
        ("click", "#login_link"),
        *LOGIN,
        ("write", "#id_q", "sencha"),
        ("click", SEARCH),
        ("click", "h3 a:has-text('Sencha')"),
        ("click", "#write_review"),
        ("write", "#id_title", "Fresh"),
        ("click", ".reviewrating .star-rating i >> nth=3"),
        ("write", "#id_body", "Like grass after rain."),
        ("click", "#add_review_form button"),
        ("answer", "done"),
    ],
    "stock": [
        ("click", ".navbar a:has-text('Catalog')"),
        ("click", ".dropdown-item:has-text('Products')"),
        ("click", "td a:has-text('Keemun')"),
        ("click", "a[href='#product_stock']"),
        ("write", "#id_stockrecords-0-price", "12.50"),
        ("write", "#id_stockrecords-0-num_in_stock", "60"),
        ("click", "button[name=action][value=save]"),
        ("answer", "done"),
    ],
    "about": [
        ("click", ".navbar a:has-text('Content')"),
        ("click", ".dropdown-item:has-text('Pages')"),
        ("click", "td a:has-text('About us')"),
        ("write", EDITOR, "Closed on Mondays."),
        ("click", ".form-actions button"),
        ("answer", "done"),
    ],
    "packing": [
        ("click", "td a:has-text('100001')"),
        ("click", "#id_new_status + .select2 .select2-selection"),
        ("click", ".select2-results__option:has-text('Being packed')"),
        ("click", "button:has-text('Change status')"),
        ("answer", "done"),
    ],
}


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a shop."""
    folder = tmp_path_factory.mktemp("shop") / "data"
    subprocess.run([PYTHON, APPLICATION / "shop.py", "make", folder], check=True, timeout=200)
    return folder


@contextmanager
def served(made: Path, name: str) -> Iterator[tuple[str, str]]:
    """The addresses of a copy of the shop, and of its resets."""
    folder = made.with_name(name)
    shutil.copytree(made, folder)
    ports = [free_port(), free_port()]
    command = [PYTHON, APPLICATION / "shop.py", "serve", folder, *map(str, ports)]
    with open(folder / "log", "w") as log, subprocess.Popen(command, stdout=log, stderr=log) as server:
        try:
            shop, resets = [f"http://127.0.0.1:{port}" for port in ports]
            for _ in range(300):
                try:
                    urllib.request.urlopen(f"{shop}/catalogue/", timeout=30).close()
                    break
                except OSError:
                    time.sleep(0.2)
            yield shop, resets
        finally:
            server.terminate()


@pytest.fixture(scope="module")
def shops(made: Path) -> Iterator[list[tuple[str, str]]]:
    with served(made, "one") as one, served(made, "two") as two:
        yield [one, two]


def tasks_at(shop: str, folder: Path) -> dict[str, Task]:
    """The tasks, in the shop at this address."""
    file = folder / "tasks.jsonl"
    file.write_text((APPLICATION / "tasks.jsonl").read_text().replace(ADDRESS, shop))
    return {task.id: task for task in load_tasks(file, any_goal=True)}


def config_of(kind: str, servers: Path | None = None) -> Config:
    agent = AgentConfig(kind=kind, brief=True, answers="action", context_tokens=200_000)
    # jQuery would come from elsewhere, where that can be reached, and comes from the shop where it can't
    browser = BrowserConfig(browsers=1, episodes=2, private=True, allow=("127.0.0.1",))
    reward = f"{APPLICATION / 'rules.py'}:reward"
    return Config("own", agent=agent, browser=browser, task=TaskConfig(reward=reward, servers=servers))


@asynccontextmanager
async def opened(config: Config, preprocessor: Preprocessor, folder: Path) -> AsyncIterator[RolloutWorker]:
    file = config.task.servers
    slots = read_slots(file, config.browser.episodes, alone()) if file else None
    async with BrowserPool(config.browser, copies=slots) as pool:
        agent = make_agent(config, preprocessor)
        images = Run(folder / "run").images
        harness = Harness(config, preprocessor, agent, pool, images, choose_benchmarks(config))
        yield RolloutWorker(harness, Idle(), alone(), HostBackoff())


def told(trajectory: Trajectory) -> str:
    lines = [f"{turn.url} {turn.text[-200:]} -> {' '.join(turn.feedback)}" for turn in trajectory.turns]
    return "\n".join([*lines, f"{trajectory.stop} {trajectory.error} {trajectory.final_state}"])


@pytest.mark.parametrize("kind", ["visual", "text"])
@pytest.mark.parametrize("name", SCRIPTS)
async def test_a_task_is_done_by_an_agents_own_means(shops, preprocessor, tmp_path, kind, name):
    shop, resets = shops[0]
    urllib.request.urlopen(f"{resets}/reset", timeout=30).close()
    task = tasks_at(shop, tmp_path)[name]
    async with opened(config_of(kind), preprocessor, tmp_path) as worker:
        idle = Hand(preprocessor, kind, ("answer", "It is done."))
        nothing = await worker.episode(task, 0, idle, 3)
        assert (nothing.stop, nothing.success) == (Stop.DONE, False), told(nothing)
        done = await worker.episode(task, 1, Hand(preprocessor, kind, *SCRIPTS[name]), 40)
    print(told(done))
    assert (done.stop, done.success) == (Stop.DONE, True), told(done)
    assert not [line for turn in done.turns for line in turn.feedback if line.startswith("Failed")]


PAIRS = 20
ONE = [("click", "#add_to_basket_form button")]
PAY = [("click", "#messages a:has-text('Checkout now')"), *BUY, ("answer", "It is ordered.")]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("has_slots", [True, False])
async def test_two_rollouts_of_a_task_are_each_judged_by_their_own_order(
    shops, preprocessor, tmp_path, has_slots
):
    """One orders what the task asks for, one too many. Without slots they share a basket."""
    shop = shops[0][0]
    file = None
    if has_slots:
        file = tmp_path / "servers.json"
        slots = [{"sites": {shop: copy}, "reset": resets} for copy, resets in shops]
        file.write_text(json.dumps(slots))
    order = tasks_at(shop, tmp_path)["order"]
    goal = {**order.goal, "texts": ["Assam", "1"]}
    task = replace(order, instruction="Order one Assam.", start_url=f"{shop}/catalogue/assam_4/", goal=goal)
    n_right = 0
    async with opened(config_of("text", file), preprocessor, tmp_path) as worker:
        for _ in range(PAIRS):
            if not has_slots:  # as before an evaluation
                urllib.request.urlopen(f"{shops[0][1]}/reset", timeout=30).close()
            scripts = [[*ONE, *PAY], [*ONE, *ONE, *PAY]]
            hands = [Hand(preprocessor, "text", *steps) for steps in scripts]
            right, wrong = await asyncio.gather(
                *(worker.episode(task, member, hand, 20) for member, hand in enumerate(hands))
            )
            n_right += right.valid and wrong.valid and (right.success, wrong.success) == (True, False)
            print(told(right), told(wrong), sep="\n")
    print(f"slots: {has_slots}; both judged rightly: {n_right} of {PAIRS}")
    assert (n_right == PAIRS) == has_slots
