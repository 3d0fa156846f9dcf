"""Makes a case: every input of a launch, drawn from a named distribution under a seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from k3lab import launches
from k3lab.cases import fill_k1, fill_k2a, fill_m1a
from k3lab.cases.case import Case
from k3lab.cases.fill import Fill, LaunchFill
from k3lab.cases.shapes import DTYPES, least_shape
from k3lab.cases.specials import Specials, parse_specials
from k3lab.cases.stream import CHUNK, F32
from k3lab.cases.ties import hunt_ties
from k3lab.cases.values import Adversarial, Constant, Huge, Normal, Outliers, Ties, Tiny, Wanted
from k3lab.errors import BadInput, expect
from k3lab.formats import FP8_E4M3, bf16_bits, mx
from k3lab.formats.tensor import bf16_from_bits
from k3lab.geometry import Geometry
from k3lab.launches import Launch, LaunchKey, TensorDecl

_DRAWN = (Normal(), Outliers(), Tiny(), Huge(), Ties(), Constant(), Adversarial(), Specials())

DISTRIBUTIONS: dict[str, str] = {values.name: values.about for values in _DRAWN}
"""Named distributions, each in one line."""

NULL = ("mixed", "none")

FILLS: dict[str, LaunchFill] = {"k1": fill_k1.FILL, "m1a": fill_m1a.FILL, "k2a": fill_k2a.FILL}


def make_case(
    launch: str,
    *,
    values: str = "outliers",
    seed: int = 0,
    geometry: str | Geometry | None = None,
    slots: int | None = None,
    null: str = "mixed",
    scale_rule: str = "even",
    **key_options: Any,
) -> Case:
    """Inputs of `launch`, the same bits on every machine.

    Args:
        values: one of `DISTRIBUTIONS`, or `specials:SET[:TENSOR]`.
        seed: each tensor draws from a stream of its own, by seed and name.
        geometry: `k3` (the default), `mini`, or a `Geometry`.
        slots: number of state or cache slots; by default one more than needed.
        null: `mixed` puts null slots into some requests when there are at least 3; `none` never.
        scale_rule: MXFP4 scale rule of weights that are quantised.
        key_options: fields of the launch's key (`tokens`, `qlen`, `nblocks`, ...), else the launch's defaults.

    Raises:
        BadInput: for an unknown name or option, or a value out of range.
    """
    declared = launches.get(launch)
    expect(launch in FILLS, "launch", f"one that cases can be made for: {', '.join(FILLS)}", repr(launch))
    fill = FILLS[launch]
    expect(null in NULL, "null", f"one of {NULL}", repr(null))
    expect(scale_rule in mx.RULES, "scale_rule", f"one of {tuple(mx.RULES)}", repr(scale_rule))
    drawn_from = distribution(values, declared)
    key = declared.key(geometry_of(geometry), **{**fill.defaults, **key_options})
    slots = _checked_slots(slots, fill.least_slots(key))

    def draw(decl: TensorDecl, rank: int = 0) -> torch.Tensor:
        return drawn(decl, key, fill, drawn_from, seed, rank, slots, null, scale_rule)

    several = key.rank_count > 1
    decls = [decl for decl in declared.inputs_for(key) if not decl.optional or decl.name in fill.fills]
    tensors = {decl.name: draw(decl) for decl in decls if not (several and decl.per_rank)}
    per_rank = [
        {decl.name: draw(decl, rank) for decl in decls if decl.per_rank} for rank in range(key.rank_count) if several
    ]
    notes: dict[str, Any] = {}
    if drawn_from.hunts_ties:
        chosen, notes["ties"] = hunt_ties(declared, key, [{**tensors, **own} for own in per_rank] or [tensors])
        tensors.update(chosen)
    return Case(launch, key, tensors, values, seed, drawn_from.allow_nonfinite, notes, per_rank)


def distribution(name: str, launch: Launch) -> Normal:
    """The distribution called `name`.

    Raises:
        BadInput: listing them when there is none; for a tensor that `launch` has not.
    """
    if isinstance(name, str) and name.partition(":")[0] == "specials":
        specials = parse_specials(name)
        floats = [decl.name for decl in launch.inputs if decl.dtype in ("bf16", "fp32")]
        expect(specials.tensor in ("", *floats), "values", f"specials in one of {floats}", repr(name))
        return specials
    for values in _DRAWN:
        if values.name == name:
            return values
    raise BadInput(f"values: expected one of {', '.join(DISTRIBUTIONS)}, got {name!r}.")


def drawn(
    decl: TensorDecl,
    key: LaunchKey,
    fill: LaunchFill,
    values: Normal,
    seed: int,
    rank: int = 0,
    slots: int = 1,
    null: str = "mixed",
    scale_rule: str = "even",
) -> torch.Tensor:
    """One rank's tensor `decl` of a case; the arguments are those of `make_case`, checked."""
    shape = least_shape(decl, key.sizes, fill.free_sizes(slots))
    wanted = Wanted(decl.name, shape, key, seed, slots, null, rank, scale_rule)
    return stored(decl, fill_of(decl, fill)(values, wanted))


def fill_of(decl: TensorDecl, fill: LaunchFill) -> Fill:
    """How `decl` is drawn: by the launch's own rule, or by the distribution's method for its declared fill."""
    return fill.fills[decl.name] if decl.name in fill.fills else lambda values, w: getattr(values, decl.fill)(w)


def stored(decl: TensorDecl, array: NDArray[Any]) -> torch.Tensor:
    """`array` in the tensor's storage dtype: floats rounded to nearest (bf16 keeps NaN payloads), integers cast."""
    if decl.dtype == "bf16":
        return bf16_from_bits(_bf16(array))
    if decl.dtype == "fp8_e4m3" and array.dtype == np.float32:
        array = FP8_E4M3.encode(array)
    return torch.from_numpy(np.ascontiguousarray(array)).to(DTYPES[decl.dtype])


def _bf16(array: F32) -> NDArray[np.uint16]:
    bits = np.empty(array.size, np.uint16)
    flat = array.reshape(-1)
    for start in range(0, flat.size, CHUNK):
        part = flat[start : start + CHUNK]
        rounded = bf16_bits(part)
        # A NaN was put there on purpose: its upper half goes over as it is, where rounding would make it quiet.
        nan = np.isnan(part)
        bits[start : start + CHUNK] = np.where(nan, part.view(np.uint32) >> 16, rounded) if nan.any() else rounded
    return bits.reshape(array.shape)


def geometry_of(given: str | Geometry | None) -> Geometry:
    """A geometry by name (`k3` for None), or as it is given."""
    if isinstance(given, Geometry):
        return given
    return Geometry.named("k3" if given is None else given)


def _checked_slots(given: int | None, least: int) -> int:
    if given is None:
        return least + 1
    whole = isinstance(given, int) and not isinstance(given, bool)
    expect(whole and given >= least, "slots", f"a whole number, at least {least} for this key", repr(given))
    return given
