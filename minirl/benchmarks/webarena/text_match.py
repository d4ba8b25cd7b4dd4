"""Comparing an answer, a page's text or its address with what a task expects: text in, yes or no out.

As WebArena-Lite does, and so WebAgent-R1; in time proportional to the texts' length, which can be megabytes.
Deviations:

1. In place of NLTK's word tokenizer, which needs data, one expression finds the same words, but for
contractions ("cannot"), abbreviations, and the quote or period that NLTK leaves on a word ("'6'", "6. They").
2. "GOLD in PRED" asks that an address begins with the expected one. Anywhere in it, as released, would reward
http://any.page/?u=EXPECTED, too.
"""

import re
from typing import Any

OR = " |OR| "  # between alternatives

# What is a word by itself: a sign; a comma or colon unless a digit follows, as in 12,000 and 10:30; a period
# where it ends something, so not in 12.5 and example.org; the end of a contraction; a quote.
SIGN = re.compile(
    r"""([;@#$%&?!*()\[\]{}<>"“”„‘’«»`]|\.{2,}|--|[,:](?!\d)|\.(?=[\])}>"'»”’]*(?:\s|\Z))"""
    r"""|n't\b|'(?:s|m|d|ll|re|ve)\b|(?<!\w)'|'(?!\w))"""
)


def clean(text: str) -> str:
    """Return a text in lower case, without the quotes around it."""
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    return text.lower()


def words(text: str) -> list[str]:
    """Return a text's words and signs.

    >>> words("it's $12.50, or 10:30 on example.org.")
    ['it', "'s", '$', '12.50', ',', 'or', '10:30', 'on', 'example.org', '.']
    """
    return SIGN.sub(r" \1 ", text).split()


def has_word(text: str, word: str) -> bool:
    """Return True if a word is one of a text's words, or of the parts that slashes make of one."""
    return any(word == each or word in each.split("/") for each in words(text))


def includes(expected: str, text: str) -> bool:
    """Return True if a text contains one of the alternatives, as a word of it if it is a single word."""
    text = clean(text)
    for alternative in expected.split(OR):
        alternative = clean(alternative)
        is_word = words(alternative) == [alternative]
        if has_word(text, alternative) if is_word else alternative in text:
            return True
    return False


def meets(approach: str, expected: Any, text: str) -> bool:
    """Return True if a text is as expected; under fuzzy_match, if it is anything for a model to read."""
    if approach == "must_include":
        phrases = [expected] if isinstance(expected, str) else expected
        return all(includes(phrase, text) for phrase in phrases)
    if approach == "exact_match" or expected == "N/A":
        return clean(expected) == clean(text)
    return bool(text.strip())


def url_matches(expected: str, url: str, note: str | None) -> bool:
    """Return True if an address is, or with the note "GOLD in PRED" begins with, one of the alternatives."""
    url = _plain_url(url)
    references = [_plain_url(reference) for reference in expected.split(OR)]
    if note == "GOLD in PRED":
        return any(url.startswith(reference) for reference in references)
    return url in references


def _plain_url(url: str) -> str:
    return url.replace("localhost", "127.0.0.1").removesuffix("/")
