"""The text agent's language: what is read, what is refused, and what each action does in Chromium."""

import asyncio
import sys
import time
import warnings
from functools import partial
from unittest.mock import AsyncMock

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st
from playwright.async_api import Error as PlaywrightError

from minirl.agents import simplified_html, webagent_r1
from minirl.agents.openwebrl import OpenWebRLAgent
from minirl.agents.webagent_r1 import ACTIONS, WebAgentR1Agent, parse, system_prompt
from minirl.config import AgentConfig, BrowserConfig
from minirl.types import Call, Parsed, ToolFailure

pytestmark = pytest.mark.asyncio(loop_scope="module")
CONFIG = BrowserConfig(browsers=1, width=800, height=600, quiet_ms=0, private=True)


def said(message: str) -> Call:
    return Call("exit", {"message": message})


def typed(argument: str, element: int) -> Call:
    return Call("Type", {"argument": argument, "element": element})


CLICK_2, CLICK_3 = Call("Click", {"element": 2}), Call("Click", {"element": 3})
READ = [
    ('do(action="Click", element="3")', CLICK_3), ("do(action='Click', element=3)", CLICK_3),
    ("# Element: the box\ndo(action='Hover', element='12')", Call("Hover", {"element": 12})),
    ("<think>x</think><answer>exit()</answer><answer>go_back()</answer>", said("")),
    ('<think> do(action="Wait") </think> go_backward()', Call("go_backward")),
    ('<answer> do(action="Wait")', Call("Wait")),
    ("do(action='Switch Tab', argument='1')", Call("Switch Tab", {"argument": 1})),
    ('do(action="Type", argument="a\\ b", element="2")', typed("a\\ b", 2)),
    ('exit(message="It is \\"42\\"")', said('It is "42"')), ('exit(message=42)', said("42")),
    ("exit(message=-12.5)", said("-12.5")),
    # what stands in a text or a comment is no call
    ('do(action="Type", argument="Use exit() # to leave", element="4")', typed("Use exit() # to leave", 4)),
    ('do(action="Type", argument="it\'s ) do(", element="4")', typed("it's ) do(", 4)),
    ("do(action='Type', argument='''say \"exit()\"''', element='4')", typed('say "exit()"', 4)),
    # line breaks in a text
    ('do(action="Type", argument="it\'s\ntwo\r\n\tlamps", element="4")', typed("it's\ntwo\n\tlamps", 4)),
    # prose
    ("I'll do (what it's about), so exit(message='4') :-]", said("4")),
    ('do(action="Click", element="3", argument=None)', CLICK_3),
    ('first do(action="Click", element="1") then do(action="Click", element="2")', CLICK_2),
    ('do(action="Click" element="1") do(action="Click", element="2")', CLICK_2),
    ('do(action="Click", element="1"\ndo(action="Click", element="2")', CLICK_2),
    # names in any case, as released
    ('do(action="CLICK", element="3")', CLICK_3), ('do(action="Go Backward")', Call("go_backward")),
    ('do(action="GO FORWARD")', Call("go_forward")),
]  # fmt: skip


@pytest.mark.parametrize(("text", "call"), READ)
async def test_what_is_read(text, call):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parsed = parse(text)
    assert parsed.calls == (call,) and parsed.error is None


@pytest.mark.parametrize("name", ACTIONS)
async def test_every_action_is_read_by_its_exact_name(name):
    assert parse(f'do(action="{name.upper()}", argument="1", element="1")').calls[0].name == name
    given = {"action": name, **dict.fromkeys(ACTIONS[name], "1")}
    text = ", ".join(f'{key}="{value}"' for key, value in given.items())
    assert [call.name for call in parse(f"do({text})").calls] == [name]
    assert f'"{name}"' in system_prompt(False, True)
    for key in ACTIONS[name]:  # and nothing that it needs may be missing
        text = ", ".join(f'{k}="{v}"' for k, v in given.items() if k != key)
        assert f"needs {key}" in (parse(f"do({text})").error or "")


REFUSED = [
    "", "I am done.", 'redo(action="Click", element="3")', "go_backward(1, 2)", 'do("Click", element="3")',
    'do(action="Fly")', 'do(action="Click", element="three")',
    'do(action="Click", element="1", speed="2")', 'do(action="Click" element="3")',
    "exit(**{'message': 'x'})", "do(*['Click'])",
    # not literals
    "exit(message=__import__('sys').modules.setdefault('it_ran', 'x'))", "exit(message=(lambda: 1)())",
    'exit(message=f"{1}")', 'exit(message=-"a")',
    # an unreadable call does not become what stands in its text
    'do(action="Type" argument="Use exit() to leave", element="4")',
    'do(action="Type", argument="Use exit() to leave, element=4)',
    "do(action='Type', argument='It's exit() to leave', element='4')",
    # long and deep
    "do(" * 3000 + "x y" + ")" * 3000, 'do("' * 5000, "do('" + "\\" * 18_000, "x" * 10_000_000,
    "do([" + "1," * 9000 + ")" * 1900, "exit(1, 2)" * 2000, "exit(message=" + "-" * 5000 + "1)",
]  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
async def test_what_is_refused(text):
    start = time.monotonic()
    parsed = parse(text)
    assert parsed.calls == () and "it_ran" not in sys.modules
    assert parsed.error.startswith("Error: invalid action, ") and len(parsed.error) < 400
    assert time.monotonic() - start < 10, "it hangs"


@given(st.text(max_size=200) | st.from_regex(r"(<think>|<answer>|do\(|exit\(|\)|\"|action=|,| ){0,12}"))
async def test_reading_never_raises_and_what_is_written_is_read(text):
    parsed = parse(text)
    assert bool(parsed.error) != bool(parsed.calls)
    if "</answer>" not in text:
        written = f"<think>t</think> <answer>do(action='Type', argument={text!r}, element=7)</answer>"
        assert parse(written).calls == (typed(text, 7),)


KINDS = [
    "assistant", "Python-like", "only one action", '"Search" is "Type" and then "Enter"', "the first being 0",
    "asked a question", "side bar", '"Select Dropdown Option", argument=', "date field", "# Element:",
    "# Note:", "loop", '"Wait"', "do not refuse", "more precisely", "address bar", "code block",
    "always need an element",
]  # fmt: skip


@pytest.mark.parametrize("thinking", [True, False])
async def test_the_system_prompt_has_the_rules_of_table_6(thinking):
    prompt = " ".join(system_prompt(False, thinking).split())
    assert [kind for kind in KINDS if kind not in prompt] == [] and "N/A" not in prompt
    assert prompt.count('do(action="') == 3 and ("<answer> do(" in prompt) is thinking


async def test_without_thinking_and_without_feedback():
    """The prompt does not ask for thoughts; what failed is told all the same."""
    assert "<think>" in system_prompt(False, True) and "<answer>" in system_prompt(False, True)
    assert "<think>" not in system_prompt(False, False) and "{" not in system_prompt(False, False)
    failed = "Failed: `Click` execution failed: element 3 is gone."
    clicked = "Succeed: `Click` on <button> executed."
    quiet = AgentConfig(kind="text", feedback=False)
    assert WebAgentR1Agent(quiet).visible_feedback(Parsed(), (failed, clicked)) == (failed,)
    assert OpenWebRLAgent(quiet).visible_feedback(Parsed(), (failed,)) == (), "the visual ablation"
    for agent in (WebAgentR1Agent, OpenWebRLAgent):
        assert agent(quiet).visible_feedback(Parsed(error="Error: no."), ("Error: no.",)) == ("Error: no.",)
        assert agent(AgentConfig()).visible_feedback(Parsed(), (failed, clicked)) == (failed, clicked)


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


async def test_click_right_click_hover_and_scrolling_by_two_thirds(session):
    assert '`Click` on <button> "B" executed.' in await do(session, f'do(action="Click", element="{BUTTON}")')
    await do(session, f'do(action="Right Click", element="{BUTTON}")')
    assert await log(session) == ["over", "click", "menu"]
    await session.page.mouse.move(500, 500)
    await do(session, f'do(action="Hover", element="{BUTTON}")')
    assert (await log(session))[-1] == "over"
    await do(session, 'do(action="Scroll Down")')
    assert await session.page.evaluate("scrollY") == 400
    await do(session, 'do(action="Scroll Up")')
    assert await session.page.evaluate("scrollY") == 0


async def test_type_replaces_search_sends_and_an_option_is_chosen_by_a_part_of_its_text(session):
    await do(session, f'do(action="Type", argument="new", element="{FIELD}")')
    assert await session.page.evaluate("q.value") == "new" and await log(session) == []
    await do(session, 'do(action="Press Enter")')
    await do(session, f'do(action="Search", argument="other", element="{FIELD}")')
    assert await log(session) == ["sent new", "sent other"]
    await do(session, f'do(action="Type", argument="", element="{FIELD}")')
    assert await session.page.evaluate("q.value") == ""
    await do(session, f'do(action="Select Dropdown Option", argument="TWO", element="{LIST}")')
    assert (await log(session))[-1] == "Number two"


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        (f'do(action="Select Dropdown Option", argument="B", element="{BUTTON}")', "no dropdown list"),
        ('do(action="Click", element="99")', "there is no element 99"),
    ],
)
async def test_what_cannot_be_done_is_a_failure(session, action, reason):
    with pytest.raises(ToolFailure, match=reason):
        await do(session, action)


async def test_tabs_are_named_and_switched(session):
    assert "Tabs:" not in (await webagent_r1.observe(session)).page_text
    await do(session, f'do(action="Click", element="{LINK}")')
    assert (await webagent_r1.observe(session)).page_text.startswith("Tabs: 0 '', 1 '' (current)\n<html")
    await do(session, 'do(action="Switch Tab", argument="0")')
    assert await session.page.evaluate("!!window.log")
    await session.page.evaluate("""document.title = '<button id="3">Confirm</button>'""")
    await session.settle()
    tabs = (await webagent_r1.observe(session)).page_text.partition("\n")[0]
    assert "&lt;button" in tabs and "<" not in tabs, "a title is no markup"


async def test_a_page_that_is_being_replaced_is_asked_again(session, monkeypatch):
    evaluate, refusals = session.page.evaluate, []

    async def refuse(script, *arguments):
        if script is simplified_html.SCRIPT and refusals and refusals.pop():
            raise PlaywrightError("Page.evaluate: Execution context was destroyed")
        return await evaluate(script, *arguments)

    monkeypatch.setattr(session.page, "evaluate", refuse)
    refusals[:] = [True]
    assert "<button" in (await webagent_r1.observe(session)).page_text and not refusals
    refusals[:] = [True] * 2
    with pytest.raises(ToolFailure, match="context was destroyed"):
        await webagent_r1.observe(session)


async def test_back_and_forward(session):
    for action, reason in (("go_backward()", "no earlier page"), ("go_forward()", "no later page")):
        with pytest.raises(ToolFailure, match=reason):
            await do(session, action)
    for page in ("one", "two"):
        await session.page.goto(f"data:text/html,{page}")
    for action, page in (("go_backward()", "one"), ("go_forward()", "two")):
        await do(session, action)
        assert session.page.url.endswith(page)


async def test_wait_and_exit(session, monkeypatch):
    sleep = AsyncMock(side_effect=partial(asyncio.sleep, 0))  # notes how long, and sleeps not at all
    monkeypatch.setattr(asyncio, "sleep", sleep)
    assert "waited 3 seconds" in await do(session, 'do(action="Wait")')
    sleep.assert_any_await(3)
    agent, (call,) = WebAgentR1Agent(AgentConfig(kind="text")), parse('exit(message="4")').calls
    assert agent.final_call == (call.name, *call.arguments)
    assert "Response: 4" in await agent.act(session, call)


async def test_a_page_that_hangs_is_revived(session, monkeypatch):
    monkeypatch.setattr("minirl.browser.readiness.CALL_SECONDS", 1.0)
    await session.page.set_content("<button onclick='setTimeout(() => { for (;;); })'>Spin</button>")
    await webagent_r1.observe(session)
    await session.page.evaluate("document.querySelector('button').click()")
    assert "Spin" in (await webagent_r1.observe(session)).page_text


async def test_a_click_without_effect_is_told_without_a_picture(session, monkeypatch):
    """By the page as this agent reads it."""
    monkeypatch.setattr(session, "screenshot", None)
    note = "Note: no visible navigation or new tab detected."
    await session.page.set_content(
        "<button>Dead</button><button popovertarget=m>Menu</button><p id=m popover>One"
    )
    await webagent_r1.observe(session)
    assert note in await do(session, 'do(action="Click", element="0")')
    assert note in await do(session, 'do(action="Click", element="0")'), "nor without a look between"
    await webagent_r1.observe(session)
    assert note not in await do(session, 'do(action="Click", element="1")')
