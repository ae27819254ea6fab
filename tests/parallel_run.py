"""A run that ends after a step as if it had been killed: started by torchrun.

torchrun ... parallel_run.py RECIPE OUT kill-after STEP
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from excise.parallel import ranks
from excise.recipe import Recipe
from excise.run import unlearn
from excise.stages import loop


def main() -> None:
    torch.set_num_threads(1)
    last = int(sys.argv[4])
    done = loop.Loop._one_step

    def stepping(self: loop.Loop) -> None:
        done(self)
        if self.step == last:
            ranks.wait()
            print("killed", file=sys.stderr, flush=True)
            os._exit(0)  # nothing is tidied up, as after SIGKILL, but torchrun is content

    loop.Loop._one_step = stepping
    unlearn(Recipe.load(sys.argv[1]), Path(sys.argv[2]))


if __name__ == "__main__":
    main()
