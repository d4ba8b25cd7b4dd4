"""The forward proxy that enforces what the guard allows; Chromium sends everything through it.

Stands between the browser pool and the network, on loopback. It looks names up itself and connects to the
very address that was checked: a name that changes between two lookups (DNS rebinding) gains nothing, and
redirects, images, fetches and websockets are checked like addresses that an agent types.

OpenWebRL, the mitigations of appendix G.

    async with Proxy(guard) as proxy:
        launch(args=[*FLAGS], proxy={"server": proxy.address, "bypass": "<-loopback>"})
"""

from __future__ import annotations

import asyncio
import contextlib
import html
import math
import re
from dataclasses import dataclass
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import urlsplit

from minirl.browser.access import Guard, Refused

# Without the first the proxy can be passed by: WebRTC sends UDP to any address that a page names. The second
# leaves every name to the proxy: what the browser would open without it finds no address.
FLAGS = (
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)
PROBLEM_HEADER = "x-minirl"  # of answers that are the proxy's own: what was wrong
CHUNK = HEAD_BYTES = 65536
HEAD_SECONDS, CONNECT_SECONDS, IDLE_SECONDS, CLOSE_SECONDS = 10.0, 20.0, 300.0, 2.0

TUNNEL = re.compile(r"CONNECT ([!-~]+:[0-9]+) HTTP/1\.[01]")
PLAIN = re.compile(r"([!-~]+) http://([^/?#\s]+)([!-~]*) HTTP/1\.[01]")
FIELD = re.compile(r"([^\s:]+):([^\r\n]*)")
DROPPED = re.compile(r"proxy-.*|connection|keep-alive|te|upgrade|host", re.I)  # meant for us, or set anew


class Problem(Exception):
    """What the proxy answers itself: a status, the value of PROBLEM_HEADER, and the reason."""

    def __init__(self, status: HTTPStatus, kind: str, reason: str):
        super().__init__(reason)
        self.status, self.kind = status, kind


@dataclass(frozen=True)
class Request:
    host: str
    port: int
    head: bytes
    """What the server is sent; nothing for a tunnel (CONNECT)."""
    body: float
    """Bytes that follow the head; of a tunnel any number."""


class Stream(NamedTuple):
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class Proxy:
    """A forward proxy on loopback that reaches what its guard allows; one request per connection."""

    def __init__(self, guard: Guard):
        self.guard = guard
        self.address = ""
        self.connections = 0
        self.tasks: set[asyncio.Task[None]] = set()
        self.server: asyncio.Server | None = None

    async def __aenter__(self) -> Proxy:
        self.server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=HEAD_BYTES)
        self.address = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self.server is not None
        self.server.close()
        self.server = None
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=2 * CLOSE_SECONDS)
        for _ in range(5):  # what was accepted just before takes some rounds of the loop to end in _accept
            await asyncio.sleep(0)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Not a coroutine: asyncio would make the task, and __aexit__ might not know of it yet."""
        if self.server is None:
            writer.transport.abort()
            return
        self.connections += 1
        task = asyncio.create_task(self._serve(Stream(reader, writer)))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        task.add_done_callback(lambda _: writer.transport.abort())  # if cancelled before it began

    async def _serve(self, client: Stream) -> None:
        try:
            request = await read_request(client.reader)
            server = await self._connect(request)
            try:
                if request.head:
                    server.writer.write(request.head)
                else:
                    client.writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                await relay(client, server, request.body)
            finally:
                await close(server.writer)
        except Problem as problem:
            await answer(client, problem)
        except (OSError, EOFError):
            pass  # one side is gone, or said nothing for too long
        finally:
            await close(client.writer)

    async def _connect(self, request: Request) -> Stream:
        """Tries the host's checked addresses one by one, as numbers: nothing is looked up a second time."""
        try:
            addresses = await self.guard.resolve(request.host, request.port)
        except Refused as refused:
            raise Problem(HTTPStatus.FORBIDDEN, "refused", str(refused)) from None
        except OSError:
            raise Problem(HTTPStatus.BAD_GATEWAY, "unresolved", f"{request.host} has no address") from None
        status = HTTPStatus.BAD_GATEWAY
        for address in addresses:
            try:
                async with asyncio.timeout(CONNECT_SECONDS / len(addresses)):
                    return Stream(*await asyncio.open_connection(*address))
            except TimeoutError:
                status = HTTPStatus.GATEWAY_TIMEOUT
            except OSError:
                status = HTTPStatus.BAD_GATEWAY
        raise Problem(status, "unreachable", f"{request.host} can't be reached at port {request.port}")


async def read_request(reader: asyncio.StreamReader) -> Request:
    try:
        async with asyncio.timeout(HEAD_SECONDS):
            return parse(await reader.readuntil(b"\r\n\r\n"))
    except asyncio.LimitOverrunError:
        status, reason = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the head is longer than 64 KiB"
        raise Problem(status, "malformed", reason) from None
    except ValueError:
        reason = "this is no request to a proxy, or has a body of unknown length"
        raise Problem(HTTPStatus.BAD_REQUEST, "malformed", reason) from None


def parse(head: bytes) -> Request:
    """The request of a head. Raises ValueError if it is none, or does not tell the length of its body."""
    first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    if tunnel := TUNNEL.fullmatch(first):
        place = urlsplit(f"//{tunnel[1]}")
        return Request(place.hostname or "", place.port or 0, b"", math.inf)
    plain, matches = PLAIN.fullmatch(first), [FIELD.fullmatch(line) for line in lines]
    if plain is None or None in matches:
        raise ValueError(first)
    method, authority, path = plain.groups()
    authority = authority.rpartition("@")[2]
    place = urlsplit(f"//{authority}")
    fields = [match.groups() for match in matches]
    [length] = [value.strip() for name, value in fields if name.lower() == "content-length"] or ["0"]
    if not length.isdecimal() or any(name.lower() == "transfer-encoding" for name, _ in fields):
        raise ValueError(first)
    kept = [f"{name}:{value}" for name, value in fields if not DROPPED.fullmatch(name)]
    start = f"{method} {path if path.startswith('/') else '/' + path} HTTP/1.1"
    text = "\r\n".join([start, f"Host: {authority}", *kept, "Connection: close", "", ""])
    return Request(place.hostname or "", place.port or 80, text.encode("latin-1"), int(length))


async def relay(client: Stream, server: Stream, body: float) -> None:
    """Copies bytes both ways until both sides have ended, one breaks, or nothing moves for a long time.

    A request with its body of known length is over when either side ends, or when the browser sends more:
    that is its next request, and goes through the checks on a new connection.
    """
    moved = 0

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, left: float) -> None:
        nonlocal moved
        while left and (data := await reader.read(min(CHUNK, left))):
            writer.write(data)
            await writer.drain()
            moved, left = moved + len(data), left - len(data)
        if left:
            writer.write_eof()
        else:
            await reader.read(CHUNK)

    up, down = copy(client.reader, server.writer, body), copy(server.reader, client.writer, math.inf)
    tasks = pending = {asyncio.create_task(up), asyncio.create_task(down)}
    try:
        while pending:
            before = moved
            done, pending = await asyncio.wait(
                pending, timeout=IDLE_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                task.result()  # raises what broke it
            if (done and body < math.inf) or (not done and moved == before):
                break
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def answer(client: Stream, problem: Problem) -> None:
    """Sends the proxy's own page. Chromium shows it for http, and an error of its own for a tunnel."""
    status, reason = problem.status, html.escape(str(problem))
    page = f"<!doctype html><title>{status.phrase}</title><h1>{status.phrase}</h1><p>{reason}.</p>".encode()
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\n{PROBLEM_HEADER}: {problem.kind}\r\n"
        "Cache-Control: no-store\r\n"
        f"Content-Type: text/html; charset=utf-8\r\nContent-Length: {len(page)}\r\nConnection: close\r\n\r\n"
    )
    with contextlib.suppress(OSError):
        async with asyncio.timeout(CLOSE_SECONDS):
            client.writer.write(head.encode() + page)
            client.writer.write_eof()
            while await client.reader.read(CHUNK):  # closed with bytes unread, it would be reset
                pass


async def close(writer: asyncio.StreamWriter) -> None:
    """Closes a connection once all that was written has left; at once in a task that is being cancelled."""
    task = asyncio.current_task()
    try:
        if task is not None and not task.cancelling():
            with contextlib.suppress(OSError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    writer.close()
                    await writer.wait_closed()
    finally:
        writer.transport.abort()
