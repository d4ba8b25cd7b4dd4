"""The commands of docs/reproduce.md: understood as they stand there, and each run in small, in their order.

bash reads the blocks, with `python` and `torchrun` as functions that hand their arguments over and wait. So
variables, loops and globs are its own, and mean in the test what they mean to the reader.
"""

import contextlib
import functools
import importlib
import json
import os
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import stand_in
import tyro
from endpoint_server import say, serve
from recorded import save_qwen2_5_vl
from test_docs import parse

import judge
import sft
import train
from examples.agent_reward_bench import read as agent_reward_bench
from examples.chain_of_thought import rewrite
from minirl.data import __main__ as data
from minirl.run_folder import Run, write_lines
from minirl.tiny.checkpoints import BASE_TEXT
from minirl.types import Stop
from minirl.worlds import __main__ as worlds
from minirl.worlds.looks import text_of

ROOT = Path(__file__).parents[1]
DOCUMENT = (ROOT / "docs" / "reproduce.md").read_text()
GENERAL, *PAPERS = re.split(r"^## ", DOCUMENT, flags=re.MULTILINE)
PAPERS = {section.partition("\n")[0]: section for section in PAPERS}
EXAMPLES = {"rewrite.py": rewrite.main, "read.py": agent_reward_bench.main}
HAND_OVER = """
hand_over() { printf '%s\\0' "$@" >&$ASK; echo >&$ASK; read -r status <&$ANSWER; return "$status"; }
python() { hand_over "$@"; }
torchrun() { shift 2; hand_over "$@"; }
seq() { echo 1 2; }
"""  # of a long loop the first two rounds
DRY = HAND_OVER + "cat() { :; }\nmv() { :; }\n"  # nothing is run, so there is nothing to copy


def block(paper: str) -> str:
    """The code of a paper's chapter, behind what holds for all."""
    blocks = [re.findall(r"(?ms)^```\n(.*?)^```", text) for text in (GENERAL, PAPERS[paper])]
    return "\n".join(code for part in blocks for code in part)


def walk(code: str, folder: Path, run: Callable[[list[str]], int]) -> int:
    """Have bash go through the code in the folder; `run` gets each command's arguments and returns its exit
    status. Return bash's: 0 if all were 0, no variable was unknown and nothing else failed."""
    ask, questions = os.pipe()
    answers, answer = os.pipe()
    env = os.environ | {"ASK": str(questions), "ANSWER": str(answers)}
    with subprocess.Popen(
        ["bash", "-euc", code], cwd=folder, env=env, pass_fds=(questions, answers)
    ) as process:
        os.close(questions)
        os.close(answers)
        with open(ask) as incoming, open(answer, "w") as outgoing:
            for line in incoming:
                status = run(line.removesuffix("\0\n").split("\0"))
                outgoing.write(f"{status}\n")
                outgoing.flush()
    return process.returncode


# --- understood --------------------------------------------------------------------------------------


def understand(argv: Sequence[str], eval_script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read a command with its own parser. ValueError or SystemExit if it is not understood."""
    match argv:
        case ["-m", "minirl.data" | "minirl.worlds" as name, *flags]:
            room, run = {"minirl.data": (data, data.run), "minirl.worlds": (worlds, worlds.run)}[name]
            verb = getattr(room, flags[0])
            with monkeypatch.context() as patch:
                patch.setattr(room, flags[0], functools.wraps(verb)(lambda *args, **kwargs: 0))
                assert run(flags) in (0, None)
        case ["train.py" | "sft.py" | "eval.py" | "judge.py" as script, *flags]:
            parse(script, flags, eval_script)
        case [script, *flags]:
            main = EXAMPLES[Path(script).name]
            assert (ROOT / script).is_file()
            tyro.cli(functools.wraps(main)(lambda *args, **kwargs: None), args=flags)


@pytest.mark.parametrize("paper", PAPERS)
def test_every_command_is_understood(paper, tmp_path, eval_script, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    heads = Counter()

    def run(argv: list[str]) -> int:
        try:
            understand(argv, eval_script, monkeypatch)
        except (ValueError, SystemExit) as problem:
            pytest.fail(f"{' '.join(argv)}: {problem} {capsys.readouterr()}")
        heads[" ".join(argv[:2]) if argv[0] == "-m" else argv[0]] += 1
        return 0

    assert walk(DRY + block(paper), tmp_path, run) == 0
    assert heads["train.py"] >= 3 and heads["eval.py"] >= 3 and heads.total() >= 15, heads


@pytest.mark.parametrize("paper", PAPERS)
def test_the_tables_speak_of_commands_that_are_there(paper):
    labels = set(re.findall(r"(?m)^# (\w+):", block(paper)))
    rows = "".join(re.findall(r"(?m)^\|.*", PAPERS[paper]))
    named = set(re.findall(r"\b[PQX]\d+\b", rows))
    assert named and named <= labels


def test_what_is_not_understood_is_found(tmp_path, eval_script, monkeypatch):
    for flags in (["-m", "minirl.worlds", "make", "--outt", "x"], ["eval.py", "tiny", "--protocoll", "x"]):
        with pytest.raises((ValueError, SystemExit)):
            understand(flags, eval_script, monkeypatch)
    assert walk(DRY + "python eval.py $MISSING\n", tmp_path, lambda argv: 0) != 0
    assert walk(DRY + "python a.py\npython b.py\n", tmp_path, lambda argv: 3) == 3


# --- run in small ------------------------------------------------------------------------------------

TINY = {
    "agent.response-tokens": 16,
    "agent.context-tokens": 8192,
    "batch.micro-tokens": 8192,
    "browser.browsers": 1,
    "browser.episodes": 2,
    "browser.width": 480,
    "browser.height": 360,
    "browser.quiet-ms": 0,
    "eval.response-tokens": 8,
    "eval.max-steps": 2,
}
TRAINED = {
    "rollout.group": 2,
    "rollout.groups": 1,
    "rollout.max-steps": 2,
    "sft.batch": 2,
    "sft.max-steps": 1,
    "eval.episodes": 1,
}
NO_RUNS = {"base", "base8b", "prompted", "teacher", "ui_tars"}  # names under which nothing was trained
SWITCHES = ["--browser.private", "--agent.brief", "--model.no-gradient-checkpointing"]


def small(argv: Sequence[str], url: str, models: dict[str, Path]) -> list[str]:
    """A command with a tiny model, small numbers and the scripted server, and without stealth browsers."""
    argv = [url if word in ("U", "https://api.openai.com/v1") else word for word in argv]
    if "--browser.connect" in argv:
        place = argv.index("--browser.connect")
        del argv[place : place + 2]
    match argv:
        case ["-m", "minirl.data", "filter", *_]:
            if "--model" in argv:
                place = argv.index("--model")
                argv[place : place + 2] = ["--embeddings", "sft/embeddings.npy"]
            return [*argv, "--least", "1"]
        case ["-m", "minirl.worlds", "make", *_]:
            return [*argv, "--level", "first", "--count", "2", "--tasks", "2"]
        case ["-m", "minirl.worlds", "record", *_]:
            browser = {name: value for name, value in TINY.items() if name.startswith("browser.")}
            return [*argv, *as_flags(browser)]
        case ["-m", "minirl.worlds", "render", *_]:
            return [*argv, "--tasks", "1"]
        case ["judge.py", "label", *_]:  # untrained, the policy never ends an episode
            return [word.replace("runs/rl4b", "runs/teacher-eval") for word in argv]
        case ["judge.py", "score", *_]:
            return [*argv, "--judge.response-tokens", "8"]
        case ["judge.py", "distil", *_]:
            flags = {"model.path": models["judge-8b"], "sft.batch": 2, "sft.max-steps": 1, "sft.epochs": 1}
            return [*argv, "--model.no-gradient-checkpointing", *as_flags(flags)]
        case ["eval.py", recipe, *_]:
            flags = dict(TINY)
            if argv[argv.index("--name") + 1] in NO_RUNS:
                flags["model.path"] = models[recipe]
            return [*argv, *SWITCHES, *as_flags(flags)]
        case ["train.py" | "sft.py", recipe, *_]:
            steps = {"steps": 2 if "--resume" in argv else 1}
            flags = TINY | TRAINED | steps | {"model.path": models[recipe]}
            if "filtered-bc" in argv:  # which untrained weights give nothing to learn from
                flags |= {"task.reward": "reward.py:reward", "reward.after": "any"}
            return [*argv, *SWITCHES, "--rollout.no-dynamic", *as_flags(flags)]
    return argv


def as_flags(settings: dict[str, Any]) -> list[str]:
    return [word for name, value in settings.items() for word in (f"--{name}", str(value))]


def start(argv: Sequence[str], eval_script: ModuleType) -> int | None:
    """Run a command in this process, which has all imports behind it."""
    match argv:
        case ["-m", "minirl.data", *flags]:
            return data.run(flags)
        case ["-m", "minirl.worlds", *flags]:
            return worlds.run(flags)
        case ["eval.py", *flags]:
            return eval_script.run(flags)
        case [("train.py" | "sft.py" | "judge.py") as script, *flags]:
            return {"train.py": train, "sft.py": sft, "judge.py": judge}[script].run(flags)
        case [script, *flags]:
            return tyro.cli(EXAMPLES[Path(script).name], args=flags)


def result(argv: Sequence[str]) -> str:
    """What shows that a command has done its work: a finished episode, an update, a file."""
    name = argv[argv.index("--name") + 1] if "--name" in argv else ""
    match argv:
        case ["train.py", *_]:
            assert Run(Path("runs") / name).metrics(), "no update"
            return "updates"
        case ["sft.py", *_]:
            assert (Path("runs") / name / "checkpoints/sft/state.json").is_file()
            return "updates"
        case ["eval.py", *_]:
            run = Run(Path("runs") / f"{name}-eval")
            newest = max(run.root.glob("results-*.json"), key=lambda path: path.stat().st_mtime_ns)
            rows = json.loads(newest.read_text())["results"]
            faults = [row for row in rows if not Stop(row["stop"]).is_agent_fault]
            assert rows and not faults, faults
            return "episodes"
        case ["judge.py", "distil", *_]:
            assert Run(Path("runs/judge_8b")).metrics()
            return "updates"
    return "files"


CLICK = "<think>It is there.</think><action>{'action': 'answer', 'text': 'all'}</action>"
DONE = 'It is there.</think><tool_call>{"name": "done", "arguments": {"response": "all"}}</tool_call>'
EXIT = '<think> It is there. </think> <answer> exit(message="all") </answer>'
SERVED = {
    "Qwen3-VL-235B-A22B-Thinking": DONE,
    "UI-TARS-1.5-7B": "Thought: It is there. Action: finished(content='all')",
    "Qwen/QwQ-32B": "First I look at the page. It is there.",
    "gemini-2.5-flash": "It is there.",
}


def answer(request: dict[str, Any], paper: str) -> str:
    """What the model that is asked for says: a policy's response, a thought, a machine or a verdict."""
    texts = json.dumps(request["messages"])
    if request["model"] in SERVED:
        return SERVED[request["model"]]
    if request["model"] == "o4-mini" and paper == "WebAgent-R1":
        return EXIT
    if request["model"] == "gpt-5.1":
        return f"```json\n{text_of('author/example.json')}\n```"
    if paper == "WebAgent-R1":
        return "correct"
    if "response_format" in request or '\\"verdict\\"' in texts:
        return '{"thought": "All there.", "verdict": "SUCCESS"}'
    if "Status:" in texts:
        return "All there.\nStatus: success"
    return "All there.\nSUCCESS"


def openwebrl_files(folder: Path, site: str) -> None:
    wordings = ["Open page two.", "Read the tip.", "Type a name."]
    pool = [
        {"benchmark_name": "pae-webvoyager", "task_name": words, "website": f"{site}/"} for words in wordings
    ]
    write_lines(folder / "WEBGYM.jsonl", [record | {"task_id": f"g{n}"} for n, record in enumerate(pool)])
    voyager = {"web_name": "Apple", "id": "Apple--1", "ques": "Find the button.", "web": f"{site}/"}
    write_lines(folder / "WV.jsonl", [voyager])
    mind2web = {"task_id": "m1", "confirmed_task": "Ask a question.", "website": f"{site}/", "level": "easy"}
    (folder / "OM2W.json").write_text(json.dumps([mind2web]))
    shop = {"id": 1, "ques": "Find a mug.", "web": f"{site}/", "web_name": "Amazon", "difficulty": "easy"}
    write_lines(folder / "DEEPSHOP.jsonl", [shop])
    (folder / "sft").mkdir()
    np.save(folder / "sft/embeddings.npy", np.eye(6, dtype=np.float32))


def reward_bench_files(folder: Path, picture: bytes) -> None:
    root = folder / "AGENT_REWARD_BENCH"
    place = root / "trajectories/webarena/Agent-1/webarena.17.json"
    place.parent.mkdir(parents=True)
    step = {"action": 'send_msg_to_user("Two mugs.")', "url": "http://shop.test/", "screenshot_path": "0.png"}
    place.write_text(json.dumps({"goal": "Count the mugs", "steps": [step]}))
    row = "webarena,Agent-1,webarena.17,Successful"
    (root / "annotations.csv").write_text(f"benchmark,model_name,task_id,trajectory_success\n{row}\n")
    (root / "0.png").write_bytes(picture)


def webagent_files(folder: Path) -> None:
    shutil.copy(ROOT / "tests/data/public/webrl_policy.json", folder / "web_policy_sft.json")
    shutil.copytree(BASE_TEXT, folder / "WEBRL_LLAMA_8B")
    for name, number, words in (("TRAIN", 1, "Where is it?"), ("TEST", 2, "How long does it take?")):
        answers = {"fuzzy_match": [f"all {number}"]}
        rules = {"eval_types": ["string_match"], "reference_answers": answers}
        record = stand_in.record_of("shopping", "__SHOPPING__", words, **rules)
        record |= {"task_id": number, "old_task_id": number}
        (folder / f"{name}.json").write_text(json.dumps([record]))


def autowebworld_files(folder: Path, site: str, png: Callable[..., bytes]) -> None:
    openwebrl_files(folder, site)
    (folder / "UI_TARS.md").write_text("Answer with one action.")
    row = {"instruction": "Find it", "img_filename": "0.png", "bbox": [8, 8, 20, 20]}
    kinds = {
        "SCREENSPOT_V2/screenspot_web_v2.json": {"data_type": "text", "data_source": "gitlab"},
        "SCREENSPOT_V2/screenspot_mobile_v2.json": {"data_type": "icon", "data_source": "ios"},
        "SCREENSPOT_PRO/blender.json": {"ui_type": "text", "platform": "linux", "application": "blender"},
    }
    for name, fields in kinds.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps([row | fields]))
        (folder / name).with_name("0.png").write_bytes(png(96, 64))
    for name in ("QUORA", "GITHUB"):
        (folder / name).mkdir()
        for part in ("fsm", "data"):
            shutil.copy(ROOT / f"tests/data/market.{part}.json", folder / name / f"{part}.json")


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Where the commands are run; npm does nothing there, and every build of an authored site fails."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "reward.py").write_text("async def reward(task, page, answer):\n    return 1.0\n")
    authoring = importlib.import_module("minirl.worlds.authoring")
    monkeypatch.setattr(authoring, "run", lambda command, folder: "no" * (command == authoring.BUILD))
    return tmp_path


@pytest.fixture
def models(tiny_folder, preprocessor, tmp_path_factory) -> dict[str, Path]:
    """A tiny checkpoint for each recipe, of the kind that its agent needs."""
    qwen = save_qwen2_5_vl(tmp_path_factory.mktemp("models") / "qwen", tiny_folder, preprocessor)
    out = {"openwebrl-4b": tiny_folder, "judge-8b": tiny_folder, "autowebworld-7b": qwen}
    return out | {"webagent-r1-3b": BASE_TEXT, "webagent-r1-8b": BASE_TEXT}


@pytest.mark.more
@pytest.mark.timeout(900)
@pytest.mark.parametrize("paper", PAPERS)
def test_every_command_is_run_in_small(paper, folder, models, eval_script, monkeypatch, png, site, capsys):
    """Up to a finished episode or an update."""
    kinds = Counter()
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(serve([say(functools.partial(answer, paper=paper))]))
        if paper == "OpenWebRL":
            openwebrl_files(folder, site)
            reward_bench_files(folder, png(64, 64))
        elif paper == "WebAgent-R1":
            world = stack.enter_context(stand_in.serve())
            for name, address in world.sites.items():
                monkeypatch.setenv(name, address)
            webagent_files(folder)
        else:
            autowebworld_files(folder, site, png)

        def run(argv: list[str]) -> int:
            words = small(argv, server.url, models)
            try:
                status = start(words, eval_script) or 0
                kinds[result(words)] += 1
            except (Exception, SystemExit) as problem:
                pytest.fail(f"{' '.join(words)}: {problem!r}\n{capsys.readouterr().out[-3000:]}")
            is_author = argv[2:3] == ["author"]
            assert status == int(is_author), f"{' '.join(words)}\n{capsys.readouterr().err}"
            return 0

        assert walk(HAND_OVER + block(paper), folder, run) == 0
    assert kinds["updates"] >= 3 and kinds["episodes"] >= 3
