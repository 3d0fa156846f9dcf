"""One folder a stage: `twin.py`, the stage in eager torch, beside `kernel.py`, the same stage in FlyDSL.

A twin is a plain function of (a, t, key): `a` the arithmetic, `t` the tensors the stage reads, `key` the build key. It
returns what the stage writes, by name. Regions are named in capitals, as in the kernel's scratch layout.
"""
