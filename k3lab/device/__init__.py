"""FlyDSL primitives that the kernels share. Importing these modules needs flydsl; nothing else in k3lab imports them.

Kernel code carries no `from __future__ import annotations`: FlyDSL reads annotations as objects.
"""
