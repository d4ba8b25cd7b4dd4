"""benchmarks/gpu.py in the rest of a call, and what stages wrote to stderr: `stages.py FOLDER STAGE ...`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import gpu  # noqa: E402

OUT = Path(sys.argv[1])
NAMES = sys.argv[2:]
CALL_SECONDS = 585.0  # of ten minutes, from where go.sh began
start = gpu.start


def start_and_keep_errors(name: str, *args: Any) -> dict[str, Any]:
    temporary = gpu.tempfile.TemporaryFile
    gpu.tempfile.TemporaryFile = lambda mode: (OUT / f"{name}.err").open(mode)
    try:
        return start(name, *args)
    finally:
        gpu.tempfile.TemporaryFile = temporary


gpu.start = start_and_keep_errors
gpu.TOTAL = CALL_SECONDS - (time.time() - float(os.environ.get("GO_BEGAN", time.time())))
device = ["--device", "cpu", "--small"] if "cpu" in NAMES else []
stages = [name for name in NAMES if name != "cpu"]
sys.exit(gpu.main([*device, "--out", str(OUT / "gpu.jsonl"), "--only", *stages]))
