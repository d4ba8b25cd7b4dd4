"""usage: python -m minirl demo [flags], to watch an episode, or compare RUN RUN ..., runs side by side"""

from collections.abc import Sequence

from minirl.cli import compare, demo
from minirl.cli.command_line import run_main

VERBS = {"demo": demo.run, "compare": compare.run}


def run(argv: Sequence[str]) -> None:
    if argv and argv[0] in VERBS:
        VERBS[argv[0]](argv[1:])
    elif "--help" in argv:
        print(__doc__)
    else:
        raise ValueError(__doc__)


if __name__ == "__main__":
    run_main(run)
