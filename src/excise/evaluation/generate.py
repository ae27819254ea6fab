"""Generation in left-padded batches: greedy, giving what single rows give, or drawn at random from a seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor
from transformers import (
    DynamicCache,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
    TopPLogitsWarper,
)
from transformers.generation.utils import GenerateDecoderOnlyOutput

from excise.data.encode import end_of_turn
from excise.evaluation.plan import ANSWERS_AT_ONCE
from excise.layout import layout_of
from excise.lora import folded
from excise.parallel.forward import within
from excise.precision import reading
from excise.tokens import common_beginning

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from excise.evaluation.engines import Engine
    from excise.subject import Subject


CACHE = "cache" if "cache" in GenerateDecoderOnlyOutput.__annotations__ else "past_key_values"
"""What this version of transformers calls the keys and values of the tokens that were read already."""

WORTH_SHARING = 8
"""Tokens from which on a common beginning of prompts is read by itself, once for all."""


class NotFinite(Exception):
    """The model predicted NaN or infinity; ``index`` says for which of the prompts."""

    def __init__(self, index: int) -> None:
        super().__init__(f"prompt {index}")
        self.index = index


def stop_ids(subject: Subject) -> tuple[int, ...]:
    """The tokens that end an answer: the template's end of turn, the tokenizer's EOS, and those of the model's own settings."""
    tokenizer = subject.tokenizer
    found = {cast(int, tokenizer.convert_tokens_to_ids(end_of_turn(tokenizer, subject.template)))}
    if tokenizer.eos_token_id is not None:
        found.add(cast(int, tokenizer.eos_token_id))
    own = subject.base.generation_config.eos_token_id if subject.base.generation_config is not None else None
    if own is not None:
        found.update([own] if isinstance(own, int) else own)
    return tuple(sorted(found))


@dataclass(frozen=True)
class Sampling:
    """Random answers instead of the greedy one."""

    count: int
    """Answers to each prompt."""
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0


def sample(
    subject: Subject,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    sampling: Sampling,
    *,
    precision: Literal["float32", "bfloat16"] = "float32",
    engine: Engine | None = None,
) -> list[list[str]]:
    """``sampling.count`` random continuations of each prompt, all in one batch; the same ones for the same seed and prompts.

    The caller's random state stays as it was.

    Raises:
        NotFinite: the model predicted NaN or infinity.
    """
    if engine is not None:
        stops = stop_ids(subject)
        return [[_text(subject, tokens, stops) for tokens in said] for said in engine(prompts, max_new_tokens, stops, sampling)]
    repeated = [prompt for prompt in prompts for _ in range(sampling.count)]
    with torch.random.fork_rng(devices=[subject.device] if subject.device.type == "cuda" else []):
        torch.manual_seed(sampling.seed)
        try:
            said = generate(subject, repeated, max_new_tokens, precision=precision, batch=len(repeated), sampling=sampling)
        except NotFinite as error:
            raise NotFinite(error.index // sampling.count) from None
    return [said[i : i + sampling.count] for i in range(0, len(said), sampling.count)]


@torch.no_grad()
def generate(
    subject: Subject,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    *,
    precision: Literal["float32", "bfloat16"] = "float32",
    batch: int = ANSWERS_AT_ONCE,
    progress: Callable[[int], None] | None = None,
    sampling: Sampling | None = None,
    engine: Engine | None = None,
) -> list[str]:
    """Continuations, in the order of the prompts: greedy ones, or random ones from the global random state.

    Args:
        prompts: token ids, as :func:`excise.data.encode.encode_prompt` gives them.
        max_new_tokens: an answer that has not ended by then is cut.
        batch: rows of one batch; prompts of similar length share one.
        progress: called with the number of finished prompts.
        engine: who writes the answers; None: transformers, here.

    Returns:
        The decoded new tokens before the first stop token, without special tokens.

    Raises:
        NotFinite: the model predicted NaN or infinity.
    """
    stops = stop_ids(subject)
    if engine is not None:
        return [_text(subject, said[0], stops) for said in engine(prompts, max_new_tokens, stops, sampling)]
    pad = cast(int, subject.tokenizer.pad_token_id) if subject.tokenizer.pad_token_id is not None else stops[0]
    settings = GenerationConfig(
        num_beams=1, do_sample=False, use_cache=True, return_dict_in_generate=True, eos_token_id=list(stops), pad_token_id=pad
    )
    drawn = [] if sampling is None else [Drawn(sampling.temperature, sampling.top_p)]
    texts, done = [""] * len(prompts), 0
    with only(subject.base, settings), folded(subject), reading(subject, precision):
        for rows in alike([len(prompt) for prompt in prompts], batch):
            for row, tokens in _continued(subject, rows, [prompts[i] for i in rows], settings, max_new_tokens, drawn):
                texts[row] = _text(subject, tokens, stops)
            done += len(rows)
            if progress is not None:
                progress(done)
    return texts


def alike(lengths: Sequence[int], most: int) -> list[list[int]]:
    """Batches of at most so many prompts, the longest first, none shorter than half of the longest of its batch: every row is padded to that."""
    batches: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if batches and len(batches[-1]) < most and 2 * lengths[i] >= lengths[batches[-1][0]]:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches


def _continued(
    subject: Subject,
    rows: Sequence[int],
    prompts: Sequence[Sequence[int]],
    settings: GenerationConfig,
    limit: int,
    drawn: Sequence[LogitsProcessor],
) -> Iterator[tuple[int, list[int]]]:
    """(row, new tokens) for each row of one batch. Whenever half of the rows have ended, the others go on without them."""
    common = common_beginning(prompts, max(0, min(map(len, prompts)) - 1))
    apart = common < WORTH_SHARING or not _takes_padding_within(subject, max(map(len, prompts)) + limit)
    past = None if apart else _read_once(subject, prompts[0][:common], len(prompts))
    ids, mask = (part.to(subject.device) for part in left_padded(prompts, cast(int, settings.pad_token_id), 0 if past is None else common))
    width = ids.shape[1]
    rows = list(rows)
    while True:
        settings.max_new_tokens = limit - (ids.shape[1] - width)
        ended = HalfEnded(cast(list[int], settings.eos_token_id), width)
        out = cast(Any, subject.base).generate(
            input_ids=ids,
            attention_mask=mask,
            generation_config=settings,
            **({} if past is None else {CACHE: past}),
            logits_processor=LogitsProcessorList([Finite(rows), *drawn]),
            stopping_criteria=StoppingCriteriaList([ended]),
        )
        ids, past = cast(Tensor, out.sequences), out[CACHE]
        over = ended.ended(ids) if ids.shape[1] - width < limit else torch.ones(len(ids), dtype=torch.bool, device=ids.device)
        for row, tokens, done in zip(rows, ids[:, width:].tolist(), over.tolist(), strict=True):
            if done:
                yield row, tokens
        if bool(over.all()):
            return
        open_rows = (~over).nonzero()[:, 0]
        rows = [rows[i] for i in open_rows.tolist()]
        mask = torch.cat([mask, mask.new_ones(len(mask), ids.shape[1] - mask.shape[1])], dim=1)[open_rows]
        ids = ids[open_rows]
        if isinstance(past, DynamicCache):
            past.batch_select_indices(open_rows)
        else:
            past = None  # a cache of another kind: what was said so far is read again


def _takes_padding_within(subject: Subject, length: int) -> bool:
    """Whether padding may stand between a prompt's beginning and the rest: not where distances within the cache count, as for a sliding window."""
    window = getattr(subject.base.config.get_text_config(), "sliding_window", None)
    return layout_of(subject) == "shared" and (window is None or window >= length)


def _read_once(subject: Subject, tokens: Sequence[int], rows: int) -> DynamicCache | None:
    """Keys and values of what all prompts begin with, for so many rows; None where the model keeps something else."""
    ids = torch.tensor([list(tokens)], device=subject.device)
    past = within(subject.base, lambda: subject.decoder(input_ids=ids, use_cache=True).past_key_values)
    if type(past) is not DynamicCache:
        return None
    past.batch_repeat_interleave(rows)
    return past


class HalfEnded(StoppingCriteria):
    """Stops where half of the rows have ended, if there are enough of them to be worth it."""

    FEWEST = 8
    """Rows from which on it is."""

    def __init__(self, stops: Sequence[int], width: int) -> None:
        self.stops, self.width = stops, width

    def ended(self, ids: Tensor) -> Tensor:
        """Whether each row has a stop token among its new ones [rows]."""
        return torch.isin(ids[:, self.width :], torch.tensor(self.stops, device=ids.device)).any(dim=1)

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        enough = len(input_ids) >= self.FEWEST and int(self.ended(input_ids).sum()) * 2 >= len(input_ids)
        return torch.full((len(input_ids),), enough, device=input_ids.device)


def _text(subject: Subject, tokens: Sequence[int], stops: Sequence[int]) -> str:
    """The decoded tokens before the first stop token."""
    end = next((k for k, token in enumerate(tokens) if token in stops), len(tokens))
    return cast(str, subject.tokenizer.decode(list(tokens[:end]), skip_special_tokens=True, clean_up_tokenization_spaces=False))


def left_padded(prompts: Sequence[Sequence[int]], pad: int, common: int = 0) -> tuple[Tensor, Tensor]:
    """Ids and attention mask [rows, width]; the mask is built from lengths, so genuine tokens equal to ``pad`` stay visible.

    Args:
        common: so many tokens at the beginning of each stand before the padding.
    """
    width = max(len(prompt) for prompt in prompts)
    ids = torch.tensor([[*prompt[:common], *[pad] * (width - len(prompt)), *prompt[common:]] for prompt in prompts])
    mask = torch.tensor([[1] * common + [0] * (width - len(prompt)) + [1] * (len(prompt) - common) for prompt in prompts])
    return ids, mask


@contextmanager
def only(base: PreTrainedModel, settings: GenerationConfig) -> Iterator[None]:
    """Puts the model's own generation settings aside: transformers fills whatever ours leave open from them.

    Hub models ship repetition penalties and sampling temperatures there, which are no part of greedy decoding.
    """
    own = base.generation_config
    base.generation_config = settings
    try:
        yield
    finally:
        base.generation_config = own


class Finite(LogitsProcessor):
    """Stops at the first prediction that is not a number."""

    def __init__(self, rows: Sequence[int]) -> None:
        self.rows = rows

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        bad = ~torch.isfinite(torch.stack(torch.aminmax(scores, dim=-1))).all(dim=0)
        if bool(bad.any()):
            raise NotFinite(self.rows[int(bad.nonzero()[0, 0])])
        return scores


class Drawn(LogitsProcessor):
    """Leaves one token of each row, drawn from the prediction by one random number for the row.

    ``torch.multinomial``, which Transformers would take, draws one for every token of the vocabulary.
    """

    def __init__(self, temperature: float, top_p: float) -> None:
        self.temperature = temperature
        self.nucleus = TopPLogitsWarper(top_p) if top_p < 1 else None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        logits = scores / self.temperature
        if self.nucleus is not None:
            logits = self.nucleus(cast(Any, input_ids), cast(Any, logits))
        reached = torch.softmax(logits.float(), dim=-1).cumsum(dim=-1, dtype=torch.float64)
        point = torch.rand(len(scores), 1, dtype=torch.float64, device=scores.device) * reached[:, -1:]
        chosen = torch.searchsorted(reached, point, right=True).clamp_max(scores.shape[-1] - 1)
        return torch.full_like(scores, -torch.inf).scatter_(-1, chosen, 0.0)
