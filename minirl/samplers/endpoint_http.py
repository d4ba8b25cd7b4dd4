"""The HTTP client beneath minirl/samplers/endpoint.py, for servers that may be anybody's.

A redirect is an answer like another: following it would send the prompt, and ask, wherever the server says.
"""

from typing import Any

import httpx2
import openai

MOST_BYTES = 2**24  # of an answer
KEPT = ("retry-after", "retry-after-ms", "x-should-retry")  # the headers that the library goes by


class BoundedClient(openai.DefaultAsyncHttpxClient):
    """A client whose answers are UTF-8, at most MOST_BYTES long, and not compressed."""

    async def send(self, request: httpx2.Request, *, stream: bool = False, **how: Any) -> httpx2.Response:
        """Return the whole answer. Raises OpenAIError, which is not tried again, if it is not as above."""
        request.headers["Accept-Encoding"], how["follow_redirects"] = "identity", False
        answer = await super().send(request, stream=True, **how)
        try:
            if answer.headers.get("Content-Encoding", "identity") != "identity":
                raise openai.OpenAIError("sent a compressed answer, which it was not asked for")
            body = bytearray()
            async for part in answer.aiter_raw():
                body += part
                if len(body) > MOST_BYTES:
                    raise openai.OpenAIError(f"sent more than {MOST_BYTES} bytes")
        finally:
            await answer.aclose()
        headers = {name: answer.headers[name] for name in KEPT if name in answer.headers}
        return httpx2.Response(answer.status_code, headers=headers, content=bytes(body), request=request)
