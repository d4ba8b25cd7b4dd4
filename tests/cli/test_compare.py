"""Several runs on one page, opened in Chromium from disk."""

from pathlib import Path

import pytest
from playwright.sync_api import sync_playwright

from minirl.__main__ import run as minirl
from minirl.browser.executable import launch_options
from minirl.run_folder import Run

HOSTILE = "</script><img src=x onerror='window.hacked = 1'>"


def make_run(root: Path, kl: float, steps: int, name: str = "x") -> Path:
    run = Run(root)
    run.write_config({"recipe": "tiny", "name": name, "loss": {"kl": kl, "clip_high": 0.28}})
    for step in range(1, steps + 1):
        groups = {"groups_submitted": 20 + step, "groups_kept": 16}
        run.add_metrics(step, {"success": step / 10, "entropy": float("nan"), **groups})
    run.add_eval("after RL", step=steps, success=0.5, low=0.4, high=0.6, n=64)
    run.add_eval("eval_sft", step=1, success=0.0, low=0.0, high=1.0, n=0)  # all were aborted
    return root


def test_a_run_without_any_success_has_its_curve(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, success in (("a", 0.0), ("b", 0.5)):
        run = Run(tmp_path / name)
        run.write_config({"recipe": "tiny"})
        for step in (1, 2):
            run.add_eval(f"step {step}", step=step, success=success, low=0.0, high=0.6, n=64)
    minirl(["compare", "a", "b"])
    with sync_playwright() as playwright:
        page = playwright.chromium.launch(**launch_options()).new_page()
        page.goto((tmp_path / "compare.html").as_uri())
        assert page.locator("[data-title='Success in evaluations'] path.line").count() == 2


def test_a_page_shows_what_differs_the_rates_and_a_curve_for_each_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs = [make_run(tmp_path / "a", 0.0, 4), make_run(tmp_path / "b", 0.1, 6, HOSTILE)]
    minirl(["compare", *map(str, runs)])
    with sync_playwright() as playwright:
        page = playwright.chromium.launch(**launch_options()).new_page()
        page.goto((tmp_path / "compare.html").as_uri())
        rows = page.locator(".settings tr").all_inner_texts()
        assert [row.split("\t")[0] for row in rows[1:]] == ["name", "loss.kl"]
        assert rows[2].split() == ["loss.kl", "0.0", "0.1"]
        assert "50.0% 40.0 to 60.0, n = 64" in page.locator(".numbers").inner_text().replace("\n", " ")
        assert page.locator(".numbers tr").all_inner_texts()[-1].split() == ["eval_sft", "–", "–"]
        series = page.evaluate("JSON.parse(document.querySelector('#data').textContent).series")
        (evaluated,) = (values for key, values in series.items() if key == f"evaluated of {runs[0]}")
        assert evaluated == [None, None, None, 0.5, None, None]
        assert page.locator("[data-title=Success] path.line").count() == 2
        newest = page.locator("[data-title=Success] .legend output").all_inner_texts()
        assert newest == ["0.4", "0.6"], "each run's own, though the first ended earlier"
        assert page.locator("[data-title=Entropy]").count() == 0, "no run has a number"
        sampled = page.locator("[data-title='Groups, submitted'] .legend output").all_inner_texts()
        assert sampled == ["24", "26"], "of a chart's numbers the first"
        assert page.evaluate("window.hacked") is None


@pytest.mark.parametrize(
    ("folders", "words"), [(["a"], "at least two runs"), (["a", "nowhere"], "nowhere holds no run")]
)
def test_what_cannot_be_compared_is_said(tmp_path, monkeypatch, folders, words):
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "a", 0.0, 2)
    with pytest.raises(ValueError, match=words):
        minirl(["compare", *folders])
    assert not (tmp_path / "compare.html").exists()
