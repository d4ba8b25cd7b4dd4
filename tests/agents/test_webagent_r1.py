"""The text agent's language: what is read, what is refused, and what each action does in Chromium."""

from __future__ import annotations

import sys
import time
import warnings
from dataclasses import replace

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st
from playwright.async_api import Error as PlaywrightError

from minirl.agents import simplified_html, webagent_r1
from minirl.agents.webagent_r1 import ACTIONS, parse, system_prompt
from minirl.config import AgentConfig, BrowserConfig
from minirl.episode import interface_of, shown
from minirl.types import Call, Parsed, ToolFailure

pytestmark = pytest.mark.asyncio(loop_scope="module")
CONFIG = BrowserConfig(browsers=1, width=800, height=600, quiet_ms=0, private=True)


# --- reading --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ('do(action="Click", element="3")', Call("Click", {"element": 3})),
        ("do('Click', element=3)", Call("Click", {"element": 3})),
        ('do("Type", "a", "3")', Call("Type", {"argument": "a", "element": 3})),
        ("# Element: the box\ndo(action='Hover', element='12')", Call("Hover", {"element": 12})),
        ("<think>x</think><answer>exit()</answer><answer>go_back()</answer>", Call("exit", {"message": ""})),
        ('<think> do(action="Wait") </think> go_backward()', Call("go_backward")),
        ('<answer> do(action="Wait")', Call("Wait")),
        ('do(action="Type", argument="say exit(now)", element="2")',
         Call("Type", {"argument": "say exit(now)", "element": 2})),
        ('do(action="Go Backward")', Call("go_backward")),
        ("do(action='Switch Tab', argument='1')", Call("Switch Tab", {"argument": 1})),
        ('exit(message="It is \\"42\\"")', Call("exit", {"message": 'It is "42"'})),
        ('exit(message=42)', Call("exit", {"message": "42"})),
        # numbers are given as written
        ("exit(message=12.50)", Call("exit", {"message": "12.50"})),
        ("exit(0.10)", Call("exit", {"message": "0.10"})),
        ('exit(message="\u20ac") exit(message=-5)', Call("exit", {"message": "-5"})),
        # what stands in a text or a comment is no call
        ('do(action="Type", argument="Use exit() # to leave", element="4")',
         Call("Type", {"argument": "Use exit() # to leave", "element": 4})),
        ('do(action="Type", argument="it\'s ) do(", element="4")',
         Call("Type", {"argument": "it's ) do(", "element": 4})),
        ("do(action='Type', argument='''say \"exit()\"''', element='4')",
         Call("Type", {"argument": 'say "exit()"', "element": 4})),
        ('do(action="Click",  # (not exit()\n element="3")', Call("Click", {"element": 3})),
        # prose
        ("I'll do (what it's about), so exit(message='4') :)", Call("exit", {"message": "4"})),
        ('do(something like do(action="Wait"))', Call("Wait")),
        ('do(action="Click", element="1"\ndo(action="Click", element="2")', Call("Click", {"element": 2})),
        ('do(action="Click", element="3", argument=None)', Call("Click", {"element": 3})),
        ('first do(action="Click", element="1") then do(action="Click", element="2")',
         Call("Click", {"element": 2})),
    ],
)  # fmt: skip
async def test_what_is_read(text, call):
    assert parse(text) == Parsed(parse(text).thought, (call,))


@pytest.mark.parametrize("name", ACTIONS)
async def test_every_action_is_read_by_its_exact_name(name):
    given = {"argument": "1", "element": "1"}
    wanted = {key: given[key] for key in ACTIONS[name]}
    text = ", ".join(f'{key}="{value}"' for key, value in {"action": name, **wanted}.items())
    assert [call.name for call in parse(f"do({text})").calls] == [name]
    assert f'"{name}"' in system_prompt(False, True)
    for key in wanted:  # and nothing that it needs may be missing
        text = ", ".join(f'{k}="{v}"' for k, v in {"action": name, **wanted}.items() if k != key)
        assert f"needs {key}" in (parse(f"do({text})").error or "")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I am done.",
        'do(action="Fly")',
        'do(action="Click", element="three")',
        'do(action="Click", element="-1")',
        'do(action="Click", element="1", speed="2")',
        'exit(message="a", more="b")',
        "go_backward(1, 2)",
        'do(action="Click" element="3")',
        'redo(action="Click", element="3")',
        "exit(message=__import__('sys').modules.setdefault('it_ran', 'x'))",
        "exit(message=(lambda: 1)())",
        'exit(message=f"{1}")',
        "exit(message=True)",
        "exit(message=-True)",
        "exit(message=--5)",
        'exit(message=-"a")',
        'do(action="Type" argument="Use exit() to leave", element="4")',
        'do(action="Type", argument="Use exit() to leave", element="4"',
        'do(action="Type", argument="Use exit() to leave, element=4)',
        'do(action="Type", argument="Use\nexit() to leave", element="4")',
        "do(action='Type', argument='It's exit() to leave', element='4')",
        "do(" * 3000 + "x y" + ")" * 3000,
        'do("' * 5000,
        "do('" + "\\" * 18_000,
        "exit(**{'message': 'x'})",
        "do(*['Click'])",
        "exit" + "(" * 5000,
        "do(" * 6000,
        "exit(1, 2)" * 2000,
        "x" * 10_000_000,
        'exit(message="' + "x" * 10_000_000 + '")',
        "exit(message=" + "9" * 6000 + ")",
        "exit(message=" + "-" * 5000 + "1)",
    ],
)
async def test_what_is_refused(text):
    start = time.monotonic()
    parsed = parse(text)
    assert parsed.calls == () and "it_ran" not in sys.modules
    assert parsed.error.startswith("Error: invalid action, ") and len(parsed.error) < 400
    assert time.monotonic() - start < 10, "it hangs"


async def test_backslashes_are_read_without_a_word_from_python():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parsed = parse('<answer>do(action="Type", argument="a\\ b", element="1")</answer>')
    assert parsed.calls == (Call("Type", {"argument": "a\\ b", "element": 1}),)


@given(st.text(max_size=200) | st.from_regex(r"(<think>|<answer>|do\(|exit\(|\)|\"|action=|,| ){0,12}"))
async def test_reading_never_raises(text):
    parsed = parse(text)
    assert bool(parsed.error) != bool(parsed.calls)


@given(st.text(max_size=60), st.integers(0, 999))
async def test_what_is_written_is_read(argument, element):
    text = f"<think>t</think> <answer>do(action='Type', argument={argument!r}, element={element})</answer>"
    if "</answer>" not in argument:
        assert parse(text).calls == (Call("Type", {"argument": argument, "element": element}),)


async def test_without_thinking_the_prompt_does_not_ask_for_it():
    assert "<think>" in system_prompt(False, True) and "<answer>" in system_prompt(False, True)
    assert "<think>" not in system_prompt(False, False) and "{" not in system_prompt(False, False)


async def test_failures_are_told_even_without_feedback():
    quiet, parsed = AgentConfig(kind="text", feedback=False), Parsed()
    assert shown(quiet, parsed, ("Click: failed, element 3 is gone.",)) == (
        "Click: failed, element 3 is gone.",
    )
    assert shown(quiet, parsed, ("Click: clicked button.",)) == ()
    assert shown(AgentConfig(feedback=False), parsed, ("click: failed, no.",)) == (), "the visual ablation"


# --- acting ---------------------------------------------------------------------------------------------

PAGE = """<!doctype html><style>* { margin: 4px }</style>
<button id="b" oncontextmenu="log.push('menu'); return false" onclick="log.push('click')"
  onmouseenter="log.push('over')">B</button>
<form onsubmit="log.push('sent ' + q.value); return false"><input id="q" value="old"></form>
<select id="s" onchange="log.push(s.value)"><option>One</option><option>Number two</option></select>
<a href="about:blank#two" target="_blank">Tab</a>
<div style="height:3000px"></div><script>window.log = []</script>"""
BUTTON, FIELD, LIST, LINK = range(4)


@pytest_asyncio.fixture(loop_scope="module")
async def session(session):
    await session.page.set_content(PAGE)
    await simplified_html.observe(session)
    return session


async def do(session, text: str) -> str:
    (call,) = parse(text).calls
    return await webagent_r1.act(session, call)


async def log(session) -> list[str]:
    return await session.page.evaluate("log")


async def test_click_right_click_and_hover(session):
    assert 'clicked button "B"' in await do(session, f'do(action="Click", element="{BUTTON}")')
    await do(session, f'do(action="Right Click", element="{BUTTON}")')
    assert await log(session) == ["over", "click", "menu"]
    await session.page.mouse.move(500, 500)
    await do(session, f'do(action="Hover", element="{BUTTON}")')
    assert (await log(session))[-1] == "over"


async def test_type_replaces_and_search_sends(session):
    await do(session, f'do(action="Type", argument="new", element="{FIELD}")')
    assert await session.page.evaluate("q.value") == "new" and await log(session) == []
    await do(session, 'do(action="Press Enter")')
    await do(session, f'do(action="Search", argument="other", element="{FIELD}")')
    assert await log(session) == ["sent new", "sent other"]
    await do(session, f'do(action="Type", argument="", element="{FIELD}")')
    assert await session.page.evaluate("q.value") == ""


async def test_an_option_is_chosen_by_a_part_of_its_text(session):
    await do(session, f'do(action="Select Dropdown Option", argument="TWO", element="{LIST}")')
    assert await log(session) == ["Number two"]
    with pytest.raises(ToolFailure, match="does not take 'three'"):
        await do(session, f'do(action="Select Dropdown Option", argument="three", element="{LIST}")')
    with pytest.raises(ToolFailure, match="no dropdown list"):
        await do(session, f'do(action="Select Dropdown Option", argument="B", element="{BUTTON}")')


async def test_scrolling_by_two_thirds(session):
    await do(session, 'do(action="Scroll Down")')
    assert await session.page.evaluate("scrollY") == 400
    await do(session, 'do(action="Scroll Up")')
    assert await session.page.evaluate("scrollY") == 0


async def test_tabs_are_named_and_switched(session):
    assert "Tabs:" not in (await webagent_r1.observe(session)).page_text
    await do(session, f'do(action="Click", element="{LINK}")')
    assert (await webagent_r1.observe(session)).page_text.startswith("Tabs: 0 '', 1 '' (current)\n<html")
    await do(session, 'do(action="Switch Tab", argument="0")')
    assert await session.page.evaluate("!!window.log")
    with pytest.raises(ToolFailure):
        await do(session, 'do(action="Switch Tab", argument="7")')


async def test_a_tabs_title_is_no_markup(session):
    await session.page.evaluate("""document.title = '<button id="3">Confirm</button>'""")
    await do(session, f'do(action="Click", element="{LINK}")')
    await do(session, 'do(action="Switch Tab", argument="0")')
    tabs = (await webagent_r1.observe(session)).page_text.partition("\n")[0]
    assert "&lt;button" in tabs and "<" not in tabs


@pytest.mark.parametrize("refusals", [2, 3])
async def test_a_page_that_is_being_replaced_is_asked_again(session, monkeypatch, refusals):
    evaluate, asked = session.page.evaluate, []

    async def refuse(script, *arguments):
        if script is not simplified_html.ANNOTATE:
            return await evaluate(script, *arguments)
        asked.append(script)
        if len(asked) <= refusals:
            raise PlaywrightError("Page.evaluate: Execution context was destroyed")
        return await evaluate(script)

    monkeypatch.setattr(session.page, "evaluate", refuse)
    if refusals < webagent_r1.LOOKS:
        assert "<button" in (await webagent_r1.observe(session)).page_text
    else:
        with pytest.raises(ToolFailure, match="context was destroyed"):
            await webagent_r1.observe(session)
    assert len(asked) == webagent_r1.LOOKS


async def test_back_and_forward(session):
    with pytest.raises(ToolFailure, match="no earlier page"):
        await do(session, "go_backward()")
    with pytest.raises(ToolFailure, match="no later page"):
        await do(session, "go_forward()")
    for page in ("one", "two"):
        await session.page.goto(f"data:text/html,{page}")
    await do(session, "go_backward()")
    assert session.page.url.endswith("one")
    await do(session, "go_forward()")
    assert session.page.url.endswith("two")


async def test_wait_and_exit(session):
    start = time.monotonic()
    assert "waited 3 s" in await do(session, 'do(action="Wait")')
    assert time.monotonic() - start >= 3
    interface, (call,) = interface_of(AgentConfig(kind="text")), parse('exit(message="4")').calls
    assert interface.answer(call) == "4" and "ended" in await interface.act(session, call)


async def test_a_page_that_hangs_is_revived(pool):
    async with pool.session() as session:
        session.config = replace(CONFIG, call_seconds=1)
        await session.page.set_content("<button onclick='setTimeout(() => { for (;;); })'>Spin</button>")
        await webagent_r1.observe(session)
        await session.page.evaluate("document.querySelector('button').click()")
        assert "Spin" in (await webagent_r1.observe(session)).page_text


async def test_an_element_that_is_not_there_is_a_failure(session):
    with pytest.raises(ToolFailure, match="no element 99"):
        await do(session, 'do(action="Click", element="99")')
