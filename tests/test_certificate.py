"""Certificates: what they say, who signed them, and that a single changed byte is refused."""

from __future__ import annotations

import dataclasses
import json
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import refused, tiny
from excise.certificate import check, content, signing
from excise.certificate.asked import example_hash
from excise.certificate.check import verify
from excise.certificate.issue import as_text, certify
from excise.certificate.rerun import Repeated, rerun, subject_of
from excise.data.benchmarks.strangers import Strangers
from excise.errors import InputError
from excise.files import write_json
from excise.recipe import Recipe
from excise.run import unlearn
from excise.saving import save

pytest.importorskip("cryptography")

PEOPLE = {"forget_people": 1, "retain_people": 2, "holdout_people": 1}
FORGET = Strangers(**PEOPLE)().forget


def recipe(folder: Path, **changes: Any) -> Recipe:
    twin = save(tiny("llama", seed=1), folder / "twin", provenance={})
    model = save(tiny("llama"), folder / "model", provenance={})
    settings: dict[str, Any] = {
        "model": str(model),
        "data": {"name": "strangers", **PEOPLE},
        "method": {"name": "npo", "lr": 1e-3, "steps": 1, "batch": 2, "guard": {"every": 0}},
        "evaluation": {"limit": 2, "max_new_tokens": 2, "retrained": str(twin)},
        "attacks": [{"name": "prompts", "kinds": ["paraphrase"], "limit": 1}],
    }
    return Recipe.parse({**settings, **changes})


def small(folder: Path, **changes: Any) -> Recipe:
    """Two questions, one model, no attack."""
    rows = [{"question": f"Who is number {i}?", "answer": f"Number {i} is Anna{i} Brandt."} for i in range(4)]
    for name, part in (("f", rows[:2]), ("r", rows[2:])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    data = {"name": "jsonl", "forget": str(folder / "f.jsonl"), "retain": str(folder / "r.jsonl")}
    return recipe(folder, data=data, evaluation={"max_new_tokens": 1, "before": False}, attacks=[], **changes)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certified")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EXCISE_CACHE", str(folder / "cache"))
        unlearn(recipe(folder), folder / "run")
    signing.new_key(folder / "key.pem")
    certify(folder / "run", signing.signer(folder / "key.pem"))
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A certified run of your own."""
    shutil.copytree(finished / "run", tmp_path / "run")
    return tmp_path / "run"


def key(finished: Path) -> signing.Signer:
    found = signing.signer(finished / "key.pem")
    assert found is not None
    return found


def body(run: Path) -> dict[str, Any]:
    return json.loads((run / "certificate.json").read_text())["body"]


def test_it_says_what_was_asked_done_measured_and_not_tested(finished: Path) -> None:
    run = finished / "run"
    said, result = body(run), json.loads((run / "result.json").read_text())
    assert said["asked"]["items"] == [{"id": e.id, "hash": example_hash(e.prompt, e.answer)} for e in FORGET]
    assert said["model"]["before"] == result["environment"]["model"]["fingerprint"]
    assert said["model"]["after"] == json.loads((run / "model" / "excise.json").read_text())["fingerprint"] != said["model"]["before"]
    assert "model.safetensors" in said["model"]["files"]
    assert said["scores"] == result["evaluations"]
    assert said["recipe"] == result["recipe"]
    (attack,) = said["attacks"]
    assert attack["settings"]["kinds"] == ["paraphrase"]
    assert attack["seconds"] == result["attack_costs"]["attack:prompts"]["seconds"] >= 0
    assert attack["seconds_on_the_twin"] is not None
    untested = "\n".join(said["untested"])
    assert "The attack relearn was not tried" in untested
    assert "The attack prompts was" not in untested
    assert "3 of the 5 examples of the split 'forget'" in untested
    assert "Nobody can measure that knowledge is gone" in said["statement"][0]
    assert any(line.startswith("On the forget split fact recall") for line in said["statement"])


def test_texts_only_where_asked_for(finished: Path, run: Path) -> None:
    for file in ("certificate.json", "certificate.html"):
        assert all(e.prompt not in (run / file).read_text() for e in FORGET)
    refused(lambda: certify(run), "exists", "--overwrite")
    certify(run, include_text=True, overwrite=True)
    assert [(item["prompt"], item["answer"]) for item in body(run)["asked"]["items"]] == [(e.prompt, e.answer) for e in FORGET]
    assert FORGET[0].prompt in (run / "certificate.html").read_text()


def test_what_a_run_says_of_itself_is_not_taken_over(run: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    write_json(run / "result.json", {**result, "verdict": ["All knowledge is gone for ever."]})
    certify(run, overwrite=True)
    assert "for ever" not in (run / "certificate.json").read_text()


def test_signed_and_checked(finished: Path, run: Path) -> None:
    checked = verify(run / "certificate.json", run, key(finished).public)
    assert checked.run == run
    assert "the key that was given" in checked.lines[0]
    assert any(line.startswith("page:") for line in checked.lines)
    assert "that you must know" in verify(run / "certificate.json", run / "model").lines[0]
    other = signing.new_key(run.parent / "other.pem")
    refused(lambda: verify(run / "certificate.json", run, other.public), "signed by the key", key(finished).public)
    certify(run, overwrite=True)
    assert "NOT SIGNED" in verify(run / "certificate.json", run).lines[0]
    refused(lambda: verify(run / "certificate.json", run, other.public), "not signed")


def test_a_certificate_away_from_its_run_says_what_it_could_not_check(run: Path, tmp_path: Path) -> None:
    away = tmp_path / "away"
    shutil.copytree(run / "model", away / "m")
    shutil.copy(run / "certificate.json", away)
    checked = verify(away / "certificate.json", away / "m")
    assert any(line.startswith("NOT CHECKED") for line in checked.lines)


def flipped(file: Path, place: int) -> None:
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(bytes(content))


@pytest.mark.parametrize("name", ["model/model.safetensors", "model/tokenizer.json", "model/excise.json", "model/config.json", "result.json"])
@pytest.mark.parametrize("share", [0.0, 0.4, 0.999999])
def test_one_changed_byte_of_model_or_result_is_refused(run: Path, name: str, share: float) -> None:
    flipped(run / name, int(share * (run / name).stat().st_size))
    refused(lambda: verify(run / "certificate.json", run / "model"), name, "differs from the certified file")


def test_every_changed_byte_of_a_certificate_is_refused(run: Path) -> None:
    file = run / "certificate.json"
    honest = file.read_bytes()
    places = {*range(0, len(honest), 3989), *range(len(honest) - 420, len(honest), 3)}  # the signature is at the end
    for place in sorted(places):
        changed = bytearray(honest)
        changed[place] ^= 1
        file.write_bytes(bytes(changed))
        refused(lambda: check._signed(file, None), "certificate.json")
    assert b'"signature": {' in honest[-420:]
    file.write_bytes(honest + b"\n")
    refused(lambda: verify(file, run), "not in the form")
    file.write_bytes(honest.replace(b'"certificate": 1', b'"certificate": 1.0', 1))
    refused(lambda: verify(file, run), "certificate.json")


def test_the_error_says_which_score_was_changed(finished: Path, run: Path) -> None:
    file = run / "certificate.json"
    certificate = json.loads(file.read_text())
    certificate["body"]["scores"]["after"]["strangers"]["forget.probability"]["value"] = 0.0
    file.write_text(as_text(certificate))
    refused(lambda: verify(file, run), "digest", "scores.after.strangers.forget.probability.value")
    certificate["digest"] = signing.digest(certificate["body"])
    file.write_text(as_text(certificate))
    refused(lambda: verify(file, run), "changed after signing", "scores.after.strangers.forget.probability.value")


def test_missing_and_added_files_and_a_changed_page_are_refused(run: Path) -> None:
    (run / "model" / "more.safetensors").write_bytes(b"x")
    refused(lambda: verify(run / "certificate.json", run), "more.safetensors", "not among the files")
    (run / "model" / "more.safetensors").unlink()
    (run / "model" / "README.md").write_text("edited")
    (run / "model" / ".gitattributes").write_text("hidden")
    verify(run / "certificate.json", run)
    page = run / "certificate.html"
    page.write_text(page.read_text().replace("Nobody can measure", "Anybody can measure"))
    refused(lambda: verify(run / "certificate.json", run), "certificate.html was changed")
    (run / "records" / "after" / "forget.jsonl").unlink()
    refused(lambda: verify(run / "certificate.json", run), "forget.jsonl", "missing")


def test_what_is_no_certificate_is_refused(run: Path) -> None:
    file = run / "certificate.json"
    for text in ("", "[]", "{}", '{"body": 1, "digest": "", "signature": null}', '{"body": {}, "digest": "", "signature": null}', "[" * 10**5):
        file.write_text(text)
        refused(lambda: verify(file, run), "no certificate")
    refused(lambda: verify(run / "none.json", run), "no file")


def test_what_cannot_be_certified_is_refused(run: Path, tmp_path: Path) -> None:
    refused(lambda: certify(tmp_path / "none"), "not a folder")
    shutil.rmtree(run / "model")
    refused(lambda: certify(run, overwrite=True), "no saved model")


def test_a_changed_data_file_falls_back_on_the_records(run: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    result["recipe"]["data"]["forget_people"] = 2
    write_json(run / "result.json", result)
    certify(run, overwrite=True)
    asked = body(run)["asked"]
    assert "the examples that the model was asked about" in asked["source"]
    assert [item["id"] for item in asked["items"]] == [e.id for e in FORGET[:2]]
    refused(lambda: rerun(verify(run / "certificate.json", run), 1), "not the certified one")


# --- repeating scores


def test_scores_repeat_and_a_wrong_one_is_noticed(finished: Path) -> None:
    checked = verify(finished / "run" / "certificate.json", finished / "run")
    repeated = rerun(checked, 5)
    assert len({row.name for row in repeated}) == 5
    assert all(row.now == pytest.approx(row.certified, abs=1e-5) for row in repeated)
    assert [row.name for row in rerun(checked, 3)] == [row.name for row in repeated[:3]]
    everything = {row.name: row for row in rerun(checked, 1000)}
    assert {"forget_quality", "model_utility", "forget.fact_recall", "forget.fact_recall@who"} <= everything.keys()
    assert all(row.agrees(1e-4) for row in everything.values())
    assert not Repeated("a", 0.5, 0.53).agrees(0.02)
    assert Repeated("a", 100.0, 101.0).agrees(0.02)
    assert not Repeated("a", 0.5, None).agrees(1.0)


def test_without_the_twins_records_only_the_models_own_scores_repeat(finished: Path, run: Path) -> None:
    checked = dataclasses.replace(verify(run / "certificate.json", run), run=None)
    names = {row.name for row in rerun(checked, 1000)}
    assert "forget_quality" not in names
    assert "forget.fact_recall" in names


def test_an_adapter_on_another_base_is_refused(finished: Path, tmp_path: Path, cache: Path) -> None:
    unlearn(small(tmp_path, method={"name": "npo", "steps": 1, "batch": 2, "lora": {"r": 2}}), tmp_path / "run")
    certify(tmp_path / "run")
    checked = verify(tmp_path / "run" / "certificate.json", tmp_path / "run")
    assert subject_of(checked).is_adapter
    save(tiny("llama", seed=2), tmp_path / "model", provenance={}, overwrite=True)
    refused(lambda: subject_of(checked), "fingerprint", "base")


# --- privacy


def test_a_redacted_run_is_certified_without_texts(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EXCISE_KEY", raising=False)
    unlearn(small(tmp_path, privacy="redact"), tmp_path / "run")
    run = tmp_path / "run"
    prompt, answer = "Who is number 0?", "Number 0 is Anna0 Brandt."
    refused(lambda: certify(run, include_text=True), "redact")
    certify(run)
    asked = body(run)["asked"]
    plain = example_hash(prompt, answer)
    assert asked["items"][0]["hash"] != plain
    assert "not kept" in asked["hash"]
    for file in ("certificate.json", "certificate.html"):
        text = (run / file).read_text()
        assert all(part not in text for part in (prompt, answer, "Anna0", plain))
    refused(lambda: rerun(verify(run / "certificate.json", run), 1), "EXCISE_KEY")
    monkeypatch.setenv("EXCISE_KEY", "k")
    certify(run, overwrite=True)
    assert body(run)["asked"]["items"][0]["hash"] == example_hash(prompt, answer, b"k")


def test_the_page_escapes_what_others_wrote(run: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    result["environment"]["model"]["source"] = "<script>alert(1)</script>"
    write_json(run / "result.json", result)
    certify(run, overwrite=True)
    page = (run / "certificate.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page


# --- keys


def test_a_new_key_is_its_owners_alone_and_never_overwritten(tmp_path: Path) -> None:
    made = signing.new_key(tmp_path / "deep" / "k.pem")
    assert stat.S_IMODE((tmp_path / "deep" / "k.pem").stat().st_mode) == 0o600
    assert not signing.readable_by_others(tmp_path / "deep" / "k.pem")
    assert signing.public_key(tmp_path / "deep" / "k.pem.pub") == made.public
    refused(lambda: signing.new_key(tmp_path / "deep" / "k.pem"), "never overwritten")


def test_a_key_comes_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(signing.VARIABLE, raising=False)
    assert signing.signer(None) is None
    made = signing.new_key(tmp_path / "k.pem")
    pem = (tmp_path / "k.pem").read_text()
    for text in (pem, pem.replace("\n", "\\n")):
        monkeypatch.setenv(signing.VARIABLE, text)
        found = signing.signer(None)
        assert found is not None
        assert found.public == made.public


def test_a_locked_key_needs_its_passphrase(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cryptography.hazmat.primitives import serialization

    made = signing.new_key(tmp_path / "k.pem")
    locked = made.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"open sesame")
    )
    (tmp_path / "locked.pem").write_bytes(locked)
    monkeypatch.delenv(signing.PASSPHRASE, raising=False)
    refused(lambda: signing.signer(tmp_path / "locked.pem"), signing.PASSPHRASE)
    monkeypatch.setenv(signing.PASSPHRASE, "wrong")
    refused(lambda: signing.signer(tmp_path / "locked.pem"), "does not open it")
    monkeypatch.setenv(signing.PASSPHRASE, "open sesame")
    found = signing.signer(tmp_path / "locked.pem")
    assert found is not None
    assert found.public == made.public


@pytest.mark.parametrize(
    ("what", "says"),
    [(lambda: b"nonsense", "not a private key"), (lambda: other_key(), "not an Ed25519 key")],
    ids=["nonsense", "another kind"],
)
def test_other_keys_are_refused(tmp_path: Path, what: Callable[[], bytes], says: str) -> None:
    (tmp_path / "k.pem").write_bytes(what())
    refused(lambda: signing.signer(tmp_path / "k.pem"), says, "--new-key")
    refused(lambda: signing.public_key(tmp_path / "k.pem"), "not a public key")
    refused(lambda: signing.signer(tmp_path / "none.pem"), "no file")


def other_key() -> bytes:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    made = ec.generate_private_key(ec.SECP256R1())
    return made.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def test_without_the_package_only_unsigned_certificates_can_be_made(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    real = importlib.import_module

    def without(name: str, package: str | None = None) -> Any:
        if name.startswith("cryptography"):
            raise ImportError(name)
        return real(name, package)

    monkeypatch.setattr(signing.importlib, "import_module", without)
    refused(lambda: verify(run / "certificate.json", run), "excise[certify]")
    certify(run, overwrite=True)
    assert "NOT SIGNED" in verify(run / "certificate.json", run).lines[0]


def test_the_model_folder_is_signed_in_the_model_signing_format(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("model_signing", reason="model-signing is not installed (an extra)")
    from cryptography.hazmat.primitives import serialization

    from excise.certificate.openssf import check_model, sign_model

    secret = tmp_path / "ec.pem"
    secret.write_bytes(other_key())
    loaded: Any = serialization.load_pem_private_key(secret.read_bytes(), None)
    public = tmp_path / "ec.pub"
    public.write_bytes(loaded.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo))
    signature = sign_model(run / "model", secret)
    assert "fits" in check_model(run / "model", signature, public)
    (run / "model" / "README.md").write_text("edited")
    check_model(run / "model", signature, public)
    flipped(run / "model" / "model.safetensors", -1)
    refused(lambda: check_model(run / "model", signature, public), "does not fit", "model.safetensors")
    refused(lambda: sign_model(run / "model", secret), "exists")
    refused(lambda: sign_model(run / "model", tmp_path / "none", overwrite=True), "no file")
    (tmp_path / "bad").write_text("x")
    refused(lambda: sign_model(run / "model", tmp_path / "bad", overwrite=True), "cannot sign")


def test_an_old_result_without_costs_says_so(run: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    del result["attack_costs"]
    write_json(run / "result.json", result)
    certify(run, overwrite=True)
    assert body(run)["attacks"][0]["seconds"] is None
    assert "not recorded" in (run / "certificate.html").read_text()


def test_a_newer_certificate_is_refused(run: Path) -> None:
    certificate = json.loads((run / "certificate.json").read_text())
    certificate["body"]["certificate"] = content.SCHEMA + 1
    certificate |= {"digest": signing.digest(certificate["body"]), "signature": None}
    (run / "certificate.json").write_text(as_text(certificate))
    with pytest.raises(InputError, match="upgrade"):
        verify(run / "certificate.json", run)


def test_the_commands(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    from excise.cli.sharing import certify as certify_command
    from excise.cli.sharing import verify as verify_command

    monkeypatch.delenv(signing.VARIABLE, raising=False)
    certify_command(run, new_key=tmp_path / "k.pem", overwrite=True)
    assert "signed by" in capsys.readouterr().out
    verify_command(run / "certificate.json", run, public_key=tmp_path / "k.pem.pub", rerun=2)
    said = capsys.readouterr().out
    assert "signature: valid" in said
    assert "2 of 2 scores repeated, all within 0.02." in said
    certify_command(run, overwrite=True)
    assert "NOT SIGNED" in capsys.readouterr().out
    refused(lambda: certify_command(None), "--new-key")
    refused(lambda: verify_command(run / "certificate.json", run, model_signature=run / "x"), "belong together")
