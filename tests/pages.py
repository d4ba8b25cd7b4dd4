"""A small site on 127.0.0.1 whose pages do to a browser what pages do: for tests, not a test itself."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from minirl.agents.openwebrl import act, read_call
from minirl.agents.openwebrl_actions import observe
from minirl.browser.pool import BrowserPool
from minirl.browser.session import Session

__all__ = ["HEIGHT", "WIDTH", "contexts", "do", "loads", "observe", "point", "running", "serve", "until"]

WIDTH, HEIGHT = 500, 400  # of the viewport that the pages are made for

# Every box is `left top width height`; `log` collects what reached the page.
HOME = """
<!doctype html><title>Home</title>
<style>* { margin: 0 } body { height: 2000px } body > * { position: absolute }</style>
<script>
  const log = [];
  for (const kind of ["click", "dblclick", "contextmenu", "mousedown", "mouseup"])
    addEventListener(kind, e => log.push([kind, e.clientX, e.clientY]), true);
  addEventListener("keydown", e => log.push(e.key), true);
</script>
<a style="left: 10px; top: 10px; width: 80px; height: 30px" href="/two">To page two</a>
<a style="left: 100px; top: 10px; width: 80px; height: 30px" href="/two" target="_blank"
   rel="opener">In a new tab</a>
<button style="left: 200px; top: 10px; width: 80px; height: 30px"
        onclick="document.title = confirm('Sure?')">Ask</button>
<button style="left: 300px; top: 10px; width: 80px; height: 30px" onclick="for (;;);">Hang</button>
<input style="left: 10px; top: 60px; width: 150px; height: 20px" placeholder="Name" value="before">
<div id="area" style="left: 200px; top: 60px; width: 100px; height: 100px; overflow: auto">
  <div style="height: 250px">scrolls</div></div>
<div id="tip" style="left: 350px; top: 60px; width: 60px; height: 30px"
     onmouseenter="document.title = 'hovered'">Tip</div>
"""
TWO = """
<!doctype html><title>Two</title><button onclick="window.close()">Close me</button>
"""
UNSAVED = """
<!doctype html><title>Unsaved</title><input style="position: absolute; left: 10px; top: 10px; width: 80px">
<script>addEventListener("beforeunload", event => event.preventDefault())</script>
"""
RED = """
<!doctype html><title>Red</title><button style="position: absolute; left: 10px; top: 10px; width: 80px"
  onclick="document.body.style.background = 'red'; for (;;);">Go</button>
"""
CODE = """
<!doctype html><title>Code</title><input style="position: absolute; left: 10px; top: 10px; width: 80px"
  oninput="if (value === '1234') window.close()">
"""
PAGES = {"/": HOME, "/two": TWO, "/unsaved": UNSAVED, "/red": RED, "/code": CODE}


def point(x: float, y: float) -> list[float]:
    """Pixels of the viewport as the 0-1000 coordinates that tools take."""
    return [x * 1000 / WIDTH, y * 1000 / HEIGHT]


def call(name: str, **arguments: Any) -> str:
    """A tool call as it comes out of a response."""
    return json.dumps({"name": name, "arguments": arguments})


async def do(session: Session, name: str, **arguments: Any) -> str:
    """Carry out a tool call, checked and with its defaults; the agent's feedback."""
    return await carry_out(session, call(name, **arguments))


async def carry_out(session: Session, text: str) -> str:
    """The same for a call that is written already."""
    return await act(session, read_call(text))


def loads(pool: BrowserPool) -> list[int]:
    """Episodes per browser."""
    return [slot.load for slot in pool.slots]


def contexts(pool: BrowserPool) -> int:
    """Contexts that are open in all browsers."""
    return sum(len(slot.browser.contexts) for slot in pool.slots if slot.browser is not None)


async def until(condition: Callable[[], Any], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


class Handler(BaseHTTPRequestHandler):
    """Answers with PAGES; the base of other sites' handlers."""

    timeout = 10

    def do_GET(self) -> None:
        body = PAGES.get(self.path, "").encode()
        self.reply(body, status=200 if body else 404)

    def reply(
        self, body: bytes, *, status: int = 200, kind: str = "text/html", length: int = 0, **headers: str
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(length or len(body)))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def running(server: ThreadingHTTPServer) -> Iterator[ThreadingHTTPServer]:
    """The server, in a thread of its own while the block runs."""
    server.handle_error = lambda *_: None  # a browser that has gone is no error
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def serve() -> Iterator[str]:
    """The address of the site, without a slash at its end, while the block runs."""
    with running(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        yield f"http://127.0.0.1:{server.server_port}"
