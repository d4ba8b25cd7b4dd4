"""The browser's executable: where it is, and how it is started. `make setup` gets one if there is none."""

import contextlib
import functools
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# The headless shell comes first everywhere: it is the same engine without the desktop around it, and an
# episode in it takes about a seventh of the processor time that one in the full browser does.
SHELLS = ("chromium-headless-shell", "chrome-headless-shell", "headless_shell")
FULL = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = tomllib.loads(Path(__file__).with_name("chromium_flags.toml").read_text())["flags"]


def executable() -> str:
    """Return the path of a Chromium that runs: $MINIRL_CHROMIUM, a headless shell, or a full browser; of both
    Playwright's own before the system's. Raises ValueError."""
    if named := os.environ.get("MINIRL_CHROMIUM"):
        version(path := shutil.which(named) or named)
        return path
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or cache / "ms-playwright")
    for names, downloads in ((SHELLS, "chromium_headless_shell-*/*/*"), (FULL, "chromium-*/*/*")):
        found = [str(path) for path in folder.glob(downloads) if path.name in names]
        for path in filter(None, [*sorted(found, reverse=True), *map(shutil.which, names)]):  # newest first
            with contextlib.suppress(ValueError):  # Ubuntu's snap stub, or a download without its libraries
                version(path)
                return path
    fix = "`playwright install --with-deps chromium`, or set MINIRL_CHROMIUM to one"
    raise ValueError(f"no Chromium that runs: {fix}")


@functools.cache  # keeps answers, not exceptions: a browser that failed is asked again
def version(path: str) -> str:
    """Return what `path --version` prints. Raises ValueError if the file is no browser that runs."""
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=True)
        return done.stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        reason = str(getattr(error, "stderr", None) or error).strip().splitlines()[-1]
        raise ValueError(f"{path} does not run ({reason}): reinstall it or set MINIRL_CHROMIUM") from None


def sandbox_off() -> bool:
    """Return True if Chromium must run without its sandbox: as root, or as a container's owner says."""
    return os.geteuid() == 0 or os.environ.get("MINIRL_NO_SANDBOX") == "1"


def launch_options(extra: Iterable[str] = ()) -> dict[str, Any]:
    options = {"executable_path": executable(), "args": [*FLAGS, *extra], "headless": True}
    return options | {"chromium_sandbox": not sandbox_off()}  # Playwright would turn it off for everybody


def main() -> int:
    try:
        path = executable()
        print(f"chromium: {path} ({version(path)}{', sandbox off' if sandbox_off() else ''})")
        return 0
    except ValueError as error:
        print(f"chromium: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
