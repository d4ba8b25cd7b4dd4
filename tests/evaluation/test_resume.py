"""Evaluations that go on after an interruption, and what a protocol changes."""

import json
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from peers import alone, on_ranks
from workers import make_worker

from minirl.benchmarks.protocols import protocol_of
from minirl.benchmarks.task_sets import load_source
from minirl.cli.report import write_report
from minirl.config import to_json
from minirl.distributed import Ranks
from minirl.evaluation import resume
from minirl.evaluation.results import Evaluation, Result, ResultsFile, read_results, write_results
from minirl.evaluation.resume import EvalScriptConfig, Ledger, label_of, select_tasks, settings, unlike_run
from minirl.evaluation.tables import UNNAMED
from minirl.model import Preprocessor
from minirl.recipes import RECIPES, tiny, tiny_text
from minirl.rollout import RolloutWorker
from minirl.run_folder import Run, flatten
from minirl.types import Sample, SamplerError, Stop, Task, Trajectory, Turn
from minirl.worlds.scripted_agent import ScriptedPolicy
from minirl.worlds.shop import shops_of

POLICY = RolloutWorker.policy
TASKS = [Task(f"t{i}", f"Do {i}.", "http://shop-0.test/", meta={"benchmark": "webvoyager"}) for i in range(4)]


class Cast:
    """Of 8 tasks the shop's script solves two, one is without an answer, the model has two, and the others
    are given up at once. `interrupt_at`: the episode in which somebody presses Ctrl-C."""

    tasks = {task.id: task for task in load_source(tiny().task.heldout, 8, tiny())}
    order = list(tasks)

    def __init__(self, preprocessor: Preprocessor, interrupt_at: int = 0):
        self.preprocessor, self.interrupt_at, self.begun = preprocessor, interrupt_at, []

    def policy_of(self, worker, sampling, response_tokens, *names):
        task = self.tasks[names[3]]
        number = self.order.index(task.id)
        (shop,) = shops_of([task])
        scripted = ScriptedPolicy(shop, task, self.preprocessor, tiny().agent)
        model = POLICY(worker, sampling, response_tokens, *names)

        async def policy(t, prompt, session):
            if t == 0:
                self.begun.append(task.id)
                if len(self.begun) == self.interrupt_at:
                    signal.raise_signal(signal.SIGINT)
            if number == 4:
                raise SamplerError("nobody answers")
            if number in (0, 7):
                return await scripted(t, prompt, session)
            if number in (2, 6):
                return await model(t, prompt, session)
            call = '<tool_call>{"name": "done", "arguments": {"response": "I give up."}}</tool_call>'
            _, ids = self.preprocessor.render_response(f"so</think>{call}")
            return Sample(ids, (0.0,) * len(ids), "stop")

        return policy


@pytest.mark.more
def test_an_evaluation_that_was_interrupted_ends_as_if_nothing_had_happened(
    eval_script, tmp_path, tiny_folder, preprocessor, monkeypatch, capsys
):
    """Real browsers, sites, verifier and files."""
    usual = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it
    monkeypatch.setattr("minirl.samplers.huggingface.HfSampler.max_batch", 1)
    flags = ["tiny", "--model.path", str(tiny_folder), "--name", str(tmp_path / "tiny")]
    small = {"browser.width": 320, "browser.height": 240, "browser.browsers": 1, "browser.episodes": 2}
    small |= {"eval.episodes": 8, "eval.max-steps": 6, "eval.temperature": 0, "eval.response-tokens": 12}
    small["task.train"] = "shops:600-611"  # without effect, but quicker to make than the recipe's
    flags += [f"--{name}={value}" for name, value in small.items()]
    folder, name = tmp_path / "tiny-eval", f"eval_{tiny_folder.name}"

    def play(interrupt_at: int = 0) -> Cast:
        cast = Cast(preprocessor, interrupt_at)
        monkeypatch.setattr(RolloutWorker, "policy", lambda self, *asked, **_: cast.policy_of(self, *asked))
        eval_script.run(flags)
        return cast

    assert len(play().begun) == 8
    whole = folder.rename(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        play(interrupt_at=6)
    finished = [t.task.id for t in Run(folder).load_trajectories(name)]
    assert 3 <= len(finished) < 6, "it was not in the middle"
    capsys.readouterr()
    rest = play()
    signal.signal(signal.SIGINT, usual)
    assert f"{len(finished)} episodes are in" in capsys.readouterr().out
    assert sorted([*rest.begun, *finished]) == sorted(Cast.order)

    one, two = (read_results(place / f"results-{name}.json") for place in (whole, folder))
    assert one == two
    results = two.results
    assert len(results) == 8 and sum(r.success for r in results) == 2
    assert sum(r.stop is Stop.SAMPLER_ERROR for r in results) == 1
    assert sum(r.stop is Stop.LENGTH for r in results) == 2, "the model's"
    dumps = [Run(place).load_trajectories(name) for place in (whole, folder)]
    texts = [[(t.task.id, t.stop, [turn.text for turn in t.turns]) for t in dump] for dump in dumps]
    assert texts[0] == texts[1] and [t.task.id for t in dumps[1]] == Cast.order
    (row,) = Run(folder).evals()
    assert {e["category"]: e["count"] for e in row["errors"]}["access"] == 1, "nobody answered"
    assert sum(e["count"] for e in row["errors"]) == 8 - 2 and row["proxies"][-1]["rate"] == 1
    assert (folder / "report.html").is_file() and Run(folder).evals() == Run(whole).evals()


EVALUATION = Evaluation("", UNNAMED.rule, {"seed": 0}, {"python": "3"}, (0, 1))
PLACES = [(task, seed) for seed in (0, 1) for task in TASKS]


def ledger(root: Path, ranks: Ranks | None = None) -> Ledger:
    ranks = ranks or alone()
    return Ledger(Run(root, records=ranks.is_main), "eval_x", EVALUATION, PLACES, ranks)


def episode(i: int, seed: int = 0, stop: Stop = Stop.DONE, success: bool = False) -> Trajectory:
    turn = Turn(0, (1,), (2,), (-0.1,), "")
    error = "" if stop.is_agent_fault else "Traceback:\nRuntimeError: the reason"
    return Trajectory(TASKS[i], seed, turns=(turn,), stop=stop, success=success, error=error, seconds=i + 1.5)


def test_aborted_episodes_are_done_unless_they_are_to_be_tried_again(tmp_path):
    books = ledger(tmp_path)
    assert books.missing(books.collect(), retry=False) == PLACES
    books.add(episode(2, seed=1, success=True))
    books.add(episode(0, stop=Stop.TIMEOUT))
    results = books.collect()
    left = [(task.id, seed) for task, seed in books.missing(results, retry=False)]
    assert left == [("t1", 0), ("t2", 0), ("t3", 0), ("t0", 1), ("t1", 1), ("t3", 1)]
    assert [(task.id, seed) for task, seed in books.missing(results, retry=True)] == [("t0", 0), *left]
    books.add(episode(0, success=True))
    assert [(r.place, r.stop) for r in books.collect()] == [(("t0", 0), Stop.DONE), (("t2", 1), Stop.DONE)]
    dumped = books.run.load_trajectories("eval_x")
    assert [(t.task.id, t.member, t.stop) for t in dumped] == [("t0", 0, Stop.DONE), ("t2", 1, Stop.DONE)]


def test_a_process_that_was_killed_loses_nothing_whole(tmp_path):
    """The results are only written later: the dump is what counts."""
    books = ledger(tmp_path)
    books.collect()
    books.add(episode(1))
    with open(books.run.trajectory_path("eval_x"), "a") as file:
        file.write('{"task": {"id": "t2", ')
    assert read_results(books.path) == ResultsFile(EVALUATION, [])
    books = ledger(tmp_path)
    assert [r.task for r in books.collect()] == ["t1"] == [r.task for r in read_results(books.path).results]
    books.add(episode(3))
    assert [r.task for r in books.collect()] == ["t1", "t3"]


def on_two(ranks: Ranks, root: str) -> list[tuple[str, int]]:
    books = ledger(Path(root), ranks)
    books.collect()
    for i in range(ranks.rank, 4, 2):
        books.add(episode(i, seed=ranks.rank))
    ranks.barrier()
    return [r.place for r in books.collect()]


@pytest.mark.slow
def test_two_ranks_keep_one_dump(tmp_path):
    ledger(tmp_path).add(episode(3, seed=0, success=True))
    places = on_ranks(2, on_two, str(tmp_path))
    assert places == [[("t0", 0), ("t2", 0), ("t3", 0), ("t1", 1), ("t3", 1)]] * 2
    assert len(Run(tmp_path).load_trajectories("eval_x")) == 5


def test_what_differs_gets_a_label_of_its_own(tmp_path):
    run = Run(tmp_path)
    name = "eval_step_00004"

    def begin(label: str, evaluation: Evaluation) -> None:
        run.save_trajectories(label, [])
        write_results(tmp_path / f"results-{label}.json", evaluation, [Result("t0", Stop.DONE, True)])

    assert label_of(run, "runs/a/step_00004", EVALUATION) == name
    begin(name, EVALUATION)
    assert label_of(run, "runs/a/step_00004", EVALUATION) == name
    other = replace(EVALUATION, config={"seed": 1})
    assert label_of(run, "runs/a/step_00004", other) == f"{name}-2"
    begin(f"{name}-2", other)
    assert label_of(run, "runs/a/step_00004", other) == f"{name}-2"
    (tmp_path / f"results-{name}-2.json").unlink()  # a dump without results: nobody knows its settings
    assert label_of(run, "runs/a/step_00004", other) == f"{name}-3"
    named = replace(EVALUATION, protocol="webvoyager-official")
    assert label_of(run, "a/model", named) == "eval_model_webvoyager-official"


def test_settings_tell_other_weights_prompts_and_tasks_apart(tmp_path):
    models = ("a/model.safetensors", "a/chat_template.jinja", "b/model.safetensors")
    files = [tmp_path / name for name in (*models, "prompt", "other", "own.py")]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.write_text("Be kind.")
    config = replace(
        EvalScriptConfig(**vars(tiny())),
        model=replace(tiny().model, path=str(tmp_path / "a")),
        agent=replace(tiny().agent, prompt=tmp_path / "prompt"),
        judge=replace(tiny().judge, prompt=tmp_path / "other", path=str(tmp_path / "b")),
        task=replace(tiny().task, reward=f"{tmp_path / 'own.py'}:reward"),
    )
    first = settings(config, TASKS)
    for same in ({"retry": True}, {"success_within": (5, 10)}):
        assert settings(replace(config, **same), TASKS) == first == json.loads(json.dumps(first))
    assert settings(replace(config, seeds=(0, 1)), TASKS) != first
    assert settings(config, [*TASKS[:3], replace(TASKS[3], instruction="Do more.")]) != first
    for file in files:
        before = settings(config, TASKS)
        file.write_text("Be strict.")
        assert settings(config, TASKS) != before, f"{file} has other contents under the same name"
    assert resume.digest_of(Path("Qwen/Qwen3-VL-4B-Thinking")) == ""


@pytest.fixture
def resolve(eval_script: ModuleType) -> Callable[..., EvalScriptConfig]:
    """The settings of a command line, for weights that are no run's."""
    return lambda *flags: eval_script.read_config([*flags, "--model.path", "some/folder"])


@pytest.mark.parametrize("name", ["autowebworld-official", "screenspot-v2-official"])
def test_a_protocols_settings_are_taken(resolve, name):
    """tests/benchmarks/test_protocols.py applies them all."""
    protocol = protocol_of(name)
    config = resolve("openwebrl-4b", "--protocol", name, "--browser.width", "640")
    how, usual = config.eval, protocol.sampling
    assert (how.temperature, how.top_p, how.top_k) == (usual.temperature, usual.top_p, usual.top_k)
    assert (how.max_steps, how.response_tokens) == (protocol.max_steps, protocol.response_tokens)
    assert config.browser.episodes == 16 and config.browser.episode_seconds == 600
    assert config.endpoint.seconds == 120
    assert config.judge == protocol.judge and config.browser.width == 640
    for world, share in ((1, 16), (3, 6), (8, 2), (64, 1)):  # what is written down does not depend on ranks
        assert make_worker(config, ranks=replace(alone(), world_size=world)).share == share


def test_flags_win_over_the_protocol(resolve):
    """Also one that repeats the recipe's value."""
    config = resolve("--protocol=webvoyager-official", "--eval.max_steps", "6", "--eval.top-k=0")
    assert (config.recipe, config.eval.max_steps, config.eval.top_k) == ("tiny", 6, 0)
    assert config.eval.max_steps == tiny().eval.max_steps
    assert (config.eval.temperature, config.judge.model) == (0.6, "gpt-4o")
    assert resolve("--protocol", "webvoyager-official", "--success-within", "5", "50").eval.max_steps == 50
    flags = ["--protocol", "webvoyager-official", "--judge.seconds=600", "--judge.model", "mine"]
    judge = resolve(*flags).judge
    assert (judge.seconds, judge.model, judge.input) == (600, "mine", "webvoyager")


def test_tasks_are_those_of_the_protocol_the_first_so_many_of_them(resolve):
    tasks = [*TASKS, Task("other", "Do it.", "http://a.test/", meta={"benchmark": "deepshop"})]
    assert resolve("--limit", "400").eval.episodes == 400 > tiny().eval.episodes
    assert resolve("--name", "clones/a/").run_dir == resolve("--name", "clones/a").run_dir
    config = resolve("--limit", "3")
    assert select_tasks(config, [tasks[4], *TASKS]) == [tasks[4], *TASKS[:2]]
    official = replace(config, protocol="webvoyager-official")
    assert select_tasks(official, tasks[::-1]) == TASKS[:0:-1]
    with pytest.raises(ValueError, match="needs tasks of the benchmark online-mind2web"):
        select_tasks(replace(config, protocol="online-mind2web-official"), tasks)


def test_what_flags_mean_for_others(eval_script, resolve):
    served = ["--sampler", "remote", "--endpoint.url", "http://127.0.0.1:1/v1", "--endpoint.model", "x"]
    config = eval_script.read_config(["--protocol", "webvoyager-official", *served])
    assert (config.eval.top_k, config.model.path) == (20, "tiny"), "the recipe's tokenizer measures"
    config = resolve("tiny-text", "--tasks", "some/file.jsonl", "--seeds", "1", "0", "1")
    assert config.task == replace(tiny_text().task, heldout="some/file.jsonl")
    assert (config.recipe, config.seeds) == ("tiny_text", (0, 1))


def change_run(folder: Path, values: dict[str, Any]) -> None:
    """Give a run other settings, by flag."""
    saved = Run(folder).config()
    for name, value in values.items():
        part, field = name.split(".")
        saved[part][field] = value
    Run(folder).write_config(saved)


# What a run of `tiny` had otherwise
ABLATED = {"agent.feedback": False, "agent.screenshots": 2, "browser.height": 720}
ABLATED |= {"model.max_pixels": 9999, "eval.response_tokens": 80, "rollout.group": 4, "reward.by": "judge"}
ABLATED |= {"reward.success": 0.5, "reward.partial": 0.25, "judge.input": "webvoyager"}


@pytest.fixture
def ablated(tmp_path: Path) -> Path:
    """A run that was trained with other settings than its recipe's."""
    run = tmp_path / "ablated"
    Run(run).write_config(to_json(tiny()))
    change_run(run, ABLATED)
    (run / "checkpoints" / "step_00004").mkdir(parents=True)
    return run


def conditions(config: EvalScriptConfig) -> list[object]:
    agent, browser = config.agent, config.browser
    limits = (browser.height, config.model.max_pixels, config.eval.response_tokens)
    return [agent.feedback, agent.screenshots, *limits]


def test_a_run_is_evaluated_as_it_was_trained(eval_script, tmp_path, ablated):
    """Also by its newest checkpoint's name, by way of a server, and where another recipe is named."""
    trained = [False, 2, 720, 9999, 80]
    checkpoint = str(ablated / "checkpoints" / "step_00004")
    served = ["--sampler", "remote", "--endpoint.model", "x"]
    by_name = ["--name", str(ablated)]
    commands = [by_name, [*by_name, *served], ["tiny-text", *by_name], ["--model.path", checkpoint]]
    configs = [eval_script.read_config(command) for command in commands]
    for config in configs:
        assert conditions(config) == trained
        assert (config.rollout, config.reward.by) == (RECIPES[config.recipe]().rollout, "task")
        grading = (config.reward.success, config.reward.partial, config.judge.input)
        assert grading == (0.5, 0.25, "webvoyager")
    assert configs[0].model.path == checkpoint
    flags = ["--agent.feedback", "--browser.height", "360"]
    assert conditions(eval_script.read_config([*by_name, *flags])) == [True, 2, 360, 9999, 80]
    other = ["--name", str(tmp_path / "nowhere"), "--model.path", "some/model"]
    assert conditions(eval_script.read_config(other)) == conditions(EvalScriptConfig(**vars(tiny())))


def test_a_runs_own_question_to_its_judge_is_not_taken_but_named(eval_script, ablated):
    """The file may be a stranger's."""
    change_run(ablated, {"judge.prompt": "theirs.md"})
    config = eval_script.read_config(["--name", str(ablated)])
    assert config.judge.prompt is None and unlike_run(config) == ["judge.prompt None (theirs.md)"]


def test_a_protocol_leaves_the_agent_as_it_was_trained(eval_script, ablated):
    config = eval_script.read_config(["--name", str(ablated), "--protocol", "webvoyager-official"])
    assert conditions(config) == [False, 2, 720, 9999, 4096]
    assert (config.eval.temperature, config.eval.max_steps, config.agent.context_tokens) == (0.6, 30, 1024)


def test_what_is_unlike_the_run_is_named(eval_script, ablated):
    by_name = ["--name", str(ablated)]
    assert unlike_run(eval_script.read_config(by_name)) == []
    flags = ["--agent.feedback", "--eval.max-steps", "9", "--task.heldout", "shops:1-2", "--seed", "3"]
    expected = ["agent.feedback True (False)", "eval.max_steps 9 (6)"]
    assert unlike_run(eval_script.read_config([*by_name, *flags])) == expected
    served = ["--sampler", "remote", "--endpoint.model", "x"]
    assert unlike_run(eval_script.read_config([*by_name, *served, *flags])) == expected
    weights = ["--model.path", str(ablated / "checkpoints" / "step_00004")]
    assert unlike_run(eval_script.read_config([*weights, *flags])) == expected, "the weights' own run"


PROMPT = {"agent.prompt": "/etc/hosts"}
REWARD = {"task.reward": "runs/ablated/evil.py:reward"}
DOORS = {
    "browser.connect": ["cdp:http://127.0.0.1:9222"],
    "browser.insecure": True,
    "browser.private": True,
    "task.train": "/dev/zero",
    "task.heldout": "/dev/zero",
    "task.reset": "http://10.0.0.1/",
    "task.servers": "/etc/hosts",
}


@pytest.mark.parametrize("doors", [DOORS, PROMPT, REWARD], ids=["doors", "prompt", "reward"])
def test_what_a_runs_folder_names_is_not_opened(eval_script, ablated, doors):
    """It may come from anybody. That it was otherwise is told, or refused where it would be another agent."""
    change_run(ablated, doors)
    by_name = ["--name", str(ablated)]
    config = eval_script.read_config(by_name)
    usual = flatten(to_json(tiny()))
    assert {name: flatten(to_json(config))[name] for name in doors} == {name: usual[name] for name in doors}
    if doors is not DOORS:
        ((name, value),) = doors.items()
        with pytest.raises(ValueError, match=f"was trained with {name} {value}, .* give it again"):
            unlike_run(config)
        config = eval_script.read_config([*by_name, f"--{name.replace('agent.', '')}", "mine"])
        usual[name] = "mine"
    told = [f"{name} {usual[name]} ({value})" for name, value in doors.items() if name != "task.heldout"]
    assert sorted(unlike_run(config)) == sorted(told)


DEEP = ["[" * 100_000, '{"a":' * 500 + "1" + "}" * 500]


@pytest.mark.parametrize("text", ["[]", "null", '{"agent": [[]]}', *DEEP, '{"agent": {"kind": 3}}'])
def test_a_config_that_is_none_is_one_line(eval_script, ablated, text):
    (ablated / "config.json").write_text(text)
    with pytest.raises(ValueError, match=r"config.json can't be used: [^\n]*$"):
        eval_script.read_config(["--name", str(ablated)])
    if "kind" not in text:
        with pytest.raises(ValueError, match="config.json can't be used"):
            write_report(ablated)


def test_a_run_with_settings_of_another_version_is_refused(eval_script, ablated):
    change_run(ablated, {"agent.history": "all"})
    with pytest.raises(ValueError, match="ablated was made by another version, with agent.history; evaluate"):
        eval_script.read_config(["--name", str(ablated)])


@pytest.mark.parametrize(
    ("flags", "is_refused"),
    [
        (["--protocol", "webarena-lite-official"], True),
        (["webagent-r1-3b"], True),
        (["--reward.after", "any"], True),
        (["webagent-r1-3b", "--protocol", "webvoyager-official"], False),
    ],
)
def test_smaller_budgets_are_not_counted_where_a_page_is_graded_at_its_limit(resolve, flags, is_refused):
    budgets = ["--success-within", "5", "10"]
    if is_refused:
        with pytest.raises(ValueError, match="give --eval.max-steps instead, and evaluate once for each"):
            resolve(*flags, *budgets)
    else:
        assert resolve(*flags, *budgets).eval.max_steps == 10


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--limit", "-1"], "--limit"),
        (["--compare", "one.json"], "--compare"),
        (["--success-within", "0"], "--success-within"),
        (["--protocol", "webvoyager"], "no protocol 'webvoyager'; there are webvoyager-official, "),
        (["--eval.max-steps", "many"], "max-steps"),
        (["--warm-start", "some/folder"], "--model.path some/folder"),
        (["--plan", "8x80"], "--plan and --resume are train.py's"),
        (["--name"], "--name"),
    ],
)
def test_flags_that_cannot_be_are_refused(resolve, capsys, flags, problem):
    with pytest.raises((ValueError, SystemExit)) as refused:
        resolve(*flags)
    assert problem in f"{refused.value} {capsys.readouterr().err}"
