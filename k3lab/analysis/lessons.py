"""Lessons others paid for, each a small input with its right value: tested, and told in a notebook.

A `Lesson` computes what this code makes of its input; `want` is the right answer, `wrong` what the mistake gives.
Sources: public issues and pull requests of vLLM, sglang and aiter, the OCP MX v1.0 and OFP8 texts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from k3lab import formats
from k3lab.arith import KernelOrder
from k3lab.formats import mx
from k3lab.geometry import HEAD_DIM, NOPE, Geometry
from k3lab.launches import K1, K2A, M1A
from k3lab.rounding import Probe
from k3lab.stages.attnres.slice.twin import stage_slice
from k3lab.stages.kda.norm.twin import kda_norm
from k3lab.stages.kda.recur.twin import kda_recur
from k3lab.stages.mla.uk.twin import stage_uk
from k3lab.stages.oproj.reduce.twin import stage_reduce
from k3lab.stages.tensors import Tensors
from k3lab.words import DISARMED, SENTINEL, disarmed

MINI = Geometry.mini()


@dataclass(frozen=True)
class Lesson:
    """One lesson.

    Attributes:
        story: what went wrong, and where, in a sentence or two.
        got: computes the answer of this code.
        want: the right answer.
        wrong: the answer of the mistake (None where the mistake hangs or is undefined).
    """

    name: str
    story: str
    got: Callable[[], Any]
    want: Any
    wrong: Any


def _given(**values: torch.Tensor) -> Tensors:
    return Tensors(values, values)


def e2m1_ties() -> list[float]:
    """E2M1 of the seven midpoints between its values."""
    ties = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0], np.float32)
    return [float(v) for v in formats.E2M1.round(ties)]


def scale_below_a_power_of_two() -> int:
    """E8M0 code, `floor` rule, of a block whose amax is the fp32 just below 8."""
    block = np.full(mx.BLOCK, np.nextafter(np.float32(8), np.float32(0)))
    return int(mx.block_scale(block, "floor")[0])


def exponent_of_a_sixth() -> list[int]:
    """E8M0 codes of amax 7, which 6 x 2^0 cannot hold: `rceil` (exponent of amax / 6, up) and `floor`."""
    block = np.full(mx.BLOCK, np.float32(7))
    return [int(mx.block_scale(block, rule)[0]) for rule in ("rceil", "floor")]


def e8m0_ends() -> list[float]:
    """What the codes 0 and 255 stand for."""
    return [float(v) for v in formats.E8M0.decode(np.array([0, 255], np.uint8))]


def zero_block() -> list[int]:
    """Scale byte, and largest code, of an all-zero block by the kernel's rule."""
    codes, scales = mx.quantise(np.zeros(mx.BLOCK, np.float32), "even")
    return [int(scales[0]), int(codes.max())]


def fnuz_minus_zero() -> float:
    """What the byte 0x80 stands for in gfx942's e4m3fnuz."""
    return float(formats.FP8_E4M3FNUZ.decode(np.array([0x80], np.uint8))[0])


def nan_in_q_nope() -> bool:
    """Whether a head with a NaN in q_nope still shows it after W_UK."""
    q_nope = torch.ones(1, MINI.heads, NOPE)
    q_nope[0, 0, 0] = torch.nan
    t = _given(
        QN=q_nope,
        q_pe=torch.zeros(1, MINI.heads, 64),
        w_k=torch.full((MINI.heads, MINI.kv_lora, NOPE // 2), 0x22, dtype=torch.uint8),
        w_k_scale=torch.full((MINI.heads, MINI.kv_lora, NOPE // mx.BLOCK), 127, dtype=torch.uint8),
    )
    return bool(stage_uk(KernelOrder("m1a"), t, M1A.key(MINI, tokens=1, nblocks=1))["query"].isnan().any())


def residual_drift(mode: str = "nearest", steps: int = 72) -> float:
    """Signed mean, in percent, of what `steps` additions to a bf16 residual stream at 1 change against fp32 sums.

    Truncation loses half an ulp a step: 72 x 2^-8 (below 1 half of that) makes 14 to 28 percent.
    """
    rng = np.random.default_rng(0)
    exact = held = np.full(4096, np.float32(1.0))
    for _ in range(steps):
        update = rng.standard_normal(4096).astype(np.float32) * np.float32(2.0**-6)
        exact, held = exact + update, formats.BF16.round(held + update, mode)
    return float(100 * (held.astype(np.float64) - exact).mean())


def beta_of_a_half(swap: dict[str, str] | None = None) -> float:
    """sigmoid(0.5) as the recurrence uses it: it stays fp32."""
    arith = KernelOrder("k1")
    with Probe(swap=swap or {}):
        return float(arith.option("gates.beta", arith.sigmoid(torch.tensor([0.5])))[0])


def all_reduce_rounding(ablate: str = "") -> float:
    """Prefix 1 plus a sum of ranks that its own rounding to bf16 moves onto a tie."""
    parts = torch.zeros(2, 1, MINI.hidden)
    parts[0], parts[1] = 2.0**-8, 2.0**-18  # together just above half a bf16 ulp of 1; bf16 drops the second
    key = K2A.key(MINI, tokens=1, nblocks=0, ranks=2)
    arith = KernelOrder("k2a")
    with Probe(ablate=ablate):
        delta = stage_reduce(arith, _given(partial=parts), key)["delta"]
        ones = torch.ones(1, MINI.hidden)
        t = _given(prefix=ones, delta=delta, blocks=ones[:, None], ares_nw=ones[0], ares_qk=ones[0])
        return float(stage_slice(arith, t, key)["prefix"][0, 0])


def _recurrence(slots: list[int], accepted: int) -> torch.Tensor:
    """o of a request that only reads its state: q picks the state's first key column, which holds the slot number."""
    key = K1.key(MINI, tokens=2, qlen=2, nblocks=1)
    shape = (1, 2, MINI.heads, HEAD_DIM)
    rstate = torch.arange(4.0)[:, None, None, None].expand(4, MINI.heads, HEAD_DIM, HEAD_DIM).clone()
    unit = torch.zeros(shape)
    unit[..., 0] = 1.0
    t = _given(
        rstate=rstate,
        decay=torch.ones(shape),
        beta=torch.zeros(shape[:3]),
        qn=unit,
        kn=unit,
        v=torch.zeros(shape),
        st_idx=torch.tensor([slots], dtype=torch.int32),
        num_acc=torch.tensor([accepted], dtype=torch.int32),
    )
    return kda_recur(KernelOrder("k1"), t, key)["o"]


def state_after_a_draft() -> float:
    """The slot a step with two accepted tokens reads its state from: the second one's, here slot 3."""
    return float(_recurrence([2, 3], accepted=2)[0, 0, 0, 0])


def null_initial_slot() -> float:
    """Output of a request whose initial slot is null, though its target is not."""
    return float(_recurrence([2, 0], accepted=2).abs().max())


def padding_row() -> list[float]:
    """core of a silent (padding) request under a negative and a positive norm weight: signed zeros, never NaN."""
    key = K1.key(MINI, tokens=1, nblocks=1)
    on_w = torch.ones(HEAD_DIM)
    on_w[0] = -1.0
    t = _given(
        PROJ=torch.ones(1, MINI.nproj),
        o=torch.zeros(1, 1, MINI.heads, HEAD_DIM),
        ONRM=torch.zeros(1, MINI.heads, 1, 8),
        on_w=on_w,
    )
    core = kda_norm(KernelOrder("k1"), t, key)["core_out"][0, :2]
    return [float(torch.copysign(torch.ones(()), v)) * (1 + float(v)) for v in core]


def sum_that_is_the_sentinel() -> int:
    """The word an owner sends when its sum's two NaNs have every bit set."""
    return int(disarmed(np.array([SENTINEL], np.uint32))[0])


LESSONS = (
    Lesson(
        "E2M1 ties go to the even code",
        "Halves between E2M1 values round to the neighbour with an even code, not away from zero.",
        e2m1_ties,
        [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0],
        [0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0],
    ),
    Lesson(
        "The scale just below a power of two",
        "fp32 floor(log2(x)) rounds up to 3 for the number just below 8; exponent bits say 2.",
        scale_below_a_power_of_two,
        127 + 2 - 2,
        127 + 3 - 2,
    ),
    Lesson(
        "The exponent of amax / 6",
        "It is not the exponent of amax minus 2: amax 7 needs scale 2 so as not to saturate.",
        exponent_of_a_sixth,
        [128, 127],
        [127, 127],
    ),
    Lesson("E8M0 0 and 255", "Code 0 is 2^-127, not zero; 255 is NaN.", e8m0_ends, [2.0**-127, np.nan], [0.0, np.inf]),
    Lesson("The all-zero block", "Its scale byte is 1, so nothing is divided by zero.", zero_block, [1, 0], None),
    Lesson("FNUZ 0x80", "In e4m3fnuz the byte of minus zero is the only NaN.", fnuz_minus_zero, np.nan, -0.0),
    Lesson(
        "A NaN vanishes in W_UK",
        "MXFP4 has no NaN: one in q_nope becomes +0, the head looks finite, and a bug upstream is no longer seen.",
        nan_in_q_nope,
        False,
        True,
    ),
    Lesson(
        "A truncated residual drifts",
        "Each step within 1 ulp, every tolerance passed: rounding toward zero loses percents over 72 additions; the"
        " signed mean shows it (aiter issue 5151). Here: nearest stays within 0.5 percent, truncation loses over 10.",
        lambda: [abs(residual_drift("nearest")) < 0.5, residual_drift("zero") < -10],
        [True, True],
        None,
    ),
    Lesson(
        "beta through bf16",
        "Rounding beta to bf16 feeds an error into the state every token (vLLM PR 53877, sglang issue 38975).",
        beta_of_a_half,
        float(np.float32(0.62245935)),
        0.62109375,
    ),
    Lesson(
        "The skipped all-reduce rounding",
        "Adding the unrounded sum to the residual is more exact and yet another result (aiter PR 2586).",
        all_reduce_rounding,
        1.0,
        1.0078125,
    ),
    Lesson(
        "State after an accepted draft",
        "The live state is in the slot of the last accepted token; slot 0's is stale (vLLM issue 39273).",
        state_after_a_draft,
        3.0,
        2.0,
    ),
    Lesson(
        "A null initial slot silences the request",
        "Its output is +0 and no token's state is stored, whatever the target slots say.",
        null_initial_slot,
        0.0,
        None,
    ),
    Lesson(
        "Padding rows",
        "A silent request's core is a zero with its weight's sign: shown as -1 and +1 here, never NaN.",
        padding_row,
        [-1.0, 1.0],
        None,
    ),
    Lesson(
        "A sum that equals the sentinel",
        "NaN sums can have every bit set although no partial does: the owner must disarm its own result too.",
        sum_that_is_the_sentinel,
        int(DISARMED),
        int(SENTINEL),
    ),
)
