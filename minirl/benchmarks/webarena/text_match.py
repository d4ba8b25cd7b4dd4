"""Comparing an answer, a page's text or its address with what a task wants: text in, yes or no out.

Stands beneath benchmark.py. WebAgent-R1 evaluates as WebArena-Lite does ("lite"), which differs from
WebArena's own code ("upstream") in details that change scores; each function says in which. Texts can be
megabytes of anything, so everything here takes time in proportion to their length. Deviation: in place of
NLTK's word tokenizer, which needs data, one expression finds the same words, but for rare contractions
("cannot", "gonna") and abbreviations in the middle of a text.
"""

from __future__ import annotations

import html
import re
from typing import Literal
from urllib.parse import parse_qs, urlsplit

Variant = Literal["lite", "upstream"]
OR = " |OR| "  # between alternatives

# What is a word by itself: a sign; a comma or colon unless a digit follows, as in 12,000 and 10:30; a period
# where it ends something, so not in 12.5 and example.org; the end of a contraction; a quote.
APART = re.compile(
    r"""([;@#$%&?!*()\[\]{}<>"“”„‘’«»`]|\.{2,}|--|[,:](?!\d)|\.(?=[\])}>"'»”’]*(?:\s|\Z))"""
    r"""|n't\b|'(?:s|m|d|ll|re|ve)\b|(?<!\w)'|'(?!\w))"""
)


def clean(text: str, variant: Variant) -> str:
    """Return a text in lower case, without a pair of quotes around it; upstream also without white space
    around those."""
    text = text.strip() if variant == "upstream" else text
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    return text.lower()


def words(text: str) -> list[str]:
    """Return a text's words and signs.

    >>> words("it's $12.50, or 10:30 on example.org.")
    ['it', "'s", '$', '12.50', ',', 'or', '10:30', 'on', 'example.org', '.']
    """
    return APART.sub(r" \1 ", text).split()


def has_word(text: str, word: str, variant: Variant) -> bool:
    """Return True if a word is one of a text's words: "0" is not in "10". Lite, as WebAgent-R1 has it, also
    looks between the slashes of a word."""
    found = [each for piece in text.split() if word in piece for each in words(piece)]
    between = [part for each in found if "/" in each and variant == "lite" for part in each.split("/")]
    return word in found or word in between


def is_exact(wanted: str, text: str, variant: Variant) -> bool:
    return clean(wanted, variant) == clean(text, variant)


def includes(wanted: str, text: str, variant: Variant, short: bool = False) -> bool:
    """Return True if a text contains what is wanted, or one of its alternatives, set apart by " |OR| ".

    Lite: one that is a single word must be a word of the text. Upstream: only if `short` (it is all that an
    answer must include) and a single character.
    """
    text = clean(text, variant)

    def has(sought: str) -> bool:
        by_words = words(sought) == [sought] and (variant == "lite" or (short and len(sought) == 1))
        return has_word(text, sought, variant) if by_words else sought in text

    return any(has(clean(alternative, variant)) for alternative in wanted.split(OR))


def page_text(found: str, variant: Variant) -> str:
    """Return a text found in a page as it is compared. Upstream reads HTML's entities, lite does not."""
    return html.unescape(found) if variant == "upstream" else found


def url_matches(wanted: str, url: str, note: str | None, variant: Variant) -> bool:
    """Return True if a page's address is the one wanted, or one of its alternatives (" |OR| ").

    The note "EXACT", lite's default, asks for equality but for a slash at the end. Under "GOLD in PRED",
    upstream's default, lite wants the address to contain a reference; upstream wants host and path to contain
    a reference's, and for every key in a reference's query one of the values that references have for it.
    """
    references = [_trim(reference, variant) for reference in wanted.split(OR)]
    url = _trim(url, variant)
    if (note or ("EXACT" if variant == "lite" else "GOLD in PRED")) == "EXACT":
        return url in references
    if variant == "lite":
        return any(reference in url for reference in references)
    place, query = _parts(url)
    pooled: dict[str, set[str]] = {}  # by key all values that any of the references has for it
    for reference in references:
        for key, values in _parts(reference)[1].items():
            pooled.setdefault(key, set()).update(values)
    return any(_parts(reference)[0] in place for reference in references) and all(
        any(value in query.get(key, ()) for value in values) for key, values in pooled.items()
    )


def _trim(url: str, variant: Variant) -> str:
    if variant == "upstream":
        return url.rstrip("/")
    return url.replace("localhost", "127.0.0.1").removesuffix("/")


def _parts(url: str) -> tuple[str, dict[str, list[str]]]:
    """Return host and path, and the query; a text that is no address has none."""
    try:
        parts = urlsplit(url)
        return (parts.netloc + parts.path).rstrip("/"), parse_qs(parts.query)
    except ValueError:  # brackets that are no address, or a query of very many fields
        return url, {}
