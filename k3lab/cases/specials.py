"""The `specials` distribution: signed zeros, subnormals, infinities, NaN payloads and extreme parameters.

`specials` mixes the sets so that one case shows most of them beside ordinary values: a NaN in one row of a matrix, not
in a vector that every token passes through. `specials:SET` puts one set into every float tensor, `specials:SET:TENSOR`
into one tensor alone, vectors included, so that each input's NaN can be followed on its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from k3lab.cases.stream import F32
from k3lab.cases.values import Normal, Wanted
from k3lab.errors import expect
from k3lab.geometry import HEAD_DIM

# float32 words whose low half is zero, so that bf16 holds them too.
NANS = np.array([0x7FC10000, 0xFFC50000, 0x7F810000, 0xFFA30000], np.uint32)  # two quiet, two signalling, with payloads
INFINITIES = np.array([0x7F800000, 0xFF800000], np.uint32)
ZEROS = np.array([0x80000000, 0x00000000], np.uint32)
SUBNORMALS = np.array([0x00010000, 0x80010000, 0x007F0000, 0x80350000], np.uint32)
EXTREMES = {"a_log": 200.0, "dt_bias": 1e30}  # parameters that saturate what reads them

SETS = {
    "zeros": "signed zeros, and rows that are -0.0 throughout",
    "subnormals": "bf16 subnormals of both signs",
    "infinities": "a +infinity or a -infinity in a row",
    "nans": "a NaN with a payload, quiet or signalling, in a row",
    "extremes": "a_log of +-200, dt_bias of +-1e30, negative norm weights",
}
"""The sets that `specials:SET` names, with what each is."""

ROWS = ("zeros", "subnormals", "infinities", "nans", "ordinary")
"""What the rows of a matrix hold in turn; an infinity or a NaN spoils the later tokens of its request."""


@dataclass(frozen=True)
class Specials(Normal):
    """Ordinary values with special ones put in; `only` and `tensor` narrow down which and where."""

    only: str = ""
    tensor: str = ""

    name = "specials"
    about = "signed zeros, subnormals, infinities, NaN payloads, extreme parameters; also specials:SET[:TENSOR]"
    allow_nonfinite = True

    def residual(self, w: Wanted) -> F32:
        return self._rows(w, super().residual(w))

    def activation(self, w: Wanted, scale: float = 1.0) -> F32:
        return self._rows(w, super().activation(w, scale))

    def weight(self, w: Wanted) -> F32:
        return self._rows(w, super().weight(w))

    def norm_weight(self, w: Wanted) -> F32:
        x = super().norm_weight(w)
        if self._wants(w, "extremes"):
            x *= w.stream.signs(w.shape)
        return self._rows(w, x)

    def parameter(self, w: Wanted, low: float, high: float) -> F32:
        x = super().parameter(w, low, high)
        if self._wants(w, "extremes") and w.name in EXTREMES:
            step = 2 if w.width < HEAD_DIM else 16
            x[::step] = EXTREMES[w.name] * w.stream.signs(x[::step].shape)
        return self._rows(w, x) if self.only else x

    def _wants(self, w: Wanted, what: str) -> bool:
        return self.only in ("", what) and self.tensor in ("", w.name)

    def _rows(self, w: Wanted, x: F32) -> F32:
        """`x` with special values in some of its rows, in place."""
        words = x.reshape(-1, w.width).view(np.uint32)
        for kind, rows in self._plan(w, len(words)).items():
            if self._wants(w, kind):
                _put(kind, words, rows, w)
        return x

    def _plan(self, w: Wanted, rows: int) -> dict[str, NDArray[np.int64]]:
        """Which of the `rows` hold what."""
        if self.only == "extremes":
            return {}
        if self.only:
            return {self.only: np.arange(rows) if rows < 8 else w.stream.choose(3, rows)}
        if len(w.shape) == 1:
            return {kind: np.arange(1) for kind in ("zeros", "subnormals")}
        if w.shape[0] == w.key.tokens:
            tokens = np.repeat(np.arange(w.shape[0]), rows // w.shape[0])
            return {kind: np.flatnonzero((tokens + w.seed) % len(ROWS) == i) for i, kind in enumerate(ROWS)}
        return {kind: row for kind, row in zip(ROWS, _rows_of_one_head(w, rows), strict=False)}


def _rows_of_one_head(w: Wanted, rows: int) -> NDArray[np.int64]:
    """Four rows of the last head (of every slot, where there are slots), `[4, slots]`: the other heads stay clean."""
    slots = w.shape[0] if len(w.shape) > 2 else 1
    within = np.arange(rows // slots)
    heads = within // HEAD_DIM % w.key.geometry.heads
    last = within[heads == heads.max()]
    return last[w.stream.choose(4, len(last))][:, None] + np.arange(slots) * len(within)


def _put(kind: str, words: NDArray[np.uint32], rows: NDArray[np.int64], w: Wanted) -> None:
    """Write special values of one kind into `rows` of the float32 words `[rows, width]`.

    A row of a matrix becomes -0.0 or subnormal throughout, a vector a zero or subnormal in every 16th element.
    """
    matrix = len(words) > 1
    where = slice(None) if matrix else slice(0, None, 16)
    for number, row in enumerate(rows):
        column = int(w.stream.below(w.width, (1,))[0])
        match kind:
            case "zeros":
                _repeat(words[row, where], ZEROS[:1] if matrix else ZEROS)
            case "subnormals":
                _repeat(words[row, where], SUBNORMALS)
            case "infinities":
                words[row, column] = INFINITIES[number % len(INFINITIES)]
            case "nans":
                words[row, column] = NANS[(column + number) % len(NANS)]


def _repeat(place: NDArray[np.uint32], pattern: NDArray[np.uint32]) -> None:
    place[:] = np.resize(pattern, place.shape)


def parse_specials(name: str) -> Specials:
    """The distribution called `specials[:SET[:TENSOR]]`.

    Raises:
        BadInput: for an unknown set.
    """
    _, only, tensor = [*name.split(":"), "", ""][:3]
    known = name.count(":") <= 2 and (only in SETS or name == "specials")
    expect(known, "values", f"specials[:SET[:TENSOR]] with SET one of {list(SETS)}", repr(name))
    return Specials(only, tensor)
