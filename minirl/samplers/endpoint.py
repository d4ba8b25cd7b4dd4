"""Models that are served elsewhere: the client, and a sampler that asks it.

The client speaks OpenAI's chat completions through the `openai` package, with its timeouts and retries, and
adds a limit on requests in flight, an account of tokens and money, and one clear error for each failure.
The sampler is for a teacher's demonstrations, and to evaluate what an API serves. Deviation:
1. A model that refuses parameters of sampling is asked again without them, and a line says so: OpenAI's
   reasoning models refuse temperature and top-p, its API top-k. Such figures are not quite a protocol's.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydantic import BaseModel, NonNegativeInt

from minirl.bill import charge
from minirl.config import EndpointConfig
from minirl.console import first_line, progress, say
from minirl.types import Json, Message, Request, Sample, SamplerError

if TYPE_CHECKING:
    from torch import Tensor

# OpenAI's reasoning models, which know the limit by another name
REASONING = re.compile(r"(^|/)(o\d|gpt-5)")
RETRIES = 5  # further attempts after a timeout, a broken connection, 429 or 5xx
MAX_REQUESTS = 16  # in flight


class EndpointError(Exception):
    """No usable answer after all retries, or a refusal."""


class Usage(BaseModel):
    prompt_tokens: NonNegativeInt = 0
    completion_tokens: NonNegativeInt = 0


class ChatMessage(BaseModel):
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | None = None  # where the server keeps it apart from the answer
    reasoning: str | None = None  # the same, by its newer name


class Choice(BaseModel):
    message: ChatMessage
    finish_reason: str | None = None


class Completion(BaseModel):
    """As much as is read of a chat completion."""

    choices: list[Choice]
    usage: Usage | None = None


@dataclass(frozen=True)
class Reply:
    """An answer. `finish` is "length" if it was cut at the token limit."""

    text: str
    finish: str
    reasoning: str = ""
    usage: Usage = field(default_factory=Usage)


def _part(part: str | bytes) -> Json:
    if isinstance(part, str):  # half a surrogate pair, which JavaScript and models have, can't be sent
        return {"type": "text", "text": part.encode(errors="replace").decode()}
    url = f"data:image/png;base64,{base64.b64encode(part).decode()}"
    return {"type": "image_url", "image_url": {"url": url}}


class Endpoint:
    """One model behind one URL. Use inside a running event loop, and `close` it there."""

    def __init__(self, config: EndpointConfig):
        import openai  # slow to import: only where there is an endpoint

        if not config.model:
            raise ValueError("--endpoint.model is missing: the model's name at the endpoint")
        urlsplit(config.url).port  # noqa: B018  ValueError says what is wrong with it
        self.config = config
        self.dollars = 0.0
        self.usage: Counter[str] = Counter()  # requests and tokens
        self.refused: set[str] = set()  # parameters of sampling that this model does not take
        self.slots = asyncio.Semaphore(MAX_REQUESTS)
        self.client = openai.AsyncOpenAI(
            base_url=config.url,
            api_key=os.environ.get(config.key, "none"),
            timeout=config.seconds,
            max_retries=RETRIES,
        )
        self.close = self.client.close

    async def ask(self, messages: Sequence[Message], max_tokens: int, **sampling: float) -> Reply:
        """Return the model's answer; `sampling` is temperature, top_p, top_k and seed, without those that
        the model does not take. EndpointError if there is no answer."""
        limit = "max_completion_tokens" if REASONING.search(self.config.model) else "max_tokens"
        chat = []
        for role, parts in messages:
            chat.append({"role": role, "content": [_part(part) for part in parts]})
        request = {"model": self.config.model, "messages": chat, limit: max_tokens}
        self.usage["requests"] += 1
        async with self.slots:
            try:
                return self._read(await self._send(request, sampling))
            except EndpointError:
                self.usage["failed"] += 1
                raise

    async def _send(self, request: Json, sampling: dict[str, float]) -> str:
        """Return the body of an answer. A request whose error names parameters is sent again without them."""
        import openai

        config = self.config
        taken = {name: value for name, value in sampling.items() if name not in self.refused}
        create = self.client.chat.completions.with_raw_response.create
        try:
            # the library's time limit is one for silence; an answer may also drip
            async with asyncio.timeout(2 * (1 + RETRIES) * config.seconds):
                response = await create(**request, extra_body=taken)  # `create` itself knows no top_k
            return response.text
        except (openai.OpenAIError, TimeoutError) as error:
            named = {name for name in taken if re.search(rf"\b{name}\b", str(error))}
            if not named:
                problem = f"{config.url} ({config.model}) gave no answer: {first_line(error)}"
                raise EndpointError(problem) from None
        if named - self.refused:
            say(f"{config.model} does not take {', '.join(sorted(named))}: asked without, from now on")
        self.refused |= named
        return await self._send(request, sampling)

    def _read(self, body: str) -> Reply:
        """Return the answer in a body, and charge for it. A server is free to send anything."""
        try:
            answer = Completion.model_validate(json.loads(body))
            choice = answer.choices[0]
        except (ValueError, LookupError, RecursionError) as error:
            problem = f"sent what is no chat completion ({first_line(error)}): {body[:200]!r}"
            raise EndpointError(f"{self.config.url} {problem}") from None
        usage = answer.usage or Usage()
        prompt_price, response_price = self.config.price
        dollars = (usage.prompt_tokens * prompt_price + usage.completion_tokens * response_price) / 1e6
        self.usage.update(prompt_tokens=usage.prompt_tokens, response_tokens=usage.completion_tokens)
        self.dollars += dollars
        charge(dollars)
        message = choice.message
        finish = choice.finish_reason
        if message.refusal or finish == "content_filter":  # it is paid for too
            raise EndpointError(f"{self.config.model} refused: {message.refusal or 'filtered'}")
        # with "length" the limit was reached while the model still reasoned
        if message.content is None and finish != "length":
            raise EndpointError(f"{self.config.url} sent no content: {body[:200]!r}")
        return Reply(
            text=message.content or "",
            finish="length" if finish == "length" else "stop",
            reasoning=message.reasoning_content or message.reasoning or "",
            usage=usage,
        )


@asynccontextmanager
async def open_endpoint(config: EndpointConfig) -> AsyncIterator[Endpoint]:
    """Open an endpoint for the block, and print what the requests came to at its end."""
    endpoint = Endpoint(config)
    try:
        yield endpoint
    finally:
        await endpoint.close()
        usage = endpoint.usage
        requests = f"{usage['requests']} requests, {usage['failed']} failed"
        tokens = f"{usage['prompt_tokens']} + {usage['response_tokens']} tokens, ${endpoint.dollars:.2f}"
        say(f"{config.model}: {requests}; {tokens}")


async def ask_all(
    ask: Callable[[Any], Awaitable[Any]],
    items: Sequence[Any],
    at_once: int = MAX_REQUESTS,
    phase: str = "judging",
) -> list[Any]:
    """Return the answers about the items, in their order; `at_once` are asked about at a time."""
    slots = asyncio.Semaphore(at_once)

    async def ask_one(item: Any) -> Any:
        async with slots:
            answer = await ask(item)
        meter.advance()
        return answer

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
        how = request.sampling
        sampling = {"temperature": how.temperature, "top_p": how.top_p, "seed": request.seed % 2**31}
        if how.top_k:
            sampling["top_k"] = how.top_k
        try:
            reply = await self.endpoint.ask(request.prompt.messages, request.max_tokens, **sampling)
        except EndpointError as error:
            raise SamplerError(str(error)) from None
        text = reply.text
        if reply.reasoning:
            text = f"<think>\n{reply.reasoning}\n</think>\n\n{text}"
        counted = (reply.usage.prompt_tokens, reply.usage.completion_tokens)
        return Sample((), (), reply.finish, text=text, counted=counted)

    async def idle(self) -> None: ...  # a request that is given up ends with its connection
    def sleep(self) -> None: ...
    def close(self) -> None: ...  # the endpoint belongs to `open_endpoint`

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        raise ValueError("--sampler remote: a served model's weights can't be replaced; use --sampler auto")
