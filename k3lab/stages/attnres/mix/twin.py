"""mix: the softmax mix of the raw sources, then the layer norm, fp32 from end to end."""

from __future__ import annotations

from k3lab.arith import Arith
from k3lab.arith.orders import FROM_ZERO
from k3lab.stages.attnres.slices import over_slices, slice_sums
from k3lab.stages.tensors import Key, Tensors, Written


def stage_mix(a: Arith, t: Tensors, key: Key) -> Written:
    """x = norm(sum_s e_s v_s / den) in_nw.

    vals: [S, NS, HIDDEN]; WGT: [S, NS + 1]; in_nw: [HIDDEN] bf16. Writes MSQ [NA, S] (each slice's sum of mixed^2) and
    x [S, HIDDEN] bf16.
    """
    e, den = t.WGT[:, :-1], t.WGT[:, -1:]
    mixed = a.option("mix.mixed", a.sum((e[:, :, None] * t.vals).movedim(1, -1), FROM_ZERO) / den)
    msq = slice_sums(a, mixed * mixed).T
    r = a.rms_scale(over_slices(a, msq), key.geometry.hidden, key.out_eps)
    normed = a.option("mix.normed", mixed * r[:, None])
    x = a.round("mix.x", normed * t.in_nw, "bf16")
    return {"MSQ": msq, "x": x}
