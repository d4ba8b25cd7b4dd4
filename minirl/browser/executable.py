"""The browser's executable: where it is, and how it is started. `make setup` gets one if there is none."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from minirl.package_files import table_of

# The headless shell comes first: it is the same engine without the desktop around it, and an episode in it
# takes about a seventh of the processor time that one in the full browser does.
PLAYWRIGHTS = ("chromium_headless_shell-*/*/*headless*shell", "chromium-*/*/chrome")
SYSTEMS = (
    "chromium-headless-shell",
    "chrome-headless-shell",
    "headless_shell",
    "chromium",
    "chromium-browser",
    "google-chrome",
)
FLAGS = table_of("browser/chromium_flags.toml")["flags"]


def executable() -> str:
    """Return the path of a Chromium: $MINIRL_CHROMIUM, else the newest of Playwright's, else the system's.
    Raises ValueError if there is none."""
    chosen = os.environ.get("MINIRL_CHROMIUM")
    if chosen:
        return shutil.which(chosen) or chosen
    cache_folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or cache_folder / "ms-playwright")
    for pattern in PLAYWRIGHTS:
        paths = sorted(map(str, folder.glob(pattern)))
        if paths:
            return paths[-1]
    for name in SYSTEMS:
        path = shutil.which(name)
        if path:
            return path
    raise ValueError("no Chromium: `playwright install --with-deps chromium`, or set MINIRL_CHROMIUM to one")


def sandbox_off() -> bool:
    """Return True if Chromium must run without its sandbox: as root, or as a container's owner says."""
    return os.geteuid() == 0 or os.environ.get("MINIRL_NO_SANDBOX") == "1"


def launch_options(*extra: str) -> dict[str, Any]:
    """Return the arguments of Playwright's `launch`; `extra` are further flags of Chromium's."""
    return {
        "executable_path": executable(),
        "args": [*FLAGS, *extra],
        "headless": True,
        "chromium_sandbox": not sandbox_off(),  # Playwright would turn it off for everybody
    }


def main() -> int:
    try:
        path = executable()
        # Ubuntu's snap stub and a download without its libraries are there, and end at once
        subprocess.run([path, "--version"], capture_output=True, timeout=30, check=True)
    except (ValueError, OSError, subprocess.SubprocessError) as error:
        print(f"chromium: {error}", file=sys.stderr)
        return 2
    print(f"chromium: {path}{' (sandbox off)' if sandbox_off() else ''}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
