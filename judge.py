"""The door to a judge that reads a trajectory's screenshots and says whether the task was fulfilled.

    python judge.py

It is not there yet: OpenWebRL judges episodes on the open web with a vision-language model (section 3.2).
Nothing that runs today needs one, because a synthetic world is asked for its state instead
(`WorldVerifier` in minirl.world.script.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from minirl.recipes import run_main


def main(argv: Sequence[str]) -> None:
    raise ValueError("there is no judge yet; synthetic worlds verify themselves, so train.py needs none")


if __name__ == "__main__":
    run_main(main)
