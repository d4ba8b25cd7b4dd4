"""The judge's door, and a policy that a judge rewards although the site knows the truth."""

from dataclasses import replace
from pathlib import Path

import pytest
import shopping
from peers import Idle, start
from workers import Scored, make_worker

import judge as script
from minirl.cli.command_line import check, from_command_line
from minirl.config import JudgeConfig, RewardConfig
from minirl.judges.settings import RECIPES as JUDGE_RECIPES
from minirl.metrics import judge_metrics, rollout_metrics
from minirl.recipes import RECIPES, tiny
from minirl.rollout import Collected, RolloutWorker
from minirl.run_folder import Run
from minirl.types import Parsed, Stop, Task, Trajectory, Verdict

TASK = shopping.tasks(1)[0]
OPEN = replace(TASK, goal={})  # which only a judge can score
BY_JUDGE = replace(tiny(), reward=RewardConfig(by="judge"), judge=JudgeConfig(path="somewhere"))


class Lenient:
    """Says SUCCESS to whatever costs less than three questions, then nothing that could be used."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def __call__(self, trajectory: Trajectory) -> Verdict:
        self.asked.append(trajectory.member)
        return Verdict(True, "Fine.") if len(self.asked) < 3 else Verdict(None, "", "cut off")


@pytest.fixture
def rollouts(monkeypatch):
    """Rollouts whose members end with the episodes that are given."""

    def make(config, judge, *episodes: Trajectory) -> RolloutWorker:
        class Ended:
            def __init__(self, harness: object, task: Task, member: int, *_: object) -> None:
                self.ended = episodes[member]

            async def run(self) -> Trajectory:
                return self.ended

        monkeypatch.setattr("minirl.rollout.Episode", Ended)
        monkeypatch.setattr("workers.make_agent", lambda *_: None)
        benchmark = Scored() if episodes[0].task.goal else Scored(None)
        return make_worker(config, benchmark=benchmark, judge=judge)

    return make


async def test_the_judge_rewards_and_the_site_keeps_its_word(rollouts):
    good, bad = shopping.episode(TASK, 0), shopping.episode(TASK, 1, colour="mauve")
    unread = replace(bad.turns[0], parsed=Parsed(error="Error: no call."))
    episodes = (
        good,  # judged a success, and one
        bad,  # judged a success, and none: what a policy would exploit
        replace(good, member=2, turns=(unread, *good.turns)),  # the rules say 0, and nobody is asked
        replace(good, member=3, stop=Stop.FORMAT_ERROR, success=False),  # -1
        replace(good, member=4),  # no verdict
        replace(good, member=5, stop=Stop.TIMEOUT),  # invalid before
    )
    judge, config = Lenient(), replace(BY_JUDGE, rollout=replace(tiny().rollout, group=6))
    out = await rollouts(config, judge, *episodes).group(TASK, 0, 0, 5)
    assert judge.asked == [0, 1, 4]
    assert [t.success for t in out] == [True, False, True, False, True, True]
    assert [t.reward for t in out[:4]] == [1, 1, 0, -1]
    assert [t.stop for t in out[3:]] == [Stop.FORMAT_ERROR, Stop.JUDGE_ERROR, Stop.TIMEOUT]
    assert out[1].verdict == Verdict(True, "Fine.") and out[1].final_state == bad.final_state

    metrics = rollout_metrics(Collected([], 0, out, 1, 0))
    assert metrics["invalid"] == 2
    assert metrics["success"] == pytest.approx(2 / 4) and metrics["judged_success"] == pytest.approx(2 / 4)
    assert metrics["reward"] == pytest.approx(1 / 4)


async def test_a_judge_is_asked_before_a_failure_is_blamed_on_the_site(rollouts):
    """What the agent found before it met a page that keeps visitors out counts; what it did not find is
    nobody's fault, and leaves the group."""
    found = replace(shopping.episode(TASK, 0), task=OPEN, blocked="it answered 403")
    lost = replace(found, member=1)

    async def says(trajectory: Trajectory) -> Verdict:
        return Verdict(trajectory.member == 0, "So.")

    made = rollouts(replace(BY_JUDGE, rollout=replace(tiny().rollout, group=2)), says, found, lost)
    first, second = await made.group(OPEN, 0, 0, 5)
    assert (first.stop, first.success, first.reward, first.valid) == (Stop.DONE, True, 1.0, True)
    assert (second.stop, second.success, second.reward, second.valid) == (Stop.BLOCKED, False, 0.0, False)
    assert second.verdict == Verdict(False, "So.") and second.error == "blocked: it answered 403"
    assert rollout_metrics(Collected([], 0, [first, second], 1, 0))["stop/blocked"] == 1


async def test_by_default_and_in_evaluations_a_task_with_a_goal_asks_nobody(rollouts):
    """The control is the same judge in a group, above, and an open task."""
    episodes = (shopping.episode(TASK, 0), shopping.episode(TASK, 1, colour="mauve"))
    judge, config = Lenient(), replace(tiny(), rollout=replace(tiny().rollout, group=2))
    out = await rollouts(config, judge, *episodes).group(TASK, 0, 0, 5)
    assert out == list(episodes) and judge.asked == [] and judge_metrics(out) == {}
    assert "judged_success" not in rollout_metrics(Collected([], 0, out, 1, 0))
    made = rollouts(BY_JUDGE, judge, *episodes)
    assert await made.episode(TASK, 1, None, 5) == episodes[1] and judge.asked == []
    made = rollouts(BY_JUDGE, judge, replace(episodes[1], task=OPEN))
    judged = await made.episode(OPEN, 0, None, 5)
    assert judge.asked == [1] and judged.success and judged.reward == 1


async def test_the_gates_of_the_reward_are_not_those_of_an_evaluation(rollouts):
    """An open task, one response that could not be read on the way, no answer: the judge decides whether the
    task was fulfilled; training gives nothing and does not ask."""
    done = shopping.episode(TASK, 0)
    unread = replace(done.turns[0], parsed=Parsed(error="Error: no call."))
    stumbled = replace(done, task=OPEN, success=False, turns=(unread, *done.turns))
    silent = replace(done, task=OPEN, success=False, member=1, answer="")
    config = replace(BY_JUDGE, rollout=replace(tiny().rollout, group=2))
    made = rollouts(config, Lenient(), stumbled, silent)
    trained = await made.group(OPEN, 0, 0, 5)
    assert made.judge.asked == [] and [(t.success, t.reward) for t in trained] == [(False, 0.0)] * 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(made, "policy", lambda *_, **__: None)
        patch.setattr(made, "sampler", Idle())
        evaluated = await made.evaluate([(OPEN, 0), (OPEN, 1)], "eval", 5, lambda done: None)
    assert sorted(made.judge.asked) == [0, 1] and all(t.success for t in evaluated)


@pytest.mark.parametrize(("after", "asked"), [("done", []), ("any", [0])])
async def test_an_evaluated_episode_at_its_turn_limit_is_judged_once_if_any_ending_is_graded(
    rollouts, after, asked
):
    """As AutoWebWorld's at its 15th turn, which has no answer; a group of training asks nobody."""
    limited = replace(shopping.episode(TASK), task=OPEN, success=False, answer="", stop=Stop.MAX_STEPS)
    reward = replace(BY_JUDGE.reward, after=after)
    config = replace(BY_JUDGE, reward=reward, rollout=replace(tiny().rollout, group=2))
    judge = Lenient()
    made = rollouts(config, judge, limited, replace(limited, member=1))
    assert not any(trajectory.success for trajectory in await made.group(OPEN, 0, 0, 5))
    assert judge.asked == []
    evaluated = await made.episode(OPEN, 0, None, 5)
    assert judge.asked == asked
    assert (evaluated.success, evaluated.reward, evaluated.stop) == (bool(asked), len(asked), Stop.MAX_STEPS)


def test_reward_by_judge_needs_a_judge():
    with pytest.raises(ValueError, match="--reward.by judge needs one"):
        check(replace(tiny(), reward=RewardConfig(by="judge")))
    config = from_command_line(["tiny", "--reward.by", "judge", "--judge.path", "x"], "train.py")
    assert (config.reward.by, config.judge.input) == ("judge", "brief")


def test_recipes_of_judges_are_not_those_of_policies():
    assert not RECIPES.keys() & JUDGE_RECIPES
    inputs = {name: check(recipe()).judge.input for name, recipe in JUDGE_RECIPES.items()}
    assert inputs == {"tiny_judge": "brief", "judge_4b": "openwebrl", "judge_8b": "openwebrl"}
    config = JUDGE_RECIPES["judge_8b"]()
    policy = RECIPES["openwebrl_8b"]().sft
    assert config.sft == replace(policy, max_pixels=None), "its policy's, with whole screenshots"
    assert config.model.path == "Qwen/Qwen3-VL-8B-Instruct"
    with pytest.raises(ValueError, match="unknown recipe 'judge_8b'"):
        from_command_line(["judge_8b"], "train.py")


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        ((), "say what to do: label, distil, score"),
        (("label", "tiny"), "unknown recipe 'tiny'; there are tiny-judge, judge-4b, judge-8b"),
        (("label",), "no dump of a policy in --runs ; give the folders of runs"),
        (("distil", "--goals", "0"), "--goals: Input should be greater than 0"),
        (("score",), "trajectories/heldout.jsonl does not exist"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(ended, tmp_path, monkeypatch, argv, told):
    monkeypatch.chdir(tmp_path)
    code, err = ended(script, *argv)
    assert code == 2 and err.startswith("judge.py: ") and err.count("\n") == 1 and told in err, err


def test_labels_are_made_and_unusable_ones_named(ended, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = Run(Path("web"))
    run.save_trajectories("step_00001", [replace(shopping.episode(TASK), stop=Stop.MAX_STEPS)])
    script.run(["label", "--runs", "web"])
    code, err = ended(script, "distil")
    assert code == 2 and "labelled.jsonl does not exist" in err
    run.save_trajectories("step_00001", [shopping.episode(TASK)])
    script.run(["label", "--runs", "web"])
    code, err = ended(script, "distil")
    assert code == 2 and "1 labels on 1 goals are too few to hold some out" in err


@pytest.mark.more
def test_the_script_as_a_person_starts_it(capsys):
    script.run(["--help"])
    assert "python judge.py distil tiny-judge" in capsys.readouterr().out
    done = start("judge.py", "judge")
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
