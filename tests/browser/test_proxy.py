"""The proxy by itself, and a Chromium that tries to get around it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import hashlib
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st
from playwright.async_api import Browser, Page, async_playwright
from playwright.async_api import Error as PlaywrightError

from minirl.browser import access, executable
from minirl.browser import proxy as proxies
from minirl.browser.access import Guard
from minirl.browser.proxy import FLAGS, Proxy, parse

in_module = pytest.mark.asyncio(loop_scope="module")  # where tests share one browser


# --- the proxy -------------------------------------------------------------------------------------


class Site:
    """A server on 127.0.0.1 that notes what it is asked, and answers as pages and sockets do."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        self.heads: list[str] = []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler(self))
        self.server.handle_error = lambda *_: None  # a browser that has gone is no error
        self.port = self.server.server_port
        self.secret = f"http://127.0.0.1:{self.port}/secret"
        self.pages = {
            "/": "<!doctype html><title>Home</title>Hello",
            "/secret": "<!doctype html><title>Secret</title>",
            "/image": f"<!doctype html><title>Image</title><img src='{self.secret}'>",
            "/frame": f"<!doctype html><title>Frame</title><iframe src='{self.secret}'></iframe>",
        }


def handler(site: Site) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            site.seen.append(self.path)
            site.heads.append(f"{self.requestline}\n{self.headers}")
            if self.headers.get("Upgrade", "").lower() == "websocket":
                key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
                self.send_response_only(101)
                self.send_header("Upgrade", "websocket")
                self.send_header("Connection", "Upgrade")
                digest = base64.b64encode(hashlib.sha1(key.encode()).digest())
                self.send_header("Sec-WebSocket-Accept", digest.decode())
                self.end_headers()
                self.wfile.write(b"\x81\x05hello")
            elif self.path == "/redirect":
                self.reply(302, b"", Location=site.secret)
            else:
                page = site.pages.get(self.path.partition("?")[0], "")
                self.reply(200 if page else 404, page.encode())

        def do_POST(self) -> None:
            self.reply(200, self.rfile.read(int(self.headers["Content-Length"]))[::-1])

        def reply(self, status: int, body: bytes, **headers: str) -> None:
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(body))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@contextlib.contextmanager
def serve() -> Iterator[Site]:
    site = Site()
    thread = threading.Thread(target=site.server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield site
    finally:
        site.server.shutdown()
        site.server.server_close()
        thread.join()


@pytest.fixture
def site() -> Iterator[Site]:
    with serve() as site:
        yield site


@contextlib.asynccontextmanager
async def proxied(**rules: Any) -> AsyncIterator[Proxy]:
    """A proxy that leaves nothing: no task, no connection, no error that only the event loop hears of."""
    loop, errors, before = asyncio.get_running_loop(), [], asyncio.all_tasks()
    loop.set_exception_handler(lambda _, context: errors.append(context))
    try:
        async with Proxy(Guard(**rules)) as proxy:
            yield proxy
        gc.collect()
        assert not proxy.tasks and asyncio.all_tasks() <= before and errors == []
        with pytest.raises(OSError):
            await connect(proxy)
    finally:
        loop.set_exception_handler(None)


async def connect(proxy: Proxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", int(proxy.address.rpartition(":")[2]))


async def ask(proxy: Proxy, request: str | bytes) -> str:
    """All that comes back on a connection that sends `request`."""
    reader, writer = await connect(proxy)
    writer.write(request.encode() if isinstance(request, str) else request)
    async with asyncio.timeout(10):
        reply = await reader.read(-1)
    writer.close()
    return reply.decode()


async def test_a_site_is_reached_whatever_the_port(site):
    async with proxied(sites={"shop.test": site.port}) as proxy:
        request = (
            "GET http://u:p@Shop.test:81/?a=%20&b HTTP/1.1\r\nHost: other.test\r\nCookie:  a=b\r\n"
            "Proxy-Authorization: x\r\nProxy-Connection: keep-alive\r\nUpgrade: h2c\r\nTE: trailers\r\n\r\n"
        )
        reply = await ask(proxy, request)
        assert reply.startswith("HTTP/1.0 200 OK\r\n") and reply.endswith("Hello")
        assert proxy.connections == 1 and not proxy.guard.refusals
    head = site.heads[0].splitlines()
    assert head == ["GET /?a=%20&b HTTP/1.1", "Host: Shop.test:81", "Cookie: a=b", "Connection: close", ""]


async def test_a_long_body_passes(site):
    body = b"x" * 300_000 + b"end"
    head = f"POST http://shop.test/ HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
    async with proxied(sites={"shop.test": site.port}) as proxy:
        assert (await ask(proxy, head.encode() + body)).partition("\r\n\r\n")[2] == body[::-1].decode()


@contextlib.asynccontextmanager
async def counting(sent: list[bytes] | None = None) -> AsyncIterator[int]:
    """The port of a server that says hello, and how much it was sent once the other side has ended."""

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello ")
        data = await reader.read(-1)
        if sent is not None:
            sent.append(data)
        writer.write(str(len(data)).encode())
        writer.close()

    server = await asyncio.start_server(count, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()
    await asyncio.sleep(0.05)  # its connections end


async def test_a_tunnel_passes_bytes_and_half_closed_connections():
    async with counting() as port, proxied(sites={"echo.test": port}) as proxy:
        reader, writer = await connect(proxy)
        async with asyncio.timeout(10):
            writer.write(b"CONNECT echo.test:443 HTTP/1.1\r\nHost: echo.test:443\r\n\r\n")
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
            assert await reader.readexactly(6) == b"hello "
            writer.write(b"\0\r\n\r\n" * 400_000)
            writer.write_eof()
            assert await reader.read(-1) == b"2000000"
        writer.close()


async def test_what_follows_a_request_is_not_passed_on():
    sent: list[bytes] = []
    second = "GET http://shop.test/secret HTTP/1.1\r\n\r\n"
    async with counting(sent) as port, proxied(sites={"shop.test": port}) as proxy:
        for length in (0, 3):
            head = f"POST http://shop.test/ HTTP/1.1\r\nContent-Length: {length}\r\n\r\n"
            with contextlib.suppress(ConnectionResetError):  # closed with the second request unread
                await ask(proxy, head + "abc"[:length] + second)
        await until(lambda: len(sent) == 2)
    assert [data.partition(b"\r\n\r\n")[2] for data in sent] == [b"", b"abc"]


@pytest.mark.parametrize(
    "request_line",
    ["GET http://10.0.0.1/ HTTP/1.1", "CONNECT 10.0.0.1:443 HTTP/1.1", "POST http://[::1]:80/ HTTP/1.1"],
)
async def test_the_refused_are_told_why(request_line):
    async with proxied() as proxy:
        reply = await ask(proxy, f"{request_line}\r\nContent-Length: 99\r\n\r\n")
        assert reply.startswith("HTTP/1.1 403 Forbidden\r\nx-minirl: refused\r\n")
        assert " is a private address.</p>" in reply
        assert sum(proxy.guard.refusals.values()) == 1


async def test_the_page_escapes_what_it_tells():
    async with proxied(allow=["example.org"]) as proxy:
        reply = await ask(proxy, "GET http://<script>/ HTTP/1.1\r\n\r\n")
        assert "&lt;script&gt; is not on the list" in reply and "<script>" not in reply


@pytest.mark.parametrize(
    "head",
    [
        "GET / HTTP/1.1",
        "GET https://shop.test/ HTTP/1.1",
        "GET ftp://shop.test/ HTTP/1.1",
        "GET http://shop.test/",
        "GET http://shop.test/ x HTTP/1.1",
        "GET http://shop.test/ HTTP/2",
        "GET http://shop.test:99999/ HTTP/1.1",
        "GET http://[::1/ HTTP/1.1",
        "GET http:/// HTTP/1.1",
        "CONNECT shop.test HTTP/1.1",
        "CONNECT shop.test:99999 HTTP/1.1",
        "GET http://shop.test/ HTTP/1.1\r\nno colon",
        "GET http://shop.test/ HTTP/1.1\r\nA: b\r\n folded: c",
        "GET http://shop.test/ HTTP/1.1\r\nA: b\nHost: c",
        "POST http://shop.test/ HTTP/1.1\r\nContent-Length: -1",
        "POST http://shop.test/ HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2",
        "POST http://shop.test/ HTTP/1.1\r\nTransfer-Encoding: chunked",
        "\x16\x03\x01\x02",
        "",
    ],
)
async def test_a_malformed_head_is_told_as_such(site, head):
    async with proxied(sites={"shop.test": site.port}) as proxy:
        reply = await ask(proxy, f"{head}\r\n\r\n")
        assert reply.startswith("HTTP/1.1 400 Bad Request\r\nx-minirl: malformed\r\n")
        assert site.seen == []


@given(st.binary())
def test_a_head_is_read_or_not_whatever_it_is(head):
    for start in (b"", b"GET http://", b"CONNECT ", b"GET http://a.test/ HTTP/1.1\r\n"):
        with contextlib.suppress(ValueError):
            parse(start + head + b"\r\n\r\n")


async def test_a_head_without_end_is_cut():
    async with proxied() as proxy:
        reply = await ask(proxy, "GET http://shop.test/ HTTP/1.1\r\nA: " + "b" * 200_000)
        assert reply.startswith("HTTP/1.1 431 Request Header Fields Too Large\r\nx-minirl: malformed\r\n")


async def test_hosts_that_are_not_there(names, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound, and not listening
        async with proxied(sites={"shop.test": free.getsockname()[1]}) as proxy:
            for line in ("GET http://shop.test/ HTTP/1.1", "CONNECT shop.test:443 HTTP/1.1"):
                reply = await ask(proxy, f"{line}\r\n\r\n")
                assert reply.startswith("HTTP/1.1 502 Bad Gateway\r\nx-minirl: unreachable\r\n")
            reply = await ask(proxy, "GET http://nobody.test/ HTTP/1.1\r\n\r\n")
            assert reply.startswith("HTTP/1.1 502 Bad Gateway\r\nx-minirl: unresolved\r\n")
            real = asyncio.open_connection
            monkeypatch.setattr(proxies, "CONNECT_SECONDS", 0.05)
            monkeypatch.setattr(
                asyncio,
                "open_connection",
                lambda ip, port: asyncio.sleep(9) if port == 80 else real(ip, port),
            )
            names["silent.test"] = ["8.8.8.8", "8.8.4.4"]
            reply = await ask(proxy, "GET http://silent.test/ HTTP/1.1\r\n\r\n")
            assert reply.startswith("HTTP/1.1 504 Gateway Timeout\r\nx-minirl: unreachable\r\n")


async def test_a_name_is_looked_up_once_and_may_not_change_its_mind(names, site, monkeypatch):
    async with proxied() as proxy:
        names["rebind.test"] = ["8.8.8.8"]
        await proxy.guard.check("http://rebind.test/")
        names["rebind.test"] = ["127.0.0.1"]
        reply = await ask(proxy, f"CONNECT rebind.test:{site.port} HTTP/1.1\r\n\r\n")
        assert reply.startswith("HTTP/1.1 403 ") and "rebind.test is at 127.0.0.1, a private address" in reply
        monkeypatch.setattr(access, "public", lambda address: True)  # as if the site were far away
        names["asked"].clear()
        reply = await ask(proxy, f"GET http://rebind.test:{site.port}/ HTTP/1.1\r\n\r\n")
        assert reply.endswith("Hello") and names["asked"] == ["rebind.test"]


async def test_silence_ends_a_connection(monkeypatch):
    monkeypatch.setattr(proxies, "HEAD_SECONDS", 0.05)
    monkeypatch.setattr(proxies, "IDLE_SECONDS", 0.05)
    async with counting() as port, proxied(sites={"echo.test": port}) as proxy:
        assert await ask(proxy, "GET http://") == ""
        assert (await ask(proxy, "CONNECT echo.test:1 HTTP/1.1\r\n\r\n")).endswith("\r\n\r\nhello ")


async def test_a_connection_that_moves_in_one_direction_only_is_not_silent(monkeypatch):
    monkeypatch.setattr(proxies, "IDLE_SECONDS", 0.5)
    async with counting() as port, proxied(sites={"echo.test": port}) as proxy:
        reader, writer = await connect(proxy)
        writer.write(b"CONNECT echo.test:443 HTTP/1.1\r\n\r\n")
        for _ in range(50):
            writer.write(b"x")
            await asyncio.sleep(0.02)
        writer.write_eof()
        async with asyncio.timeout(10):
            assert (await reader.read(-1)).endswith(b"hello 50")
        writer.close()


async def test_connections_in_every_state_end_with_the_proxy():
    async def descriptors() -> int:
        gc.collect()
        await asyncio.sleep(0.05)
        return len(os.listdir("/proc/self/fd"))

    before, opened = await descriptors(), []
    async with counting() as port, proxied(sites={"echo.test": port}) as proxy:
        tunnel = b"CONNECT echo.test:1 HTTP/1.1\r\n\r\n"
        for sent in (
            b"",
            b"GET http",
            tunnel,
            tunnel + b"x" * 100_000,
            b"GET http://[::1]/ HTTP/1.1\r\n\r\n",
        ):
            opened.append(await connect(proxy))
            opened[-1][1].write(sent)
        await until(lambda: proxy.connections == 5)
        await asyncio.sleep(0.1)
        assert len(proxy.tasks) == 5
        for _ in range(3):  # these are not even accepted, or just so
            opened.append(await connect(proxy))
        closing = time.monotonic()
    assert time.monotonic() - closing < 2 * proxies.CLOSE_SECONDS
    for reader, writer in opened:
        with contextlib.suppress(OSError):
            async with asyncio.timeout(5):
                await reader.read(-1)
        writer.close()
    opened.clear()
    del reader, writer
    assert await descriptors() == before


async def test_connections_accepted_while_the_proxy_closes_end_as_well():
    for rounds in range(8):
        async with proxied() as proxy:
            client = socket.create_connection(("127.0.0.1", int(proxy.address.rpartition(":")[2])), 5)
            for _ in range(rounds):  # from not accepted at all to a task that has just begun
                await asyncio.sleep(0)
        with client, contextlib.suppress(ConnectionResetError):
            assert client.recv(1) == b""


async def test_clients_that_vanish_are_nobodys_trouble():
    async with counting() as port, proxied(sites={"echo.test": port}) as proxy:
        for sent in (b"", b"CONNECT echo.test:1 HTTP/1.1\r\n\r\n", b"GET http://echo.test/ HTTP/1.1\r\n\r\n"):
            for linger in (False, True):
                _, writer = await connect(proxy)
                writer.write(sent)
                await asyncio.sleep(0.02)
                writer.transport.abort() if linger else writer.close()
        await until(lambda: not proxy.tasks)
        assert proxy.connections == 6


# --- Chromium --------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def browsing(proxy: Proxy, flags: Sequence[str] = FLAGS) -> AsyncIterator[Browser]:
    how = {"server": proxy.address, "bypass": "<-loopback>"}
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(**executable.launch_options(flags), proxy=how)
        yield browser
        await browser.close()


@pytest.fixture(scope="module")
def shop() -> Iterator[Site]:
    with serve() as site:
        yield site


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def guarded(shop: Site) -> AsyncIterator[tuple[Browser, Proxy]]:
    async with Proxy(Guard(sites={"shop.test": shop.port})) as proxy, browsing(proxy) as browser:
        yield browser, proxy
    assert not proxy.tasks


@pytest_asyncio.fixture(loop_scope="module")
async def page(guarded: tuple[Browser, Proxy], shop: Site) -> AsyncIterator[Page]:
    """A page of a site; the site's secret is at a private address, where no page may look."""
    page = await guarded[0].new_page()
    await page.goto("http://shop.test/")
    shop.seen.clear()
    guarded[1].guard.refusals.clear()
    yield page
    await page.close()


SOCKET = """url => new Promise(done => { const socket = new WebSocket(url);
    socket.onmessage = event => done(event.data); socket.onerror = () => done('error'); })"""
FETCH = "async url => { try { return (await fetch(url, {mode: 'no-cors'})).type } catch { return 'error' } }"
RTC = """async port => {
    const peer = new RTCPeerConnection({iceServers: [{urls: 'stun:127.0.0.1:' + port}]});
    peer.createDataChannel('x');
    await peer.setLocalDescription(await peer.createOffer());
    await new Promise(done => setTimeout(done, 1500)); }"""


@in_module
async def test_chromium_opens_a_site(page, shop):
    assert (await page.goto("http://shop.test:1234/")).status == 200
    assert await page.title() == "Home" and page.url == "http://shop.test:1234/"
    assert await page.evaluate(SOCKET, "ws://shop.test/socket") == "hello"
    assert shop.seen == ["/", "/socket"]


@in_module
async def test_chromium_is_told_why_an_address_does_not_open(page, shop):
    for url in (shop.secret, f"http://localhost:{shop.port}/secret", f"http://[::1]:{shop.port}/secret"):
        reply = await page.goto(url)
        assert reply.status == 403 and reply.headers["x-minirl"] == "refused"
        assert "a private address." in await page.inner_text("p")
    with pytest.raises(PlaywrightError, match="ERR_TUNNEL_CONNECTION_FAILED"):
        await page.goto(shop.secret.replace("http:", "https:"))
    assert shop.seen == []


@in_module
async def test_a_redirect_does_not_lead_inside(page, shop):
    reply = await page.goto("http://shop.test/redirect")
    assert (reply.status, reply.url) == (403, shop.secret)
    assert shop.seen == ["/redirect"]


@in_module
async def test_what_a_page_loads_does_not_lead_inside(page, shop, guarded):
    refusals = guarded[1].guard.refusals
    for path in ("/image", "/frame"):
        await page.goto(f"http://shop.test{path}", wait_until="load")
    assert refusals["127.0.0.1"] == 2
    assert await page.evaluate(FETCH, shop.secret) in ("error", "opaque")
    assert refusals["127.0.0.1"] == 3
    assert await page.evaluate(SOCKET, f"ws://127.0.0.1:{shop.port}/secret") == "error"
    assert await page.evaluate(SOCKET, f"wss://127.0.0.1:{shop.port}/secret") == "error"
    assert refusals["127.0.0.1"] >= 5
    assert shop.seen == ["/image", "/frame"]


@in_module
async def test_webrtc_does_not_lead_around_the_proxy(page):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as inner:
        inner.bind(("127.0.0.1", 0))
        inner.setblocking(False)
        await page.evaluate(RTC, inner.getsockname()[1])
        with pytest.raises(BlockingIOError):
            inner.recv(1)


@in_module
async def test_the_same_opens_without_the_guard(shop):
    """What the tests above try would succeed: else they'd show nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as inner:
        inner.bind(("127.0.0.1", 0))
        inner.setblocking(False)
        rules = Guard(private=True, sites={"shop.test": shop.port})
        async with Proxy(rules) as proxy, browsing(proxy, flags=()) as browser:
            page = await browser.new_page()
            assert (await page.goto(shop.secret)).status == 200
            assert (await page.goto("http://shop.test/redirect")).status == 200
            shop.seen.clear()
            for path in ("/image", "/frame"):
                await page.goto(f"http://shop.test{path}", wait_until="load")
            assert await page.evaluate(FETCH, shop.secret) == "opaque"
            assert await page.evaluate(SOCKET, f"ws://127.0.0.1:{shop.port}/secret") == "hello"
            assert shop.seen.count("/secret") == 4
            await page.evaluate(RTC, inner.getsockname()[1])
            assert inner.recv(1) is not None
    assert not rules.refusals


async def until(condition: Any, seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)
