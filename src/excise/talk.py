"""Talking to a model: answers that appear while they are written."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteria, StoppingCriteriaList

from excise.evaluation.generate import Finite, only, stop_ids
from excise.precision import autocast, evaluating

if TYPE_CHECKING:
    from excise.subject import Subject

STEPS_BEHIND = 600.0
"""Seconds that a reader waits for the next piece before the model counts as stuck."""


def stream(
    subject: Subject, prompt: Sequence[int], max_new_tokens: int, *, precision: Literal["float32", "bfloat16"] = "float32"
) -> Generator[str, None, None]:
    """The greedy continuation of a prompt in pieces, as soon as each is known; together they are what `generate` returns.

    Closing the iterator ends the work behind it within a token.

    Args:
        prompt: token ids, as :func:`excise.data.encode.encode_prompt` gives them.

    Raises:
        NotFinite: the model predicted NaN or infinity.
    """
    pieces: queue.Queue[list[int] | BaseException | None] = queue.Queue()
    stop = threading.Event()
    worker = threading.Thread(target=_write, args=(subject, prompt, max_new_tokens, precision, pieces, stop), daemon=True)
    worker.start()
    ids: list[int] = []
    shown = ""
    try:
        while (piece := pieces.get(timeout=STEPS_BEHIND)) is not None:
            if isinstance(piece, BaseException):
                raise piece
            ids += piece
            text = cast(str, subject.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))
            if text.endswith("\ufffd"):  # a character whose bytes are not all there yet
                continue
            if text.startswith(shown) and text != shown:
                yield text[len(shown) :]
                shown = text
        whole = cast(str, subject.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))
        if whole.startswith(shown) and whole != shown:
            yield whole[len(shown) :]
    finally:
        stop.set()
        worker.join()


def _write(
    subject: Subject, prompt: Sequence[int], max_new_tokens: int, precision: Literal["float32", "bfloat16"], pieces: Any, stop: threading.Event
) -> None:
    """Generates in a thread of its own and hands every new token over; None at the end, or what went wrong."""
    stops = stop_ids(subject)
    pad = subject.tokenizer.pad_token_id if subject.tokenizer.pad_token_id is not None else stops[0]
    settings = GenerationConfig(
        max_new_tokens=max_new_tokens, num_beams=1, use_cache=True, do_sample=False, eos_token_id=list(stops), pad_token_id=cast(int, pad)
    )
    ids = torch.tensor([list(prompt)], device=subject.device)
    try:
        with torch.no_grad(), evaluating(subject.model), only(subject.base, settings), autocast(precision, subject.device):
            cast(Any, subject.base).generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                generation_config=settings,
                logits_processor=LogitsProcessorList([Finite([0])]),
                stopping_criteria=StoppingCriteriaList([_Handing(pieces, len(prompt), set(stops), stop)]),
            )
        pieces.put(None)
    except BaseException as error:  # noqa: BLE001  (handed to the reader, who raises it)
        pieces.put(error)


class _Handing(StoppingCriteria):
    """Hands the tokens over as they come, and stops when nobody reads any more."""

    def __init__(self, pieces: Any, start: int, stops: set[int], stop: threading.Event) -> None:
        self.pieces, self.seen, self.stops, self.stop = pieces, start, stops, stop

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> Any:
        new = [token for token in input_ids[0, self.seen :].tolist() if token not in self.stops]
        self.seen = input_ids.shape[1]
        self.pieces.put(new)
        return torch.full((input_ids.shape[0],), self.stop.is_set(), device=input_ids.device)
