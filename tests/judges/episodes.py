"""Episodes for judges, made by hand, and what a judge is shown of them."""

from collections.abc import Sequence
from types import SimpleNamespace

from minirl.types import Call, Message, Parsed, Task, Trajectory, Turn

TASK = Task("shop-0-17", "Order 2 red mugs", "http://shop-0.test/")


# Screenshots made of their names
PNGS = SimpleNamespace(get=lambda name: f"PNG of {name}".encode())


def turn(name: str = "click", image: str = "", feedback: str = "", **arguments: object) -> Turn:
    images = (image,) if image else ()
    return Turn(
        *(0, (), (), (), "because"),
        images=images,
        parsed=Parsed("why", (Call(name, arguments),)),
        feedback=(feedback,),
    )


def episode(*turns: Turn, answer: str = "Ordered.", **fields: object) -> Trajectory:
    last = turn(
        "done", image="last", feedback=f"Succeed: task marked as done. Response: {answer}", response=answer
    )
    return Trajectory(TASK, 0, turns=(*turns, last), answer=answer, **fields)


def words_of(messages: Sequence[Message]) -> str:
    """All text below the system prompt."""
    return "".join(part for part in messages[1][1] if isinstance(part, str))


def pictures_of(messages: Sequence[Message]) -> list[str]:
    """The names of the screenshots, in order."""
    return [part.decode().removeprefix("PNG of ") for part in messages[1][1] if isinstance(part, bytes)]
