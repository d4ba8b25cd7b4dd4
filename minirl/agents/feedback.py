"""What an action has changed, told in sentences: the end of a line of feedback.

    with watched(session, point) as effect: an action --> effect.notes, " Page navigated to http://..."

openwebrl_actions.py puts the line together. OpenWebRL, section 4.1 and table 5.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace

from minirl.browser.page_scripts import PageAnswer, looks_the_same
from minirl.console import without_passwords
from minirl.types import Point, Session, ToolFailure

FEEDBACK_CHARS = 512  # of a line


def shorten(text: str) -> str:
    """Collapse whitespace, leave out passwords in addresses, and cut the middle out of a long text: its head
    says what, its tail why."""
    text = without_passwords(" ".join(text.split()))
    if len(text) <= FEEDBACK_CHARS:
        return text
    head = int(0.7 * (FEEDBACK_CHARS - 5))
    return text[:head] + " ... " + text[head + 5 - FEEDBACK_CHARS :]


async def screen(session: Session) -> bytes:
    """Return a new screenshot, which is also the next observation's if no action comes between."""
    session.unseen = await session.screenshot()
    return session.unseen


@asynccontextmanager
async def watched(
    session: Session, point: Point | None = None, quiet: bool = False, is_click: bool = False
) -> AsyncIterator[SimpleNamespace]:
    """Mark the page, run the block's action at `point` (CSS pixels), wait until the page is ready (`quiet`:
    the full time, as after typing). Yields the target's `name` and, of a list, `options`; then `notes` are
    the changes as sentences, each after a blank, and `fresh` tells if the page is another than before. Of a
    click it is told, too, if the agent sees the page as it was."""
    page = session.page
    old_url = page.url
    old_tabs = len(session.context.pages)
    before = b""
    look = session.look or screen
    if is_click:  # the agent has seen it already, unless it made another call of the same response
        before = session.seen or await look(session)
    target = await session.arm(point)
    effect = SimpleNamespace(name=target.name or "something", options=target.options, kind=target.kind)
    try:
        yield effect
    except ToolFailure:  # what closes its own tab may do so before the browser has answered
        if not page.is_closed():
            raise
    settled = await session.settle(quiet=quiet)
    notes = _changes(settled, session, old_url, old_tabs, is_click)
    if is_click and not (notes or target.options or settled.changes or settled.revalued):
        after = await look(session)
        if "type=file" in effect.name and not session.news:  # a busy browser tells only later that it opens
            with suppress(ToolFailure):
                await session.do(page.wait_for_event("filechooser", timeout=2000))
        if not session.news and looks_the_same(before, after, settled.masks):
            notes.append("Note: no visible navigation or new tab detected.")
    effect.masks = settled.masks
    effect.fresh = settled.fresh
    effect.notes = "".join(f" {note}" for note in notes)


def _changes(settled: PageAnswer, session: Session, old_url: str, old_tabs: int, is_click: bool) -> list[str]:
    """Return sentences on where the browser is, if not where it was, and on the target and the focus."""
    url = session.page.url
    n_tabs = len(session.context.pages)
    notes = []
    if settled.error:
        notes.append(f"The page that it leads to could not be loaded ({settled.error}).")
    elif n_tabs < old_tabs:
        notes.append(f"The tab closed; the current one is at {url}.")
    elif url != old_url:
        notes.append(f"Page navigated to {url}.")
    elif settled.fresh and n_tabs == old_tabs:
        notes.append("The page was loaded anew.")
    if settled.status >= 400:
        notes.append(f"The server answered with status {settled.status}.")
    if n_tabs > old_tabs:
        notes.append(f"New tab opened (tab {n_tabs - 1}).")
    if settled.state:
        notes.append(f"It is now {settled.state}.")
    if settled.moved and is_click:
        notes.append("It has moved away from under the pointer, and may not have got the click.")
    if settled.focus:
        notes.append("It has the focus." if settled.focus == "it" else f"The focus is on {settled.focus}.")
    if settled.invalid:
        notes.append(f'The form was not sent: "{settled.invalid}"')
    return notes
