"""Decoded kernels of several launches as one program, so that waves at the same block run together on every device.

Blocks are numbered on from kernel to kernel. A kernel that is launched with another grid or another block size counts
as another one: all waves at a block agree on both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from k3lab.sim.decode.cfg import Loop
from k3lab.sim.decode.program import Code, Edge, Program

Xyz = tuple[int, int, int]


@dataclass(frozen=True)
class Image:
    """A kernel with the sizes it is launched with, in workgroups and in threads."""

    program: Program
    grid: Xyz
    block: Xyz


@dataclass(frozen=True)
class Linked:
    """Images one after the other.

    Attributes:
        starts: first block of each image, and one past the last block.
        codes, numbers, constants: by block: what to run, its image's number, values that are the same for every wave.
        loops, polls, timed: as in a program, by header.
    """

    images: tuple[Image, ...]
    starts: tuple[int, ...]
    codes: tuple[Code, ...]
    numbers: tuple[int, ...]
    constants: tuple[dict[int, Any], ...]
    loops: dict[int, Loop]
    polls: frozenset[int]
    timed: frozenset[int]

    def place(self, block: int) -> int:
        """The block's number in its own kernel."""
        return block - self.starts[self.numbers[block]]


def link(images: Sequence[Image]) -> Linked:
    """Number the blocks of `images` on."""
    starts: list[int] = [0]
    codes: list[Code] = []
    numbers: list[int] = []
    loops: dict[int, Loop] = {}
    polls: set[int] = set()
    timed: set[int] = set()
    for number, image in enumerate(images):
        program, start = image.program, starts[-1]
        codes += [_moved(code, start) for code in program.codes]
        numbers += [number] * len(program.codes)
        loops |= {header + start: _moved_loop(loop, start) for header, loop in program.graph.loops.items()}
        polls |= {header + start for header in program.polls}
        timed |= {header + start for header in program.timed}
        starts.append(len(codes))
    constants = tuple(images[number].program.constants for number in numbers)
    order = tuple(starts), tuple(codes), tuple(numbers), constants
    return Linked(tuple(images), *order, loops, frozenset(polls), frozenset(timed))


def _moved(code: Code, start: int) -> Code:
    return replace(code, edges=tuple(Edge(edge.target + start, edge.passed) for edge in code.edges)) if start else code


def _moved_loop(loop: Loop, start: int) -> Loop:
    body, latches = (frozenset(block + start for block in blocks) for blocks in (loop.body, loop.latches))
    return Loop(loop.header + start, body, latches)
