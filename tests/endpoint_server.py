"""A served model that does as the script says: for tests of whatever asks one.

    with serve([say("hello"), status(429), say("again")]) as server:
        Endpoint(EndpointConfig(url=server.url, model="any"))

Each request takes the next act; the last one stays. `server.requests` are the JSON bodies it was sent.
"""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Act = Callable[[BaseHTTPRequestHandler, dict[str, Any]], None]


def send(
    handler: BaseHTTPRequestHandler, body: bytes, status: int = 200, headers: dict[str, Any] | None = None
) -> None:
    handler.send_response(status)
    usual = {"Content-Type": "application/json", "Content-Length": len(body)}
    for name, value in (usual | (headers or {})).items():
        handler.send_header(name, str(value))
    handler.end_headers()
    handler.wfile.write(body)


def completion(message: dict[str, Any], finish: str = "stop") -> bytes:
    usage = {"prompt_tokens": 100, "completion_tokens": 20, "total_tokens": 120}
    choice = {"index": 0, "message": {"role": "assistant"} | message, "finish_reason": finish}
    return json.dumps({"id": "1", "object": "chat.completion", "choices": [choice], "usage": usage}).encode()


def say(words: str | None | Callable[[dict[str, Any]], str], finish: str = "stop", **message: Any) -> Act:
    """A text, or one made from the request."""

    def act(handler: BaseHTTPRequestHandler, request: dict[str, Any]) -> None:
        content = words(request) if callable(words) else words
        send(handler, completion({"content": content} | message, finish))

    return act


def status(code: int, message: str = "") -> Act:
    return body(json.dumps({"error": {"message": message or f"code {code}"}}).encode(), code)


def takes_all_but(*names: str, code: int = 400) -> Act:
    """A server that refuses the first of these parameters that a request has, in OpenAI's words."""

    def act(handler: BaseHTTPRequestHandler, request: dict[str, Any]) -> None:
        for name in names:
            if name in request:
                refusal = f"Unsupported parameter: '{name}' is not supported with this model."
                return status(code, refusal)(handler, request)
        return say("a mug")(handler, request)

    return act


def body(words: bytes, code: int = 200, headers: dict[str, Any] | None = None) -> Act:
    return lambda handler, _: send(handler, words, code, headers)


def slow(seconds: float) -> Act:
    def act(handler: BaseHTTPRequestHandler, request: dict[str, Any]) -> None:
        time.sleep(seconds)
        with contextlib.suppress(OSError):  # the client has left
            send(handler, completion({"content": "late"}))

    return act


def cut_off(handler: BaseHTTPRequestHandler, request: dict[str, Any]) -> None:
    """The connection breaks in the middle of the answer."""
    answer = completion({"content": "never whole"})
    send(handler, answer[: len(answer) // 2], headers={"Content-Length": len(answer)})
    handler.close_connection = True


def drip(handler: BaseHTTPRequestHandler, request: dict[str, Any]) -> None:
    """An answer that never pauses for long and never ends."""
    send(handler, b"{", headers={"Content-Length": 1000})
    with contextlib.suppress(OSError):
        for _ in range(100):
            handler.wfile.write(b" ")
            handler.wfile.flush()
            time.sleep(0.03)
    handler.close_connection = True


def refuse(handler: BaseHTTPRequestHandler, request: dict[str, Any]) -> None:
    send(handler, completion({"content": None, "refusal": "I can't help with that."}))


@dataclass
class Server:
    url: str
    requests: list[dict[str, Any]] = field(default_factory=list)
    most: int = 0  # that were in flight at once


@contextlib.contextmanager
def serve(acts: Sequence[Act]) -> Iterator[Server]:
    lock, running = threading.Lock(), [0]

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                act = acts[min(len(server.requests), len(acts) - 1)]
                server.requests.append(request | {"authorization": self.headers["Authorization"]})
                running[0] += 1
                server.most = max(server.most, running[0])
            try:
                act(self, request)
            finally:
                with lock:
                    running[0] -= 1

        def log_message(self, *args: object) -> None:
            """Says nothing."""

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server = Server(f"http://127.0.0.1:{http.server_port}/v1")
    thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
