"""The published kernels' function names (vLLM documents them for its own) and what answers to each here.

A stage has two counterparts, its twin and its kernel; what only a kernel does - loads, polls, stores - has one.
Files are read, not imported, so that FlyDSL is not needed.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import k3lab

ROOT = Path(k3lab.__file__).parents[1]
STAGES = "k3lab.stages"
_PRODUCT, _ROWS, _TASKS = (f"{STAGES}.gemv.{name}" for name in ("product", "rows", "tasks"))
_REDUCE = f"{STAGES}.oproj.reduce.kernel"
_WORDS, _FLOATS, _NARROW = "k3lab.words", "k3lab.device.floats", "k3lab.device.narrow"


@dataclass(frozen=True)
class Entry:
    """Published names of one launch, what they do, and their counterparts here as `module:name`, a twin first."""

    launch: str
    published: tuple[str, ...]
    what: str
    here: tuple[str, ...]


def _launch(launch: str, name: str) -> Entry:
    low = launch.lower()
    return Entry(launch, (name,), "the launch", (f"k3lab.launches.{low}:{launch}Key", f"k3lab.kernels.{low}:body"))


def _stage(launch: str, names: str, what: str, folder: str, kernel: str = "run") -> Entry:
    """A stage, whose twin has the first of the published names."""
    published = tuple(names.split())
    made = (f"{STAGES}.{folder}.twin:{published[0]}", f"{STAGES}.{folder}.kernel:{kernel}")
    return Entry(launch, published, what, made)


def _part(launch: str, name: str, what: str, *here: str) -> Entry:
    return Entry(launch, (name,), what, here)


ENTRIES = (
    _launch("K1", "kda_pre"),
    _stage("K1", "stage_slice", "AttnRes: partial sums of each slice", "attnres.slice"),
    _stage("K1", "stage_gate stage_gates", "softmax weights of a token; of a CTA's tokens", "attnres.gate"),
    _stage("K1", "stage_mix", "the mix and the layer norm", "attnres.mix"),
    _part("K1", "mix_src", "one source's values, from LDS or read again", f"{STAGES}.attnres.mix.kernel:mix_src"),
    _part("K1", "vals_all", "whether all sources' values stay in LDS", f"{STAGES}.attnres.role:vals_all"),
    _part("K1", "gemv_loads", "a task's weights on their way", f"{_PRODUCT}:gemv_loads"),
    _part("K1", "wait_x", "every slice's flag", f"{_ROWS}:wait_x"),
    _part("K1", "load_x", "rows of x to LDS", f"{_ROWS}:load_x"),
    _stage("K1", "stage_gemv", "in_proj, tasks of 16 rows", "gemv"),
    _part("K1", "poll_rows_to_lds", "a region's tagged pairs to LDS", "k3lab.device.mailbox:poll_rows_to_lds"),
    _part("K1", "kda_stage", "a KDA task: its four stages", "k3lab.kernels.k1:kda_stage"),
    _stage("K1", "kda_conv", "short convolution and conv state", "kda.conv"),
    _stage("K1", "kda_gates", "decay, beta, normed q and k", "kda.gates"),
    _stage("K1", "kda_recur", "gated delta rule", "kda.recur"),
    _stage("K1", "kda_norm", "output norm and gate", "kda.norm"),
    _part("K1", "step_tag", "a launch's 32-bit tag", "k3lab.layout:step_tag", "k3lab.device.mailbox:step_tag"),
    _part("K1", "bf4_words", "fp32 to words of two bf16", f"{_WORDS}:bf16_pair_words", f"{_FLOATS}:bf16_words"),
    _part("K1", "ld_bf4", "words of two bf16 to fp32", f"{_WORDS}:bf16_pair_values", f"{_FLOATS}:from_words"),
    _launch("M1a", "mla_pre"),
    _part("M1a", "gemv_tasks", "a CTA's projection tasks", f"{STAGES}.mla.role:gemv_tasks"),
    _part("M1a", "proj_loads", "the first task's weights on their way", f"{_TASKS}:issue"),
    _stage("M1a", "stage_proj", "latent and gate projections", "mla.proj", "stage_proj"),
    _stage("M1a", "stage_norm", "latent norms and cache entry", "mla.norm", "stage_norm"),
    _part(
        "M1a",
        "block_sum2",
        "the norms' sums over waves",
        "k3lab.arith.orders:waves_of_256",
        f"{STAGES}.mla.norm.kernel:block_sum2",
    ),
    _part("M1a", "bf_words", "words of a plain row, at device scope", f"{_ROWS}:plain_row"),
    _stage("M1a", "stage_qb", "query heads from the latent", "mla.qb", "stage_qb"),
    _stage("M1a", "stage_uk", "absorbed query through W_UK", "mla.uk", "stage_uk"),
    _part(
        "M1a",
        "even_code",
        "E8M0 scale code, `even` rule",
        "k3lab.formats.mx:even_code",
        "k3lab.device.narrow:even_code",
    ),
    _part("M1a", "fp8_word", "four fp32 to a word of four e4m3", f"{_WORDS}:fp8_words", f"{_NARROW}:fp8_word"),
    _part("M1a", "put_q", "a query word into q_out", f"{STAGES}.mla.query:put_q"),
    _part("M1a", "put_qg", "a query word to every rank", f"{STAGES}.mla.query:put_qg"),
    _part("M1a", "peer_pairs", "sizes of the regions that ranks reach", "k3lab.layout:place_peers"),
    _stage("M1a", "stage_unpack", "the gathered query", "mla.unpack", "stage_unpack"),
    _launch("K2a", "attn_post"),
    _part("K2a", "two_shot", "whether the all-reduce takes two shots", "k3lab.launches.k2a:K2aKey.two_shot"),
    _part("K2a", "ar_half_pairs", "size of a half of the peer buffer", "k3lab.kernels.peers:PeerBuffer.half_bytes"),
    _part("K2a", "peer_at", "a rank's address, by traced index", "k3lab.device.peers:Peers.peer_at"),
    _part("K2a", "load_core", "core rows to LDS", f"{STAGES}.oproj.push.kernel:load_core"),
    _part("K2a", "o_loads", "all tasks' weights on their way", f"{STAGES}.oproj.push.kernel:o_loads"),
    _stage("K2a", "stage_o", "a rank's part of o_proj", "oproj.push", "stage_o"),
    _stage("K2a", "stage_reduce", "the ranks' sum", "oproj.reduce"),
    _part("K2a", "reduce_two_shot", "the owner's part of it, in two shots", f"{_REDUCE}:reduce_two_shot"),
    _part("K2a", "sent_on", "whether words are handed over armed", "k3lab.launches.k2a:K2aKey.sentinel"),
    _part("K2a", "sent_ix", "number of an armed word", f"{STAGES}.oproj.role:sent_ix"),
    _part("K2a", "sent_item", "order of armed items", f"{_REDUCE}:sent_item"),
    _part("K2a", "sent_sum", "an item's words polled and summed, armed or not", f"{_REDUCE}:_sum"),
    _part("K2a", "rearm_ar", "words armed again after use", f"{_REDUCE}:rearm_ar"),
    _part("K2a", "slice_loads", "the slice's operands, loaded ahead", f"{STAGES}.attnres.slice.kernel:issue"),
    _part("K2a", "stage_slice_pre", "slice on operands loaded ahead", f"{STAGES}.attnres.slice.kernel:run"),
)


def where(here: str) -> tuple[str, int]:
    """File (from the project's root) and line of what `module:name` names: a function, a class or a member of one.

    Raises:
        AttributeError: when there is none: a dead link.
    """
    module, _, path = here.partition(":")
    file = f"{module.replace('.', '/')}.py"
    if not (ROOT / file).is_file():
        raise AttributeError(f"{here}: there is no file {file}")
    found: ast.AST = _tree(file)
    for name in path.split("."):
        found = _member(found, name, here)
    return file, int(getattr(found, "lineno", 0))


@cache
def _tree(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text(encoding="utf-8"))


def _member(parent: ast.AST, name: str, here: str) -> ast.AST:
    """The function, class or annotated field `name` in the body of a module or class."""
    for node in getattr(parent, "body", ()):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            return node
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name:
            return node
    raise AttributeError(f"{here}: there is no {name!r}")


def markdown(lines: bool = True) -> str:
    """The table as Markdown, one row an entry, with file and (unless left out) line."""
    rows = ["| launch | published name | what it does | here |", "| --- | --- | --- | --- |"]
    for entry in ENTRIES:
        names = ", ".join(f"`{name}`" for name in entry.published)
        rows.append(f"| {entry.launch} | {names} | {entry.what} | {'; '.join(_places(entry.here, lines))} |")
    return "\n".join(rows)


def _places(here: Sequence[str], lines: bool) -> list[str]:
    found = [(each.partition(":")[2], *where(each)) for each in here]
    return [f"`{name}` in {file}:{line}" if lines else f"`{name}` in {file}" for name, file, line in found]
