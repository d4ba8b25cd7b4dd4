"""A served model as the sampler: chat messages out, text in.

For teachers' demonstrations and for evaluating models that only an API serves. There are no ids and no
log-probs, so nothing can be reinforced with it; trajectories carry text, and minirl/demonstrations.py makes
ids of it, once, for cloning.
"""

from __future__ import annotations

from minirl.samplers.endpoint import Endpoint, EndpointError, as_chat
from minirl.types import Request, Sample, SamplerError


class RemoteSampler:
    """Asks an endpoint what to do. Top-k is not part of the API, and left out."""

    failure = ""  # one answer that fails says nothing about the next

    def __init__(self, endpoint: Endpoint):
        self.endpoint = endpoint

    async def generate(self, request: Request) -> Sample:
        """Raises SamplerError if there is no answer, a refusal included."""
        messages = as_chat(request.prompt.messages)
        how = {"temperature": request.sampling.temperature, "top_p": request.sampling.top_p}
        seed = request.seed % 2**31
        try:
            reply = await self.endpoint.ask(messages, request.max_tokens, seed=seed, **how)
        except EndpointError as error:
            raise SamplerError(str(error)) from None
        said = f"<think>\n{reply.reasoning}\n</think>\n\n{reply.text}" if reply.reasoning else reply.text
        counted = (reply.prompt_tokens, reply.response_tokens)
        return Sample((), (), reply.finish, text=said, counted=counted)

    async def idle(self) -> None:
        """A request that is given up ends with its connection."""
