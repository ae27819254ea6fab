"""Which of the five Ws a question asks for: a rule that reads the question word and the noun behind it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from excise.fivew import nouns
from excise.fivew.nouns import listed

WS = ("who", "what", "when", "where", "why")
"""The classes, in the order in which they are shown."""

ASKING = listed("who whom whose what which when where why how")
AUXILIARY = listed(
    "is are was were am be been s re do does did d has have had will ll would can could shall should may might must isn aren wasn weren don "
    "doesn didn hasn haven hadn won wouldn can't couldn shouldn"
)
BEING = listed("is are was were s")
POINTING = listed("this that these those")
PREPOSITION = listed(
    "in on at by for from to of with within without under over since until till during after before through into onto upon near about as around "
    "between among against towards toward across per"
)
DETERMINER = listed("the a an this that these those his her its their your our my any some another")
OPENERS = listed("that who which whose whom where when what and or but because if while known called named titled described located")
QUANTITY = listed(
    "many much old long far tall big large small high low deep wide heavy fast often frequently hot cold expensive thick close soon late early few"
)
DURATIONS = (["running", "time"], ["travel", "time"], ["screen", "time"], ["time", "period"])
"""Nouns of time that ask how long."""
IMPERATIVES = [[verb] for verb in sorted(listed("name identify give state tell list specify mention recall provide indicate share describe"))]
ABBREVIATION = re.compile(r"\b(?:[A-Z]|Mr|Mrs|Ms|Dr|St|Jr|Sr|vs|No|Inc|Ltd|Co|Prof|Pres|Rs|Mt|Ft|Gen|Sen|Rep|Gov|Lt|Col)$")
QUOTED = re.compile(r"[\"“”«»][^\"“”«»]*[\"“”«»]|(?<!\w)['‘’](?!s\b)[^\"]{1,80}?['‘’](?!\w)")
TOKEN = re.compile(r"[^\W_]+(?:[-.&][^\W_]+)*|,|:|;")


@dataclass(frozen=True)
class Asked:
    """What a question asks for, and why the rule thinks so."""

    w: str | None
    """One of :data:`WS`; None where the question asks none of them."""
    why: str


@lru_cache(maxsize=100_000)
def asked(question: str) -> Asked:
    """Which of who, what, when, where and why a question asks for.

    * who, whom, whose ask for who; when, where, why for themselves; "how long ago" for when, "how come" for why.
    * what and which ask for who, when, where or why where the noun that they ask about is a person, a time, a place or a reason, and
      for what otherwise: "in which city", "what is the date of", "what was the name of the actor", "a specific year. Which one is it?".
    * "how many" and the like ask for a quantity: what. "How" of manner, and yes-or-no questions, ask none of the five.

    English only. It reads the question, never the answer.

    Paper: ours, after the answer types of Li and Roth 2002 (who: HUM, when: NUM:date, where: LOC, why: DESC:reason, what: the rest);
    precision on rows that were labelled by reading them: docs/fivew.md.
    """
    sentences = _sentences(QUOTED.sub(" ", question))
    place = max((i for i, s in enumerate(sentences) if s.rstrip().endswith("?")), default=len(sentences) - 1)
    tokens = [token.casefold() for token in TOKEN.findall(sentences[place])] if sentences else []
    before = [token.casefold() for token in TOKEN.findall(sentences[place - 1])] if place > 0 else []
    if _question_word(tokens) is None and place:  # cut at an abbreviation that we do not know, perhaps
        tokens, before = [*before, *tokens], []
    at = _question_word(tokens)
    return _commanded(_polite(tokens)) if at is None or _polite(tokens)[:1] in IMPERATIVES else _asked_with(tokens, at, before)


def _sentences(text: str) -> list[str]:
    """A text cut at its ends of sentences; an abbreviation ends none."""
    parts: list[str] = []
    for piece in re.split(r"(?<=[.!?])\s+", text.strip()):
        if parts and ABBREVIATION.search(parts[-1].rstrip(".")) and parts[-1].endswith("."):
            parts[-1] += f" {piece}"
        elif piece:
            parts.append(piece)
    return parts


def _question_word(tokens: Sequence[str]) -> int | None:
    """Where the word stands that asks: not one that opens a clause ("When the war ended, who ..." asks who)."""
    found = [i for i, token in enumerate(tokens) if token in ASKING]
    sure = [i for i in found if _asks(tokens, i)]
    return next(iter(sure or found), None)


def _asks(tokens: Sequence[str], at: int) -> bool:
    following = tokens[at + 1] if at + 1 < len(tokens) else ""
    previous = tokens[at - 1] if at else ""
    if tokens[at] in ("when", "where"):
        return following in AUXILIARY or not following or (at == 0 and not any(t in ASKING for t in tokens[1:]))
    return at == 0 or previous in PREPOSITION or previous in (",", ":", ";", "and", "or") or (following in AUXILIARY and tokens[at] != "that")


def _asked_with(tokens: Sequence[str], at: int, before: Sequence[str]) -> Asked:
    word, rest = tokens[at], tokens[at + 1 :]
    if word in ("who", "whom", "whose"):
        return Asked("who", f"asks {word}")
    if word in ("when", "where", "why"):
        return Asked(word, f"asks {word}")
    if word == "how":
        return _how(rest)
    return _what(word, rest, tokens[at - 1] if at else "", before)


def _how(rest: Sequence[str]) -> Asked:
    if rest[:1] == ["come"]:
        return Asked("why", "asks how come")
    if rest[:2] == ["long", "ago"] or rest[:1] in (["soon"], ["recently"], ["late"], ["early"]):
        return Asked("when", f"asks how {' '.join(rest[:2])}")
    if rest[:1] and rest[0] in QUANTITY:
        return Asked("what", f"asks how {rest[0]}")
    return Asked(None, "asks how")


def _what(word: str, rest: Sequence[str], previous: str, before: Sequence[str]) -> Asked:
    if rest and rest[0] in nouns.CAUSING and not (rest[0] == "cause" and rest[1:2] == ["of"]):
        return Asked("why", f"asks what {rest[0]}")
    if rest[:1] == ["made"]:
        return Asked("why", "asks what made")
    phrase = _phrase(rest)
    head = phrase[-1] if phrase else ""
    if previous in PREPOSITION and head in nouns.SITE:
        return Asked("where", f"asks {previous} {word} {head}")
    if not phrase or head == "one" or head == "ones":
        phrase, head = _complement(rest[len(phrase) :], before)
    if head in nouns.NOT_A_PLACE and phrase[-1:] == [head] and _followed_by_of(rest, head):
        return Asked("what", f"asks {word} {head} of")
    found = None if phrase[-2:] in DURATIONS else nouns.kind(head)
    return Asked(found or "what", f"asks {word}" + (f" {head}" if head else ""))


def _phrase(tokens: Sequence[str]) -> list[str]:
    """The noun phrase that tokens begin with: up to a verb that we know, a preposition, a comma or a clause. May be empty.

    A verb that we do not know ends it too where the noun before it is one that we know ("which actor stars").
    """
    found: list[str] = []
    for token in tokens:
        if token in AUXILIARY or token in PREPOSITION or token in OPENERS or token in (",", ":", ";") or token in DETERMINER:
            break
        if found and nouns.kind(found[-1]) and not nouns.kind(token) and not _noun_like(token):
            break
        found.append(token)
    return found


def _noun_like(token: str) -> bool:
    """Whether a word after a noun that we know is probably the noun that counts ("state capital", "city council")."""
    return not token.endswith(("s", "ed", "ing", "ly")) and token not in VERBS


VERBS = listed("won wrote sang began became gave took made led left went came held ran saw met fell rose lost beat hit put set born first also")


def _complement(rest: Sequence[str], before: Sequence[str]) -> tuple[list[str], str]:
    """The noun phrase after "what is": with a name or a pronoun, that which it stands for."""
    if not rest or rest[0] not in BEING:
        return [], ""
    i = 1
    determiner = rest[i] if i < len(rest) else ""
    if determiner in ("it", "they") or (determiner in POINTING and i + 1 == len(rest)):
        return _introduced(before)
    if determiner in ("he", "she", "i", "we", "you"):
        return [], ""
    phrase = _phrase(rest[i + 1 :] if determiner in DETERMINER else rest[i:])
    after = rest[i + (determiner in DETERMINER) + len(phrase) :]
    if after[:1] == ["s"]:  # the pilot's name, Ada's date of birth
        owned = _phrase(after[1:])
        phrase, owner, after = owned, phrase, after[1 + len(owned) :]
        if phrase and phrase[-1] in nouns.NAMING:
            return owner, (owner or [""])[-1]
    if phrase and phrase[-1] in nouns.NAMING:
        return _named(phrase, determiner, after, before)
    return phrase, phrase[-1] if phrase else ""


def _named(phrase: list[str], determiner: str, after: Sequence[str], before: Sequence[str]) -> tuple[list[str], str]:
    """Of what the name is asked: of that which "of" brings, of a person (his, her), or of what the sentence before introduced."""
    if after[:1] == ["of"]:
        inner = _phrase(after[2:] if after[1:2] and after[1] in DETERMINER else after[1:])
        return inner, inner[-1] if inner else ""
    if determiner in ("his", "her"):
        return phrase, "person"
    if determiner == "their" or determiner == "its" or not after:
        return _introduced(before)
    return phrase, phrase[-1]


def _introduced(before: Sequence[str]) -> tuple[list[str], str]:
    """The thing that the sentence before speaks of: its first noun phrase with "a" or "an", or what "the name of" stands before."""
    marked = [i for i, token in enumerate(before) if token in ("specific", "certain", "particular")]
    named = [i + 1 for i, token in enumerate(before) if token in nouns.NAMING and before[i + 1 : i + 2] == ["of"]]
    opened = [i for i, token in enumerate(before) if token in ("a", "an", "several", "one")]
    for i in (*marked, *named, *opened):
        following = list(before[i + 1 :])
        while following and (following[0] in DETERMINER or following[0] == "of"):
            following = following[1:]
        if phrase := _phrase(following):
            return phrase, phrase[-1]
    return [], ""


def _followed_by_of(tokens: Sequence[str], head: str) -> bool:
    return any(token == head and tokens[i + 1 : i + 2] == ["of"] for i, token in enumerate(tokens))


def _polite(tokens: Sequence[str]) -> Sequence[str]:
    """The order in a question that is one ("Could you please name ..."); orders themselves as they are."""
    if tokens[:1] and tokens[0] in ("can", "could", "would", "will") and tokens[1:2] == ["you"]:
        return tokens[3:] if tokens[2:3] == ["please"] else tokens[2:]
    return tokens[1:] if tokens[:1] == ["please"] else tokens


def _commanded(tokens: Sequence[str]) -> Asked:
    """An order ("Name the author of ...") asks for its noun; anything else without a question word asks none of the five."""
    if tokens[:1] not in IMPERATIVES:
        return Asked(None, "no question word")
    rest = [t for i, t in enumerate(tokens[1:]) if not (i == 0 and t in ("me", "us", "the", "a", "an"))]
    phrase = _phrase(rest[1:] if rest[:1] == ["the"] else rest)
    if phrase and phrase[-1] in nouns.NAMING:
        phrase, head = _named(phrase, "the", rest[len(phrase) + (rest[:1] == ["the"]) :], ())
    else:
        head = phrase[-1] if phrase else ""
    return Asked(nouns.kind(head) or "what", f"orders {tokens[0]} {head}".rstrip())
