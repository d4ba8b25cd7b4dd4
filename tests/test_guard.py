"""What the guard lets through, the proxy that enforces it, and a Chromium that tries to get around both."""

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

from minirl import chromium, guard
from minirl.guard import FLAGS, Guard, Proxy, Refused, parse

in_module = pytest.mark.asyncio(loop_scope="module")  # where tests share one browser

# Networks with an address of each; those that are written in IPv6 may lead to an IPv4 address.
PRIVATE_4 = ["127.0.0.1", "127.1.2.3", "10.0.0.1", "10.255.255.255", "172.16.0.1", "172.31.255.1"]
PRIVATE_4 += ["192.168.1.1", "169.254.169.254", "100.64.0.1", "100.100.100.200", "0.0.0.0", "0.1.2.3"]
SPECIAL_4 = ["224.0.0.1", "239.1.1.1", "255.255.255.255", "240.0.0.1", "198.18.0.1", "192.0.0.192"]
SPECIAL_4 += ["168.63.129.16", "192.88.99.1"]
PRIVATE_6 = ["::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1"]
PRIVATE_6 += ["4000::1", "2001:db8::1", "3fff::1"]
INNER_6 = ["::ffff:10.0.0.1", "::ffff:7f00:1", "::10.0.0.1", "64:ff9b::a00:1", "64:ff9b::127.0.0.1"]
INNER_6 += ["64:ff9b:1::a00:1", "2002:0a00:0001::", "2002:7f00:1::1", "2001:0:808:808::f5ff:fffe"]
PRIVATE = [*PRIVATE_4, *SPECIAL_4, *PRIVATE_6, *INNER_6]
PUBLIC = ["8.8.8.8", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
PUBLIC += ["2002:808:808::1"]


def make(private: bool = False, allow: Any = (), deny: Any = (), rate: float = 0, sites: Any = None) -> Guard:
    return Guard(private, allow, deny, rate, sites or {})


# --- names -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ip", PRIVATE)
def test_private_addresses_are_refused_in_every_spelling(ip):
    for host in (ip, f"[{ip}]", ip.upper(), f"{ip}."):
        with pytest.raises(Refused, match="is a private address"):
            make().check_name(host)
    make(private=True).check_name(ip)


@pytest.mark.parametrize("ip", PUBLIC)
def test_public_addresses_are_not(ip):
    make().check_name(ip)
    make().check_name(f"[{ip}]")


@pytest.mark.parametrize(
    ("host", "inside"),
    [
        ("example.org", True),
        ("EXAMPLE.org.", True),
        ("www.example.org", True),
        ("a.b.example.org", True),
        ("notexample.org", False),
        ("example.org.evil.test", False),
        ("example.com", False),
        ("org", False),
        ("8.8.8.8", False),
    ],
)
def test_a_domain_means_itself_and_its_subdomains(host, inside):
    allowing, denying = make(allow=["other.test", "Example.org."]), make(deny=["example.org"])
    for strict, refuses in ((allowing, not inside), (denying, inside)):
        if refuses:
            with pytest.raises(Refused, match="list of (allowed|denied) domains"):
                strict.check_name(host)
        else:
            strict.check_name(host)
        assert sum(strict.refusals.values()) == refuses


def test_deny_wins_and_sites_always_open():
    both = make(allow=["example.org"], deny=["bad.example.org"], sites={"Shop.test": 8000})
    both.check_name("example.org")
    both.check_name("shop.TEST")
    for host in ("bad.example.org", "very.bad.example.org"):
        with pytest.raises(Refused, match="denied"):
            both.check_name(host)
    assert both.refusals == {"bad.example.org": 1, "very.bad.example.org": 1}


@pytest.mark.parametrize("host", ["bücher.example", "BÜCHER.example", "xn--bcher-kva.example"])
def test_names_beyond_ascii_match_their_xn_form(host):
    with pytest.raises(Refused, match="denied"):
        make(deny=["xn--bcher-kva.example"]).check_name(host)


@pytest.mark.parametrize("host", ["127。0。0。1", "１２７.0.0.1"])
def test_an_address_in_other_digits_is_an_address(host):
    with pytest.raises(Refused, match="127.0.0.1 is a private address"):
        make().check_name(host)


@pytest.mark.parametrize("host", ["", ".", "[]", "a..b", "a" * 64, "a\0b", "\ud800", "example.org.."])
def test_what_is_no_name_is_refused(host):
    with pytest.raises(Refused, match="is no host name"):
        make(private=True).check_name(host)


@given(st.text() | st.ip_addresses().map(str) | st.from_regex(r"[0-9a-fx.:%\[\]]*", fullmatch=True))
def test_a_name_is_refused_or_let_through_whatever_it_is(host):
    with contextlib.suppress(Refused):
        make(allow=["org", "0"], deny=["example.org"]).check_name(host)


@pytest.mark.parametrize(
    "entry", ["http://example.org", "example.org/path", "example.org:80", "*.example.org", "", "a b", "ü.de"]
)
def test_an_entry_that_matches_nothing_is_a_mistake(entry):
    for lists in ({"allow": [entry]}, {"deny": [entry]}):
        with pytest.raises(ValueError, match="is no domain: write example.org, without scheme"):
            make(**lists)
    with pytest.raises(ValueError, match="or 0 for no limit"):
        make(rate=-1)


def test_refusals_of_names_without_end_are_bounded():
    strict = make(allow=["example.org"])
    for i in range(1100):
        with pytest.raises(Refused):
            strict.check_name(f"{i}.test")
    assert len(strict.refusals) == 1001 and strict.refusals["others"] == 100


# --- addresses -------------------------------------------------------------------------------------


@pytest.fixture
def names(monkeypatch) -> dict[str, Any]:
    """The names that resolve, to these addresses; each one that is looked up is added to "asked"."""
    known: dict[str, Any] = {"asked": []}
    real = socket.getaddrinfo

    def lookup(host: str, port: int, *args: Any, **kwargs: Any) -> list[Any]:
        if host[0].isdigit() or ":" in host:
            return real(host, port, *args, **kwargs)
        known["asked"].append(host)
        if host not in known:
            raise socket.gaierror(socket.EAI_NONAME, "unknown")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)) for ip in known[host]]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    return known


async def test_only_public_addresses_of_a_name_are_used(names):
    names["mixed.test"] = ["10.0.0.1", "8.8.8.8", "::1", "2606:4700::1111", "8.8.8.8"]
    names["inner.test"] = ["192.168.0.7", "127.0.0.1"]
    names["none.test"] = []
    strict, loose = make(), make(private=True)
    assert await strict.resolve("Mixed.test", 80) == [("8.8.8.8", 80), ("2606:4700::1111", 80)]
    assert len(await loose.resolve("mixed.test", 80)) == 4
    with pytest.raises(Refused, match=r"inner.test is at 192.168.0.7, a private address"):
        await strict.resolve("inner.test", 443)
    with pytest.raises(OSError):
        await strict.resolve("unknown.test", 443)
    assert await strict.resolve("none.test", 443) == []
    assert strict.refusals == {"inner.test": 1}


async def test_a_forbidden_name_is_not_even_looked_up(names):
    with pytest.raises(Refused):
        await make(deny=["example.org"]).resolve("example.org", 80)
    assert await make(sites={"shop.test": 8123}).resolve("SHOP.test.", 443) == [("127.0.0.1", 8123)]
    assert names["asked"] == []


@pytest.mark.parametrize("host", ["127.1", "2130706433", "0x7f.1", "0177.0.0.1"])
async def test_old_spellings_of_an_address_resolve_to_it(host):
    with pytest.raises(Refused, match="is at 127.0.0.1, a private address"):
        await make().resolve(host, 80)


async def test_a_lookup_has_a_time_limit(monkeypatch):
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: time.sleep(0.5))
    monkeypatch.setattr(guard, "RESOLVE_SECONDS", 0.05)
    before = time.monotonic()
    with pytest.raises(OSError):
        await make().resolve("slow.test", 80)
    assert time.monotonic() - before < 0.5


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://10.0.0.1/", "10.0.0.1 is a private address"),
        (" HTTP://user:pass@[::1]:8080/x", "::1 is a private address"),
        ("https://www.denied.test/", "www.denied.test is on the list of denied domains"),
        ("http://inner.test/", "inner.test is at 10.1.1.1, a private address"),
        ("file:///etc/passwd", "only http and https addresses can be opened"),
        ("ws://inner.test/", "only http and https addresses can be opened"),
        ("example.org", "only http and https addresses can be opened"),
        ("http://", "'' is no host name"),
        ("http://[::1/", "'http://[::1/' is no web address"),
        ("http://a.test:99999/", "'http://a.test:99999/' is no web address"),
    ],
)
async def test_an_address_is_refused_with_its_reason(names, url, reason):
    names["inner.test"] = ["10.1.1.1"]
    with pytest.raises(Refused) as caught:
        await make(deny=["denied.test"]).check(url)
    assert str(caught.value) == reason
    with pytest.raises(Refused, match="is not on the list of allowed domains"):
        await make(allow=["example.org"]).check("https://other.test/")


async def test_an_address_that_may_be_opened(names):
    names["example.org"] = ["8.8.8.8"]
    for url in (
        "http://example.org",
        "https://example.org:8443/a?b#c",
        "http://unknown.test/",
        "http://s.test",
    ):
        await make(sites={"s.test": 1}).check(url)


# --- pace ------------------------------------------------------------------------------------------


async def test_turns_on_a_host_come_in_order_and_apart():
    paced, came, before = make(rate=20), [], time.monotonic()

    async def act(host: str, n: int) -> None:
        await paced.pace(host)
        came.append((host, n))

    await asyncio.gather(*[act(host, n) for n in range(4) for host in ("a.test", "A.test.", "b.test")])
    assert time.monotonic() - before >= 7 * 0.05 - 0.01
    assert [n for host, n in came if host == "b.test"] == [0, 1, 2, 3]
    assert [n for host, n in came if host != "b.test"] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert came.index(("b.test", 3)) < came.index(("A.test.", 2))  # it did not wait for the other's
    await asyncio.sleep(0.1)
    gc.collect()
    assert len(paced.turns) == 0


async def test_a_turn_that_is_given_up_leaves_no_gap():
    paced = make(rate=2)
    await paced.pace("a.test")
    gone = [asyncio.create_task(paced.pace("a.test")) for _ in range(100)]
    await asyncio.sleep(0)
    for task in gone:
        task.cancel()
    async with asyncio.timeout(10):
        await paced.pace("a.test")


async def test_no_rate_and_our_own_sites_do_not_wait():
    async with asyncio.timeout(10):
        for _ in range(100):
            await make().pace("a.test")
        paced = make(rate=0.001, sites={"shop.test": 1})
        for _ in range(100):
            await paced.pace("shop.test")


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
        async with Proxy(make(**rules)) as proxy:
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


async def test_a_body_passes_and_what_follows_it_does_not(site):
    body = b"x" * 300_000 + b"end"
    head = f"POST http://shop.test/ HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
    async with proxied(sites={"shop.test": site.port}) as proxy:
        assert (await ask(proxy, head.encode() + body)).partition("\r\n\r\n")[2] == body[::-1].decode()
        second = b"GET /secret HTTP/1.1\r\nHost: shop.test\r\n\r\n"
        await ask(proxy, b"GET http://shop.test/ HTTP/1.1\r\n\r\n" + second)
        assert "/secret" not in site.seen


@contextlib.asynccontextmanager
async def counting() -> AsyncIterator[int]:
    """The port of a server that counts what it is sent, and tells when the other side has ended."""

    async def count(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello ")
        writer.write(str(len(await reader.read(-1))).encode())
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


@pytest.mark.parametrize(
    "request_line",
    ["GET http://10.0.0.1/ HTTP/1.1", "CONNECT 10.0.0.1:443 HTTP/1.1", "POST http://[::1]:80/ HTTP/1.1"],
)
async def test_the_refused_are_told_why(request_line):
    async with proxied() as proxy:
        reply = await ask(proxy, f"{request_line}\r\nContent-Length: 99\r\n\r\n")
        assert reply.startswith("HTTP/1.1 403 Forbidden\r\nX-Minirl: refused\r\n")
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
        assert reply.startswith("HTTP/1.1 400 Bad Request\r\nX-Minirl: malformed\r\n")
        assert site.seen == []


@given(st.binary())
def test_a_head_is_read_or_not_whatever_it_is(head):
    for start in (b"", b"GET http://", b"CONNECT ", b"GET http://a.test/ HTTP/1.1\r\n"):
        with contextlib.suppress(ValueError):
            parse(start + head + b"\r\n\r\n")


async def test_a_head_without_end_is_cut():
    async with proxied() as proxy:
        reply = await ask(proxy, "GET http://shop.test/ HTTP/1.1\r\nA: " + "b" * 200_000)
        assert reply.startswith("HTTP/1.1 431 Request Header Fields Too Large\r\nX-Minirl: malformed\r\n")


async def test_hosts_that_are_not_there(names, monkeypatch):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound, and not listening
        async with proxied(sites={"shop.test": free.getsockname()[1]}) as proxy:
            for line in ("GET http://shop.test/ HTTP/1.1", "CONNECT shop.test:443 HTTP/1.1"):
                reply = await ask(proxy, f"{line}\r\n\r\n")
                assert reply.startswith("HTTP/1.1 502 Bad Gateway\r\nX-Minirl: unreachable\r\n")
            reply = await ask(proxy, "GET http://nobody.test/ HTTP/1.1\r\n\r\n")
            assert reply.startswith("HTTP/1.1 502 Bad Gateway\r\nX-Minirl: unresolved\r\n")
            real = asyncio.open_connection
            monkeypatch.setattr(guard, "CONNECT_SECONDS", 0.05)
            monkeypatch.setattr(
                asyncio,
                "open_connection",
                lambda ip, port: asyncio.sleep(9) if port == 80 else real(ip, port),
            )
            names["silent.test"] = ["8.8.8.8", "8.8.4.4"]
            reply = await ask(proxy, "GET http://silent.test/ HTTP/1.1\r\n\r\n")
            assert reply.startswith("HTTP/1.1 504 Gateway Timeout\r\nX-Minirl: unreachable\r\n")


async def test_a_name_is_looked_up_once_and_may_not_change_its_mind(names, site, monkeypatch):
    async with proxied() as proxy:
        names["rebind.test"] = ["8.8.8.8"]
        await proxy.guard.check("http://rebind.test/")
        names["rebind.test"] = ["127.0.0.1"]
        reply = await ask(proxy, f"CONNECT rebind.test:{site.port} HTTP/1.1\r\n\r\n")
        assert reply.startswith("HTTP/1.1 403 ") and "rebind.test is at 127.0.0.1, a private address" in reply
        monkeypatch.setattr(guard, "public", lambda address: True)  # as if the site were far away
        names["asked"].clear()
        reply = await ask(proxy, f"GET http://rebind.test:{site.port}/ HTTP/1.1\r\n\r\n")
        assert reply.endswith("Hello") and names["asked"] == ["rebind.test"]


async def test_silence_ends_a_connection(monkeypatch):
    monkeypatch.setattr(guard, "HEAD_SECONDS", 0.05)
    monkeypatch.setattr(guard, "IDLE_SECONDS", 0.05)
    async with counting() as port, proxied(sites={"echo.test": port}) as proxy:
        assert await ask(proxy, "GET http://") == ""
        assert (await ask(proxy, "CONNECT echo.test:1 HTTP/1.1\r\n\r\n")).endswith("\r\n\r\nhello ")


async def test_a_connection_that_moves_in_one_direction_only_is_not_silent(monkeypatch):
    monkeypatch.setattr(guard, "IDLE_SECONDS", 0.2)
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
        await asyncio.sleep(0.1)
        assert len(proxy.tasks) == proxy.connections == 5
        for _ in range(3):  # these are not even accepted, or just so
            opened.append(await connect(proxy))
        closing = time.monotonic()
    assert time.monotonic() - closing < 2 * guard.CLOSE_SECONDS
    for reader, writer in opened:
        with contextlib.suppress(OSError):
            async with asyncio.timeout(5):
                await reader.read(-1)
        writer.close()
    opened.clear()
    del reader, writer
    assert await descriptors() == before


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
        browser = await playwright.chromium.launch(**chromium.launch_options(flags), proxy=how)
        yield browser
        await browser.close()


@pytest.fixture(scope="module")
def shop() -> Iterator[Site]:
    with serve() as site:
        yield site


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def guarded(shop: Site) -> AsyncIterator[tuple[Browser, Proxy]]:
    async with Proxy(make(sites={"shop.test": shop.port})) as proxy, browsing(proxy) as browser:
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
        rules = make(private=True, sites={"shop.test": shop.port})
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
