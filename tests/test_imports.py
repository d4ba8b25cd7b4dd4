"""The rule of the house: who may import whom."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROOMS = ["samplers", "browser", "agents", "judges", "worlds", "benchmarks", "evaluation"]
ROOMS += ["data", "tiny", "cli"]


def imported(file: Path) -> set[str]:
    """The modules of ours that a file imports, inside functions too."""
    nodes = list(ast.walk(ast.parse(file.read_text())))
    names = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    names |= {f"{n.module}.{a.name}" for n in nodes if isinstance(n, ast.ImportFrom) for a in n.names}
    names |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return {name for name in names if name.startswith("minirl.")}


def test_flat_modules_import_flat_modules_and_rooms_those_to_their_left():
    """experiment.py alone plugs rooms together."""
    wrong = []
    for file in (ROOT / "minirl").rglob("*.py"):
        place = file.relative_to(ROOT / "minirl").parts
        if place[0] in ("experiment.py", "__main__.py"):
            continue
        allowed = ROOMS[: ROOMS.index(place[0]) + 1] if len(place) > 1 else []
        for name in imported(file):
            if (room := name.split(".")[1]) in ROOMS and room not in allowed:
                wrong.append(f"{'/'.join(place)} imports {name}")
    assert not wrong, wrong


def test_the_loop_loads_little():
    """A reader, and a start, meet the algorithm alone."""
    code = (
        "import sys, train; from pathlib import Path; "
        "files = {m.__file__ for n, m in sys.modules.items() if n.split('.')[0] == 'minirl'} - {None}; "
        "print(sum(len(Path(f).read_text().splitlines()) for f in files))"
    )
    lines = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(lines.stdout) <= 6500
