"""A BrowserGym environment that clicks through a list of points, for benchmarks/browser.py; runs in an
environment of its own, with BrowserGym and the Playwright that it wants.

    PYTHON benchmarks/browsergym_worker.py URL SECONDS POINTS CHROMIUM FOLDER [SLOW_MO PRE_OBSERVATION_DELAY]

Prints `ready`, waits for a line, steps for SECONDS, and prints {"steps": .., "seconds": ..}. Without the last
two arguments everything is as BrowserGym's users get it.
"""

import contextlib
import json
import os
import sys
import time
from pathlib import Path

REVISION = "1117"  # of the Chromium that Playwright 1.44 looks for


def link_chromium(chromium: str, folder: Path) -> None:
    """An environment's chat window is a second browser, which takes no path: it finds a link to ours."""
    link = folder / f"chromium-{REVISION}" / "chrome-linux" / "chrome"
    link.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        link.symlink_to(chromium)
    os.environ["PLAYWRIGHT_BROWSERS_PATH"] = str(folder)


def main() -> None:
    url, seconds, points, chromium, folder, *delays = sys.argv[1:]
    link_chromium(chromium, Path(folder))
    import browsergym.core  # noqa: F401  (registers its environments)
    import gymnasium
    from browsergym.core.action.highlevel import HighLevelActionSet

    settings = {}
    if delays:
        settings = {"slow_mo": int(delays[0]), "pre_observation_delay": float(delays[1])}
    env = gymnasium.make(
        "browsergym/openended",
        task_kwargs={"start_url": url, "goal": "Click."},
        # clicks at coordinates are not among the default actions
        action_mapping=HighLevelActionSet(subsets=["chat", "coord"]).to_python_code,
        **settings,
    )
    env.reset()
    print("ready", flush=True)
    sys.stdin.readline()
    steps = 0
    start = time.perf_counter()
    places = json.loads(points)
    while (now := time.perf_counter()) - start < float(seconds):
        x, y = places[steps % len(places)]
        observation, *_ = env.step(f"mouse_click({x}, {y})")
        # an action that fails does not raise
        assert not observation["last_action_error"], observation["last_action_error"]
        assert observation["screenshot"].shape == (720, 1280, 3) and observation["axtree_object"]["nodes"]
        steps += 1
    print(json.dumps({"steps": steps, "seconds": now - start}), flush=True)
    env.close()


if __name__ == "__main__":
    main()
