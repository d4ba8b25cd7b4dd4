"""Public demonstrations: each form is recognised, only responses are cloned, and a broken record is named."""

import copy
import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from public_records import PUBLIC, load, rows_as_text
from workers import make_worker

import sft
from examples.publish import __main__ as publish
from minirl.benchmarks.task_sets import TaskSets
from minirl.data import __main__ as script
from minirl.data.readers import PICTURE
from minirl.demonstrations import load_demonstrations
from minirl.episode import Harness
from minirl.experiment import Experiment
from minirl.recipes import openwebrl_4b, webagent_r1_3b, webagent_r1_8b
from minirl.rows import TrajectoryRows, turn_rows
from minirl.run_folder import Run
from minirl.types import Task

RECIPES = {"visual": openwebrl_4b, "text": webagent_r1_3b, "webrl": webagent_r1_8b}
STEPS = json.loads((PUBLIC / "webrl_policy.json").read_text())
TURNS = [json.loads(line) for line in (PUBLIC / "openwebrl_sft.jsonl").read_text().splitlines()]
OPENWEBRL = ["openwebrl_sft.jsonl", "messages.jsonl", "messages_images.jsonl"]


@pytest.fixture
def harness(preprocessor, tmp_path) -> Callable[[str], Harness]:
    """What demonstrations need of a run with a recipe's agent."""
    return lambda kind: make_worker(RECIPES[kind](), preprocessor, images=Run(tmp_path).images).harness


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "visual") for name in OPENWEBRL),
        ("webrl_policy.json", "text"),
        ("webrl_policy.json", "webrl"),
    ],
)
def test_the_dump_that_is_written_gives_the_same_rows(name, kind, harness, tmp_path, capsys):
    """In another run's folder, with its screenshots."""
    recipe = RECIPES[kind].__name__.replace("_", "-")
    run = publish.run if name.startswith("messages") else script.run
    run(["read", str(PUBLIC / name), "--out", str(tmp_path / "read"), "--recipe", recipe])
    dump = Run(tmp_path / "read").trajectory_path("demos")
    assert f"--sft.demos {dump}" in capsys.readouterr().out
    demonstrations = load_demonstrations(dump, harness(kind))
    assert demonstrations == load(PUBLIC / name, harness(kind))
    images = {image for t in demonstrations for turn in t.turns for image in turn.images}
    assert all(harness(kind).images.get(image) for image in images) and bool(images) == (kind == "visual")


async def test_cloning_shows_smaller_screenshots_and_reinforcement_whole_ones(
    harness, preprocessor, tiny_folder, monkeypatch
):
    """With --sft.max-pixels prompts have as many pads as the smaller pictures need, and are else the same."""
    demos = load(PUBLIC / "openwebrl_sft.jsonl", harness("visual"))
    cloned = []

    def clone(examples: list[TrajectoryRows], seed: int) -> Iterator[dict[str, float]]:
        cloned.extend(row for example in examples for row in example.rows)
        cloned.append(experiment.trainer.preprocessor)
        yield {"loss": 1.0}

    monkeypatch.setattr(sft, "evaluate", AsyncMock())
    config = openwebrl_4b()
    model = replace(config.model, path=str(tiny_folder))
    config = replace(config, model=model, sft=replace(config.sft, max_pixels=32 * 32))
    experiment = Mock(config=config, preprocessor=preprocessor, tasks=SimpleNamespace(heldout=[]))
    experiment.demonstrate = AsyncMock(return_value=demos)
    experiment.trainer.clone = clone
    worker = Mock(harness=harness("visual"))
    await sft.warm_start(experiment, worker)

    *rows, small = cloned
    experiment.config = replace(config, model=replace(model, max_pixels=16 * 16))
    await sft.warm_start(experiment, worker)
    assert cloned[-1] is preprocessor, "pictures never larger than the agent's"

    assert experiment.trainer.preprocessor is preprocessor and small.images.size["longest_edge"] == 32 * 32
    expected = [row for demo in demos for row in turn_rows(demo, 1.0)]
    for row, whole in zip(rows, expected, strict=True):
        pictures = [worker.harness.images.get(name) for name in row.images]
        assert row.images == whole.images and row.ids[row.start :] == whole.ids[whole.start :]
        assert row.ids.count(preprocessor.pad) == sum(map(small.image_tokens, pictures))
        assert row.ids.count(preprocessor.pad) < whole.ids.count(preprocessor.pad)
        words = [[i for i in each.ids if i != preprocessor.pad] for each in (row, whole)]
        assert words[0] == words[1]


def test_a_dump_is_told_again_whoever_made_its_ids_but_not_in_another_agents_words(harness, tmp_path):
    own = load(PUBLIC / "openwebrl_sft.jsonl", harness("visual"))
    others = []
    for demo in own:
        turns = tuple(replace(turn, shared=1, suffix=(7,), response_ids=(8, 9)) for turn in demo.turns)
        others.append(replace(demo, prefix=(6,), turns=turns))
    run = Run(tmp_path)
    run.save_trajectories("others", others)
    dump = run.trajectory_path("others")
    assert load_demonstrations(dump, harness("visual")) == own
    with pytest.raises(ValueError, match="others.jsonl is of another agent: "):
        load_demonstrations(dump, harness("text"))


def test_a_public_file_and_a_recipe_that_are_none_are_refused(harness, tmp_path):
    link = tmp_path / "elsewhere" / "another.jsonl"
    link.parent.mkdir()
    link.symlink_to(tmp_path / "trajectories" / "demos.jsonl")
    for path in (PUBLIC / "webrl_policy.json", Path("/demos.jsonl"), link):
        with pytest.raises(
            ValueError, match=f"{path.name} is no dump .*: read public records into one first"
        ):
            load_demonstrations(path, harness("text"))
    flags = ["--out", str(tmp_path), "--recipe", "webrl"]
    with pytest.raises(ValueError, match="unknown recipe 'webrl'; there are tiny, "):
        script.run(["read", str(PUBLIC / "webrl_policy.json"), *flags])


def test_of_a_webrl_step_the_last_action_is_cloned_from_the_very_prompt_of_the_record(harness, preprocessor):
    """With WebRL's own history; what precedes the record is the token that begins every text."""
    end = preprocessor.tokenizer.eos_token
    for trajectory, record in zip(load(PUBLIC / "webrl_policy.json", harness("webrl")), STEPS, strict=True):
        asked, said = (speech["value"] for speech in record["conversations"])
        assert rows_as_text(trajectory, preprocessor) == [("<|begin_of_text|>" + asked, said + end)]


def test_webagent_r1_thinks_what_webrl_comments(harness, preprocessor):
    trajectories = load(PUBLIC / "webrl_policy.json", harness("text"))
    ((prompt, said),) = rows_as_text(trajectories[1], preprocessor)
    end = preprocessor.tokenizer.eos_token
    opening = "" if preprocessor.chat.opens_think else "<think>"  # else it is the prompt's
    assert said == f'{opening} # Note: 12 reviews </think> <answer> exit(message="12") </answer>{end}'
    assert prompt.count("** Simplified html **") == 1 and "Round 2 of 9" in prompt
    assert f"{opening} # Element: the link of the blue lamp </think> <answer> do(" in prompt
    assert [t.turns[-1].parsed.calls[0].name for t in trajectories] == ["Click", "exit", "Search"]
    assert {t.task.instruction for t in trajectories[:2]} == {"How many reviews does the blue lamp have?"}


@pytest.mark.parametrize("name", OPENWEBRL)
def test_the_same_responses_are_cloned_from_turns_and_from_conversations(name, harness, preprocessor):
    """From equal prompts, too, in which the newest screenshot alone is shown."""
    given_by = harness("visual")
    rows = [row for t in load(PUBLIC / name, given_by) for row in rows_as_text(t, preprocessor)]
    end = preprocessor.tokenizer.eos_token
    expected = [row["response"].replace("<|im_end|>", end) for row in TURNS]
    opening = "" if preprocessor.chat.opens_think else "<think>\n"
    assert [said for _, said in rows] == [opening + said for said in expected]
    assert rows == [
        row for t in load(PUBLIC / OPENWEBRL[0], given_by) for row in rows_as_text(t, preprocessor)
    ]
    first, second = load(PUBLIC / OPENWEBRL[0], given_by)
    assert (first.task.id, first.task.site) == ("252667", "library.example")
    assert first.task.meta["benchmark"] == "pae-webvoyager" and "images" not in first.task.meta
    assert given_by.images.get(*first.turns[0].images).startswith(b"\x89PNG")
    assert first.turns[0].images != second.turns[1].images
    first, second = (prompt for prompt, _ in rows)
    assert [prompt.count("<|image_pad|>") for prompt in (first, second)] == [1, 1]
    assert "You are in a browser." not in first and given_by.agent.system in first
    assert expected[0] in second and '`click` on <a> "Visit" at' in second and "screenshot:\n\n" not in second


def changed(record: dict[str, Any], *path: Any, to: Any) -> dict[str, Any]:
    record = copy.deepcopy(record)
    inner = record
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = to
    return record


POSTSCRIPT = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n"
AS_PICTURE = f"data:;base64,{b64encode(POSTSCRIPT).decode()}"
CHAT = json.loads((PUBLIC / "messages_images.jsonl").read_text())
NO_PAGE = f"<|im_start|>user\n{PICTURE}<|im_start|>"
BROKEN = [
    ("text", changed(STEPS[1], "conversations", 0, "from", to="user"), "none of .*conversations"),
    ("text", changed(STEPS[1], "conversations", 0, "value", to="Task Instruction: x"), "has no Round 0"),
    ("text", changed(STEPS[1], "conversations", 1, "value", to=7), "none of the forms in"),
    ("visual", changed(TURNS[0], "metadata", "images", to=[]), r"show \[1\] screenshots, and it has 0"),
    ("visual", changed(TURNS[0], "metadata", "images", to=["data:,x"]), "base64|padding"),
    ("visual", changed(TURNS[0], "metadata", "images", to=["data:,eA=="]), "cannot identify image"),
    ("visual", changed(TURNS[0], "metadata", "task_id", to=None), "metadata.task_id: Input should be"),
    ("visual", changed(TURNS[0], "prompt", to=NO_PAGE), "no <observation>"),
    ("visual", changed(TURNS[0], "response", to="<|image_pad|>"), "a screenshot must be in a user's message"),
    ("visual", changed(CHAT, "messages", 4, "role", to="tool"), "user and assistant must take turns.*'tool'"),
    ("visual", changed(CHAT, "images", to=None), "images must be a list of screenshots, not None"),
    ("visual", changed(CHAT, "success", to="true"), "success must be true, false or a number, not 'true'"),
    ("visual", changed(CHAT, "success", to=float("nan")), "success must be .*, not nan"),
    ("visual", changed(TURNS[0], "reward", to=None), "reward must be .*, not None"),
    ("visual", changed(TURNS[0], "metadata", "images", to=[AS_PICTURE]), "cannot identify image"),
    ("visual", changed(CHAT, "messages", 1, "content", to=[{"type": "video"}]), "neither text nor image"),
]


THOUGHT, _, CALL = CHAT["messages"][2]["content"].removesuffix("</tool_call>").partition("<tool_call>")
FUNCTION = json.loads(CALL)
FUNCTION["arguments"] = json.dumps(FUNCTION["arguments"])  # as OpenAI's API has it
CALLS = [{"type": "function", "function": FUNCTION}]
IN_CALLS = {"role": "assistant", "content": THOUGHT, "tool_calls": CALLS}
TASK = {"id": "t", "instruction": "Find the hours", "start_url": "https://a.test/"}
SHOT = TURNS[0]["metadata"]["images"][0]
READ = [
    changed(CHAT, "success", to=1),
    changed(CHAT, "member", to=1.0),
    changed(CHAT, "task", to=TASK),
    changed(CHAT, "messages", 0, "role", to="developer"),
    changed(CHAT, "messages", 2, to=IN_CALLS),
    changed(TURNS[0], "reward", to=0.9999999),
    changed(TURNS[0], "rollout_idx", to=None),
    changed(TURNS[0], "prompt", to=TURNS[0]["prompt"].replace("\n", "\r\n")),
    changed(TURNS[0], "metadata", "images", 0, to=SHOT.replace("A", "A\n")),
]


@pytest.mark.parametrize("record", READ)
def test_other_spellings_of_a_record_are_read(record, harness, tmp_path):
    path = tmp_path / "public.jsonl"
    usual = CHAT if "messages" in record else TURNS[0]
    path.write_text(f"{json.dumps(usual)}\n{json.dumps(record)}\n")
    one, two = load(path, harness("visual"))
    assert [turn.parsed.calls for turn in one.turns] == [turn.parsed.calls for turn in two.turns]


@pytest.mark.parametrize(("kind", "record", "problem"), BROKEN)
def test_a_broken_record_is_named_by_file_and_number(kind, record, problem, harness, tmp_path):
    path = tmp_path / "public.jsonl"
    path.write_text(f"{json.dumps(CHAT if kind == 'visual' else STEPS[0])}\n{json.dumps(record)}\n")
    with pytest.raises(ValueError, match=f"{path}, line 2: .*({problem})") as caught:
        load(path, harness(kind))
    assert "\n" not in str(caught.value)


UNKNOWN = changed(TURNS[1], "response", to=TURNS[1]["response"].replace('"done"', '"call_user"'))
UNREAD = changed(STEPS[1], "conversations", 1, "value", to="jump()")


@pytest.mark.parametrize(
    ("kind", "record", "other"), [("text", STEPS[0], UNREAD), ("visual", TURNS[0], UNKNOWN)]
)
def test_what_cannot_be_read_or_run_is_not_cloned_and_said(kind, record, other, harness, tmp_path, capsys):
    """Reinforcement tells what is wrong with a call that is in format, a demonstration does not."""
    path = tmp_path / "public.jsonl"
    path.write_text(f"{json.dumps(record)}\n{json.dumps(other)}\n")
    assert len(load(path, harness(kind))) == 1
    assert "1 responses to clone, in 1 of 2 records" in capsys.readouterr().out
    path.write_text(json.dumps(other))
    with pytest.raises(ValueError, match="holds no success to clone"):
        load(path, harness(kind))


def test_parquet_cells_hold_pictures_as_bytes(harness, tmp_path, png):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    shots = [{"bytes": png(64, 64, seed=n), "path": None} for n in range(2)]
    parquet.write_table(pyarrow.Table.from_pylist([CHAT | {"images": shots}]), tmp_path / "rows.parquet")
    (found,) = load(tmp_path / "rows.parquet", harness("visual"))
    names = [turn.images[0] for turn in found.turns]
    assert [harness("visual").images.get(name) for name in names] == [shot["bytes"] for shot in shots]


async def test_a_record_that_solves_a_held_out_task_is_left_out(preprocessor, tmp_path, capsys):
    """By its wording, as it names no site; the control is a task that is not in the file."""
    flags = ["--out", str(tmp_path), "--recipe", "webagent-r1-3b"]
    script.run(["read", str(PUBLIC / "webrl_policy.json"), *flags])
    config = webagent_r1_3b()
    config = replace(config, sft=replace(config.sft, demos=Run(tmp_path).trajectory_path("demos")))
    worker = make_worker(config, preprocessor, images=Run(tmp_path).images)

    async def demonstrated(*wordings: str) -> int:
        heldout = [Task(str(n), words, "http://shop.test/") for n, words in enumerate(wordings)]
        parts = (None, TaskSets([], [], heldout), preprocessor, None, None)
        return len(await Experiment(config, None, *parts).demonstrate(worker))

    assert await demonstrated("Buy a chair") == 3
    assert "left out" not in capsys.readouterr().out
    assert await demonstrated("Search for oak shelves") == 2
    assert "1 demonstrations solve held-out tasks, and were left out" in capsys.readouterr().out
