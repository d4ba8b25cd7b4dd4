"""The vLLM sampler: one engine in every rank's process, fed by all its live episodes, synced every step.

The default on CUDA. A thread owns the engine, because a step blocks for as long as the GPU computes, and the
event loop must go on serving browsers meanwhile. The thread does the work that it is sent, and steps the
engine as long as there are requests, which are batched continuously. Prompts are token ids and prepared
pixels, exactly those that the trainer will see. Log-probs are of the distribution that was sampled from. New
weights are streamed one at a time into the engine's own; on CUDA `sleep` drops the old ones, so that the
update has their memory. OpenWebRL, section 4.4, WebAgent-R1, appendix B; there the samplers are servers in
other processes.
"""

import asyncio
import contextlib
import itertools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

import torch
from torch import Tensor

from minirl.config import Config
from minirl.distributed import Ranks
from minirl.model import Preprocessor, blueprint
from minirl.samplers import vllm_engine
from minirl.samplers.huggingface import answer_within, settle
from minirl.types import Request, Sample, SamplerError

CALL_SECONDS = 1800.0  # the longest that a start or new weights may take
CLOSE_SECONDS = 60.0  # the longest that an end may take
IDLE_SECONDS = 600.0  # that a step may take before the engine counts as dead
POLL_SECONDS = 0.005
Work = Callable[[], Any]  # for the engine's thread to do, between two steps


class VllmSampler:
    """Continuous batching in vLLM, inside a running event loop; one in a process, whose memory it manages."""

    def __init__(self, config: Config, preprocessor: Preprocessor, ranks: Ranks):
        self.config = config
        self.preprocessor = preprocessor
        self.ranks = ranks
        self.version = 0
        self.failure = ""
        self.asleep = False
        self.closed = False
        self.numbers = itertools.count(1)
        self.futures: dict[str, asyncio.Future[Sample]] = {}  # of requests that the engine has or will have
        # Work goes to the thread in two stages: `written` in this turn of the event loop, then posted
        self.written: list[Work] = []
        self.messages: queue.SimpleQueue[list[Work]] = queue.SimpleQueue()
        self.call: Future[None] = Future()  # the last one; only one thread calls, and waits
        self.engine: Any = None  # vLLM's LLMEngine
        self.names = {name for name, _ in blueprint(config.model.path).named_parameters()}
        self.thread = threading.Thread(target=self._serve, name="vllm", daemon=True)
        self.thread.start()
        self._call(self._start)

    async def generate(self, request: Request) -> Sample:
        """Return the response. SamplerError if vLLM refuses the prompt, fails, or takes too long."""
        if self.failure:
            raise SamplerError(self.failure)
        name = f"{self.ranks.rank}-{next(self.numbers)}"
        future = self.futures[name] = asyncio.get_running_loop().create_future()
        self._write(partial(self._add, name, request))
        try:
            return await answer_within(request.seconds, future)
        finally:
            if name in self.futures:  # cancelled or too late
                self._write(partial(self._abort, name))

    async def idle(self) -> None:
        """Wait until the engine has no request left, not even one that was given up."""
        deadline = time.monotonic() + IDLE_SECONDS
        while self.futures and not self.failure:
            if time.monotonic() > deadline:
                self._die(f"no step ended within {IDLE_SECONDS:g} s")
            await asyncio.sleep(POLL_SECONDS)

    def sleep(self) -> None:
        """Free the memory that an update needs, on a GPU; `sync` wakes the engine."""
        if self.ranks.device.type == "cuda" and not self.asleep and not self.failure:
            self._call(lambda: self.engine.sleep(level=2))
            self.asleep = True

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Take all weights, by Hugging Face name: a collective call, even with a dead engine."""
        assert not self.futures or self.failure, "idle() comes before new weights"
        given = set()

        def noted() -> Iterator[tuple[str, Tensor]]:
            for name, weight in weights:
                given.add(name)
                yield name, weight

        stream = noted()
        if not self.failure:
            if self.ranks.device.type == "cuda":
                torch.cuda.synchronize()  # the engine's thread has a stream of its own
            self._call(lambda: self._reload(stream))
        deque(stream, maxlen=0)  # what a dead engine has not taken
        assert given == self.names, f"vLLM would keep its old {sorted(given ^ self.names)[:3]}"
        self.version += 1

    def close(self) -> None:
        """Free the engine, whatever state it is in."""
        with contextlib.suppress(TimeoutError):
            self._call(lambda: setattr(self, "closed", True), CLOSE_SECONDS)
        self.thread.join(CLOSE_SECONDS)
        with contextlib.suppress(Exception):  # of an engine that is dead anyway; its requests have been told
            vllm_engine.stop_engine(self.engine)
        self.engine = None

    def _call(self, work: Work, seconds: float = CALL_SECONDS) -> None:
        """Have `work` done in the engine's thread. TimeoutError after so many seconds."""
        self.call = Future()
        if not self.failure:
            self.messages.put([partial(self._answer, work)])
            self.call.result(seconds)

    def _write(self, work: Work) -> None:
        """Collect work for `_post`, which passes it on once in each turn of the event loop.

        A step ends many requests at once, and their episodes ask again in the same turn. Were each of these
        requests posted by itself, the two threads would wake each other for each: a tenth of the time."""
        if not self.written:
            asyncio.get_running_loop().call_soon(self._post)
        self.written.append(work)

    def _post(self) -> None:
        # a new list, not a cleared one: the thread may still read the old
        self.messages.put(self.written)
        self.written = []

    # From here on everything runs in the engine's thread.

    def _serve(self) -> None:
        """Do the work that was sent, then make a step, until closed."""
        working = False
        try:
            while not (self.closed or self.failure):
                for work in self._received(wait=not working):
                    work()
                working = self.engine.has_unfinished_requests()
                if working:
                    self._finish({output.request_id: self._sample(output) for output in self.engine.step()})
        except Exception as error:  # whatever ends it, episodes must not wait for their deadlines
            self._die(f"{type(error).__name__}: {error}")

    def _received(self, wait: bool) -> list[Work]:
        """Return the work sent since the last step; with `wait` there is some."""
        received = self.messages.get() if wait else []
        while not self.messages.empty():
            received = received + self.messages.get()
        return received

    def _answer(self, work: Work) -> None:
        """Do what a `_call` waits for. It hears why an engine can't start; one that fails later is dead."""
        try:
            work()
        except Exception as error:
            if self.version:
                raise
            self.call.set_exception(error)
        else:
            self.call.set_result(None)

    def _start(self) -> None:
        self.engine = vllm_engine.start_engine(self.config, self.preprocessor, self.ranks)

    def _add(self, name: str, request: Request) -> None:
        from vllm.exceptions import VLLMClientError

        try:
            prompt = vllm_engine.engine_input(request.prompt, self.preprocessor)
            self.engine.add_request(name, prompt, vllm_engine.sampling_params(request, self.preprocessor))
        except (VLLMClientError, ValueError) as error:
            self._finish({name: SamplerError(f"vLLM refused a prompt: {error}")})

    def _abort(self, name: str) -> None:
        self.engine.abort_request([name])
        self.futures.pop(name, None)

    def _reload(self, weights: Iterator[tuple[str, Tensor]]) -> None:
        """Stream weights into the engine, and drop what it computed with the old ones."""
        if self.asleep:
            torch.cuda.empty_cache()
            self.engine.wake_up(["weights"])
            self.engine.collective_rpc(vllm_engine.clear_forgotten)
        self.engine.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
        if self.ranks.device.type == "cpu":
            self.engine.collective_rpc(vllm_engine.pack_head)
        if self.asleep:
            self.engine.wake_up(["kv_cache"])
            self.asleep = False
        assert self.engine.reset_prefix_cache(), "a request still holds cache blocks"
        self.engine.reset_mm_cache()
        self.engine.reset_encoder_cache()

    def _sample(self, output: Any) -> Sample:
        (text,) = output.outputs
        return Sample(
            ids=tuple(text.token_ids),
            logprobs=tuple(text.logprobs.logprobs),
            finish="stop" if text.finish_reason == "stop" else "length",
            version=self.version,
            cached=output.num_cached_tokens or 0,
        )

    def _die(self, reason: str) -> None:
        """End all requests, and the call, that wait for the engine."""
        self.failure = self.failure or f"the vLLM engine died: {reason}"
        self._finish({name: SamplerError(self.failure) for name in list(self.futures)})
        if not self.call.done():
            self.call.set_result(None)

    def _finish(self, outcomes: dict[str, Sample | SamplerError]) -> None:
        ended = [(self.futures.pop(name), each) for name, each in outcomes.items() if name in self.futures]
        if ended:
            ended[0][0].get_loop().call_soon_threadsafe(settle, ended)
