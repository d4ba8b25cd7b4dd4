"""`python -m minirl VERB`: the verbs that are not training, which is train.py's.

A verb's module is imported only when it is asked for, so that `doctor` can still speak on a machine
where half of the packages are missing.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

VERBS = {
    "doctor": "what this machine has, what it lacks, and how to get it",
    "demo": "watch or play one episode on a generated site",
}


def main(argv: Sequence[str]) -> int:
    """Hand the rest of the command line to the verb's module. Returns the exit status."""
    if not argv or argv[0] in ("-h", "--help"):
        print("usage: python -m minirl VERB [flags]")
        for verb, meaning in VERBS.items():
            print(f"  {verb:8}{meaning}")
        return 0 if argv else 2
    verb, *rest = argv
    if verb not in VERBS:
        print(f"minirl: no verb {verb!r}; there are: {', '.join(VERBS)}", file=sys.stderr)
        return 2
    try:
        module = importlib.import_module(f"minirl.cli.{verb}")
    except ModuleNotFoundError as error:
        print(f"minirl: {error.name} is not installed: run `make setup`", file=sys.stderr)
        return 1
    return module.main(rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
