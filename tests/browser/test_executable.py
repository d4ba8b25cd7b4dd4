"""Which Chromium is taken, what is done when there is none, and how it is started.

Browsers here are small shell scripts in a temporary PATH, so that the order can be seen without one.
"""

import os
import re
import subprocess
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


def test_the_order_is_the_users_then_playwrights_then_the_systems(machine, monkeypatch):
    """Of each, headless shells before full browsers; every line here adds a better one."""
    better = [
        "bin/google-chrome",
        "bin/chromium",
        "bin/headless_shell",
        "bin/chromium-headless-shell",
        "playwright/chromium-1250/chrome-linux/chrome",
        "playwright/chromium-1255/chrome-linux64/chrome",
        "playwright/chromium_headless_shell-1240/chrome-linux/headless_shell",
        "playwright/chromium_headless_shell-1245/chrome-headless-shell-linux64/chrome-headless-shell",
    ]
    for name in better:
        path = browser(machine / name)
        assert executable.executable() == path
    own = browser(machine / "mine/chrome")
    monkeypatch.setenv("MINIRL_CHROMIUM", own)
    assert executable.executable() == own


def test_setup_is_told_of_a_browser_that_does_not_run_or_is_not_there(machine, monkeypatch, capsys):
    """Ubuntu's stub, or a download without its libraries."""
    assert executable.main() == 2 and "no Chromium: `playwright install" in capsys.readouterr().err
    path = browser(machine / "bin/chromium", runs=False)
    assert executable.main() == 2 and path in capsys.readouterr().err
    browser(machine / "bin/chromium")
    assert executable.main() == 0 and path in capsys.readouterr().out
    monkeypatch.setenv("MINIRL_CHROMIUM", "/nowhere/chrome")
    assert executable.main() == 2 and "/nowhere/chrome" in capsys.readouterr().err


ROOT = Path(__file__).resolve().parents[2]
DOWNLOAD, APT = "playwright install --only-shell chromium", "apt-get -qq"
TRIED = [DOWNLOAD, f"{APT} update", f"{APT} install -y chromium-headless-shell", f"{DOWNLOAD} --with-deps"]


@pytest.mark.parametrize(
    ("user", "works", "tried"),
    [(0, "nothing", TRIED), (1000, "nothing", TRIED[:1]), (0, "headless-shell", TRIED[:3])],
)
def test_what_make_setup_tries_where_no_chromium_runs(tmp_path, user, works, tried):
    """One after the other, until one runs: here stubs of all commands in a PATH of their own."""
    log, python = tmp_path / "log", tmp_path / "bin/python"
    python.parent.mkdir()
    python.write_text(f"#!/bin/sh\n[ -e {tmp_path}/there ]\n")
    for name in ("playwright", "apt-get"):
        done = f'case "$*" in *{works}) touch {tmp_path}/there; esac'
        (tmp_path / "bin" / name).write_text(f'#!/bin/sh\necho "{name} $*" >> {log}\n{done}\n')
    (tmp_path / "bin/id").write_text(f"#!/bin/sh\necho {user}\n")
    for file in python.parent.iterdir():
        file.chmod(0o755)
    env = {"PATH": f"{python.parent}:{os.environ['PATH']}"}
    rule = f"include {ROOT}/Makefile\nchromium-only:\n\t$(find-chromium)\n"
    command = ["make", "-s", "-f", "-", f"VENV={tmp_path}", "chromium-only"]
    done = subprocess.run(command, input=rule, text=True, env=env, capture_output=True)
    assert log.read_text().splitlines() == tried and (done.returncode == 0) is (works != "nothing"), done


@pytest.mark.parametrize(("user", "setting", "off"), [(0, "", True), (1000, "", False), (1000, "1", True)])
def test_the_sandbox_is_off_only_for_root_and_on_request(machine, monkeypatch, user, setting, off):
    browser(machine / "bin/chromium")
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setenv("MINIRL_NO_SANDBOX", setting)
    assert executable.sandbox_off() is off
    options = executable.launch_options("--host-resolver-rules=MAP * 127.0.0.1")
    assert options["chromium_sandbox"] is not off
    assert options["args"] == [*executable.FLAGS, "--host-resolver-rules=MAP * 127.0.0.1"]


@pytest.mark.slow
def test_the_real_one_calls_nobody(tmp_path):
    """Left open on an empty page, it asks for nothing outside this machine."""
    from playwright.sync_api import sync_playwright

    log = tmp_path / "net.json"
    with sync_playwright() as playwright:
        options = executable.launch_options(f"--log-net-log={log}")
        started = playwright.chromium.launch(**options)
        started.new_page().goto("about:blank")
        time.sleep(15)
        started.close()
    assert log.stat().st_size > 1000
    asked = set(re.findall(r'"(?:url|host)":"([^"]*)"', log.read_text()))
    assert {where for where in asked if where and "127.0.0.1" not in where} == set()
