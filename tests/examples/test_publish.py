"""From a teacher's rollouts to a published data set that others read, and back."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pages
import pytest
from endpoint_server import send
from public_records import PUBLIC, load, rows_as_text
from workers import make_worker

from examples.publish import __main__ as script
from minirl.config import to_json
from minirl.recipes import openwebrl_4b, webagent_r1_3b
from minirl.run_folder import Run
from minirl.types import Stop, Task, Trajectory

pytestmark = pytest.mark.more


@pytest.fixture(params=["visual", "text"], scope="module")
def published(request, preprocessor, tmp_path_factory) -> tuple[Path, Run, list[Trajectory]]:
    """The folder of a data set, the run that it is of, and the run's demonstrations: public ones, so that it
    is known which words they were made of, and a failure. First comes an episode whose site did not open."""
    config = openwebrl_4b() if request.param == "visual" else webagent_r1_3b()
    tmp_path = tmp_path_factory.mktemp(request.param)
    run = Run(tmp_path / "run")
    run.write_config(to_json(config))
    worker = make_worker(config, preprocessor, images=run.images)
    found = load(
        PUBLIC / {"visual": "messages.jsonl", "text": "webrl_policy.json"}[request.param], worker.harness
    )
    found = [
        replace(t, task=Task(f"t{n}", t.task.instruction, "http://a.test/")) for n, t in enumerate(found)
    ]
    aborted = replace(found[0], member=2, turns=(), stop=Stop.SITE_ERROR, success=False)
    run.save_trajectories("demos", [aborted, *found, replace(found[0], member=1, success=False)])
    flags = ["--license", "cc0-1.0", "--source", "made up", "--out", str(tmp_path / "out")]
    assert script.main(["write", str(run.trajectory_path("demos")), *flags]) == 0
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


def test_the_card_tells_source_counts_licence_commit_and_command(published):
    folder, _, found = published
    card, n = (folder / "README.md").read_text(), len(found)
    assert card.startswith("---\nlicense: cc0-1.0\n") and "| source | made up |" in card
    assert f"| trajectories | {n + 1}, of which {n} succeeded |" in card
    assert f"| tasks | {n} on 1 sites |" in card and "-m examples.publish" in card
    assert re.search(r"^\| commit \| ([0-9a-f]{40}|not known) \|$", card, re.MULTILINE)
    assert not list(folder.rglob("*.tmp"))


def test_what_holds_no_word_is_not_published(published, tmp_path, capsys):
    """An episode without turns is left out; where there is no other, one line says so."""
    _, run, found = published
    run.save_trajectories("aborted", [replace(found[0], turns=(), stop=Stop.SITE_ERROR, success=False)])
    flags = ["--license", "cc0-1.0", "--source", "made up", "--out", str(tmp_path / "out")]
    assert script.main(["write", str(run.trajectory_path("aborted")), *flags]) == 2
    assert capsys.readouterr().err == "examples.publish: there is no trajectory to publish\n"
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


@dataclass
class Hub:
    """What a stand-in for the Hub has been given."""

    created: list[dict] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    tokens: set[str] = field(default_factory=set)


@contextmanager
def hub() -> Iterator[tuple[str, Hub]]:
    got = Hub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            send(self, b'{"siblings": []}')

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            here = f"http://{self.headers['Host']}/datasets/me/set"
            got.tokens.add(self.headers["Authorization"])
            if self.path.startswith("/api/repos/create"):
                got.created.append(json.loads(body))
                answer: dict = {"url": here}
            elif "/preupload/" in self.path:
                names = [file["path"] for file in json.loads(body)["files"]]
                answer = {
                    "files": [{"path": n, "uploadMode": "regular", "shouldIgnore": False} for n in names]
                }
            elif "/commit/" in self.path:
                for line in map(json.loads, body.splitlines()):
                    if line["key"] == "file":
                        got.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
                answer = {"success": True, "commitOid": "0" * 40, "commitUrl": f"{here}/commit/0"}
            else:
                answer = {"errors": [], "warnings": []}  # of the card's front matter
            send(self, json.dumps(answer).encode())

        def log_message(self, *args: object) -> None:
            """Says nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with pages.running(server):
        yield f"http://127.0.0.1:{server.server_port}", got


def test_push_uploads_the_data_and_its_card_where_there_is_a_token(published, monkeypatch, capsys):
    constants = pytest.importorskip("huggingface_hub").constants
    folder, *_ = published
    (folder / "notes.txt").write_text("not for others")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_TOKEN", "")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(folder / "no-token"))
    assert script.main(["push", str(folder), "me/set"]) == 2
    assert "push needs a token" in capsys.readouterr().err
    monkeypatch.setenv("HF_TOKEN", "hf_made_up")
    with hub() as (address, got):
        monkeypatch.setattr(constants, "ENDPOINT", address)
        monkeypatch.setattr("huggingface_hub.hf_api.constants.ENDPOINT", address)
        assert script.main(["push", str(folder), "me/set"]) == 0, capsys.readouterr().err
    assert got.tokens == {"Bearer hf_made_up"}
    (repo,) = got.created
    assert repo == {"name": "set", "organization": "me", "type": "dataset", "visibility": "private"}
    names = ["README.md", "data/train.parquet"]
    assert got.files == {name: (folder / name).read_bytes() for name in names}
    monkeypatch.setattr("huggingface_hub.hf_api.constants.ENDPOINT", "http://127.0.0.1:9")  # nobody is there
    assert script.main(["push", str(folder), "me/set"]) == 2
    assert "examples.publish: the Hub did not take it: " in capsys.readouterr().err
    assert script.main(["push", str(folder / "data"), "me/set"]) == 2
    assert "holds no data set" in capsys.readouterr().err
