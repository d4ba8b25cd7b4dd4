"""The commands in README.md and docs/*.md are understood as they stand there; small ones are run."""

import importlib
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest
import tyro

from examples.publish import __main__ as publish
from minirl.cli import compare, demo
from minirl.cli.command_line import check, from_command_line, read_flags, recipe_name
from minirl.config import Config
from minirl.data import __main__ as data
from minirl.judges import settings as judges
from minirl.worlds import __main__ as worlds

ROOT = Path(__file__).parent.parent
DOCS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
DOCS.remove(ROOT / "docs" / "reproduce.md")  # tests/test_reproduce.py has its commands run
COMMAND = re.compile(r"python ((?:train|eval|sft|judge)\.py|-m (?:minirl|examples)(?:\.\w+)?)\b")


INLINE = re.compile(r"`(python (?:(?:train|eval|sft|judge)\.py|-m minirl) [^`]+)`")
(FROM,) = re.findall(r"`FROM` stands for `([^`]+)`", (ROOT / "docs" / "class.md").read_text())


def commands() -> list[str]:
    """The commands of all code blocks, without comments ("train.py tiny --seed 3"), and those within
    sentences and tables; of the history in log.md only the former."""
    found = {}
    for doc in DOCS:
        for command in INLINE.findall(doc.read_text() if doc.name != "log.md" else ""):
            found[" ".join(shlex.split(command.replace("FROM", FROM))[1:])] = None
        for block in re.findall(r"(?ms)^```\w*\n(.*?)^```", doc.read_text()):
            for name, value in re.findall(r'(?m)^export (\w+)="(.*)"$', block):
                block = block.replace(f"${name} ", f"{value} ")
            for line in block.replace("\\\n", " ").splitlines():
                if line.lstrip().startswith("python ") and COMMAND.match(line.strip()):
                    found[" ".join(shlex.split(line, comments=True)[1:])] = None
    return list(found)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_folder: Path) -> Path:
    """A folder in which the runs that the commands speak of have a checkpoint."""
    monkeypatch.chdir(tmp_path)
    for run in ("tiny", "tiny_text"):
        folder = tmp_path / "runs" / run / "checkpoints"
        folder.mkdir(parents=True)
        (folder / "step_00001").symlink_to(tiny_folder)
    return tmp_path


def parse(script: str, argv: Sequence[str], eval_script: ModuleType) -> Config:
    match script:
        case "eval.py":
            return eval_script.read_config(argv)
        case "judge.py":
            assert argv[0] in importlib.import_module("judge").COMMANDS
            name, flags = recipe_name(argv[1:], judges.RECIPES)
            return check(read_flags(judges.RECIPES[name](), flags, "judge.py", ""))
    return from_command_line(argv, script)


def test_the_documents_have_commands_of_every_kind():
    kinds = {COMMAND.match(f"python {command}")[1] for command in commands()}
    scripts = {"train.py", "eval.py", "sft.py", "judge.py"}
    assert kinds == scripts | {"-m minirl", "-m minirl.data", "-m minirl.worlds", "-m examples.publish"}
    assert len(commands()) >= 25


@pytest.mark.parametrize("command", [c for c in commands() if not c.startswith("-m")])
def test_a_scripts_command_becomes_its_configuration(command, place, eval_script):
    script, *argv = shlex.split(command)
    config = parse(script, argv, eval_script)
    recipe = argv[1] if script == "judge.py" else argv[0]
    assert config.recipe == ("tiny" if recipe.startswith("-") else recipe.replace("-", "_"))
    numbers = {"--steps": "steps", "--limit": "limit"}
    for flag, name in numbers.items():
        if flag in argv:
            assert getattr(config, name) == float(argv[argv.index(flag) + 1])


@pytest.mark.parametrize("command", [c for c in commands() if c.startswith("-m minirl ")])
def test_a_verb_of_minirl_is_understood(command):
    _, _, verb, *flags = shlex.split(command)
    options = {"demo": demo.Options, "compare": compare.Options}[verb]
    assert isinstance(tyro.cli(options, args=flags), options)


@pytest.mark.more  # the verbs have tests of their own in tests/worlds
def test_the_verbs_of_worlds_are_run_on_one_site(place, capsys):
    """But for `replay` and `record`, which open Chromium (tests/worlds)."""
    lines = [shlex.split(command)[2:] for command in commands() if command.startswith("-m minirl.worlds")]
    verbs = {verb: flags for verb, *flags in reversed(lines)}  # the first command of each verb, one site's
    assert set(verbs) == {"make", "replay", "record", "render", "check", "solve", "author"}
    with pytest.raises((ValueError, OSError)):  # URL is the reader's to fill in
        worlds.run(["author", *verbs["author"]])
    assert worlds.run(["make", *verbs["make"]]) == 0
    (site,) = (path for path in (place / "sites").iterdir() if (path / "tasks.jsonl").is_file())
    for verb in ("check", "solve", "render"):
        flags = [flag.replace("SITE", str(site)) for flag in verbs[verb]]
        assert worlds.run([verb, *flags]) == 0, capsys.readouterr()
    assert (place / "site" / "index.html").is_file() and "paths" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        worlds.run(["replay", *verbs["replay"], "--no-such-flag"])
    assert stop.value.code == 2, "the control: flags are read"
    with pytest.raises((ValueError, OSError)):  # sites/* is the shell's to fill in
        worlds.run(["replay", *verbs["replay"]])


@pytest.mark.parametrize(
    ("package", "run", "verbs"),
    [
        ("minirl.data", data.run, {"filter", "curate", "read", "mine", "smollm2"}),
        pytest.param("examples.publish", publish.run, {"write", "push"}, marks=pytest.mark.more),
    ],
)
def test_the_verbs_of_other_packages_are_understood(place, capsys, monkeypatch, package, run, verbs):
    """Their files are the reader's to fill in, and not there; flags would be refused before. Nor is there a
    package of weights, here."""
    monkeypatch.setattr("minirl.package_files.find_spec", lambda name: None)
    lines = [shlex.split(command)[2:] for command in commands() if command.startswith(f"-m {package} ")]
    assert {verb for verb, *_ in lines} == verbs
    for argv in lines:
        with pytest.raises((ValueError, OSError)):
            run(argv)
        with pytest.raises(SystemExit) as stop:
            run([*argv, "--no-such-flag"])
        assert stop.value.code == 2
