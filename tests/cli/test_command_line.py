"""The first screens of help: eval.py's and judge.py's, whose settings are more than a run's."""

from __future__ import annotations

import pytest

import judge
from minirl.judges import settings as judges


@pytest.mark.parametrize("script", ["eval", "judge"])
def test_the_first_screen_of_help_has_the_scripts_own_settings(script, eval_script, capsys):
    module, prog, common = {
        "eval": (eval_script, "eval.py tiny", eval_script.COMMON),
        "judge": (judge, "judge.py label tiny_judge", judges.COMMON),
    }[script]
    argv = ["tiny", "--help"] if script == "eval" else ["label", "tiny-judge", "--help"]
    with pytest.raises(SystemExit) as stop:
        module.run(argv)
    said = capsys.readouterr().out
    assert stop.value.code == 0 and said.startswith(f"usage: {prog} [flags]\n")
    for name in common:
        (line,) = [line for line in said.splitlines() if line.split()[:1] == [f"--{name.replace('_', '-')}"]]
        assert len(line.split()) > 2, "a flag without a meaning"
    assert len(said.splitlines()) < 25 and "--help-all" in said
