"""The field types of records that come from files, and one line for the fault of a record.

Stands beneath the formats of task files: each is a pydantic model whose fields have these types.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from minirl.browser.access import is_address

AND = " |AND| "  # between the addresses of several tabs
BARE_HOST = re.compile(r"[a-z0-9-]+(\.[a-z0-9-]+)+(:\d+)?(/\S*)?", re.IGNORECASE)
REASONS = {
    "missing": "is missing",
    "extra_forbidden": "is unknown",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "too_short": "must not be empty",
}


class Record(BaseModel):
    """A JSON object. Nothing is converted ("7" is no number), and fields without a name here are ignored."""

    model_config = ConfigDict(strict=True, frozen=True)


R = TypeVar("R", bound=Record)


def read(model: type[R], record: Any) -> R:
    """Return the record as a model. ValueError names the first malformed field, in one line.

    the field 'program_html[0].locator' must be a valid string, not None
    """
    try:
        return model.model_validate(record)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
    # a union's place ends in the name of the type that was tried, as "list[str]"
    keys = [key for key in fault["loc"] if isinstance(key, int) or key.isidentifier()]
    place = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).removeprefix(".")
    message = fault["msg"].removeprefix("Value error, ").replace("Input should", "must")
    reason = REASONS.get(fault["type"], message)
    if place:
        reason = f"the field {place!r} {reason}"
    raise ValueError(f"{reason}, not {fault['input']!r:.80}" if " must " in reason else reason)


def _not_blank(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    return text


def _level(value: Any) -> str | int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, str | int) or value == ""):
        raise ValueError("must be a word or a whole number")
    return value


def _address(url: str) -> str:
    if not is_address(url):
        raise ValueError("must be an address like http://host/ or https://host/")
    return url


def _addresses(value: Any, bare: re.Pattern[str] | None = None) -> list[str]:
    urls = [url.strip() for url in value.split(AND)] if isinstance(value, str) else [""]
    return [_address(f"https://{url}" if bare and bare.fullmatch(url) else url) for url in urls]


Text = Annotated[str, AfterValidator(_not_blank)]
Texts = Annotated[list[str], Field(min_length=1)]
# A string, or a whole number
Identifier = Annotated[Text, BeforeValidator(lambda value: str(value) if type(value) is int else value)]
Level = Annotated[Any, AfterValidator(_level)]  # a difficulty
Address = Annotated[str, AfterValidator(_address)]
Addresses = Annotated[list[str], BeforeValidator(lambda value: _addresses(value))]  # first page, further tabs
Websites = Annotated[list[str], BeforeValidator(lambda value: _addresses(value, BARE_HOST))]  # or bare hosts
