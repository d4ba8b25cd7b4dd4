"""The browser's executable: where it is, how to get one, and the flags it is started with.

Episodes start a browser with `launch_options()`; `make setup` runs
`python -m minirl.browser.executable --install`.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

# The headless shell comes first everywhere: it is the same engine without the desktop around it, and an
# episode in it takes about a seventh of the processor time that one in the full browser does.
SHELLS = ("chromium-headless-shell", "chrome-headless-shell", "headless_shell")
FULL = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
NO_CHROMIUM = (
    "no Chromium that runs: install one (Debian: apt-get install chromium-headless-shell; anywhere: "
    "`.venv/bin/playwright install --with-deps chromium`) or set MINIRL_CHROMIUM to its path"
)

FLAGS = tomllib.loads(resources.files("minirl.browser").joinpath("chromium_flags.toml").read_text())["flags"]


def executable() -> str:
    """Return the path of a Chromium that runs: $MINIRL_CHROMIUM, a headless shell, or a full browser; of both
    Playwright's own before the system's. Raises ValueError."""
    if named := os.environ.get("MINIRL_CHROMIUM"):
        path = shutil.which(named)
        if path is None:
            raise ValueError(f"MINIRL_CHROMIUM is {named!r}, no executable file: correct or unset it")
        version(path)
        return path
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = Path(os.environ.get("PLAYWRIGHT_BROWSERS_PATH") or cache / "ms-playwright")
    for names, downloads in ((SHELLS, "chromium_headless_shell-*/*/*"), (FULL, "chromium-*/*/*")):
        found = [str(path) for path in folder.glob(downloads) if path.name in names]
        for path in filter(None, [*sorted(found, reverse=True), *map(shutil.which, names)]):  # newest first
            with contextlib.suppress(ValueError):  # Ubuntu's snap stub, or a download without its libraries
                version(path)
                return path
    raise ValueError(NO_CHROMIUM)


@functools.cache  # keeps answers, not exceptions: a browser that failed is asked again
def version(path: str) -> str:
    """Return what `path --version` prints. Raises ValueError if the file is no browser that runs."""
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30)
        if done.returncode == 0 and done.stdout.strip():
            return done.stdout.strip()
        reason = done.stderr.strip() or f"exit status {done.returncode}"
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    reason = reason.splitlines()[-1]
    raise ValueError(f"{path} does not run ({reason}): reinstall it or set MINIRL_CHROMIUM")


def sandbox_off() -> bool:
    """Return True if Chromium must run without its sandbox: as root, or as a container's owner says."""
    return os.geteuid() == 0 or os.environ.get("MINIRL_NO_SANDBOX") == "1"


def launch_options(extra: Iterable[str] = ()) -> dict[str, Any]:
    """Return the arguments of Playwright's `chromium.launch`; a flag of `extra` replaces ours."""
    ours, extra = [*FLAGS, *["--no-sandbox"] * sandbox_off()], list(extra)
    given = {flag.partition("=")[0] for flag in extra}
    return {
        "executable_path": executable(),
        "args": [flag for flag in ours if flag.partition("=")[0] not in given] + extra,
        "chromium_sandbox": not sandbox_off(),  # Playwright would turn it off for everybody
        "headless": True,
    }


def install() -> str:
    """Return the path of a Chromium that runs, after trying to get a headless shell; ValueError if none."""
    if os.environ.get("MINIRL_CHROMIUM") or runs(SHELLS):
        return executable()  # the user's choice is never replaced
    download = [sys.executable, "-m", "playwright", "install", "--only-shell", "chromium"]
    is_downloaded = attempt(download)
    if os.geteuid() == 0 and shutil.which("apt-get"):
        apt = ["apt-get", "-qq", "install", "-y"]
        if is_downloaded and not runs(SHELLS):  # on a bare machine it lacks libraries
            attempt([*download, "--with-deps"])
        if not runs(SHELLS):  # downloads may be refused where packages are not
            attempt(["apt-get", "-qq", "update"])
            attempt([*apt, "chromium-headless-shell"])
        if not runs():  # not every distribution packs the shell
            attempt([*apt, "chromium"])
    return executable()


def runs(names: Sequence[str] = (*SHELLS, *FULL)) -> bool:
    """Return True if the best Chromium that runs has one of these names."""
    with contextlib.suppress(ValueError):
        return Path(executable()).name in names
    return False


def attempt(command: Sequence[str], seconds: float = 300) -> bool:
    """Run a command and say so; if it fails, or takes longer, say that in one line and return False."""
    name = " ".join(Path(word).name for word in command)
    print(f"chromium: {name}", flush=True)
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    try:
        # In a new process group: the download runs in a grandchild, which must not outlive the limit.
        child = subprocess.Popen(command, **pipes, errors="replace", env=env, start_new_session=True)
        output, _ = child.communicate(timeout=seconds)
        if child.returncode == 0:
            return True
    except OSError as error:
        output = str(error)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        output = f"it took more than {seconds:.0f} s"
    lines = output.strip().splitlines() or ["no reason given"]
    errors = [line for line in lines if line.startswith(("Error", "E:"))]
    print(f"chromium: {name} failed: {(errors or lines[-1:])[0]}")
    return False


def main(argv: Sequence[str]) -> int:
    """Print the browser's path, after `--install` has tried to get one; return the exit status."""
    if list(argv) not in ([], ["--install"]):
        print("usage: python -m minirl.browser.executable [--install]", file=sys.stderr)
        return 2
    try:
        path = install() if argv else executable()
    except ValueError as error:
        print(f"chromium: {error}", file=sys.stderr)
        return 2
    print(f"chromium: {path} ({version(path)}{', sandbox off' if sandbox_off() else ''})")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
