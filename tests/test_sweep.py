"""A sweep: the space file, the model restored between trials, resume after kills, the front, the best trial verified."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from conftest import REPOSITORY, refused, tiny
from excise.evaluation.suites import evaluate
from excise.files import write_json
from excise.report.html import write_report
from excise.report.sweep import render
from excise.saving import save
from excise.sweep import bench as bench_module
from excise.sweep import conduct
from excise.sweep.bench import Bench, Outcome, changed_by
from excise.sweep.conduct import devices_of, sweep
from excise.sweep.folder import SweepFolder
from excise.sweep.front import best, front
from excise.sweep.space import Choice, Objective, Range, Space, checked, recipe_with

DATA = {"name": "strangers", "forget_people": 1, "retain_people": 1, "holdout_people": 1}
GUARD = {"every": 0}
OBJECTIVES = ["forget.probability", "retain.probability", "cost.tokens"]


@pytest.fixture
def model(tmp_path: Path, cache: Path) -> Path:
    return save(tiny("llama"), tmp_path / "model", provenance={})


def base(model: Path, **changes: Any) -> dict[str, Any]:
    method = {"name": "npo", "steps": 2, "batch": 2, "lr": 1e-3, "guard": GUARD}
    return {"model": str(model), "data": DATA, "method": method, "evaluation": {"limit": 1, "max_new_tokens": 1}, **changes}


# The space --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "parts"),
    [
        ({"objectives": OBJECTIVES}, ("varies nothing",)),
        ({"space": {"method.lr": [1e-3]}}, ("no 'objectives'",)),
        ({"space": {"method.lr": []}, "objectives": OBJECTIVES}, ("space.method.lr", "empty")),
        ({"space": {"method.lr": 3}, "objectives": OBJECTIVES}, ("space.method.lr", "low")),
        ({"space": {"method.lr": {"low": 2, "high": 1}}, "objectives": OBJECTIVES}, ("space.method.lr", "lower first")),
        ({"space": {"method.lr": {"low": 0, "high": 1, "log": True}}, "objectives": OBJECTIVES}, ("space.method.lr", "above 0")),
        ({"space": {"method.lr": {"low": 0, "hihg": 1, "high": 1}}, "objectives": OBJECTIVES}, ("hihg", "did you mean 'high'")),
        ({"space": {"model": ["a"]}, "objectives": OBJECTIVES}, ("space.model", "the same in every trial")),
        ({"space": {"method.lr": [1]}, "objectives": ["forget.probability"] * 2}, ("twice",)),
        ({"space": {"method.lr": [1]}, "objectives": OBJECTIVES, "samplr": "tpe"}, ("samplr", "did you mean 'sampler'")),
        ({"space": {"method.lr": [1]}, "objectives": OBJECTIVES, "sampler": "tpo"}, ("tpo", "did you mean 'tpe'")),
        ({"space": {"method.lr": {"low": 0.1, "high": 1}}, "objectives": OBJECTIVES, "sampler": "grid"}, ("space.method.lr", "points")),
        ({"space": {"method.lr": [1]}, "objectives": OBJECTIVES, "prune": {"score": "retain.probability"}}, ("no bound",)),
        ({"space": {"method.lr": [1]}, "objectives": OBJECTIVES, "trials": [{"method.lr": 2}]}, ("trials.0.method.lr", "not in the space")),
        ({"space": {"method.lr": [1]}, "objectives": OBJECTIVES, "trials": [{"method.beta": 2}]}, ("trials.0",)),
    ],
)  # fmt: skip
def test_a_space_that_makes_no_sense_is_refused_in_one_line(space: dict[str, Any], parts: tuple[str, ...]) -> None:
    refused(lambda: Space.parse(space), *parts)


@pytest.mark.parametrize(
    ("space", "parts"),
    [
        ({"space": {"method.bta": [1]}, "objectives": OBJECTIVES}, ("with method.bta=1", "did you mean 'beta'")),
        ({"space": {"method.name": ["npo", "ga"], "method.beta": [0.1]}, "objectives": OBJECTIVES}, ("method.name=ga", "method.beta")),
        ({"space": {"method.lr": [1e-3, -1]}, "objectives": OBJECTIVES}, ("method.lr=-1",)),
        ({"space": {"method.lr": [1e-3]}, "objectives": ["forget.probabilty"]}, ("forget.probabilty", "did you mean 'forget.probability'")),
        ({"space": {"method.lr": [1e-3]}, "objectives": [{"score": "holdout.probability"}]}, ("holdout.probability", "direction")),
        ({"space": {"method.lr": [1e-3]}, "objectives": [{"score": "forget.probability", "phase": "attack:relearn"}]}, ("attack:relearn",)),
        ({"space": {"method.lr": [1e-3]}, "objectives": OBJECTIVES, "prune": {"score": "model_utility", "keep": 0.5}}, ("prune.score",)),
        ({"space": {"method.lr": [1e-3]}, "objectives": OBJECTIVES, "prune": {"score": "forget.probability", "keep": 0.5}}, ("at_most",)),
    ],
)  # fmt: skip
def test_a_combination_that_is_none_is_refused_before_anything_runs(space: dict[str, Any], parts: tuple[str, ...], tmp_path: Path) -> None:
    refused(lambda: sweep(base(tmp_path / "no model"), space, tmp_path / "out", trials=2), *parts)
    assert not (tmp_path / "out").exists()


def test_a_layer_that_the_model_lacks_is_refused_before_anything_is_evaluated(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_module, "evaluate", lambda *_, **__: pytest.fail("something was evaluated"))
    space = {"space": {"method": [{"name": "rmu", "layer": 1, "steps": 1}, {"name": "rmu", "layer": 7}]}, "objectives": OBJECTIVES}
    refused(lambda: sweep(base(model), space, tmp_path / "out", trials=2), "layer 7", '"layer": 7')
    assert not (tmp_path / "out").exists()


def test_numbers_whole_numbers_and_choices() -> None:
    varied = {
        "method.lr": {"low": "1e-5", "high": 1, "log": True, "points": 3},
        "method.steps": {"low": 2, "high": 8, "step": 3},
        "method": ["npo", {"name": "rmu", "layer": 1}],
    }
    space = Space.parse({"space": varied, "objectives": ["forget.probability"], "sampler": "grid"})
    lr, steps, method = space.dimensions.values()
    assert isinstance(lr, Range)
    assert lr.grid() == pytest.approx((1e-5, 10**-2.5, 1.0))
    assert steps.grid() == (2, 5, 8)
    assert isinstance(method, Choice)
    assert method.value(method.label({"layer": 1, "name": "rmu"})) == {"name": "rmu", "layer": 1}
    assert len(space.fixed) == space.how_many(None) == 18
    assert space.how_many(4) == 4
    refused(lambda: Space.parse({"space": {"method.lr": [1]}, "objectives": ["x"]}).how_many(None), "--trials")


def test_a_whole_method_and_one_of_its_settings_may_vary_together(model: Path) -> None:
    recipe = recipe_with(base(model), {"method.lr": 0.5, "method": {"name": "ga_kl", "steps": 3}})
    assert recipe.method == {"name": "ga_kl", "steps": 3, "lr": 0.5}


def test_directions_come_from_the_scores(model: Path) -> None:
    space = checked(base(model), Space.parse({"space": {"method.lr": [1e-3]}, "objectives": OBJECTIVES}))
    assert [o.better for o in space.objectives] == ["lower", "higher", "lower"]
    assert [o.share for o in space.objectives] == [1.0, 1.0, 0.0]


def test_workers_are_a_number_or_devices() -> None:
    assert devices_of("2") == [None, None]
    assert devices_of("cuda:0, cuda:1") == ["cuda:0", "cuda:1"]
    for wrong in ("0", "-1", "", "2,3"):
        refused(lambda wrong=wrong: devices_of(wrong), "--workers")


# The front --------------------------------------------------------------------------------------------------------

TWO = (Objective("forget", "lower"), Objective("retain", "higher"))


def test_the_front_and_the_trial_nearest_to_the_ideal() -> None:
    found = {n: {"forget": f, "retain": r} for n, (f, r) in enumerate([(0.9, 0.9), (0.1, 0.1), (0.3, 0.8), (0.4, 0.8), (0.3, 0.7)])}
    assert front(found, TWO) == (0, 1, 2)
    assert best(found, TWO, {}) == 2
    strict = (TWO[0], Objective("retain", "higher", keep=0.9))
    assert best(found, strict, {"retain": 1.0}) == 0
    assert best(found, (TWO[0], Objective("retain", "higher", at_least=0.95)), {}) is None
    assert best({}, TWO, {}) is None


def test_of_equals_the_cheaper_one_is_best() -> None:
    objectives = (*TWO, Objective("cost.steps", "lower"))
    found = {0: {"forget": 0.1, "retain": 0.9, "cost.steps": 9.0}, 1: {"forget": 0.1, "retain": 0.9, "cost.steps": 3.0}}
    assert best(found, objectives, {}) == 1


# Trials -----------------------------------------------------------------------------------------------------------


def test_the_model_is_the_same_to_the_bit_after_every_trial(model: Path, tmp_path: Path) -> None:
    lora = {"r": 2}
    methods: list[Any] = [
        {"name": "npo", "steps": 2, "lr": 1e-2, "guard": GUARD},
        {"name": "npo", "steps": 2, "lr": 1e-2, "guard": GUARD, "lora": lora},
        {"name": "rmu", "steps": 2, "lr": 1e-2, "layer": 1, "guard": GUARD},
        {"name": "ga+npo", "steps": 1, "lr": 1e-2, "guard": GUARD, "lora": lora},
        {"name": "ga", "steps": 3, "lr": 1.0, "guard": GUARD},  # pruned
    ]
    given = {"space": {"method": methods}, "objectives": OBJECTIVES, "prune": {"score": "retain.probability", "keep": 0.05, "limit": 2}}
    space = checked(base(model), Space.parse(given))
    bench = Bench(base(model), space, tmp_path)
    fingerprint = bench.subject.fingerprint()
    outcomes = []
    for number, method in enumerate([*methods, methods[0]]):
        outcomes.append(bench.run({"method": method}, tmp_path / "trials" / str(number), number))
        assert bench.subject.fingerprint() == fingerprint
        assert not bench.subject.is_adapter
        assert all(p.requires_grad and p.grad is None for p in bench.subject.model.parameters())
    assert [o.state for o in outcomes] == ["complete"] * 4 + ["pruned", "complete"]
    assert "below 0.05 of the" in outcomes[4].reason
    assert outcomes[0].values == outcomes[5].values
    assert len({o.values["forget.probability"] for o in outcomes[:4]}) == 4
    assert {p.name for p in (tmp_path / "trials" / "0").iterdir()} == {"recipe.yaml", "result.json", "train.jsonl"}


def test_only_what_the_scope_changes_is_copied(model: Path) -> None:
    subject = tiny("llama")
    every = {name for name, _ in subject.model.named_parameters()}

    def stages(method: dict[str, Any]) -> list[Any]:
        return [s for _, part in recipe_with(base(model), {"method": method}).methods() for s in part]

    assert changed_by(stages({"name": "npo"}), subject) == every
    assert changed_by(stages({"name": "npo", "lora": {"r": 2}}), subject) == set()
    assert changed_by(stages({"name": "rmu", "layer": 1}), subject) == {f"model.layers.{i}.mlp.down_proj.weight" for i in (0, 1)}

    class Foreign:
        """A stage that excise does not know."""

        def check(self, state: Any) -> None: ...
        def prepare(self, state: Any) -> None: ...
        def structure(self, state: Any) -> None: ...
        def __call__(self, state: Any) -> None: ...

    assert changed_by([Foreign()], subject) is None


def test_the_look_asks_for_no_generation_where_its_score_needs_none(model: Path, tmp_path: Path) -> None:
    for score, generation in (("retain.probability", False), ("retain.rouge_l_recall", True)):
        given = {"space": {"method.lr": [1e-3]}, "objectives": OBJECTIVES, "prune": {"score": score, "at_least": 0.0}}
        bench = Bench(base(model), checked(base(model), Space.parse(given)), tmp_path)
        assert bench.look is not None
        assert bench.look.suite.plans["retain"].generation is generation
        assert list(bench.look.suite.plans) == ["retain"]


def test_a_trial_is_given_up_in_the_middle_of_its_training(model: Path, tmp_path: Path) -> None:
    given = {"space": {"method.lr": [1.0]}, "objectives": OBJECTIVES, "prune": {"score": "retain.probability", "keep": 0.5, "every": 1}}
    bench = Bench(base(model), checked(base(model), Space.parse(given)), tmp_path)
    outcome = bench.run({"method.lr": 1.0}, tmp_path / "0", 0)
    assert outcome.state == "pruned"
    assert len((tmp_path / "0" / "train.jsonl").read_text().splitlines()) == 1  # of two steps
    refused(lambda: checked(base(model, method={"name": "ga", "evaluate_every": 1}), Space.parse(given)), "prune.every")


# Sweeps -----------------------------------------------------------------------------------------------------------


def test_a_grid_runs_every_cell_once_and_asks_the_origin_and_the_twin_once(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Counter[str] = Counter()

    def counted(subject: Any, *rest: Any, **options: Any) -> Any:
        asked["kept" if options.get("cache") is not None else "trial"] += 1
        return evaluate(subject, *rest, **options)

    monkeypatch.setattr(bench_module, "evaluate", counted)
    twin = save(tiny("llama", seed=1), tmp_path / "twin", provenance={})
    recipe = base(model, evaluation={"limit": 1, "max_new_tokens": 1, "retrained": str(twin)})
    space = {
        "space": {"method.lr": [1e-4, 1e-3], "method.name": ["npo", "ga_kl"]},
        "objectives": ["forget_quality", "retain.probability"],
        "sampler": "grid",
    }
    result = sweep(recipe, space, tmp_path / "out")
    assert asked == {"kept": 2, "trial": 4}
    cells = [tuple(t["settings"].values()) for t in result["trials"]]
    assert sorted(cells) == [(1e-4, "ga_kl"), (1e-4, "npo"), (1e-3, "ga_kl"), (1e-3, "npo")]
    assert all(t["state"] == "complete" for t in result["trials"])
    trial = json.loads((tmp_path / "out" / "trials" / "0000" / "result.json").read_text())
    assert set(trial["evaluations"]) == {"before", "after", "retrained"}
    write_report([tmp_path / "out" / "trials" / "0000"], tmp_path / "one.html")
    again = sweep(recipe, space, tmp_path / "out", resume=True, verify_seeds=1)  # nothing is asked twice
    assert asked["kept"] == 2
    assert again["trials"] == result["trials"]
    verified = again["verified"]
    assert verified["same"]
    assert [row["seed"] for row in verified["seeds"]] == [1]
    assert (tmp_path / "out" / "best" / "model" / "model.safetensors").exists()
    page = (tmp_path / "out" / "report.html").read_text()
    assert "mean of 2 seeds" in page
    assert "Run again with its own seed it gave the same numbers" in page
    refused(lambda: sweep(recipe, space, tmp_path / "out"), "--resume")
    refused(lambda: sweep(recipe, {**space, "seed": 1}, tmp_path / "out", resume=True), "another space.yaml")


class FakeBench(Bench):
    """A bench whose trials cost nothing: it writes what a trial would, from its settings."""

    def __init__(self, base: Any, space: Space, folder: Path, device: Any, narrator: Any) -> None:
        self.space = space

    @property
    def values_before(self) -> dict[str, float]:
        return {}

    def run(self, settings: Any, folder: Path, number: int, *, keep_model: bool = False) -> Outcome:
        x = float(settings.get("method.lr", 0.1))
        outcome = Outcome("complete", {"forget.probability": x * x, "retain.probability": 1 - x})
        write_json(folder / "result.json", {"sweep": {"settings": dict(settings), **asdict(outcome)}})
        return outcome


@pytest.mark.parametrize("sampler", ["tpe", "nsga2", "random"])
def test_samplers_draw_the_same_for_the_same_seed_and_a_small_space_is_not_run_twice(
    sampler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conduct, "Bench", FakeBench)
    space = {
        "space": {"method.lr": {"low": 1e-5, "high": 1e-2, "log": True}},
        "objectives": ["forget.probability", "retain.probability"],
        "sampler": sampler,
    }
    recipe = base(tmp_path / "no model")
    whole = sweep(recipe, space, tmp_path / "whole", trials=9)
    sweep(recipe, space, tmp_path / "parts", trials=2)
    parts = sweep(recipe, space, tmp_path / "parts", trials=9, resume=True)
    if sampler != "tpe":  # which begins to learn after a number of trials that depends on how many are asked for
        assert parts["trials"] == whole["trials"]
    assert len({t["settings"]["method.lr"] for t in whole["trials"]}) == 9
    other = sweep(recipe, {**space, "seed": 1}, tmp_path / "other", trials=9)
    assert other["trials"] != whole["trials"]
    small = {**space, "space": {"method.beta": [0.1, 0.5]}}
    found = sweep(recipe, small, tmp_path / "small", trials=5)
    assert sorted(t["settings"]["method.beta"] for t in found["trials"]) == [0.1, 0.5]


def test_a_listed_trial_comes_first_and_a_half_written_journal_is_mended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conduct, "Bench", FakeBench)
    space = {
        "space": {"method.lr": {"low": 0.001, "high": 1.0}},
        "objectives": ["forget.probability", "retain.probability"],
        "trials": [{"method.lr": 0.5}],
    }
    recipe = base(tmp_path / "no model")
    first = sweep(recipe, space, tmp_path / "out", trials=3)
    assert first["trials"][0]["settings"] == {"method.lr": 0.5}
    with (tmp_path / "out" / "sweep.log").open("a") as log:
        log.write('{"op_code": 4, "wor')  # killed while it wrote
    found = sweep(recipe, space, tmp_path / "out", trials=5, resume=True)
    assert found["trials"][:3] == first["trials"]
    assert len(found["trials"]) == 5


def test_the_process_of_a_trial_that_dies_twice_is_not_begun_a_third_time(tmp_path: Path) -> None:
    recipe = base(tmp_path / "no model")
    folder = SweepFolder(tmp_path / "out")
    given = {"trials": [{"method.lr": 0.1}, {"method.lr": 0.2}], "objectives": OBJECTIVES}
    folder.begin(recipe, given, resume=False)
    space = folder.space
    folder.prepare(space)
    study = folder.study(space)
    taken = []
    for said in ("once more", "counts as failed"):
        claim = folder.claim(study, space, 2, worker=1, session="one")
        assert claim is not None
        taken.append(claim.number)
        assert said in folder.died(space, 1)
    assert taken == [0, 0]
    claim = folder.claim(study, space, 2, worker=1, session="one")
    assert claim is not None
    assert claim.settings == {"method.lr": 0.2}
    folder.prepare(space)  # another session after a kill: the trial is run again
    again = folder.claim(folder.study(space), space, 2, worker=1, session="two")
    assert again is not None
    assert again.number == claim.number
    assert folder.claim(folder.study(space), space, 2, worker=2, session="two") is None


def test_a_trial_that_fails_is_told_and_the_others_go_on(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = bench_module.run_stages

    def breaking(state: Any, stages: Any) -> None:
        if stages[0].optimiser.lr == 2e-3:
            raise RuntimeError("out of\nmemory")
        run(state, stages)

    monkeypatch.setattr(bench_module, "run_stages", breaking)
    space = {"trials": [{"method.lr": 2e-3}, {"method.lr": 1e-3}], "objectives": OBJECTIVES}
    result = sweep(base(model, privacy="redact"), space, tmp_path / "out")
    assert [t["state"] for t in result["trials"]] == ["failed", "complete"]
    assert result["trials"][0]["reason"] == "out of memory"
    assert "failed: out of memory" in (tmp_path / "out" / "report.html").read_text()
    assert not (tmp_path / "out" / "baseline").exists()  # redacted: no texts are kept


def test_the_report_escapes_what_it_shows() -> None:
    evil = "<script>alert(1)</script>"
    raw = {"schema": 1, "objectives": [{"name": evil, "better": "lower"}, {"name": "b", "better": "higher"}], "front": [0], "best": 0, "why": evil,
           "before": {evil: 0.5}, "sampler": {"name": evil, "seed": 0}, "verified": None, "recipe": {"method": evil},
           "trials": [{"number": 0, "settings": {evil: evil}, "state": "complete", "values": {evil: 0.1, "b": 0.2}, "reason": evil}]}  # fmt: skip
    assert "<script" not in render(raw, evil)


# Kills ------------------------------------------------------------------------------------------------------------


def _start(folder: Path, workers: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-W", "ignore", "-m", "excise", "sweep", str(folder / "recipe.yaml"), "--space", str(folder / "space.yaml")]
    command += ["--trials", "12", "--out", str(folder / "out"), "--verify-seeds", "0", "--workers", str(workers), "--resume"]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(REPOSITORY / "src"), "OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL)


def _finished(folder: Path) -> list[Path]:
    return sorted((folder / "out" / "trials").glob("[0-9]*/result.json"))


@pytest.mark.slow
def test_a_sweep_killed_twice_ends_with_twelve_distinct_trials(model: Path, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(base(model)))
    space = {"space": {"method.lr": {"low": 1e-4, "high": 1e-2, "log": True}, "method.steps": {"low": 2, "high": 4}}, "objectives": OBJECTIVES}
    (tmp_path / "space.yaml").write_text(yaml.safe_dump(space))
    stamps: dict[str, float] = {}
    for workers, enough in ((2, 3), (1, 7)):
        process = _start(tmp_path, workers)
        while len(_finished(tmp_path)) < enough:
            assert process.poll() is None, "the sweep ended before it could be killed"
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        time.sleep(0.5)  # workers end with their parent
        there = {path.parent.name: path.stat().st_mtime for path in _finished(tmp_path)}
        assert len(there) < 12
        assert {name: there[name] for name in stamps} == stamps
        stamps = there
    result = sweep(base(model), space, tmp_path / "out", trials=12, resume=True)
    assert [t["number"] for t in result["trials"]] == list(range(12))
    assert all(t["state"] == "complete" for t in result["trials"])
    assert len({json.dumps(t["settings"]) for t in result["trials"]}) == 12
    after = {path.parent.name: path.stat().st_mtime for path in _finished(tmp_path)}
    assert len(after) == 12
    assert {name: after[name] for name in stamps} == stamps  # what was finished was not run again
    assert not list((tmp_path / "out" / "trials").glob(".*"))  # nothing half-written is left
    page = (tmp_path / "out" / "report.html").read_text()
    assert "Pareto front" in page
    assert page.count('<svg class="plot"') == 3
    for number in result["front"]:
        assert f"<title>trial {number}</title>" in page


def test_the_documentation_s_space_is_one() -> None:
    text = (REPOSITORY / "docs" / "sweeps.md").read_text()
    space = Space.parse(yaml.safe_load(text.split("```yaml\n")[1].split("```")[0]))
    recipe = {"model": "embedded:smollm2", "data": {"name": "strangers"}, "method": {"name": "npo"}}
    assert [o.better for o in checked(recipe, space).objectives] == ["lower", "higher", "lower"]
