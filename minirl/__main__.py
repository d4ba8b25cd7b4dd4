"""usage: python -m minirl demo [flags]: watch one episode on a generated site"""

from collections.abc import Sequence

from minirl.cli import demo
from minirl.cli.command_line import run_main


def run(argv: Sequence[str]) -> None:
    if argv[:1] == ["demo"]:
        demo.run(argv[1:])
    elif argv and argv[0] in ("-h", "--help"):
        print(__doc__)
    else:
        raise ValueError(__doc__)


if __name__ == "__main__":
    run_main(run)
