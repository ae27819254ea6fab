"""Which tokens occur only in the texts of a concept, only in neutral ones, or in both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, cast

import torch
from jaxtyping import Float, Int8
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from excise.data.example import Example
from excise.errors import InputError

Kind = Literal["concept_only", "neutral_only", "both"]
KINDS: tuple[Kind, ...] = ("concept_only", "neutral_only", "both")
SMALL = 1e-8


@dataclass(frozen=True)
class TokenClasses:
    """The token set V' of two sets of texts, and where each of its tokens occurs."""

    ids: tuple[int, ...]
    """Ascending, without padding, start and end tokens."""
    codes: Int8[Tensor, " n"]
    """Index into :data:`KINDS` of each of them."""

    def mask(self, kind: Kind) -> Tensor:
        return self.codes == KINDS.index(kind)

    @cached_property
    def counts(self) -> dict[Kind, int]:
        return {kind: int(self.mask(kind).sum()) for kind in KINDS}


def plain_texts(examples: Iterable[Example]) -> list[str]:
    """What examples say as plain text: a question is followed by its answer."""
    return [f"{example.prompt} {example.answer}".strip() for example in examples]


def token_classes(tokenizer: PreTrainedTokenizerBase, concept: Sequence[str], neutral: Sequence[str]) -> TokenClasses:
    """Sorts the tokens of the texts by where they occur.

    Paper: EMBER (arXiv 2606.03695), token classes.
    Differs: tokens are matched by id; the authors match strings, which loses some that are not ASCII.

    Raises:
        InputError: no text on one side, or no token that only the concept's texts have.
    """
    for name, texts in (("concept", concept), ("neutral", neutral)):
        if not any(text.strip() for text in texts):
            raise InputError(f"there are no {name} texts: EMBER compares the tokens of a concept's texts with those of neutral ones")
    mine, others = _ids(tokenizer, concept), _ids(tokenizer, neutral)
    if not mine - others:
        raise InputError(
            f"all {len(mine)} tokens of the concept's texts occur in the neutral texts too, so there is nothing that could be edited: "
            "give texts that name the concept's own things, or other neutral texts"
        )
    ids = sorted(mine | others)
    codes = [2 if i in mine and i in others else 0 if i in mine else 1 for i in ids]
    return TokenClasses(tuple(ids), torch.tensor(codes, dtype=torch.int8))


def _ids(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> set[int]:
    rows = cast("list[list[int]]", tokenizer(list(texts), add_special_tokens=False)["input_ids"])
    special = [tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id]
    return {i for row in rows for i in row} - set(cast("list[int]", special))


def mass_ratios(sizes: Float[Tensor, "n k"], concept: Tensor, neutral: Tensor) -> Float[Tensor, " k"]:
    """mean over the concept's own |G| divided by (mean over the neutral |G| + 1e-8), for each column.

    Args:
        sizes: |G|.
        concept: which rows are the concept's own, bool [n].
        neutral: which rows are neutral, bool [n].

    Paper: EMBER (arXiv 2606.03695), mass ratio.
    """
    exact = sizes.double()
    return (exact[concept].mean(dim=0) / (exact[neutral].mean(dim=0) + SMALL)).to(sizes.dtype)


def shown(tokenizer: PreTrainedTokenizerBase, token: int) -> str:
    """A token as a person reads it, with the space before it."""
    piece = cast("str | None", tokenizer.convert_ids_to_tokens(token))
    if piece is not None and "▁" in piece:
        return piece.replace("▁", " ")
    return cast(str, tokenizer.decode([token]))
