"""Quantisation as an attack: unlearning that moved the weights only a little may be rounded away."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTuner, BaseTunerLayer
from peft.utils import AuxiliaryTrainingWrapper
from torch import Tensor, nn

from excise.attacks.scene import Outcome, Scene
from excise.errors import InputError
from excise.ggml import Role, block, round_trip, stored_as
from excise.subject import Subject

Rounding = Callable[[Tensor, Role], Tensor]
COVERED = 0.9
"""The least share of the decoder's matrices that must be linear layers; below it, most of the model would stay as it was."""


@dataclass(frozen=True)
class Quantise:
    """The model as it is deployed in 8 or 4 bits: every weight is rounded, and put back bit for bit afterwards.

    The model computes in its own type with the numbers that are left after quantising and dequantising. An adapter is
    merged in float32 first, because that is what gets deployed. Nothing of the original is written to: its layers are
    put aside and put back, on an exception as well.

    * ``int8``, ``int4``: torchao's weight-only quantisation of the decoder's linear layers, symmetric; int8 with one
      scale per output channel, int4 with one per ``group`` neighbours of a row. Embedding and output head stay as they
      are, as in bitsandbytes, GPTQ and AWQ; ``head`` adds the head (torchao's own default takes it along).
    * ``q8_0``, ``q4_0``: what llama.cpp makes of the model: linear layers, embedding and head, blocks of 32 with a
      float16 scale; norms and biases stay float32. For ``q4_0`` the head, and an embedding tied to it, is Q8_0
      (llama-quantize: Q6_K, which the gguf package cannot write).

    Paper: Zhang et al. 2024, "Does your LLM truly unlearn? An embarrassingly simple approach to recover unlearned
    knowledge", arXiv 2410.16454: 4-bit versions of unlearned models answer again much of what full precision has forgotten.

    Differs: the paper quantises with bitsandbytes, GPTQ and AWQ; here it is round-to-nearest without calibration data.
    """

    kind: Literal["int8", "int4", "q8_0", "q4_0"] = "int4"
    """Bits and method: int8 and int4 as torchao does it, q8_0 and q4_0 as llama.cpp does it."""
    group: int = 32
    """int4: how many neighbours in a row share a scale; 32 or 128 is usual."""
    head: bool = False
    """int8 and int4: whether the output head is rounded too; a head tied to the embedding gets weights of its own for it."""
    splits: tuple[str, ...] = ("forget", "retain")
    """Where the quantised model is asked."""
    limit: int | None = 50
    """The first so many examples of each of them; None: all."""

    def __post_init__(self) -> None:
        if self.group < 1:
            raise InputError(f"quantise: group={self.group} makes no sense: give how many weights share a scale, 32 or 128 for example")

    def check(self, scene: Scene) -> None:
        scene.only(self.splits, self.limit)
        _refuse_quantised(scene.subject)
        self._rounding(scene.subject.tied)

    def __call__(self, scene: Scene) -> Outcome:
        scene = scene.only(self.splits, self.limit)
        with self.applied(scene.subject) as quantised:
            records = scene.ask(quantised)
        return scene.outcome(records)

    @contextmanager
    def applied(self, subject: Subject) -> Iterator[Subject]:
        """The same subject with quantised weights; on leaving, the very tensors from before are in their places again."""
        _refuse_quantised(subject)
        rounding = self._rounding(subject.tied)
        with ExitStack() as restore:
            merged = _merge_adapters(subject, restore)
            targets = self._targets(subject)
            self._check(subject, targets)
            self._round(subject, targets, rounding, restore)
            for layer in merged:
                layer.to(subject.base.dtype)
            yield subject

    @property
    def _by_torchao(self) -> bool:
        return self.kind in ("int8", "int4")

    def _rounding(self, tied: bool) -> Rounding:
        if self._by_torchao:
            return _torchao_rounding(cast(Literal["int8", "int4"], self.kind), self.group)
        kind = cast(Literal["q8_0", "q4_0"], self.kind)
        return lambda weight, role: round_trip(weight, stored_as(kind, role, tied))

    def _targets(self, subject: Subject) -> list[tuple[str, nn.Module, Role]]:
        """Name, layer and role of everything whose weight is rounded."""
        found: list[tuple[str, nn.Module, Role]] = [
            (name, layer, "matrix") for name, layer in subject.decoder.named_modules() if isinstance(layer, nn.Linear)
        ]
        if not self._by_torchao:
            found.append(("embedding", subject.embedding, "embedding"))
        if self.head or not self._by_torchao:
            found.append(("head", subject.head, "head"))
        return found

    def _check(self, subject: Subject, targets: list[tuple[str, nn.Module, Role]]) -> None:
        """Refuses a model of which most would be left out, and widths that are no multiple of the group."""
        weights = [parameter for parameter in subject.decoder.parameters() if parameter.dim() > 1 and parameter is not subject.embedding.weight]
        covered = sum(cast(Tensor, layer.weight).numel() for _, layer, role in targets if role == "matrix")
        if covered < COVERED * sum(weight.numel() for weight in weights):
            raise InputError(
                f"{subject.source}: quantise knows linear layers only, and most of a {type(subject.base).__name__} is not made of them: "
                "quantise it with a tool of its own and evaluate the result"
            )
        for name, layer, _ in targets:
            width, step = cast(Tensor, layer.weight).shape[1], self._step
            if width % step:
                remedy = "choose another group" if self.kind == "int4" else "use int8, which has no groups"
                raise InputError(
                    f"{subject.source}: {name} is {width} wide, which is no multiple of the {step} that share a scale in {self.kind}: {remedy}"
                )

    @property
    def _step(self) -> int:
        return {"int8": 1, "int4": self.group}.get(self.kind) or block(stored_as(cast(Literal["q8_0", "q4_0"], self.kind), "matrix", True))

    def _round(self, subject: Subject, targets: list[tuple[str, nn.Module, Role]], rounding: Rounding, restore: ExitStack) -> None:
        made: dict[int, nn.Parameter] = {}
        for _, layer, role in targets:
            old = cast(nn.Parameter, layer.weight)
            if id(old) not in made:
                with torch.no_grad():
                    made[id(old)] = nn.Parameter(rounding(old.detach(), role), requires_grad=old.requires_grad)
            restore.callback(setattr, layer, "weight", old)
            layer.weight = made[id(old)]


def _refuse_quantised(subject: Subject) -> None:
    plain = all(type(parameter.data) is Tensor and parameter.is_floating_point() for parameter in subject.base.parameters())
    if subject.quantised or not plain:
        raise InputError(f"{subject.source}: the model is quantised already: load it with model.quantise=none, and quantise from there")


# Adapters ---------------------------------------------------------------------------------------------------------


def _merge_adapters(subject: Subject, restore: ExitStack) -> list[nn.Module]:
    """Puts plain float32 layers, with the adapter's change added, where the adapter's layers were; returns them."""
    if not isinstance(subject.model, PeftModel):
        return []
    if not isinstance(subject.model.base_model, BaseTuner):
        kind = subject.model.active_peft_config.peft_type
        raise InputError(f"{subject.source}: an adapter of the kind {kind} cannot be merged into the weights, so it cannot be quantised with them")
    merged: list[nn.Module] = []
    for parent, name, layer in _adapter_layers(subject.base):
        plain = _deployed(layer)
        merged.append(plain)
        restore.callback(setattr, parent, name, layer)
        setattr(parent, name, plain)
    return merged


def _adapter_layers(module: nn.Module) -> list[tuple[nn.Module, str, nn.Module]]:
    """Parent, name and layer of each outermost layer that PEFT has wrapped."""
    found: list[tuple[nn.Module, str, nn.Module]] = []
    for name, child in module.named_children():
        if isinstance(child, (BaseTunerLayer, AuxiliaryTrainingWrapper)):
            found.append((module, name, child))
        else:
            found += _adapter_layers(child)
    return found


def _deployed(layer: nn.Module) -> nn.Module:
    """A float32 copy of the layer below the adapter that does what both do now."""
    twin: Any = copy.deepcopy(layer).float()
    if isinstance(twin, AuxiliaryTrainingWrapper):
        return cast(nn.Module, cast(Any, twin).unload_and_optionally_merge_module(merge=True, safe_merge=True, adapter_names=None))
    waiting = [name for name in twin.active_adapters if name not in twin.merged_adapters]
    if twin.disable_adapters and twin.merged:
        twin.unmerge()
    elif waiting and not twin.disable_adapters:
        twin.merge(safe_merge=True, adapter_names=waiting)
    return cast(nn.Module, twin.get_base_layer())


# torchao ----------------------------------------------------------------------------------------------------------


def _torchao_rounding(kind: Literal["int8", "int4"], group: int) -> Rounding:
    """What torchao's `quantize_` makes of the weight of a linear layer, dequantised by torchao."""
    try:
        from torchao.quantization import Int8WeightOnlyConfig, IntxWeightOnlyConfig, PerGroup, quantize_
    except ImportError:
        raise InputError(
            f"quantise: kind={kind} needs torchao (pip install 'excise[quantise]'); kind={'q8_0' if kind == 'int8' else 'q4_0'} needs nothing more"
        ) from None
    config = Int8WeightOnlyConfig(set_inductor_config=False) if kind == "int8" else IntxWeightOnlyConfig(cast(Any, torch).int4, PerGroup(group))

    def rounding(weight: Tensor, role: Role) -> Tensor:
        carrier = nn.Linear(1, 1, bias=False, device="meta")
        carrier.weight = nn.Parameter(weight, requires_grad=False)
        quantize_(carrier, config)
        return cast(Any, carrier.weight).dequantize().to(weight.dtype)

    return rounding
