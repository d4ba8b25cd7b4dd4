"""The field types of records that come from files, and one line for the fault of a record."""

import re
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from minirl.browser.access import is_address

R = TypeVar("R", bound="Record")

AND = " |AND| "  # between the addresses of several tabs
BARE_HOST = re.compile(r"[a-z0-9-]+(\.[a-z0-9-]+)+(:\d+)?(/\S*)?", re.IGNORECASE)
AN_ADDRESS = "be an address like http://host/ or https://host/"
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


def read(model: type[R], record: Any) -> R:
    """Return the record as a model. ValueError names the first malformed field, in one line."""
    try:
        return model.model_validate(record)
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
    # a union's place ends in the name of the type that was tried, such as list[str]
    keys = [key for key in fault["loc"] if isinstance(key, int) or key.isidentifier()]
    place = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).removeprefix(".")
    message = fault["msg"].removeprefix("Value error, ").replace("Input should", "must")
    reason = REASONS.get(fault["type"], message)
    if place:
        reason = f"the field {place!r} {reason}"
    raise ValueError(f"{reason}, not {fault['input']!r:.80}" if " must " in reason else reason)


def must(is_right: Callable[[Any], Any], what: str) -> AfterValidator:
    """Return the check of a field that must be or have `what`, in words for people."""

    def check(value: Any) -> Any:
        if not is_right(value):
            raise ValueError(f"must {what}")
        return value

    return AfterValidator(check)


def _is_level(value: Any) -> bool:
    return value is None or isinstance(value, str | int) and not isinstance(value, bool) and value != ""


def _addresses(value: Any, bare: bool = False) -> list[str]:
    urls = [url.strip() for url in value.split(AND)] if isinstance(value, str) else [""]
    return [f"https://{url}" if bare and BARE_HOST.fullmatch(url) else url for url in urls]


Text = Annotated[str, must(str.strip, "not be empty")]
Texts = Annotated[list[str], Field(min_length=1)]
# A string, or a whole number
Identifier = Annotated[Text, BeforeValidator(lambda value: str(value) if type(value) is int else value)]
Level = Annotated[Any, must(_is_level, "be a word or a whole number")]  # a difficulty
_All = Annotated[list[str], must(lambda urls: all(map(is_address, urls)), AN_ADDRESS)]
Addresses = Annotated[_All, BeforeValidator(_addresses)]  # the first page, and further tabs
Websites = Annotated[_All, BeforeValidator(lambda value: _addresses(value, bare=True))]  # or bare hosts
