"""The loop in one file: what it imports, its parts by hand, and one step of it in small, on real pages."""

import ast
import random
import re
import sys
from pathlib import Path

import pytest
import torch
from playwright.sync_api import sync_playwright

FILE = Path(__file__).parents[2] / "examples" / "minimal_grpo.py"
PAGES_OF = {"minirl.worlds.render", "minirl.worlds.shop"}  # the server of pages; weights are files


def test_it_is_one_file_of_its_own():
    source = FILE.read_text()
    assert len(source.splitlines()) <= 300
    imported = {node.module for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)}
    assert {name for name in imported if name and name.startswith(("minirl", "examples"))} == PAGES_OF
    assert "async " not in source


@pytest.fixture(scope="module")
def loop():
    """The file as a module; it loads the model."""
    from examples import minimal_grpo

    return minimal_grpo


@pytest.mark.more
def test_advantages_and_loss_by_hand(loop):
    assert loop.advantages_of([1.0, 0.0, 0.0, 0.0]) == pytest.approx([1.5, -0.5, -0.5, -0.5])
    assert loop.advantages_of([1.0, 1.0]) == [0.0, 0.0]
    old = torch.zeros(2)
    for ratios, advantage, expected in (
        ([2.0, 1.0], 1.0, -(1.28 + 1) / 2),  # clipped: far enough
        ([0.5, 1.0], -1.0, (0.8 + 1) / 2),  # clipped
        ([2.0, 1.0], -1.0, (2 + 1) / 2),  # not clipped: it went the wrong way
        ([0.5, 1.0], 1.0, -(0.5 + 1) / 2),
    ):
        loss = loop.clipped_loss(torch.tensor(ratios).log(), old, advantage)
        assert loss.item() == pytest.approx(expected)


@pytest.mark.more
def test_a_step_in_small(loop, monkeypatch, capsys):
    """What was sampled is what is trained, an update does what advantages ask for, and the command runs."""
    monkeypatch.setattr(loop, "GROUPS", 2)
    monkeypatch.setattr(loop, "GROUP", 3)
    monkeypatch.setattr(sys, "argv", [str(FILE), "--steps", "1", "--permuted"])
    loop.main()
    first, step = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"at first: [\d.]+% of held-out orders", first)
    assert re.fullmatch(r"step 1: [\d.]+% of orders that were new", step)

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=loop.CHROMIUM)
        context = browser.new_context(viewport={"width": loop.WIDTH, "height": loop.HEIGHT})
        context.route("**/*", lambda route: route.fulfill(body=loop.sites.get(route.request.url, b"")))
        tasks = [loop.draw_task(random.Random(n), loop.HELDOUT) for n in range(6)]
        episodes = loop.sample(tasks, [context.new_page() for _ in tasks])
    assert [episode.task for episode in episodes] == tasks
    assert {episode.reward for episode in episodes} <= {0.0, 1.0}
    assert max(len(episode.turns) for episode in episodes) == 2
    turns = [turn for episode in episodes for turn in episode.turns]

    def logprobs() -> list[torch.Tensor]:
        with torch.no_grad():
            return loop.logprobs_of(turns)

    before = logprobs()
    for turn, now in zip(turns, before, strict=True):
        assert now.tolist() == pytest.approx(turn.logprobs, abs=1e-3)
    for i, episode in enumerate(episodes):
        episode.advantage = (-1.0) ** i
    signs = [episode.advantage for episode in episodes for _ in episode.turns]
    loop.update(episodes, random.Random(0))
    gains = [(now - old).mean() for now, old in zip(logprobs(), before, strict=True)]
    assert sum(sign * gain for sign, gain in zip(signs, gains, strict=True)) > 0
