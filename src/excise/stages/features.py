"""CRISP: features of a sparse autoencoder that belong to the target text are trained away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from excise.data.encode import encode
from excise.data.example import Example
from excise.errors import InputError
from excise.factorise.autoencoder import reconstruction
from excise.objectives.check import at_least
from excise.objectives.distance import HiddenMSE
from excise.objectives.suppression import Salient, SuppressActivations
from excise.sae.folder import Sae, load_sae
from excise.sae.text import hidden_states
from excise.scope import Scope
from excise.stages.loop import run_session
from excise.stages.salience import Choice, Chosen, counted, density
from excise.stages.session import Session
from excise.stages.state import State
from excise.stages.train import Term, Train

if TYPE_CHECKING:
    from excise.subject import Subject


@dataclass(frozen=True)
class SuppressFeatures:
    """Chooses features of sparse autoencoders that are active on forget text and not on retain text, and trains the model to lose them.

    Minimises (1 - beta) L_unlearn + beta L_retain + beta gamma L_coherence: the salient features' activations on forget text, the squared
    change of the autoencoders' layers on retain text, and that of the last layer on a few coherence texts.

    Paper: Ashuach et al. 2025, "CRISP: Persistent Concept Unlearning via Sparse Autoencoders" (arXiv 2508.13650).

    Differs: hidden states before the last norm on coherence texts; general coherence texts instead of some about the concept; see
        also :class:`SuppressActivations` and :class:`Choice`.
    """

    sae: str | tuple[str, ...]
    """Folder of an SAE (`excise sae train` makes one) or saelens:RELEASE/ID; several for several layers."""
    train: Train
    """How to train. Its terms only hold the places of those that this stage makes; its coherence texts stay."""
    sae_layer: int | None = None
    """The decoder layer of the SAE, where its folder does not say."""
    choice: Choice = field(default_factory=Choice)
    """Which features."""
    margin: float = 5.0
    """How far below zero features are pushed; see :class:`SuppressActivations`."""
    beta: float = 0.99
    """Weight of keeping against losing."""
    gamma: float = 0.01
    """Weight of the coherence texts among what is kept."""

    @property
    def scope(self) -> Scope:
        """Which parameters it may change."""
        return self.train.scope

    def changes(self, subject: Subject) -> list[str]:
        """Names of the parameters that it may change."""
        return self.scope.names(subject)

    @cached_property
    def saes(self) -> tuple[Sae, ...]:
        """The autoencoders, loaded once."""
        return tuple(load_sae(name) for name in ((self.sae,) if isinstance(self.sae, str) else self.sae))

    def check(self, state: State) -> None:
        if not self.saes:
            raise InputError("method.sae is empty: give the folder of an SAE")
        at_least("gamma", self.gamma, 0.0)
        layers = [sae.fits(state.subject, self.sae_layer) for sae in self.saes]
        if len(set(layers)) < len(layers):
            raise InputError(f"method.sae: two SAEs read after layer {next(n for n in layers if layers.count(n) > 1)}; give one for each layer")
        replace(self.train, terms=(Term(HiddenMSE(layers[0]), "retain"),)).check(state)

    def prepare(self, state: State) -> None:
        self.check(state)
        if self.train.reference != "stage":
            state.prepared[id(self)] = self._session(state)

    def structure(self, state: State) -> None:
        """Training changes no structure."""

    def __call__(self, state: State) -> None:
        session = state.prepared.pop(id(self), None) or self._session(state)
        assert isinstance(session, Session)
        run_session(session)

    # --- what is trained ----------------------------------------------------------------------------------------------

    def _session(self, state: State) -> Session:
        return Session.build(replace(self.train, terms=self._terms(state)), state)

    def _terms(self, state: State) -> tuple[Term, ...]:
        parts = tuple(part for part in (self._salient(sae, state) for sae in self.saes) if part is not None)
        if not parts:
            raise InputError(
                f"no feature of the SAE is salient on the forget text (activation ratio of at least {self.choice.ratio:g}): lower method.ratio, "
                "or train a larger SAE on text that holds the concept"
            )
        lose = Term(SuppressActivations(parts, self.margin), "forget", 1.0 - self.beta)
        keep = [
            Term(HiddenMSE(part.layer), "retain", self.beta / len(parts), label="hiddenmse" if len(parts) == 1 else f"hiddenmse@{part.layer}")
            for part in parts
        ]
        last = Term(HiddenMSE(state.subject.depth - 1), "coherence", self.beta * self.gamma)
        return (lose, *keep, *((last,) if self.train.coherence else ()))

    def _salient(self, sae: Sae, state: State) -> Salient | None:
        """The salient features of one autoencoder; what was chosen goes into the plan."""
        layer = sae.fits(state.subject, self.sae_layer)
        target, benign = (self._states(state.side(side), layer, state) for side in ("forget", "retain"))
        autoencoder = sae.autoencoder.to(target[0])
        quality = [reconstruction(autoencoder, torch.cat(states)).explained_variance for states in (target, benign)]
        if quality[0] <= 0:
            raise InputError(
                f"the SAE {sae.source} explains nothing of layer {layer} on the forget text (explained variance {quality[0]:.2f}): it belongs to "
                "another model or another layer"
            )
        chosen = self.choice(counted(autoencoder, target), counted(autoencoder, benign))
        known = sae.model.get("fingerprint")
        other = ", trained on other weights of this architecture" if known is not None and known != state.subject.fingerprint() else ""
        state.plan.append(
            f"crisp: layer {layer}, SAE of {autoencoder.features} features{other}, explained variance {quality[0]:.3f} on forget and "
            f"{quality[1]:.3f} on retain text; {len(chosen)} salient: {'; '.join(map(_shown, chosen)) or 'none'}"
        )
        if not chosen:
            return None
        features = tuple(feature.index for feature in chosen)
        return Salient(layer, autoencoder, features, density(autoencoder, target, features))

    def _states(self, examples: tuple[Example, ...], layer: int, state: State) -> list[Tensor]:
        subject = state.subject
        texts = [encode(subject.tokenizer, subject.template, e, max_length=self.train.max_length) for e in examples]
        task, narrator = f"reading layer {layer} on {len(texts)} texts", state.narrator
        narrator.begin(task, len(texts))
        advance: Callable[[int], None] = lambda done: narrator.advance(task, done)  # noqa: E731
        states = hidden_states(subject, texts, layer, state.precision, state.max_tokens, advance)
        narrator.end(task)
        return states


def _shown(feature: Chosen) -> str:
    return f"{feature.index} (ratio {feature.ratio:.1f}, {feature.target_tokens:.0f} tokens against {feature.benign_tokens:.0f})"
