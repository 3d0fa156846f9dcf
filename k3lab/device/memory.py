"""Global memory by buffer and by pointer, with cache policy, and LDS carved from one array."""

from typing import Any

import flydsl._mlir.dialects.rocdl as raw
from flydsl._mlir import ir
from flydsl.expr import rocdl

from k3lab.device.dsl import I8, Int32, Int64, Opaque, T, Vector, fx, located, raw_value

PLAIN, NON_TEMPORAL, DEVICE, SYSTEM = 0, 2, 16, 17
"""Cache policies of gfx950: none; NT for weights; SC1 for other CUs of this GPU; SC0 and SC1 for other GPUs."""

LDS_ALIGN = 16


@located
def pointer(kind: Any, address: Any, align: int = 0) -> Any:
    """A global pointer to `kind` at `address` (Int64, bytes); adding to it counts elements."""
    return fx.inttoptr(fx.PointerType.get(kind.ir_type, fx.AddressSpace.Global, align or kind.width // 8), address)


@located
def load(kind: Any, address: Any, element: Any, count: int = 1) -> Any:
    """`count` elements from number `element` on, as one access."""
    return _loaded(pointer(kind, address + Int64(element) * (kind.width // 8)), kind, count)


def _loaded(where: Any, kind: Any, count: int) -> Any:
    if count == 1:
        return fx.ptr_load(where, kind)
    return Vector(fx.ptr_load(where, Vector.make_type(count, kind)), dtype=kind)


@located
def store(kind: Any, value: Any, address: Any, element: Any) -> None:
    """`value`, a `kind` or a vector of them, to number `element` on."""
    fx.ptr_store(value, pointer(kind, address + Int64(element) * (kind.width // 8)))


@located
def buffer(address: Any) -> Any:
    """A buffer resource at `address`, which all lanes must share, without a bound."""
    return rocdl.get_buffer_rsrc(rocdl.make_buffer_ptr(pointer(Int32, address), None))


@located
def load_words(resource: Any, offset: Any, count: int, policy: int = PLAIN) -> Any:
    """`count` dwords at a byte offset (32 bits), as a vector."""
    kind = T.i32 if count == 1 else T.vec(count, T.i32)
    got = rocdl.raw_ptr_buffer_load(kind, resource, Int32(offset), Int32(0), aux=policy)
    return Vector.from_elements([Int32(got)], Int32) if count == 1 else Vector(got, dtype=Int32)


@located
def store_words(words: Any, resource: Any, offset: Any, policy: int = PLAIN) -> None:
    """A vector of dwords to a byte offset (32 bits), as one access."""
    aux = ir.IntegerAttr.get(T.i32, policy)
    zero = raw_value(Int32(0))
    held = words[0] if words.numel == 1 else words  # LLVM has no code for a buffer store of a vector of one
    raw.raw_ptr_buffer_store(raw_value(held), resource, raw_value(Int32(offset)), zero, aux=aux)


@located
def drain() -> None:
    """Wait until this wave's stores have reached where their policy sends them."""
    rocdl.s_waitcnt(vmcnt=0)


class LdsArray(Opaque):
    """`kind` elements in LDS from a byte offset on."""

    def __init__(self, base: Any, kind: Any, offset: int) -> None:
        self.kind = kind
        where = fx.PointerType.get(kind.ir_type, fx.AddressSpace.Shared, LDS_ALIGN)
        self.pointer = fx.recast_iter(where, base + offset)

    @located
    def load(self, element: Any, count: int = 1) -> Any:
        """`count` elements from number `element` on."""
        return _loaded(self.pointer + element, self.kind, count)

    @located
    def store(self, value: Any, element: Any) -> None:
        """`value`, one element or a vector of them, to number `element` on."""
        fx.ptr_store(value, self.pointer + element)


class Lds(Opaque):
    """A workgroup's LDS, carved front to back; what a role no longer needs, the next role carves again."""

    def __init__(self, base: Any, nbytes: int) -> None:
        self.base, self.nbytes = base, nbytes

    def carve(self, *arrays: tuple[Any, int], start: int = 0) -> list[LdsArray]:
        """Arrays of (kind, elements) one after the other, each at a 16-byte boundary.

        Raises:
            ValueError: when they do not fit.
        """
        offsets, end = lds_offsets([(kind.width // 8, count) for kind, count in arrays], start)
        if end > self.nbytes:
            raise ValueError(f"LDS: expected at most {self.nbytes} bytes, got {end}")
        return [LdsArray(self.base, kind, offset) for (kind, _), offset in zip(arrays, offsets, strict=True)]


def lds_offsets(arrays: list[tuple[int, int]], start: int = 0) -> tuple[list[int], int]:
    """Byte offsets of arrays of (element bytes, elements), and where they end."""
    offsets = []
    for size, count in arrays:
        offsets.append(start)
        start = -(-(start + size * count) // LDS_ALIGN) * LDS_ALIGN
    return offsets, start


def lds_base(nbytes: int) -> Any:
    """The workgroup's one LDS array of `nbytes`."""
    whole = fx.struct(type("Workgroup", (), {"__annotations__": {"bytes": fx.Array[I8, nbytes, LDS_ALIGN]}}))
    return fx.SharedAllocator().allocate(whole).bytes.peek().ptr
