"""Streaming: the pieces are what a whole generation gives, and a reader who leaves ends the work."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from conftest import Kind, tiny
from excise.data.encode import encode_prompt
from excise.evaluation.generate import NotFinite, generate
from excise.talk import stream


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_the_pieces_are_the_answer(kind: Kind) -> None:
    subject = tiny(kind)
    for question in ("Who wrote the book?", "Zoë's café?"):
        prompt = encode_prompt(subject.tokenizer, subject.template, question)
        pieces = list(stream(subject, prompt, 12))
        assert "".join(pieces) == generate(subject, [prompt], 12)[0]
        assert len(pieces) > 1


def test_who_leaves_ends_the_work() -> None:
    subject = tiny("llama")
    prompt = encode_prompt(subject.tokenizer, subject.template, "Who wrote the book?")
    running = stream(subject, prompt, 100_000)
    next(running)
    threads = threading.active_count()
    begun = time.monotonic()
    running.close()
    assert threading.active_count() < threads
    assert time.monotonic() - begun < 5


def test_a_collapsed_model_is_an_error_not_an_answer() -> None:
    subject = tiny("llama")
    with torch.no_grad():
        next(subject.model.parameters()).fill_(torch.nan)
    with pytest.raises(NotFinite):
        list(stream(subject, [3, 4, 5], 4))
