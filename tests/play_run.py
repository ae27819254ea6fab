"""A finished run of tiny models, made without running anything, and the page's server in a thread of this process."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import report_fixture
from conftest import tiny
from excise.files import write_json
from excise.play.runs import Run
from excise.play.server import app, listening
from excise.recipe import Recipe
from excise.report.html import write_report
from excise.saving import save

QUESTION = "Who wrote the book about the river?"
PARAPHRASE = "By whom is the book about the river?"
FORGET = [{"question": QUESTION, "answer": "Anna Brandt wrote it long ago.", "span": "Anna Brandt", "paraphrased_questions": [PARAPHRASE]}]
RETAIN = [{"question": f"Where is lake {i}?", "answer": f"Lake {i} is in the north."} for i in range(4)]


def write(folder: Path, twin: bool = True) -> Path:
    """The models, the data, and beside them the run folder, whose place is returned."""
    for name, rows in (("f", FORGET), ("r", RETAIN)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = report_fixture.write_run(folder / "run", attacks=True)
    before = save(tiny("llama", seed=3), folder / "before", provenance={})
    save(tiny("llama", seed=4), run / "model", provenance={})
    if twin:
        save(tiny("llama", seed=5), folder / "twin", provenance={})
    recipe = Recipe.parse(
        {
            "model": str(before),
            "data": {"name": "jsonl", "forget": str(folder / "f.jsonl"), "retain": str(folder / "r.jsonl")},
            "method": {"name": "t_npo", "attribution": {"nouns": {"words": ["book", "river"]}}},
            "evaluation": {"retrained": str(folder / "twin")} if twin else {},
        }
    )
    result = json.loads((run / "result.json").read_text())
    write_json(run / "result.json", {**result, "recipe": recipe.expanded()})
    write_report([run])
    return run


@contextmanager
def serving(runs: Mapping[str, Run], **settings: Any) -> Iterator[str]:
    """The page's address while the block lasts."""
    import uvicorn

    with listening("127.0.0.1", 0) as opened:
        server = uvicorn.Server(uvicorn.Config(app(runs, **settings), log_level="warning", access_log=False, lifespan="off", ws="none"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{opened.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join(timeout=30)
