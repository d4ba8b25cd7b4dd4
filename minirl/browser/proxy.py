"""The SOCKS5 proxy that enforces what the guard allows; Chromium sends everything through it.

Chromium hands it every name unresolved; it looks the name up and connects to the very address that was
checked, so a name that changes between two lookups (DNS rebinding) gains nothing. Redirects, images, fetches
and websockets are checked like addresses that an agent types. OpenWebRL, the mitigations of appendix G.
"""

import asyncio
from asyncio import StreamReader, StreamWriter
from contextlib import suppress
from typing import Self

from minirl.browser.access import Guard, Place, Refused

# Chromium's, leaves every name to the proxy: what the browser would open without it finds no address
NAMES = "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"
CHUNK = 65536  # bytes
HELLO_SECONDS = 10.0  # for a client's request
CONNECT_SECONDS = 20.0  # for all addresses of a host together
CLOSE_SECONDS = 2.0  # for what was written to leave
REPLY = b"\5%c\0\1" + bytes(6)  # of RFC 1928, with a code; Chromium does not read the address behind it
CONNECTED = 0
FAILED = 1

Stream = tuple[StreamReader, StreamWriter]


class Proxy:
    """A SOCKS5 server on loopback that connects to what its guard allows. `address` is for Chromium."""

    def __init__(self, guard: Guard):
        self.guard = guard
        self.tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"socks5://127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *error: object) -> None:
        self.server.close()
        for task in self.tasks:
            task.cancel()
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=2 * CLOSE_SECONDS)

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        # What is malformed is not answered; a side may go, or say nothing at all; the proxy may close
        with suppress(OSError, EOFError, ValueError, asyncio.CancelledError):
            try:
                async with asyncio.timeout(HELLO_SECONDS):
                    host, port = await read_request(reader, writer)
                opened = await self._connect(host, port)
                writer.write(REPLY % (CONNECTED if opened else FAILED))
                if opened:
                    other_reader, other_writer = opened
                    try:
                        await asyncio.gather(copy(reader, other_writer), copy(other_reader, writer))
                    finally:
                        close(other_writer)
            finally:
                close(writer)

    async def _connect(self, host: str, port: int) -> Stream | None:
        with suppress(Refused, OSError):  # TimeoutError is an OSError, too
            addresses = await self.guard.resolve(host, port)
            for address in addresses:
                with suppress(OSError):
                    async with asyncio.timeout(CONNECT_SECONDS / len(addresses)):
                        return await asyncio.open_connection(*address)
        return None


async def read_request(reader: StreamReader, writer: StreamWriter) -> Place:
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


async def copy(reader: StreamReader, writer: StreamWriter) -> None:
    """Copy bytes until one end has said all or is gone, and tell the other end."""
    with suppress(OSError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
    writer.write_eof()


def close(writer: StreamWriter) -> None:
    """Close a connection, once all that was written has left."""
    writer.close()
    asyncio.get_running_loop().call_later(CLOSE_SECONDS, writer.transport.abort)
