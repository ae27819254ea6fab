"""The notebook of the docs runs from its first cell to its last, and shows what it says it shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from conftest import REPOSITORY

NOTEBOOK = REPOSITORY / "docs" / "notebook.ipynb"


def test_the_notebook_is_kept_with_what_it_printed() -> None:
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    code = [cell for cell in cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert not any(output.output_type == "error" for cell in code for output in cell.outputs)


@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, smollm2_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    notebook: Any = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=900, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}).execute()
    said = "".join(output.get("text", "") for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs)
    row = re.search(r"forget\.fact_recall +([\d.]+) \[.*?\] +([\d.]+) \[", said)
    assert row is not None, said
    assert float(row[1]) > 0.7, "it was taught"
    assert float(row[2]) < float(row[1]) - 0.3, "and forgot"
    assert (tmp_path / "run" / "report.html").exists()
