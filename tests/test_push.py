"""Pushing to a hub that stands in on this machine: what arrives, what stays private, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import report_fixture
from conftest import adapted, refused, tiny
from excise.files import write_json
from excise.hub_card import origin
from excise.push import pack, push
from excise.saving import save
from fake_hub import TOKEN, Hub, hub

# huggingface_hub uploads in a way that its own HTTP client advises against; nothing that a caller could change
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    constants: Any = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with hub() as stand_in:
        monkeypatch.setenv("HF_ENDPOINT", stand_in.url)
        yield stand_in


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A base model with a licence, as the hub's snapshots have it."""
    folder = tmp_path / "base"
    shutil.copytree(tiny("llama").source, folder)
    (folder / "README.md").write_text("---\nlicense: cc-by-4.0\n---\n# A model\n")
    (folder / "LICENSE").write_text("The terms of Anna Brandt.")
    return folder


@pytest.fixture
def run(tmp_path: Path, base: Path) -> Path:
    """A run folder with scores and attacks, and a model made from the base."""
    folder = report_fixture.write_run(tmp_path / "run", attacks=True)
    subject = tiny("llama")
    subject.base.name_or_path = str(base)
    save(subject, folder / "model", provenance={"method": "npo", "recipe": {"model": str(base)}})
    return folder


def front(card: str) -> dict[str, Any]:
    return yaml.safe_load(card.split("---")[1])


def test_a_model_arrives_whole_private_and_with_its_results(there: Hub, run: Path) -> None:
    pushed = push(run, "anna/forgetful")
    assert pushed.private
    assert there.private == {"anna/forgetful": True}
    files = there.files["anna/forgetful"]
    assert files["model.safetensors"] == (run / "model" / "model.safetensors").read_bytes()
    assert files["LICENSE"] == b"The terms of Anna Brandt."
    assert {"config.json", "tokenizer.json", "excise.json", "README.md"} <= files.keys()
    card = files["README.md"].decode()
    assert front(card)["license"] == "cc-by-4.0"
    assert "base_model" not in front(card)
    assert "fact recall fell from 0.96 to 0.05" in card
    assert "| forget.fact_recall | 0.96 (0.90 to 1.00) |" in card
    assert "relearn" in card
    assert "Mara Velthuis" not in card
    assert there.messages == [f"A model written by excise {json.loads(files['excise.json'])['excise']}"]


def test_no_place_on_this_machine_is_told(there: Hub, run: Path, base: Path) -> None:
    assert str(base.parent) in (run / "model" / "excise.json").read_text()
    pushed = push(run, "anna/forgetful")
    for name, content in there.files["anna/forgetful"].items():
        assert str(base.parent).encode() not in content, name
    assert "excise.json" in pushed.notes[0]


def test_an_existing_public_repository_is_not_used_unasked(there: Hub, run: Path) -> None:
    there.private["anna/open"] = False
    refused(lambda: push(run, "anna/open"), "public", "--public")
    assert there.files == {}
    assert not push(run, "anna/open", public=True).private
    assert not push(run, "anna/new", public=True).private
    assert there.private["anna/new"] is False


def test_an_adapter_names_a_base_that_others_can_find(there: Hub, tmp_path: Path, base: Path) -> None:
    subject = adapted(tiny("llama"))
    subject.base.name_or_path = str(base)
    folder = save(subject, tmp_path / "adapter", provenance={})
    refused(lambda: push(folder, "anna/adapter"), "--base")
    assert there.private == {}
    push(folder, "anna/adapter", base="anna/base")
    files = there.files["anna/adapter"]
    assert json.loads(files["adapter_config.json"])["base_model_name_or_path"] == "anna/base"
    card = files["README.md"].decode()
    assert front(card)["base_model"] == "anna/base"
    assert front(card)["library_name"] == "peft"
    assert "model.safetensors" not in files


def test_a_certificate_goes_with_the_files_that_it_covers(run: Path) -> None:
    for name in ("certificate.json", "certificate.html"):
        (run / name).write_text("{}")
    parcel = pack(run)
    assert "certificate.json" not in parcel.contents
    assert "certificate stays here" in parcel.notes[-1]
    record = json.loads((run / "model" / "excise.json").read_text())
    write_json(run / "model" / "excise.json", {**record, "base": "anna/base", "recipe": {}})
    parcel = pack(run)
    assert {"certificate.json", "certificate.html"} <= parcel.contents.keys()
    assert "excise verify" in str(parcel.contents["README.md"])


def test_what_cannot_be_pushed_is_refused_before_anything_is_sent(there: Hub, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(lambda: push(tmp_path / "none", "a/b"), "neither a run folder nor a model")
    refused(lambda: push(run, "nothing"), "owner/name")
    (run / "model" / "pytorch_model.bin").write_bytes(b"x")
    refused(lambda: push(run, "a/b"), "pickle")
    (run / "model" / "pytorch_model.bin").unlink()
    (run / "model" / ".secret").write_text("x")
    assert ".secret" not in pack(run).contents
    monkeypatch.delenv("HF_TOKEN")
    refused(lambda: push(run, "a/b"), "HF_TOKEN")
    (run / "model" / "model.safetensors").unlink()
    refused(lambda: push(run, "a/b"), "no weights")
    assert there.private == {}


def test_the_hubs_refusals_are_one_line_without_the_token(there: Hub, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there.broken = "/commit/"
    refused(lambda: push(run, "anna/forgetful"), "the hub refused anna/forgetful", "disk of the hub is full")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(Exception, match="refused") as caught:
        push(run, "anna/forgetful")
    assert "hf_wrong" not in str(caught.value)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    refused(lambda: push(run, "anna/forgetful"), "could not be pushed")


def test_the_licence_is_that_of_the_first_model_of_all(tmp_path: Path, base: Path) -> None:
    chain = tmp_path / "chain"
    chain.mkdir()
    write_json(chain / "excise.json", {"base": str(base)})
    assert (origin(str(chain)).licence, origin(str(chain)).name) == ("cc-by-4.0", "base")
    assert origin("embedded:smollm2").licence == "apache-2.0"
    assert origin("embedded:gemma3-270m").licence == "gemma"
    assert (origin("owner/name").name, origin("owner/name").licence) == ("owner/name", "")
    write_json(chain / "excise.json", {"base": str(chain)})
    assert origin(str(chain)).licence == ""


def test_the_command(there: Hub, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from excise.cli.sharing import push as command

    command(run, "anna/forgetful")
    assert f"private: {there.url}/anna/forgetful/commit/" in capsys.readouterr().out
