"""The client for models that are served elsewhere: teachers, judges, writers of worlds, models to evaluate.

Stands beside the loop: whatever asks a model over HTTP asks here. It speaks OpenAI's chat completions, as
nearly every server does; the `openai` package does the talking, the timeouts and the retries with back-off.
Added are a limit on requests in flight, a cache on disk (a judge that is asked the same again costs
nothing), an account of tokens and money, and one clear error for each way in which there can be no answer.

    endpoint = Endpoint(EndpointConfig(url="http://127.0.0.1:8000/v1", model="Qwen/Qwen3-VL-8B"))
    asked = [{"role": "user", "content": [text("What is this?"), image(png)]}]
    reply = await endpoint.ask(asked, max_tokens=50)
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from minirl.config import EndpointConfig
from minirl.console import say
from minirl.run_folder import write_atomic
from minirl.types import Message, charge

LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")
REASONS = re.compile(r"(o\d|gpt-5)")  # OpenAI's reasoning models, which know the limit by another name


class EndpointError(Exception):
    """No usable answer, after all retries; the message says which endpoint and why."""


class Refusal(EndpointError):
    """The model, or a filter before it, declined to answer. Asking again would not help."""


@dataclass(frozen=True)
class Reply:
    """An answer. `finish` is "length" if it was cut at the token limit; `cached` if it cost nothing."""

    text: str
    finish: str
    reasoning: str = ""  # where the server keeps it apart from the answer
    prompt_tokens: int = 0
    response_tokens: int = 0
    cached: bool = False


@dataclass
class Usage:
    """What an endpoint has been asked, and what that cost at the config's prices."""

    requests: int = 0
    cached: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    response_tokens: int = 0
    dollars: float = 0.0

    def __str__(self) -> str:
        return (
            f"{self.requests} requests, {self.cached} of them answered from the cache, {self.failed} failed; "
            f"{self.prompt_tokens} + {self.response_tokens} tokens, ${self.dollars:.2f}"
        )


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def image(png: bytes) -> dict[str, Any]:
    data = base64.b64encode(png).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def as_chat(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Our messages as the API has them."""
    return [
        {"role": role, "content": [image(part) if isinstance(part, bytes) else text(part) for part in parts]}
        for role, parts in messages
    ]


class Endpoint:
    """One model behind one URL. Use inside a running event loop, and `close` it there."""

    def __init__(self, config: EndpointConfig):
        if not config.model:
            raise ValueError(
                "--endpoint.model is missing: the name under which the endpoint serves the model"
            )
        key = os.environ.get(config.key)
        if key is None and urlsplit(config.url).hostname not in LOCAL_HOSTS:
            raise ValueError(f"--endpoint.url {config.url} wants a key: set the variable {config.key}")
        import openai  # slow to import: only where there is an endpoint

        self.config, self.usage = config, Usage()
        self.slots = asyncio.Semaphore(config.concurrency)
        self.client = openai.AsyncOpenAI(
            base_url=config.url, api_key=key or "none", timeout=config.seconds, max_retries=config.retries
        )

    async def ask(
        self, messages: Sequence[dict[str, Any]], max_tokens: int, **sampling: float | int
    ) -> Reply:
        """The model's answer to a conversation; `sampling` is temperature, top_p, seed, as the API has them.
        Equal requests have one answer if there is a cache, so give different seeds to want different ones.
        Raises EndpointError (Refusal among them), never the library's own."""
        limit = "max_completion_tokens" if REASONS.match(self.config.model) else "max_tokens"
        request = {
            "model": self.config.model,
            "messages": list(messages),
            limit: max_tokens,
            **sampling,
        }
        place = self._place(request)
        if place is not None and place.is_file():
            self.usage.requests += 1
            self.usage.cached += 1
            return Reply(**json.loads(place.read_text()) | {"cached": True})
        async with self.slots:
            self.usage.requests += 1
            try:
                body = await self._send(request)
                reply = self._read(body)
            except EndpointError:
                self.usage.failed += 1
                raise
        if place is not None and reply.finish == "stop":  # what was cut off may be whole another time
            write_atomic(place, json.dumps(asdict(reply)).encode())
        return reply

    async def close(self) -> None:
        await self.client.close()

    async def _send(self, request: dict[str, Any]) -> str:
        """The body of the answer."""
        import openai

        where = f"{self.config.url} ({self.config.model})"
        attempts = 1 + self.config.retries
        try:
            # the library's time limit is one for silence; an answer may also drip
            async with asyncio.timeout(2 * attempts * self.config.seconds):
                response = await self.client.chat.completions.with_raw_response.create(**request)
            return response.text
        except (openai.APITimeoutError, TimeoutError):
            raise EndpointError(f"{where} did not answer within {self.config.seconds:g} s") from None
        except openai.APIConnectionError as error:
            raise EndpointError(f"{where} can't be reached: {error.__cause__ or error}") from None
        except openai.APIStatusError as error:
            said = " ".join(error.message.split())[:300]
            raise EndpointError(f"{where} answered {error.status_code}: {said}") from None

    def _read(self, body: str) -> Reply:
        try:
            answer = json.loads(body)
            choice = answer["choices"][0]
            message, finish, used = choice["message"], choice["finish_reason"], answer.get("usage")
            words, refusal = message.get("content"), message.get("refusal")
            reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
            if words is None and (refusal or finish in ("content_filter", "length")):
                words = ""  # a limit that was reached while the model still reasoned
            if not isinstance(words, str) or not isinstance(reasoning, str):
                raise TypeError("no content")
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise EndpointError(
                f"{self.config.url} sent what is no chat completion ({error!r}): {body[:200]!r}"
            ) from None
        prompt_tokens, response_tokens = counted(used, "prompt_tokens"), counted(used, "completion_tokens")
        self.usage.prompt_tokens += prompt_tokens
        self.usage.response_tokens += response_tokens
        dollars = prompt_tokens * self.config.prompt_price / 1e6
        dollars += response_tokens * self.config.response_price / 1e6
        self.usage.dollars += dollars
        charge(dollars)
        if refusal or finish == "content_filter":  # which is paid for too
            raise Refusal(f"{self.config.model} refused: {refusal or 'filtered'}")
        return Reply(
            text=words,
            finish="length" if finish == "length" else "stop",
            reasoning=reasoning,
            prompt_tokens=prompt_tokens,
            response_tokens=response_tokens,
        )

    def _place(self, request: dict[str, Any]) -> Path | None:
        if self.config.cache is None:
            return None
        words = json.dumps([self.config.url, request], sort_keys=True)
        name = hashlib.sha256(words.encode()).hexdigest()
        return self.config.cache / name[:2] / f"{name}.json"


def counted(usage: Any, name: str) -> int:
    """A number of tokens, 0 where a server tells none.

    >>> counted({"prompt_tokens": 7}, "prompt_tokens"), counted("n/a", "prompt_tokens")
    (7, 0)
    """
    count = usage.get(name) if isinstance(usage, dict) else None
    return count if isinstance(count, int) else 0


@asynccontextmanager
async def open_endpoint(config: EndpointConfig) -> AsyncIterator[Endpoint]:
    """An endpoint for as long as the block lasts; then what it has cost is told."""
    endpoint = Endpoint(config)
    try:
        yield endpoint
    finally:
        await endpoint.close()
        say(f"{config.model}: {endpoint.usage}")
