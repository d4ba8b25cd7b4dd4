"""The SOCKS5 proxy that enforces what the guard allows; Chromium sends everything through it.

Chromium hands it every name unresolved; it looks the name up and connects to the very address that was
checked, so a name that changes between two lookups (DNS rebinding) gains nothing. Redirects, images, fetches
and websockets are checked like addresses that an agent types. OpenWebRL, the mitigations of appendix G.
"""

import asyncio
import contextlib
from asyncio import StreamReader, StreamWriter
from collections.abc import AsyncIterator
from typing import Self

from minirl.browser.access import Guard, Refused

# Without the first the proxy can be passed by: WebRTC sends UDP to any address that a page names. The second
# leaves every name to the proxy: what the browser would open without it finds no address.
FLAGS = (
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)
CHUNK = 65536  # bytes
HELLO_SECONDS, CONNECT_SECONDS, IDLE_SECONDS, CLOSE_SECONDS = 10.0, 20.0, 300.0, 2.0
REPLY = b"\5%c\0\1" + bytes(6)  # of RFC 1928, with a code; Chromium does not read the address behind it
CONNECTED, FAILED = 0, 1

Stream = tuple[StreamReader, StreamWriter]


class Proxy:
    """A SOCKS5 server on loopback that connects to what its guard allows. `address` is for Chromium."""

    def __init__(self, guard: Guard):
        self.guard, self.address, self.is_closing = guard, "", False
        self.tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"socks5://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *error: object) -> None:
        self.is_closing = True
        self.server.close()
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=2 * CLOSE_SECONDS)
        for _ in range(5):  # what was accepted just before takes some rounds of the loop to end in _serve
            await asyncio.sleep(0)

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        if self.is_closing:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        # What is malformed is not answered; a side may go, or be silent for too long; the proxy may close
        with contextlib.suppress(OSError, EOFError, ValueError, asyncio.CancelledError):
            async with closing(writer):
                async with asyncio.timeout(HELLO_SECONDS):
                    host, port = await read_request(reader, writer)
                opened = await self._connect(host, port)
                writer.write(REPLY % (CONNECTED if opened else FAILED))
                if opened:
                    async with closing(opened[1]):
                        await relay((reader, writer), opened)

    async def _connect(self, host: str, port: int) -> Stream | None:
        with contextlib.suppress(Refused, OSError):
            addresses = await self.guard.resolve(host, port)
            for address in addresses:
                with contextlib.suppress(OSError):  # TimeoutError is one, too
                    async with asyncio.timeout(CONNECT_SECONDS / len(addresses)):
                        return await asyncio.open_connection(*address)
        return None


async def read_request(reader: StreamReader, writer: StreamWriter) -> tuple[str, int]:
    """Return the host and port that a client asks for. Raises ValueError for what Chromium never sends."""
    version, methods = await reader.readexactly(2)
    if version != 5 or 0 not in await reader.readexactly(methods):
        raise ValueError("no SOCKS5 without authentication")
    writer.write(b"\5\0")
    *head, length = await reader.readexactly(5)
    if head != [5, 1, 0, 3]:
        raise ValueError("no request for a connection to a name")
    host = (await reader.readexactly(length)).decode("latin-1")
    return host, int.from_bytes(await reader.readexactly(2), "big")


async def relay(client: Stream, server: Stream) -> None:
    """Copy bytes both ways until both ends have said all, one breaks, or nothing moves for IDLE_SECONDS."""

    async def copy(reader: StreamReader, writer: StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
            if not idle.expired():
                idle.reschedule(asyncio.get_running_loop().time() + IDLE_SECONDS)
        writer.write_eof()

    try:
        async with asyncio.timeout(IDLE_SECONDS) as idle, asyncio.TaskGroup() as copies:
            copies.create_task(copy(client[0], server[1]))
            copies.create_task(copy(server[0], client[1]))
    except* OSError:
        pass  # one end is gone: so is the other, then


@contextlib.asynccontextmanager
async def closing(writer: StreamWriter) -> AsyncIterator[None]:
    """Close a connection after the block, once all that was written has left; at once if cancelled."""
    try:
        yield
        with contextlib.suppress(OSError):
            async with asyncio.timeout(CLOSE_SECONDS):
                writer.close()
                await writer.wait_closed()
    finally:
        writer.transport.abort()
