"""Texts as words that do not depend on how they are written: case, accents, articles, numbers, dates, possessives."""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal
from functools import lru_cache

MONTHS = ("january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november", "december")
_MONTH = r"(jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?|nov(?:ember)?|dec(?:ember)?)\.?"
_DAY = r"(\d{1,2})(?:st|nd|rd|th)?(?![\d.:]\d|\d)"
_YEAR = r"(\d{4})(?!\d)"

_ONES = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_ONES += ("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen")
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_NUMBERS = {word: value for value, word in enumerate(_ONES)} | {word: 20 + 10 * value for value, word in enumerate(_TENS)}
_SCALES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}

_LETTERS = str.maketrans({"ø": "o", "Ø": "O", "ł": "l", "Ł": "L", "đ": "d", "Đ": "D", "æ": "ae", "Æ": "AE", "œ": "oe", "Œ": "OE"})
_SIGNS = str.maketrans({**dict.fromkeys("’‘ʼ`´", "'"), **dict.fromkeys("–—−‐‑‒", "-"), "&": " and ", "ı": "i", "ð": "d", "þ": "th"})
_UNSPACED = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff\u0e00-\u0e7f"

_INITIALS = re.compile(r"(?<![\w.])(?:[A-Z](?:\.\s?[A-Z])+|[a-z](?:\.[a-z])+)(?!\w)\.?")
_ARTICLE = re.compile(r"\b(?i:the|an)\b|\ba\b|(?:^|(?<=[.!?:;\"'(]\s)|(?<=[\n\"'(]))A\b(?=\s)")
_WORD = re.compile(rf"(?<![\w.)])-\d+(?:\.\d+)?|\d+s\b|\d+(?:\.\d+)?|[{_UNSPACED}]|(?:(?![{_UNSPACED}])[^\W\d_])+[+#]*")


def contains(text: str, wanted: str) -> bool:
    """Whether the words of ``wanted`` stand in ``text``, one after the other, in any way of writing them.

    Words may be joined or split differently (HurricaneLaura, co-operate), numbers next to each other may not.
    """
    ambiguous = _numeric_date(text) or _numeric_date(wanted)
    possessive = "'s" in text.translate(_SIGNS) or "'s" in wanted.translate(_SIGNS)
    for day_first in (False, True) if ambiguous else (False,):
        for glue in (False, True) if possessive else (False,):
            if _stands_in(normal_words(wanted, day_first, glue), normal_words(text, day_first, glue)):
                return True
    return False


@lru_cache(maxsize=20_000)
def normal_words(text: str, day_first: bool = False, glue: bool = False) -> tuple[str, ...]:
    """The words of a text in their normal form.

    A date becomes year, month, day, so that each part of it that a person would name stands in one piece.

    Args:
        day_first: read 08/09/1956 as 8 September, else as August 9.
        glue: read McDonald's as mcdonalds, else as mcdonald.
    """
    text = re.sub(r"(?<=\d)[\u00a0\u202f\u2009](?=\d{3}(?!\d))", "", text.translate(_SIGNS))
    text = _without_accents(text)
    text = _INITIALS.sub(lambda match: re.sub(r"[.\s]", "", match.group()) + " ", text)
    kept = _ARTICLE.sub(" ", text)
    words = _words(kept, day_first, glue)
    return words or _words(text, day_first, glue)


def _words(text: str, day_first: bool, glue: bool) -> tuple[str, ...]:
    text = text.casefold()
    text = re.sub(r"(?<=\w)'s\b", "s" if glue else "", text)
    text = re.sub(r"(?<=\w)'(?=\w)|(?<=s)'(?!\w)", "", text)
    text = _numbers(_dates(_plain_numbers(text), day_first))
    return tuple(_canonical(word) for word in _WORD.findall(text))


def _without_accents(text: str) -> str:
    parts = unicodedata.normalize("NFKD", text.translate(_LETTERS))
    return unicodedata.normalize("NFC", "".join(c for c in parts if not "\u0300" <= c <= "\u036f"))


def _plain_numbers(text: str) -> str:
    """Digits for number words; no thousands separators; whole hours; no percent signs."""
    tens = "|".join(_TENS)
    text = re.sub(rf"\b({tens})[-\s]({'|'.join(_ONES[1:10])})\b", lambda m: str(_NUMBERS[m[1]] + _NUMBERS[m[2]]), text)
    text = re.sub(rf"\b(?:{'|'.join(_NUMBERS)})\b", lambda m: str(_NUMBERS[m[0]]), text)
    text = re.sub(r"(?<![\d.])\d{1,3}(?:,\d{3})+(?!\d)", lambda m: m[0].replace(",", ""), text)
    text = re.sub(r"\b(\d{1,2}):00\b", r"\1", text)
    return re.sub(r"%|\bper\s?cent\b", " ", text)


def _numbers(text: str) -> str:
    """Scales multiplied out (1.2 million), ordinals as numbers (21st)."""
    pattern = rf"(?<![\w.])(\d+(?:\.\d+)?)[\s-]*({'|'.join(_SCALES)})\b"
    while (scaled := re.sub(pattern, lambda m: f"{Decimal(m[1]) * _SCALES[m[2]]:f}", text)) != text:
        text = scaled
    return re.sub(r"\b(\d+)(?:st|nd|rd|th)\b", r"\1", text)


def _dates(text: str, day_first: bool) -> str:
    text = re.sub(r"(?<![\d.])(\d{4})([-/.])(\d{1,2})\2(\d{1,2})(?!\d)", _iso_date, text)
    text = re.sub(_NUMERIC, lambda m: _numbered_date(m, day_first), text)
    text = re.sub(rf"\b{_DAY}\s+(?:of\s+)?{_MONTH}(?!\w)(?:\s*,?\s*(?:of\s+)?{_YEAR})?", lambda m: _written(m[3], m[2], m[1]), text)
    text = re.sub(rf"\b{_MONTH}\s+{_DAY}(?!\w)(?:\s*,?\s*(?:of\s+)?{_YEAR})?", lambda m: _written(m[3], m[1], m[2]), text)
    return re.sub(rf"\b{_MONTH}\s*,?\s+(?:of\s+)?{_YEAR}", lambda m: _written(m[2], m[1], None), text)


def _written(year: str | None, month: str, day: str | None) -> str:
    name = next(m for m in MONTHS if m.startswith(month[:3]))
    return f" {year or ''} {name} {day or ''} "


def _numbered_date(match: re.Match[str], day_first: bool) -> str:
    first, separator, second, year = match.groups()
    a, b = int(first), int(second)
    day, month = (a, b) if b <= 12 and (a > 12 or day_first or separator == ".") else (b, a)
    return _written(year, MONTHS[month - 1], str(day)) if 1 <= month <= 12 and 1 <= day <= 31 else match.group()


def _iso_date(match: re.Match[str]) -> str:
    month = int(match[3])
    return _written(match[1], MONTHS[month - 1], match[4]) if 1 <= month <= 12 else match.group()


_NUMERIC = r"(?<![\d./-])(\d{1,2})([-/.])(\d{1,2})\2(\d{4})(?!\d)"


def _numeric_date(text: str) -> bool:
    return re.search(_NUMERIC, text) is not None


def _canonical(word: str) -> str:
    """3.50 as 3.5, 08 as 8."""
    if re.fullmatch(r"-?\d+(\.\d+)?", word):
        sign, digits = ("-", word[1:]) if word.startswith("-") else ("", word)
        whole, _, fraction = digits.partition(".")
        fraction = fraction.rstrip("0")
        return sign + (whole.lstrip("0") or "0") + (f".{fraction}" if fraction else "")
    return word


def _stands_in(wanted: tuple[str, ...], words: tuple[str, ...]) -> bool:
    target = _joined(wanted)
    if not target:
        return False
    for start in range(len(words)):
        for end in range(start + 1, len(words) + 1):
            piece = _joined(words[start:end])
            if piece == target:
                return True
            if not target.startswith(piece):
                break
    return False


def _joined(words: tuple[str, ...]) -> str:
    """The words as one string; numbers that stand next to each other stay apart."""
    text = ""
    for word in words:
        text += f" {word}" if text[-1:].isdigit() and word[0] in "-0123456789" else word
    return text
