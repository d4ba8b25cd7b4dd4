"""Models that are served elsewhere: the client, and a sampler that asks it.

The client speaks OpenAI's chat completions through the `openai` package, with its timeouts and retries, and
adds a limit on requests in flight, a cache on disk, an account of tokens and money, and one clear error for
each way to no answer. The sampler is for a teacher's demonstrations, and to evaluate what an API serves.
"""

import asyncio
import base64
import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlsplit

from minirl.config import EndpointConfig
from minirl.console import progress, say
from minirl.run_folder import write_atomic
from minirl.types import Message, Request, Sample, SamplerError, charge

REASONS = re.compile(r"(o\d|gpt-5)")  # OpenAI's reasoning models, which know the limit by another name


class EndpointError(Exception):
    """No usable answer after all retries, or a refusal."""


@dataclass(frozen=True)
class Reply:
    """An answer. `finish` is "length" if it was cut at the token limit; `cached` if it cost nothing."""

    text: str
    finish: str
    reasoning: str = ""  # where the server keeps it apart from the answer
    prompt_tokens: int = 0
    response_tokens: int = 0
    cached: bool = False


def _part(part: str | bytes) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    url = f"data:image/png;base64,{base64.b64encode(part).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


class Endpoint:
    """One model behind one URL. Use inside a running event loop, and `close` it there."""

    def __init__(self, config: EndpointConfig):
        import openai  # slow to import, as is the other: only where there is an endpoint

        from minirl.samplers.endpoint_http import BoundedClient

        if not config.model:
            raise ValueError("--endpoint.model is missing: the model's name at the endpoint")
        key = os.environ.get(config.key)
        if key is None and urlsplit(config.url).hostname not in ("127.0.0.1", "localhost", "::1"):
            raise ValueError(f"--endpoint.url {config.url} wants a key: set the variable {config.key}")
        self.config, self.dollars = config, 0.0
        self.usage: Counter[str] = Counter()  # requests and tokens
        self.slots = asyncio.Semaphore(config.concurrency)
        self.client = openai.AsyncOpenAI(
            base_url=config.url,
            api_key=key or "none",
            timeout=config.seconds,
            max_retries=config.retries,
            http_client=BoundedClient(),
        )
        self.close = self.client.close

    async def ask(self, messages: Sequence[Message], max_tokens: int, **sampling: float | int) -> Reply:
        """Return the model's answer; `sampling` is the API's temperature, top_p and seed. With a cache, equal
        requests have one answer. EndpointError if there is none."""
        limit = "max_completion_tokens" if REASONS.match(self.config.model) else "max_tokens"
        chat = [{"role": role, "content": [_part(part) for part in parts]} for role, parts in messages]
        request = {"model": self.config.model, "messages": chat, limit: max_tokens, **sampling}
        self.usage["requests"] += 1
        file = None
        if self.config.cache is not None:
            name = hashlib.sha256(json.dumps([self.config.url, request], sort_keys=True).encode()).hexdigest()
            file = self.config.cache / name[:2] / f"{name}.json"
            if file.is_file():
                self.usage["cached"] += 1
                return Reply(**json.loads(file.read_text()) | {"cached": True})
        async with self.slots:
            try:
                reply = self._read(await self._send(request))
            except EndpointError:
                self.usage["failed"] += 1
                raise
        if file is not None and reply.finish == "stop":  # an answer that was cut off may be whole next time
            write_atomic(file, json.dumps(asdict(reply)).encode())
        return reply

    async def _send(self, request: dict[str, Any]) -> str:
        import openai

        config = self.config
        try:
            # the library's time limit is one for silence; an answer may also drip
            async with asyncio.timeout(2 * (1 + config.retries) * config.seconds):
                response = await self.client.chat.completions.with_raw_response.create(**request)
            return response.text
        except (openai.APITimeoutError, TimeoutError):
            problem = f"did not answer within {config.seconds:g} s"
        except openai.APIConnectionError as error:
            problem = f"can't be reached: {error.__cause__ or error}"
        except openai.APIStatusError as error:
            problem = f"answered {error.status_code}: {' '.join(error.message.split())[:300]}"
        except openai.OpenAIError as error:
            problem = str(error)
        raise EndpointError(f"{config.url} ({config.model}) {problem}")

    def _read(self, body: str) -> Reply:
        """Return the answer in a body, and charge for it. A server is free to send anything."""
        config = self.config
        try:
            answer = json.loads(body)
            choice, used = answer["choices"][0], answer.get("usage")
            message, finish = choice["message"], choice["finish_reason"]
            words, refusal = message.get("content"), message.get("refusal")
            reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
            if words is None and (refusal or finish in ("content_filter", "length")):
                words = ""  # for "length": the limit was reached while the model still reasoned
            if not isinstance(words, str) or not isinstance(reasoning, str):
                raise TypeError("no content")
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            problem = f"sent what is no chat completion ({error!r}): {body[:200]!r}"
            raise EndpointError(f"{config.url} {problem}") from None
        used = used if isinstance(used, dict) else {}
        counts = used.get("prompt_tokens"), used.get("completion_tokens")
        prompt, response = (n if isinstance(n, int) and 0 <= n <= 10**9 else 0 for n in counts)
        dollars = (prompt * config.prompt_price + response * config.response_price) / 1e6
        self.usage.update(prompt_tokens=prompt, response_tokens=response)
        self.dollars += dollars
        charge(dollars)
        if refusal or finish == "content_filter":  # it is paid for too
            raise EndpointError(f"{config.model} refused: {refusal or 'filtered'}")
        return Reply(words, "length" if finish == "length" else "stop", reasoning, prompt, response)


@asynccontextmanager
async def open_endpoint(config: EndpointConfig) -> AsyncIterator[Endpoint]:
    endpoint = Endpoint(config)
    try:
        yield endpoint
    finally:
        await endpoint.close()
        usage = endpoint.usage
        asked = f"{usage['requests']} requests, {usage['cached']} from the cache, {usage['failed']} failed"
        tokens = f"{usage['prompt_tokens']} + {usage['response_tokens']} tokens, ${endpoint.dollars:.2f}"
        say(f"{config.model}: {asked}; {tokens}")


async def ask_all(
    ask: Callable[[Any], Awaitable[Any]], items: Sequence[Any], at_once: int, phase: str = "judging"
) -> list[Any]:
    """Return what is said of the items, in their order; so many are asked about at once."""
    slots = asyncio.Semaphore(at_once)

    async def ask_one(item: Any) -> Any:
        async with slots:
            said = await ask(item)
        meter.advance()
        return said

    with progress(phase, len(items)) as meter:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ask_one(item)) for item in items]
    return [task.result() for task in tasks]


@dataclass
class RemoteSampler:
    """A served model as `types.Sampler`. It gives no ids: its episodes can be cloned, not reinforced."""

    endpoint: Endpoint
    failure: str = ""  # stays so: one answer that fails says nothing about the next

    async def generate(self, request: Request) -> Sample:
        """Return what the model says. Raises SamplerError if there is no answer, or a refusal."""
        drawn, seed = request.sampling, request.seed % 2**31  # the API has no top-k
        sampling = {"temperature": drawn.temperature, "top_p": drawn.top_p, "seed": seed}
        try:
            reply = await self.endpoint.ask(request.prompt.messages, request.max_tokens, **sampling)
        except EndpointError as error:
            raise SamplerError(str(error)) from None
        words = f"<think>\n{reply.reasoning}\n</think>\n\n{reply.text}" if reply.reasoning else reply.text
        return Sample((), (), reply.finish, text=words, counted=(reply.prompt_tokens, reply.response_tokens))

    async def idle(self) -> None: ...  # a request that is given up ends with its connection
    def sleep(self) -> None: ...
    def close(self) -> None: ...  # the endpoint belongs to `open_endpoint`

    def sync(self, weights: Iterable[tuple[str, Any]]) -> None:
        raise ValueError("--sampler remote: a served model's weights can't be replaced; use --sampler auto")
