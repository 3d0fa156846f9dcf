"""Writes what a run exposed to a safetensors file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from k3lab.files import write_bytes

if TYPE_CHECKING:
    from k3lab.backends import Run


def save_run(run: Run, path: Path) -> Path:
    """Write every exposed tensor as the run holds it (fp32 or float64) with its provenance; further ranks as `rank1/x`.

    Raises:
        BadInput: when the file cannot be written; nothing is left behind.
    """
    import safetensors.torch

    tensors = {
        f"rank{rank}/{name}" if rank else name: value.detach().cpu().clone().contiguous()
        for name in run.values
        for rank, value in run.distinct(name)
    }
    data = safetensors.torch.save(tensors, {"k3lab_run": json.dumps(dict(run.provenance))})
    return write_bytes(path, data)
