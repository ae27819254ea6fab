"""`excise judge-agreement`: what it prints and writes, what it remembers, and one clear line for bad input."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from excise import cli
from excise.evaluation.records import Record
from excise.evaluation.store import write_records
from fake_server import Act, serving

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def excise(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], cache: Path) -> Call:
    """Runs the command in this process: exit code, standard output, standard error."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["excise", "judge-agreement", *map(str, arguments)])
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    def record(id: str, generation: str | None) -> Record:
        return Record(id, f"Who is {id}?", "Anna Brandt", label="who", generation=generation)

    records = {
        "forget": [record("a", "It is [Anna] Brandt."), record("b", "It is Bo Karr."), record("c", "")],
        "retain": [record("d", "Anna Brandt"), record("e", "anna brandt")],
        "holdout": [record("f", "Bo Karr")],
    }
    for phase in ("before", "after"):
        write_records(tmp_path / "run", phase, records)
    write_records(tmp_path / "redacted", "after", records, redact=True)
    return tmp_path / "run"


def says_yes_to_all(number: int, body: object) -> Act:
    return Act()


def test_two_judges_on_a_run(excise: Call, run_folder: Path, tmp_path: Path, cache: Path) -> None:
    with serving(says_yes_to_all) as fake:
        settings = ["--set", f"judges.endpoint.url={fake.url}", "--set", "judges.endpoint.model=m", "--set", "judges.endpoint.retries=0"]
        code, out, err = excise(run_folder, "--judges", "contains", "endpoint", "--json", tmp_path / "a.json", *settings)
        assert code == 0, err
        assert len(fake.asked) == 4, "forget and retain of the phase after; the empty answer is not asked about"
        again, same, _ = excise(run_folder, "--judges", "contains", "endpoint", *settings)
        assert (again, same) == (0, out)
        assert len(fake.asked) == 4, "verdicts are remembered"
        assert excise(run_folder, "--judges", "contains", "endpoint", "--no-cache", *settings)[1] == out
        assert len(fake.asked) == 8
    assert "contains and endpoint on 'truth': n = 5 decided by both" in out
    assert "agreement  0.800  [" in out
    assert "undecided  contains 0, endpoint 0, both 0" in out
    assert "1 disagreements:" in out
    for line in (
        "question   Who is b?",
        "truth      Anna Brandt",
        "answer     It is Bo Karr.",
        "contains   no (0.00, its words do not stand there)",
    ):
        assert line in out
    numbers = json.loads((tmp_path / "a.json").read_text())
    assert numbers["confusion"] == [[3, 0], [1, 1]]
    # agreement .8; chance (3/5)(4/5) + (2/5)(1/5) = .56; kappa .24/.44
    assert numbers["kappa"] == pytest.approx(0.24 / 0.44)
    assert sorted(path.name.split("-")[0] for path in (cache / "verdicts").iterdir()) == ["contains", "endpoint"]


def test_a_file_a_phase_a_split_and_a_limit(excise: Call, run_folder: Path) -> None:
    with serving(says_yes_to_all) as fake:
        settings = ["--judges", "endpoint", "contains", "--set", f"judges.endpoint={{url: '{fake.url}', model: m}}"]
        assert "n = 3" in excise(run_folder / "records" / "after" / "forget.jsonl", *settings)[1]
        assert "n = 2" in excise(run_folder / "records" / "after" / "forget.jsonl", *settings, "--limit", "2")[1]
        assert "n = 1" in excise(run_folder, *settings, "--phase", "before", "--split", "holdout")[1]
        assert "n = 2" in excise(run_folder, *settings, "--limit", "1")[1]


def test_kappa_that_is_not_there_is_explained(excise: Call, run_folder: Path) -> None:
    with serving(says_yes_to_all) as fake:
        settings = ["--judges", "endpoint", "contains", "--set", f"judges.endpoint={{url: '{fake.url}', model: m}}"]
        _, out, _ = excise(run_folder, *settings, "--split", "retain")
    assert "kappa      unavailable: both judges always say the same" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{run}", "--judges", "contains", "contains"], "names 'contains' twice"),
        (["{run}", "--judges", "contains", "contians"], "unknown judge 'contians': did you mean 'contains'?"),
        (
            ["{run}", "--judges", "contains", "model", "--set", "judges.contains.recal=1"],
            "unknown setting judges.contains.recal: did you mean",
        ),
        (["{run}", "--judges", "contains", "model", "--set", "judges.endpoint.url=x"], "unknown setting judges.endpoint"),
        (["{run}", "--judges", "contains", "model", "--set", "contains.recall=1"], "unknown setting contains"),
        (["{run}", "--judges", "contains", "model", "--set", "judges=1"], "judges.NAME.field=value"),
        (["{run}", "--judges", "contains", "model", "--set", "judges.contains.recall=no"], "judges.contains.recall"),
        (["{run}", "--judges", "contains", "endpoint"], "judges.endpoint.url: field required"),
        (["{run}/absent", "--judges", "contains", "model"], "there is no file or run folder"),
        (["{run}", "--judges", "contains", "model", "--phase", "aftr"], "did you mean 'after'?"),
        (["{run}", "--judges", "contains", "model", "--split", "forgte"], "did you mean 'forget'?"),
        (["{run}", "--judges", "contains", "model", "--limit", "0"], "--limit is 0"),
        (["{run}/records/after/forget.jsonl", "--judges", "contains", "model", "--phase", "after"], "go with a run folder"),
        (["{run}/../redacted", "--judges", "contains", "model"], "is redacted"),
        (["{run}/../redacted/records/after/forget.jsonl", "--judges", "contains", "model"], "is redacted"),
        (["{run}/../cut.jsonl", "--judges", "contains", "model"], "cut.jsonl, line 3: not valid JSON"),
        (["{run}/../mute.jsonl", "--judges", "contains", "model"], "none of the 1 records has a generation"),
    ],
)
def test_bad_input_is_one_line(excise: Call, run_folder: Path, arguments: list[str], words: str) -> None:
    whole = (run_folder / "records" / "after" / "forget.jsonl").read_text()
    (run_folder.parent / "cut.jsonl").write_text(whole[:-20])
    (run_folder.parent / "mute.jsonl").write_text(json.dumps(Record("a", "q", "a").to_json()) + "\n")
    code, out, err = excise(*(argument.replace("{run}", str(run_folder)) for argument in arguments))
    assert (code, out) == (2, "")
    (line,) = err.strip().splitlines()
    assert line.startswith("excise: ")
    assert words in line
