"""The command line: thin, one module for each group of commands."""

from __future__ import annotations

import logging
import sys

import typer

from excise.cli import building, changing, concepts, reading, requests, sae, scoring, sharing, sweeping
from excise.cli.options import app

__all__ = ["app", "building", "changing", "concepts", "main", "reading", "requests", "sae", "scoring", "sharing", "sweeping"]


def main() -> None:
    """Entry point: exit code 0 done, 2 the input was wrong (one line, no traceback), 1 anything else."""
    from excise.errors import InputError

    for name in ("torchao", "torch.utils._pytree"):  # PEFT imports torchao where it is installed, which warns of other devices' kernels
        logging.getLogger(name).setLevel(logging.ERROR)
    try:
        app(standalone_mode=False)
    except InputError as error:
        if _writes():
            print(f"excise: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    except typer.Exit as stop:
        sys.exit(stop.exit_code)
    except typer.Abort:
        sys.exit(130)
    except KeyboardInterrupt:
        print("excise: interrupted; go on with --resume where a run was given --out", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        code = getattr(error, "exit_code", None)
        if code is None:
            raise
        print(f"excise: {' '.join(error.format_message().split())}", file=sys.stderr)  # type: ignore[attr-defined]
        sys.exit(int(code))
    finally:
        if ranks := sys.modules.get("excise.parallel.ranks"):
            ranks.stop()


def _writes() -> bool:
    """Whether this is the process, of several, that speaks."""
    ranks = sys.modules.get("excise.parallel.ranks")
    return ranks is None or ranks.is_main()
