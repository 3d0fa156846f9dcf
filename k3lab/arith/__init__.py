"""Arithmetic a twin is written in: one `Arith` object, three makes (kernel order, torch order, float64 oracle)."""

from k3lab.arith.base import Arith
from k3lab.arith.makes import KernelOrder, Oracle, TorchOrder, make

__all__ = ["Arith", "KernelOrder", "Oracle", "TorchOrder", "make"]
