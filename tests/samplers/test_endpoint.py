"""The client for served models, against a server that is slow, busy, broken, unwilling, or cut short."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator

import openai._base_client
import pytest
from endpoint_server import (
    Act,
    Server,
    body,
    completion,
    cut_off,
    drip,
    refuse,
    say,
    serve,
    slow,
    status,
    takes_all_but,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minirl.config import EndpointConfig
from minirl.samplers.endpoint import Endpoint, EndpointError, RemoteSampler, Reply, Usage, open_endpoint
from minirl.types import Prompt, Request, SamplerError

ASKED = [("user", ("What is this?", b"png"))]
COUNTED = Usage(prompt_tokens=100, completion_tokens=20)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    """Between attempts the library would wait for seconds, and there would be six."""
    monkeypatch.setattr("minirl.samplers.endpoint.RETRIES", 2)
    monkeypatch.setattr(openai._base_client.BaseClient, "_calculate_retry_timeout", lambda *_, **__: 0.0)


@contextlib.asynccontextmanager
async def client(acts: list[Act], **settings) -> AsyncIterator[tuple[Endpoint, Server]]:
    with serve(acts) as server:
        settings = {"url": server.url, "model": "any", "seconds": 5.0} | settings
        async with open_endpoint(EndpointConfig(**settings)) as endpoint:
            yield endpoint, server


async def ask(acts: list[Act], times: int = 1, **settings) -> tuple[list, Endpoint, list]:
    """What `times` requests at once come to, the client, and what the server was sent."""
    async with client(acts, **settings) as (endpoint, server):
        work = (endpoint.ask(ASKED, max_tokens=50, temperature=0.5, seed=n) for n in range(times))
        replies = await asyncio.gather(*work, return_exceptions=True)
    endpoint.most = server.most
    return replies, endpoint, server.requests


async def test_an_answer_and_what_it_cost(capsys):
    (reply,), endpoint, sent = await ask([say("a mug")], price=(2.0, 10.0))
    assert reply == Reply("a mug", "stop", "", COUNTED)
    assert endpoint.usage == {"requests": 1, "prompt_tokens": 100, "response_tokens": 20}
    assert endpoint.dollars == pytest.approx((100 * 2 + 20 * 10) / 1e6)
    assert "any: 1 requests, 0 failed; 100 + 20 tokens, $0.00" in capsys.readouterr().out
    request = sent[0]
    assert request["model"] == "any" and request["max_tokens"] == 50 and request["temperature"] == 0.5
    assert request["messages"][0]["content"][1]["image_url"]["url"] == "data:image/png;base64,cG5n"


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("o4-mini", "max_completion_tokens"),
        ("openai/gpt-5.1", "max_completion_tokens"),
        ("gpt-4o", "max_tokens"),
        ("zero/too3", "max_tokens"),
    ],
)
async def test_the_limit_under_the_name_that_the_model_knows(model, name):
    _, _, (request,) = await ask([say("a mug")], model=model)
    assert {key: request[key] for key in request if key.startswith("max_")} == {name: 50}


@pytest.mark.parametrize(
    ("act", "reply"),
    [
        (say("click", reasoning_content="It is blue."), ("click", "stop", "It is blue.")),
        (say("a very long", finish="length"), ("a very long", "length", "")),
        # the limit is reached while the model still reasons: an empty answer, the agent's own doing
        (say(None, finish="length", reasoning="Let me"), ("", "length", "Let me")),
        # half of a surrogate pair, which JSON allows
        (body(completion({"content": "half a \ud83d"})), ("half a \ud83d", "stop", "")),
    ],
)
async def test_answers(act, reply):
    assert (await ask([act]))[0] == [Reply(*reply, COUNTED)]


@pytest.mark.parametrize("usage", ["", ', "usage": null', ', "usage": {}'])
async def test_a_server_may_count_no_tokens(usage):
    choice = '{"message": {"content": "hi"}, "finish_reason": "stop"}'
    (reply,), endpoint, _ = await ask([body(f'{{"choices": [{choice}]{usage}}}'.encode())], price=(1.0, 0.0))
    assert reply == Reply("hi", "stop", "", Usage()) and endpoint.dollars == 0


SAMPLING = {"temperature": 0.0, "top_p": 0.9, "top_k": 20, "seed": 7}


async def ask_twice(acts: list[Act], **settings) -> tuple[list, list[set[str]]]:
    """Two answers one after the other, and which parameters of sampling each request had."""
    async with client(acts, **settings) as (endpoint, server):
        replies = [await endpoint.ask(ASKED, 50, **SAMPLING) for _ in range(2)]
    return replies, [request.keys() & SAMPLING.keys() for request in server.requests]


async def test_all_of_the_sampling_is_sent_and_top_k_too():
    _, _, (request, _) = await ask([say("a mug")], times=2)
    assert "top_k" not in request and "extra_body" not in request, "it was not asked for"
    async with client([say("a mug")]) as (endpoint, server):
        await endpoint.ask(ASKED, 50, **SAMPLING)
    assert {name: server.requests[0][name] for name in SAMPLING} == SAMPLING


async def test_what_a_model_does_not_take_is_left_out_from_then_on(capsys):
    names = ["temperature", "top_p", "top_k"]
    replies, sent = await ask_twice([takes_all_but(*names)], model="openai/o4-mini")
    assert [reply.text for reply in replies] == ["a mug", "a mug"]
    tries = [set(SAMPLING) - set(names[:n]) for n in range(len(names) + 1)]
    assert sent == [*tries, tries[-1]], "each is tried once, and the second time nothing is"
    printed = capsys.readouterr().out
    for name in SAMPLING:
        line = f"openai/o4-mini does not take {name}: asked without, from now on"
        assert printed.count(line) == (name in names)


async def test_requests_at_once_are_each_asked_again_and_told_once(capsys):
    replies, endpoint, sent = await ask([takes_all_but("temperature")], times=5)
    assert all(isinstance(reply, Reply) for reply in replies) and endpoint.refused == {"temperature"}
    assert endpoint.usage["requests"] == 5 < len(sent) <= 10
    assert capsys.readouterr().out.count("any does not take temperature") == 1


async def test_a_refusal_of_something_else_is_an_error():
    """After one attempt; so is that of a parameter which was not sent."""
    for message in ("the context is 4096 tokens, proceed with fewer", "top_k must be positive"):
        (error,), endpoint, sent = await ask([status(400, message)])
        assert isinstance(error, EndpointError) and message in str(error) and len(sent) == 1
        assert endpoint.refused == set()


NO_COMPLETIONS = [b'{"choices": []}', b'{"choices": ["a"]}', b"[" * 200_000, b"\xff"]


@pytest.mark.parametrize("trouble", [status(429), status(500), cut_off, slow(1.0)])
async def test_passing_trouble_is_tried_again(trouble):
    (reply,), endpoint, sent = await ask([trouble, trouble, say("at last")], seconds=0.5)
    assert isinstance(reply, Reply) and reply.text == "at last"
    assert len(sent) == 3 and endpoint.usage["failed"] == 0


@pytest.mark.parametrize(
    ("act", "attempts", "said"),
    [
        (status(429), 3, "code 429"),
        (status(401), 1, "code 401"),
        (slow(0.6), 3, "timed out"),
        (drip, 1, "TimeoutError"),
        (cut_off, 3, "Connection error"),
        (body(b"<html>gateway</html>"), 1, "no chat completion.*gateway"),
        (body(b'{"choices": [{"message": {"content": null}, "finish_reason": "stop"}]}'), 1, "no content"),
        *((body(answer), 1, "no chat completion") for answer in NO_COMPLETIONS),
    ],
)
async def test_no_answer_is_one_clear_error(act, attempts, said):
    (error,), endpoint, sent = await ask([act], seconds=0.2 if "ime" in said else 5.0)
    assert isinstance(error, EndpointError) and "any refused" not in str(error)
    assert re.search(said, str(error)) and "\n" not in str(error)
    assert len(sent) == attempts and endpoint.usage["failed"] == 1


@pytest.mark.parametrize("act", [refuse, say("", finish="content_filter")])
async def test_a_refusal_is_not_asked_again(act):
    (error,), endpoint, sent = await ask([act], price=(0.0, 1.0))
    assert isinstance(error, EndpointError) and "any refused: " in str(error) and len(sent) == 1
    assert endpoint.usage["response_tokens"] == 20 and endpoint.dollars > 0, "it is paid for"


HEADERS = "Content-Type Retry-After Content-Encoding Transfer-Encoding X-Should-Retry"


@pytest.mark.more
@given(
    st.binary() | st.builds(completion, st.dictionaries(st.text(), st.integers() | st.text()), st.text()),
    st.sampled_from([200, 204, 206, 299, 304, 400, 418, 500]),
    st.dictionaries(
        st.sampled_from(HEADERS.split()), st.text("abcdefghijklmnopqrstuvwxyz0123456789-=/; ", max_size=20)
    ),
)
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nothing_but_an_endpoint_error_leaves_the_client(answer, code, headers):
    (found,), *_ = asyncio.run(ask([body(answer, code, headers)], seconds=0.5))
    assert isinstance(found, Reply | EndpointError)


async def test_a_request_that_is_given_up_frees_its_place(monkeypatch):
    monkeypatch.setattr("minirl.samplers.endpoint.MAX_REQUESTS", 1)
    async with client([slow(3.0), say("next")]) as (endpoint, _):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(endpoint.ask(ASKED, 50), 0.2)
        assert (await asyncio.wait_for(endpoint.ask(ASKED, 50), 2.0)).text == "next"


async def test_requests_in_flight_are_limited(monkeypatch):
    monkeypatch.setattr("minirl.samplers.endpoint.MAX_REQUESTS", 3)
    replies, endpoint, _ = await ask([slow(0.1)], times=12)
    assert all(isinstance(reply, Reply) for reply in replies)
    assert 1 < endpoint.most <= 3


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999/v1", "http://[::1/v1", "http://a.test:port/"])
async def test_an_address_that_is_none_is_one_line(url):
    with pytest.raises(ValueError, match="Port .*|Invalid IPv6 URL"):
        Endpoint(EndpointConfig(url=url, model="any"))


async def test_half_a_surrogate_pair_in_a_prompt_is_sent_as_a_question_mark():
    """A served model's last answer may hold it."""
    async with client([say("yes")]) as (endpoint, server):
        await endpoint.ask([("user", ("half \ud83d, whole \U0001f600",))], 50)
    assert server.requests[0]["messages"][0]["content"][0]["text"] == "half ?, whole \U0001f600"


async def test_keys_come_from_the_environment(monkeypatch):
    with pytest.raises(ValueError, match="--endpoint.model is missing"):
        Endpoint(EndpointConfig())
    monkeypatch.setenv("MY_KEY", "secret")
    _, _, sent = await ask([say("hello")], key="MY_KEY")
    assert sent[0]["authorization"] == "Bearer secret"


async def test_a_served_model_is_a_sampler_that_may_refuse_and_has_no_weights():
    async with client([refuse]) as (endpoint, _):
        sampler = RemoteSampler(endpoint)
        with pytest.raises(SamplerError, match="any refused: I can't help with that."):
            await sampler.generate(Request(Prompt((), 0, messages=ASKED), seed=1, max_tokens=50))
    with pytest.raises(ValueError, match="a served model's weights can't be replaced"):
        sampler.sync([])
