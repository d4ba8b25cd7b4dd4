"""Which Chromium is taken, what is done when there is none, and how it is started.

Browsers here are small shell scripts in a temporary PATH, so that the order can be seen without one.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path

import pytest

from minirl.browser import executable


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with an empty PATH, an empty Playwright cache and no settings; a `bin/` to fill."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    monkeypatch.setenv("PATH", str(bin_folder))
    monkeypatch.setenv("PLAYWRIGHT_BROWSERS_PATH", str(tmp_path / "playwright"))
    monkeypatch.delenv("MINIRL_CHROMIUM", raising=False)
    monkeypatch.delenv("MINIRL_NO_SANDBOX", raising=False)
    return tmp_path


def browser(path: Path, runs: bool = True) -> str:
    """A script that answers `--version`, or fails like Ubuntu's stub."""
    path.parent.mkdir(parents=True, exist_ok=True)
    says = "echo 'Chromium 156.0'" if runs else "echo 'needs the chromium snap' >&2; exit 1"
    path.write_text(f"#!/bin/sh\n{says}\n")
    path.chmod(0o755)
    return str(path)


def test_the_order_is_the_users_then_shells_then_full_browsers(machine, monkeypatch):
    """Of each kind, Playwright's own before the system's; every line here adds a better one."""
    better = [
        "bin/google-chrome",
        "bin/chromium",
        "playwright/chromium-1250/chrome-linux/chrome",
        "playwright/chromium-1255/chrome-linux64/chrome",
        "bin/headless_shell",
        "bin/chrome-headless-shell",
        "bin/chromium-headless-shell",
        "playwright/chromium_headless_shell-1240/chrome-linux/headless_shell",
        "playwright/chromium_headless_shell-1245/chrome-headless-shell-linux64/chrome-headless-shell",
    ]
    for name in better:
        path = browser(machine / name)
        assert executable.executable() == path
    own = browser(machine / "mine/chrome")
    monkeypatch.setenv("MINIRL_CHROMIUM", own)
    assert executable.executable() == own


def test_a_browser_that_does_not_run_is_passed_over(machine):
    browser(machine / "playwright/chromium_headless_shell-1255/chrome-linux/headless_shell", runs=False)
    browser(machine / "playwright/chromium-1255/chrome-linux64/chrome", runs=False)
    browser(machine / "bin/chromium", runs=False)
    google = browser(machine / "bin/google-chrome")
    assert executable.executable() == google


def test_a_browser_that_is_repaired_is_found(machine):
    path = machine / "bin/chromium"
    browser(path, runs=False)
    with pytest.raises(ValueError, match="no Chromium that runs: install one"):
        executable.executable()
    browser(path)
    assert executable.executable() == str(path)


def test_the_users_choice_is_never_replaced(machine, monkeypatch):
    browser(machine / "bin/chromium")
    monkeypatch.setenv("MINIRL_CHROMIUM", "/nowhere/chrome")
    monkeypatch.setattr(executable, "attempt", lambda *_: pytest.fail("must not install another"))
    with pytest.raises(ValueError, match="correct or unset it"):
        executable.install()
    monkeypatch.setenv("MINIRL_CHROMIUM", browser(machine / "stub", runs=False))
    with pytest.raises(ValueError, match="needs the chromium snap"):
        executable.install()


@pytest.fixture
def attempts(machine, monkeypatch) -> list[str]:
    """Records what would be run instead of running it, for root on Debian."""
    made: list[str] = []
    monkeypatch.setattr(executable, "attempt", lambda command: made.append(" ".join(command[-3:])))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    browser(machine / "bin/apt-get")
    return made


DOWNLOAD, UPDATE = "install --only-shell chromium", "apt-get -qq update"
SHELL, FULL = "install -y chromium-headless-shell", "install -y chromium"


def test_nothing_is_installed_where_a_shell_runs(machine, attempts):
    browser(machine / "bin/chromium")
    browser(machine / "bin/chromium-headless-shell")
    assert executable.main(["--install"]) == 0
    assert attempts == []


@pytest.mark.parametrize(("user", "made"), [(0, [DOWNLOAD, UPDATE, SHELL]), (1000, [DOWNLOAD])])
def test_beside_a_full_browser_only_a_shell_is_wanted(machine, attempts, monkeypatch, capsys, user, made):
    """It can't be had here, and the full browser is good enough: no second one, and no failure."""
    monkeypatch.setattr(os, "geteuid", lambda: user)
    full = browser(machine / "bin/google-chrome")
    assert executable.main(["--install"]) == 0
    assert attempts == made and full in capsys.readouterr().out


def test_a_shell_that_was_got_replaces_the_full_browser(machine, attempts, monkeypatch):
    """Even if it comes as the system's package and the full browser is Playwright's."""
    browser(machine / "playwright/chromium-1255/chrome-linux64/chrome")

    def attempt(command):
        attempts.append(command[-1])
        if command[0] == "apt-get" and command[-1] == "chromium-headless-shell":
            browser(machine / "bin/chromium-headless-shell")

    monkeypatch.setattr(executable, "attempt", attempt)
    assert executable.install() == str(machine / "bin/chromium-headless-shell")
    tried = len(attempts)
    executable.install()
    assert len(attempts) == tried  # the next time there is nothing left to do


def test_without_root_only_playwright_is_asked(attempts, monkeypatch, capsys):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert executable.main(["--install"]) == 2
    assert attempts == [DOWNLOAD]
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "MINIRL_CHROMIUM" in said


def test_root_on_debian_gets_the_package(attempts):
    """The shell's, and where the distribution has none, the full browser's. Nothing was downloaded, so the
    libraries that Playwright's would want are not fetched."""
    with pytest.raises(ValueError, match="no Chromium that runs"):
        executable.install()
    assert attempts == [DOWNLOAD, UPDATE, SHELL, FULL]


def test_root_gets_the_libraries_that_a_download_lacks(machine, attempts, monkeypatch):
    downloaded = machine / "playwright/chromium_headless_shell-1255/chrome-linux/headless_shell"

    def attempt(command):
        attempts.append(" ".join(command[-4:]))
        browser(downloaded, runs="--with-deps" in command)
        return True

    monkeypatch.setattr(executable, "attempt", attempt)
    assert executable.install() == str(downloaded)
    assert attempts == [f"playwright {DOWNLOAD}", f"{DOWNLOAD} --with-deps"]


SCRIPT = "echo starting; echo 'Error: no network'; echo at x; exit 1"
FAILING = [(["/bin/sh", "-c", SCRIPT], "failed: Error: no network\n"), (["/nowhere/apt-get"], "failed: ")]


@pytest.mark.parametrize(("command", "said"), FAILING)
def test_an_attempt_that_fails_says_why(capsys, command, said):
    assert not executable.attempt(command)
    assert said in capsys.readouterr().out


def test_an_attempt_that_hangs_is_ended_with_its_children(tmp_path, capsys):
    late = tmp_path / "late"
    assert not executable.attempt(["/bin/sh", "-c", f"(sleep 1; touch {late}) & wait"], seconds=0.2)
    assert "failed: it took more than" in capsys.readouterr().out
    time.sleep(1.2)
    assert not late.exists()


@pytest.mark.parametrize(("user", "setting", "off"), [(0, "", True), (1000, "", False), (1000, "1", True)])
def test_the_sandbox_is_off_only_for_root_and_on_request(machine, monkeypatch, user, setting, off):
    browser(machine / "bin/chromium")
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setenv("MINIRL_NO_SANDBOX", setting)
    assert executable.sandbox_off() is off
    options = executable.launch_options()
    assert ("--no-sandbox" in options["args"]) is off and options["chromium_sandbox"] is not off


def test_extra_flags_come_last_and_replace_ours():
    extra = ["--no-first-run=never", "--host-resolver-rules=MAP * 127.0.0.1"]
    args = executable.launch_options(extra)["args"]
    assert args[-2:] == extra
    assert "--no-first-run" not in args
    assert "--disable-background-networking" in args


def test_main_prints_the_path_or_the_usage(machine, capsys):
    path = browser(machine / "bin/chromium")
    assert executable.main([]) == 0
    assert path in capsys.readouterr().out
    assert executable.main(["--instal"]) == 2
    assert "usage" in capsys.readouterr().err


def test_the_real_one_runs_here():
    """`make setup` has seen to it, so a machine without one is a failure, not a skip."""
    assert executable.version(executable.executable())


@pytest.mark.slow
def test_the_real_one_calls_nobody(tmp_path):
    """Left open on an empty page, it asks for nothing outside this machine."""
    from playwright.sync_api import sync_playwright

    log = tmp_path / "net.json"
    with sync_playwright() as playwright:
        options = executable.launch_options([f"--log-net-log={log}"])
        started = playwright.chromium.launch(**options)
        started.new_page().goto("about:blank")
        time.sleep(15)
        started.close()
    assert log.stat().st_size > 1000
    asked = set(re.findall(r'"(?:url|host)":"([^"]*)"', log.read_text()))
    assert {where for where in asked if where and "127.0.0.1" not in where} == set()
