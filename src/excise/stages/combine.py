"""Stages that put a second adapter beside the model's own, and combine the two."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer

from excise.errors import InputError
from excise.lora import factors_of
from excise.memory import peak_memory_mb
from excise.scope import module_names
from excise.stages.adapters import AddAdapter
from excise.stages.state import State
from excise.subject import quiet

if TYPE_CHECKING:
    from excise.subject import Subject

SECOND, COMBINED = "second", "combined"


@dataclass(frozen=True)
class AddSecondAdapter:
    """Sets the model's adapter aside and puts a fresh one on the bare base, of the same shape; on a model without one, a fresh one.

    Paper: Ilharco et al. 2023, "Editing Models with Task Arithmetic" (arXiv 2212.04089).
    """

    lora: AddAdapter | None = None
    """Shape of the new adapter; None: that of the model's own, else rank 16 on all linear layers."""

    def check(self, state: State) -> None:
        if state.subject.is_adapter:
            factors_of(state.subject)
        if self.lora is not None:
            module_names(state.subject, self.lora.modules)

    def prepare(self, state: State) -> None:
        self.check(state)

    def structure(self, state: State) -> None:
        subject = state.subject
        with torch.random.fork_rng(), quiet():
            torch.manual_seed(state.seed)
            if isinstance(subject.model, PeftModel):
                subject.model.add_adapter(SECOND, self._config(subject))
                subject.model.set_adapter(SECOND)
                subject.model.to(subject.device)
            else:
                subject.model = cast(PeftModel, get_peft_model(subject.base, self._config(subject), adapter_name=SECOND))
        subject.model.requires_grad_(False)
        subject.model.eval()

    def __call__(self, state: State) -> None:
        aside = state.subject.is_adapter
        self.structure(state)
        state.plan.append("a second adapter is trained on the base" + (", the model's own is set aside" if aside else ""))

    def _config(self, subject: Subject) -> LoraConfig:
        if self.lora is not None or not isinstance(subject.model, PeftModel):
            return (self.lora or AddAdapter()).config(subject)
        own = cast(LoraConfig, subject.model.peft_config[subject.model.active_adapters[0]])
        names = ("r", "lora_alpha", "lora_dropout", "target_modules", "layers_to_transform", "layers_pattern", "rank_pattern", "alpha_pattern")
        return LoraConfig(**{name: getattr(own, name) for name in (*names, "use_rslora", "exclude_modules", "task_type")})


def _unscaled(model: PeftModel) -> None:
    """Scaling 1 for the combination, whose numbers hold those of both parts; PEFT keeps the rank-stabilised scaling of the first."""
    model.peft_config[COMBINED].use_rslora = False  # type: ignore[attr-defined]
    for module in model.modules():
        if isinstance(module, LoraLayer) and COMBINED in module.lora_A:
            module.scaling[COMBINED] = 1.0


@dataclass(frozen=True)
class CombineAdapters:
    """Makes one adapter of the model's own and the second: B A + weight x B' A', exactly, by stacking their rank dimensions.

    Without an own adapter it is weight x B' A' alone. The scalings of both become part of the numbers. Weight 0 leaves the own adapter
    as it was, to the bit.

    Paper: Ilharco et al. 2023, "Editing Models with Task Arithmetic", eq. for forgetting: theta - lambda tau (arXiv 2212.04089).
    """

    weight: float = -1.0
    """Factor on the second adapter; negative unlearns what it learned."""

    def check(self, state: State) -> None:
        """Whatever AddSecondAdapter accepted can be combined."""

    def prepare(self, state: State) -> None:
        self.check(state)

    def structure(self, state: State) -> None:
        model = state.subject.model
        if not isinstance(model, PeftModel) or SECOND not in model.peft_config:
            raise InputError("there is no second adapter to combine: AddSecondAdapter has to come first")
        own = [name for name in model.peft_config if name != SECOND]
        with quiet():
            if own and self.weight == 0:
                model.set_adapter(own[0])
            else:
                model.add_weighted_adapter([*own, SECOND], [*([1.0] * len(own)), self.weight], COMBINED, combination_type="cat")
                model.set_adapter(COMBINED)
                _unscaled(model)
            for name in [name for name in model.peft_config if name not in model.active_adapters]:
                model.delete_adapter(name)
        model.requires_grad_(False)
        model.eval()

    def __call__(self, state: State) -> None:
        begun = time.perf_counter()
        self.structure(state)
        factors = factors_of(state.subject)
        state.plan.append(f"adapters combined: own {'+' if self.weight > 0 else '-'} {abs(self.weight):g} x second, rank {factors[0].rank}")
        record: dict[str, Any] = {"name": "combine_adapters", "seconds": round(time.perf_counter() - begun, 3), "steps": 0, "tokens": 0}
        record |= {"peak_memory_mb": peak_memory_mb(state.subject.device), "changed_parameters": sum(f.a.numel() + f.b.numel() for f in factors)}
        state.records.append({**record, "stopped": ""})
