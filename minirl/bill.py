"""What an episode's served models cost: each adds its price to the bill of the block that it is asked in."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_BILL: ContextVar[list[float] | None] = ContextVar("bill", default=None)


@contextmanager
def billed() -> Iterator[list[float]]:
    """Collect the dollars that served models charge while the block runs, tasks it starts included."""
    bill: list[float] = []
    token = _BILL.set(bill)
    try:
        yield bill
    finally:
        _BILL.reset(token)


def charge(dollars: float) -> None:
    """Add a served model's price to the bill of the enclosing `billed()` block, if there is one."""
    if (bill := _BILL.get()) is not None:
        bill.append(dollars)
