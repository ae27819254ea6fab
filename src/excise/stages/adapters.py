"""Stages on LoRA adapters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from peft import LoraConfig, PeftModel, get_peft_model

from excise.errors import InputError
from excise.hidden import require_layer
from excise.objectives.check import at_least, within
from excise.scope import Role, module_names
from excise.stages.state import State
from excise.subject import Subject, quiet


@dataclass(frozen=True)
class AddAdapter:
    """Puts a fresh LoRA adapter on the model; training then changes only the adapter.

    In a chain of methods the first one adds the adapter, and the others go on with it.

    Paper: Hu et al. 2022, "LoRA", eq. 3 (arXiv 2106.09685).
    """

    r: int = 16
    """Rank."""
    alpha: int = 32
    """The update is scaled by alpha / r."""
    dropout: float = 0.0
    """Dropout on the adapter's input."""
    modules: tuple[Role, ...] = ("q", "k", "v", "o", "gate", "up", "down")
    """Which linear layers get one."""
    layers: tuple[int, ...] | None = None
    """Which decoder layers, 0-based; None: all."""
    rank_stabilised: bool = False
    """Scale by alpha / sqrt(r) instead."""

    def __post_init__(self) -> None:
        at_least("lora.r", self.r, 1)
        within("lora.dropout", self.dropout, 0.0, 0.99)

    def check(self, state: State) -> None:
        if state.subject.is_adapter:
            raise InputError("the model is an adapter already, which will be trained as it is: leave out method.lora, or merge it first")
        for layer in self.layers or ():
            require_layer(layer, state.subject.depth)
        module_names(state.subject, self.modules)

    def prepare(self, state: State) -> None:
        self.check(state)
        for other in state.prepared.values():
            if isinstance(other, AddAdapter) and other != self:
                raise InputError("the methods of a chain train one adapter, and these ask for two different ones: give all the same lora settings")
        state.prepared[id(self)] = self

    def structure(self, state: State) -> None:
        subject = state.subject
        if subject.is_adapter:
            return
        with torch.random.fork_rng(), quiet():
            torch.manual_seed(state.seed)
            subject.model = cast(PeftModel, get_peft_model(subject.base, self.config(subject)))
        subject.model.eval()

    def config(self, subject: Subject) -> LoraConfig:
        """What PEFT makes the adapter from."""
        return LoraConfig(
            r=self.r,
            lora_alpha=self.alpha,
            lora_dropout=self.dropout,
            target_modules=module_names(subject, self.modules),
            layers_to_transform=list(self.layers) if self.layers is not None else None,
            use_rslora=self.rank_stabilised,
            task_type="CAUSAL_LM",
        )

    def __call__(self, state: State) -> None:
        going_on = state.subject.is_adapter
        self.structure(state)
        state.plan.append("adapter: that of the method before goes on" if going_on else f"adapter: LoRA rank {self.r} on {', '.join(self.modules)}")
