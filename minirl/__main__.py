"""`python -m minirl demo [flags]`: watch or play one episode on a generated site."""

import sys

from minirl.cli import demo

if __name__ == "__main__":
    if sys.argv[1:2] != ["demo"]:
        sys.exit(__doc__)
    sys.exit(demo.main(sys.argv[2:]))
