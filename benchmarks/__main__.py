"""Every benchmark, one after the other, in processes of their own.

    python -m benchmarks [NAME ...] [--json FOLDER]      (or make bench)

Each prints its table; with --json its numbers go to FOLDER/<name>.json. A new benchmark is a module of this package with a ``main``
that knows ``--json``, and one line in the table below.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

BENCHMARKS: dict[str, tuple[str, list[str]]] = {
    "training": ("benchmarks.training", []),
    "large-vocabulary": ("benchmarks.training", ["--models", "256k", "--methods", "npo", "--forms", "full"]),
    "larger": ("benchmarks.training", ["--models", "0.5b", "--methods", "npo", "--forms", "full", "lora", "--precisions", "bfloat16"]),
    "step": ("benchmarks.step", []),
    "growth": ("benchmarks.growth", []),
    "estimate": ("benchmarks.estimate", []),
    "projection": ("benchmarks.project", []),
    "factorisation": ("benchmarks.factorise", []),
}
"""Name -> module and what it is called with. ``benchmarks.evaluate`` and ``benchmarks.judges`` need data that are not in the repository."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", choices=[[], *BENCHMARKS], help="which; none: all")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.json:
        arguments.json.mkdir(parents=True, exist_ok=True)
    failed: list[str] = []
    for name in arguments.names or BENCHMARKS:
        module, settings = BENCHMARKS[name]
        print(f"\n== {name}: python -m {module} {' '.join(settings)}", flush=True)
        output = ["--json", str(arguments.json / f"{name}.json")] if arguments.json else []
        if subprocess.run([sys.executable, "-m", module, *settings, *output], check=False).returncode:
            failed.append(name)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
