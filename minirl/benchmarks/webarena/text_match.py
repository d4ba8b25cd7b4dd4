"""Comparing an answer, a page's text or its address with what a task wants: text in, yes or no out.

As WebArena-Lite does, and so WebAgent-R1; in time proportional to the texts' length, which can be megabytes.
Deviation: in place of NLTK's word tokenizer, which needs data, one expression finds the same words, but for
contractions ("cannot"), abbreviations, and the quote or period that NLTK leaves on a word ("'6'", "6. They").
"""

import re
from typing import Any

OR = " |OR| "  # between alternatives

# What is a word by itself: a sign; a comma or colon unless a digit follows, as in 12,000 and 10:30; a period
# where it ends something, so not in 12.5 and example.org; the end of a contraction; a quote.
APART = re.compile(
    r"""([;@#$%&?!*()\[\]{}<>"“”„‘’«»`]|\.{2,}|--|[,:](?!\d)|\.(?=[\])}>"'»”’]*(?:\s|\Z))"""
    r"""|n't\b|'(?:s|m|d|ll|re|ve)\b|(?<!\w)'|'(?!\w))"""
)


def clean(text: str) -> str:
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    return text.lower()


def words(text: str) -> list[str]:
    """Return a text's words and signs.

    >>> words("it's $12.50, or 10:30 on example.org.")
    ['it', "'s", '$', '12.50', ',', 'or', '10:30', 'on', 'example.org', '.']
    """
    return APART.sub(r" \1 ", text).split()


def has_word(text: str, word: str) -> bool:
    """Return True if a word is one of a text's words, or of the parts that slashes make of one."""
    found = [each for piece in text.split() if word in piece for each in words(piece)]
    return any(word == each or word in each.split("/") for each in found)


def includes(wanted: str, text: str) -> bool:
    """Return True if a text contains one of the alternatives, as a word of it if it is a single word."""
    text, alternatives = clean(text), [clean(alternative) for alternative in wanted.split(OR)]
    return any(has_word(text, a) if words(a) == [a] else a in text for a in alternatives)


def meets(approach: str, wanted: Any, text: str) -> bool:
    """Return True if a text is as wanted; under fuzzy_match, if it is anything for a model to read."""
    if approach == "must_include":
        return all(includes(each, text) for each in wanted)
    return clean(wanted) == clean(text) if isinstance(wanted, str) else bool(text.strip())


def url_matches(wanted: str, url: str, note: str | None) -> bool:
    """Return True if an address is, or with the note "GOLD in PRED" contains, one of the alternatives."""
    urls = (url, *wanted.split(OR))
    url, *references = (u.replace("localhost", "127.0.0.1").removesuffix("/") for u in urls)
    return any(reference in url if note == "GOLD in PRED" else reference == url for reference in references)
