"""The proxy by itself, and a Chromium that tries to get around it."""

import asyncio
import base64
import contextlib
import gc
import hashlib
import os
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from http.server import ThreadingHTTPServer
from typing import Any

import pages
import pytest
import pytest_asyncio
from pages import running, until
from playwright.async_api import Browser, Page, async_playwright
from playwright.async_api import Error as PlaywrightError

from minirl.browser import access, executable
from minirl.browser import proxy as proxies
from minirl.browser.access import Guard, Refused
from minirl.browser.pool import BrowserPool
from minirl.browser.proxy import CONNECTED, FAILED, NAMES, Proxy
from minirl.config import BrowserConfig

in_module = pytest.mark.asyncio(loop_scope="module")  # where tests share one browser
HELLO = b"\5\1\0"  # no authentication


class Site(ThreadingHTTPServer):
    """A server on 127.0.0.1 that notes what it is asked, and answers as pages and sockets do."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen: list[str] = []
        self.port = self.server_port
        self.secret = f"http://127.0.0.1:{self.port}/secret"
        self.pages = {
            "/": "<!doctype html><title>Home</title>Hello",
            "/secret": "<!doctype html><title>Secret</title>",
            "/image": f"<!doctype html><title>Image</title><img src='{self.secret}'>",
            "/frame": f"<!doctype html><title>Frame</title><iframe src='{self.secret}'></iframe>",
        }


class Handler(pages.Handler):
    server: Site

    def do_GET(self) -> None:
        self.server.seen.append(self.path)
        if self.headers.get("Upgrade", "").lower() == "websocket":
            key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
            digest = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
            self.send_response_only(101)
            for header in (("Upgrade", "websocket"), ("Connection", "Upgrade")):
                self.send_header(*header)
            self.send_header("Sec-WebSocket-Accept", digest)
            self.end_headers()
            self.wfile.write(b"\x81\x05hello")
        elif self.path == "/redirect":
            self.reply(b"", status=302, Location=self.server.secret)
        else:
            page = self.server.pages.get(self.path.partition("?")[0], "")
            self.reply(page.encode(), status=200 if page else 404)


class CountingGuard(Guard):
    """A guard that counts how often each host was refused."""

    def __init__(self, **rules: Any) -> None:
        super().__init__(**rules)
        self.failures: Counter[str] = Counter()

    async def resolve(self, host: str, port: int) -> list[tuple[str, int]]:
        try:
            return await super().resolve(host, port)
        except Refused:
            self.failures[host] += 1
            raise


@contextlib.asynccontextmanager
async def proxied(**rules: Any) -> AsyncIterator[Proxy]:
    """A proxy that leaves nothing: no task, no connection, no error that only the event loop hears of."""
    loop, errors, before = asyncio.get_running_loop(), [], asyncio.all_tasks()
    loop.set_exception_handler(lambda _, context: errors.append(context))
    try:
        async with Proxy(CountingGuard(**rules)) as proxy:
            yield proxy
        gc.collect()
        await until(lambda: not proxy.tasks and asyncio.all_tasks() <= before)
        assert errors == []
        with pytest.raises(OSError):
            await connect(proxy)
    finally:
        loop.set_exception_handler(None)


async def connect(proxy: Proxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", int(proxy.address.rpartition(":")[2]))


def request(host: str, port: int = 80) -> bytes:
    """What Chromium sends first."""
    return HELLO + b"\5\1\0\3" + bytes([len(host)]) + host.encode() + port.to_bytes(2, "big")


@contextlib.asynccontextmanager
async def tunnel(proxy: Proxy, *place: Any) -> AsyncIterator[tuple[int, Any, Any]]:
    """The reply's code, and the connection."""
    reader, writer = await connect(proxy)
    try:
        async with asyncio.timeout(10):
            writer.write(request(*place))
            assert await reader.readexactly(2) == b"\5\0"
            reply = await reader.readexactly(10)
            assert reply[0] == 5 and reply[2:] == b"\0\1" + bytes(6)
            yield reply[1], reader, writer
    finally:
        writer.close()


async def ask(proxy: Proxy, data: bytes) -> bytes:
    """All that comes back on a connection that sends `data`."""
    reader, writer = await connect(proxy)
    writer.write(data)
    async with asyncio.timeout(10):
        answer = await reader.read(-1)
    writer.close()
    return answer


@contextlib.asynccontextmanager
async def counting() -> AsyncIterator[int]:
    """The port of a server that says hello, and how much it was sent once the other side has ended."""

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello ")
        writer.write(str(len(await reader.read(-1))).encode())
        writer.close()

    server = await asyncio.start_server(count, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


@pytest.mark.parametrize("host", ["echo.test", "Echo.TEST.", "127.0.0.1", "::ffff:127.0.0.1"])
async def test_bytes_pass_to_a_site_and_connections_may_be_half_closed(host):
    async with counting() as port, proxied(sites={"echo.test": port}, private=True) as proxy:
        port = 443 if "test" in host.lower() else port  # a site is reached whatever the port
        async with tunnel(proxy, host, port) as (code, reader, writer):
            assert code == CONNECTED and await reader.readexactly(6) == b"hello "
            writer.write(b"\0\r\n\r\n" * 400_000)
            writer.write_eof()
            assert await reader.read(-1) == b"2000000"
        assert not proxy.guard.failures


async def test_what_is_malformed_is_not_answered():
    listen, number = b"\5\2\0\3\x09shop.test\0\x50", b"\5\1\0\1\x7f\0\0\1\0\x50"  # Chromium writes none
    password = b"\5\1\2"
    async with proxied(private=True) as proxy:
        for data in (b"CONNECT shop.test:443 HTTP/1.1\r\n\r\n", password, HELLO + listen, HELLO + number):
            assert await ask(proxy, data + bytes(32)) in (b"", b"\5\0")


async def test_hosts_that_are_not_there(names, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound, and not listening
        async with proxied(sites={"shop.test": free.getsockname()[1]}) as proxy:
            real = asyncio.open_connection
            silent = lambda ip, port: asyncio.sleep(9) if port == 81 else real(ip, port)  # noqa: E731
            monkeypatch.setattr(proxies, "CONNECT_SECONDS", 0.05)
            monkeypatch.setattr(asyncio, "open_connection", silent)
            names["silent.test"] = ["8.8.8.8", "8.8.4.4"]
            for host, port in (("shop.test", 443), ("nobody.test", 80), ("silent.test", 81)):
                async with tunnel(proxy, host, port) as (code, reader, _):
                    assert code == FAILED and await reader.read(-1) == b""


async def test_a_name_is_looked_up_once_and_may_not_change_its_mind(names, monkeypatch):
    with running(Site()) as site:
        async with proxied() as proxy:
            names["rebind.test"] = ["8.8.8.8"]
            await proxy.guard.check("http://rebind.test/")
            names["rebind.test"] = ["127.0.0.1"]
            async with tunnel(proxy, "rebind.test", site.port) as (code, _, _):
                assert code == FAILED and proxy.guard.failures == {"rebind.test": 1}
            monkeypatch.setattr(access, "is_public", lambda address: True)  # as if the site were far away
            names["asked"].clear()
            async with tunnel(proxy, "rebind.test", site.port) as (code, reader, writer):
                writer.write(b"GET / HTTP/1.0\r\n\r\n")
                assert code == CONNECTED and (await reader.read(-1)).endswith(b"Hello")
            assert names["asked"] == ["rebind.test"]


async def test_connections_in_every_state_end_with_the_proxy(monkeypatch):
    """A client that asks for nothing is left before that."""
    async with counting() as port, proxied(sites={"echo.test": port}) as proxy:
        monkeypatch.setattr(proxies, "HELLO_SECONDS", 0.05)
        assert await ask(proxy, request("echo.test")[:-1]) == b"\5\0"
        monkeypatch.undo()
    before, opened, echo = len(os.listdir("/proc/self/fd")), [], request("echo.test")
    async with counting() as port, proxied(sites={"echo.test": port}) as proxy:
        for sent in (b"", HELLO, echo[:-1], echo, echo + b"x" * 100_000):
            opened.append(await connect(proxy))
            opened[-1][1].write(sent)
        await until(lambda: len(proxy.tasks) == 5)
        await asyncio.sleep(0.1)
        assert len(proxy.tasks) == 5
        closing = time.monotonic()
    assert time.monotonic() - closing < 2 * proxies.CLOSE_SECONDS
    for reader, writer in opened:
        with contextlib.suppress(OSError):
            async with asyncio.timeout(5):
                await reader.read(-1)
        writer.close()
    await until(lambda: len(os.listdir("/proc/self/fd")) <= before)


@contextlib.asynccontextmanager
async def browsing(proxy: Proxy, flags: Sequence[str] = (NAMES,)) -> AsyncIterator[Browser]:
    how = {"server": proxy.address, "bypass": "<-loopback>"}
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(**executable.launch_options(*flags), proxy=how)
        yield browser
        await browser.close()


@pytest.fixture(scope="module")
def shop() -> Iterator[Site]:
    with running(Site()) as site:
        yield site


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def guarded(shop: Site) -> AsyncIterator[tuple[Browser, Proxy]]:
    async with Proxy(CountingGuard(sites={"shop.test": shop.port})) as proxy, browsing(proxy) as browser:
        yield browser, proxy
    assert not proxy.tasks


@pytest_asyncio.fixture(loop_scope="module")
async def page(guarded: tuple[Browser, Proxy], shop: Site) -> AsyncIterator[Page]:
    """A page of a site; the site's secret is at a private address, where no page may look."""
    page = await guarded[0].new_page()
    await page.goto("http://shop.test/")
    shop.seen.clear()
    guarded[1].guard.failures.clear()
    yield page
    await page.close()


INSIDE = [f"{at}:PORT/secret" for at in ("http://127.0.0.1", "https://127.0.0.1", "http://[::1]")]
SOCKET = """url => new Promise(done => { const socket = new WebSocket(url);
    socket.onmessage = event => done(event.data); socket.onerror = () => done('error'); })"""
FETCH = "async url => { try { return (await fetch(url, {mode: 'no-cors'})).type } catch { return 'error' } }"
RTC = """async port => {
    const peer = new RTCPeerConnection({iceServers: [{urls: 'stun:127.0.0.1:' + port}]});
    peer.createDataChannel('x');
    await peer.setLocalDescription(await peer.createOffer());
    await new Promise(done => setTimeout(done, 1500)); }"""


ALL_UDP = "--force-webrtc-ip-handling-policy=default"  # the last of two counts


@contextlib.contextmanager
def datagrams() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as inner:
        inner.bind(("127.0.0.1", 0))
        inner.setblocking(False)
        yield inner


@in_module
async def test_chromium_opens_a_site(page, shop):
    assert (await page.goto("http://shop.test:1234/")).status == 200
    assert await page.title() == "Home" and page.url == "http://shop.test:1234/"
    assert await page.evaluate(SOCKET, "ws://shop.test/socket") == "hello"
    assert shop.seen == ["/", "/socket"]


@in_module
@pytest.mark.parametrize("url", [*INSIDE, "http://shop.test/redirect"])
async def test_what_a_page_opens_does_not_lead_inside(page, shop, guarded, url):
    """Nor does a redirect; and another site opens afterwards, as the proxy is not held for broken."""
    with pytest.raises(PlaywrightError, match="ERR_SOCKS_CONNECTION_FAILED"):
        await page.goto(url.replace("PORT", str(shop.port)))
    assert sum(guarded[1].guard.failures.values()) >= 1
    await page.wait_for_url("chrome-error://**")
    assert (await page.goto("http://shop.test/")).status == 200 and "/secret" not in shop.seen


@in_module
async def test_what_a_page_loads_does_not_lead_inside(page, shop, guarded):
    failures = guarded[1].guard.failures
    for path in ("/image", "/frame"):
        await page.goto(f"http://shop.test{path}", wait_until="load")
    assert failures["127.0.0.1"] == 2
    assert await page.evaluate(FETCH, shop.secret) in ("error", "opaque")
    assert failures["127.0.0.1"] == 3
    for scheme in ("ws", "wss"):
        assert await page.evaluate(SOCKET, f"{scheme}://127.0.0.1:{shop.port}/secret") == "error"
    assert failures["127.0.0.1"] >= 5
    assert shop.seen == ["/image", "/frame"]


@in_module
async def test_webrtc_does_not_lead_around_the_proxy(page):
    with datagrams() as inner:
        await page.evaluate(RTC, inner.getsockname()[1])
        with pytest.raises(BlockingIOError):
            inner.recv(1)


@pytest.mark.more  # the same flag as above
async def test_webrtc_does_not_lead_out_of_a_sealed_pool(shop):
    sealed = BrowserPool(BrowserConfig(browsers=1), {"shop.test": shop.port}, sealed=True)
    async with sealed as pool, pool.session() as session:
        await session.start("http://shop.test/")
        with datagrams() as inner:
            await session.page.evaluate(RTC, inner.getsockname()[1])
            with pytest.raises(BlockingIOError):
                inner.recv(1)


@in_module
async def test_the_same_opens_without_the_guard(shop):
    """What the tests above try would succeed: else they'd show nothing."""
    rules = CountingGuard(private=True, sites={"shop.test": shop.port})
    with datagrams() as inner:
        async with Proxy(rules) as proxy, browsing(proxy, [ALL_UDP]) as browser:
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
    assert not rules.failures
