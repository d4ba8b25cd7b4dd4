"""The scripts of benchmarks/ that train, from which the figures of docs/results.md come: each runs to its end
in small."""

import pytest
from peers import last_line

from minirl.run_folder import Run

# a script starts up to twenty processes, one after another
pytestmark = [pytest.mark.more, pytest.mark.timeout(1200)]
REWARD = "async def reward(task, page, answer):\n    return 1.0\n"
SMALL = (
    "--steps 1 --rollout.groups 2 --rollout.group 2 --rollout.no-dynamic --rollout.max-steps 2 "
    "--eval.episodes 2 --sft.max-steps 2 --sft.held-back 0 --task.demo-goals 4"
)


def test_learning_with_its_controls_and_baselines_and_a_stale_sampler(tmp_path):
    """Every episode succeeds, by a reward of one's own, so that filtered cloning has something to clone."""
    (tmp_path / "reward.py").write_text(REWARD)
    flags = f"{SMALL} --task.reward reward.py:reward --reward.after any --reward.format-error 0"
    result = last_line("learning.py", "--ranks", "1", "--baselines", f"--flags={flags}", folder=tmp_path)
    methods = ("rl", "control", "cloned")
    assert [result[name] for name in methods] == [[1], [1], [1]]
    assert (result["filtered-bc"], result["awr"]) == (1, 1)
    assert result["episodes"] == {"rl": 4, "filtered-bc": 4, "awr": 4}
    folders = sorted((tmp_path / "runs" / "learning" / "tiny").iterdir())
    names = [folder.name.partition("-steps")[0] for folder in folders]
    assert names == ["seed0", "seed0_awr", "seed0_cloned", "seed0_control", "seed0_filtered-bc"]
    assert Run(folders[1]).config()["loss"]["method"] == "awr"
    drifts = last_line("stale.py", str(folders[0]), "--passes", "2", folder=tmp_path)
    assert len(drifts) == 5 and all(row["passes"][0] < 1e-3 for row in drifts.values())


def test_the_seconds_of_a_run_by_phase_and_spender(tmp_path):
    result = last_line("seconds.py", "--ranks", "1", "--steps", "1", f"--flags={SMALL}", folder=tmp_path)
    assert {"cloning", "episodes", "updates"} <= set(result["wall"])
    assert result["processor"]["episodes"]["Chromium"] > 0
    assert result["limit"] >= sum(result["wall"].values()) > 0


def test_a_cell_of_the_ablations_and_the_others_absent(tmp_path):
    flags = ["--only", "without reasoning", "--budget-minutes", "0.1", "--ranks", "1", f"--flags={SMALL}"]
    (figures,) = last_line("ablations.py", *flags, folder=tmp_path).values()
    assert figures[0]["n"] == 2 and figures[1] is None
    (folder,) = (tmp_path / "runs" / "learning" / "tiny").iterdir()
    assert not Run(folder).config()["agent"]["reasoning"]


def test_variants_with_thoughts_of_a_scripted_endpoint(tmp_path):
    rows = last_line("variants.py", "--variants", "R1", "CoT", f"--flags={SMALL}", folder=tmp_path)
    assert list(rows) == ["R1", "CoT"] and list(rows["R1"]) == ["before", "after"]
    assert list(rows["R1"]["after"]["within"]) == ["5", "8", "10", "20", "30"]
    assert rows["CoT"]["after"]["turns"] > 0
    folders = (tmp_path / "runs" / "learning" / "tiny-text").iterdir()
    thoughtful = next(folder for folder in folders if (folder / "trajectories/demos_thoughts.jsonl").exists())
    for trajectory in Run(thoughtful).load_trajectories("demos_thoughts"):
        assert all("# Element: " in turn.text for turn in trajectory.turns)


def test_a_variant_that_finds_no_group_to_learn_from_has_only_been_cloned(tmp_path):
    (tmp_path / "reward.py").write_text(REWARD)
    dynamic = SMALL.replace("--rollout.no-dynamic ", "")
    flags = f"--flags={dynamic} --task.reward reward.py:reward --reward.after any --reward.format-error 0"
    rows = last_line("variants.py", "--variants", "R1, no thoughts", flags, folder=tmp_path)
    assert list(rows["R1, no thoughts"]) == ["before"]


def test_recorded_steps_with_some_for_grounding(tmp_path):
    sizes = ["--sizes", "8", "--cells", "grounding", "--no-online"]
    small = ["--sites", "10", "--orders", "4", "--updates", "2", "--episodes", "2"]
    flags = "--flags=--rollout.group 2 --agent.response-tokens 8"
    rows = last_line("steps.py", *sizes, *small, flags, folder=tmp_path)
    assert set(rows["grounding 8"]) == {"before", "after", "first_step", "last_step"}
    assert set(rows["grounding 8"]["last_step"]) >= {"reward", "reward/coordinate"}


def test_judges_that_have_hardly_been_taught(tmp_path):
    """The policy clones for as long as it takes to end some episodes, since a judge is taught by these."""
    flags = "--flags=--steps 1 --rollout.groups 4 --rollout.group 4 --rollout.no-dynamic --eval.episodes 4"
    flags += " --sft.max-steps 30 --sft.held-back 0 --task.demo-goals 50"
    hardly = ["--ignorant", "1", "--distil-flags=--sft.max-steps 2"]
    result = last_line("judges.py", *hardly, flags, folder=tmp_path)
    assert set(result["agreement"]) == {"distilled", "ignorant", "permuted"}
    assert set(result["after_rl"]) == {"truth", "distilled", "ignorant"}
