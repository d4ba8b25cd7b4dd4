"""Protocols against the papers' tables."""

from dataclasses import replace
from pathlib import Path

import pytest

from minirl.benchmarks.protocols import JUDGE, PROTOCOLS, apply, protocol_of
from minirl.benchmarks.task_files import load_tasks
from minirl.cli.command_line import check
from minirl.config import Config, JudgeConfig
from minirl.recipes import openwebrl_4b, webagent_r1_3b
from minirl.types import Sampling, Task

FARA = Path(__file__).parents[1] / "data" / "webvoyager" / "fara_595.jsonl"
WITHOUT = protocol_of("webvoyager-without-aborted")
WEBVOYAGER, ONLINE_MIND2WEB, DEEPSHOP, WEBARENA_LITE, *_OTHERS = PROTOCOLS[::2]
AUTOWEBWORLD, AUTOWEBWORLD_MIND2WEB, AUTOWEBWORLD_SITES, SCREENSPOT_V2, SCREENSPOT_PRO = _OTHERS


def test_every_benchmark_has_two_protocols():
    names = [p.name for p in PROTOCOLS]
    benchmarks = ["webvoyager", "online-mind2web", "deepshop", "webarena-lite", "autowebworld"]
    benchmarks += ["autowebworld-mind2web", "autowebworld-sites", "screenspot-v2", "screenspot-pro"]
    assert names == [f"{b}-{kind}" for b in benchmarks for kind in ("official", "without-aborted")]
    assert [protocol_of(name) for name in names] == list(PROTOCOLS)
    with pytest.raises(ValueError, match="no protocol 'webvoyager'; there are webvoyager-official, "):
        protocol_of("webvoyager")


@pytest.mark.parametrize(
    ("protocol", "model", "rubric"),
    [
        (WEBVOYAGER, "gpt-4o", "webvoyager"),
        (ONLINE_MIND2WEB, "o4-mini", "agenttrek"),
        (DEEPSHOP, "gpt-4o", "deepshop"),
    ],
)
def test_openwebrls_table_8(protocol, model, rubric):
    assert (protocol.judge.model, protocol.judge.input) == (model, rubric)
    without = protocol_of(protocol.name.replace("official", "without-aborted"))
    assert protocol.sampling == Sampling(0.6, 0.95, 20) and without.sampling == Sampling(0.0, 1.0, 1)
    judge = without.judge
    assert (judge.model, judge.input) == ("gpt-4.1", "openwebrl")
    for p in (protocol, without):
        assert (p.max_steps, p.response_tokens, p.format_errors) == (30, 4096, None)
        assert (p.browsers, p.request_seconds, p.judge.seconds, p.episode_seconds) == (16, 120, 120, 600)
        assert p.average == "micro"
    assert (protocol.aborted, without.aborted) == ("fail", "leave out")


def test_autowebworld_evaluates_online_mind2web_as_webvoyager():
    """But for the nine sites; figure 4's rates are whole numbers of 164 tasks."""
    names = {"name", "benchmark", "sites", "average"}
    one, other = (
        {name: value for name, value in vars(p).items() if name not in names}
        for p in (AUTOWEBWORLD, AUTOWEBWORLD_MIND2WEB)
    )
    assert one == other and AUTOWEBWORLD_MIND2WEB.benchmark == "online-mind2web"
    for rate in (1.22, 7.32, 7.93, 14.02):
        assert round(100 * round(rate * 1.64) / 164, 2) == rate


def test_autowebworlds_nine_sites_are_those_of_its_table():
    tasks = AUTOWEBWORLD.select(load_tasks(FARA))
    assert len(tasks) == 353
    assert {t.meta["site"] for t in tasks} == set(AUTOWEBWORLD.sites)
    assert (AUTOWEBWORLD.max_steps, AUTOWEBWORLD.average) == (15, "macro")
    assert len(WEBVOYAGER.select(load_tasks(FARA))) == 595
    with pytest.raises(ValueError, match="deepshop-official needs tasks of the benchmark deepshop$"):
        DEEPSHOP.select(tasks)
    with pytest.raises(ValueError, match="needs tasks of the benchmark webvoyager on Apple, "):
        AUTOWEBWORLD.select([Task("x", "y", "http://z/", meta={"benchmark": "webvoyager", "site": "Amazon"})])


@pytest.mark.parametrize(
    ("benchmark", "asked"),
    [("webarena-lite", "gpt-4.1"), ("autowebworld-sites", ""), ("screenspot-v2", ""), ("screenspot-pro", "")],
)
def test_a_program_judges_under_both_protocols(benchmark, asked):
    """Which may ask a model, as WebArena's does."""
    pair = [protocol_of(f"{benchmark}-{kind}") for kind in ("official", "without-aborted")]
    assert [p.judge.input for p in pair] == ["rules"] * 2 and pair[1].judge.model == asked
    tasks = [Task("x", "y", "http://quora.test/", meta={"benchmark": benchmark, "site": "quora"})]
    assert [p.select(tasks) for p in pair] == [tasks] * 2


def test_screenspot_is_greedy_and_pro_the_mean_of_its_kinds():
    """Table 4's overall rates are by samples, table 5's are means of icon and text."""
    for protocol in (SCREENSPOT_V2, SCREENSPOT_PRO):
        assert protocol.sampling == Sampling(0.0, 1.0, 1) and protocol.judge.model == ""
        assert (protocol.max_steps, protocol.response_tokens, protocol.after) == (1, 256, "any")
    assert (SCREENSPOT_V2.average, SCREENSPOT_PRO.average) == ("micro", "kinds")
    samples = {290: 73.45, 211: 50.71, 194: 73.20, 140: 38.57, 234: 63.68, 203: 60.10}  # V2's, by cell
    assert round(sum(n * rate for n, rate in samples.items()) / 1272, 2) == 61.87
    assert abs((8.8 + 46.1) / 2 - 27.5) < 0.051, "604 icons and 977 texts would give 31.9"


def test_rules_name_what_is_aborted_and_what_is_averaged():
    aborted = "timeout, sampler_error, env_error, site_error, blocked, infra_error, judge_error"
    done = "only one that the agent ended with done can succeed."
    assert WEBVOYAGER.rule == f"An aborted episode ({aborted}) is a failure; {done}"
    assert WITHOUT.rule == f"An aborted episode ({aborted}) is left out; {done}"
    assert "only one that was not aborted can succeed" in WEBARENA_LITE.rule
    means = {"macro": "sites", "kinds": "kinds"}
    for p in PROTOCOLS:
        mean = f" The rate is the mean of the rates of all {means.get(p.average)} that have an episode left."
        assert aborted in p.rule and p.rule.endswith(mean if p.average in means else "can succeed.")


# Beside AutoWebWorld's: the turn limit is judged, too
ANY = {"webarena-lite", "screenspot-v2", "screenspot-pro"}


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda p: p.name)
def test_a_protocol_is_applied_to_a_config(protocol):
    """But for sampling and limits the agent stays as it was trained, with two screenshots here."""
    trained = replace(openwebrl_4b().agent, screenshots=2, feedback=False, context_tokens=9000)
    recipe = replace(openwebrl_4b(), agent=trained)
    config = apply(protocol, recipe)
    how, usual = config.eval, protocol.sampling
    assert (how.temperature, how.top_p, how.top_k) == (usual.temperature, usual.top_p, usual.top_k)
    assert (how.max_steps, how.response_tokens) == (protocol.max_steps, protocol.response_tokens)
    assert (config.browser.episodes, config.browser.episode_seconds) == (16, 600)
    assert config.endpoint.seconds == 120
    assert all(getattr(config.judge, name) == getattr(protocol.judge, name) for name in JUDGE)
    assert config.judge.response_tokens >= 16_000 or config.judge.model not in ("o4-mini", "gemini-3-flash")
    of_autowebworld = protocol.name.startswith("autowebworld")
    assert config.agent == replace(trained, format_errors=0 if of_autowebworld else 3)
    can = of_autowebworld or protocol.benchmark in ANY
    assert config.reward.after == protocol.after == ("any" if can else "done")
    check(config)
    before = recipe.browser
    browser = replace(config.browser, episode_seconds=before.episode_seconds, episodes=before.episodes)
    changed = ("agent", "endpoint", "judge", "eval", "reward")
    undone = replace(config, browser=browser, **{name: getattr(recipe, name) for name in changed})
    assert undone == recipe, "the rest is as it was"


def test_where_the_judge_is_served_and_which_model_a_config_names_stay():
    mine = JudgeConfig(url="http://127.0.0.1:1/v1", response_tokens=77, price=(2.0, 0.0))
    judge = apply(DEEPSHOP, Config("test", judge=mine)).judge
    own = ("model", "input", "response_tokens")
    assert replace(judge, **{name: getattr(mine, name) for name in own}) == mine
    for named in (replace(mine, model="mine"), replace(mine, path="folder")):
        judge = apply(DEEPSHOP, Config("test", judge=named)).judge
        assert (judge.model, judge.path) == (named.model, named.path) and judge.input == "deepshop"
    assert apply(WEBARENA_LITE, webagent_r1_3b()).agent.kind == "text"
