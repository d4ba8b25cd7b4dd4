"""From a teacher's rollouts to a published data set that others read, and back."""

import re
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from public_records import PUBLIC, load, rows_as_text
from workers import make_worker

from examples.publish import __main__ as script
from minirl.config import to_json
from minirl.experiment import make_agent
from minirl.recipes import openwebrl_4b, webagent_r1_3b
from minirl.run_folder import Run
from minirl.types import Stop, Task, Trajectory, Turn

pytestmark = pytest.mark.more


def write(run: Run, label: str, out: Path) -> None:
    flags = ["--license", "cc0-1.0", "--source", "made up", "--out", str(out)]
    script.run(["write", str(run.trajectory_path(label)), *flags])


@pytest.fixture(params=["visual", "text"], scope="module")
def published(request, preprocessor, tmp_path_factory) -> tuple[Path, Run, list[Trajectory]]:
    """The folder of a data set, the run that it is of, and the run's demonstrations: public ones, so that it
    is known which words they were made of, and a failure. First comes an episode whose site did not open."""
    config = openwebrl_4b() if request.param == "visual" else webagent_r1_3b()
    tmp_path = tmp_path_factory.mktemp(request.param)
    run = Run(tmp_path / "run")
    run.write_config(to_json(config))
    worker = make_worker(config, preprocessor, images=run.images)
    records = {"visual": "messages.jsonl", "text": "webrl_policy.json"}[request.param]
    found = load(PUBLIC / records, worker.harness)
    tasks = [Task(f"t{n}", t.task.instruction, "http://a.test/") for n, t in enumerate(found)]
    found = [replace(t, task=task) for t, task in zip(found, tasks, strict=True)]
    aborted = replace(found[0], member=2, turns=(), stop=Stop.SITE_ERROR, success=False)
    run.save_trajectories("demos", [aborted, *found, replace(found[0], member=1, success=False)])
    write(run, "demos", tmp_path / "out")
    return tmp_path / "out", run, found


def test_a_published_data_set_is_cloned_like_the_run_it_is_of(published, preprocessor, tmp_path):
    """Its successes: the same prompts, the same responses, the same screenshots."""
    folder, run, found = published
    config = openwebrl_4b() if found[0].turns[0].images else webagent_r1_3b()
    harness = make_worker(config, preprocessor, images=Run(tmp_path / "other").images).harness
    again = load(folder / "data" / "train.parquet", harness)
    assert [t.task for t in again] == [t.task for t in found]
    assert [rows_as_text(t, preprocessor) for t in again] == [rows_as_text(t, preprocessor) for t in found]
    for one, other in zip(again, found, strict=True):
        assert [t.images for t in one.turns] == [t.images for t in other.turns]
        for name in (name for turn in one.turns for name in turn.images):
            assert harness.images.get(name) == run.images.get(name)


def test_of_several_screenshots_in_a_prompt_the_newest_is_published():
    """Where --agent.screenshots keeps two. A prompt's file, which a run's folder names, is not opened."""
    turn = Turn(0, (), (), (), "so</think>", images=("older", "newer"))
    images = Mock(get=lambda name: name.encode())
    seen = Trajectory(Task("t", "Do it.", ""), 0, turns=(turn,))
    row = script.trajectory_row(seen, make_agent(openwebrl_4b()), images)
    assert [picture["bytes"] for picture in row["images"]] == [b"newer"]


def test_a_file_that_a_runs_folder_names_is_not_published(tmp_path):
    (tmp_path / "secret").write_text("the secret")
    run, config = Run(tmp_path / "run"), webagent_r1_3b()
    run.write_config(to_json(replace(config, agent=replace(config.agent, prompt=tmp_path / "secret"))))
    turn = Turn(0, (), (), (), "<think> so </think> <answer> exit() </answer>", page_text="<html></html>")
    run.save_trajectories("demos", [Trajectory(Task("t", "Do it.", ""), 0, turns=(turn,))])
    write(run, "demos", tmp_path / "out")
    data = pytest.importorskip("pyarrow.parquet").read_table(tmp_path / "out/data/train.parquet")
    assert "web assistant" in (told := str(data.to_pylist())).lower() or "exit" in told
    assert "the secret" not in told


def test_a_dump_that_is_not_of_a_run_is_told_as_its_recipes_agent_would(tmp_path):
    """As minirl.data leaves it: no settings name the agent, so a text page would get other words."""
    turn = Turn(0, (), (), (), "<think> so </think> <answer> exit() </answer>", page_text="<html></html>")
    run = Run(tmp_path / "mined")
    run.save_trajectories("demos", [Trajectory(Task("t", "Do it.", ""), 0, turns=(turn,))])
    flags = ["--license", "cc0-1.0", "--source", "made up", "--out", str(tmp_path / "out")]
    command = ["write", str(run.trajectory_path("demos")), *flags]
    with pytest.raises(ValueError, match="holds no config.json, which names the agent: give its --recipe"):
        script.run(command)
    script.run([*command, "--recipe", "webagent-r1-3b"])
    data = pytest.importorskip("pyarrow.parquet").read_table(tmp_path / "out/data/train.parquet")
    system = data.to_pylist()[0]["messages"][0]["content"][0]["text"]
    assert system == make_agent(webagent_r1_3b()).system


def test_the_card_tells_source_counts_licence_commit_and_command(published):
    folder, _, found = published
    card, n = (folder / "README.md").read_text(), len(found)
    assert card.startswith("---\nlicense: cc0-1.0\n") and "| source | made up |" in card
    assert f"| trajectories | {n + 1}, of which {n} succeeded |" in card
    assert f"| tasks | {n} on 1 sites |" in card and "-m examples.publish" in card
    assert re.search(r"^\| commit \| ([0-9a-f]{40}|not known) \|$", card, re.MULTILINE)
    assert not list(folder.rglob("*.tmp"))


def test_what_holds_no_word_is_not_published(published, tmp_path):
    """An episode without turns is left out; where there is no other, one line says so."""
    _, run, found = published
    run.save_trajectories("aborted", [replace(found[0], turns=(), stop=Stop.SITE_ERROR, success=False)])
    with pytest.raises(ValueError, match="there is no trajectory to publish"):
        write(run, "aborted", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_datasets_and_trl_read_what_is_published(published, preprocessor, tmp_path):
    """Without our code: rows with pictures, rendered by the model's own chat template with a place for each
    picture, and every response as it was said."""
    datasets = pytest.importorskip("datasets")
    trl = pytest.importorskip("trl.data_utils")
    folder, _, found = published
    rows = datasets.load_dataset(str(folder), split="train", cache_dir=str(tmp_path))
    assert len(rows) == len(found) + 1 and rows.column_names[:2] == ["messages", "images"]
    for row, trajectory in zip(rows, found, strict=False):
        assert [image.size for image in row["images"]] == [(64, 64) for t in trajectory.turns if t.images]
        messages = trl.prepare_multimodal_messages(row["messages"], images=row["images"])
        text = preprocessor.tokenizer.apply_chat_template(messages, tokenize=False)
        assert text.count("<|image_pad|>") == len(row["images"]) and trajectory.task.instruction in text
        assert all(turn.text in text for turn in trajectory.turns)


def test_push_uploads_the_data_and_its_card_where_there_is_a_token(published, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    folder, *_ = published
    calls: list[tuple[tuple, dict]] = []
    for name in ("create_repo", "upload_folder"):
        monkeypatch.setattr(hub.HfApi, name, lambda self, *args, **named: calls.append((args, named)))
    monkeypatch.setattr(hub, "get_token", lambda: None)
    with pytest.raises(ValueError, match="push needs a token"):
        script.run(["push", str(folder), "me/set"])
    monkeypatch.setattr(hub, "get_token", lambda: "hf_made_up")
    with pytest.raises(ValueError, match="holds no data set"):
        script.run(["push", str(folder / "data"), "me/set"])
    assert not calls
    script.run(["push", str(folder), "me/set"])
    (created, private), (_, uploaded) = calls
    assert created == ("me/set",) and private["private"] and private["repo_type"] == "dataset"
    assert (uploaded["repo_id"], uploaded["folder_path"]) == ("me/set", folder)
    patterns = uploaded["allow_patterns"]
    files = [str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()]
    assert sorted(hub.utils.filter_repo_objects([*files, "notes.txt"], allow_patterns=patterns)) == [
        "README.md",
        "data/train.parquet",
    ]

    def refuse(self, *args: object, **named: object) -> None:
        raise OSError("nobody is there\nat all")

    monkeypatch.setattr(hub.HfApi, "create_repo", refuse)
    with pytest.raises(ValueError, match="the Hub did not take it: nobody is there$"):
        script.run(["push", str(folder), "me/set"])
