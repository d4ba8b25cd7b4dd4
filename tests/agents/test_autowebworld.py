"""AutoWebWorld's agent: what is read, in whose pixels, and what each action does in Chromium."""

import io
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from recorded import qwen_preprocessor, save_qwen2_5_vl

from minirl.agents.autowebworld import ACTIONS, AutoWebWorldAgent, action_of, parse
from minirl.config import AgentConfig, BrowserConfig, Config, ModelConfig, SamplerConfig
from minirl.context import ids_with_pictures
from minirl.experiment import make_agent
from minirl.model import encode, load_model, padded_inputs
from minirl.types import Call, ToolFailure

pytestmark = pytest.mark.asyncio(loop_scope="module")
CONFIG = BrowserConfig(browsers=1, width=320, height=180, quiet_ms=0, private=True)
PAGE = """<body style="margin:0">
<style>* {position: absolute} #b {left: 250px; top: 120px} #r {top: 60px}</style>
<button id=b style="width:20px;height:20px" onclick="document.title += '.click'"
 onmouseover="document.title += '.hover'"></button>
<form onsubmit="document.title += '.enter'; return false"><input id=i autofocus></form>
<input id=r type=range min=0 max=10 value=0 style="width:200px;margin:0">
<div style="height:2000px;width:1px"></div>"""


@pytest.fixture(scope="module")
def folder(tiny_folder, preprocessor, tmp_path_factory):
    return save_qwen2_5_vl(tmp_path_factory.mktemp("qwen") / "model", tiny_folder, preprocessor)


@pytest.fixture(scope="module")
def agent(folder) -> AutoWebWorldAgent:
    """One whose model sees 320 x 180 as 196 x 112: 0.6125 as wide, and 0.6222 as high."""
    config = Config("", agent=AgentConfig("autowebworld"))
    return make_agent(config, qwen_preprocessor(folder, 28 * 28 * 30))


@pytest.mark.parametrize(
    ("said", "calls"),
    [
        ("click(start_box='<|box_start|>(10,20)<|box_end|>')", [Call("click", {"coordinate": [10, 20]})]),
        ("click(point='<point>10 20</point>')", [Call("click", {"coordinate": [10, 20]})]),
        ("click(start_box='(10,20,30,41)')", [Call("click", {"coordinate": [20, 30.5]})]),
        ("click(start_box='(412.5,96.25)')", [Call("click", {"coordinate": [412.5, 96.25]})]),
        ("click(start_box='(-5,96)')", [Call("click", {"coordinate": [-5, 96]})]),
        ("type(content='Two lamps\nOne chair')", [Call("type_text", {"text": "Two lamps\nOne chair"})]),
        ("drag(start_box='(1,2)', end_box='(3,4)')", [Call("drag", {"from": [1, 2], "to": [3, 4]})]),
        ("type(content='it\\'s (a) b')", [Call("type_text", {"text": "it's (a) b"})]),
        ("type(content='tea\\n')", [Call("type_text", {"text": "tea"}), Call("press_enter")]),
        ("type(content='\\n')", [Call("press_enter")]),
        ("{'action': 'answer', 'text': '42'}", [Call("answer", {"text": "42"})]),  # ours, without its tags
        ("type_text(text='tea')", [Call("type_text", {"text": "tea"})]),
        ("hotkey(key='ctrl a')", [Call("hotkey", {"value": "ctrl + a"})]),
        ("scroll(start_box='(1,2)', direction='down')", [Call("scroll", {"value": "down"})]),
        ("wait()", [Call("wait")]),
        ("finished()", [Call("answer", {"text": ""})]),
        ("finished(content='It is 4.')\n\nwait()", [Call("answer", {"text": "It is 4."})]),
    ],
)
async def test_what_ui_tars_says_is_read(said, calls):
    parsed = parse(f"Thought: I go on.\nAction: {said}")
    assert (parsed.thought, parsed.calls, parsed.error) == ("I go on.", tuple(calls), None)
    assert parse(f"Action: {said}").calls == tuple(calls)


@pytest.mark.parametrize(
    ("action", "call"),
    [
        ("{'action': 'click', 'coordinate': [1, 2.5]}", Call("click", {"coordinate": [1, 2.5]})),
        ("{'action': 'hover', 'coordinate': [3, 4]}", Call("hover", {"coordinate": [3, 4]})),
        ("{'action': 'drag', 'from': [1, 2], 'to': [3, 4]}", Call("drag", {"from": [1, 2], "to": [3, 4]})),
        ("{'action': 'type_text', 'text': 'a, {b}: [c]'}", Call("type_text", {"text": "a, {b}: [c]"})),
        ("{'action': 'press_enter'}", Call("press_enter")),
        ("{'action': 'scroll', 'value': up}", Call("scroll", {"value": "up"})),
        ("{'action': 'hotkey', 'value': 'Control + A'}", Call("hotkey", {"value": "Control + A"})),
        ("{'action': 'wait', 'time': 3}", Call("wait")),
        ("{'action': 'answer', 'text': 42}", Call("answer", {"text": "42"})),
        ('{"action": "press_enter"}', Call("press_enter")),  # JSON
        ("{'action': 'type_text',\n 'text': 'Two\n\tlamps'}", Call("type_text", {"text": "Two\n\tlamps"})),
        ('{"action": "type_text", "text": "it\'s\nso"}', Call("type_text", {"text": "it's\nso"})),
    ],
)
async def test_the_ten_forms_are_read(action, call):
    parsed = parse(f"<think>so <action> then</think>\n<action>{action}</action><action>no</action>")
    assert (parsed.thought, parsed.calls, parsed.error) == ("so <action> then", (call,), None)
    assert parse(f"<action>{action}</action>").calls == (call,), "the thought is the reward's affair"


@pytest.mark.parametrize(
    "said",
    [
        "<think>so</think>", "<action>{'action': 'wait'}", "<action>wait</action>", "<action>{}</action>",
        "<action>{'action': 'fly'}</action>", "<action>{'action': ['click']}</action>",
        "<action>{'action': 'click'}</action>", "<action>{'action': 'click', 'coordinate': [1]}</action>",
        "<action>{'action': 'type_text', 'text': open('x')}</action>",
        "<action>{'action': 'type_text', 'text': ['a']}</action>",
        "<action>{'action': 'click', 'coordinate': [0.52, 0.33]}</action>",
        f"<action>{{'action': 'click', 'coordinate': [0x{'f' * 3700}, 5]}}</action>",  # can't be written down
        "Action: click(start_box='(0.4,0.9)')",
        f"<action>{'(' * 9999}</action>", f"<action>{'[' * 99}{']' * 99}</action>", "<action>\0</action>",
        "Action: left_double(start_box='(1,2)')", "Action: click()", "Action: click(start_box='(1)')",
        "Action: type(content=open('x'))", "Action: __import__('os').system('x')",
        "Action: click(**{'start_box': '(1,2)'})", "Action: wait(", "Action: {}", "Action: {'name': 'click'}",
    ],
)  # fmt: skip
async def test_what_cannot_be_read_is_told(said):
    parsed = parse(said)
    assert parsed.calls == () and parsed.error.startswith("Error: invalid action, ")


@given(st.text(max_size=80))
async def test_reading_never_raises(text):
    wrapped = [f"<think>{text}</think><action>{{'action': {text}}}</action>", f"Action: click({text})"]
    for response in (text, *wrapped, f"Thought: {text}Action: type(content={text!r})"):
        parsed = parse(response)
        assert bool(parsed.calls) != bool(parsed.error)


@pytest.mark.parametrize("max_pixels", [None, 28 * 28 * 30, 28 * 28 * 200])
async def test_the_size_is_that_of_the_picture_which_the_model_sees(folder, png, max_pixels):
    images = qwen_preprocessor(folder, max_pixels).images
    for size in ((320, 180), (96, 64), (1280, 720), (64, 320)):
        _, (_, rows, columns) = images.prepare(png(*size))
        assert images.resized(*size) == (14 * columns, 14 * rows)
    assert qwen_preprocessor(folder).images.resized(1280, 720) == (1288, 728)


async def test_points_are_mapped_by_a_factor_for_each_axis(agent):
    assert agent.resized(320, 180) == (196, 112)
    click = agent.tool_call(Call("click", {"coordinate": [49, 84]}), 320, 180)
    assert click == Call("click", {"point_2d": [250, 750]})
    drag = agent.tool_call(Call("drag", {"from": [0, 0], "to": [196, 56]}), 320, 180)
    assert drag == Call("drag", {"start_point_2d": [0, 0], "end_point_2d": [1000, 500]})
    for beside in ([197, 3], [3, -1], [float("nan"), 3]):
        with pytest.raises(ToolFailure, match=r"the picture ends at \[196, 112\]"):
            agent.tool_call(Call("hover", {"coordinate": beside}), 320, 180)
    # what is said of recorded pixels leads back to them
    said = agent.say("so", {"action": "click", "coordinate": [260, 130]}, (320, 180))
    assert said == "<think>so</think><action>{'action': 'click', 'coordinate': [159, 81]}</action>"
    point = agent.tool_call(parse(said).calls[0], 320, 180).arguments["point_2d"]
    assert [point[0] * 0.32, point[1] * 0.18] == pytest.approx([260, 130], abs=1)


@pytest.mark.parametrize(
    ("kind", "points", "expected"),
    [
        ("remote", "picture", [500, 500]),
        ("remote", "processor", [496.894, 494.505]),
        ("auto", "picture", [496.894, 494.505]),  # our own model sees 1288 x 728
    ],
)
async def test_a_served_models_points_are_of_the_picture_that_it_was_sent(folder, kind, points, expected):
    config = Config("", agent=AgentConfig("autowebworld"), sampler=SamplerConfig(kind, points=points))
    agent = make_agent(config, qwen_preprocessor(folder))
    call = agent.tool_call(Call("click", {"coordinate": [640, 360]}), 1280, 720)
    assert call.arguments["point_2d"] == pytest.approx(expected, abs=0.001)
    said = agent.say("so", {"action": "click", "coordinate": [640, 360]}, (1280, 720))
    point = agent.tool_call(parse(said).calls[0], 1280, 720).arguments["point_2d"]
    assert point == pytest.approx([500, 500], abs=0.5), "a recorded step is told in the same pixels"


async def test_a_random_qwen2_5_vl_is_loaded_and_sees_the_picture(folder, png):
    config = ModelConfig(path=str(folder))
    model, preprocessor = load_model(config, torch.device("cpu")).eval(), qwen_preprocessor(folder)
    assert type(model).__name__ == "Qwen2_5_VLForConditionalGeneration" and not preprocessor.chat.opens_think
    logits = []
    for seed in (0, 1):
        picture = png(96, 64, seed)
        ids = (*ids_with_pictures(["see", picture], preprocessor), 40)
        inputs = padded_inputs([encode(ids, [picture], preprocessor)], preprocessor, torch.device("cpu"))
        with torch.no_grad():
            logits.append(model(**inputs).logits[0, -1])
    assert not torch.equal(*logits)


@pytest.mark.parametrize("kind", ["autowebworld", "visual"])
async def test_a_model_that_cannot_see_is_refused(preprocessor, kind):
    with pytest.raises(ValueError, match="can't see; use a vision-language model"):
        make_agent(Config("", agent=AgentConfig(kind)), replace(preprocessor, images=None))


async def test_each_action_does_in_the_browser_what_it_says(agent, session, monkeypatch):
    """The button is 20 pixels wide and high: with the other axis's factor, or none, a click misses it."""
    page = session.page
    await page.set_content(PAGE)
    seen = await agent.observe(session)
    assert Image.open(io.BytesIO(seen.image)).size == (320, 180) and seen.text == ""

    async def do(**action) -> str:
        await agent.act(session, parse(agent.say("so", action, (320, 180))).calls[0])
        title = await page.title()
        await page.evaluate("document.title = ''")
        return title

    assert await do(action="click", coordinate=[260, 130]) == ".hover.click"
    await page.mouse.move(5, 150)
    assert await do(action="hover", coordinate=[260, 130]) == ".hover"
    await page.focus("#i")
    await do(action="type_text", text="blue mug")
    assert await page.input_value("#i") == "blue mug"
    assert await do(action="press_enter") == ".enter"
    await do(action="hotkey", value="Control + A")
    await do(action="hotkey", value="Delete")
    assert await page.input_value("#i") == ""
    await do(action="drag", **{"from": [8, 68], "to": [192, 68]})
    assert await page.input_value("#r") == "10"
    await do(action="scroll", value="down")
    assert await page.evaluate("scrollY") == 90
    await do(action="scroll", value="up")
    assert await page.evaluate("scrollY") == 0
    monkeypatch.setattr("minirl.agents.openwebrl_actions.MAX_WAIT_SECONDS", 0.1)
    assert "waited 0.1 seconds" in await agent.act(session, Call("wait"))
    answer = Call("answer", {"text": "42"})
    await agent.act(session, answer)
    assert agent.final_call == (answer.name, *answer.arguments)


async def test_every_action_of_a_record_can_be_said():
    full = {"bbox": [0, 0, 4, 8], "to": [10, 10, 12, 12], "text": "a", "value": "down"}
    for name, takes in ACTIONS.items():
        action = action_of({"action": name} | full)
        assert set(action) == {"action", *takes} and parse(f"<action>{action}</action>").calls[0].name == name
    assert action_of({"action": "drag"} | full) == {"action": "drag", "from": [2, 4], "to": [11, 11]}
    assert action_of({"action": "type_text"}) is None and action_of({"action": "answer"})["text"] == "done"
