"""Public demonstrations for tests, and their training rows as text."""

from pathlib import Path
from typing import Any

from examples.publish.__main__ import read_chat
from minirl.data.readers import read_demonstrations, read_public
from minirl.demonstrations import tokenised
from minirl.episode import Harness
from minirl.rows import turn_rows
from minirl.run_folder import ImageFolder
from minirl.types import Trajectory

PUBLIC = Path(__file__).parent / "data" / "public"


def read_record(record: Any, name: str, images: ImageFolder) -> Trajectory:
    return (read_chat if "messages" in record else read_public)(record, name, images)


def load(path: Path, harness: Harness) -> list[Trajectory]:
    """A file's demonstrations as the harness's model would have read and said them, without a dump."""
    demonstrations = read_demonstrations(path, harness.config, harness.images, read_record)
    return [tokenised(trajectory, harness) for trajectory in demonstrations]


def rows_as_text(trajectory: Trajectory, preprocessor: Any) -> list[tuple[str, str]]:
    """Of each row its prompt and what is trained, as text; pads count as one."""
    decode, pad, out = preprocessor.tokenizer.decode, preprocessor.pad, []
    for row in turn_rows(trajectory, advantage=1.0):
        assert row.weights == (1.0,) * row.length and pad not in row.ids[row.start :]
        ids = [i for n, i in enumerate(row.ids) if i != pad or row.ids[n - 1] != pad]
        start = len(ids) - row.length
        out.append((decode(ids[:start]), decode(ids[start:])))
    return out
