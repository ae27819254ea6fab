"""The two factors of each module of a LoRA adapter: where they are, and what may be done to their rank dimensions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from excise.errors import InputError
from excise.hidden import require_layer
from excise.scope import Role, places_of

if TYPE_CHECKING:
    from excise.subject import Subject

LOAD_IT = "load the adapter's own folder, or name it with model.path=BASE model.adapter=FOLDER"


@dataclass(frozen=True)
class Factors:
    """One adapted module: it adds ``scaling`` x B A to its weight."""

    module: str
    """Name of the module in the model."""
    adapter: str
    layer: int
    role: Role
    a: nn.Parameter
    """Parameter [rank, inputs]."""
    b: nn.Parameter
    """Parameter [outputs, rank]."""
    scaling: float
    place: str
    """Layer and role, such as ``7.down``; a second module of the same role in a layer (experts) is ``7.down.1``."""

    @property
    def rank(self) -> int:
        return int(self.b.shape[1])

    @property
    def a_name(self) -> str:
        """Name of A among the model's parameters."""
        return f"{self.module}.lora_A.{self.adapter}.weight"

    @property
    def b_name(self) -> str:
        """Name of B among the model's parameters."""
        return f"{self.module}.lora_B.{self.adapter}.weight"

    def product(self) -> Float[Tensor, "outputs inputs"]:
        """B A in float64, without the scaling."""
        return self.b.detach().double() @ self.a.detach().double()


def factors_of(
    subject: Subject, modules: Sequence[Role] | None = None, layers: Sequence[int] | None = None, setting: str = "modules"
) -> list[Factors]:
    """The adapted modules with these roles in these layers, in the model's order; None: all that the adapter has.

    Raises:
        InputError: no adapter, a merged one, several, another kind than LoRA, or a role or layer that it lacks. ``setting`` is
            what the message calls the choice of modules.
    """
    everything = _all_factors(subject)
    have = list(dict.fromkeys(f.role for f in everything))
    for role in modules or ():
        if role not in have:
            raise InputError(f"{setting}: the adapter has nothing on {role!r} modules; it adapts {', '.join(have)}")
    for layer in layers or ():
        require_layer(layer, subject.depth)
        if not any(f.layer == layer for f in everything):
            there = sorted({f.layer for f in everything})
            raise InputError(
                f"{setting.rpartition('.')[0] or 'the stage'}: the adapter has nothing in layer {layer}; it adapts layers {_ranges(there)}"
            )
    return [f for f in everything if (modules is None or f.role in modules) and (layers is None or f.layer in layers)]


def _all_factors(subject: Subject) -> list[Factors]:
    from peft import PeftModel
    from peft.tuners.lora import LoraLayer

    model = subject.model
    if not isinstance(model, PeftModel):
        raise InputError(f"{subject.source}: this model has no LoRA adapter to edit (one that was merged has become part of the model): {LOAD_IT}")
    if len(model.active_adapters) != 1:
        raise InputError(f"{subject.source}: {len(model.active_adapters)} adapters are active, and one can be edited: combine them, or load one")
    name = model.active_adapters[0]
    kind = model.peft_config[name].peft_type
    if kind != "LORA" or getattr(model.peft_config[name], "use_dora", False):
        raise InputError(f"{subject.source}: the adapter is of kind {'DoRA' if kind == 'LORA' else kind}, and only a LoRA adapter can be edited")
    places = places_of(subject)
    found: list[Factors] = []
    seen: Counter[str] = Counter()
    for module_name, module in model.named_modules():
        if not isinstance(module, LoraLayer) or name not in module.lora_A:
            continue
        if getattr(module, "merged", False):
            raise InputError(f"{subject.source}: the adapter is merged into the weights, where it cannot be edited: unmerge it, or {LOAD_IT}")
        a, b = (cast(nn.Parameter, part[name].weight) for part in (module.lora_A, module.lora_B))
        layer, role = places[f"{module_name}.lora_B.{name}.weight"]
        if layer is not None and role is not None and a.dim() == 2:
            place = f"{layer}.{role}"
            numbered = f"{place}.{seen[place]}" if seen[place] else place
            seen[place] += 1
            found.append(Factors(module_name, name, layer, role, a, b, float(module.scaling[name]), numbered))
    if not found:
        raise InputError(f"{subject.source}: the adapter changes no linear module of a decoder layer, so there is nothing to edit")
    return found


def require_choice(factors: Sequence[Factors], what: str) -> None:
    """Refuses an adapter of rank 1, whose only rank dimension is the whole adapter."""
    if single := next((f for f in factors if f.rank < 2), None):
        raise InputError(
            f"{what}: the adapter has rank 1 (at {single.place}), so its only rank dimension is all that it knows: use an adapter of a higher rank, "
            "or adapter_negation"
        )


def _ranges(numbers: Sequence[int]) -> str:
    return f"{numbers[0]} to {numbers[-1]}" if list(numbers) == list(range(numbers[0], numbers[-1] + 1)) else ", ".join(map(str, numbers))


@torch.no_grad()
def to_singular_basis(factors: Factors) -> Float[Tensor, "rank rank"]:
    """Rotates B A into its singular basis: the same product, and rank dimension k is its k-th singular direction.

    B = U sqrt(S) and A = sqrt(S) V^T, computed in float64; each direction's first largest entry of U is positive.

    Returns:
        M with (new B) = (old B) M, for other values of B that are to follow; a direction of singular value 0 has a column of zeros.
    """
    q_b, r_b = torch.linalg.qr(factors.b.double())
    q_a, r_a = torch.linalg.qr(factors.a.double().T)
    u, s, v = torch.linalg.svd(r_b @ r_a.T, full_matrices=False)
    left, right = q_b @ u, v @ q_a.T
    sign = left.gather(0, left.abs().argmax(0, keepdim=True)).sign().flatten()
    sign[sign == 0] = 1.0
    root = s.sqrt()
    found = len(s)  # less than the rank where a side of the matrix is shorter than it
    factors.b.zero_()[:, :found] = (left * (sign * root)).to(factors.b.dtype)
    factors.a.zero_()[:found] = (right * (sign * root)[:, None]).to(factors.a.dtype)
    inverse = torch.where(s > s.max() * 1e-10, sign / root.clamp_min(1e-300), torch.zeros_like(root))
    change = torch.zeros(factors.rank, factors.rank, dtype=torch.float64, device=factors.b.device)
    change[:, :found] = r_a.T @ v.T * inverse
    return change


@contextmanager
def asking_for_gradients(subject: Subject, parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Only these parameters ask for gradients during the block; afterwards none does."""
    wanted = {id(p) for p in parameters}
    for parameter in subject.model.parameters():
        parameter.requires_grad_(id(parameter) in wanted)
        parameter.grad = None
    try:
        yield
    finally:
        for parameter in subject.model.parameters():
            parameter.requires_grad_(False)
            parameter.grad = None


@contextmanager
def folded(subject: Subject) -> Iterator[None]:
    """A LoRA adapter's change added to the weights below it during the block, where it can be; afterwards every bit is as before.

    For writing answers token by token, where an adapter's own products are many and small.
    """
    changes = _changes(subject)
    taken = [(layer.base_layer.weight, layer.base_layer.weight.data) for layer, _ in changes]
    try:
        with torch.no_grad():
            for (weight, own), (layer, factors) in zip(taken, changes, strict=True):
                weight.data = (own.float() + factors.scaling * (factors.b.float() @ factors.a.float())).to(own.dtype)
                layer._disable_adapters = True
        torch.clear_autocast_cache()  # which knows a weight by its place, whatever it holds
        yield
    finally:
        for (weight, own), (layer, _) in zip(taken, changes, strict=True):
            weight.data, layer._disable_adapters = own, False
        torch.clear_autocast_cache()


def _changes(subject: Subject) -> list[tuple[Any, Factors]]:
    """The layers of an adapter with their factors; none where one of them is of a kind that cannot be added to the weight below it."""
    if not subject.is_adapter or subject.quantised:
        return []
    with suppress(InputError):
        found = [(cast(Any, subject.model.get_submodule(factors.module)), factors) for factors in factors_of(subject)]
        if all(type(layer.base_layer) is nn.Linear and not layer.disable_adapters and layer.lora_B[f.adapter].bias is None for layer, f in found):
            return found
    return []
