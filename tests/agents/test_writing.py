"""Writing and choosing, in Chromium, by both agents: what is held in the end, and what is told of it."""

import pytest
from pages import do, point

from minirl.agents import simplified_html, webagent_r1
from minirl.config import BrowserConfig
from minirl.types import Call, ToolFailure

pytestmark = pytest.mark.asyncio(loop_scope="module")
CONFIG = BrowserConfig(browsers=1, width=500, height=400, private=True)

STYLE = "<!doctype html><style>* { margin: 0 }</style>"
EDITOR = """<pre id="held" style="height: 99px">old text</pre>
<textarea id="e" style="position: absolute; left: 2px; top: 2px; width: 2px; opacity: 0"></textarea>
<script>
let text = "old text", all = false;
held.onclick = () => e.focus();
e.onkeydown = event => {
  if (event.ctrlKey && event.key === "a") { all = true; event.preventDefault(); }
};
e.oninput = () => {
  text = (all ? "" : text) + e.value;
  all = false; e.value = ""; held.textContent = text;
};
</script>"""
INDENTING = """<textarea id="e" rows="8"></textarea><script>
e.onkeydown = event => {
  if (event.key !== "Enter") return;
  event.preventDefault();
  const line = e.value.split("\\n").pop();
  e.setRangeText("\\n" + line.match(/^ */)[0] + "    ", e.selectionStart, e.selectionEnd, "end");
};
</script>"""
CONTEXT = """<div id="e" tabindex="0" style="height: 99px">old</div><script>
e.editContext = new EditContext({text: "old"});
e.onpaste = event => { event.preventDefault(); e.textContent = event.clipboardData.getData("text"); };
</script>"""
SUGGESTING = """<input id="e" role="combobox"><ul id="list"></ul><script>
let keys = 0;
e.onkeydown = () => { keys += 1; };
e.onkeyup = () => setTimeout(() => { list.innerHTML = "<li>" + e.value + " after " + keys; }, 100);
</script>"""
CHAT = """<textarea id="e">draft</textarea><output id="sent"></output><script>
e.onkeydown = event => {
  if (event.key !== "Enter") return;
  event.preventDefault();
  sent.textContent += "[" + e.value + "]"; e.value = "";
};
</script>"""
TAGS = """<input id="e"><b>tag</b><script>
e.onkeydown = event => { if (event.key === "Backspace" && !e.value) document.querySelector("b").remove(); };
</script>"""
CODE = (
    '<div id="e">'
    + '<input maxlength="1" style="width: 20px">' * 6
    + """</div><script>
e.oninput = event => event.target.nextSibling?.focus();
</script>"""
)
SLOW = """<textarea id="e"></textarea><script>
e.oninput = () => { for (const t = performance.now(); performance.now() - t < 20;); };
e.onkeyup = () => { document.title = "key at " + e.value.length; };
</script>"""
AREA = '<textarea id="e" oninput="{}"></textarea>'
FORM = '<form action="about:blank#sent"><input id="e" value="old"><input><button>Go</button></form>'
FRAME = '<iframe id="e" srcdoc="<body {} style=\'height: 99px\'>old <b>text</b></body>"></iframe>'
BODY = "e.contentDocument.body.innerText"
DESIGN = "onload='document.designMode = `on`'"
RICH = '<div id="e" contenteditable><p>old</p><p>text</p></div>'
LINES = "def f():\n    if x:\n\n        return 1"
PARAGRAPHS = "<p>a</p><p>b</p><p><br></p><p>c</p>"
SENT = "sent.textContent + e.value"
TEXTS = {
    "a frame whose body is edited": (FRAME.format("contenteditable"), "a b", BODY, "a b", "into <body>"),
    "a document in design mode": (FRAME.format(DESIGN), "a b", BODY, "a b", "into <body>"),
    "an editor's hidden field": (EDITOR, "x = 1", "held.textContent", "x = 1", "!differs"),
    "lines in such an editor": (EDITOR, LINES, "held.textContent", LINES, "!differs"),
    "lines that an editor pastes": (CONTEXT, LINES, "e.textContent", LINES, "!differs"),
    "a list that opens by keys": (SUGGESTING, "New York", "list.innerText", "New York after 10", "!differs"),
    "an editor that indents": (INDENTING, LINES, "e.value", LINES, "!differs"),
    "blanks that go": (AREA.format("value = value.replace('  ', ' ')"), "a  b", "e.value", "a b",
                       'actual value is "a b", which differs'),
    "a long text that is cut": ('<textarea id="e" maxlength="150">', "x" * 300, "e.value.length", 150,
                                'x" and 50 letters more, which differs from the typed text.'),
    "a final blank that goes": (AREA.format("value = value.trim()"), "a ", "e.value", "a", "!differs"),
    "lines of Windows": (AREA, "a\r\nb\n", "e.value", "a\nb\n", "!differs"),
    "paragraphs": (RICH, "a\r\nb\n\nc", "e.innerHTML", PARAGRAPHS, "!differs"),
    "lines in a field of one line": (FORM, "a\nbc", "e.value", "a bc", "the typed text in blanks or line"),
    "lines in a chat": (CHAT, "a\nb", SENT, "a\nb", "!differs"),
    "lines that a chat sends": (CHAT, "a\nb\n", SENT, "[a\nb]", 'is "", which differs'),
    "tags beside a field": (TAGS, "new", "document.body.innerText.trim()", "tag", "!differs"),
    "a code in six fields": (CODE, "123456", "[...e.children].map(f => f.value).join('')", "123456", ""),
    "a long text": (SLOW, "x" * 20_000, "document.title", "key at 20000", "!differs"),
}  # fmt: skip


def is_told(told: str, line: str) -> bool:
    return (told.removeprefix("!") in line) is not told.startswith("!")


@pytest.mark.parametrize("case", TEXTS)
async def test_a_text_replaces_the_old_one_exactly_or_the_difference_is_told(session, case):
    page, text, place, held, told = TEXTS[case]
    await session.page.set_content(STYLE + page)
    line = await do(session, "click", point_2d=point(10, 10))
    assert "no visible navigation" not in line
    line = await do(session, "write", message=text)
    assert await session.page.evaluate(place) == held
    assert is_told(told, line), line


LIST = '<select id="e" {}>{}</select>'
OPTIONS = "<option>Choose<option disabled>Large<option hidden>Old<optgroup disabled><option>Huge</optgroup>"
CLOTHES = LIST.format("", OPTIONS + "<option>Small")
ADDRESS = '<optgroup label="{} to"><option value="{}">Home</optgroup>'
HOMES = LIST.format("", ADDRESS.format("Ship", "a") + ADDRESS.format("Bill", "b"))
NAMES = LIST.format("", "<option>Choose<option>Cafe\N{COMBINING ACUTE ACCENT}<option>Straße")
MANY = LIST.format("", "".join(f"<option>Country {n}" for n in range(300)))
TWO = "<option>One<option>Two"
BACK = "onchange='setTimeout(() => { value = `%s`; }, 150)'"
DATE = '<input id="e" type="date" value="2030-01-01" {}>'
LISTS = {
    "what is offered": (CLOTHES, "write one of: Choose, Small.", "small", 'It is now "Small".', "Small"),
    "disabled": (CLOTHES, "", "Large", "does not take 'Large'. Write one of its options", "Choose"),
    "its group is disabled": (CLOTHES, "", "Huge", "does not take 'Huge'", "Choose"),
    "hidden": (CLOTHES, "", "Old", "does not take 'Old'", "Choose"),
    "the list is disabled": (LIST.format("disabled", TWO), "!write one of", "Two", "takes no text", "One"),
    "equal labels": (HOMES, "Ship to: Home, Bill to: Home.", "Bill to: Home", 'now "Bill to: Home".', "b"),
    "a value": (HOMES, "", "b", 'now "Bill to: Home".', "b"),
    "accents": (NAMES, "", "CAFÉ", "It is now", "Cafe\N{COMBINING ACUTE ACCENT}"),
    "capitals": (NAMES, "", "STRASSE", "It is now", "Straße"),
    "a long list": (MANY, "Country 19, and 280 more.", "Country 250", "It is now", "Country 250"),
    "taken back": (LIST.format(BACK % "One", TWO), "", "Two", 'value is "One", which differs', "One"),
    "a date taken back": (DATE.format(BACK % "2030-01-01"), "", "2031-02-03", "which differs", "2030-01-01"),
    "a date to read": (DATE.format("readonly"), "", "2031-02-03", "does not take", "2030-01-01"),
}


@pytest.mark.parametrize("case", LISTS)
async def test_an_option_is_chosen_if_a_person_could(session, case):
    page, offer, text, told, value = LISTS[case]
    await session.page.set_content(STYLE + page)
    line = await do(session, "click", point_2d=point(10, 10))
    assert is_told(offer, line), line
    try:
        line = await do(session, "write", message=text)
    except ToolFailure as failure:
        line = str(failure)
    assert told in line
    assert await session.page.evaluate("e.value") == value


@pytest.mark.parametrize(
    ("type", "value", "wrong", "right"),
    [("range", "20", "$80", " 80 "), ("color", "#102030", "light", "#AABBCC")],
)
async def test_a_slider_and_a_colour_stay_as_they_are_where_a_text_does_not_fit(
    session, type, value, wrong, right
):
    """The browser would move a slider to its middle, and make a colour black."""
    await session.page.set_content(f'<input id="e" type="{type}" value="{value}">')
    await session.page.focus("#e")
    with pytest.raises(ToolFailure, match=f"does not take {wrong!r}".replace("$", r"\$")):
        await do(session, "write", message=wrong)
    assert await session.page.evaluate("e.value") == value
    await do(session, "write", message=right)
    assert await session.page.evaluate("e.value") == right.strip().lower()


async def test_several_options_are_chosen_by_writing_them(session):
    colours = LIST.format('multiple size="3"', "<option>Red<option>Green<option>Blue")
    await session.page.set_content(STYLE + colours)
    line = await do(session, "click", point_2d=point(10, 8))
    told = "To choose several of its list, write them between commas: Red, Green, Blue. It is now selected."
    assert '<option> unselected "Red"' in line and told in line
    assert 'It is now "Red, Blue".' in await do(session, "write", message="blue, Red")
    assert 'It is now "Blue".' in await do(session, "write", message="Blue, ")
    for nothing in (" ", ","):
        with pytest.raises(ToolFailure, match="Write one of its options"):
            await do(session, "write", message=nothing)


async def test_a_window_that_closes_when_it_is_written_in_was_written_in(session, site):
    """As one does in which a code is asked for."""
    await session.start(f"{site}/two")
    await session.page.set_content(STYLE + "<button onclick=\"window.open('/code')\">Code</button>")
    await do(session, "click", point_2d=point(10, 10))
    await do(session, "click", point_2d=point(50, 20))
    assert '`write` typed "1234" into' in await do(session, "write", message="1234")
    assert len(session.context.pages) == 1


LATE_CHOOSER = "if (event.isTrusted) { event.preventDefault(); setTimeout(() => this.click(), 900) }"


@pytest.mark.parametrize("script", ["", LATE_CHOOSER])
async def test_a_file_chooser_is_told(session, script):
    await session.page.set_content(STYLE + f'<input type="file" onclick="{script}">')
    line = await do(session, "click", point_2d=point(10, 10))
    assert line.endswith("executed. A file chooser opened; files can't be given.")


async def test_the_text_agent_writes_and_chooses_alike(session):
    page = FRAME.format("contenteditable") + LIST.format("multiple", TWO) + LIST.format("disabled", TWO)
    await session.page.set_content(STYLE + page.replace('<select id="e"', '<select id="s"'))
    await simplified_html.observe(session)
    frame, _, several, disabled = range(4)  # the text in the frame has a number, too
    await webagent_r1.act(session, Call("Type", {"element": frame, "argument": "new text"}))
    assert await session.page.evaluate(BODY) == "new text"
    choose = {"element": several, "argument": "One, Two"}
    assert 'It is now "One, Two".' in await webagent_r1.act(session, Call("Select Dropdown Option", choose))
    with pytest.raises(ToolFailure, match="this list is disabled"):
        await webagent_r1.act(session, Call("Select Dropdown Option", choose | {"element": disabled}))


async def test_a_long_text_does_not_run_on_into_the_next_field(session):
    await session.page.set_content(STYLE + SLOW.replace("</textarea>", '</textarea><input id="b">'))
    for field, text in (("e", "x" * 4000), ("b", "next")):
        place = await session.page.locator(f"#{field}").bounding_box()
        await do(session, "click", point_2d=point(place["x"] + 5, place["y"] + 5))
        await do(session, "write", message=text)
    assert await session.page.evaluate("[e.value.length, b.value]") == [4000, "next"]
