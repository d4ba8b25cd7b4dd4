"""What README and docs/ may hold; the own site and own reward of docs/using.md, taken from there and run."""

import json
import re
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from pages import running
from workers import make_worker

from minirl.benchmarks.task_files import load_tasks
from minirl.benchmarks.task_sets import choose_benchmarks
from minirl.browser.pool import BrowserPool
from minirl.recipes import tiny
from minirl.run_folder import Run
from minirl.types import Sample, Stop

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
README = (ROOT / "README.md").read_text()
USING = (ROOT / "docs" / "using.md").read_text()
PAGE = """<!doctype html><title>Form</title><body style="margin:0">
<input aria-label="Name" style="position:absolute;left:0;top:0;width:480px;height:100px">
<button style="position:absolute;left:0;top:180px;width:480px;height:100px"
 onclick="greeting.textContent = 'Hello, ' + document.querySelector('input').value">Greet</button>
<p id="greeting"></p></body>"""


def block(language: str) -> str:
    """The only code block of docs/using.md in a language."""
    (found,) = re.findall(rf"```{language}\n(.*?)```", USING, re.DOTALL)
    return found


@pytest.fixture
def site(tmp_path):
    (tmp_path / "form.html").write_text(PAGE)
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with running(ThreadingHTTPServer(("127.0.0.1", 0), handler)) as server:
        yield f"http://127.0.0.1:{server.server_port}"


def call(name: str, **arguments) -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {json.dumps(arguments)}}}</tool_call>'


@pytest.mark.parametrize(("name", "reward"), [("Ada", 1.0), ("Bob", 0.0)])
async def test_the_example_rewards_who_greets_ada(preprocessor, tmp_path, site, name, reward):
    record = block("json").replace("http://127.0.0.1:8000", site)
    (tmp_path / "tasks.jsonl").write_text(record)
    (tmp_path / "reward.py").write_text(block("python"))
    (task,) = load_tasks(tmp_path / "tasks.jsonl")
    config = replace(tiny(), browser=replace(tiny().browser, browsers=1, private=True))
    config = replace(config, task=replace(config.task, reward=f"{tmp_path / 'reward.py'}:reward"))

    async def policy(t, prompt, session) -> Sample:
        calls = [call("click", point_2d=[500, 139]), call("write", message=name)]
        calls += [call("click", point_2d=[500, 639]), call("done", response="greeted")]
        said = f"so</think>{''.join(calls)}{preprocessor.tokenizer.eos_token}"
        ids = tuple(preprocessor.tokenizer(said, add_special_tokens=False)["input_ids"])
        return Sample(ids, (0.0,) * len(ids), "stop")

    async with BrowserPool(config.browser) as pool:
        worker = make_worker(config, preprocessor, None, pool, Run(tmp_path / "run").images)
        worker.harness.benchmark_of = choose_benchmarks(config)
        trajectory = await worker.episode(task, 0, policy, 3)
    assert (trajectory.stop, trajectory.error) == (Stop.DONE, "")
    assert (trajectory.reward, trajectory.success) == (reward, reward == 1)


def test_the_first_screen_is_plain():
    lines = README.splitlines()
    assert len(lines) <= 150
    first = "\n".join(lines[:40])
    numbers = re.findall(r"(?<![\w.-])\d[\d.,]*", first)
    assert 5 <= len(numbers) <= 15, numbers


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda page: page.name)
def test_a_page_is_read_in_one_sitting(page):
    if page.name not in ("log.md", "reproduce.md"):
        assert len(page.read_text().splitlines()) <= 200


def anchors(text: str) -> set[str]:
    """The addresses of a page's headings, as GitHub makes them."""
    headings = re.findall(r"(?m)^#+ (.*)", re.sub(r"(?ms)^```.*?^```", "", text))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, anchor = target.partition("#")
        if "://" in target:
            continue
        file = page.parent / path if path else page
        assert file.exists(), target
        if file.suffix == ".md" and anchor:
            assert anchor in anchors(file.read_text()), target
