"""Comparing an answer, a page's text or its address with what a task wants: text in, yes or no out.

Stands beneath `minirl.benchmarks.webarena.evaluators`. WebAgent-R1 evaluates as WebArena-Lite does
("lite"), which differs from
WebArena's own code ("upstream") in details that change scores; each function says in which. Answers and pages
can be megabytes of anything, so everything here takes time in proportion to the text's length.

Deviation: both use NLTK's word tokenizer, which needs data of its own. Here one expression finds the same
words, but for rare contractions ("cannot", "gonna"), and for abbreviations in the middle of a text, whose
period NLTK's data knows not to end a sentence.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import Literal
from urllib.parse import parse_qs, urlsplit

Variant = Literal["lite", "upstream"]
OR = " |OR| "

# What is a word by itself: a sign; a comma or colon unless a digit follows, as in 12,000 and 10:30; a period
# where it ends something, so not in 12.5 and example.org; the end of a contraction; a quote.
APART = re.compile(
    r"""([;@#$%&?!*()\[\]{}<>"“”„‘’«»`]|\.{2,}|--|[,:](?!\d)|\.(?=[\])}>"'»”’]*(?:\s|\Z))"""
    r"""|n't\b|'(?:s|m|d|ll|re|ve)\b|(?<!\w)'|'(?!\w))"""
)


def clean(text: str, variant: Variant) -> str:
    """Lower case, without one pair of quotes around it; upstream also without white space around those.

    >>> clean(" 'Yes' ", "lite"), clean(" 'Yes' ", "upstream")
    (" 'yes' ", 'yes')
    """
    text = text.strip() if variant == "upstream" else text
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    return text.lower()


def words(text: str) -> list[str]:
    """A text's words and signs.

    >>> words("it's $12.50, or 10:30 on example.org.")
    ['it', "'s", '$', '12.50', ',', 'or', '10:30', 'on', 'example.org', '.']
    """
    return APART.sub(r" \1 ", text).split()


def has_word(text: str, word: str, variant: Variant) -> bool:
    """Whether a word is one of a text's words: "0" is not in "10". Lite, as WebAgent-R1 has it,
    also looks between the slashes of a word."""
    for piece in text.split():
        if word in piece:
            found = words(piece)
            slashed = [long.split("/") for long in found if "/" in long and variant == "lite"]
            if word in found or any(word in parts for parts in slashed):
                return True
    return False


def is_exact(wanted: str, text: str, variant: Variant) -> bool:
    return clean(wanted, variant) == clean(text, variant)


def includes(wanted: str, text: str, variant: Variant, short: bool = False) -> bool:
    """Whether a text contains what is wanted, or one of its alternatives, which are set apart by " |OR| ".

    Lite: one that is a single word must be a word of the text. Upstream: only if `short` (it is all that an
    answer must include) and a single character.
    """
    text = clean(text, variant)
    for alternative in wanted.split(OR):
        sought = clean(alternative, variant)
        by_words = words(sought) == [sought] and (variant == "lite" or (short and len(sought) == 1))
        if has_word(text, sought, variant) if by_words else sought in text:
            return True
    return False


def page_text(found: str, variant: Variant) -> str:
    """What was found in a page, as it is compared. Upstream reads HTML's entities, lite does not."""
    return html.unescape(found) if variant == "upstream" else found


def url_matches(wanted: str, url: str, note: str | None, variant: Variant) -> bool:
    """Whether a page's address is what is wanted, or one of its alternatives (" |OR| ").

    The note "EXACT" asks for equality but for a slash at the end, "GOLD in PRED" for less: lite wants the
    address to contain a reference as it is; upstream wants host and path to contain a reference's, and for
    every key in the query of any reference one of the values that references have for it. Without a note
    lite takes the former, upstream the latter.
    """
    references = [_trim(reference, variant) for reference in wanted.split(OR)]
    url = _trim(url, variant)
    if (note or ("EXACT" if variant == "lite" else "GOLD in PRED")) == "EXACT":
        return url in references
    if variant == "lite":
        return any(reference in url for reference in references)
    place, query = _parts(url)
    return any(_parts(reference)[0] in place for reference in references) and all(
        any(value in query.get(key, ()) for value in values) for key, values in _queries(references).items()
    )


def _trim(url: str, variant: Variant) -> str:
    if variant == "upstream":
        return url.rstrip("/")
    return url.replace("localhost", "127.0.0.1").removesuffix("/")


def _parts(url: str) -> tuple[str, dict[str, list[str]]]:
    """Host and path, and the query. What is no address has no query."""
    try:
        parts = urlsplit(url)
        return (parts.netloc + parts.path).rstrip("/"), parse_qs(parts.query)
    except ValueError:  # brackets that are no address, or a query of very many fields
        return url, {}


def _queries(urls: Sequence[str]) -> dict[str, set[str]]:
    """By key all values that any of the addresses has for it."""
    pooled: dict[str, set[str]] = {}
    for url in urls:
        for key, values in _parts(url)[1].items():
            pooled.setdefault(key, set()).update(values)
    return pooled
