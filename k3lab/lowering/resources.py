"""What a kernel takes of a gfx950 compute unit, read from its assembly's metadata."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from k3lab.errors import BadInput
from k3lab.lowering.assembly import Function, functions

LDS_LIMIT = 163840
"""Bytes of LDS of a compute unit, and so of a workgroup, on gfx950."""
WAVE = 64
SIMDS = 4
MAX_WAVES = 8
VGPRS, VGPR_STEP = 512, 8
FULL_WAVES_SGPRS = 100
LDS_STEP = 1280

METADATA = re.compile(r"\.amdgpu_metadata\n(.*?)\.end_amdgpu_metadata", re.S)
KERNEL = re.compile(r"^  - (?=\.)", re.M)
FIELD = re.compile(r"^    (\.\w+): +(\S+)$", re.M)


@dataclass(frozen=True)
class Resources:
    """One kernel's row of the resource table.

    Attributes:
        vgpr: vector registers of a lane, accumulation registers included; `agpr`: those.
        lds: bytes of static LDS; `dynamic_lds`: what the launch adds.
        scratch: bytes of private memory a lane.
        threads: of a workgroup, at most.
        mix: instructions by class.
    """

    kernel: str
    vgpr: int
    agpr: int
    sgpr: int
    lds: int
    scratch: int
    vgpr_spills: int
    sgpr_spills: int
    threads: int
    mix: Mapping[str, int]
    dynamic_lds: int = 0

    @property
    def waves_per_simd(self) -> int:
        """Waves that the registers let run on a SIMD.

        A lane has 512 vector registers on a SIMD, given out by eights, and at most 8 waves run on one; above 100
        scalar registers it is one wave less. The rule and its numbers are those of LLVM's AMDGPU target for gfx950
        (AMDGPUBaseInfo: getTotalNumVGPRs, getVGPRAllocGranule; GCNSubtarget: getOccupancyWithNumSGPRs).
        """
        vector = VGPRS // max(VGPR_STEP, _stepped(self.vgpr, VGPR_STEP))
        scalar = MAX_WAVES if self.sgpr <= FULL_WAVES_SGPRS else MAX_WAVES - 1
        return min(MAX_WAVES, vector, scalar)

    @property
    def blocks_per_cu(self) -> int:
        """Workgroups of `threads` that registers and LDS let run on a compute unit of 4 SIMDs; 0 when not one fits."""
        lds = _stepped(self.lds + self.dynamic_lds, LDS_STEP)
        by_lds = LDS_LIMIT // lds if lds else MAX_WAVES * SIMDS
        waves = _stepped(self.threads, WAVE) // WAVE
        if waves < SIMDS:
            return min(by_lds, self.waves_per_simd * SIMDS // waves)
        return min(by_lds, self.waves_per_simd // (_stepped(waves, SIMDS) // SIMDS))


def read_resources(text: str, dynamic_lds: Mapping[str, int] | None = None) -> dict[str, Resources]:
    """The resource table of an assembly text, a row a kernel.

    Args:
        dynamic_lds: bytes that the launch adds, by kernel; the metadata does not know them.

    Raises:
        BadInput: for text without the metadata of a kernel.
    """
    found = METADATA.search(text)
    bodies = {function.name: function for function in functions(text)}
    table = {}
    for entry in KERNEL.split(found[1])[1:] if found else ():
        facts = dict(FIELD.findall("    " + entry))
        name = facts[".name"].strip("'")
        table[name] = _row(name, facts, bodies[name], (dynamic_lds or {}).get(name, 0))
    if not table:
        raise BadInput("assembly: expected the metadata of a kernel, got none.")
    return table


def check_lds(resources: Resources) -> None:
    """Refuse a kernel whose LDS no compute unit has; the compiler itself does not.

    Raises:
        BadInput: above 163,840 bytes.
    """
    wanted = resources.lds + resources.dynamic_lds
    if wanted > LDS_LIMIT:
        dynamic = f", {resources.dynamic_lds} of them dynamic" if resources.dynamic_lds else ""
        raise BadInput(
            f"kernel {resources.kernel!r}: expected at most {LDS_LIMIT} bytes of LDS, got {wanted}{dynamic}; "
            "a gfx950 workgroup has no more."
        )


def _stepped(size: int, step: int) -> int:
    """`size` up to a whole number of steps."""
    return -(-size // step) * step


def _row(name: str, facts: Mapping[str, Any], body: Function, dynamic: int) -> Resources:
    def number(fact: str) -> int:
        return int(facts[fact])

    return Resources(
        name,
        vgpr=number(".vgpr_count"),
        agpr=number(".agpr_count"),
        sgpr=number(".sgpr_count"),
        lds=number(".group_segment_fixed_size"),
        scratch=number(".private_segment_fixed_size"),
        vgpr_spills=number(".vgpr_spill_count"),
        sgpr_spills=number(".sgpr_spill_count"),
        threads=number(".max_flat_workgroup_size"),
        mix=dict(sorted(Counter(found.family for found in body.instructions).items())),
        dynamic_lds=dynamic,
    )
