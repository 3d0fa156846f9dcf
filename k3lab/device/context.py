"""What a kernel's stages share: set once at the kernel's start, read by every stage."""

from collections.abc import Mapping, Sequence
from typing import Any

from flydsl.expr import const_expr

from k3lab.device.dsl import F32, I16, Int32, Int64, Opaque, Vector, fx, located, traced
from k3lab.device.mailbox import Pairs, current_tag
from k3lab.device.memory import DEVICE, Lds, LdsArray, buffer, lds_base, load, store
from k3lab.device.wave import uniform
from k3lab.geometry import LDS_BYTES
from k3lab.layout import Placed

STAMP_BYTES = 256
ROLE_LDS = LDS_BYTES - STAMP_BYTES
"""LDS bytes that a role may carve; the CTA's time stamps lie behind them."""


class Context(Opaque):
    """One launch as a thread sees it.

    Attributes:
        key, g: the build key and its geometry; `args` the kernel's arguments by name.
        tid, lane, cta: thread of the CTA, lane of the wave, CTA; `wave` in a scalar register.
        tag: this launch's tag; `scratch` the buffer its regions lie in.
        stages: names of the stages this build runs; the others' regions and locals were filled before.
    """

    def __init__(
        self,
        key: Any,
        args: Any,
        places: Mapping[str, Placed],
        locals_: Mapping[str, Placed],
        points: Sequence[str],
        stages: frozenset[str],
        lds_bytes: int,
    ) -> None:
        self.key, self.g, self.args = key, key.geometry, args
        self.places, self.locals, self.points, self.stages = places, locals_, list(points), stages
        self.tid, self.cta = fx.thread_idx.x, fx.block_idx.x
        self.lane, self.wave = self.tid & 63, uniform(self.tid >> 6)
        stamps = STAMP_BYTES if key.timeline else 0
        base = lds_base(lds_bytes + stamps)
        self.lds = Lds(base, lds_bytes)
        self.stamps = LdsArray(base, Int64, lds_bytes) if stamps else None
        self.scratch = buffer(args.scratch)
        self.tag = current_tag(self)

    def pairs(self, name: str) -> Pairs:
        """The region `name` of scratch."""
        return Pairs(name, self.scratch, self.places[name].offset, DEVICE)

    def runs(self, stage: str) -> bool:
        """Whether this build runs `stage`."""
        return stage in self.stages


@located
@traced
def dump(c: Context, name: str, element: Any, value: Any) -> None:
    """In a dumps build: `value` (fp32) as element number `element` of the local `name`, in its storage format."""
    if const_expr(c.key.dumps):
        place = c.locals[name]
        if const_expr(place.itemsize == 2):
            store(I16, (value.bitcast(Int32) >> 16).to(I16), c.args.locals + place.offset, element)
        else:
            store(F32, value, c.args.locals + place.offset, element)


@located
def given(c: Context, name: str, element: Any) -> Any:
    """Element number `element` of the local `name`, as fp32, where the stage that makes it is not in this build."""
    place = c.locals[name]
    if place.itemsize == 2:
        return (load(I16, c.args.locals + place.offset, element).to(Int32) << 16).bitcast(F32)
    return load(F32, c.args.locals + place.offset, element)


@located
@traced
def dump_words(c: Context, name: str, element: Any, words: Any) -> None:
    """In a dumps build: dwords that hold the local `name` in its storage format from number `element` on."""
    if const_expr(c.key.dumps):
        place = c.locals[name]
        store(Int32, words, c.args.locals + place.offset + Int64(element) * place.itemsize, 0)


@located
def given_words(c: Context, name: str, element: Any, count: int) -> Any:
    """What `dump_words` wrote: `count` dwords."""
    place = c.locals[name]
    words = load(Int32, c.args.locals + place.offset + Int64(element) * place.itemsize, 0, count)
    return Vector.from_elements([words], Int32) if count == 1 else words
