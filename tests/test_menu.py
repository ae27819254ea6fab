"""The menu after a run: in a pseudo-terminal as a person sees it, and nowhere else."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

import report_fixture
from conftest import REPOSITORY, adapted, tiny
from excise import menu
from excise.loading import load
from excise.saving import save

WAIT = 240.0


class Terminal:
    """A program in a pseudo-terminal, and what it wrote so far."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], folder: Path) -> None:
        ours, theirs = pty.openpty()
        self.end, self.text, self.read = ours, "", 0
        self.process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=folder, close_fds=True)
        os.close(theirs)

    def until(self, words: str) -> str:
        """Reads until these words appear behind those that were waited for before; returns what stands up to them."""
        begun, start = time.monotonic(), self.read
        while words not in self.text[start:]:
            assert time.monotonic() - begun < WAIT, self.text
            if select.select([self.end], [], [], 0.2)[0]:
                try:
                    self.text += os.read(self.end, 65536).decode(errors="replace")
                except OSError:
                    break
            elif self.process.poll() is not None:
                break
        assert words in self.text[start:], self.text
        self.read = self.text.index(words, start) + len(words)
        return self.text[start : self.read]

    def type(self, line: str) -> None:
        os.write(self.end, f"{line}\n".encode())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A recipe with a tiny model and four questions."""
    rows = [{"question": f"Who is number {i}?", "answer": f"Number {i} is Anna{i} Brandt."} for i in range(4)]
    for name, part in (("f", rows[:2]), ("r", rows[2:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    save(tiny("llama"), tmp_path / "model", provenance={})
    settings = {
        "model": "model",
        "data": {"name": "jsonl", "forget": "f.jsonl", "retain": "r.jsonl"},
        "method": {"name": "npo", "steps": 1, "batch": 2, "lora": {"r": 2}},
        "evaluation": {"max_new_tokens": 2, "before": False},
    }
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(settings))
    return tmp_path


def environment(folder: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key not in ("CI", "HF_TOKEN")}
    return {**kept, "PYTHONPATH": str(REPOSITORY / "src"), "EXCISE_CACHE": str(folder / "cache"), "TERM": "xterm", "BROWSER": "echo opened %s"}


def test_a_person_reads_chats_merges_and_leaves(folder: Path) -> None:
    terminal = Terminal([sys.executable, "-m", "excise", "run", "recipe.yaml", "--out", "out"], environment(folder), folder)
    first = terminal.until("[q] quit")
    assert "report: out/report.html" in first
    for label in ("open the report", "chat with the model", "save merged", "export GGUF", "push to the hub"):
        assert label in first
    terminal.until("> ")
    terminal.type("x")
    terminal.until("please type one of")
    terminal.type("r")
    terminal.until("opened file://")
    terminal.until("> ")
    terminal.type("m")
    terminal.until("folder [")
    terminal.type("")
    terminal.until("merged: out/merged")
    terminal.type("p")
    terminal.until("owner/name")
    terminal.type("anna/forgetful")
    terminal.until("--base OWNER/NAME")
    terminal.type("c")
    terminal.until("you> ")
    terminal.type("Who is number 0?")
    terminal.until("you> ")
    terminal.type("")
    terminal.until("[q] quit")
    terminal.type("q")
    assert terminal.process.wait(timeout=WAIT) == 0
    assert not load(folder / "out" / "merged").is_adapter


def test_gguf_from_the_menu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    save(tiny("llama"), tmp_path / "model", provenance={})
    answers = iter(["g", "", "no_such", "g", "", "f32", "m", ""])
    monkeypatch.setattr("builtins.input", lambda prompt: next(answers))
    menu.offer(tmp_path)
    said = capsys.readouterr().out
    assert "--type no_such" in said
    assert "whole model already" in said
    assert (tmp_path / "model.gguf").is_file()


def test_the_end_of_the_input_leaves_the_menu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    menu.offer(report_fixture.write_run(tmp_path / "run"))


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_no_menu_where_nobody_sits(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CI", "TERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "stdin", Tty())
    monkeypatch.setattr(sys, "stdout", Tty())
    assert menu.interactive()
    assert not menu.interactive(False)
    monkeypatch.setenv("CI", "true")
    assert not menu.interactive()
    monkeypatch.setenv("CI", "")
    monkeypatch.setenv("TERM", "dumb")
    assert not menu.interactive()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    assert not menu.interactive()


def test_a_chat_remembers_what_was_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    save(adapted(tiny("llama")), tmp_path / "model", provenance={})
    heard: list[tuple[tuple[str, str], ...]] = []

    def answer(subject: object, question: str, history: tuple[tuple[str, str], ...]) -> str:
        heard.append(history)
        return f"re: {question}"

    questions = iter(["one", "two", ""])
    monkeypatch.setattr("builtins.input", lambda prompt: next(questions))
    monkeypatch.setattr(menu, "_answer", answer)
    menu.chat(tmp_path)
    assert heard == [(), (("user", "one"), ("assistant", "re: one"))]
