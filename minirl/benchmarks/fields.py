"""The field types of records that come from files, and one line for the fault of a record."""

import re
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from minirl.browser.access import is_address

R = TypeVar("R", bound="Record")

TAB_SEPARATOR = " |AND| "  # between the addresses of several tabs
BARE_HOST = re.compile(r"[a-z0-9-]+(\.[a-z0-9-]+)+(:\d+)?(/\S*)?", re.IGNORECASE)
AN_ADDRESS = "be an address like http://host/ or https://host/"


class Record(BaseModel):
    """A JSON object. Nothing is converted ("7" is no number), and fields without a name here are ignored."""

    model_config = ConfigDict(strict=True, frozen=True)


def read(model: type[R], record: Any) -> R:
    """Return the record as a model. ValueError names the first malformed field, in one line.

    >>> read(Record, 7)
    Traceback (most recent call last):
    ValueError: Input should be a valid dictionary or instance of Record, not 7
    """
    try:
        return model.model_validate(record)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
    place = ".".join(str(key) for key in fault["loc"])
    message = fault["msg"].removeprefix("Value error, ")
    if fault["type"] != "missing":  # of what is missing there is no value to show
        message += f", not {fault['input']!r:.80}"
    raise ValueError(f"{place}: {message}" if place else message)


def must(is_right: Callable[[Any], Any], what: str) -> AfterValidator:
    """Return the check of a field that must be or have `what`, in words for people."""

    def check(value: Any) -> Any:
        if not is_right(value):
            raise ValueError(f"must {what}")
        return value

    return AfterValidator(check)


def _number_as_text(value: Any) -> Any:
    return str(value) if type(value) is int else value


def _split_tabs(value: Any) -> Any:
    return [url.strip() for url in value.split(TAB_SEPARATOR)] if isinstance(value, str) else value


def _split_websites(value: Any) -> Any:
    """Return the addresses; a bare host gets https:// in front."""
    urls = _split_tabs(value)
    if not isinstance(urls, list):
        return urls
    return [f"https://{url}" if isinstance(url, str) and BARE_HOST.fullmatch(url) else url for url in urls]


Text = Annotated[str, must(str.strip, "not be empty")]
Texts = Annotated[list[str], Field(min_length=1)]
Identifier = Annotated[Text, BeforeValidator(_number_as_text)]  # a string, or a whole number
Level = str | int | None  # a difficulty
Address = Annotated[str, must(is_address, AN_ADDRESS)]
Addresses = Annotated[list[Address], BeforeValidator(_split_tabs)]  # the first page, and further tabs
Websites = Annotated[list[Address], BeforeValidator(_split_websites)]
