"""How a matrix instruction (MFMA) adds: a registry of accumulation models that twin and simulator share.

The hardware's internal order and width are not documented for CDNA4, so the rule is pluggable; the spread between the
models is the honest uncertainty of a result.

    >>> from k3lab.hardware import mfma
    >>> mfma.get("fused").chain(a, b)  # a [n, ..., M, K], b [n, ..., N, K] -> [..., M, N]
"""

from __future__ import annotations

from k3lab.errors import BadInput
from k3lab.hardware.mfma.cdna3 import cdna3
from k3lab.hardware.mfma.fused import fused
from k3lab.hardware.mfma.model import MfmaModel, TileSums
from k3lab.hardware.mfma.stepwise import pairwise, sequential
from k3lab.hardware.mfma.tiles import proven_tiles

__all__ = ["MODELS", "MfmaModel", "TileSums", "get"]

MODELS: dict[str, MfmaModel] = {
    model.name: model
    for model in (
        MfmaModel(
            "fused",
            "The exact sum of all products and C, rounded once: assumed for CDNA4.",
            "fused",
            fused,
            proven_tiles,
        ),
        MfmaModel(
            "sequential",
            "From C, the rounded products are added one by one in slot order: assumed for CDNA4.",
            "sequential",
            sequential,
        ),
        MfmaModel(
            "pairwise",
            "A balanced binary tree over the rounded products in slot order, then C: assumed for CDNA4.",
            "pairwise",
            pairwise,
        ),
        MfmaModel(
            "cdna3",
            "CDNA3's blocks of 8 truncated products (MMA-Sim, arXiv 2511.10909), assumed for CDNA4;"
            " `fused` for the scaled MFMA.",
            "fused",
            cdna3,
        ),
    )
}


def get(name: str) -> MfmaModel:
    """The accumulation model of that name.

    Raises:
        BadInput: when there is none; names those there are.
    """
    try:
        return MODELS[name]
    except KeyError:
        raise BadInput(f"MFMA model: expected one of {', '.join(MODELS)}, got {name!r}.") from None
