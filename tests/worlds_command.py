"""`python -m minirl.worlds` in this process, for tests."""

import sys
from collections.abc import Sequence
from unittest.mock import patch

from minirl.cli.command_line import run_main
from minirl.worlds.__main__ import run


def main(argv: Sequence[str]) -> int:
    """Its exit status."""
    with patch.object(sys, "argv", ["minirl.worlds", *argv]):
        try:
            run_main(run)
        except SystemExit as stop:
            return stop.code
    return 0
