"""Recorded steps for tests, and a small Qwen2.5-VL that looks at them."""

import json
import shutil
from pathlib import Path
from typing import Any

from training import qwen2_5_vl

from minirl.config import ModelConfig
from minirl.model import Preprocessor, load_preprocessor
from minirl.tiny.checkpoints import BASE_TEXT

STEPS: list[dict[str, Any]] = [
    {"action": "click", "bbox": [20, 10, 60, 30]},
    {"action": "hover", "bbox": [70, 40, 90, 60]},
    {"action": "type_text", "bbox": [], "text": "blue mug"},
    {"action": "press_enter", "bbox": []},
    {"action": "scroll", "value": "down"},
    {"action": "drag", "bbox": [0, 0, 8, 8], "to": [40, 0, 48, 8]},
    {"action": "hotkey", "value": "Control + A"},
    {"action": "wait"},
    {"action": "answer"},
]


def write_steps(folder: Path, png: Any, rows: list[dict[str, Any]] = STEPS, size: tuple = (96, 64)) -> Path:
    """A file of rows, each before a picture of its own."""
    out = []
    for n, row in enumerate(rows):
        (folder / f"{n}.png").write_bytes(png(*size, seed=n))
        out.append({"instruction": f"Do thing {n}.", "img_filename": f"{n}.png", "bbox": []} | row)
    (folder / "steps.json").write_text(json.dumps(out))
    return folder / "steps.json"


def save_qwen2_5_vl(path: Path, tiny_folder: Path, preprocessor: Preprocessor) -> Path:
    """A Hugging Face folder as Qwen2.5-VL's: patches of 14 pixels, merged 2 by 2, and no opened `<think>`."""
    qwen2_5_vl(preprocessor, patch=14).save_pretrained(path)
    for file in tiny_folder.glob("*token*"):
        shutil.copy(file, path)
    (path / "chat_template.jinja").write_bytes((BASE_TEXT / "chat_template.jinja").read_bytes())
    settings = json.loads((tiny_folder / "preprocessor_config.json").read_text())
    settings |= {"patch_size": 14, "size": {"shortest_edge": 3136, "longest_edge": 12845056}}
    (path / "preprocessor_config.json").write_text(json.dumps(settings))
    return path


def qwen_preprocessor(path: Path, max_pixels: int | None = None) -> Preprocessor:
    return load_preprocessor(ModelConfig(path=str(path), max_pixels=max_pixels))
