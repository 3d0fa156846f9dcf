"""The published kernels' function names (vLLM documents them for its own) and what answers to each here.

Listed is what exists; names that belong to a kernel's loads, polls and stores come with the kernels.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Any

import k3lab


@dataclass(frozen=True)
class Entry:
    """Published names of one launch, what they do, and their counterpart here as `module:object`."""

    launch: str
    published: tuple[str, ...]
    what: str
    here: str


_STAGES = "k3lab.stages"

ENTRIES = (
    Entry("K1", ("kda_pre",), "the launch", "k3lab.launches.k1:K1Key"),
    Entry("K1", ("stage_slice",), "AttnRes: partial sums of each slice", f"{_STAGES}.attnres.slice.twin:stage_slice"),
    Entry("K1", ("stage_gate", "stage_gates"), "softmax weights of a token", f"{_STAGES}.attnres.gate.twin:stage_gate"),
    Entry("K1", ("stage_mix", "mix_src"), "the mix and the layer norm", f"{_STAGES}.attnres.mix.twin:stage_mix"),
    Entry("K1", ("stage_gemv",), "in_proj, one task of 16 rows", f"{_STAGES}.gemv.twin:stage_gemv"),
    Entry("K1", ("kda_conv",), "short convolution and conv state", f"{_STAGES}.kda.conv.twin:kda_conv"),
    Entry("K1", ("kda_gates",), "decay, beta, normed q and k", f"{_STAGES}.kda.gates.twin:kda_gates"),
    Entry("K1", ("kda_recur",), "gated delta rule", f"{_STAGES}.kda.recur.twin:kda_recur"),
    Entry("K1", ("kda_norm",), "output norm and gate", f"{_STAGES}.kda.norm.twin:kda_norm"),
    Entry("K1", ("step_tag",), "a launch's 32-bit tag", "k3lab.layout:step_tag"),
    Entry("K1", ("bf4_words",), "fp32 values to words of two bf16", "k3lab.words:bf16_pair_words"),
    Entry("K1", ("ld_bf4",), "words of two bf16 to fp32 values", "k3lab.words:bf16_pair_values"),
    Entry("M1a", ("mla_pre",), "the launch", "k3lab.launches.m1a:M1aKey"),
    Entry("M1a", ("stage_proj",), "latent and gate projections", f"{_STAGES}.mla.proj.twin:stage_proj"),
    Entry("M1a", ("stage_norm",), "latent norms and cache entry", f"{_STAGES}.mla.norm.twin:stage_norm"),
    Entry("M1a", ("block_sum2",), "the norms' sums over waves", "k3lab.arith.orders:waves_of_256"),
    Entry("M1a", ("stage_qb",), "query heads from the latent", f"{_STAGES}.mla.qb.twin:stage_qb"),
    Entry("M1a", ("stage_uk",), "absorbed query through W_UK", f"{_STAGES}.mla.uk.twin:stage_uk"),
    Entry("M1a", ("even_code",), "E8M0 scale code, `even` rule", "k3lab.formats.mx:even_code"),
    Entry("M1a", ("fp8_word",), "four fp32 to a word of four e4m3", "k3lab.words:fp8_words"),
    Entry("M1a", ("put_q", "put_qg", "stage_unpack"), "the gathered query", f"{_STAGES}.mla.unpack.twin:stage_unpack"),
    Entry("K2a", ("attn_post",), "the launch", "k3lab.launches.k2a:K2aKey"),
    Entry("K2a", ("two_shot",), "whether the all-reduce takes two shots", "k3lab.launches.k2a:K2aKey.two_shot"),
    Entry("K2a", ("stage_o",), "a rank's part of o_proj", f"{_STAGES}.oproj.push.twin:stage_o"),
    Entry(
        "K2a",
        ("stage_reduce", "reduce_two_shot", "sent_sum"),
        "the ranks' sum",
        f"{_STAGES}.oproj.reduce.twin:stage_reduce",
    ),
    Entry("K2a", ("stage_slice_pre",), "slice, its operands loaded ahead", f"{_STAGES}.attnres.slice.twin:stage_slice"),
)


def resolve(here: str) -> Any:
    """The object `module:name` names.

    Raises:
        AttributeError: when there is none: a dead link.
    """
    module, _, path = here.partition(":")
    return reduce(getattr, path.split("."), import_module(module))


def where(here: str) -> tuple[str, int]:
    """File (from the project's root) and line of the object `module:name` names."""
    found = resolve(here)
    if isinstance(found, property):
        found = found.fget
    root = Path(k3lab.__file__).parent.parent
    return Path(inspect.getsourcefile(found) or "").relative_to(root).as_posix(), inspect.getsourcelines(found)[1]


def markdown(lines: bool = True) -> str:
    """The table as Markdown, one row an entry, with file and (unless left out) line."""
    rows = ["| launch | published name | what it does | here |", "| --- | --- | --- | --- |"]
    for entry in ENTRIES:
        file, line = where(entry.here)
        names = ", ".join(f"`{name}`" for name in entry.published)
        place = f"{file}:{line}" if lines else file
        rows.append(f"| {entry.launch} | {names} | {entry.what} | `{entry.here.partition(':')[2]}` in {place} |")
    return "\n".join(rows)
