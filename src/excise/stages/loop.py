"""The steps of a training stage: gradients, update, log, guard, evaluation, checkpoint."""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from excise.data.encode import Encoded, encode
from excise.errors import InputError
from excise.evaluation.score import Score
from excise.head import hand_over_gradient, weight_changed
from excise.memory import peak_memory_mb
from excise.parallel import ranks
from excise.parallel.forward import is_spread
from excise.parallel.sharding import clip, spread
from excise.precision import quick_products
from excise.reference import key_of
from excise.scope import Role, places_of
from excise.stages.checkpoint import Checkpoints, Loaded, Snapshot, truncate_log
from excise.stages.fused import fused_layers
from excise.stages.goal import Goal
from excise.stages.guard import Vital
from excise.stages.optimise import float32_masters
from excise.stages.session import Session
from excise.stages.state import State
from excise.stages.working import Working, working_copies
from excise.subject import Subject, require_trainable_in_full

if TYPE_CHECKING:
    from excise.stages.train import Train

TOKENS = "tokens"
"""Travels with the losses from process to process."""


def run_session(session: Session) -> None:
    """Trains, and writes the stage's record into the state."""
    state, stage = session.state, session.stage
    if not state.subject.is_adapter:
        require_trainable_in_full(state.subject)
    begun = time.perf_counter()
    checkpoints = Checkpoints(state.checkpoint_folder) if state.checkpoint_folder is not None else None
    saved = checkpoints.newest() if checkpoints is not None and state.resume else None
    with (
        stage.scope.trainable(state.subject) as whole,
        float32_masters(_masters(state, whole)),
        _spread(state, whole) as parameters,
        working_copies(state.subject, parameters, _converts(state, stage)) as working,
        fused_layers(state.subject, session.kept_head),
    ):
        loop = Loop(session, working, checkpoints)
        if saved is not None and saved.stage == state.stage_index and saved.step > 0:
            loop.restore(saved)
        loop.run()
        changed = sum(p.numel() for p in loop.trained)
    state.records.append(
        {
            "name": stage.name,
            "seconds": round(time.perf_counter() - begun, 3),
            "steps": loop.step,
            "tokens": session.tokens,
            "peak_memory_mb": peak_memory_mb(state.subject.device),
            "changed_parameters": changed if loop.step else 0,
            "stopped": session.stopped,
            **({} if stage.goal is None else {"goal": {"reached": loop.reached, "why": loop.ended or f"{loop.standing} after {loop.step} steps"}}),
            **({"gradients": {name: value / loop.step for name, value in loop.noted.items()}} if loop.noted else {}),
        }
    )


def _spread(state: State, parameters: dict[str, nn.Parameter]) -> AbstractContextManager[dict[str, nn.Parameter]]:
    """The parameters as they are trained: in parts, where several processes share the model."""
    return spread(state.subject, parameters) if state.parallel == "shards" and ranks.several() else nullcontext(parameters)


def _converts(state: State, stage: Train) -> bool:
    """Whether weights would be converted to bf16 in every step. Penalties read them, and sharded ones are converted elsewhere."""
    return state.precision == "bfloat16" and not stage.penalties and not is_spread(state.subject.base)


def _masters(state: State, parameters: Mapping[str, nn.Parameter]) -> list[nn.Parameter]:
    """What is held in float32 while training: what is trained, and without autocast all that it is multiplied with.

    An adapter converts its inputs itself, so its half-precision base stays as it is.
    """
    whole = state.precision == "float32" and not state.subject.is_adapter
    return list(state.subject.model.parameters()) if whole else list(parameters.values())


@dataclass
class Loop:
    """The steps of a session."""

    session: Session
    working: Working
    checkpoints: Checkpoints | None
    step: int = 0

    def __post_init__(self) -> None:
        stage, state = self.session.stage, self.session.state
        self.parameters = self.working.masters
        self.trained = list(self.parameters.values())
        self.spread = is_spread(state.subject.base)
        self.settings = stage.optimiser.resolved(sum(p.numel() for p in state.subject.base.parameters()), state.subject.is_adapter)
        if stage.optimiser.lr is None:
            state.plan.append(f"{stage.name}: learning rate {self.settings.lr:g}, by the model's size")
        places = places_of(state.subject) if self.settings.factors else {}
        roles: dict[str, Role | None] = {name: role for name, (_, role) in places.items()}
        self.optimiser = self.settings.build(self.settings.groups(self.parameters, roles))
        self.noted: dict[str, float] = {}
        folder = None if self.spread else state.checkpoint_folder  # parts stay with their processes
        self.good, self.best = Snapshot(folder, f"good-{state.stage_index}"), Snapshot(folder, f"best-{state.stage_index}")
        self.good_step = 0
        self.best_value: float | None = None
        self.reached, self.ended, self.standing, self.returns = False, "", "", 0
        self.watched = self._watched_texts()
        self.vital_before = Vital(0.0, 0.0)

    def _watched_texts(self) -> list[Encoded]:
        state, count = self.session.state, self.session.stage.guard.examples
        rows = state.side("retain")[:count]
        return [encode(state.subject.tokenizer, state.subject.template, e, max_length=self.session.stage.max_length) for e in rows]

    def restore(self, saved: Loaded) -> None:
        """Goes on from a checkpoint."""
        saved.restore_weights(self.parameters)
        self.working.refresh()
        saved.restore_training(self.optimiser)
        self.step = saved.step
        self.good_step = saved.notes["good_step"]
        if not ranks.is_main():
            torch.manual_seed(self.session.state.seed + 7919 * ranks.rank() + self.step)
        if self.session.stage.guard.every and not self.good.exists:
            self.good.keep(self.parameters)
            self.good_step = self.step
        self.best_value = saved.notes["best_value"]
        self.session.tokens = saved.notes["tokens"]
        self.noted = dict(saved.notes["noted"])
        self.returns = saved.notes["returns"]
        self.vital_before = Vital(**saved.notes["vital_before"])
        for name, tensor in saved.kept().items():
            index, row = map(int, name.split("."))
            term = self.session.terms[index]
            self.session.weighers[index].known[key_of(self.session.texts[term.data][row])] = tensor

    def run(self) -> None:
        session, stage, state = self.session, self.session.stage, self.session.state
        subject, narrator = state.subject, state.narrator
        resumed_at = self.step
        if self.step == 0:
            torch.manual_seed(state.seed + 7919 * ranks.rank())
            self._first_look()
        if state.folder is not None and state.resume and ranks.is_main():
            truncate_log(state.folder / "train.jsonl", state.stage_index, self.step + 1)
        if stage.checkpointing:
            _checkpoint_activations(subject, True)
        _train_mode(subject, stage.dropout)
        narrator.begin(stage.name, session.steps)
        if resumed_at:
            narrator.advance(stage.name, resumed_at)
        try:
            while self.step < session.steps and not session.stopped and not self.ended:
                self._one_step()
        finally:
            narrator.end(stage.name)
            subject.model.eval()
            if stage.checkpointing:
                _checkpoint_activations(subject, False)
        if session.stopped:
            self._put_back()
        elif self.best.exists and stage.keep_best:
            self.best.restore(self.parameters)

    def _first_look(self) -> None:
        guard, subject, precision = self.session.stage.guard, self.session.state.subject, self.session.state.precision
        if guard.every and self.watched and self.session.steps:
            self.vital_before = guard.look(subject, self.watched, precision)
            self.good.keep(self.parameters)
        if self.session.stage.goal is not None:
            self.best.keep(self.parameters)

    def _one_step(self) -> None:
        session, stage, state = self.session, self.session.stage, self.session.state
        begun, tokens_before = time.perf_counter(), session.tokens
        if self.step and self.step % session.per_epoch == 0:
            for index, weigher in session.weighers.items():
                if weigher.refresh == "epoch":
                    session.remember_weights(session.terms[index], weigher)
        rate = self.settings.rate(self.step, session.steps) * 0.5**self.returns
        for group in self.optimiser.param_groups:
            group["lr"] = rate * group.get("factor", 1.0)
        draw = session.draw(self.step)
        if draw.opens and self.settings.moments == "fresh":
            self.optimiser.state.clear()
        losses: dict[str, float] = {}
        noted = stage.gradients(session.losses(draw, losses), self.trained, self._backward)
        ranks.add_gradients(self.trained)
        names = [*dict.fromkeys(term.name for term in (*session.terms, *stage.penalties)), TOKENS]
        losses = ranks.add_values({**losses, TOKENS: float(session.tokens - tokens_before)}, names, state.subject.device)
        session.tokens = tokens_before + int(losses.pop(TOKENS))
        norm = self._clip()
        if not math.isfinite(norm) or not all(math.isfinite(v) for v in losses.values()):
            session.stopped = f"step {self.step + 1}: the loss or its gradient is not a number"
            return
        probe = self._moving_probe() if self.step == 0 and not self.spread else None
        self.optimiser.step()
        self.working.refresh()
        weight_changed(state.subject.head)
        if probe is not None and torch.equal(*probe) and norm > 0:
            raise InputError(f"{stage.name}: no value moved in the first step: learning rate {rate:g} is too small for this number format")
        self.optimiser.zero_grad(set_to_none=True)
        self.step += 1
        for name, value in noted.items():
            self.noted[name] = self.noted.get(name, 0.0) + value
        self._log(losses, noted, norm, rate, session.tokens - tokens_before, time.perf_counter() - begun)
        self._look_around()
        if self.checkpoints and stage.checkpoint_every and self.step % stage.checkpoint_every == 0 and self.step < session.steps:
            self._checkpoint(self.checkpoints)
        state.narrator.advance(stage.name, 1, note=_note(losses))

    def _backward(self, loss: Tensor) -> None:
        """Back-propagates a loss; one that depends on no parameter in scope has nothing to add."""
        if loss.requires_grad:
            state = self.session.state
            with quick_products(state.precision, state.subject.device):
                (loss * ranks.world() if self.spread else loss).backward()  # spread gradients are averaged over the processes
            hand_over_gradient(state.subject.head)

    def _clip(self) -> float:
        """The norm of the whole gradient; clips it if the stage says so."""
        with_gradient = [p for p in self.trained if p.grad is not None]
        if not with_gradient:
            raise InputError(
                f"{self.session.stage.name}: no parameter in scope got a gradient, so nothing can be learned: "
                "the scope lies behind the layer where the objective looks, or gradients are switched off"
            )
        return clip(with_gradient, self.settings.clip)

    def _moving_probe(self) -> tuple[Tensor, Tensor]:
        """The values with the largest gradient before the step, and where they will be after it, to see that they move."""

        def largest(parameter: nn.Parameter) -> Tensor:
            rows = cast(Tensor, parameter.grad).reshape(len(parameter) if parameter.dim() else 1, -1)
            return torch.linalg.vector_norm(rows, float("inf"), dim=1)  # of each row, without a copy of the whole

        chosen = max((p for p in self.trained if p.grad is not None), key=lambda p: float(largest(p).max()))
        row = chosen.detach()[int(largest(chosen).argmax())] if chosen.dim() else chosen.detach()
        return row.clone(), row

    def _look_around(self) -> None:
        """Guard and evaluation, where they are due."""
        stage, state = self.session.stage, self.session.state
        guard = stage.guard
        if self.watched and guard.every and (guard.due(self.step) or self.step == self.session.steps):
            complaint = ranks.gather(guard.complaint(self.vital_before, guard.look(state.subject, self.watched, state.precision)))[0]
            if complaint:
                self.session.stopped = f"step {self.step}: {complaint}"
                return
            self.good.keep(self.parameters)
            self.good_step = self.step
        if stage.evaluate_every and self.step % stage.evaluate_every == 0 and state.evaluate is not None:
            self._evaluate(state.evaluate)

    def _evaluate(self, evaluate: Callable[[Subject], Mapping[str, Score]]) -> None:
        state, wanted = self.session.state, self.session.stage.keep_best
        state.subject.model.eval()
        with self.working.aside():
            scores = evaluate(state.subject)
        if self.session.stage.goal is not None:
            self._compare(self.session.stage.goal, scores)
            self.working.refresh()
        _train_mode(state.subject, self.session.stage.dropout)
        self._write_line({"scores": {name: s.value for name, s in scores.items()}})
        if not wanted:
            return
        if wanted not in scores:
            raise InputError(f"keep_best: there is no score {wanted!r} in this suite")
        score_now = scores[wanted]
        if score_now.value is None:
            raise InputError(f"keep_best: {wanted} is unavailable ({score_now.unavailable})")
        sign = 1.0 if score_now.better == "higher" else -1.0
        if self.best_value is None or sign * score_now.value > sign * self.best_value:
            self.best_value = score_now.value
            self.best.keep(self.parameters)

    def _compare(self, goal: Goal, scores: Mapping[str, Score]) -> None:
        """Ends the stage where its goal is reached, or where that costs too much."""
        where, self.standing = goal.judge(scores)
        self.session.state.narrator.say(f"{self.session.stage.name}, step {self.step}: {self.standing}.")
        if where == "broken":
            self.best.restore(self.parameters)
            self.optimiser.state.clear()
            self.returns += 1
            if self.returns > goal.patience:
                self.ended = f"{self.standing} in step {self.step}; the last state before it that held was put back"
        elif where == "reached":
            self.reached, self.ended = True, f"{self.standing} in step {self.step}"
        else:
            self.best.keep(self.parameters)

    def _checkpoint(self, checkpoints: Checkpoints) -> None:
        session = self.session
        kept: dict[str, Tensor] = {}
        for index, weigher in session.weighers.items():
            if weigher.refresh == "epoch":
                for row, text in enumerate(session.texts[session.terms[index].data]):
                    kept[f"{index}.{row}"] = weigher.known[key_of(text)]
        notes = {
            "good_step": self.good_step,
            "best_value": self.best_value,
            "tokens": session.tokens,
            "noted": self.noted,
            "returns": self.returns,
            "vital_before": asdict(self.vital_before),
        }
        checkpoints.write(session.state.stage_index, self.step, self.parameters, self.optimiser, kept, notes)

    def _put_back(self) -> None:
        session = self.session
        if self.good.exists:
            self.good.restore(self.parameters)
            session.stopped += f"; the state after step {self.good_step} was put back"
        session.state.narrator.say(f"{session.stage.name} stopped at {session.stopped}")

    def _log(self, losses: Mapping[str, float], noted: Mapping[str, float], norm: float, rate: float, tokens: int, seconds: float) -> None:
        total = sum(term.scale * losses.get(term.name, 0.0) for term in (*self.session.terms, *self.session.stage.penalties))
        self._write_line(
            {
                "loss": total,
                "terms": dict(losses),
                **({"gradients": dict(noted)} if noted else {}),
                "gradient_norm": norm,
                "learning_rate": rate,
                "tokens": tokens,
                "seconds": round(seconds, 4),
                "tokens_per_second": round(tokens / max(seconds, 1e-9), 1),
                "memory_mb": peak_memory_mb(self.session.state.subject.device),
            }
        )

    def _write_line(self, values: Mapping[str, Any]) -> None:
        state = self.session.state
        if state.folder is None or not ranks.is_main():
            return
        row = {"stage": self.session.stage.name, "stage_index": state.stage_index, "step": self.step, **values}
        with (state.folder / "train.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")


def _train_mode(subject: Subject, dropout: bool) -> None:
    """Puts the model into training mode, and its dropout layers only if they are wanted."""
    subject.model.train()
    if not dropout:
        for module in subject.model.modules():
            if isinstance(module, nn.Dropout):
                module.eval()


def _checkpoint_activations(subject: Subject, on: bool) -> None:
    """Switches the recomputation of activations in the backward pass on or off."""
    with warnings.catch_warnings():
        # transformers 5 renames both, and 4.57 does not know the new names
        warnings.filterwarnings("ignore", message="`gradient_checkpointing_.*` is deprecated", category=FutureWarning)
        if on:
            subject.base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        else:
            subject.base.gradient_checkpointing_disable()


def _note(losses: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {value:.3f}" for name, value in losses.items())
