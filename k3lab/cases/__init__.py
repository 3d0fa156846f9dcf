"""Cases: all inputs of a kernel launch and its key, made from named distributions, checked, saved and loaded."""

from k3lab.cases.case import Case
from k3lab.cases.make import DISTRIBUTIONS, make_case
from k3lab.cases.store import load, save

__all__ = ["DISTRIBUTIONS", "Case", "load", "make_case", "save"]
