"""A deletion request on the demo's taught model: the questions about some of its people, carried out by `excise forget`.

    python -m studies.requests [--taught FOLDER] --out DIR [--people 2] [--set epochs=12]

Writes DIR/questions.jsonl (five questions about each person, with the marked facts and another wording) and the run folder DIR/run.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from excise.data.benchmarks.strangers import Strangers
from excise.files import write_lines
from excise.loading import ModelSpec
from excise.requests.build import Asked
from excise.requests.forget import Settings, forget, sentence
from excise.settings import overridden
from studies.world import add_taught, folder, questions


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add_taught(parser)
    parser.add_argument("--people", type=int, default=2)
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    taught = folder(arguments.taught)
    forgotten = Strangers(forget_people=4, retain_people=16, holdout_people=2)().split("forget")
    chosen = list(dict.fromkeys(example.group for example in forgotten))[: arguments.people]
    arguments.out.mkdir(parents=True)
    file = arguments.out / "questions.jsonl"
    write_lines(file, questions(forgotten, chosen))
    begun = time.perf_counter()
    model = ModelSpec(path=str(taught / "target"), system="")
    found = forget(model, Asked(questions=(str(file),)), arguments.out / "run", Settings(method=overridden({}, arguments.set)))
    for line in found["how"]:
        print(line)
    for name, values in found["scores"].items():
        print(f"{name}: {values['before']:.3f} -> {values['after']:.3f}")
    print(f"{sentence(found)}\n{time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    main()
