"""The only file that aligns predictions with targets.

Everything else sees :class:`Scored`: one entry per scored token, concatenated over the batch, with the example
that it belongs to. No objective, weight or metric ever meets a label shift, an ignore index or a padding column.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Protocol, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from excise import attention
from excise.attention import Packing
from excise.data.encode import Encoded
from excise.head import Head
from excise.hidden import capture
from excise.parallel.forward import within
from excise.precision import half_now

if TYPE_CHECKING:
    from excise.subject import Subject

LOGITS_AT_ONCE = 2**23
"""Logits that exist at the same time in :meth:`Scored.over_logits`: tokens times vocabulary."""


@dataclass(frozen=True)
class Scored:
    """Predictions for the scored tokens of a batch; position i of every field is the same token."""

    target: Int[Tensor, " n"]
    """Token ids that should have been predicted."""
    row: Int[Tensor, " n"]
    """Which example of the batch the token belongs to, ascending."""
    rows: int
    """Number of examples in the batch."""
    source: LogitSource
    """Gives logits [m, vocab] of some of the tokens, if somebody looks."""
    hidden: Mapping[int, Float[Tensor, "n width"]] = field(default_factory=dict)
    """Output of decoder layer l (0-based) at the scored tokens themselves, for the layers that were asked for."""
    known_logp: Float[Tensor, " n"] | None = None
    """Log-probabilities of the targets where they are known already (a memoised reference)."""
    total_tokens: float | None = None
    """Scored tokens of the global batch (over accumulation and ranks) that this one is a part of."""
    total_rows: float | None = None
    """Examples of the global batch that this one is a part of."""

    @staticmethod
    def of(logits: Float[Tensor, "n vocab"], target: Int[Tensor, " n"], row: Int[Tensor, " n"], rows: int) -> Scored:
        """From logits that exist already (tests, plug-ins)."""
        return Scored(target=target, row=row, rows=rows, source=Given(logits))

    @cached_property
    def logits(self) -> Float[Tensor, "n vocab"]:
        """Logits of all scored tokens, [n, vocab], in the precision of the model. :meth:`over_logits` needs less memory."""
        return self.source(slice(None))

    def logits_of(self, part: slice) -> Float[Tensor, "m vocab"]:
        """Logits of some of the tokens."""
        whole = part == slice(None) or "logits" in self.__dict__
        return self.logits[part] if whole else self.source(part)

    def over_logits(self, function: Callable[[Tensor, slice], Tensor]) -> Float[Tensor, " n"]:
        """``function(logits [m, vocab], which tokens) -> [m]`` for all tokens, in pieces where they are many.

        The function may depend on parameters through these logits only.

        Memory then does not grow with tokens times vocabulary: a piece's logits are given up at once and computed again in the
        backward pass.
        """
        n, size = len(self.target), max(1, LOGITS_AT_ONCE // max(1, self.source.vocab))
        if n <= size or "logits" in self.__dict__:
            return function(self.logits, slice(None))
        if isinstance(self.source, Head) and torch.is_grad_enabled() and (values := self.source.in_pieces(function, size)) is not None:
            return values
        return torch.cat([self._piece(function, slice(start, min(start + size, n))) for start in range(0, n, size)])

    def _piece(self, function: Callable[[Tensor, slice], Tensor], part: slice) -> Tensor:
        def compute() -> Tensor:
            return function(self.source(part), part)

        if not torch.is_grad_enabled():
            return compute()
        return cast(Tensor, checkpoint(compute, use_reentrant=False, preserve_rng_state=False))

    @cached_property
    def log_probs(self) -> Float[Tensor, "n vocab"]:
        """Log-probabilities over the whole vocabulary, float32 or better."""
        return torch.log_softmax(at_least_float32(self.logits), dim=-1)

    @cached_property
    def token_logp(self) -> Float[Tensor, " n"]:
        """log p(target), in nats, float32 or better."""
        if self.known_logp is not None:
            return self.known_logp
        return self.over_logits(self._token_logp)

    def _token_logp(self, logits: Tensor, part: slice) -> Tensor:
        return cast(Tensor, _TokenLogp.apply(logits, self.target[part]))

    @cached_property
    def entropy(self) -> Float[Tensor, " n"]:
        """Entropy of the prediction, in nats, float32 or better."""
        return self.over_logits(lambda logits, _: entropy_of(logits))

    @cached_property
    def length(self) -> Float[Tensor, " rows"]:
        """Scored tokens of each example."""
        ones = torch.ones_like(self.row, dtype=torch.float32)
        return self.per_row(ones)

    def per_row(self, per_token: Float[Tensor, " n"]) -> Float[Tensor, " rows"]:
        """Sum over the tokens of each example."""
        return per_token.new_zeros(self.rows).index_add(0, self.row, per_token)

    def mean(self, per_token: Float[Tensor, " n"], weight: Float[Tensor, " n"] | None = None) -> Float[Tensor, ""]:
        """Weighted sum over scored tokens divided by the scored tokens of the global batch."""
        total = self.total_tokens if self.total_tokens is not None else float(len(per_token))
        values = per_token if weight is None else per_token * weight
        return values.sum() / total

    def mean_rows(self, per_row: Float[Tensor, " rows"]) -> Float[Tensor, ""]:
        """Sum over examples divided by the examples of the global batch."""
        total = self.total_rows if self.total_rows is not None else float(self.rows)
        return per_row.sum() / total

    def split(self, per_token: Float[Tensor, " n"] | Bool[Tensor, " n"] | Int[Tensor, " n"]) -> list[Tensor]:
        """One tensor per example."""
        return list(torch.split(per_token, [int(n) for n in self.length.tolist()]))

    def between(self, first: int, last: int, total_tokens: float | None = None, total_rows: float | None = None) -> Scored:
        """The examples from ``first`` to before ``last``, as a batch of their own."""
        begin, end = (int(torch.searchsorted(self.row, row)) for row in (first, last))
        return Scored(
            target=self.target[begin:end],
            row=self.row[begin:end] - first,
            rows=last - first,
            source=self.source.between(begin, end),
            hidden={layer: states[begin:end] for layer, states in self.hidden.items()},
            known_logp=None if self.known_logp is None else self.known_logp[begin:end],
            total_tokens=total_tokens,
            total_rows=total_rows,
        )


class LogitSource(Protocol):
    """Where logits come from when somebody looks."""

    @property
    def vocab(self) -> int: ...

    def __call__(self, part: slice) -> Tensor:
        """Logits [m, vocab] of some of the tokens."""
        ...

    def between(self, begin: int, end: int) -> LogitSource:
        """The source of the tokens from ``begin`` to before ``end``."""
        ...


@dataclass(frozen=True)
class Given:
    """Logits that exist already."""

    logits: Float[Tensor, "n vocab"]

    @property
    def vocab(self) -> int:
        return self.logits.shape[-1]

    def __call__(self, part: slice) -> Tensor:
        return self.logits[part]

    def between(self, begin: int, end: int) -> Given:
        return Given(self.logits[begin:end])


class _TokenLogp(torch.autograd.Function):
    """log softmax(logits) at the targets; keeps the logits as they are, and makes one matrix for the gradient."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor) -> Tensor:
        wide = at_least_float32(logits)
        total = torch.logsumexp(wide, dim=-1, keepdim=True)
        ctx.save_for_backward(logits, total, target)
        return (wide.gather(-1, target[:, None]) - total)[:, 0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        logits, total, target = ctx.saved_tensors
        outer = gradients[0][:, None]
        found = (at_least_float32(logits) - total).exp_().mul_(-outer)
        return found.scatter_add_(-1, target[:, None], outer).to(logits.dtype), None


def entropy_of(logits: Float[Tensor, "n vocab"]) -> Float[Tensor, " n"]:
    """Entropy of softmax(logits), in nats, float32 or better."""
    log_probs = torch.log_softmax(at_least_float32(logits), dim=-1)
    p = log_probs.exp()
    return -(p * log_probs.masked_fill(p == 0, 0.0)).sum(-1)  # 0 log 0 is 0, and so is its gradient


def at_least_float32(values: Tensor) -> Tensor:
    """bf16 and fp16 become float32; float32 and float64 stay."""
    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


Layout = Literal["packed", "shared", "padded"]
"""How several texts lie in one batch: see :func:`collate`."""


@dataclass(frozen=True)
class Batch:
    """Encoded texts as tensors, either packed into one row or padded on the right."""

    ids: Int[Tensor, "lines length"]
    positions: Int[Tensor, "lines length"]
    mask: Int[Tensor, "lines length"] | Bool[Tensor, "lines 1 length length"] | None
    """None: packed (each text sees only itself, by ``packing`` or, where a model does not take that, by the positions).
    Four dimensions: which token sees which."""
    before: Int[Tensor, " n"]
    """Flat index of the position that predicts each scored token."""
    here: Int[Tensor, " n"]
    """Flat index of each scored token itself."""
    target: Int[Tensor, " n"]
    row: Int[Tensor, " n"]
    rows: int
    packing: Packing | None = None
    """How the texts of a packed row lie in it, one behind the other or behind a common beginning."""

    def to(self, device: torch.device) -> Batch:
        if self.ids.device == device:
            return self
        moved = {name: value.to(device) for name, value in vars(self).items() if isinstance(value, (Tensor, Packing))}
        return Batch(**{**vars(self), **moved})


def collate(
    texts: Sequence[Encoded],
    layout: Layout = "packed",
    hide: Sequence[Sequence[int]] | None = None,
    replace: int | Sequence[Sequence[int]] | None = None,
) -> Batch:
    """Puts encoded texts into one batch.

    Args:
        texts: at least one.
        layout: ``packed`` joins all into one row; ``shared`` too, and what all have in common before their first scored token stands there
            once; ``padded`` gives each its own, padded on the right.
        hide: for each text, indices of tokens that no token may attend to (positions stay). Needs ``padded``,
            unless ``replace`` is given. The first token of a text is never hidden: it is the attention sink, and
            a token with nothing to attend to has no defined output.
        replace: put this token, or for each text one for each of its hidden tokens, in place of them instead of masking them.
    """
    ids = [list(text.ids) for text in texts]
    if hide is not None and replace is not None:
        others = [[replace] * len(hidden) for hidden in hide] if isinstance(replace, int) else replace
        for tokens, hidden, pieces in zip(ids, hide, others, strict=True):
            for i, piece in zip(hidden, pieces, strict=True):
                tokens[i] = piece if i > 0 else tokens[i]
        hide = None
    if hide is not None and layout != "padded":
        raise ValueError("hiding tokens by attention needs the padded layout")
    lengths = [len(text) for text in texts]
    starts = [text.start for text in texts]
    common = common_beginning(ids, min(starts)) if layout == "shared" else 0
    if layout != "padded":
        offsets = [sum(lengths[:i]) - i * common for i in range(len(texts))]
        grid = torch.tensor([[*ids[0][:common], *(i for tokens in ids for i in tokens[common:])]])
        positions = torch.cat([torch.arange(common), *(torch.arange(common, n) for n in lengths)])[None]
        mask = None
    else:
        width = max(lengths)
        offsets = [i * width for i in range(len(texts))]
        grid = torch.tensor([tokens + [0] * (width - len(tokens)) for tokens in ids])
        positions = torch.arange(width).expand(len(texts), width).contiguous()
        mask = torch.tensor([[1] * n + [0] * (width - n) for n in lengths])
        for line, hidden in enumerate(hide or ()):
            for i in hidden:
                mask[line, i] = 0 if i > 0 else 1
    here = torch.cat([torch.arange(o + s, o + n) for o, s, n in zip(offsets, starts, lengths, strict=True)])
    before = here - 1
    if common:  # what predicts the first token after it is its last one
        first = torch.cat([torch.arange(s, n) == common for s, n in zip(starts, lengths, strict=True)])
        before[first] = common - 1
    target = torch.tensor([i for text in texts for i in text.ids[text.start :]])
    row = torch.cat([torch.full((n - s,), i) for i, (s, n) in enumerate(zip(starts, lengths, strict=True))])
    packing = None if layout == "padded" else Packing(tuple(lengths), common)
    return Batch(grid, positions, mask, before, here, target, row, len(texts), packing)


def row_length(texts: Sequence[Encoded]) -> int:
    """Tokens of the row in which these texts stand behind their common beginning."""
    common = common_beginning([text.ids for text in texts], min(text.start for text in texts))
    return sum(map(len, texts)) - common * (len(texts) - 1)


def common_beginning(ids: Sequence[Sequence[int]], most: int) -> int:
    """Length of what all texts begin with, at most ``most``; 0 for a single one."""
    if len(ids) == 1:
        return 0
    return next((i for i, column in enumerate(zip(*(tokens[:most] for tokens in ids), strict=True)) if len(set(column)) > 1), most)


def collate_shared(groups: Sequence[Sequence[Encoded]]) -> Batch:
    """Puts texts that begin alike into one batch, the common beginning of each group only once.

    A group is one line: the unscored tokens, then the scored tokens of each of its texts. A mask lets a token see the
    beginning and its own text, and positions count as if it stood alone.

    Args:
        groups: texts of one group have the same unscored tokens (the same prompt). Rows are counted over all groups, in order.
    """
    lengths = [group[0].start + sum(text.scored for text in group) for group in groups]
    width = max(lengths)
    ids = torch.zeros(len(groups), width, dtype=torch.long)
    positions = torch.zeros(len(groups), width, dtype=torch.long)
    part = torch.full((len(groups), width), -1)  # 0: the beginning; k: the k-th text; -1: padding
    here, before, target, row = [], [], [], []
    rows = 0
    for line, group in enumerate(groups):
        start = group[0].start
        ids[line, :start], positions[line, :start], part[line, :start] = torch.tensor(group[0].ids[:start]), torch.arange(start), 0
        at = start
        for number, text in enumerate(group, start=1):
            assert (text.start, text.ids[:start]) == (start, group[0].ids[:start]), "texts of one group begin alike"
            end = at + text.scored
            ids[line, at:end], positions[line, at:end], part[line, at:end] = torch.tensor(text.ids[start:]), torch.arange(start, len(text)), number
            own = line * width + torch.arange(at, end)
            here.append(own)
            before.append(torch.cat([torch.tensor([line * width + start - 1]), own[:-1]]))
            target.append(torch.tensor(text.ids[start:]))
            row.append(torch.full((text.scored,), rows))
            rows, at = rows + 1, end
    order = torch.arange(width)
    sees = ((part[:, None, :] == part[:, :, None]) | (part[:, None, :] == 0)) & (order[None, :] <= order[:, None])
    sees |= torch.eye(width, dtype=torch.bool)  # a row of padding that sees nothing has no defined softmax
    return Batch(ids, positions, sees[:, None], torch.cat(before), torch.cat(here), torch.cat(target), torch.cat(row), rows)


def _attention(subject: Subject, batch: Batch) -> dict[str, Any]:
    """What tells the model which token sees which."""
    if batch.packing is not None and subject.base.config._attn_implementation == attention.NAME:
        ready = torch.zeros(1, 1, 1, 1, device=batch.ids.device)  # four dimensions: the model makes no mask of its own
        return {"attention_mask": ready, "packing": batch.packing}
    return {"attention_mask": _mask_for(subject, batch)}


def _mask_for(subject: Subject, batch: Batch) -> Any:
    """The mask as the model's architecture takes it: one, or one for each kind of layer (sliding windows)."""
    if batch.mask is None or batch.mask.dim() == 2:
        return batch.mask
    config = subject.base.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    near = batch.mask if window is None else batch.mask & (batch.positions[:, None, :, None] - batch.positions[:, None, None, :] < window)
    kinds = getattr(config, "layer_types", None)
    masks = {"full_attention": batch.mask, "sliding_attention": near}
    if kinds and "sliding_attention" in kinds:
        return {kind: _additive(subject, masks[kind]) for kind in set(kinds)}
    return _additive(subject, near)


def _additive(subject: Subject, sees: Tensor) -> Tensor:
    """0 where a token is seen and the lowest number where it is not: what every attention implementation adds to its scores."""
    dtype = subject.base.dtype
    return torch.zeros(sees.shape, dtype=dtype, device=sees.device).masked_fill(~sees, torch.finfo(dtype).min)


def score(
    subject: Subject,
    batch: Batch,
    *,
    layers: Sequence[int] = (),
    logits: bool = True,
    total_tokens: float | None = None,
    total_rows: float | None = None,
) -> Scored:
    """Runs the model on a batch and keeps what concerns the scored tokens.

    Args:
        layers: decoder layers (0-based) whose output at the scored tokens is wanted.
        logits: False stops the forward pass after the last of ``layers``; looking at the logits is an error then.

    Returns:
        Scored, with gradient where the caller has gradients enabled. Logits are computed from the final hidden
        states of the scored tokens only, and only if looked at.
    """
    batch = batch.to(subject.device)
    sees = _attention(subject, batch)
    with capture(subject.layers, layers, stop=not logits) as captured:

        def decode() -> Tensor | None:
            return captured.run(lambda: subject.decoder(input_ids=batch.ids, position_ids=batch.positions, use_cache=False, **sees).last_hidden_state)

        final = within(subject.base, decode)
    hidden = {layer: output.flatten(0, 1)[batch.here] for layer, output in captured.outputs.items()}
    source = _Stopped() if final is None else Head(subject.base, final.flatten(0, 1)[batch.before], half_now(subject.device))
    return Scored(batch.target, batch.row, batch.rows, source, hidden, None, total_tokens, total_rows)


class _Stopped:
    """There are no logits: the forward pass ended before the output head."""

    vocab = 1

    def __call__(self, part: slice) -> Tensor:
        raise RuntimeError("the forward pass was stopped before the output head: ask for logits=True")

    def between(self, begin: int, end: int) -> _Stopped:
        return self


def features_of(scored: Scored) -> Tensor:
    """The final hidden states [n, width] that the logits of ``scored`` are computed from."""
    assert isinstance(scored.source, Head), "only a scored forward pass has features"
    return scored.source.features


def buckets(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Groups lines of similar length so that each group, padded or packed, holds at most ``max_tokens`` tokens.

    Returns lists of indices into ``lengths``; a longer line stands alone.
    """
    order = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    groups: list[list[int]] = []
    for i in order:
        if groups and (len(groups[-1]) + 1) * lengths[groups[-1][0]] <= max_tokens:
            groups[-1].append(i)
        else:
            groups.append([i])
    return groups
