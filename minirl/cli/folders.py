"""What a script refuses before anything is opened: two runs that would mix in one folder, the wrong tasks."""

from collections.abc import Sequence

from minirl.checkpoint import checkpoints
from minirl.config import Config, to_json
from minirl.run_folder import Run, differences


def check_folders(config: Config) -> None:
    """ValueError if two runs would mix in one folder, before anything in it is changed."""
    refuse_remote(config)
    refuse_other_settings(config)
    run, saved = Run(config.run_dir), checkpoints(config.run_dir / "checkpoints")
    if config.replay is not None:
        if config.replay.resolve() == run.root.resolve():
            raise ValueError("--replay reads a run's dumps; give the new run another --name")
        if not Run(config.replay).step_labels():
            raise ValueError(f"--replay {config.replay}: no dumped RL steps in its trajectories folder")
        if saved and not run.config().get("replay"):
            raise ValueError(f"{run.root} holds a run that was not a replay; choose another --name")
    elif saved and not config.resume:
        raise ValueError(f"{run.root} holds a run already; go on with --resume, or choose another --name")
    if config.resume and not run.root.exists():
        raise ValueError(f"--resume: there is no run in {run.root}")


def refuse_default_tasks(config: Config, argv: Sequence[str]) -> None:
    """ValueError if a paper's recipe would train, or be measured, on generated shops unasked."""
    given = {word.partition("=")[0] for word in argv}
    for flag in ("--task.train", "--task.heldout"):
        if not (flag in given or config.recipe.startswith("tiny") or config.replay):
            told = f"give {flag} FILE (or shops:0-299, for generated ones)"
            raise ValueError(f"recipe {config.recipe} brings no tasks along: {told}")


def refuse_remote(config: Config) -> None:
    """ValueError if a served model is to be trained."""
    if config.sampler.kind == "remote":
        fix = "use eval.py, or --sft.demos"
        raise ValueError(f"--sampler remote: a served model's weights can't be trained; {fix}")


def refuse_other_settings(config: Config) -> None:
    """ValueError if the run's folder was made with another model, seed, task set or agent: its warm start,
    evaluations and held-out tasks would not be this run's."""
    saved, given = Run(config.run_dir).config(), to_json(config)
    if given["model"]["path"] == "tiny":
        given["model"]["path"] = str((config.replay or config.run_dir) / "model")
    defaults = to_json(Config(recipe=""))  # of settings that are younger than the run
    # with a KL term the warm start is the reference
    sections = ["seed", "task", "model", "agent", "sft", *(["warm_start"] if config.loss.kl else [])]
    new = {name: given[name] for name in sections} | {"eval": {"episodes": config.eval.episodes}}
    old = {name: saved.get(name, defaults[name]) for name in new}
    old |= {name: {**defaults[name], **old[name]} for name in new if isinstance(old[name], dict)}
    for flag, was, now in differences(old, new) if saved else ():
        raise ValueError(f"{config.run_dir} was made with {flag} {was}, not {now}; choose another --name")
