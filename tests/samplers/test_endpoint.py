"""The client for served models, against a server that is slow, busy, broken, unwilling, or cut short."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import openai._base_client
import pytest
from endpoint_server import Act, body, completion, cut_off, drip, refuse, say, serve, slow, status

from minirl.config import EndpointConfig
from minirl.samplers.endpoint import Endpoint, EndpointError, Refusal, Reply, image, text

ASKED = [{"role": "user", "content": [text("What is this?"), image(b"png")]}]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    """Between attempts the library would wait for seconds."""
    monkeypatch.setattr(openai._base_client.BaseClient, "_calculate_retry_timeout", lambda *_, **__: 0.0)


async def ask(
    acts: list[Act], times: int = 1, **settings
) -> tuple[list[Reply | BaseException], Endpoint, list]:
    """What `times` requests at once come to, the client, and what the server was sent."""
    with serve(acts) as server:
        config = EndpointConfig(
            **{"url": server.url, "model": "any", "seconds": 5.0, "retries": 2} | settings
        )
        endpoint = Endpoint(config)
        work = (endpoint.ask(ASKED, max_tokens=50, temperature=0.5, seed=n) for n in range(times))
        replies = await asyncio.gather(*work, return_exceptions=True)
        await endpoint.close()
        endpoint.most = server.most
        return replies, endpoint, server.requests


async def test_an_answer_and_what_it_cost():
    (reply,), endpoint, sent = await ask([say("a mug")], prompt_price=2.0, response_price=10.0)
    assert reply == Reply("a mug", "stop", prompt_tokens=100, response_tokens=20)
    usage = endpoint.usage
    assert (usage.requests, usage.prompt_tokens, usage.response_tokens) == (1, 100, 20)
    assert usage.dollars == pytest.approx((100 * 2 + 20 * 10) / 1e6)
    assert "1 requests" in str(usage) and "100 + 20 tokens" in str(usage)
    request = sent[0]
    assert request["model"] == "any" and request["max_tokens"] == 50 and request["temperature"] == 0.5
    assert request["messages"][0]["content"][1]["image_url"]["url"] == "data:image/png;base64,cG5n"


@pytest.mark.parametrize(
    ("model", "name"), [("o4-mini", "max_completion_tokens"), ("gpt-4o", "max_tokens"), ("any", "max_tokens")]
)
async def test_the_limit_under_the_name_that_the_model_knows(model, name):
    _, _, (request,) = await ask([say("a mug")], model=model)
    assert {key: request[key] for key in request if key.startswith("max_")} == {name: 50}


async def test_reasoning_that_the_server_keeps_apart():
    (reply,), *_ = await ask([say("click", reasoning_content="It is blue.")])
    assert reply.text == "click" and reply.reasoning == "It is blue."


@pytest.mark.parametrize("trouble", [status(429), status(500), status(503), cut_off, slow(1.0)])
async def test_passing_trouble_is_tried_again(trouble):
    (reply,), endpoint, sent = await ask([trouble, trouble, say("at last")], seconds=0.5)
    assert isinstance(reply, Reply) and reply.text == "at last"
    assert len(sent) == 3 and endpoint.usage.failed == 0


@pytest.mark.parametrize(
    ("act", "attempts", "said"),
    [
        (status(429), 3, "answered 429: .*code 429"),
        (status(500), 3, "answered 500"),
        (status(401), 1, "answered 401: .*code 401"),
        (slow(0.6), 3, "did not answer within 0.2 s"),
        (cut_off, 3, "can't be reached"),
        (body(b"<html>gateway</html>"), 1, "no chat completion.*gateway"),
        (body(b'{"choices": []}'), 1, "no chat completion"),
        (body(b'{"choices": [{"message": {"content": null}, "finish_reason": "stop"}]}'), 1, "no content"),
        (body(b"[1]"), 1, "no chat completion"),
    ],
)
async def test_no_answer_is_one_clear_error(act, attempts, said):
    (error,), endpoint, sent = await ask([act], seconds=0.2 if "0.2" in said else 5.0)
    assert isinstance(error, EndpointError) and not isinstance(error, Refusal)
    with pytest.raises(EndpointError, match=said):
        raise error
    assert len(sent) == attempts and endpoint.usage.failed == 1


@pytest.mark.parametrize("act", [refuse, say("", finish="content_filter")])
async def test_a_refusal_is_not_asked_again(act):
    (error,), endpoint, sent = await ask([act], response_price=1.0)
    assert isinstance(error, Refusal) and "refused" in str(error) and len(sent) == 1
    assert endpoint.usage.response_tokens == 20 and endpoint.usage.dollars > 0, "it is paid for"


async def test_an_answer_that_drips_ends_too():
    (error,), *_ = await ask([drip], seconds=0.1, retries=0)
    assert isinstance(error, EndpointError) and "did not answer within" in str(error)


async def test_a_request_that_is_given_up_frees_its_place():
    with serve([slow(3.0), say("next")]) as server:
        endpoint = Endpoint(EndpointConfig(url=server.url, model="any", concurrency=1))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(endpoint.ask(ASKED, 50), 0.2)
        assert (await asyncio.wait_for(endpoint.ask(ASKED, 50), 2.0)).text == "next"
        await endpoint.close()


async def test_an_answer_that_was_cut_at_the_limit_says_so():
    (reply,), *_ = await ask([say("a very long", finish="length")])
    assert reply.finish == "length"


async def test_a_limit_that_is_reached_while_the_model_still_reasons():
    """An empty answer that was cut, not an error: the agent's own doing."""
    cut = {"content": None, "reasoning_content": "Let me see"}
    (reply,), *_ = await ask([body(completion(cut, finish="length"))])
    assert (reply.text, reply.finish, reply.reasoning) == ("", "length", "Let me see")


async def test_a_server_that_is_not_there():
    endpoint = Endpoint(EndpointConfig(url="http://127.0.0.1:9/v1", model="any", retries=0))
    with pytest.raises(EndpointError, match="can't be reached"):
        await endpoint.ask(ASKED, 5)
    await endpoint.close()


async def test_requests_in_flight_are_limited():
    replies, endpoint, _ = await ask([slow(0.1)], times=12, concurrency=3)
    assert all(isinstance(reply, Reply) for reply in replies)
    assert 1 < endpoint.most <= 3


async def test_the_cache_answers_equal_requests_and_no_others(tmp_path: Path):
    acts = [say("first"), say("second"), say("third"), say("fourth")]
    with serve(acts) as server:
        config = EndpointConfig(url=server.url, model="any", cache=tmp_path / "answers", prompt_price=1.0)
        endpoint = Endpoint(config)
        first = await endpoint.ask(ASKED, 50, seed=1)
        again = await endpoint.ask(ASKED, 50, seed=1)
        assert again == replace(first, cached=True) and endpoint.usage.cached == 1
        assert endpoint.usage.prompt_tokens == 100, "an answer from the cache costs nothing"
        assert (await endpoint.ask(ASKED, 50, seed=2)).text == "second"
        assert (await endpoint.ask(ASKED, 51, seed=1)).text == "third"
        other = Endpoint(replace(config, model="another"))
        assert (await other.ask(ASKED, 50, seed=1)).text == "fourth"
        later = Endpoint(config)
        assert (await later.ask(ASKED, 50, seed=1)).text == "first", "it outlives the client"
        for client in (endpoint, other, later):
            await client.close()
    assert len(list((tmp_path / "answers").rglob("*.json"))) == 4
    assert not list((tmp_path / "answers").rglob("*.part"))


async def test_failures_are_not_cached(tmp_path: Path):
    with serve([refuse, say("after all")]) as server:
        endpoint = Endpoint(EndpointConfig(url=server.url, model="any", cache=tmp_path))
        with pytest.raises(Refusal):
            await endpoint.ask(ASKED, 50)
        assert (await endpoint.ask(ASKED, 50)).text == "after all"
        await endpoint.close()


async def test_an_answer_that_was_cut_off_is_not_cached(tmp_path: Path):
    with serve([say("The agent", finish="length"), say("The agent did.")]) as server:
        endpoint = Endpoint(EndpointConfig(url=server.url, model="any", cache=tmp_path))
        assert (await endpoint.ask(ASKED, 50)).finish == "length"
        assert (await endpoint.ask(ASKED, 50)).text == "The agent did."
        await endpoint.close()


async def test_keys_come_from_the_environment(monkeypatch):
    monkeypatch.delenv("MY_KEY", raising=False)
    with pytest.raises(ValueError, match="wants a key: set the variable MY_KEY"):
        Endpoint(EndpointConfig(url="https://example.com/v1", model="any", key="MY_KEY"))
    with pytest.raises(ValueError, match="--endpoint.model is missing"):
        Endpoint(EndpointConfig())
    monkeypatch.setenv("MY_KEY", "secret")
    _, _, sent = await ask([say("hello")], key="MY_KEY")
    assert sent[0]["authorization"] == "Bearer secret"
