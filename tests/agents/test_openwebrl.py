"""What the model is told about its tools, and how its responses are read."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import asdict
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minirl.agents.openwebrl import TOOLS, parse, schemas, system_prompt
from minirl.agents.openwebrl_actions import FEEDBACK_CHARS, shorten
from minirl.types import Call, Parsed


def call(name: str, **arguments) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def error_of(block: str) -> str:
    """The line that a response with this tool call gets; nothing of it is executed."""
    parsed = parse(f"think</think><tool_call>{block}</tool_call>")
    assert parsed.calls == () and parsed.error and parsed.error.startswith("Error: ")
    assert "\n" not in parsed.error
    return parsed.error


# --- what the model is told ------------------------------------------------------------------------

NAMES = [
    "click", "write", "press_keys", "scroll", "wait", "done", "goto_url",
    "go_back", "new_tab", "switch_tab", "close_tab", "drag", "hover",
]  # fmt: skip


def test_the_thirteen_tools_and_their_arguments():
    functions = [schema["function"] for schema in schemas()]
    assert [f["name"] for f in functions] == NAMES
    needed = {f["name"]: f["parameters"]["required"] for f in functions}
    assert needed == {
        "click": ["point_2d"],
        "write": ["message"],
        "press_keys": ["keys"],
        "scroll": [],
        "wait": [],
        "done": ["response"],
        "goto_url": ["url"],
        "go_back": [],
        "new_tab": [],
        "switch_tab": ["tab_index"],
        "close_tab": [],
        "drag": ["start_point_2d", "end_point_2d"],
        "hover": ["point_2d"],
    }


def test_the_schema_of_one_tool_in_full():
    assert json.loads(json.dumps(schemas()[0])) == {
        "type": "function",
        "function": {
            "name": "click",
            "description": "Click at a point of the page.",
            "parameters": {
                "type": "object",
                "properties": {
                    "point_2d": {
                        "type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2,
                    },
                    "clicks": {"type": "integer"},
                    "button": {"type": "string"},
                },
                "required": ["point_2d"],
            },
        },
    }  # fmt: skip


def valid_value(schema: dict):
    """A value that a JSON schema as used here allows."""
    match schema["type"]:
        case "array":
            size = st.just(schema["minItems"]) if "minItems" in schema else st.integers(1, 3)
            return size.flatmap(lambda n: st.lists(valid_value(schema["items"]), min_size=n, max_size=n))
        case "string":
            return st.text(max_size=20).filter(lambda s: "</tool_call>" not in s)
        case "integer":
            return st.integers(0, 1000)
        case "number":
            return st.floats(0, 1000) | st.integers(0, 1000)
        case "boolean":
            return st.booleans()
    raise AssertionError(f"{schema['type']} is no JSON type of ours")


@st.composite
def valid_calls(draw):
    """A call that follows the published schema, with some of the optional arguments."""
    function = draw(st.sampled_from(schemas()))["function"]
    properties, required = function["parameters"]["properties"], function["parameters"]["required"]
    optional = [a for a in properties if a not in required and draw(st.booleans())]
    return function["name"], {a: draw(valid_value(properties[a])) for a in [*required, *optional]}


@given(valid_calls())
def test_what_follows_the_schema_is_accepted_and_comes_back(made):
    name, arguments = made
    (parsed,) = parse(f"x</think>{call(name, **arguments)}").calls
    assert parsed.name == name and parsed.arguments | arguments == parsed.arguments
    assert set(parsed.arguments) <= set(TOOLS[name].arguments)
    again = parse(f"x</think><tool_call>{json.dumps(asdict(parsed))}</tool_call>")
    assert again == Parsed("x", (parsed,))


@pytest.mark.parametrize("name", NAMES)
def test_every_required_argument_is_really_required(name):
    parameters = {schema["function"]["name"]: schema["function"]["parameters"] for schema in schemas()}[name]
    example_of = {"array": [1, 2], "string": "a", "integer": 1}
    full = {a: example_of[parameters["properties"][a]["type"]] for a in parameters["required"]}
    if "keys" in full:
        full["keys"] = ["a"]
    assert parse(f"x</think>{call(name, **full)}").error is None
    for argument in full:
        rest = {a: value for a, value in full.items() if a != argument}
        assert f"{name} needs the argument {argument}" in parse(f"x</think>{call(name, **rest)}").error


def test_the_system_prompt_holds_every_schema_unless_brief():
    prompt = system_prompt(brief=False)
    inside = prompt.partition("<tools>\n")[2].partition("\n</tools>")[0]
    assert [json.loads(line) for line in inside.splitlines()] == schemas()
    assert "<tools>" not in system_prompt(brief=True)


# --- reading a response ----------------------------------------------------------------------------


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


def test_several_calls_keep_their_order():
    text = "Search.</think>" + call("click", point_2d=[500, 120]) + "\n" + call("write", message="red mug")
    assert parse(text).calls == (
        Call("click", {"point_2d": [500, 120], "clicks": 1, "button": "left"}),
        Call("write", {"message": "red mug"}),
    )


def test_a_call_within_the_thought_is_not_made():
    assert parse(f"Should I {call('go_back')}?</think>{call('new_tab')}").calls == (Call("new_tab"),)


def test_one_bad_call_spoils_the_response():
    parsed = parse(f"x</think>{call('go_back')}{call('fly')}")
    assert parsed.calls == () and "there is no tool 'fly'" in parsed.error


def test_left_out_and_null_arguments_take_their_defaults():
    defaults = {"direction": "down", "amount": 0.5}  # and no point
    assert parse(f"x</think>{call('scroll')}").calls == (Call("scroll", defaults),)
    assert parse(f"x</think>{call('scroll', amount=None, point_2d=None)}").calls == (
        Call("scroll", defaults),
    )


def test_lenient_where_the_meaning_is_clear():
    (clicked,) = parse(f"x</think>{call('click', point_2d=['500', ' 12.5 '], clicks=2.0)}").calls
    assert clicked.arguments == {"point_2d": [500, 12.5], "clicks": 2, "button": "left"}
    assert parse(f"x</think>{call('press_keys', keys='Enter')}").calls[0].arguments["keys"] == ["Enter"]


@pytest.mark.parametrize("text", ["", "hello", call("go_back"), "<think>" + call("go_back"), "</think"])
def test_a_thought_that_is_not_closed(text):
    assert "no </think>" in parse(text).error


@pytest.mark.parametrize(
    "rest", ["", "done", "<tool_call>{}", "{}</tool_call>", "</tool_call><tool_call>", "<tool_call"]
)
def test_no_complete_call(rest):
    parsed = parse("Well.</think>" + rest)
    assert parsed.thought == "Well." and "no complete <tool_call>" in parsed.error


def test_an_unclosed_call_behind_a_complete_one_is_cut_off():
    assert parse(f"x</think>{call('go_back')}<tool_call>{{").calls == (Call("go_back"),)


@pytest.mark.parametrize(
    "block",
    ["", "go_back", '{"name": "go_back"', "{'name': 'go_back'}", '{"name": "go_back"}}'],
)
def test_broken_json(block):
    assert "not valid JSON" in error_of(block)


@pytest.mark.parametrize(
    "block", ["[]", "1", '"go_back"', "null", "{}", '{"name": 3}', '{"name": ["click"]}']
)
def test_json_that_is_no_call(block):
    assert 'needs the form {"name": ..., "arguments": {...}}' in error_of(block)


def test_nested_tags_are_no_call():
    assert "not valid JSON" in error_of(f"<tool_call>{json.dumps({'name': 'go_back'})}")


def test_unknown_tools_and_arguments_are_named_in_short():
    assert "there is no tool 'CLICK'; the tools are click, write," in error_of('{"name": "CLICK"}')
    assert len(error_of(json.dumps({"name": "x" * 5000}))) < 300
    unknown = json.dumps({"name": "go_back", "arguments": {"times": 2}})
    assert error_of(unknown) == "Error: go_back has no argument 'times'"
    assert len(error_of(json.dumps({"name": "go_back", "arguments": {"x" * 5000: 1}}))) < 300


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        ('{"name": "click", "arguments": [500, 120]}', "the arguments of click must be an object"),
        ('{"name": "click", "arguments": {"point_2d": "500 / 120"}}', "click.point_2d must be [x, y]"),
        ('{"name": "click", "arguments": {"point_2d": [500]}}', "click.point_2d must be [x, y]"),
        ('{"name": "click", "arguments": {"point_2d": [1, 2, 3]}}', "click.point_2d must be [x, y]"),
        ('{"name": "click", "arguments": {"point_2d": [[1, 2], 3]}}', "click.point_2d must be a number"),
        ('{"name": "click", "arguments": {"point_2d": [true, 3]}}', "click.point_2d must be a number"),
        ('{"name": "hover", "arguments": {"point_2d": ["5e2", 3]}}', "hover.point_2d must be a number"),
        ('{"name": "wait", "arguments": {"seconds": "soon"}}', "wait.seconds must be a number"),
        ('{"name": "write", "arguments": {"message": 5}}', "write.message must be a string"),
        ('{"name": "press_keys", "arguments": {"keys": []}}', "press_keys.keys must be a list of strings"),
        ('{"name": "press_keys", "arguments": {"keys": [1]}}', "press_keys.keys must be a list of strings"),
        (
            '{"name": "press_keys", "arguments": {"keys": ["a"], "is_hotkey": "yes"}}',
            "press_keys.is_hotkey must be true or false",
        ),
    ],
)
def test_wrong_types(block, problem):
    assert error_of(block) == f"Error: {problem}"


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400", "-1", "1000.5", "9" * 400])
def test_numbers_out_of_range(number):
    block = f'{{"name": "hover", "arguments": {{"point_2d": [{number}, 3]}}}}'
    assert error_of(block) == "Error: hover.point_2d must lie between 0 and 1000"


def test_a_number_of_ten_thousand_digits():
    assert "a number out of range" in error_of(
        '{"name": "wait", "arguments": {"seconds": ' + "9" * 10_000 + "}}"
    )


def test_the_edges_of_the_screen_are_on_it():
    assert parse(f"x</think>{call('hover', point_2d=[0, 1000])}").calls[0].arguments["point_2d"] == [0, 1000]


# --- whatever a model may say ----------------------------------------------------------------------

PIECES = ["<think>", "</think>", "<tool_call>", "</tool_call>", '{"name": "click", ', '"arguments": {', "}}"]
FRAGMENTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=5), max_size=12).map("".join)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
ALMOST = st.builds(
    lambda name, arguments: (
        f"x</think><tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"
    ),
    st.sampled_from(NAMES),
    JSON | st.dictionaries(st.sampled_from([a for tool in TOOLS.values() for a in tool.arguments]), JSON),
)


@given(st.text() | FRAGMENTS | ALMOST)
@example("\ud800</think><tool_call>\ud800</tool_call>")
def test_parse_never_raises_and_gives_calls_or_an_error(text):
    parsed = parse(text)
    assert bool(parsed.calls) == (parsed.error is None)
    for made in parsed.calls:
        required = {a for a, (_, default) in TOOLS[made.name].arguments.items() if default is ...}
        assert required <= set(made.arguments) <= set(TOOLS[made.name].arguments)


def test_very_long_responses():
    """A model that repeats itself to its token limit; minutes if every tag were searched to the end."""
    n = 100_000
    assert "no complete <tool_call>" in parse("x</think>" + "<tool_call>" * n).error
    assert "not valid JSON" in parse("x</think>" + "<tool_call>" * n + "</tool_call>").error
    assert "not valid JSON" in parse("x</think><tool_call>" + "[" * n + "</tool_call>").error
    assert parse("<think>" * n + "</think>" + call("go_back")).calls == (Call("go_back"),)
    assert len(parse("x</think>" + call("go_back") * n).calls) == n


# --- other names ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("paper", "code"),
    [
        (("click", {"x": 5, "y": 7}), ("click", {"point_2d": [5, 7]})),
        (("click", {"x": 5, "y": 7, "click_type": "double"}), ("click", {"point_2d": [5, 7], "clicks": 2})),
        (("hover", {"x": 5, "y": 7}), ("hover", {"point_2d": [5, 7]})),
        (
            ("drag", {"x1": 1, "y1": 2, "x2": 3, "y2": 4}),
            ("drag", {"start_point_2d": [1, 2], "end_point_2d": [3, 4]}),
        ),
        (("write", {"text": "a"}), ("write", {"message": "a"})),
        (("switch_tab", {"index": 1}), ("switch_tab", {"tab_index": 1})),
        (("done", {"answer": "a"}), ("done", {"response": "a"})),
        (
            ("scroll", {"direction": "up", "x": 1, "y": 2}),
            ("scroll", {"direction": "up", "point_2d": [1, 2]}),
        ),
    ],
)
def test_the_papers_names_mean_the_same(paper, code):
    ours, theirs = (parse(f"x</think>{call(name, **arguments)}") for name, arguments in (code, paper))
    assert ours == theirs and ours.error is None


def test_both_names_at_once_or_half_a_point_are_refused():
    assert "click has no argument 'x'" in parse(f"x</think>{call('click', point_2d=[1, 2], x=1, y=2)}").error
    assert "has no argument 'x'" in parse(f"x</think>{call('click', x=1)}").error


def test_the_schema_in_the_papers_names():
    shown = {s["function"]["name"]: s["function"]["parameters"] for s in schemas("paper")}
    assert list(shown["click"]["properties"]) == ["x", "y", "click_type", "button"]
    assert shown["click"]["required"] == ["x", "y"]
    assert shown["click"]["properties"]["click_type"]["enum"] == ["single", "double", "triple"]
    assert shown["drag"]["required"] == ["x1", "y1", "x2", "y2"]
    required = {"write": ["text"], "switch_tab": ["index"], "done": ["answer"]}
    assert {name: shown[name]["required"] for name in required} == required
    assert shown["goto_url"] == schemas()[NAMES.index("goto_url")]["function"]["parameters"]


@pytest.mark.parametrize("point", ["500, 120", "[500, 120]", "(500,120)", {"x": 500, "y": 120}, ["500", 120]])
def test_points_in_other_forms(point):
    assert parse(f"x</think>{call('hover', point_2d=point)}").calls[0].arguments == {"point_2d": [500, 120]}


def test_arguments_as_a_string_of_json():
    block = json.dumps({"name": "write", "arguments": json.dumps({"message": "a"})})
    assert parse(f"x</think><tool_call>{block}</tool_call>").calls == (Call("write", {"message": "a"}),)


def test_a_system_prompt_from_a_file(tmp_path):
    path = tmp_path / "prompt.txt"
    path.write_text("Mine.\n{tools}\nEnd. {braces} stay.")
    text = system_prompt(brief=False, names="paper", file=path)
    assert text.startswith("Mine.\n{") and text.endswith("\nEnd. {braces} stay.")
    assert '"click_type"' in text and '"point_2d"' not in text
    path.write_text("No place.")
    with pytest.raises(ValueError, match="write {tools} where"):
        system_prompt(brief=False, file=path)
    with pytest.raises(ValueError, match="can't be read"):
        system_prompt(brief=False, file=tmp_path / "nowhere")


# --- a hundred thousand responses -----------------------------------------------------------------

PIECES = (
    "<think>", "</think>", "<tool_call>", "</tool_call>", "{", "}", "[", "]", '"', ",", ":", "\\", "\n",
    "null", "NaN", "Infinity", "-0", "1e999", "9" * 5000, "\u202e", "\ud800", "\x00", "é", "\U0001f9ff",
    '"name"', '"arguments"', '"click"', '"point_2d"', "[" * 2000, '{"a":' * 2000,
)  # fmt: skip


def random_call(chance: random.Random) -> Call:
    """A call that is valid and complete, so that it must come back as it is."""

    def value(kind: str) -> Any:
        text = "".join(chance.choice('ab "\\<>{}/é漢\U0001f9ff\n') for _ in range(chance.randrange(1, 12)))
        return {
            "point": [chance.randrange(1001), chance.uniform(0, 1000)],
            "strings": [text] * chance.randrange(1, 4),
            "string": text,
            "integer": chance.randrange(1001),
            "number": chance.uniform(0, 1000),
            "boolean": chance.random() < 0.5,
        }[kind]

    name = chance.choice(NAMES)
    return Call(name, {a: value(kind) for a, (kind, _) in TOOLS[name].arguments.items()})


def spoiled(text: str, chance: random.Random) -> str:
    """Cut, with pieces put in, left out, doubled or swapped."""
    for _ in range(chance.randrange(1, 5)):
        i, j = sorted(chance.randrange(len(text) + 1) for _ in range(2))
        match chance.randrange(5):
            case 0:
                text = text[:j]
            case 1:
                text = text[:i] + chance.choice(PIECES) + text[i:]
            case 2:
                text = text[:i] + text[j:]
            case 3:
                text = text[:j] + text[i:]
            case 4:
                text = text[:i] + chance.choice(PIECES) + text[j:]
    return text


def test_a_hundred_thousand_outputs():
    """Valid calls come back as they were; whatever is done to them, nothing raises."""
    chance, ended = random.Random(0), Counter()
    for n in range(50_000):
        calls = tuple(random_call(chance) for _ in range(chance.randrange(1, 4)))
        ascii_only = n % 2 == 0
        blocks = (json.dumps(asdict(made), ensure_ascii=ascii_only) for made in calls)
        text = "why</think>" + "".join(f"<tool_call>\n{block}\n</tool_call>" for block in blocks)
        assert parse(text) == Parsed("why", calls)
        parsed = parse(spoiled(text, chance))
        assert bool(parsed.calls) == (parsed.error is None)
        ended["calls" if parsed.calls else "error"] += 1
    assert min(ended.values()) > 2000, ended  # both ends of the parser were seen


# --- feedback --------------------------------------------------------------------------------------


def test_feedback_is_one_line():
    assert shorten(" clicked\n button \t'a'. ") == "clicked button 'a'."


def test_long_feedback_keeps_its_head_and_its_tail():
    assert FEEDBACK_CHARS == 512
    exactly = "a" * 512
    assert shorten(exactly) == exactly
    # 70% of the 507 characters that the dots leave: 354 from the head, 153 from the tail
    assert shorten("a" * 400 + "b" * 400) == "a" * 354 + " ... " + "b" * 153
