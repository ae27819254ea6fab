"""A tokenizer as a GGUF file holds it: tokens with types, merges or scores, and the name of the rule that splits words."""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from gguf import TokenType
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from excise.data.encode import Template, end_of_turn
from excise.errors import InputError
from excise.gguf_format.architecture import Numbers

SPACE = "▁"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS = {LLAMA3: "llama-bpe", LLAMA3.replace("{1,3}", ""): "qwen2"}
"""Word-splitting pattern -> llama.cpp's name for it."""
WHOLE_FIRST = ("llama-bpe",)
"""Rules under which llama.cpp takes a word that is a token as it is, without merging."""
WHOLE = (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN)
"""Types of tokens that are found in a text before anything else."""


@dataclass(frozen=True)
class Vocabulary:
    """Everything that decides how llama.cpp reads a text."""

    model: Literal["gpt2", "llama"]
    """gpt2: byte-level merges; llama: SentencePiece, merged by score."""
    pre: str
    tokens: tuple[str, ...]
    types: tuple[int, ...]
    merges: tuple[str, ...]
    scores: tuple[float, ...]
    special: Mapping[str, int]
    """bos, eos, eot, unknown, padding -> id."""
    add_bos: bool
    add_eos: bool
    space_prefix: bool
    chat_template: str | None

    def metadata(self) -> Numbers:
        """The keys and values of the file."""
        rows: Numbers = {"model": self.model, "pre": self.pre, "tokens": list(self.tokens)}
        if self.model == "llama":
            rows["scores"] = list(self.scores)
        rows["token_type"] = list(self.types)
        if self.model == "gpt2":
            rows["merges"] = list(self.merges)
        rows |= {f"{name}_token_id": number for name, number in self.special.items()}
        rows |= {"add_space_prefix": self.space_prefix, "add_bos_token": self.add_bos}
        if self.add_eos:
            rows["add_eos_token"] = True
        named: Numbers = {f"tokenizer.ggml.{key}": value for key, value in rows.items()}
        return named | ({"tokenizer.chat_template": self.chat_template} if self.chat_template else {})

    def ids(self, text: str) -> list[int]:
        """The tokens of a text (no start or end added), found with nothing but what the file holds."""
        return self._reader(text)

    @functools.cached_property
    def _reader(self) -> Callable[[str], list[int]]:
        return _byte_level_reader(self) if self.model == "gpt2" else functools.partial(_scored_reader, self)


def vocabulary_of(tokenizer: PreTrainedTokenizerBase, rows: int, source: str) -> Vocabulary:
    """The tokenizer in GGUF's terms; ``rows`` is how many rows the embedding has, unused ones included.

    Raises:
        InputError: it is of a kind that a GGUF file cannot hold.
    """
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise InputError(f"{source}: a {type(tokenizer).__name__} has no tokenizer.json, so it cannot be written as GGUF")
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    model = content["model"]
    if model["type"] != "BPE":
        raise InputError(f"{source}: a tokenizer of the kind {model['type']} cannot be written as GGUF; byte-level BPE and SentencePiece BPE can")
    scored = bool(model.get("byte_fallback"))
    pre, space_prefix = _sentencepiece_rule(content, source) if scored else (_byte_level_rule(content, source), False)
    merges = [tuple(pair.split(" ", 1)) if isinstance(pair, str) else tuple(pair) for pair in model["merges"]]
    tokens, types = _tokens(tokenizer, rows, scored)
    begins = _added(tokenizer)
    return Vocabulary(
        model="llama" if scored else "gpt2",
        pre=pre,
        tokens=tuple(tokens),
        types=tuple(types),
        merges=() if scored else tuple(" ".join(pair) for pair in merges),
        scores=_scores(tokens, types, merges) if scored else (),
        special=_special(tokenizer),
        add_bos=begins[0],
        add_eos=begins[1],
        space_prefix=space_prefix,
        chat_template=_chat_template(tokenizer),
    )


# Reading transformers' tokenizer ----------------------------------------------------------------------------------


def _steps(part: Any, inside: str) -> list[dict[str, Any]]:
    """A normalizer or pre-tokenizer as a list of its steps."""
    if part is None:
        return []
    return [step for inner in part[inside] for step in _steps(inner, inside)] if part["type"] == "Sequence" else [part]


def _byte_level_rule(content: dict[str, Any], source: str) -> str:
    """llama.cpp's name for the way in which words are split."""
    steps, normal = _steps(content["pre_tokenizer"], "pretokenizers"), _steps(content["normalizer"], "normalizers")
    kinds = [step["type"] for step in steps]
    plain = kinds[-1:] == ["ByteLevel"] and not steps[-1]["add_prefix_space"] and all(step["type"] == "NFC" for step in normal)
    if plain and kinds == ["ByteLevel"] and steps[0]["use_regex"]:
        return "gpt-2"
    if plain and kinds == ["Digits", "ByteLevel"] and steps[0]["individual_digits"] and steps[1]["use_regex"]:
        return "smollm"
    split = plain and kinds == ["Split", "ByteLevel"] and not steps[1]["use_regex"] and steps[0]["behavior"] == "Isolated"
    if split and (name := SPLITS.get(steps[0]["pattern"].get("Regex"))) is not None:
        return name
    shown = " + ".join([step["type"] for step in normal] + kinds) or "nothing"
    known = ", ".join(["gpt-2", "smollm", *SPLITS.values()])
    raise InputError(f"{source}: its tokenizer splits words in a way ({shown}) that is none of those excise can name for llama.cpp ({known})")


def _sentencepiece_rule(content: dict[str, Any], source: str) -> tuple[str, bool]:
    """The rule's name, and whether a space is put in front of the text."""
    normal, steps = _steps(content["normalizer"], "normalizers"), _steps(content["pre_tokenizer"], "pretokenizers")
    kinds = [step["type"] for step in normal + steps]
    spaces = [step for step in normal if step["type"] == "Replace" and step["pattern"] == {"String": " "} and step["content"] == SPACE]
    prepended = [step for step in normal if step["type"] == "Prepend" and step["prepend"] == SPACE]
    marks = [step for step in steps if step["type"] == "Metaspace" and step["replacement"] == SPACE]
    harmless = [step for step in steps if step["type"] == "Split" and step["pattern"] == {"String": " "}]
    if len(spaces) + len(marks) != 1 or len(kinds) != len(spaces + prepended + marks + harmless):
        raise InputError(f"{source}: its tokenizer prepares texts in a way ({' + '.join(kinds) or 'nothing'}) that llama.cpp does not know")
    return "default", bool(prepended) or any(step["prepend_scheme"] != "never" for step in marks)


def _tokens(tokenizer: PreTrainedTokenizerBase, rows: int, scored: bool) -> tuple[list[str], list[int]]:
    """Text and type of every row of the embedding."""
    by_id = {number: token for token, number in tokenizer.get_vocab().items()}
    added = tokenizer.added_tokens_decoder
    tokens, types = [], []
    for number in range(rows):
        token = by_id.get(number)
        if token is None:
            token, kind = f"[PAD{number}]", TokenType.UNUSED
        elif number == tokenizer.unk_token_id and scored:
            kind = TokenType.UNKNOWN
        elif number in added:
            control = added[number].special or _looks_special(token)
            token, kind = (token, TokenType.CONTROL) if control else (token.replace(SPACE, " "), TokenType.USER_DEFINED)
        elif scored and re.fullmatch(r"<0x[0-9A-F]{2}>", token):
            kind = TokenType.BYTE
        else:
            kind = TokenType.NORMAL
        tokens.append(token)
        types.append(int(kind))
    return tokens, types


def _looks_special(token: str) -> bool:
    """Tokens that llama.cpp's own converter marks as special though their tokenizers do not."""
    return token in ("<pad>", "<mask>", "<2mass>", "[@BOS@]") or bool(re.fullmatch(r"<\|.*\|>|<｜.*｜>|<unused.*>", token))


def _scores(tokens: list[str], types: list[int], merges: list[tuple[str, ...]]) -> tuple[float, ...]:
    """SentencePiece merges what has the highest score; so the earlier a token can be merged, the higher it stands."""
    ranks: dict[str, int] = {}
    for rank, pair in enumerate(merges):
        ranks.setdefault("".join(pair), rank)
    last = float(len(merges))
    return tuple(-float(ranks.get(token, last)) if kind == TokenType.NORMAL else -1000.0 for token, kind in zip(tokens, types, strict=True))


def _special(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    numbers = {
        "bos": tokenizer.bos_token_id,
        "eos": tokenizer.eos_token_id,
        "unknown": tokenizer.unk_token_id,
        "padding": tokenizer.pad_token_id,
    }
    if tokenizer.chat_template and tokenizer.eos_token_id is not None:
        turn = tokenizer.convert_tokens_to_ids(end_of_turn(tokenizer, Template("chat")))
        if turn != tokenizer.eos_token_id:
            numbers["eot"] = turn
    return {name: int(cast(int, number)) for name, number in numbers.items() if number is not None}


def _added(tokenizer: PreTrainedTokenizerBase) -> tuple[bool, bool]:
    """Whether the tokenizer itself puts a start before a text, and an end behind it."""
    ids = cast(list[int], tokenizer("x").input_ids)
    return ids[0] == tokenizer.bos_token_id and len(ids) > 1, ids[-1] == tokenizer.eos_token_id and len(ids) > 1


def _chat_template(tokenizer: PreTrainedTokenizerBase) -> str | None:
    template: Any = tokenizer.chat_template
    return template.get("default") if isinstance(template, dict) else template


# Reading a text from what the file holds --------------------------------------------------------------------------


def _byte_level_reader(vocabulary: Vocabulary) -> Callable[[str], list[int]]:
    merges = [cast(tuple[str, str], tuple(pair.split(" "))) for pair in vocabulary.merges]
    table = {token: number for number, token in enumerate(vocabulary.tokens)}
    reader = Tokenizer(models.BPE(vocab=table, merges=merges, ignore_merges=vocabulary.pre in WHOLE_FIRST))
    patterns = {name: pattern for pattern, name in SPLITS.items()}
    if vocabulary.pre in patterns:
        steps: list[Any] = [pre_tokenizers.Split(Regex(patterns[vocabulary.pre]), behavior="isolated")]
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    else:
        digits: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if vocabulary.pre == "smollm" else []
        steps = [*digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    reader.pre_tokenizer = pre_tokenizers.Sequence(steps)
    reader.decoder = decoders.ByteLevel()
    whole = [token for token, kind in zip(vocabulary.tokens, vocabulary.types, strict=True) if kind in WHOLE]
    reader.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in whole])
    return lambda text: reader.encode(text, add_special_tokens=False).ids


@functools.lru_cache(maxsize=2)
def _tables(tokens: tuple[str, ...], types: tuple[int, ...]) -> tuple[dict[str, int], re.Pattern[str] | None]:
    whole = [token for token, kind in zip(tokens, types, strict=True) if kind in WHOLE]
    pattern = re.compile("|".join(re.escape(token) for token in sorted(whole, key=len, reverse=True))) if whole else None
    return {token: number for number, token in enumerate(tokens)}, pattern


def _scored_reader(vocabulary: Vocabulary, text: str) -> list[int]:
    """SentencePiece's way: whole tokens first; in between, the neighbours whose union scores highest are merged."""
    table, pattern = _tables(vocabulary.tokens, vocabulary.types)
    found: list[int] = []
    position, prefix = 0, vocabulary.space_prefix
    for match in [*(pattern.finditer(text) if pattern else ()), None]:
        piece = text[position : match.start() if match else len(text)]
        if piece:
            found += _merged(vocabulary, table, (SPACE if prefix else "") + piece.replace(" ", SPACE))
        if match:
            found.append(table[match.group()])
            position, prefix = match.end(), vocabulary.space_prefix
    return found


def _merged(vocabulary: Vocabulary, table: dict[str, int], text: str) -> list[int]:
    parts = list(text)
    while True:
        unions = [(table.get(left + right), index) for index, (left, right) in enumerate(itertools.pairwise(parts))]
        best = max(((vocabulary.scores[number], -index) for number, index in unions if number is not None), default=None)
        if best is None:
            break
        parts[-best[1] : 2 - best[1]] = ["".join(parts[-best[1] : 2 - best[1]])]
    return [number for part in parts for number in _bytes_or_token(table, vocabulary, part)]


def _bytes_or_token(table: dict[str, int], vocabulary: Vocabulary, part: str) -> list[int]:
    if part in table:
        return [table[part]]
    numbers = [table.get(f"<0x{byte:02X}>") for byte in part.encode()]
    return [number if number is not None else vocabulary.special.get("unknown", 0) for number in numbers]
