"""What is printed, here as away from a terminal."""

import re

import pytest

from minirl.cli.command_line import run_main
from minirl.console import CONSOLE, print_table, printable, progress, say


@pytest.fixture(autouse=True)
def wide(monkeypatch) -> None:
    monkeypatch.setattr(CONSOLE, "_width", 200)


def test_say_prints_brackets_as_they_are_and_long_lines_whole(capsys):
    line = "[bold] scores :tada: [1, 2] [/nothing] " + "x" * 200
    say(line)
    assert capsys.readouterr().out == line + "\n"


# Clears the screen, sets the clipboard, does so in one character, overwrites, turns a line's direction, ends
# half-way through a character, or looks like markup.
HOSTILE = ["\x1b[2J\x1b[H", "\x1b]52;c;cm0gLXJmIH4K\x1b\\", "\x9b2J\x9d0;mine\x9c", "over\rby this", "a\x08b"]
HOSTILE += ["\u202etxt.exe\u2066", "half a \ud83d", "[/x] [red]a[/red] [link=http://x.test]b"]


@pytest.mark.parametrize("text", HOSTILE)
def test_what_others_say_can_not_give_orders_to_the_terminal(capsys, text):
    say(f"said {text}")
    print_table([text, "[/y]"], [[text, f"{text} 2"]], title="[/t]")
    with progress(f"phase {text}", total=4) as meter:
        meter.advance(4, note=text)

    def mistaken(argv: list[str]) -> None:
        raise ValueError(text)

    with pytest.raises(SystemExit):
        run_main(mistaken)
    shown = "".join(capsys.readouterr())
    assert not set(shown) & {chr(n) for n in (*range(10), *range(11, 32), *range(0x7F, 0xA0), 0x202E, 0x2066)}
    assert shown.count(printable(text)) == 7 and len(printable(text)) == len(text)
    shown.encode()


def test_progress_is_a_plain_line_at_the_end(capsys):
    with progress("collecting", total=4) as meter:
        meter.advance(3, note="success 0.5")
        meter.reach(4)
        assert capsys.readouterr().out == ""
    assert re.fullmatch(r"collecting ━* 4/4 0:00:0\d 0:00:0\d success 0.5 *\n", capsys.readouterr().out)
