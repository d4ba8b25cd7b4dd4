"""The fields of WebArena's records, checked one by one: what a record must look like to be a task.

Stands beneath `minirl.benchmarks.webarena.tasks`. What is malformed is named when the file is read, not
when an episode that
took minutes is to be judged. The public files hold such records: some give `must_include` a string, where its
letters would be taken one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minirl.benchmarks.webarena.locators import PRESSES, check_locator, check_script, read_helper
from minirl.browser.access import is_address

OR = " |OR| "
KINDS = {str: "a string", int: "a number", bool: "true or false", list: "a list", dict: "an object"}


def check_rules(rules: Mapping[str, Any]) -> None:
    """ValueError names what is wrong with a record's `eval`, whose placeholders have been replaced."""
    kinds = texts(rules, "eval_types")
    if not kinds:
        raise ValueError("the field 'eval_types' is empty, so nothing could be checked")
    for kind in kinds:
        match kind:
            case "string_match":
                _check_answers(rules)
            case "url_match":
                for url in text(rules, "reference_url").split(OR):
                    check_address(url, "reference_url")
                if rules.get("url_note") not in (None, "EXACT", "GOLD in PRED"):
                    raise ValueError(f"the url_note {rules['url_note']!r} is not EXACT or GOLD in PRED")
            case "program_html":
                targets = field(rules, "program_html", list)
                if not targets:
                    raise ValueError("program_html is among the eval_types, but the field is empty")
                for i, target in enumerate(targets):
                    try:
                        _check_target(target)
                    except ValueError as problem:
                        raise ValueError(f"program_html[{i}]: {problem}") from None
            case _:
                raise ValueError(
                    f"the eval_type {kind!r} is not one of string_match, url_match, program_html"
                )


def mended(rules: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The rules with phrases where they must be lists, and a line for each one that stood alone: the public
    files have some, which crash the released evaluator."""
    notes: list[str] = []

    def whole(part: Any, place: str) -> Any:
        if isinstance(part, list):
            return [whole(item, f"{place}[{i}]") for i, item in enumerate(part)]
        if not isinstance(part, dict):
            return part
        out = {key: whole(value, f"{place}.{key}" if place else key) for key, value in part.items()}
        if isinstance(out.get("must_include"), str) and out["must_include"].strip():
            notes.append(f"{place}: must_include should be a list of phrases, and is read as one")
            out["must_include"] = [out["must_include"]]
        return out

    return whole(dict(rules), ""), notes


def _check_answers(rules: Mapping[str, Any]) -> None:
    answers = field(rules, "reference_answers", dict)
    if not answers:
        raise ValueError("string_match is among the eval_types, but reference_answers is empty")
    for approach, wanted in answers.items():
        match approach:
            case "exact_match":
                text(answers, approach)
            case "must_include":
                texts(answers, approach, empty=False)
            case "fuzzy_match" if wanted == "N/A":
                text(rules, "string_note")
            case "fuzzy_match":
                texts(answers, approach, empty=False)
            case _:
                raise ValueError(f"reference_answers has the unknown approach {approach!r}")


def _check_target(target: Any) -> None:
    if not isinstance(target, dict):
        raise ValueError("must be an object")
    url, locator = text(target, "url"), field(target, "locator", str)
    if url.startswith("func:"):
        if read_helper(url).name not in ("reddit_get_post_url", "shopping_get_latest_order_url"):
            raise ValueError(f"the url {url[:80]!r} calls a helper that gives no address")
    elif url != "last":
        check_address(url, "url")
    check_locator(locator)
    if "prep_actions" in target:
        for script in texts(target, "prep_actions"):
            check_script(script, PRESSES)
    contents = field(target, "required_contents", dict)
    # the first of these counts, and only that
    if "exact_match" in contents:
        field(contents, "exact_match", str)
    elif "must_include" in contents:
        texts(contents, "must_include", empty=False)
    elif "fuzzy_match" in contents:
        texts(contents, "fuzzy_match", empty=False)
    else:
        raise ValueError("required_contents has none of exact_match, must_include, fuzzy_match")


def field(record: Mapping[str, Any], name: str, kind: type) -> Any:
    if name not in record:
        raise ValueError(f"the field {name!r} is missing")
    value = record[name]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ValueError(f"the field {name!r} must be {KINDS[kind]}, not {str(value)[:80]!r}")
    return value


def text(record: Mapping[str, Any], name: str) -> str:
    if not field(record, name, str).strip():
        raise ValueError(f"the field {name!r} is empty")
    return record[name]


def texts(record: Mapping[str, Any], name: str, empty: bool = True) -> list[str]:
    values = field(record, name, list)
    if not all(isinstance(value, str) for value in values) or not (values or empty):
        raise ValueError(f"the field {name!r} must be a list of strings, not {str(values)[:80]}")
    return values


def check_address(url: str, name: str) -> None:
    if not is_address(url):
        raise ValueError(f"the field {name!r} must be an http address, not {url[:80]!r}")
