"""A run of tensor operations on fixed buffers: captured once and replayed on a GPU, simply run on a CPU.

What is recorded must read and write the same tensors each time and must not look at a value. It knows nothing of
trees or models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

WARM_UP = 3  # runs before a capture, in which libraries allocate what they need and Triton compiles
Result = TypeVar("Result")


def record(
    run: Callable[[], Result], device: torch.device, pool: Any = None, generators: Sequence[torch.Generator] = ()
) -> Callable[[], Result]:
    """`run` as one captured graph; `run` itself where the device is not a GPU.

    On a GPU a call of the result returns the same tensors each time, with new contents, and waits for nothing. The
    runs before the capture are real: what they leave in the buffers must be overwritten by whoever uses them.

    Args:
        pool: a memory pool of `torch.cuda.graph_pool_handle`, shared by graphs that never run at the same time and
            that read nothing another one returned.
        generators: those that `run` draws from.
    """
    if device.type != "cuda":
        return run
    with torch.cuda.device(device), torch.inference_mode():
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                run()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        for generator in generators:
            graph.register_generator_state(generator)
        with torch.cuda.graph(graph, pool=pool):
            kept = run()

    def replay() -> Result:
        graph.replay()
        return kept

    return replay


def host_like(tensor: Tensor) -> Tensor:
    """A buffer on the host that a graph can copy `tensor` to, or from, without anyone waiting."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)


def wait(device: torch.device) -> None:
    """Let the host wait for all that was asked of the device so far."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()
