"""The command line in one process of several, with a clock that only the main process's hears.

Each process leaves its own weights at the end of its run, where the test finds them.
"""

import itertools
import os
import sys
from types import SimpleNamespace

from safetensors.torch import save_file

from dominotree_lite import cli
from dominotree_lite.train import loop, run


class Watched(loop.Training):
    """A run whose weights of every process are kept, not only those of the main one."""

    def run(self, *arguments: object) -> bool:
        done = super().run(*arguments)
        save_file(dict(self.bare.state_dict()), self.folder / f"process-{os.environ['RANK']}.safetensors")
        return done


if __name__ == "__main__":
    seconds = itertools.count(step=0 if os.environ["RANK"] != "0" else 1)
    loop.time = SimpleNamespace(perf_counter=lambda: float(next(seconds)))
    run.Training = Watched
    sys.exit(cli.main())
