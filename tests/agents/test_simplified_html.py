"""Simplified HTML: the released parser's own output, and that the numbers shown are what a click reaches."""

import re
import tomllib
from html import escape
from pathlib import Path

import lxml.html
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minirl.agents import simplified_html, webagent_r1
from minirl.agents.simplified_html import simplify
from minirl.config import BrowserConfig
from minirl.types import Call, ToolFailure

GOLDEN = Path(__file__).parents[1] / "data/observations"
CONFIG = BrowserConfig(browsers=1, width=800, height=600, quiet_ms=0, private=True)
OPTIONS = '<option value="1">One</option><option value="2">Two</option>'
STYLE = "<style>* { margin: 4px; font: 16px sans-serif }</style>"
RECORD = """<script>window.hit = []; addEventListener('click', e => {
  const e2 = e.target.closest('[data-testid]'); hit.push(e2 && e2.dataset.testid); }, true);</script>"""

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("name", ["gitlab_project", "gitlab_signin"])
async def test_the_released_parsers_own_output(name):
    raw = (GOLDEN / f"{name}_raw.html").read_text()
    assert simplify(raw) == (GOLDEN / f"{name}_parsed.html").read_text().rstrip()


SHOWN = 'data-bbox="0,0,9,9"'


@pytest.mark.parametrize(
    ("inner", "expected"),
    [
        # an element without a number that says nothing gives way to its only child
        (f"<div {SHOWN}><p {SHOWN}>Hi</p></div>", f"<p {SHOWN}> Hi </p>"),
        # outside the window, or hidden from readers; its edge still counts
        (f'<p data-bbox="0,721,9,9">Hi</p><p {SHOWN} aria-hidden="true">Ho</p>', ""),
        ('<p data-bbox="0,720,9,9">Hi</p>', '<p data-bbox="0,720,9,9"> Hi </p>'),
        # an attribute that repeats an earlier one's value
        (f'<input data-label-id="0" title="a" value="a" type="hidden" {SHOWN}>',
         f'<input id="0" title="a" {SHOWN}> </input>'),
        # all options of a list that is shown, wherever they are; none of one that is not
        (f'<select data-label-id="0" {SHOWN}><option value="1">One</option></select>',
         f'<select id="0" {SHOWN}> <option value="1"> One </option> </select>'),
        (f'<select {SHOWN}><optgroup label="N">{OPTIONS}</optgroup></select>',
         f'<select {SHOWN}> <option value="1"> One </option> <option value="2"> Two </option> </select>'),
        (f'<select data-bbox="0,2000,9,9" data-value="1">{OPTIONS}</select>', ""),
        (f'<select {SHOWN} aria-hidden="true" data-value="1">{OPTIONS}</select>', ""),
        ("<!-- no --><script>no()</script><style>no</style>", ""),
        (f"<p {SHOWN}>{'x' * 600}</p>", f"<p {SHOWN}> {'x' * 500} </p>"),
    ],
)  # fmt: skip
async def test_what_is_left(inner, expected):
    assert simplify(f"<html><body>{inner}</body></html>") == f"<html> {expected} </html>".replace("  ", " ")


async def test_depth_is_no_limit():
    page = "<div>" * 2000 + '<p data-bbox="0,0,9,9">Hi</p>' + "</div>" * 2000
    assert simplify(page) == '<html> <p data-bbox="0,0,9,9"> Hi </p> </html>'
    boxed = simplify(page.replace("<div>", '<div data-bbox="0,0,9,9">a'))
    assert boxed.count("<div ") == boxed.count("</div>") == 2000
    assert all(simplify(empty) == "<html> </html>" for empty in ("", "\x00", "<!-- x -->", "<?xml?>"))


@given(st.text(max_size=300))
@example("a\ud800")
async def test_anything_gives_one_line(text):
    out = simplify(text)
    assert out.startswith("<html") and out.endswith("</html>") and "\n" not in out


TREES = st.recursive(st.text("ab<>&\"'", max_size=5), lambda tree: st.lists(tree, max_size=4), max_leaves=12)


@given(TREES)
async def test_escaped_output_reads_back(tree):
    """What was text comes back as text: nothing that a page says becomes markup."""

    def build(node) -> str:
        if isinstance(node, str):
            text = escape(node)
            return f'<p data-bbox="0,0,9,9" title="{text}">{text}</p>'
        return f'<div data-bbox="0,0,9,9">{"".join(map(build, node))}</div>'

    source, back = lxml.html.fromstring(f"<html>{build(tree)}</html>"), simplify(build(tree))
    words = [" ".join((p.text or "").split()) for p in source.iter("p")]
    found = [" ".join((p.text or "").split()) for p in lxml.html.fromstring(back).iter("p")]
    assert found == [word for word in words if word]


PAGES = tomllib.loads((GOLDEN / "numbered.toml").read_text(encoding="utf-8"))


async def show(session, inner: str, script: str = RECORD) -> str:
    await session.page.set_content(f"<!doctype html>{STYLE}{inner}{script}")
    return await simplified_html.observe(session)


def shown(page: str) -> dict[int, str]:
    """number -> data-testid, of all elements with a number."""
    return {int(e.get("id")): e.get("data-testid") for e in lxml.html.fromstring(page).xpath("//*[@id]")}


@pytest.mark.parametrize("name", PAGES)
async def test_numbers_are_what_a_click_reaches(session, name):
    numbers = shown(await show(session, PAGES[name]))
    wanted = [testid for testid in re.findall('data-testid="([^"]*)"', PAGES[name]) if testid != "-"]
    assert list(numbers.values()) == wanted and list(numbers) == list(range(len(wanted)))
    for number, testid in numbers.items():
        await show(session, PAGES[name])
        if name in ("a frame", "a disabled button"):  # whose clicks the page itself does not hear
            x, y = await simplified_html.locate(session, number)
            hit = await session.page.evaluate(f"document.elementFromPoint({x}, {y}).dataset.testid")
        else:
            await webagent_r1.act(session, Call("Click", {"element": number}))
            hit = (await session.page.evaluate("hit"))[0]
        assert hit == testid
    assert len(PAGES) >= 20


FOLDED = {
    "details in details": "<details><summary>A</summary>" * 3 + "<p>deep</p>" + "</details>" * 3,
    "a row": '<details><summary>A</summary><div style="display:flex"><b>deep</b><i>x</i></div></details>',
    "hidden until found": '<div hidden="until-found"><p>deep</p></div>',
}


@pytest.mark.parametrize("name", FOLDED)
async def test_what_is_folded_away_looks_alike_at_every_look(session, name):
    """It is shown, as released; the first look had less, for nobody had asked for its layout."""
    await session.page.goto(f"data:text/html,<!doctype html><body>{FOLDED[name]}")
    looks = [await simplified_html.observe(session) for _ in range(3)]
    assert looks[0] == looks[1] == looks[2] and "deep" in looks[0]


async def test_a_box_ends_where_the_browser_draws_its_end(session):
    """As released: round(10.4) to round(30.8) are 21 pixels, not round(20.4); 10 to 25 are 15, not 14."""
    box = "position: absolute; margin: 0; left: 10.4px; width: 20.4px; top: 10.4px; height: 14.4px"
    assert 'data-bbox="10,10,21,15"' in await show(session, f'<p style="{box}">A</p>')


DEEP = """() => { let e = document.body;
  for (let i = 0; i < 2000; i++) e = e.appendChild(document.createElement('div'));
  e.innerHTML = '<button data-testid="b">B</button>';}"""
HANDLED = "document.querySelector('[data-testid=b]').onclick = () => {}"


TWO = '<div data-testid="a">A</div><div data-testid="b">B</div>'


@pytest.mark.parametrize(("page", "script"), [(TWO, HANDLED), ("<style>div { margin: 0 }</style>", DEEP)])
async def test_what_a_script_has_made_is_seen(session, page, script):
    await show(session, page)
    await session.page.evaluate(script)
    assert shown(await simplified_html.observe(session)) == {0: "b"}


FORGED = """() => { document.querySelector('circle').setAttribute('DATA-LABEL-ID', '7');
  const long = document.querySelector('p');
  for (let i = 0; i < 3000; i++) long.setAttribute(`a${i}`, ''); }"""


async def test_attributes_without_end_cost_no_time_and_none_is_taken_for_ours(session):
    """Parsing 40,000 attributes of an element would take 13 s, in which all other episodes wait."""
    await show(session, '<svg><circle r="9"/></svg><p>Text</p><b data-testid="b" onclick="1">B</b>')
    await session.page.evaluate(FORGED)
    page = await simplified_html.ask(session, "annotate")
    assert len(page) < 10_000 and shown(simplify(page)) == {0: "b"} and "Text" in page


async def test_a_form_with_odd_names_is_read_and_a_comment_forges_no_number(session):
    await show(session, '<form><input name="attributes"></form><b data-testid="b" onclick="1">Pay</b>')
    forged = '--><a data-label-id="1" data-bbox="1,1,90,20">Cancel</a>'
    await session.page.evaluate("text => document.body.append(document.createComment(text))", forged)
    page = simplify(await simplified_html.ask(session, "annotate"))
    assert '<b id="1"' in page and "Cancel" not in page


LISTENING = """<div data-testid="click">A</div><svg width="18" viewBox="-9 -9 18 18">
<circle data-testid="press" r="9"/></svg>
<div data-testid="held"><b data-testid="inner">B</b></div><i data-testid="hover">C</i>
<p role="switch" data-testid="role">D</p><p role="note" data-testid="note">E</p>
<script>
  const on = (kind, name) => document.querySelector(`[data-testid=${name}]`).addEventListener(kind, () => {});
  document.body.addEventListener('click', () => {});
  on('click', 'click'); on('mousedown', 'press'); on('click', 'held'); on('click', 'inner');
  on('mouseover', 'hover');
</script>"""


async def test_what_a_script_listens_on_has_a_number_if_it_is_asked_for(session):
    """Of what lies in one another the innermost, as ever; not the whole page."""
    assert shown(await show(session, LISTENING)) == {}
    numbers = shown(await simplified_html.observe(session, listeners=True))
    assert list(numbers.values()) == ["click", "press", "inner", "role"]
    await webagent_r1.act(session, Call("Click", {"element": 1}))
    assert await session.page.evaluate("hit") == ["press"]
    # an agent that is not asked for it sees what it did before
    assert shown(await simplified_html.observe(session)) == {}


async def test_without_boxes_a_text_stands_once(session):
    await show(session, '<label data-testid="a">Name <input value="Ada"></label><p>Hi <b>there</b> you</p>')
    page = await simplified_html.observe(session, boxes=False)
    assert page == (
        '<html> <body> <label data-testid="a"> Name <input id="0" value="Ada"> </input> </label> '
        '<p data-text="Hi,you"> Hi <b> there </b> </p> </body> </html>'
    )
    assert page.count("data-bbox") == 0 < (await simplified_html.observe(session)).count("data-bbox")


async def test_a_number_means_the_element_and_not_its_place(session):
    await show(session, '<button data-testid="a">A</button><br><button id="b" data-testid="b">B</button>')
    before = await simplified_html.locate(session, 1)
    await session.page.evaluate("b.style.marginTop = '300px'")
    after = await simplified_html.locate(session, 1)
    assert after[1] > before[1] + 200
    await webagent_r1.act(session, Call("Click", {"element": 1}))
    assert await session.page.evaluate("hit") == ["b"]


async def test_what_is_out_of_sight_is_scrolled_to(session):
    """At once, even where the page scrolls smoothly: the point is read right after."""
    style = "<style>html { scroll-behavior: smooth }</style>"
    await show(session, f'{style}<button data-testid="a">A</button><div style="height:3000px"></div>')
    await session.page.evaluate("scrollTo({top: 2500, behavior: 'instant'})")
    await webagent_r1.act(session, Call("Click", {"element": 0}))
    assert await session.page.evaluate("hit") == ["a"]


COVER = "document.body.insertAdjacentHTML('beforeend', '<div style=\"position:fixed;inset:0\"></div>')"


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("document.querySelector('button').remove()", "gone"),
        ("document.querySelector('button').style.display = 'none'", "no longer be seen"),
        (COVER, "covered"),
    ],
)
async def test_what_cannot_be_reached_is_said(session, script, reason):
    await show(session, '<button data-testid="a">A</button>')
    await session.page.evaluate(script)
    with pytest.raises(ToolFailure, match=reason):
        await simplified_html.locate(session, 0)


async def test_the_page_is_left_as_it_was(session):
    page = '<input data-testid="a" value="x"><select><option>1</option></select><button>B</button>'
    await session.page.set_content(f"<!doctype html>{STYLE}{page}")
    before = await session.page.content()
    watch = "new MutationObserver(() => { seen += 1; }).observe(document, {subtree: true, attributes: true})"
    await session.page.evaluate(f"window.seen = 0; {watch}")
    await simplified_html.observe(session)
    assert await session.page.content() == before and await session.page.evaluate("seen") == 0


async def test_live_values_are_shown(session):
    page = await show(
        session,
        '<input data-testid="a" value="old"><textarea data-testid="b"></textarea>'
        '<input type="checkbox" data-testid="c"><select data-testid="d"><option value="1">One</option>'
        '<option value="2">Two</option></select><input type="radio" data-testid="e">',
    )
    box, dot = (re.findall(f'(<input id="{n}".*?>)', page)[0] for n in (2, 4))
    assert 'data-value="on"' in box and 'data-status="not-checked"' in box and 'data-value="on"' in dot
    await session.page.evaluate("""() => { const [a, b, c, d] = document.querySelectorAll('[data-testid]');
        a.value = 'new'; b.value = 'text'; c.checked = true; d.selectedIndex = 1; }""")
    page = await simplified_html.observe(session)
    assert 'data-value="new"' in page and 'data-value="text"' in page and 'data-status="checked"' in page
    assert 'data-text="Two"' in page and '<option value="2" data-text="Two" data-status="selected"' in page
