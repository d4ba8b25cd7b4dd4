"""usage: python -m minirl demo [flags]: watch one episode on a generated site"""

from collections.abc import Sequence

from minirl.cli import demo
from minirl.cli.command_line import run_main


def run(argv: Sequence[str]) -> None:
    if argv[:1] != ["demo"]:
        raise ValueError(__doc__)
    demo.run(argv[1:])


if __name__ == "__main__":
    run_main(run)
