"""A local judge: labelled trajectories, a model that learns from them, and how far it can be trusted.

    python judge.py label  tiny-judge --runs runs/tiny          what the site itself says of each episode
    python judge.py label  judge-8b --runs runs/web --judge.url URL --judge.model NAME
    python judge.py distil tiny-judge                           a model learns reasons and verdicts
    python judge.py score  tiny-judge                           how far it agrees on goals that were held out
    python judge.py score  tiny-judge --judge.path FOLDER       another judge on the same, or --judge.model
    python judge.py score  judge-8b --name agent_reward_bench --judge.path FOLDER   on examples/
    python judge.py distil tiny-judge --name other --labelled runs/tiny_judge      with another run's labels

    python train.py tiny --reward.by judge --judge.path runs/tiny_judge/checkpoints/judge

OpenWebRL, sections 4.3 and 5.3.
"""

from collections.abc import Sequence
from functools import partial

from minirl.cli.command_line import check, read_flags, recipe_name, run_async, run_main
from minirl.console import CONSOLE
from minirl.judges.settings import RECIPES
from minirl.worlds.teacher import world_teacher

COMMANDS = ("label", "distil", "score")


def run(argv: Sequence[str]) -> None:
    if argv and argv[0] in ("-h", "--help"):
        return print(__doc__)
    if not argv or argv[0] not in COMMANDS:
        raise ValueError(f"say what to do: {', '.join(COMMANDS)}; then a recipe, {', '.join(RECIPES)}")
    recipe, flags = recipe_name(argv[1:], RECIPES)
    config = check(read_flags(RECIPES[recipe](), flags, f"judge.py {argv[0]} {recipe}", __doc__))

    # torch: --help and mistakes need not wait for it
    from transformers.utils.logging import disable_progress_bar

    from minirl.distributed import open_ranks
    from minirl.judges import distill, labels

    label = partial(labels.label_dumps, world_teacher=world_teacher)
    work = {"label": label, "distil": distill.distil, "score": distill.score_judge}[argv[0]]
    with open_ranks() as ranks:
        if ranks.world_size > 1 and argv[0] != "distil":
            raise ValueError(f"judge.py {argv[0]} runs in one process, without torchrun")
        CONSOLE.quiet = not ranks.is_main
        disable_progress_bar()  # transformers' own, which is drawn even where there is no terminal
        run_async(work(config, ranks))


if __name__ == "__main__":
    run_main(run)
