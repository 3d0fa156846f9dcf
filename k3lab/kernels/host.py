"""The host's side of a launch: buffers in the caller's layout, arguments by the ABI, and decoding what a run left."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from k3lab import formats
from k3lab.errors import InternalFault, expect
from k3lab.formats.tensor import bf16_pack, bf16_values
from k3lab.kernels.abi import Argument, arguments, stage_names
from k3lab.kernels.health import HEALTH_WORDS, GaveUp, given_up
from k3lab.launches.declaration import Launch, Stage
from k3lab.launches.eager import lifted_tensor
from k3lab.launches.key import LaunchKey
from k3lab.layout import VALUES_A_WORD, Placed, Region, place_locals, step_tag
from k3lab.words import bf16_pair_values, bf16_pair_words, fp8_words, fp32_words

STORAGE = {"bf16": torch.bfloat16, "fp32": torch.float32, "int32": torch.int32, "int64": torch.int64}
WAIT_TICKS = 200_000_000  # two seconds of a 100 MHz clock


@dataclass
class Buffers:
    """One rank's memory for launches with `key`: the case's tensors copied, scratch zeroed.

    Several launches may follow each other on it: `next_step` puts new inputs and a new tag in place, and leaves scratch
    as the launch before left it.

    Attributes:
        tensors: by argument name, tensors in the case's own strides; a launch changes them in place.
        places: regions and plain rows in `scratch`; `locals_` in the locals' buffer.
        numbers: arguments that are no addresses: slot, wait_ticks.
    """

    launch: Launch
    key: LaunchKey
    stages: frozenset[str]
    tensors: dict[str, torch.Tensor]
    numbers: dict[str, int] = field(default_factory=lambda: {"slot": 0, "wait_ticks": WAIT_TICKS})

    @classmethod
    def of(
        cls, launch: Launch, key: LaunchKey, inputs: Mapping[str, torch.Tensor], stages: frozenset[str] | None = None
    ) -> Buffers:
        """Copies of `inputs`, and everything else a launch of `stages` (all, if None) needs, for epoch 1."""
        stages = stage_names(launch) if stages is None else stages
        held = {decl.name: copied(inputs[decl.name]) for decl in launch.inputs_for(key) if decl.name in inputs}
        for made in launch.made_for(key):
            shape = shape_in(made.dims, key)
            held[made.name] = torch.zeros(shape, dtype=STORAGE.get(made.dtype, torch.uint8))
        made_buffers = cls(launch, key, stages, held)
        held["scratch"] = torch.zeros(max(_end(launch.scratch(key)), 16), dtype=torch.uint8)
        held["epoch"] = torch.tensor([1], dtype=torch.int32)
        held["locals"] = torch.zeros(max(_end(made_buffers.local_places), 16), dtype=torch.uint8)
        held["tl"] = torch.zeros(key.geometry.blocks, len(launch.stamps), dtype=torch.int64)
        held["health"] = torch.zeros(key.geometry.blocks, HEALTH_WORDS, dtype=torch.int32)
        held["alarm"] = torch.zeros(1, dtype=torch.int32)
        return made_buffers

    def next_step(
        self, inputs: Mapping[str, torch.Tensor] | None = None, *, epoch: int | None = None, slot: int = 0
    ) -> None:
        """Make ready for another launch on the same scratch.

        Args:
            inputs: what the input tensors shall hold; None leaves them as the launch before left them.
            epoch: of the step; the one after the last, if None.
            slot: the launch's number within the step.

        Raises:
            BadInput: for an epoch or slot out of range, or an input of another shape.
        """
        epoch = int(self.tensors["epoch"][0]) + 1 if epoch is None else epoch
        step_tag(epoch, slot)
        expect(epoch < 1 << 31, "epoch", "a number that fits 32 bits", epoch)
        for name, tensor in (inputs or {}).items():
            if name in self.tensors:
                held = self.tensors[name]
                expect(held.shape == tensor.shape, name, f"shape {list(held.shape)}", list(tensor.shape))
                held.copy_(tensor)
        self.tensors["epoch"][0] = epoch
        self.numbers["slot"] = slot
        for name in ("health", "alarm", "tl"):
            self.tensors[name].zero_()

    def to(self, device: str) -> Buffers:
        """The same memory on another device, a copy of every tensor in its strides."""
        held = {name: copied(tensor, device) for name, tensor in self.tensors.items()}
        return Buffers(self.launch, self.key, self.stages, held, dict(self.numbers))

    @property
    def arguments(self) -> tuple[Argument, ...]:
        return arguments(self.launch, self.key, self.stages)

    @property
    def places(self) -> tuple[Placed, ...]:
        return self.launch.scratch(self.key)

    @property
    def local_places(self) -> tuple[Placed, ...]:
        return place_locals(self.launch.locals_for(self.key), self.key.sizes)

    @property
    def written(self) -> set[str]:
        """Names of what this build's stages write, flags and locals included."""
        return written(self.launch, self.key, self.stages)

    @property
    def tag(self) -> int:
        """The tag this launch's pairs carry."""
        return step_tag(int(self.tensors["epoch"][0]), self.numbers["slot"])

    def bound(self, address: Any) -> list[Any]:
        """The launcher's arguments in order; `address(tensor)` gives what stands for a tensor's address."""
        return [self._argument(argument, address) for argument in self.arguments]

    def _argument(self, argument: Argument, address: Any) -> Any:
        if not argument.tensor:
            return self.numbers[argument.name]
        tensor = self.tensors[argument.tensor]
        if argument.axis < 0:
            return address(tensor)
        return tensor.shape[argument.axis] if argument.size else tensor.stride(argument.axis)

    def pairs(self, name: str) -> NDArray[np.uint32]:
        """The region `name` as it lies: [..., 2] words, value and tag."""
        placed = _find(self.places, name)
        return self._bytes("scratch", placed).view(np.uint32).reshape(*placed.shape, 2)

    def fill(self, values: Mapping[str, torch.Tensor]) -> None:
        """Put regions, plain rows (with the flags that guard them), locals and tensors that other stages would write.

        Args:
            values: by name, values that fit their storage format, as a kernel-order twin exposes them; pairs get this
                launch's tag.
        """
        guards = {plain.guard for plain in self.launch.rows if plain.name in values}
        for region in self.launch.regions:
            if region.scope == "device" and (region.name in values or region.name in guards):
                pairs = self.pairs(region.name)
                pairs[..., 1] = self.tag
                pairs[..., 0] = 1 if region.word == "flag" else words(region, values[region.name], pairs.shape[:-1])
        for plain in self.launch.rows:
            if plain.name in values and not plain.output:
                _copy_in(self._bytes("scratch", _find(self.places, plain.name)), values[plain.name], plain.dtype)
        for local in self.launch.locals_for(self.key):
            if local.name in values:
                _copy_in(self._bytes("locals", _find(self.local_places, local.name)), values[local.name], local.dtype)
        stored_as: dict[str, str] = {decl.name: decl.dtype for decl in self.launch.inputs}
        stored_as |= {made.name: made.dtype for made in self.launch.made_for(self.key)}
        for name in values.keys() & stored_as.keys() & self.tensors.keys():
            self.tensors[name].copy_(stored(values[name], stored_as[name]))

    def check_health(self) -> None:
        """Whether every wait of a bounded launch ended in time.

        Raises:
            GaveUp: with a sentence for each CTA that gave up, earliest first.
        """
        records = given_up(self.launch, self.key, self.tensors["health"].cpu().numpy())
        if records:
            raise GaveUp(records)

    def stamps(self) -> torch.Tensor | None:
        """Time stamps of a timeline build, [BLOCKS, points] int64, 0 for a point that the CTA did not pass."""
        return self.tensors["tl"].clone() if self.key.timeline else None

    def exposed(self) -> dict[str, torch.Tensor]:
        """What the stages of this build wrote, decoded, by name: fp32, or bytes where the declaration stores bytes.

        Raises:
            InternalFault: naming the region, when a pair does not carry this launch's tag.
        """
        written = self.written
        found = {name: self._read(name) for name in self.launch.exposed if name in written}
        return {name: value for name, value in found.items() if value is not None}

    def _read(self, name: str) -> torch.Tensor | None:
        for region in self.launch.regions:
            if region.name == name:  # what lies in peer buffers is the ranks' together
                return self._region(region) if region.scope == "device" else None
        for plain in self.launch.rows:
            if plain.name == name and not plain.output:
                return self._rows("scratch", _find(self.places, name), plain.dtype)
        for local in self.launch.locals_for(self.key):
            if local.name == name:
                place = _find(self.local_places, name)
                return self._rows("locals", place, local.dtype) if self.key.dumps else None
        if name not in self.tensors:
            return None
        stored_as: dict[str, str] = {made.name: made.dtype for made in self.launch.made_for(self.key)}
        if name in stored_as:
            return loaded(self.tensors[name].clone(), stored_as[name])
        return lifted_tensor(self.launch, name, self.tensors[name].clone(), torch.float32)

    def _region(self, region: Region) -> torch.Tensor | None:
        pairs = self.pairs(region.name)
        stale = pairs[..., 1] != self.tag
        if stale.any():
            index = np.unravel_index(stale.argmax(), stale.shape)
            raise InternalFault(
                f"region {region.name}: expected tag {self.tag} in every pair, got {int(pairs[index][1])} at "
                f"{[int(i) for i in index]} ({int(stale.sum())} pairs of {stale.size})."
            )
        shape = (*pairs.shape[:-2], pairs.shape[-2] * VALUES_A_WORD[region.word])
        return torch.from_numpy(values_of(region, pairs[..., 0]).reshape(shape))

    def _rows(self, buffer: str, placed: Placed, dtype: str) -> torch.Tensor:
        kind = STORAGE.get(dtype, torch.uint8)
        held = torch.from_numpy(self._bytes(buffer, placed).copy()).view(kind).view(placed.shape)
        return loaded(held, dtype)

    def _bytes(self, buffer: str, placed: Placed) -> NDArray[np.uint8]:
        return self.tensors[buffer].numpy()[placed.offset : placed.offset + placed.nbytes]


def written(launch: Launch, key: LaunchKey, stages: Collection[str]) -> set[str]:
    """Names of what the kernels of `stages` write in a build for `key`, flags and locals included."""
    parts = [stage for stage in launch.stages if stage.name in stages]
    armed = {region.name for region in launch.regions if key.sentinel and region.armed}
    names = set().union(*(puts(launch, stage) for stage in parts)) - armed
    names |= armed & {name for stage in parts for name in stage.writes}  # whoever takes these words arms them again
    absent = {region.name for region in launch.regions if not region.present(key)}
    return names - absent - unused(key, frozenset(stages))


def puts(launch: Launch, stage: Stage) -> set[str]:
    """Names of what a stage's kernel writes: what the twin does, but that words in peer buffers are put by the stage
    that makes them, where the twin leaves them to the one that gathers them."""
    system = {region.name for region in launch.regions if region.scope == "system"}
    left = {name for name in stage.writes if name in system and stage.gathers}
    sent = {name for other in launch.stages if set(other.gathers) & set(stage.writes) for name in other.writes}
    return (set(stage.writes) - left) | (sent & system)


def unused(key: LaunchKey, stages: frozenset[str]) -> set[str]:
    """What a build leaves alone: blocks, unless one is written; WGT, where every CTA computes every gate itself."""
    found = set() if key.write_idx >= 0 else {"blocks"}
    return found | {"WGT"} if getattr(key, "gate_local", False) and "gate" in stages else found


def values_of(region: Region, held: NDArray[np.uint32]) -> NDArray[Any]:
    """Words of a region to the values they hold."""
    held = np.ascontiguousarray(held)
    match region.word:
        case "bf16x2":
            return bf16_pair_values(held)
        case "fp8x4":
            return formats.FP8_E4M3.decode(held.view(np.uint8))
        case "flag":
            return held.astype(np.float32)
    return held.view(np.float32)


def words(region: Region, values: torch.Tensor, shape: tuple[int, ...]) -> NDArray[np.uint32]:
    """Values to the words that hold them, [pairs]."""
    pack = {"bf16x2": bf16_pair_words, "fp8x4": fp8_words}.get(region.word, fp32_words)
    return pack(np.ascontiguousarray(values.float().numpy())).reshape(shape)


def stored(values: torch.Tensor, dtype: str) -> torch.Tensor:
    """Values as a twin holds them, in their storage dtype, by bits."""
    match dtype:
        case "bf16":
            return bf16_pack(values.float().contiguous())
        case "fp8_e4m3":
            return torch.from_numpy(formats.FP8_E4M3.encode(values.float().contiguous().numpy()))
    return values.to(STORAGE.get(dtype, torch.uint8))


def loaded(held: torch.Tensor, dtype: str) -> torch.Tensor:
    """The inverse of `stored`: fp32, or integers and packed bytes as they are."""
    match dtype:
        case "bf16":
            return bf16_values(held)
        case "fp8_e4m3":
            return torch.from_numpy(formats.FP8_E4M3.decode(held.contiguous().numpy()))
    return held


def copied(tensor: torch.Tensor, device: str = "cpu") -> torch.Tensor:
    """A copy in the same strides, gaps and all."""
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return made.copy_(tensor)


def shape_in(dims: str, key: LaunchKey) -> tuple[int, ...]:
    """A declared shape in numbers."""
    return tuple(int(dim) if dim.isdigit() else key.sizes[dim] for dim in dims.split())


def _copy_in(target: NDArray[np.uint8], values: torch.Tensor, dtype: str) -> None:
    held = stored(values, dtype)
    size = prod(held.shape) * held.itemsize
    expect(target.size == size, "filled value", f"{target.size} bytes", f"{size} of shape {list(values.shape)}")
    target[:] = held.contiguous().view(torch.uint8).flatten().numpy()


def _find(placed: tuple[Placed, ...], name: str) -> Placed:
    return next(place for place in placed if place.name == name)


def _end(placed: tuple[Placed, ...]) -> int:
    return max((place.offset + place.nbytes for place in placed), default=0)
