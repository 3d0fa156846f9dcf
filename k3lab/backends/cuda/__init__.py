"""NVIDIA GPUs as a backend: the kernels FlyDSL lowers for gfx950, translated to CUDA C++.

`emit` makes the source of a lowered kernel, `compiler` a binary of it, `device` launches that. `hostbuild` runs the
same source on this machine's processor, a fiber a thread: the tests' way to check a translation without a GPU.
"""
