"""Which layouts of a batch give a model's own predictions: several texts in one row, a common beginning shared. Tried out, once per model."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from excise import attention
from excise.data.encode import Encoded
from excise.errors import InputError
from excise.precision import evaluating
from excise.tokens import Layout, collate, collate_shared, score

if TYPE_CHECKING:
    from excise.subject import Subject

_layouts: weakref.WeakKeyDictionary[nn.Module, Layout] = weakref.WeakKeyDictionary()


def layout_of(subject: Subject) -> Layout:
    """``shared`` or ``packed`` where such a row gives the same predictions as single rows, else ``padded``. Tried once per model.

    The same probe makes sure that our output head is the model's own, and refuses a model where it is not.
    """
    base = subject.base
    if base not in _layouts:
        _layouts[base] = _probe_layout(subject)
    return _layouts[base]


def same_layout(copied: nn.Module, original: nn.Module) -> None:
    """What was tried out on a model holds for a copy of its modules, which cannot be tried itself."""
    for table in (_layouts, _shares):
        if original in table:
            table[copied] = table[original]  # type: ignore[assignment]


@torch.no_grad()
def _probe_layout(subject: Subject) -> Layout:
    size = min(subject.base.config.get_text_config().vocab_size, 200)
    lead = tuple((5 * i) % size for i in range(3))
    probe = [
        Encoded(id=str(n), ids=(*lead, *((7 * n + 3 * i) % size for i in range(n))), start=3, chars=(), text="", question=(0, 0), answer=(0, 0))
        for n in (11, 6, 13)
    ]
    with evaluating(subject.model):
        single = torch.cat([score(subject, collate([text], "padded")).logits for text in probe])
        own: list[Any] = [subject.base(input_ids=torch.tensor([text.ids], device=subject.device), use_cache=False).logits[0, 2:-1] for text in probe]
        scale = float(single.abs().max()) or 1.0
        tolerance = (1e-4 if single.dtype in (torch.float32, torch.float64) else 5e-2) * scale
        if (torch.cat(own) - single).abs().max() > tolerance:
            raise InputError(
                f"{subject.source}: this architecture ({type(subject.base).__name__}) treats its output logits in a way that "
                "excise does not know, so its probabilities would be wrong; please report it"
            )
        cases: list[tuple[Any, Layout]] = [(attention.install, "shared"), (attention.install, "packed"), (attention.remove, "packed")]
        for packs, layout in cases:
            packs(subject.base)
            if layout == "shared" and subject.base.config._attn_implementation != attention.NAME:
                continue
            together = score(subject, collate(probe, layout)).logits
            if (together - single).abs().max() <= tolerance:
                return layout
        return "padded"


_shares: weakref.WeakKeyDictionary[nn.Module, bool] = weakref.WeakKeyDictionary()


def can_share(subject: Subject) -> bool:
    """Whether texts with a common beginning may share it in one line (:func:`collate_shared`). Tried once per model."""
    base = subject.base
    if base not in _shares:
        _shares[base] = _probe_sharing(subject)
    return _shares[base]


@torch.no_grad()
def _probe_sharing(subject: Subject) -> bool:
    size = min(subject.base.config.get_text_config().vocab_size, 200)
    lead = [(5 * i) % size for i in range(9)]
    probe = [
        Encoded(id=str(n), ids=(*lead, *((7 * n + 3 * i) % size for i in range(n))), start=9, chars=(), text="", question=(0, 0), answer=(0, 0))
        for n in (4, 6, 5)
    ]
    try:
        with evaluating(subject.model):
            single = torch.cat([score(subject, collate([text], "padded")).logits for text in probe])
            shared = score(subject, collate_shared([probe[:1], probe[:2], probe])).logits[-len(single) :]
    except (TypeError, ValueError, RuntimeError):  # an architecture that takes no such mask: its texts run one by one
        return False
    tolerance = 1e-4 if single.dtype in (torch.float32, torch.float64) else 5e-2
    return bool((shared - single).abs().max() <= tolerance * (float(single.abs().max()) or 1.0))
