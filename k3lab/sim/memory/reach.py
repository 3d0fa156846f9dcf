"""How accesses reach memory: bounds, alignment, what was never written, and who watches; by address space.

LDS and private memory have addresses of their own from 0; a generic pointer tells them from global memory by adding
an aperture's base.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from k3lab.sim.memory.spaces import OutOfBounds
from k3lab.sim.semantics.pointers import APERTURES

if TYPE_CHECKING:
    from k3lab.sim.step import Step

I64 = NDArray[np.int64]
Bools = NDArray[np.bool_]
Bytes = NDArray[np.uint8]

LDS, PRIVATE = 3, 5
DWORD = 4
U32 = 0xFFFFFFFF


def check_aligned(step: Step, address: I64, align: int) -> None:
    """The compiler picks the instruction by the alignment that the operation promises."""
    off = address & (align - 1)
    if off.any():
        index = tuple(int(i) for i in np.argwhere(off)[0])
        raise step.fault("misaligned", f"address is {int(off[index])} past a multiple of the promised {align}", index)


# -- any address space -------------------------------------------------------------------------------------------------


def read(step: Step, space: int, address: I64, size: int, only: Bools | None = None) -> Bytes:
    """Load for all lanes, whose addresses are safe; those in `only` (None: all) take part in earnest."""
    match space:
        case 3:
            return read_lds(step, address, size, only)
        case 5:
            return _read_private(step, address, size, only)
        case 0 if (spaces := _spaces(address)) != [1]:
            return _read_generic(step, spaces, address, size)
    return read_global(step, address, size, only)


def write(step: Step, space: int, address: I64, data: Bytes, only: Bools | None = None) -> None:
    """Store for the active lanes that are in `only` (None: all)."""
    match space:
        case 3:
            write_lds(step, address, data, only)
        case 5:
            _write_private(step, address, data, only)
        case 0 if (spaces := _spaces(step.safe(address))) != [1]:
            for each in spaces:
                write(step, each, address - APERTURES.get(each, 0), data, _in_space(step, each, address))
        case _:
            write_global(step, address, data, only)


def space_of(address: int) -> int:
    """The address space that a generic pointer points into."""
    return next((space for space, base in sorted(APERTURES.items(), reverse=True) if address >= base), 1)


def _spaces(address: I64) -> list[int]:
    """The address spaces that generic pointers point into."""
    if int(address.max()) < APERTURES[LDS]:
        return [1]
    return sorted({space_of(int(each)) for each in np.unique(address)})


def _in_space(step: Step, space: int, address: I64) -> Bools:
    base = APERTURES.get(space, 0)
    above = min((other for other in APERTURES.values() if other > base), default=1 << 62)
    return np.broadcast_to((address >= base) & (address < above), (step.n, 64))


def _read_generic(step: Step, spaces: list[int], address: I64, size: int) -> Bytes:
    out = np.zeros((step.n, 64, size), np.uint8)
    for space in spaces:
        mine = _in_space(step, space, address)
        spread = np.broadcast_to(address, mine.shape)
        fine = spread.flat[int(np.flatnonzero(mine)[0])]
        part = read(step, space, np.where(mine, spread, fine) - APERTURES.get(space, 0), size, mine)
        out = np.where(mine[..., None], part, out)
    return out


# -- global memory -----------------------------------------------------------------------------------------------------


def read_global(step: Step, address: I64, size: int, only: Bools | None = None) -> Bytes:
    """Load for all lanes; those in `only` (None: all) take part in earnest."""
    try:
        data = step.globals.load(address, size)
    except OutOfBounds as error:
        return _read_what_is_there(step, address, size, only, error)
    if step.globals.has_scratch:
        _check_written(step, address, size, only)
    if step.meter is not None:
        step.meter.load(step, address, size, only)
    return data if step.watch is None else step.watch.load(step, address, data, only)


def _read_what_is_there(step: Step, address: I64, size: int, only: Bools | None, error: OutOfBounds) -> Bytes:
    """As the hardware: 0 for lanes outside of every buffer."""
    outside(step, error)
    bad = step.globals.outside(address, size)
    if bad.all():
        return np.zeros((*address.shape, size), np.uint8)
    fine = address[~bad].flat[0]
    data = read_global(step, np.where(bad, fine, address), size, ~bad if only is None else only & ~bad)
    return np.where(bad[..., None], np.uint8(0), data)


def outside(step: Step, error: OutOfBounds, index: tuple[int, ...] | None = None) -> None:
    """Report an access outside of memory; where such findings are kept, one for each line and a count of them."""
    step.count("access out of bounds")
    if not step.knows("out-of-bounds"):
        step.found("out-of-bounds", error.what, error.index if index is None else index)


def _check_written(step: Step, address: I64, size: int, only: Bools | None) -> None:
    bad = ~step.globals.written(address, size)
    if step.mask is not None:
        bad = bad & step.mask
    if only is not None:
        bad = bad & only
    if bad.any():
        index = tuple(int(i) for i in np.argwhere(bad)[0])
        at = step.globals.describe(int(np.broadcast_to(address, bad.shape)[index]))
        step.found("uninitialised", f"load of {size} bytes at {at}, which nothing has written", index)


def write_global(step: Step, address: I64, data: Bytes, only: Bools | None = None) -> None:
    """Store for the active lanes that are in `only` (None: all)."""
    rows = step.chosen(address, data, only)
    if rows is None:
        return
    where, places, octets = rows
    try:
        if step.watch is None:
            step.globals.store(places, octets)
        else:
            step.watch.store(step, where, places, octets)
    except OutOfBounds as error:
        outside(step, error, step.back(where, error.index))
        bad = np.broadcast_to(step.globals.outside(address, data.shape[-1]), (step.n, 64))
        write_global(step, address, data, ~bad if only is None else only & ~bad)
        return
    if step.globals.has_scratch:
        step.globals.mark(places, octets.shape[-1])
    if step.meter is not None:
        step.meter.store(step, where, places, octets.shape[-1])
    step.stored()


# -- buffers -----------------------------------------------------------------------------------------------------------


def read_buffer(step: Step, base: I64, records: I64, offset: I64, size: int) -> Bytes:
    """Load from a buffer resource: dwords past num_records are 0."""
    if all_inside(records, offset, size):
        return read_global(step, step.safe(base + offset), size)
    within = inside(step, records, offset, size)
    if within.all():
        return read_global(step, step.safe(base + offset), size)
    step.count("buffer load past num_records")
    grain = min(DWORD, size)
    shape = np.broadcast_shapes(base.shape, offset.shape, within.shape[:-1])
    out = np.zeros((*shape, size), np.uint8)
    for i in range(size // grain):
        use = np.broadcast_to(within[..., i], shape)
        if use.any():
            address = np.broadcast_to(base + offset + grain * i, shape)
            fine = address.flat[int(np.flatnonzero(use)[0])]
            part = read_global(step, step.safe(np.where(use, address, fine)), grain, use)
            out[..., grain * i : grain * (i + 1)] = np.where(use[..., None], part, 0)
    return out


def all_inside(records: I64, offset: I64, size: int) -> bool:
    """Whether every lane, active or not, is below num_records: the common case, told by two extremes."""
    return int(offset.max()) + size <= int((records & U32).min())


def inside(step: Step, records: I64, offset: I64, size: int) -> Bools:
    """By dword (or smaller element), whether it is below num_records, `[W, L, parts]`; inactive lanes count too."""
    grain = min(DWORD, size)
    ends = offset[..., None] + np.arange(grain, size + 1, grain)
    within = ends <= (records[..., None] & U32)
    return within if step.mask is None else within | ~step.mask[..., None]


# -- LDS ---------------------------------------------------------------------------------------------------------------


def read_lds(step: Step, address: I64, size: int, only: Bools | None = None) -> Bytes:
    """Load from LDS for all lanes; those in `only` (None: all) take part in earnest."""
    try:
        offset = step.lds.place(step.workgroup, address, size, "load")
    except OutOfBounds as error:
        outside(step, error)
        bad = step.lds.outside(step.workgroup, address, size)
        if bad.all():
            return np.zeros((*bad.shape, size), np.uint8)
        spread = np.broadcast_to(address, bad.shape)
        fine = np.where(bad, spread[~bad].flat[0], spread)
        data = read_lds(step, fine, size, ~bad if only is None else only & ~bad)
        return np.where(bad[..., None], np.uint8(0), data)
    if only is None:
        step.watch_lds("load", offset, size)
    else:
        use = only if step.mask is None else only & step.mask
        step.watch_lds("load", np.broadcast_to(offset, use.shape)[use], size, use)
    if step.meter is not None:
        step.meter.lds(step, "load", address.shape[1], size, only)
    data, written = step.lds.load(offset, size)
    if not written.all():
        index = tuple(int(i) for i in np.argwhere(~written)[0])
        at = int(np.broadcast_to(address, offset.shape)[index])
        step.found("uninitialised", f"load of {size} bytes at LDS + {at}, which nothing has written", index)
    return data


def write_lds(step: Step, address: I64, data: Bytes, only: Bools | None = None) -> None:
    """Store to LDS for the active lanes that are in `only` (None: all)."""
    size = data.shape[-1]
    safe = step.safe(address)
    if only is not None and not only.all():
        safe = _safe_in(step, safe, only)
    try:
        offset = step.lds.place(step.workgroup, safe, size, "store")
    except OutOfBounds as error:
        outside(step, error)
        bad = np.broadcast_to(step.lds.outside(step.workgroup, safe, size), (step.n, 64))
        if not bad.all():
            write_lds(step, address, data, ~bad if only is None else only & ~bad)
        return
    rows = step.chosen(offset, data, only)
    if rows is not None:
        step.watch_lds("store", rows[1], size, rows[0])
        if step.meter is not None:
            step.meter.lds(step, "store", max(address.shape[1], data.shape[1]), size, only)
        step.lds.store(rows[1], rows[2])
        step.stored()


def _safe_in(step: Step, address: I64, only: Bools) -> I64:
    """`address` with that of lanes outside of `only` replaced by one inside."""
    use = only if step.mask is None else only & step.mask
    spread = np.broadcast_to(address, use.shape)
    return np.where(use, spread, spread[use].flat[0]) if use.any() else np.zeros((1, 1), np.int64)


# -- private memory ----------------------------------------------------------------------------------------------------


def _read_private(step: Step, address: I64, size: int, only: Bools | None) -> Bytes:
    try:
        data, written = step.private.load(step.waves, address, size)
    except OutOfBounds as error:
        raise step.fault("out-of-bounds", error.what, error.index) from None
    for use in (step.mask, only):
        written = written if use is None else written | ~use
    if not written.all():
        index = tuple(int(i) for i in np.argwhere(~written)[0])
        step.found("uninitialised", f"load of {size} bytes of private memory, which nothing has written", index)
    return data


def _write_private(step: Step, address: I64, data: Bytes, only: Bools | None) -> None:
    try:
        use = step.mask if only is None else only if step.mask is None else only & step.mask
        step.private.store(step.waves, step.safe(address), data, use)
    except OutOfBounds as error:
        raise step.fault("out-of-bounds", error.what, error.index) from None


# -- one lane ----------------------------------------------------------------------------------------------------------


def load_one(step: Step, space: int, address: I64, size: int, at: tuple[int, int]) -> Bytes | None:
    """One lane's part of an atomic operation; None outside of memory, where that is no error."""
    try:
        if space == LDS:
            place = step.lds.place(step.workgroup[at[0] : at[0] + 1], address, size, "atomic")
            data, written = step.lds.load(place, size)
            if not written.all():
                where = f"LDS + {int(address.flat[0])}"
                step.found("uninitialised", f"atomic of {size} bytes at {where}, which nothing has written", at)
            if step.meter is not None:
                step.meter.lds(step, "atomic", 1, size, _one(step, at))
            return data
        data = step.globals.load(address, size)
        if step.meter is not None:
            step.meter.atomic(step, address, size, *at)
        if step.watch is not None:
            step.watch.atomic(step, address, size, *at)
            data = step.globals.load(address, size)
    except OutOfBounds as error:
        outside(step, error, at)
        return None
    if step.globals.has_scratch and not step.globals.written(address, size).all():
        where = step.globals.describe(int(address.flat[0]))
        step.found("uninitialised", f"atomic of {size} bytes at {where}, which nothing has written", at)
    return data


def _one(step: Step, at: tuple[int, int]) -> Bools:
    """Only the lane at (row, lane)."""
    only = np.zeros((step.n, 64), bool)
    only[at] = True
    return only


def store_one(step: Step, space: int, address: I64, data: Bytes, row: int) -> None:
    """Put what an atomic operation made."""
    if space == LDS:
        step.lds.store(step.lds.place(step.workgroup[row : row + 1], address, data.shape[-1], "atomic"), data)
    else:
        step.globals.store(address, data)
        if step.globals.has_scratch:
            step.globals.mark(address, data.shape[-1])
    step.stored()
