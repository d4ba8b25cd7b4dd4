"""What the model is told about its tools, and how its responses are read."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minirl.agents.feedback import FEEDBACK_CHARS, shorten
from minirl.agents.openwebrl import (
    FORM,
    TOOLS,
    OpenWebRLAgent,
    can_run,
    checked,
    parse,
    schemas,
    system_prompt,
)
from minirl.agents.openwebrl_actions import carry_out
from minirl.config import AgentConfig, BrowserConfig
from minirl.context import calls_in_tags
from minirl.types import Call, Parsed, ToolFailure


def call(name: str, **arguments) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


NEEDED = {
    "click": ["point_2d"], "write": ["message"], "press_keys": ["keys"], "scroll": [], "wait": [],
    "done": ["response"], "goto_url": ["url"], "go_back": [], "new_tab": [], "switch_tab": ["tab_index"],
    "close_tab": [], "drag": ["start_point_2d", "end_point_2d"], "hover": ["point_2d"],
}  # fmt: skip
PUBLISHED = {schema["function"]["name"]: schema["function"]["parameters"] for schema in schemas()}
USUAL = {"array": [1, 2], "string": 'a "\\<>{}/é漢\U0001f9ff\n', "number": 1.5, "integer": 7, "boolean": True}
USUAL_KEYS = {"press_keys": {"keys": ["a", "b"]}}


def test_the_thirteen_tools_and_the_schema_of_one_in_full():
    assert list(PUBLISHED) == list(NEEDED)
    assert {name: p["required"] for name, p in PUBLISHED.items()} == NEEDED
    point = '{"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}'
    properties = f'{{"point_2d": {point}, "clicks": {{"type": "integer"}}, "button": {{"type": "string"}}}}'
    parameters = f'{{"type": "object", "properties": {properties}, "required": ["point_2d"]}}'
    about = '"name": "click", "description": "Click at a point of the page."'
    function = f'{{{about}, "parameters": {parameters}}}'
    assert json.dumps(schemas()[0]) == f'{{"type": "function", "function": {function}}}'
    assert PUBLISHED["scroll"]["properties"]["point_2d"] == json.loads(point), "though it may be left out"


@pytest.mark.parametrize("name", NEEDED)
def test_what_follows_the_schema_is_read_and_what_is_required_may_not_be_missing(name):
    properties = PUBLISHED[name]["properties"]
    full = {key: USUAL[schema["type"]] for key, schema in properties.items()} | USUAL_KEYS.get(name, {})
    assert parse(f"x</think>{call(name, **full)}") == Parsed("x", (Call(name, full),))
    for argument in PUBLISHED[name]["required"]:
        rest = {key: value for key, value in full.items() if key != argument}
        (made,) = parse(f"x</think>{call(name, **rest)}").calls
        with pytest.raises(ToolFailure, match=f"^{argument}: Field required"):
            checked(made)


def test_the_system_prompt_holds_every_schema_unless_brief(tmp_path):
    prompt = system_prompt(brief=False)
    inside = prompt.partition("<tools>\n")[2].partition("\n</tools>")[0]
    assert [json.loads(line) for line in inside.splitlines()] == schemas()
    assert "<tools>" not in system_prompt(brief=True)
    path = tmp_path / "prompt.txt"
    path.write_text("Mine.\n{tools}\nEnd. {braces} stay.")
    text = system_prompt(brief=False, file=path)
    assert text.startswith("Mine.\n{") and text.endswith("\nEnd. {braces} stay.") and '"point_2d"' in text


@pytest.mark.parametrize(
    "text",
    [
        "<think>\nBack.\n</think>\n\n" + call("go_back"),
        "\nBack.\n</think>\n" + call("go_back"),  # the template wrote the opening <think>
        "<think>\nno, <think>Back.</think>" + call("go_back") + "\n",
        'Back.</think><tool_call>{"name": "go_back"}</tool_call>',  # no arguments, no newlines
        'Back.</think>I call: <tool_call>\n\n{\n"name":\t"go_back",\n"arguments": {}\n}\n</tool_call> now.',
    ],
)
def test_a_thought_and_a_call(text):
    assert parse(text) == Parsed("Back.", (Call("go_back"),))


@pytest.mark.parametrize(
    ("block", "made"),
    [
        (
            '\n{"name": "write",\n\t"arguments": {"message": "\\"it\'s\\"\n\ttwo\r\nlamps"}}',
            Call("write", {"message": '"it\'s"\n\ttwo\nlamps'}),
        ),
        ('\n```json\n{"name": "go_back", "arguments": {}}\n```\n', Call("go_back")),
    ],
    ids=["line breaks and tabs", "fence"],
)
def test_other_forms_of_a_call(block, made):
    assert parse(f"so</think><tool_call>{block}</tool_call>") == Parsed("so", (made,))


def tags(name: str, **arguments: str) -> str:
    """A call as Qwen3.5's chat template writes it."""
    lines = [f"<parameter={argument}>\n{value}\n</parameter>\n" for argument, value in arguments.items()]
    return f"<tool_call>\n<function={name}>\n{''.join(lines)}</function>\n</tool_call>"


BACK = Call("go_back")
WAIT = Call("wait", {"seconds": 2})
CLICK = Call("click", {"point_2d": [500, 120], "clicks": 1, "button": "left"})
HOTKEY = Call("press_keys", {"keys": ["Control", "a"], "is_hotkey": True, "presses": 1})
IN_TAGS = [  # responses, behind a thought that is closed, and their calls
    (tags("go_back"), [BACK]),
    (tags("wait", seconds="2"), [WAIT]),
    (tags("click", point_2d="[500, 120]"), [CLICK]),
    (tags("click", point_2d="[\n500,\n120\n]"), [CLICK]),
    (tags("click", point_2d="[500, 120]", clicks="2"), [Call("click", CLICK.arguments | {"clicks": 2})]),
    (tags("write", message="Two <b>\n\n[lamps]"), [Call("write", {"message": "Two <b>\n\n[lamps]"})]),
    (tags("write", message="\tLamp \n"), [Call("write", {"message": "\tLamp \n"})]),
    (tags("write", message='{"name": "wait"}'), [Call("write", {"message": '{"name": "wait"}'})]),
    (tags("write", message="a < b > c & d"), [Call("write", {"message": "a < b > c & d"})]),
    (tags("write", message="true"), [Call("write", {"message": "true"})]),
    (tags("write", message=""), [Call("write", {"message": ""})]),
    (tags("press_keys", keys='["Control", "a"]', is_hotkey="true"), [HOTKEY]),
    (tags("go_back") + "\n" + tags("wait", seconds="2"), [BACK, WAIT]),
    (tags("wait", seconds="2").replace("\n", ""), [WAIT]),
    (tags("wait", seconds="2").replace("\n", "\n  "), [WAIT]),
    (tags("wait", seconds="2").replace("</parameter>\n", ""), [WAIT]),
    (tags("wait", seconds="2").replace("</function>\n", ""), [WAIT]),
    (tags("go_back") + call("wait", seconds=2), [BACK, WAIT]),
    (tags("fly", to="home"), [Call("fly", {"to": "home"})]),
    (tags("wait", minutes="2"), [Call("wait", {"minutes": "2"})]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "calls"), IN_TAGS)
def test_calls_in_tags(text, calls):
    assert list(parse(f"so</think>\n\n{text}").calls) == calls


@pytest.mark.parametrize("made", [BACK, WAIT, CLICK, Call("write", {"message": 'Two\n"lamps"'}), HOTKEY])
def test_a_call_is_the_same_in_json_and_in_tags(made):
    text = calls_in_tags(call(made.name, **made.arguments))
    assert "<function=" in text and parse(f"x</think>{text}").calls == (made,)


def test_a_model_that_writes_tags_is_shown_them(preprocessor):
    chat = replace(preprocessor.chat, tags=True)
    prompt = OpenWebRLAgent(AgentConfig(), chat).system
    answer = prompt.partition("Answer in this form:\n")[2]
    assert answer == "<think>\nyour reasoning\n</think>\n" + tags("the tool", argument="value")
    for shown, form in ((chat, "<function=click>"), (preprocessor.chat, '{"name": "click"'), (None, FORM)):
        agent = OpenWebRLAgent(AgentConfig(), shown)
        assert f"Write it like {form}" in agent.parse("x</think><tool_call>?</tool_call>").error


def test_which_calls_of_a_response_are_made():
    """Several keep their order; not those within the thought or cut off; a bad one stands in its place."""
    assert parse(f"Should I {call('go_back')}?</think>{call('new_tab')}").calls == (Call("new_tab"),)
    assert parse(f"x</think>{call('go_back')}<tool_call>{{").calls == (Call("go_back"),)
    parsed = parse(f"x</think>{call('go_back')}{call('fly')}<tool_call>?</tool_call>{call('new_tab')}")
    assert [made.name for made in parsed.calls] == ["go_back", "fly", "tool_call", "new_tab"]
    assert list(map(can_run, parsed.calls)) == [True, False, False, True] and parsed.error is None
    (named,) = parse(f"x</think>{call('tool_call', problem='none')}").calls
    with pytest.raises(ToolFailure, match="there is no such tool"):  # not what stands for an unreadable one
        checked(named)


@pytest.mark.parametrize(
    ("name", "given", "read"),
    [
        # left out and null arguments take their defaults; an optional point has none
        ("scroll", {"amount": None, "point_2d": None}, {"direction": "down", "amount": 0.5}),
        # lenient where the meaning is clear
        ("click", {"point_2d": ["500", " 12.5 "], "clicks": 2.0},
         {"point_2d": [500, 12.5], "clicks": 2, "button": "left"}),
        ("press_keys", {"keys": "Enter"}, {"keys": ["Enter"], "is_hotkey": False, "presses": 1}),
        ("press_keys", {"keys": ["a"], "is_hotkey": "True", "presses": 2},
         {"keys": ["a"], "is_hotkey": True, "presses": 2}),
        # a text that looks like a list; those that are written as texts are in IN_TAGS
        ("press_keys", {"keys": "["}, {"keys": ["["], "is_hotkey": False, "presses": 1}),
        ("write", {"message": "[1, 2]"}, {"message": "[1, 2]"}),
        ("done", {"response": 42}, {"response": "42"}),
        # the edges of the screen are on it, and so is a part of a thousandth
        ("hover", {"point_2d": [0, 1000]}, {"point_2d": [0, 1000]}),
        ("hover", {"point_2d": [0, 1]}, {"point_2d": [0, 1]}),
        ("hover", {"point_2d": [0.5, 7]}, {"point_2d": [0.5, 7]}),
        # the paper's names
        ("click", {"x": 5, "y": 7, "click_type": "double"},
         {"point_2d": [5, 7], "clicks": 2, "button": "left"}),
        ("drag", {"x1": 1, "y1": 2, "x2": 3, "y2": 4},
         {"start_point_2d": [1, 2], "end_point_2d": [3, 4], "steps": 10}),
        ("write", {"text": "a"}, {"message": "a"}),
        ("switch_tab", {"index": 1}, {"tab_index": 1}),
        ("done", {"answer": "a"}, {"response": "a"}),
        ("scroll", {"x": 1, "y": 2}, {"direction": "down", "amount": 0.5, "point_2d": [1, 2]}),
    ],
)  # fmt: skip
def test_arguments_as_they_are_read(name, given, read):
    (made,) = parse(f"x</think>{call(name, **given)}").calls
    assert made == Call(name, read)


UNCLOSED = ["", "hello", call("go_back"), "<think>" + call("go_back"), "</think"]
NO_COMPLETE = ["", "done", "<tool_call>{}", "{}</tool_call>", "</tool_call><tool_call>", "<tool_call"]


@pytest.mark.parametrize(
    ("text", "thought", "error"),
    [(text, "", "no </think>") for text in UNCLOSED]
    + [("Well.</think>" + rest, "Well.", "no complete <tool_call>") for rest in NO_COMPLETE],
)
def test_a_thought_or_a_call_that_is_not_complete(text, thought, error):
    parsed = parse(text)
    assert parsed.thought == thought and error in parsed.error


NO_JSON = ["", "go_back", '{"name": "go_back"', "{'name': 'go_back'}", '<tool_call>{"name": "go_back"}']
NO_JSON += ['{"name": "wait", "arguments": {"seconds": ' + "9" * 10_000 + "}}", '{"name": "a"} b']
NO_JSON += ['{"name": "wait", "arguments": ' + "[" * 1000 + "]" * 1000 + "}"]
NO_NAME = ["[]", "1", "null", "{}", '{"name": 3}', '{"arguments": {"point_2d": [500, 120]}}']
WRONG = [
    *(("hover", {"point_2d": [number, 3]}, "point_2d.0: Input should be .* than or equal to")
      for number in (float("nan"), float("inf"), -1, 1000.5, int("9" * 400))),
    *(("hover", {"point_2d": point}, "point_2d.*: (Input should be a valid|List should have).*to 1000")
      for point in ("500, 120", [500], [1, 2, 3], [[1, 2], 3], ["52%", "33%"])),
    *(("drag", {"start_point_2d": [1, 2], "end_point_2d": point}, "end_point_2d: .*no_fraction.*to 1000")
      for point in ([0.52, 0.33], [1, 0.5], ["0.1", "0"])),
    ("hover", {"x": 0.5, "y": 0.25}, "point_2d: .*no_fraction.* from 0 to 1000"),
    ("CLICK", {}, f"there is no such tool; the tools are {', '.join(NEEDED)}"),
    ("click", {"x": 1, "point_2d": [1, 2]}, "x: Extra inputs are not permitted"),
    ("click", [500, 120], "point_2d: Field required"),
    ("wait", {"seconds": "soon"}, "seconds.*: Input should be a valid number"),
    ("write", {"message": ["5"]}, "message: Input should be a valid string"),
    ("press_keys", {"keys": ["a"], "is_hotkey": "so"}, "is_hotkey: Input should be"),
]  # fmt: skip


@pytest.mark.parametrize("block", NO_JSON + NO_NAME)
def test_a_call_that_is_no_json_with_a_name_is_not_in_format(block):
    """Alone; behind another it fails in its turn. The model is told where the fault is, and the form."""
    parsed = parse(f"think</think><tool_call>{block}</tool_call>")
    assert (parsed.thought, parsed.calls) == ("think", ())
    assert parsed.error.startswith("Error: a tool call is not valid JSON with a name (")
    assert parsed.error.endswith(f". Write it like {FORM}.") and len(parsed.error) < 250
    _, made = parse(f"think</think>{call('go_back')}<tool_call>{block}</tool_call>").calls
    with pytest.raises(ToolFailure, match="not valid JSON"):
        checked(made)


@pytest.mark.parametrize(("name", "given", "problem"), WRONG)
async def test_what_a_call_gets_wrong_is_its_failure_and_in_format(name, given, problem):
    """One line for the model."""
    block = json.dumps({"name": name, "arguments": given})
    parsed = parse(f"think</think><tool_call>{block}</tool_call>")
    (made,) = parsed.calls
    assert parsed.error is None and made.name == name
    with pytest.raises(ToolFailure) as failure:
        await OpenWebRLAgent(AgentConfig()).act(None, made)
    assert re.match(problem, str(failure.value)) and "\n" not in str(failure.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
ALMOST = st.builds(
    lambda name, arguments: (
        f"x</think><tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"
    ),
    st.sampled_from(list(NEEDED)),
    JSON | st.dictionaries(st.sampled_from([a for tool in TOOLS.values() for a in tool.model_fields]), JSON),
)


@given(st.text() | ALMOST)
@example("\ud800</think><tool_call>\ud800</tool_call>")
def test_parse_never_raises_and_gives_calls_or_an_error(text):
    parsed = parse(text)
    assert bool(parsed.calls) == (parsed.error is None)
    for made in filter(can_run, parsed.calls):
        assert set(NEEDED[made.name]) <= set(made.arguments) <= set(TOOLS[made.name].model_fields)


def test_very_long_responses():
    """A model that repeats itself to its token limit; minutes if every tag were searched to the end."""
    n = 30_000
    assert "no complete <tool_call>" in parse("x</think>" + "<tool_call>" * n).error
    assert "not valid JSON" in parse("x</think>" + "<tool_call>" * n + "</tool_call>").error
    for text in ("[", '{"', "<function=a><parameter=", '["', "<function=" + "<parameter=b>"):
        error = parse(f"x</think><tool_call>{text * n}</tool_call>").error
        assert error is None or "tool call is" in error
    assert "not valid JSON" in parse("x</think><tool_call>" + '\\"' * n + "</tool_call>").error
    assert parse(f"x</think>{call('hover', point_2d='[' * n + ']' * n)}").calls[0].name == "hover"
    assert parse("<think>" * n + "</think>" + call("go_back")).calls == (Call("go_back"),)
    assert len(parse("x</think>" + call("go_back") * n).calls) == n


def test_feedback_is_one_line_with_its_head_and_its_tail():
    assert shorten(" on\n <button> \t'a'. ") == "on <button> 'a'." and FEEDBACK_CHARS == 512
    assert shorten("a" * 512) == "a" * 512
    # 70% of the 507 characters that the dots leave: 354 from the head, 153 from the tail
    assert shorten("a" * 400 + "b" * 400) == "a" * 354 + " ... " + "b" * 153


@pytest.mark.parametrize("reason", ["no.", "no", "no " * 400, " a\nb  c. "])
async def test_the_reason_of_a_failure_is_one_line(reason):
    async def fail() -> str:
        raise ToolFailure(reason)

    async def pace() -> None: ...

    news = ["A dialog was accepted."]
    session = SimpleNamespace(config=BrowserConfig(), take_news=lambda: news, pace=pace)
    with pytest.raises(ToolFailure) as failure:
        await carry_out(session, Call("click"), fail())
    assert f"{failure.value}." == shorten(f"{reason.strip('. ')}. A dialog was accepted.")
