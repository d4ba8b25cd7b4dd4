"""A site on 127.0.0.1 whose pages do the bad things that live pages do: for tests, not a test itself.

A page's title is its path in words ("/slow-fetch": "Slow fetch"), until `say(text)` in the page overwrites
it; where the page has an `#out`, say() writes there too. Chromium opens six connections to a host at most
in one context, so that six responses that never end leave no room for a seventh page.
"""

import contextlib
import os
import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import pages
from pages import HEIGHT, WIDTH, point, running

__all__ = ["HEIGHT", "SPOTS", "WIDTH", "hits", "point", "serve"]

SPOTS: dict[str, tuple[float, float]] = {}  # the pixel in the middle of what a test clicks on
hits: Counter[str] = Counter()  # requests by path, without the query, since the site was started
counting = threading.Lock()
FRAME = 'style="position: absolute; left: 40px; top: 60px; width: 300px; height: 200px; border: 0"'
DAYS = "".join(
    f'<button at="day-{day} {10 + (day - 1) % 7 * 45} {60 + (day - 1) // 7 * 35} 40 30">{day}</button>'
    for day in range(1, 32)
)

# at="NAME LEFT TOP WIDTH HEIGHT in X Y" places an element, gives it the id NAME and puts its middle into
# SPOTS. The name can be missing. `in` tells how far off the viewport's corner LEFT and TOP are counted.
HTML = (Path(__file__).parent / "data/hostile.html").read_text().replace("DAYS", DAYS).replace("FRAME", FRAME)
BODIES = dict(re.findall(r"<!-- (/\S*?)(?:: [^\n]*)? -->\n(.*?)(?=<!-- |\Z)", HTML, re.DOTALL))
PATHS = [*BODIES, "/loop", "/reset", "/empty", "/slow", "/to-private", "/file.bin"]
BODIES["/"] = "".join(
    f'<a at="{path} {10 + n % 4 * 120} {5 + n // 4 * 28} 110 24" href="{path}">{path}</a>'
    for n, path in enumerate(PATHS)
)
STATUS = {"/404": 404, "/404-busy": 404, "/500": 500}
HEADERS = {"/sandboxed": {"Content-Security-Policy": "sandbox"}}
KINDS = {"woff2": "font/woff2", "png": "image/png", "txt": "text/plain"}


def place(match: re.Match[str]) -> str:
    name, *numbers = match.groups(default="0")
    left, top, width, height, x, y = map(int, numbers)
    if match[1]:
        middle = x + left + width / 2, y + top + height / 2
        assert name not in SPOTS and 0 < middle[0] < WIDTH and 0 < middle[1] < HEIGHT, name
        SPOTS[name] = middle
    box = f"left: {left}px; top: {top}px; width: {width}px; height: {height}px"
    style = f'style="position: absolute; box-sizing: border-box; margin: 0; {box}"'
    return f' id="{name}" {style}' if match[1] else f" {style}"


def build(path: str, body: str) -> str:
    body = re.sub(r' at="(?:(\S+) )?(\d+) (\d+) (\d+) (\d+)(?: in (-?\d+) (-?\d+))?"', place, body)
    return f"""<!doctype html><title>{path[1:].replace("-", " ").capitalize() or "Index"}</title>
<style>* {{ margin: 0 }} body {{ font: 13px sans-serif }} .area {{ overflow: auto }}</style>
<script>
  function say(text) {{
    document.title = text;
    const out = document.getElementById("out");
    if (out) out.textContent = text;
  }}
</script>
{body}"""


PAGES = {path: build(path, body) for path, body in BODIES.items()}
SPOTS["frame-button"], SPOTS["frame-input"] = (  # in both pages with a frame, which lies at 40, 60
    (40 + SPOTS[name][0], 60 + SPOTS[name][1]) for name in ("inner-button", "inner-input")
)


class Site(ThreadingHTTPServer):
    request_queue_size = 64  # 40 windows at once

    def __init__(self, stop: threading.Event) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.stop = stop
        self.ports: list[int] = []
        self.sockets: set[socket.socket] = set()

    def get_request(self) -> tuple[socket.socket, object]:
        connection, address = super().get_request()
        self.sockets.add(connection)
        return connection, address

    def shutdown_request(self, request: socket.socket) -> None:
        self.sockets.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        for connection in list(self.sockets):  # preconnected ones too
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        super().server_close()


class Handler(pages.Handler):
    server: Site

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        with counting:
            hits[path] += 1
        if path == "/loop":
            self.reply(b"", status=302, Location="/loop")
        elif path == "/to-private":
            self.reply(b"", status=302, Location=f"http://127.0.0.1:{self.server.ports[0]}/secret")
        elif path == "/reset":  # closed behind the server's back, which would end it properly
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            os.close(self.connection.detach())
        elif path == "/204":
            self.reply(b"", status=204)
        elif path == "/slow":
            self.server.stop.wait()
        elif path.startswith("/never."):
            self.reply(b"", length=100_000, kind=KINDS.get(path.partition(".")[2], "text/plain"))
            self.server.stop.wait()
        elif path == "/data":
            self.server.stop.wait(float(parse_qs(query)["ms"][0]) / 1000)
            self.reply(b"arrived", kind="text/plain")
        elif path == "/file.bin":
            disposition = {"Content-Disposition": 'attachment; filename="file.bin"'}
            self.reply(bytes(1024), kind="application/octet-stream", **disposition)
        elif path == "/shown.pdf":
            self.reply(b"%PDF-1.4", kind="application/pdf")
        elif path == "/late.txt":
            self.server.stop.wait(0.2)
            self.reply(b"saved", kind="text/plain")
        elif path == "/login":
            self.reply(b"Log in", status=401, **{"WWW-Authenticate": "Basic realm=x"})
        elif path != "/empty":
            first, second = self.server.ports
            text = PAGES.get(path, PAGES["/404"]).replace("PORT2", str(second)).replace("PORT", str(first))
            status = STATUS.get(path, 200 if path in PAGES else 404)
            self.reply(text.encode(), status=status, **HEADERS.get(path, {}))


@contextlib.contextmanager
def serve() -> Iterator[str]:
    """The address of the site, without a slash at its end, while the block runs."""
    hits.clear()
    stop = threading.Event()
    with running(Site(stop)) as first, running(Site(stop)) as second:  # the second is another origin
        first.ports = second.ports = [first.server_port, second.server_port]
        try:
            yield f"http://127.0.0.1:{first.server_port}"
        finally:
            stop.set()
