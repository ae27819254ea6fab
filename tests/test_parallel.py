"""Two processes do what one does: every method's step, in copies and in shards; evaluation in order; resume in another number of processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import contract
import parallel_driver
from conftest import REPOSITORY, refused, tiny
from excise.errors import InputError
from excise.loading import load
from excise.parallel import ranks
from excise.parallel.sharding import resolve
from excise.recipe import Recipe
from excise.run import refuse_apart, unlearn
from excise.saving import save
from excise.stages.optimise import Optimiser
from excise.stages.train import Train

TESTS = Path(__file__).parent


def launch(program: list[str], processes: int = 2, **environment: str) -> None:
    """Runs a program in several processes that talk through gloo."""
    command = [sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), *program]
    paths = os.pathsep.join([str(REPOSITORY / "src"), str(TESTS)])
    surroundings = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore", **environment}
    done = subprocess.run(command, env=surroundings, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """What two processes found out, in one launch."""
    folder = tmp_path_factory.mktemp("two")
    save(tiny("llama"), folder / "model", provenance={})
    launch([str(TESTS / "parallel_driver.py"), str(folder)], ACCELERATE_USE_FSDP="true", EXCISE_CACHE=str(folder / "cache"))
    return folder, json.loads((folder / "told.json").read_text())


@pytest.mark.slow
def test_two_processes_take_the_same_step_as_one_with_every_method(told: tuple[Path, dict[str, Any]]) -> None:
    folder, found = told
    assert found["world"] == 2
    alone_by: dict[str, dict[str, torch.Tensor]] = {}
    for name, method, settings, mode in parallel_driver.cases():
        seen = found["cases"][name]
        if "refused" in seen:  # a stage that is not made for several processes says so
            assert "processes" in seen["refused"], (name, seen["refused"])
            assert "\n" not in seen["refused"]
            continue
        assert seen["same"], f"{name}: the processes hold different models"
        assert seen["types"] == (["DTensor"] if mode == "shards" else ["Parameter"]), name
        assert seen["classes"] == ("FSDPLlamaForCausalLM" if mode == "shards" else "LlamaForCausalLM"), name
        key = json.dumps([method, settings], sort_keys=True)
        alone = alone_by[key] = alone_by[key] if key in alone_by else parallel_driver.run_case(method, settings, mode)
        step = load_file(folder / f"{name}.safetensors")
        assert step.keys() == alone.keys()
        for key, value in alone.items():
            scale = max(1.0, float(value.abs().max()))
            assert float((step[key] - value).abs().max()) <= 2e-5 * scale, (name, key)
        assert any(float(value.abs().max()) > 0 for value in step.values()), name


@pytest.mark.slow
def test_a_sharded_evaluation_comes_back_in_order(told: tuple[Path, dict[str, Any]]) -> None:
    alone = parallel_driver.records()
    for split, rows in told[1]["records"].items():
        assert [row["id"] for row in rows] == [row["id"] for row in alone[split]]
        assert [row["generation"] for row in rows] == [row["generation"] for row in alone[split]]
        for row, other in zip(rows, alone[split], strict=True):
            assert row["true"]["logp"] == pytest.approx(other["true"]["logp"], abs=1e-5)


@pytest.mark.slow
def test_what_processes_tell_each_other(told: tuple[Path, dict[str, Any]]) -> None:
    found = told[1]
    assert found["sums"] == {"a": 3.0}
    assert found["gathered"] == [{"rank": 0, "text": ""}, {"rank": 1, "text": "ä"}]
    assert found["stretches"] == [[0, 1, 2], [3, 4, 5, 6]]


@pytest.mark.slow
@pytest.mark.parametrize("parallel", ["copies", "shards"])
def test_a_run_of_two_processes_goes_on_in_one(parallel: str, told: tuple[Path, dict[str, Any]], tmp_path: Path, cache: Path) -> None:
    folder, steps = told[0], parallel_driver.KILLED_AFTER
    work = folder / f".run-{parallel}.unfinished"
    assert [p.name for p in sorted((work / "checkpoints").glob("[0-9]*"))] == [f"000-{steps:07d}"]
    assert len((work / "train.jsonl").read_text().splitlines()) == steps
    recipe = Recipe.load(folder / f"{parallel}.yaml")
    two, one = folder / f"run-{parallel}", tmp_path / "one"
    results = [unlearn(recipe, one), unlearn(recipe, two, resume=True)]
    logs = [[json.loads(line) for line in (run / "train.jsonl").read_text().splitlines()] for run in (one, two)]
    assert [row["step"] for row in logs[1]] == [row["step"] for row in logs[0]] == list(range(1, 7))
    for alone, apart in zip(*logs, strict=True):
        assert apart["loss"] == pytest.approx(alone["loss"], rel=1e-3)
        assert apart["gradient_norm"] == pytest.approx(alone["gradient_norm"], rel=1e-3)
    assert results[0]["stages"][0]["steps"] == results[1]["stages"][0]["steps"] == 6
    if parallel == "copies":  # with shards, an example that does not count is run as well
        assert results[0]["stages"][0]["tokens"] == results[1]["stages"][0]["tokens"]
    scores = [result["evaluations"]["after"]["strangers"]["retain.probability"]["value"] for result in results]
    assert scores[1] == pytest.approx(scores[0], rel=1e-2)


@pytest.mark.slow
def test_the_command_leaves_one_whole_folder_under_accelerate_s_settings(told: tuple[Path, dict[str, Any]]) -> None:
    run = told[0] / "command"
    assert {p.name for p in run.iterdir()} == {
        "recipe.yaml", "environment.json", "train.jsonl", "model", "records", "attribution.jsonl", "result.json", "report.html",
    }  # fmt: skip
    assert len((run / "train.jsonl").read_text().splitlines()) == 6
    assert len((run / "records" / "after" / "forget.jsonl").read_text().splitlines()) == 3
    assert not list(told[0].glob(".command*"))
    assert load(run / "model").fingerprint() != load(told[0] / "model").fingerprint()


# One process ------------------------------------------------------------------------------------------------------


def test_one_process_is_its_own_world() -> None:
    assert (ranks.world(), ranks.rank(), ranks.several(), ranks.is_main()) == (1, 0, False, True)
    assert ranks.own_part([1, 2, 3]) == [1, 2, 3]
    assert ranks.own_stretch([1, 2, 3]) == [1, 2, 3]
    assert ranks.gather("x") == ["x"]
    assert ranks.add_values({"a": 1.0}, ["a"], torch.device("cpu")) == {"a": 1.0}
    assert ranks.from_main(lambda: 5) == 5


def test_shares_are_the_whole_and_differ_by_one_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "world", lambda: 3)
    for items in (range(0), range(1), range(7), range(9)):
        stretches, parts = [], []
        for rank in range(3):
            monkeypatch.setattr(ranks, "rank", lambda rank=rank: rank)
            stretches.append(list(ranks.own_stretch(items)))
            parts.append(list(ranks.own_part(items)))
        assert [i for stretch in stretches for i in stretch] == list(items)
        assert sorted(i for part in parts for i in part) == list(items)
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_what_accelerate_asks_for_is_done_or_refused() -> None:
    assert resolve("auto", {}) == "copies"
    assert resolve("auto", {"ACCELERATE_USE_FSDP": "true"}) == "shards"
    assert resolve("copies", {"ACCELERATE_USE_FSDP": "true"}) == "copies"
    refused(lambda: resolve("auto", {"ACCELERATE_USE_DEEPSPEED": "true"}), "DeepSpeed", "parallel: shards")


def test_what_needs_the_whole_batch_is_refused_in_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Foreign:
        def check(self, state: Any) -> None: ...
        def prepare(self, state: Any) -> None: ...
        def structure(self, state: Any) -> None: ...
        def __call__(self, state: Any) -> None: ...

    from excise.attacks.worst_case import WorstCase
    from excise.objectives import NPO
    from excise.stages.gradients import ProjectConflicts
    from excise.stages.train import Term

    projecting = Train((Term(NPO(), "forget"),), gradients=ProjectConflicts())
    refuse_apart([projecting, Foreign()], [WorstCase()])
    monkeypatch.setattr(ranks, "world", lambda: 2)
    refused(lambda: refuse_apart([projecting]), "ProjectConflicts", "2", "processes", "one process")
    refused(lambda: refuse_apart([Foreign()]), "Foreign", "2 processes", "one process")
    refused(lambda: refuse_apart([], [WorstCase()]), "WorstCase", "one process")


def test_eight_bits_are_refused_where_they_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = list(contract.small_subject().model.parameters())
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", None)
    with pytest.raises(InputError, match=r"adamw_8bit needs bitsandbytes.*excise\[bits\]"):
        Optimiser(lr=1e-3, kind="adamw_8bit").build(parameters)
    monkeypatch.setattr(ranks, "is_spread", lambda _: True)
    with pytest.raises(InputError, match=r"adamw_8bit does not work on weights that are spread.*parallel: copies"):
        Optimiser(lr=1e-3, kind="adamw_8bit").build(parameters)
    assert isinstance(Optimiser(lr=1e-3, kind="sgd").build(parameters), torch.optim.SGD)


def test_moments_in_eight_bits_go_on_where_they_were() -> None:
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed (excise[bits])")
    from excise.stages.checkpoint import _flatten, _unflatten

    def begun() -> tuple[torch.nn.Parameter, torch.optim.Optimizer]:
        parameter = torch.nn.Parameter(torch.linspace(-1, 1, 8192))
        return parameter, Optimiser(lr=1e-2, kind="adamw_8bit").build([parameter])

    def step(parameter: torch.nn.Parameter, optimiser: torch.optim.Optimizer, number: int) -> None:
        parameter.grad = torch.sin(torch.arange(8192.0) * (number + 1))
        optimiser.step()

    whole, first = begun()
    for number in range(4):
        step(whole, first, number)
    parts, second = begun()
    for number in range(2):
        step(parts, second, number)
    flat, (again, third) = _flatten(second), begun()
    assert any(value.dtype == torch.uint8 for value in flat.values())
    with torch.no_grad():
        again.copy_(parts)
    _unflatten(third, flat)
    for number in range(2, 4):
        step(again, third, number)
    assert torch.equal(again, whole)
