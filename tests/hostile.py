"""A site on 127.0.0.1 whose pages do the bad things that live pages do: for tests, not a test itself.

A page's title is its path in words ("/slow-fetch": "Slow fetch"), until `say(text)` in the page overwrites
it; where the page has an `#out`, say() writes there too. Chromium opens six connections to a host at most
in one context, so that six responses that never end leave no room for a seventh page.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

from pages import HEIGHT, WIDTH, point

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
BODIES = {
    # --- other windows ---
    "/two": "<p>A plain second page.</p>",
    "/popup": """
<button at="popup 10 10 120 30" onclick="window.open('/two')">Open</button>
<a at="popup-blank 140 10 120 30" href="/two" target="_blank">In a new tab</a>
<button at="popup-close 270 10 120 30" onclick="window.open('/close')">Open closing</button>""",
    "/popups": """
<button at="popups 10 10 120 30"
        onclick="for (let n = 0; n < 40; n++) window.open('/two?n=' + n)">Open 40</button>""",
    "/close": '<button at="close 10 10 120 30" onclick="window.close()">Close me</button>',
    # --- dialogs ---
    "/dialog": """
<button at="dialog-alert 10 10 100 30" onclick="alert('Careful'); say('alerted')">Alert</button>
<button at="dialog-confirm 120 10 100 30" onclick="say(confirm('Sure?'))">Confirm</button>
<button at="dialog-prompt 230 10 100 30" onclick="say(prompt('Your name?', 'nobody'))">Prompt</button>
<output id="out" at="10 60 300 30">no answer</output>""",
    "/alerts": '<button at="alerts 10 10 120 30" onclick="while (true) alert(\'again\')">Alert</button>',
    # Chromium asks only about a page that the user has touched.
    "/beforeunload": """
<input at="beforeunload 10 10 200 30" placeholder="Unsaved">
<a at="beforeunload-link 10 60 120 30" href="/two">Leave</a>
<script>addEventListener("beforeunload", e => { e.preventDefault(); e.returnValue = "" })</script>""",
    "/geolocation": """
<button at="geolocation 10 10 150 30" onclick="navigator.geolocation.getCurrentPosition(
  () => say('location known'), error => say('location error ' + error.code))">Where am I</button>
<button at="notification 170 10 150 30" onclick="Notification.requestPermission().then(
  answer => say('notification ' + answer))">Notify me</button>""",
    # --- what never ends ---
    "/bounce": """
<output id="out" at="10 10 200 30"></output>
<script>
  const n = Number(new URLSearchParams(location.search).get("n"));
  document.getElementById("out").value = n;
  addEventListener("load", () => setTimeout(() => location.replace("/bounce?n=" + (n + 1)), 50));
</script>""",
    "/hung": """
<button at="hung 10 10 120 30" onclick="for (;;);">Hang</button>
<button at="hung-other 140 10 120 30" onclick="say('alive')">Alive?</button>""",
    "/hung-load": "<p>Before the script.</p><script>for (;;);</script><p>After it.</p>",
    # `load` never comes, nor does document.fonts.ready, for which a screenshot by Playwright waits.
    "/font": """
<style>@font-face { font-family: never; src: url(/never.woff2) } button { font-family: never }</style>
<button at="font 10 10 200 30" onclick="say('clicked')">In the font</button>""",
    # `load` never comes here either: no image is lazy.
    "/image": """
<style>body { height: 2000px }</style>
<button at="image 10 10 120 30" onclick="say('clicked')">Click</button>
<img at="10 60 100 100" src="/never.png?here"><img at="10 1500 100 100" src="/never.png?below">""",
    "/slow-fetch": """
<button at="fetch 10 10 120 30" onclick="fetch('/data?ms=400').then(reply => reply.text()).then(
  text => document.getElementById('out').textContent = text)">Fetch</button>
<button at="fetch-endless 140 10 120 30" onclick="fetch('/never.txt')">Fetch forever</button>
<div id="out" at="10 60 300 30">waiting</div>""",
    # --- where the pointer fails ---
    # The release of the button, or all of the click, goes to the page behind.
    "/moves": """
<button at="moves-down 10 10 100 30" onmousedown="this.style.left = '160px'">On press</button>
<button at="moves-over 10 60 100 30" onpointerover="this.style.left = '160px'">On hover</button>
<script>
  addEventListener("click", e => say(e.target.tagName == "BUTTON" ? "hit" : "missed"));
</script>""",
    "/overlay": """
<button at="overlay 50 50 150 40" onclick="say('under clicked')">Under</button>
<div id="banner" style="position: fixed; inset: 0; background: #000a">
  <button at="overlay-accept 190 300 120 40"
          onclick="document.getElementById('banner').remove()">Accept</button></div>""",
    # Tells its parent, because the title of a frame is not seen.
    "/inner": """
<style>body { background: #ddd }</style>
<script>const tell = text => { say(text); parent.postMessage(text, "*") }</script>
<button at="inner-button 10 10 120 30" onclick="tell('inner clicked')">Inner</button>
<input at="inner-input 10 60 150 30" oninput="tell('typed ' + this.value)">""",
    "/frame": f'<script>onmessage = e => say(e.data)</script><iframe {FRAME} src="/inner"></iframe>',
    # Another origin but the same site, hence the same process; opened as `localhost`, another site too.
    "/frame-cross": f"""
<script>onmessage = e => say(e.data)</script>
<iframe {FRAME} src="http://127.0.0.1:PORT2/inner"></iframe>""",
    "/shadow": """
<template id="open">
  <button at="open-button 10 10 120 30" onclick="say('open clicked')">Open</button>
  <input at="open-input 140 10 150 30" oninput="say('open typed ' + this.value)"></template>
<template id="closed">
  <button at="closed-button 10 60 120 30" onclick="say('closed clicked')">Closed</button>
  <input at="closed-input 140 60 150 30" oninput="say('closed typed ' + this.value)"></template>
<x-open></x-open><x-closed></x-closed>
<script>
  for (const mode of ["open", "closed"])
    customElements.define("x-" + mode, class extends HTMLElement {
      constructor() {
        super();
        this.attachShadow({ mode }).append(document.getElementById(mode).content.cloneNode(true));
      }
    });
</script>""",
    # --- fields ---
    "/date": """
<input at="date 10 10 150 30" type="date" onchange="say(this.value)">
<input at="time 170 10 150 30" type="time" onchange="say(this.value)">
<input at="range 10 60 200 30" type="range" min="0" max="100" value="50" onchange="say(this.value)">""",
    "/calendar": f"""
<input at="calendar 10 10 150 30" readonly placeholder="Pick a day"
       onclick="document.getElementById('days').hidden = false">
<div id="days" hidden onclick="if (event.target.tagName == 'BUTTON') {{
  document.querySelector('input').value = '2030-05-' + event.target.textContent.padStart(2, '0');
  this.hidden = true; }}">{DAYS}</div>""",
    "/select": """
<label at="select-label 10 10 60 30" for="select">Fruit</label>
<select at="select 80 10 150 30" onchange="say(this.value)"><option>Apple<option>Banana<option>Cherry
<option>Date<option>Elderberry<option>Fig</select>""",
    "/autocomplete": """
<input at="autocomplete 10 10 200 30" oninput="clearTimeout(timer); timer = setTimeout(suggest, 150)">
<div id="list" hidden onclick="field.value = event.target.textContent; this.hidden = true">
  <button at="suggestion-1 10 50 200 30">New York, NY</button>
  <button at="suggestion-2 10 85 200 30">New Orleans, LA</button>
  <button at="suggestion-3 10 120 200 30">Newark, NJ</button></div>
<script>
  let timer;
  const field = document.querySelector("input");
  function suggest() {
    const fits = /^new/i.test(field.value);
    document.getElementById("list").hidden = !fits;
    if (fits) field.value = "New York, NY";
  }
</script>""",
    "/masked": """
<input at="masked 10 10 200 30" oninput="this.value = this.value.replace(/[^0-9]/g, '')">""",
    "/maxlength": '<input at="maxlength 10 10 200 30" maxlength="5">',
    "/readonly": """
<input at="readonly 10 10 150 30" readonly value="fixed">
<button at="disabled 170 10 120 30" disabled onclick="say('clicked')">Disabled</button>
<div at="editable 10 60 200 60" contenteditable>Edit me</div>""",
    # Nothing in here touches the title or the address.
    "/toggle": """
<input at="checkbox 10 10 20 20" type="checkbox">
<label at="checkbox-label 40 10 120 20" for="checkbox">I agree</label>
<input at="radio-a 10 50 20 20" type="radio" name="radio" value="a">
<input at="radio-b 40 50 20 20" type="radio" name="radio" value="b">
<details><summary at="summary 10 90 120 30">More</summary><p at="10 125 120 20">Details</p></details>
<button at="expander 200 10 120 30" aria-expanded="false" onclick="
  const menu = document.getElementById('menu'); menu.hidden = !menu.hidden;
  this.setAttribute('aria-expanded', !menu.hidden)">Menu</button>
<ul id="menu" hidden at="200 45 120 60"><li>First</li><li>Second</li></ul>
<div at="dead 200 120 120 30">Does nothing</div>
<button at="rewriter 10 170 120 30"
        onclick="document.getElementById('place').innerHTML = '<b>new</b>'">Rewrite</button>
<div id="place" at="140 170 120 30"><i>old</i></div>""",
    # --- scrolling ---
    "/scroll": """
<style>html, body { height: 100%; overflow: hidden }</style>
<button at="scroll-bar 10 5 120 30" onclick="say('clicked')">Top bar</button>
<div class="area" at="scroll-area 0 40 500 360"><div style="height: 2000px">The app</div></div>""",
    "/nested": """
<style>body { height: 2000px }</style>
<div class="area" at="nested-outer 50 50 400 300"><div style="height: 1000px">Outer</div>
  <div class="area" at="nested-inner 10 30 150 100 in 50 50">
    <div style="height: 600px">Inner</div></div></div>""",
    "/tall": """
<style>body { height: 3000px }</style>
<button at="tall 10 10 120 30" onclick="say('top clicked')">Top</button>
<button at="tall-end 10 2960 120 30 in 0 -2600" onclick="say('end clicked')">End</button>""",
    "/anchor": """
<style>body { height: 3000px }</style>
<a at="anchor 10 10 120 30" href="#bottom">To the bottom</a>
<button at="push 140 10 120 30"
        onclick="history.pushState({}, '', '/anchor?pushed'); say('Pushed')">Push</button>
<output id="out" at="10 60 200 30">first view</output><p id="bottom" at="10 2500 200 30">Bottom</p>
<script>addEventListener("popstate", () => say("Popped"))</script>""",
    "/late-frame": """
<button at="late-frame 10 10 120 30" onclick="document.body.append(Object.assign(
  document.createElement('iframe'), {src: '/inner'}))">Add a frame</button>""",
    "/leaving": """
<a at="no-content 10 10 120 30" href="/204">Nothing there</a>
<a at="never-page 140 10 120 30" href="/slow">Never</a>
<button at="fetch-and-leave 270 10 120 30"
        onclick="fetch('/never.txt'); location = '/two'">Fetch and leave</button>""",
    "/frame-scroll": """
<style>body { height: 2000px }</style>
<iframe id="inner" at="frame-scroll 40 60 300 200" src="/tall"></iframe>""",
    "/spoiled": """
<button at="spoiled 10 10 120 30" onclick="say('clicked')">Click</button>
<script>Symbol.for = () => { throw 0 }; window.MutationObserver = undefined;
  Object.keys = () => []; Object.prototype.toJSON = () => 5;</script>""",
    "/long-address": """
<script>history.replaceState({}, "", "?q=" + "x".repeat(100000))</script>""",
    # --- links to where no page should lead ---
    "/download": '<a at="download 10 10 120 30" href="/file.bin">Download</a>',
    # What a javascript: link returns replaces the document, if it is a string.
    "/js-url": """
<a at="js-url 10 10 120 30" href="javascript:void(document.title='ran')">Run</a>
<a at="js-url-text 140 10 120 30" href="javascript:document.title='ran'">Replace</a>""",
    "/file": '<a at="file 10 10 120 30" href="file:///etc/passwd">Local file</a>',
    "/private": """
<a at="private 10 10 120 30" href="http://127.0.0.1:PORT/secret">Secret</a>
<a at="private-redirect 140 10 120 30" href="/to-private">By a redirect</a>""",
    "/secret": "<p>Secret</p>",
    # Tests crash it themselves, over CDP: Page.crash.
    "/crash": '<button at="crash 10 10 120 30" onclick="say(\'alive\')">Alive?</button>',
    "/404": "<p>There is no such page.</p>",
    "/500": "<p>The server is broken.</p>",
}
PATHS = [*BODIES, "/loop", "/reset", "/empty", "/slow", "/to-private", "/file.bin"]
BODIES["/"] = "".join(
    f'<a at="{path} {10 + n % 4 * 120} {5 + n // 4 * 28} 110 24" href="{path}">{path}</a>'
    for n, path in enumerate(PATHS)
)
STATUS = {"/404": 404, "/500": 500}
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

    def handle_error(self, *_: object) -> None:
        pass  # a browser that goes away


class Handler(BaseHTTPRequestHandler):
    timeout = 10
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
        elif path != "/empty":
            first, second = self.server.ports
            text = PAGES.get(path, PAGES["/404"]).replace("PORT2", str(second)).replace("PORT", str(first))
            self.reply(text.encode(), status=STATUS.get(path, 200 if path in PAGES else 404))

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


@contextlib.contextmanager
def serve() -> Iterator[str]:
    """The address of the site, without a slash at its end, while the block runs."""
    hits.clear()
    stop = threading.Event()
    sites = [Site(stop), Site(stop)]  # the second is another origin
    threads = [threading.Thread(target=site.serve_forever, args=(0.05,), daemon=True) for site in sites]
    for site, thread in zip(sites, threads, strict=True):
        site.ports = [site.server_port for site in sites]
        thread.start()
    try:
        yield f"http://127.0.0.1:{sites[0].server_port}"
    finally:
        stop.set()
        for site, thread in zip(sites, threads, strict=True):
            site.shutdown()
            for connection in list(site.sockets):  # preconnected ones too
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            site.server_close()
            thread.join()
