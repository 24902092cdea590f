"""Captured CUDA graphs and Triton kernels behind the core's own protocols. The core never imports this package."""
