"""The report, opened in Chromium from disk as a person would: a made-up run with its trajectories."""

import base64
import gzip
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Page, sync_playwright
from training import group_of

from minirl.browser.executable import launch_options
from minirl.cli import report
from minirl.cli.report import TEMPLATES, for_json, write_report
from minirl.config import to_json
from minirl.judges.intervals import wilson
from minirl.recipes import tiny
from minirl.run_folder import Run
from minirl.types import Call, Parsed, Stop, Task, Trajectory, Turn

HOSTILE = "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 2'>&lt;\u2028\u2029"


CLICK = Call("click", {"point_2d": [838, 258]})
DRAG = Call("drag", {"end_point_2d": [600, 260], "start_point_2d": [150, 260]})
CALLS = [(CLICK,), (CLICK, Call("hover", {"point_2d": [200, 450]})), (DRAG, Call("type", {"text": "2"}))]
THOUGHTS = ["The mugs are behind the first card.", "I also look at the blue one.", "Now price."]


def fake_episode(run: Run, task: Task, member: int) -> Trajectory:
    """Three turns on one picture of 480 x 360; every second episode succeeds."""
    file = io.BytesIO()
    Image.new("RGB", (480, 360), "#f4f1ea").save(file, "PNG")
    image = run.images.put(file.getvalue())
    turn = Turn(400, (1,) * 120, (2,) * (20 + member), (), "", images=(image,), seconds={"sample": 0.8})
    parsed = map(Parsed, THOUGHTS, CALLS)
    turns = tuple(replace(turn, parsed=one, feedback=("done",) * len(one.calls)) for one in parsed)
    ended = Trajectory(task, member, turns=turns, success=member % 2 == 0, reward=float(member % 2 == 0))
    return replace(ended, final_state={"page": "DONE", "colour": "red"}, final_image=image, seconds=6.4)


def make_run(root: Path, steps: int = 24) -> Run:
    """A whole run folder with made-up numbers, groups of 4, and screenshots."""
    run = Run(root)
    run.write_config({"recipe": "tiny", "steps": steps, "seed": 0, "rollout": {"group": 4, "groups": 3}})
    rows = [("before training", 0, 1), ("after SFT", 0, 19), ("eval_step_00012", 12, 33)]
    for label, step, successes in [*rows, ("after RL", steps, 48)]:
        low, high = wilson(successes, 64)
        run.add_eval(label, step=step, success=successes / 64, low=low, high=high, n=64)
    stops = {"stop/done": 100, "stop/max_steps": 15, "stop/format_error": 2}
    for step in range(1, steps + 1):
        numbers = {"success": step / steps, "turns": 4.6 - step / 20, "seconds/total": 30.0, **stops}
        run.add_metrics(step, numbers | ({"stop/infra_error": 2} if step % 7 == 0 else {}))
    for label in ("demos", "eval_sft", "step_00001", f"step_{steps:05d}"):
        groups = []
        for g in range(3):
            task = Task(f"shop-0-{g}", f"Order 2 red mugs ({g})", "http://shop-0.test/")
            members = tuple(fake_episode(run, task, member) for member in range(4))
            groups.append(group_of(members, 0.5, -0.5, 0.866, -0.866, number=g))
        crashed = Trajectory(groups[0][0].task, 9, stop=Stop.ENV_ERROR, error="Page crashed")
        members = [replace(t, group=None, advantage=None) for t in groups[0]]
        run.save_trajectories(label, [*chain(*groups), crashed] if label.startswith("step") else members)
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    run = make_run(tmp_path_factory.mktemp("runs") / "tiny")
    write_report(run.root)
    return run


@pytest.fixture(scope="module")
def chromium():
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(**launch_options())
        yield browser
        browser.close()


@pytest.fixture
def page(chromium) -> Iterator[Page]:
    """A page that fails its test if the console saw an error or anything but a file was asked for."""
    page = chromium.new_page(viewport={"width": 1280, "height": 900})
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    yield page
    page.close()
    assert problems == [] and {url[:5] for url in asked} <= {"file:", "data:"}


def open_report(page: Page, run: Run, place: str = "") -> None:
    page.goto(run.report_path.resolve().as_uri() + place)


def test_the_report_shows_the_evaluations(page, run):
    open_report(page, run)
    rows = page.locator("#evaluations tr").all_inner_texts()
    low, high = wilson(48, 64)
    assert rows[-1].split("\t") == ["after RL", "75.0%", f"{low:.1%} to {high:.1%}", "64"]
    assert [row.split("\t")[0] for row in rows[1:]] == ["before training", "after SFT", "after RL"]
    assert "recipe tiny · 24 steps" in page.locator("header").inner_text()


@pytest.mark.more
def test_the_report_of_evaluations_shows_each_and_why_episodes_failed(page, tmp_path):
    run = Run(tmp_path / "tiny-eval")
    for step, n in ((10, 8), (20, 0), (30, 8)):
        label = f"eval_step_000{step}"
        low, high = wilson(n // 2, n)
        errors = [{"category": "access", "count": 3, "share": 0.75, "paper": 0.51}]
        errors += [{"category": "form", "count": 1, "share": 0.25, "paper": None}]
        proxies = [{"name": "history", "turns": 4, "rate": 0.1, "mean": 31.5, "p90": None}]
        more = {"checkpoint": "somewhere", "invalid": 2, "errors": errors if n else [], "proxies": proxies}
        run.add_eval(label, step=step, success=0.5 if n else 0, low=low, high=high, n=n, **more)
    run.add_eval("eval_sft_webvoyager-official", step=0, success=0, low=0, high=0.3, n=8, checkpoint="sft")
    write_report(run.root)
    open_report(page, run)
    rows = [row.split("\t") for row in page.locator("#evaluations tr").all_inner_texts()]
    labels = [*(f"eval_step_000{n}0" for n in (1, 2, 3)), "eval_sft_webvoyager-official"]
    assert [row[0] for row in rows[1:5]] == labels
    assert [row[1] for row in rows[1:5]] == ["50.0%", "–", "50.0%", "0.0%"]
    assert [row[-1] for row in rows[:5]] == ["aborted", "2", "2", "2", "–"]
    assert "Why episodes of eval_step_00030" in page.locator("#evaluations").inner_text()
    assert rows[5:] == [
        ["failed for", "share", "episodes", "paper's share"],
        ["access", "75.0%", "3", "51.0%"],
        ["form", "25.0%", "1", "–"],
        ["turns that speak of", "share", "mean tokens", "90th percentile"],
        ["history", "10.0%", "31.5", "–"],
    ]


@pytest.mark.more
def test_the_curves_show_their_newest_values(page, run, tmp_path):
    open_report(page, run)
    assert f"{4.6 - 1.2:.4g}" in page.locator('[data-title="Turns per episode"]').inner_text()
    assert page.locator('[data-title="Success"] circle.eval').count() == 4
    assert page.locator('[data-title="Stops by kind"] path.line').count() == 4
    assert page.locator('[data-title="Rewards of recorded steps"]').count() == 0, "there are none"
    recorded = Run(tmp_path / "recorded")
    for step, share in ((1, 0.25), (2, 0.5)):
        recorded.add_metrics(step, {"reward": share, "reward/action": 1.0, "reward/coordinate": share})
    write_report(recorded.root)
    open_report(page, recorded)
    card = page.locator('[data-title="Rewards of recorded steps"]')
    assert card.locator("svg path.line").count() == 2
    assert "action 1 coordinate 0.5" in " ".join(card.inner_text().split())


def mark_position(page: Page) -> tuple[float, float]:
    mark = page.locator(".shot circle.mark").first
    mark.wait_for()
    return float(mark.get_attribute("cx")), float(mark.get_attribute("cy"))


def test_stepping_moves_the_mark_and_the_text(page, run):
    open_report(page, run, "#step_00024/1/0")
    assert page.locator(".where").inner_text() == "turn 1 of 3"
    assert mark_position(page) == pytest.approx((0.838 * 480, 0.258 * 360))
    assert "behind the first card" in page.locator(".words").inner_text()
    page.get_by_label("next turn").click()
    assert page.locator(".where").inner_text() == "turn 2 of 3"
    page.locator(".shot text.number").first.wait_for()
    assert page.locator(".shot text.number").all_text_contents() == ["1", "2"]
    page.get_by_label("next turn").click()
    assert mark_position(page) == pytest.approx((0.15 * 480, 0.26 * 360)), "a drag starts at its start"
    assert page.locator(".shot path.mark.drag").count() == 1
    page.get_by_label("next turn").click()
    assert page.locator(".where").inner_text() == "end"
    assert '"colour": "red"' in page.locator(".words").inner_text()
    assert page.get_by_label("next turn").is_disabled()
    for _ in range(3):
        page.get_by_label("previous turn").click()
    assert page.locator(".where").inner_text() == "turn 1 of 3"
    page.reload()
    assert page.url.endswith("#step_00024/1/0")


@pytest.mark.more
def test_dumps_groups_and_members_can_be_chosen(page, run):
    open_report(page, run)
    dumps = page.get_by_label("dump").locator("option").all_inner_texts()
    assert dumps == ["demos", "eval_sft", "step_00001", "step_00024"]
    page.get_by_label("dump").select_option("step_00001")
    page.locator(".group").nth(3).wait_for()
    assert page.locator(".group").count() == 4, "three groups and the episode that left its own"
    page.locator(".group").nth(1).locator("button").nth(3).click()
    episode = run.load_trajectories("step_00001")[6]
    facts = page.locator(".facts").inner_text()
    assert f"stop {episode.stop.value}" in facts and "advantage 0.866" in facts
    assert f"sampled tokens {episode.response_tokens}" in facts, "behind the two failures of its group"
    page.locator(".group").nth(3).locator("button").click()
    assert "invalid" in page.locator(".facts").inner_text() and "Page crashed" in page.inner_text(".view")


def test_failures_come_first_and_can_be_seen_alone_and_every_episode_is_there(page, tmp_path):
    run, goal = Run(tmp_path / "run"), {"where": [{"path": "$.colour", "cond": "eq", "value": "teal"}]}
    task = Task("t", "Order a teal mug", "http://shop-0.test/", goal)
    episodes = [fake_episode(run, task, member) for member in range(100)]
    state = {"page": "DONE", "signature": {"colour": "red"}}
    run.save_trajectories("after_rl", [replace(episode, final_state=state) for episode in episodes])
    run.save_trajectories("step_00001", episodes[:1])
    write_report(run.root)
    open_report(page, run, "#after_rl/0/3")
    table = page.locator(".compared tr").all_inner_texts()
    assert table == ["\texpected\tfound\t", "colour\tteal\tred\t≠"]
    outcomes = page.get_by_label("outcome")
    assert outcomes.locator("option").all_inner_texts() == [
        "all outcomes (100)", "failure (50)", "success (50)",
    ]  # fmt: skip
    buttons = page.locator(".members button")
    assert [buttons.nth(n).inner_text() for n in (0, 49, 50, 99)] == ["1", "99", "0", "98"]
    outcomes.select_option("success")
    assert buttons.count() == 50 and buttons.first.inner_text() == "0"
    open_report(page, run)
    page.reload()
    assert page.get_by_label("dump").input_value() == "0", "the evaluation, not the step"


def test_a_report_says_how_it_was_made_and_fits_a_phone(page, run):
    """Nothing is wider than the screen but a table that can be moved; what is 0 throughout is not drawn."""
    run.add_start()
    config = to_json(replace(tiny(), steps=24, loss=replace(tiny().loss, clip_high=0.3)))
    # of eval.py, which a recipe has not
    run.write_config(config | {"tasks": None, "limit": 0, "retry": False, "protocol": "mine"})
    run.add_metrics(25, {"clip_fraction": 0.0, "entropy": 0.5})
    write_report(run.root)
    page.set_viewport_size({"width": 390, "height": 844})
    open_report(page, run)
    header = page.locator("header").inner_text()
    assert "\ncommit " in header and "loss.clip_high\t0.3\t0.28" in header and "steps\t24\t10" in header
    assert "protocol\tmine" in header
    assert not any(name in header for name in ("tasks\t", "limit\t", "retry\t"))
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    titles = page.locator("figure").evaluate_all("all => all.map(one => one.dataset.title)")
    assert titles[:2] == ["Success", "Turns per episode"] and "Entropy" in titles
    assert "Clip fraction" not in titles
    assert all(len(text) > 10 for text in page.locator("figure > p").all_inner_texts())


def test_hostile_text_stays_text(page, tmp_path):
    run = Run(tmp_path / HOSTILE.replace("/", "")[:40])
    task = Task(HOSTILE, HOSTILE, HOSTILE)
    call = Call(HOSTILE, {HOSTILE: HOSTILE, "point_2d": ["</script>", float("nan")]})
    parsed = Parsed(HOSTILE, (call,), HOSTILE)
    turn = Turn(0, (), (), (), HOSTILE, (HOSTILE,), parsed, (HOSTILE,), HOSTILE, HOSTILE, HOSTILE)
    run.save_trajectories("eval", [Trajectory(task, 0, turns=(turn,), error=HOSTILE, final_image=HOSTILE)])
    run.write_config({"recipe": HOSTILE, HOSTILE: HOSTILE, "seed": "\ud800"})
    run.add_eval(HOSTILE, step=1, success=0.5, low=0.1, high=0.9, n=2)
    run.add_metrics(1, {"success": float("nan"), f"stop/{HOSTILE}": 3, "reward": float("inf")})
    write_report(run.root)
    open_report(page, run)
    assert HOSTILE.split("\u2028")[0] in page.locator(".view").inner_text()
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img").count() == page.locator("main script").count() == 0
    assert HOSTILE[:20] in page.inner_text("h1") + page.inner_text("#evaluations")


@pytest.mark.more
def test_an_empty_run_has_a_report(page, tmp_path):
    write_report(tmp_path / "empty")
    open_report(page, Run(tmp_path / "empty"))
    assert "empty" in page.locator("h1").inner_text()


@pytest.mark.more
def test_a_pruned_screenshot_leaves_a_note(chromium, tmp_path):
    run = make_run(tmp_path / "pruned", steps=2)
    for path in (run.root / "screenshots").iterdir():
        path.unlink()
    write_report(run.root)
    page = chromium.new_page()  # the missing file is an error in the console, as it should be
    open_report(page, run, "#step_00001/0/0")
    assert "the folder screenshots/ belongs beside this page" in page.locator(".shot .gone").inner_text()
    page.close()


def test_inert_json_is_still_the_same_value():
    value = {"x": HOSTILE, "y": float("inf"), "z": [float("nan"), 1.5]}
    template = TEMPLATES.get_template("report.html.j2")
    page = template.render(data=for_json(value), evals=[], config={"recipe": HOSTILE}, name=HOSTILE)
    text = page.split('id="data">')[1].split("</script>")[0]
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == {"x": HOSTILE, "y": None, "z": [None, 1.5]}
    assert page.count("<script") == 2 and page.count("<img") == 0, "the title's is text, too"


def test_long_texts_are_cut_a_dump_is_packed_and_a_broken_line_counted(tmp_path):
    run = Run(tmp_path)
    task = Task("t", "x" * 10_000, "http://a.test/")
    run.save_trajectories("eval", [Trajectory(task, i) for i in range(100)])
    path = run.trajectory_path("eval")
    path.write_bytes(b'{"task": \n' + path.read_bytes())
    data = report.read_dump(path, 0)
    shown = json.loads(gzip.decompress(base64.b64decode(data["packed"])))
    assert data["broken"] == 1 and len(shown) == 100
    assert shown[0]["task"]["instruction"].endswith("(7000 more characters)")
    assert len(write_report(run.root).read_bytes()) < 400_000
