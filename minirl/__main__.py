"""usage: python -m minirl VERB [flags]
doctor  what this machine has, what it lacks, and how to get it
demo    watch or play one episode on a generated site
"""

import importlib
import sys
from collections.abc import Sequence


def main(argv: Sequence[str]) -> int:
    """Hand the rest of the command line to the verb's module; return the exit status."""
    if not argv or argv[0] in ("-h", "--help"):
        print(__doc__, end="")
        return 0 if argv else 2
    if argv[0] not in ("doctor", "demo"):
        print(f"minirl: no verb {argv[0]!r}; there are: doctor, demo", file=sys.stderr)
        return 2
    try:  # only now, so that `doctor` can speak where half of the packages are missing
        module = importlib.import_module(f"minirl.cli.{argv[0]}")
    except ModuleNotFoundError as error:
        print(f"minirl: {error.name} is not installed: run `make setup`", file=sys.stderr)
        return 1
    return module.main(argv[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
