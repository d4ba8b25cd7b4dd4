"""The tiny recipes' base models: real Qwen3-VL and Llama architectures at about 1M parameters, for laptops.

Each is an ordinary Hugging Face folder that is loaded as Qwen3-VL-4B-Thinking would be. They were made by
examples/base_models/.
"""

import shutil
from pathlib import Path

from minirl.config import Config

FOLDER = Path(__file__).parent
BASE = FOLDER / "base"
BASE_TEXT = FOLDER / "base_text"


def build_tiny(path: Path, config: Config) -> Path:
    """Copy the base model of the agent's kind to where a run starts from. Return its folder."""
    base = BASE_TEXT if config.agent.kind == "text" else BASE
    return shutil.copytree(base, path, dirs_exist_ok=True)
