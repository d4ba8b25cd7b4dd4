"""The vLLM sampler: one engine in every rank's process, fed by all its live episodes, synced every step.

The default on CUDA. A thread of its own owns the engine: it takes what has been ordered, adds and aborts
requests, and steps the engine as long as there are any; `generate` awaits one request among the hundreds
that are batched continuously. Prompts are token ids and prepared pixels, exactly those that the trainer will
see: vLLM neither tokenises nor renders nor scales anything. What it returns are its *processed* log-probs:
of the distribution that was sampled from, after temperature and suppressed tokens (for evaluation also after
top-k and top-p).

New weights are streamed one parameter at a time into the engine's own (`sync`), which invalidates its
caches. On CUDA `sleep` gives the engine's memory to the update: weights are dropped, not copied away, because
`sync` brings new ones. With `--sampler.tensor-parallel n`, n consecutive ranks run one engine between them:
each keeps a part of it, and before every step they tell one another what was ordered, so that all parts do
the same (vLLM's external launcher). A judge's engine lives in a process of its own: vLLM's memory that can
sleep is one for a process, and no update has to reach the judge.

OpenWebRL section 3.4 and WebAgent-R1 section 3.1 sample with servers in other processes; everything else
here is as there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from minirl.config import Config
from minirl.distributed import Ranks
from minirl.model import Preprocessor, blueprint
from minirl.samplers.vllm_engine import (
    clear_deepstack,
    engine_input,
    engine_settings,
    environment,
    pack_head,
    sampling_params,
    tell_of_its_end,
    variables,
)
from minirl.types import Request, Sample, SamplerError

if TYPE_CHECKING:
    from vllm import LLMEngine

CALL_SECONDS = 1800.0  # the longest that starting an engine, or new weights, may take
IDLE_SECONDS = 600.0  # that a step may take before the engine counts as dead
CLOSE_SECONDS = 60.0
POLL_SECONDS = 0.005  # how often idle parts of an engine look for orders


class Order(NamedTuple):
    """What the engine's thread is to do: add a request; abort it, if there is no body; make a call, if there
    is no name either."""

    name: str
    request: Request | None = None


def is_chosen(kind: str, device: torch.device) -> bool:
    """Whether `--sampler` means vLLM: by name, or by default where there is a GPU."""
    return kind == "vllm" or (kind == "auto" and device.type == "cuda")


class VllmSampler:
    """Continuous batching in vLLM, inside a running event loop. One engine may be in this process; any other
    must be `apart`, and keeps the weights of its checkpoint."""

    def __init__(self, config: Config, preprocessor: Preprocessor, ranks: Ranks, apart: bool = False):
        self.config, self.preprocessor, self.ranks, self.apart = config, preprocessor, ranks, apart
        self.version = 0
        self.failure = ""
        self.asleep = False
        self.count = 0
        self.futures: dict[str, asyncio.Future[Sample]] = {}  # of requests that the engine has or will have
        self.written: list[Order] = []  # in this turn of the event loop
        self.orders: queue.SimpleQueue[list[Order]] = queue.SimpleQueue()
        self.calls: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self.called = 0
        self.closed = False
        self.engine: LLMEngine | None = None
        self.names = {name for name, _ in blueprint(config.model.path).named_parameters()}
        self.parts = 1 if apart else config.sampler.tensor_parallel
        self.peers = ranks.neighbours(self.parts) if self.parts > 1 else None
        self.thread = threading.Thread(target=self._serve, name="vllm", daemon=True)
        self.thread.start()
        self._call(self._start)

    # --- what episodes and the trainer use ----------------------------------------------------------

    async def generate(self, request: Request) -> Sample:
        """Raises SamplerError if vLLM refuses the prompt, fails, or takes longer than request_seconds."""
        if self.failure:
            raise SamplerError(self.failure)
        self.count += 1
        name = f"{self.ranks.rank}-{self.count}"
        future = asyncio.get_running_loop().create_future()
        self.futures[name] = future
        self._order(Order(name, request))
        try:
            return await asyncio.wait_for(future, self.config.sampler.request_seconds)
        except TimeoutError:
            raise SamplerError("the sampler did not answer in time") from None
        finally:
            if name in self.futures:  # nobody waits for it any more
                self._order(Order(name))

    async def idle(self) -> None:
        """Waits until the engine has no request left, not even one that was given up."""
        deadline = time.monotonic() + IDLE_SECONDS
        while self.futures and not self.failure:
            if time.monotonic() > deadline:
                self._die(f"no step ended within {IDLE_SECONDS:g} s")
            await asyncio.sleep(POLL_SECONDS)

    def sleep(self, keep: bool = False) -> None:
        """Frees the memory that an update needs; `sync` wakes the engine, or `wake` if it keeps its weights.
        Nothing on a CPU."""
        if self.ranks.device.type == "cuda" and not self.asleep and not self.failure:
            self._call(lambda: self.engine.sleep(level=1 if keep else 2))
            self.asleep = True

    def wake(self) -> None:
        """Ends a sleep in which the weights were kept, in the CPU's memory."""
        if self.asleep and not self.failure:
            torch.cuda.empty_cache()
            self._call(self.engine.wake_up)
            self.asleep = False

    def sync(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Takes all weights, named as in the Hugging Face model, one at a time. A collective call, in which
        the rank of a dead engine takes part to the end: all ranks learn of its `failure` together."""
        assert not self.apart, "it keeps its weights"
        assert not self.futures or self.failure, "idle() comes before new weights"
        each, given = iter(weights), set()
        if not self.failure:
            if self.ranks.device.type == "cuda":
                torch.cuda.synchronize()  # the engine's thread has a stream of its own
            self._call(lambda: self._reload(each, given))
        given.update(name for name, _ in each)
        # vLLM would go on with what it had
        assert given == self.names, f"weights missing or unknown: {sorted(given ^ self.names)[:3]}"
        self.version += 1

    def close(self) -> None:
        """Frees the engine, whatever state it is in."""
        with contextlib.suppress(TimeoutError):
            self._call(self._leave, CLOSE_SECONDS)
        self.thread.join(CLOSE_SECONDS)
        with contextlib.suppress(Exception):  # of an engine that is dead anyway; what ended it has been told
            self._stop()

    # --- in the engine's thread ------------------------------------------------------------------------

    def _call(self, work: Callable[[], None], seconds: float = CALL_SECONDS) -> None:
        """Has `work` done in the engine's thread, on all ranks that share an engine at once."""
        if not self.failure:
            done: Future[None] = Future()
            self.calls.put((work, done))
            self.orders.put([Order("")])
            done.result(seconds)

    def _order(self, order: Order) -> None:
        """Passes orders on once for each turn of the event loop: whenever a step ends many requests, many
        come at once, and two threads that wake each other for each of them lose a tenth of the time."""
        if not self.written:
            asyncio.get_running_loop().call_soon(self._post)
        self.written.append(order)

    def _post(self) -> None:
        self.orders.put(self.written)
        self.written = []

    def _serve(self) -> None:
        """Orders, then a step, until closed. If the engine dies, so do all requests, each with its reason."""
        working = False
        try:
            while not (self.closed or self.failure):
                for order in self._ordered(wait=not working):
                    self._obey(order)
                working = self.engine is not None and self.engine.has_unfinished_requests()
                if working:
                    self._finish({output.request_id: self._sample(output) for output in self.engine.step()})
        except Exception as error:  # whatever ends it, episodes must not wait for their deadlines
            self._die(f"{type(error).__name__}: {error}")

    def _die(self, reason: str) -> None:
        """Ends everything that waits for the engine."""
        self.failure = self.failure or f"the vLLM engine died: {reason}"
        self._finish({name: SamplerError(self.failure) for name in list(self.futures)})
        while not self.calls.empty():
            self.calls.get()[1].set_result(None)

    def _obey(self, order: Order) -> None:
        if order.request is not None:
            self._add(order.name, order.request)
        elif order.name:
            self.engine.abort_request([order.name])
            self.futures.pop(order.name, None)
        else:
            self.called += 1
            if self.called == self.parts:
                self.called = 0
                self._run_call()

    def _ordered(self, wait: bool) -> list[Order]:
        """What has been ordered since the last step, by all ranks that share the engine."""
        own: list[Order] = []
        if wait:
            with contextlib.suppress(queue.Empty):
                own += self.orders.get(timeout=POLL_SECONDS if self.peers else None)
        while not self.orders.empty():
            own += self.orders.get()
        if self.peers is None:
            return own
        everyone: list[list[Order]] = [[] for _ in range(self.parts)]
        dist.all_gather_object(everyone, own, group=self.peers)
        return [order for orders in everyone for order in orders]

    def _run_call(self) -> None:
        """An engine that can't start is the user's to mend, or our bug; one that fails later is dead."""
        work, done = self.calls.get()
        try:
            work()
        except Exception as error:
            if self.version == 0 and not (self.apart and self.engine):
                return done.set_exception(error)
            self._die(f"{type(error).__name__}: {error}")
        done.set_result(None)

    def _add(self, name: str, request: Request) -> None:
        from vllm.exceptions import VLLMClientError

        try:
            prompt = engine_input(request.prompt, self.preprocessor)
            self.engine.add_request(name, prompt, sampling_params(request, self.preprocessor))
        except (VLLMClientError, ValueError) as error:
            self._finish({name: SamplerError(f"vLLM refused a prompt: {error}")})

    def _finish(self, outcomes: dict[str, Sample | SamplerError]) -> None:
        """Wakes those who wait, if they still do and are here."""
        ended = [(self.futures.pop(name), each) for name, each in outcomes.items() if name in self.futures]
        for loop in {future.get_loop() for future, _ in ended}:
            loop.call_soon_threadsafe(settle, [pair for pair in ended if pair[0].get_loop() is loop])

    def _sample(self, output: Any) -> Sample:
        (text,) = output.outputs
        return Sample(
            ids=tuple(text.token_ids),
            logprobs=tuple(text.logprobs.logprobs),
            finish="stop" if text.finish_reason == "stop" else "length",
            version=self.version,
            cached=output.num_cached_tokens or 0,
        )

    # --- the engine ----------------------------------------------------------------------------------

    def _start(self) -> None:
        """Makes the engine. It reads the checkpoint although `sync` brings other weights: where vLLM makes up
        weights it makes up buffers too, and those are never synced."""
        os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1"}
        # for an engine apart; a process with CUDA can't be forked, and the first engine fixes what vLLM reads
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"
        for name, value in (("VLLM_LOGGING_LEVEL", "ERROR"), ("VLLM_CPU_OMP_THREADS_BIND", "nobind")):
            os.environ.setdefault(name, value)
        try:
            from vllm import EngineArgs, LLMEngine
        except ImportError as error:
            problem = f"--sampler vllm: {error}; pip install 'minirl[vllm]', or take --sampler hf"
            raise ValueError(problem) from None
        set_threads = torch.set_num_threads
        if self.ranks.device.type == "cuda":
            torch.cuda.set_device(self.ranks.device)
        settings = engine_settings(self.config, self.preprocessor, self.ranks)
        if self.apart:
            settings |= {"distributed_executor_backend": "uni", "tensor_parallel_size": 1}
        try:
            with environment(variables(self.ranks, self.apart)):
                self.engine = LLMEngine.from_engine_args(
                    EngineArgs(**settings), enable_multiprocessing=self.apart
                )
        finally:
            torch.set_num_threads = set_threads  # vLLM disables it on a CPU; the trainer needs it
        if self.apart:
            tell_of_its_end(self.engine.engine_core)

    def _reload(self, weights: Iterator[tuple[str, Tensor]], given: set[str]) -> None:
        if self.asleep:
            torch.cuda.empty_cache()
            self.engine.wake_up(["weights"])
            self.engine.collective_rpc(clear_deepstack)

        def named() -> Iterator[tuple[str, Tensor]]:
            for name, weight in weights:
                given.add(name)
                yield name, weight

        self.engine.collective_rpc("reload_weights", kwargs={"weights_iterator": named()})
        if self.ranks.device.type == "cpu":
            self.engine.collective_rpc(pack_head)
        if self.asleep:
            self.engine.wake_up(["kv_cache"])
            self.asleep = False
        assert self.engine.reset_prefix_cache(), "a request still holds cache blocks"
        self.engine.reset_mm_cache()
        self.engine.reset_encoder_cache()

    def _leave(self) -> None:
        self.closed = True

    def _stop(self) -> None:
        """Frees the engine. In this process it leaves the process group alone, which vLLM's own shutdown
        would destroy."""
        if self.apart:
            self.engine.engine_core.shutdown()
            self.engine = None
            return
        from vllm.distributed.parallel_state import destroy_model_parallel

        client = self.engine.engine_core
        client._finalizer.detach()
        client.engine_core.model_executor.shutdown()
        client.engine_core.scheduler.shutdown()
        destroy_model_parallel()
        self.engine = None


def settle(ended: list[tuple[asyncio.Future[Sample], Sample | SamplerError]]) -> None:
    """Hands over results, in the event loop's thread; too late for those who have left."""
    for future, outcome in ended:
        if future.done():
            continue
        if isinstance(outcome, Sample):
            future.set_result(outcome)
        else:
            future.set_exception(outcome)
