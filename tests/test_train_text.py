"""The front doors for the text agent: one step of training, and success within fewer turns."""

import pytest
from test_train import small

import train as script
from minirl.run_folder import Run


@pytest.mark.more
def test_the_text_agent_is_trained_and_evaluated_by_the_same_doors(tmp_path, eval_script, capsys):
    """One step of tiny-text, thoughts included; then its success within two and within four turns."""
    script.run(["tiny-text", *small(tmp_path / "tiny_text", "--steps", "1", "--sft.batch", "4")[1:]])
    run = Run(tmp_path / "tiny_text")
    (row,) = run.metrics()
    assert row["turns"] > 0 and row["ratio_mean"] == pytest.approx(1, abs=0.01)
    (demo, *_) = run.load_trajectories("demos")
    assert [turn.parsed.calls[0].name for turn in demo.turns][-1] == "exit"
    assert all(turn.page_text.startswith("<html") and not turn.images for turn in demo.turns)
    assert all("<think> # Element:" in turn.text for turn in demo.turns)
    flags = ["--success-within", "4", "2", "--limit", "3"]
    eval_script.run(["tiny-text", "--name", str(tmp_path / "tiny_text"), *flags])
    said = capsys.readouterr().out
    cells = [line.split("│")[1].strip() for line in said.splitlines() if line.count("│") > 3]
    assert cells.index("2") < cells.index("4"), said  # success within 2 turns, then within 4
