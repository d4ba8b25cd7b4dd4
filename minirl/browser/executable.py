"""The browser's executable: where it is, how to get one, and the flags it is started with.

Episodes start a browser with `launch_options()`; `make setup` runs `python -m minirl.browser.executable
--install`.
Nothing here talks to a browser beyond `--version`, so that it works before Playwright is set up.
"""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

# The headless shell comes first everywhere: it is the same engine without the desktop around it, and an
# episode in it takes about a seventh of the processor time that one in the full browser does.
SHELLS = ("chromium-headless-shell", "chrome-headless-shell", "headless_shell")
SYSTEM_NAMES = (*SHELLS, "chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
NO_CHROMIUM = (
    "no Chromium that runs: install one (Debian: apt-get install chromium-headless-shell; anywhere: "
    "`.venv/bin/playwright install --with-deps chromium`) or set MINIRL_CHROMIUM to its path"
)

# A training machine is often closed to the outside, where every call home is a refused connection.
# Playwright passes many of these too; spelled out, they stay the same when its defaults change.
QUIET = (
    "--disable-background-networking",
    "--disable-breakpad",
    "--disable-client-side-phishing-detection",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-domain-reliability",
    "--disable-sync",
    "--metrics-recording-only",
    "--no-default-browser-check",
    "--no-first-run",
    "--no-pings",
    # Neither of these two calls has a switch that stops it, so they are sent to a port that Chromium
    # itself refuses to connect to. Pages are not affected: accounts.google.com still opens in one.
    "--component-updater=url-source=http://127.0.0.1:9/",
    "--gaia-url=http://127.0.0.1:9/",
)
LIGHT = (
    "--disable-extensions",
    "--disable-gpu",
    "--disable-quic",
    "--hide-scrollbars",
    "--mute-audio",
)


def executable() -> str:
    """The path of a Chromium that runs: $MINIRL_CHROMIUM, else a headless shell, else a full browser; of
    either kind Playwright's own before the system's."""
    named = os.environ.get("MINIRL_CHROMIUM")
    if named:
        path = shutil.which(named)
        if path is None:
            raise ValueError(f"MINIRL_CHROMIUM is {named!r}, no executable file: correct or unset it")
        version(path)
        return path
    for path in sorted([*playwrights_own(), *systems_own()], key=is_shell, reverse=True):
        try:
            version(path)
        except ValueError:
            continue  # Ubuntu's snap stub, or a download that lacks system libraries
        return path
    raise ValueError(NO_CHROMIUM)


def playwrights_own() -> list[str]:
    """What `playwright install chromium` has put on this machine, the newest first."""
    place = os.environ.get("PLAYWRIGHT_BROWSERS_PATH")
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(place) if place else Path(cache) / "ms-playwright"
    shells = [path for name in SHELLS for path in folder.glob(f"chromium_headless_shell-*/*/{name}")]
    full = folder.glob("chromium-*/chrome-linux*/chrome")
    newest_first = [sorted(found, key=lambda path: path.parts[-3], reverse=True) for found in (shells, full)]
    return [str(path) for paths in newest_first for path in paths]


def systems_own() -> list[str]:
    """The browsers on PATH that speak Chromium's protocol, in the order in which they are tried."""
    return [path for path in map(shutil.which, SYSTEM_NAMES) if path]


@functools.cache  # keeps answers, not exceptions: a browser that failed is asked again
def version(path: str) -> str:
    """What `path --version` prints. A file that is there may still not be a browser that runs."""
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ValueError(f"{path} does not run ({error}): reinstall it or set MINIRL_CHROMIUM") from error
    if done.returncode != 0 or not done.stdout.strip():
        reason = last_line(done.stderr) or f"exit status {done.returncode}"
        raise ValueError(f"{path} does not run ({reason}): reinstall it or set MINIRL_CHROMIUM")
    return done.stdout.strip()


def sandbox_off() -> bool:
    """True if Chromium must run without its sandbox: it refuses to start with one as root, and
    containers that forbid user namespaces leave it none, which only their owner can know."""
    return os.geteuid() == 0 or os.environ.get("MINIRL_NO_SANDBOX") == "1"


def launch_args(extra: Iterable[str] = ()) -> list[str]:
    """Flags that keep Chromium from calling home and make it light, then `extra`, which wins.

    >>> launch_args(["--window-size=800,600"])[-1]
    '--window-size=800,600'
    """
    extra = list(extra)
    given = {flag.partition("=")[0] for flag in extra}
    ours = [*QUIET, *LIGHT, *(["--no-sandbox"] if sandbox_off() else [])]
    return [flag for flag in ours if flag.partition("=")[0] not in given] + extra


def launch_options(extra: Iterable[str] = ()) -> dict[str, Any]:
    """Keyword arguments for Playwright's `chromium.launch`, sandbox included: left alone, Playwright
    turns it off for everybody."""
    return {
        "executable_path": executable(),
        "args": launch_args(extra),
        "chromium_sandbox": not sandbox_off(),
        "headless": True,
    }


def install() -> str:
    """The path of a Chromium that runs, after trying to get one if there is none, or only a full browser."""
    if os.environ.get("MINIRL_CHROMIUM") or has_shell():
        return executable()  # what the user chose is never replaced
    playwright = [sys.executable, "-m", "playwright"]
    attempts = [[*playwright, "install", "chromium-headless-shell"]]
    if os.geteuid() == 0 and shutil.which("apt-get"):
        # On a bare machine Playwright's browser lacks libraries. Ubuntu's own package is a stub that
        # needs snap, so the libraries are tried before the package.
        attempts += [
            ["apt-get", "-qq", "update"],
            [*playwright, "install-deps", "chromium-headless-shell"],
            ["apt-get", "-qq", "install", "-y", "chromium-headless-shell"],
            ["apt-get", "-qq", "install", "-y", "chromium"],
        ]
    for attempt in attempts:
        if "install-deps" in attempt and not playwrights_own():
            continue  # nothing was downloaded that could want them
        if attempt[-1] == "chromium" and has_any():
            continue  # not every distribution packs the shell; a full browser is there already
        attempt_quietly(attempt)
        if has_shell():
            break
    return executable()


def has_any() -> bool:
    try:
        return bool(executable())
    except ValueError:
        return False


def has_shell() -> bool:
    return has_any() and is_shell(executable())


def is_shell(path: str) -> bool:
    return Path(path).name in SHELLS


def attempt_quietly(command: Sequence[str], seconds: float = 300) -> None:
    """Runs `command`, says what it does and, if it fails, why; never raises and never waits longer."""
    shown = " ".join(Path(word).name for word in command)
    print(f"chromium: {shown}", flush=True)
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    # A process group of its own: the download runs in a grandchild, which must not outlive the limit.
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=env,
            start_new_session=True,
        )
    except OSError as error:
        print(f"chromium: {shown} failed: {error}")
        return
    try:
        output, _ = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
        print(f"chromium: {shown} took more than {seconds:.0f} s")
        return
    if child.returncode != 0:
        errors = [line for line in output.splitlines() if line.startswith(("Error", "E:"))]
        print(f"chromium: {shown} failed: {(errors or [last_line(output)])[0]}")


def last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1].strip()


def main(argv: Sequence[str]) -> int:
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
