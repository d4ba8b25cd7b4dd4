"""The field types of records that come from files, and one line for the fault of a record."""

from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

R = TypeVar("R", bound="Record")

TAB_SEPARATOR = " |AND| "  # between the addresses of several tabs


class Record(BaseModel):
    """A JSON object. Nothing is converted ("7" is no number), and fields without a name here are ignored."""

    model_config = ConfigDict(strict=True, frozen=True)


def read(model: type[R], record: Any) -> R:
    """Return the record as a model. ValueError names the first malformed field, in one line.

    >>> read(Record, 7)
    Traceback (most recent call last):
    ValueError: : Input should be a valid dictionary or instance of Record, not 7
    """
    try:
        return model.model_validate(record)
    except ValidationError as error:
        fault = error.errors()[0]
    place = ".".join(str(key) for key in fault["loc"])
    reason = fault["msg"].removeprefix("Value error, ")  # pydantic's beginning of a message of ours
    raise ValueError(f"{place}: {reason}, not {fault['input']!r:.80}")


def _split_tabs(value: Any) -> Any:
    return value.split(TAB_SEPARATOR) if isinstance(value, str) else value


def _split_websites(value: Any) -> Any:
    """Return the addresses; a bare host gets https:// in front."""
    is_bare = isinstance(value, str) and "://" not in value
    return _split_tabs(f"https://{value}" if is_bare else value)


Text = Annotated[str, Field(pattern=r"\S")]
Texts = Annotated[list[str], Field(min_length=1)]
# A string, or a whole number
Identifier = Annotated[Text, BeforeValidator(lambda value: str(value) if type(value) is int else value)]
Level = str | int | None  # a difficulty
# One address: behind a blank there begins no other
Address = Annotated[str, Field(pattern=r"^https?://[^/\s]+(/(\S|\s+[^h\s])*\s*)?$")]
Addresses = Annotated[list[Address], BeforeValidator(_split_tabs)]  # the first page, and further tabs
Websites = Annotated[list[Address], BeforeValidator(_split_websites)]
