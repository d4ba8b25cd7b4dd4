"""A small site on 127.0.0.1 whose pages do to a browser what pages do: for tests, not a test itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

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
PAGES = {"/": HOME, "/two": TWO}


def point(x: float, y: float) -> list[float]:
    """Pixels of the viewport as the 0-1000 coordinates that tools take."""
    return [x * 1000 / WIDTH, y * 1000 / HEIGHT]


@contextmanager
def serve() -> Iterator[str]:
    """The address of the site, without a slash at its end, while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            body = PAGES.get(self.path, "").encode()
            self.send_response(200 if body else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
