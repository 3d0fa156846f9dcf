"""K1 `kda_pre`: a KDA layer from the AttnRes seam to the gated core output, in one launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from k3lab.errors import expect
from k3lab.geometry import CONV_WIDTH
from k3lab.launches import seam
from k3lab.launches.declaration import Launch, Output, Point, Stage, TensorDecl
from k3lab.launches.key import LaunchKey
from k3lab.launches.stamps import GEMV, KDA, SEAM, START, StampPoint
from k3lab.layout import Local, PlainRows, Region
from k3lab.stages.gemv.twin import stage_gemv
from k3lab.stages.kda.conv.twin import CARRIED, kda_conv
from k3lab.stages.kda.gates.twin import kda_gates
from k3lab.stages.kda.norm.twin import kda_norm
from k3lab.stages.kda.recur.twin import kda_recur

MAX_QLEN = 16


@dataclass(frozen=True)
class K1Key(LaunchKey):
    """What a build of K1 is made for.

    Attributes:
        qlen: L, tokens of each request (1 + draft tokens).
        delta: whether a delta is added to the prefix first.
        state_len: entries of a conv window: CONV_WIDTH - 1 + (L - 1); 0 stands for that.
        write_idx: block the updated prefix is also written to, or -1.
        kda0: knob: first CTA the KDA tasks are dealt to; -1 stands for NA.
        gate_local: knob: every attention CTA computes every token's gate itself, and WGT is not used.
    """

    qlen: int = 1
    delta: bool = True
    state_len: int = 0
    onorm_eps: float = 1e-5
    lower_bound: float = -5.0
    write_idx: int = -1
    kda0: int = -1
    gate_local: bool = False

    def fill(self) -> None:
        if self.state_len == 0:
            object.__setattr__(self, "state_len", self.qlen + CONV_WIDTH - 2)
        if self.kda0 == -1:
            object.__setattr__(self, "kda0", self.geometry.na)

    def validate(self) -> None:
        super().validate()
        expect(1 <= self.qlen <= MAX_QLEN, "qlen", f"1 .. {MAX_QLEN}", self.qlen)
        expect(self.tokens % self.qlen == 0, "tokens", f"a multiple of qlen {self.qlen}", self.tokens)
        wanted = self.qlen + CONV_WIDTH - 2
        expect(self.state_len == wanted, "state_len", f"{wanted} (qlen + 2)", self.state_len)
        expect(0 < self.onorm_eps < 1, "onorm_eps", "a number between 0 and 1", self.onorm_eps)
        expect(self.lower_bound < 0, "lower_bound", "a negative number", self.lower_bound)
        room = self.write_idx == -1 or self.write_idx >= self.nblocks
        expect(room, "write_idx", f"-1 or at least nblocks {self.nblocks} (a block that is read)", self.write_idx)
        expect(0 <= self.kda0 < self.geometry.blocks, "kda0", f"a CTA 0 .. {self.geometry.blocks - 1}", self.kda0)

    @property
    def gemv_tasks(self) -> int:
        return self.geometry.tasks(self.geometry.nproj)

    @property
    def requests(self) -> int:
        """R: requests of L tokens each."""
        return self.tokens // self.qlen

    @property
    def sizes(self) -> dict[str, int]:
        g = self.geometry
        return {
            **super().sizes,
            "R": self.requests,
            "L": self.qlen,
            "NPROJ": g.nproj,
            "CONV": g.conv_channels,
            "STATE_LEN": self.state_len,
            "BLOCKS_USED": max(self.nblocks, self.write_idx + 1),
        }


def check_inputs(key: K1Key, tensors: Mapping[str, torch.Tensor]) -> None:
    """What shapes and dtypes cannot say: accepted counts and slots.

    Raises:
        BadInput: naming the tensor and the first offender.
    """
    counts, slots = tensors["num_acc"], tensors["st_idx"][:, : key.qlen]
    bad = (counts < 1) | (counts > key.qlen)
    expect(not bad.any(), "num_acc", f"accepted counts 1 .. {key.qlen} in every request", counts[bad][:1].tolist())
    for name in ("conv_state", "rstate"):
        used = slots[:, 0] if name == "conv_state" else slots
        room = tensors[name].shape[0]
        over = used[used >= room]
        expect(not len(over), "st_idx", f"slots below {room} (the slots of {name})", over[:1].tolist())
    live = slots[slots > 0]
    shared = [int(slot) for slot, times in zip(*live.unique(return_counts=True), strict=True) if times > 1]
    expect(not shared, "st_idx", "no slot twice (two tokens would write one state)", f"slot {shared[:1]} shared")


def carried(key: K1Key, tensors: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """Entries of conv_state that no arithmetic makes: all but the step's own in the slots that are written."""
    state, slots = tensors["conv_state"], tensors["st_idx"][:, 0].long()
    mask = torch.ones(state.shape[0], 1, state.shape[2], dtype=torch.bool)
    mask[slots[slots > 0], :, CARRIED:] = False
    return mask


K1 = Launch(
    name="k1",
    published="kda_pre",
    about="A KDA layer: AttnRes seam, in_proj, short convolution, gated delta rule, output norm and gate.",
    key_type=K1Key,
    inputs=(
        *seam.INPUTS,
        TensorDecl("w_in", "NPROJ HIDDEN", "bf16", "weight", "in_proj: rows q, k, v, g, f_a, beta, pad", per_rank=True),
        TensorDecl("w_fb", "PROJ 128", "bf16", "weight", "f_b rows of the heads", per_rank=True),
        TensorDecl("conv_w", "CONV 4", "fp32", "special", "taps of the q, k, v channels, oldest first", per_rank=True),
        TensorDecl(
            "conv_state",
            "*slots CONV STATE_LEN",
            "bf16",
            "activation",
            "conv windows",
            raw=carried,
            strides="free",
            per_rank=True,
        ),
        TensorDecl("a_log", "HEADS", "fp32", "special", "log of the decay rate", per_rank=True),
        TensorDecl("dt_bias", "PROJ", "fp32", "special", "bias of the decay gate", per_rank=True),
        TensorDecl("on_w", "128", "bf16", "norm_weight", "output norm weight"),
        TensorDecl(
            "rstate", "*slots HEADS 128 128", "fp32", "special", "state: value x key", strides="slots", per_rank=True
        ),
        TensorDecl("st_idx", "R >=L", "int32", "special", "state slots: token j's state goes to column j"),
        TensorDecl("num_acc", "R", "int32", "special", "accepted tokens of the last step, 1 .. L"),
    ),
    stages=(
        *seam.stages(prefix_rounds=lambda key: key.delta),
        Stage(
            "gemv",
            "k3lab.stages.gemv",
            stage_gemv,
            reads=("x", "w_in"),
            writes=("PROJ",),
            points=(Point("gemv.proj", "bf16", "S NPROJ", "in_proj output"),),
            about="x times in_proj: 16 weight rows a task, dealt to the GEMV CTAs",
        ),
        Stage(
            "conv",
            "k3lab.stages.kda.conv",
            kda_conv,
            reads=("PROJ", "conv_state", "conv_w", "st_idx", "num_acc"),
            writes=("QK", "v", "conv_state"),
            points=(
                Point("conv.out", "bf16", "S CONV", "q, k and v after convolution and silu"),
                Point("conv.state", "bf16", "S CONV", "projected values kept for the next step (exact copies)"),
            ),
            about="short convolution over the accepted window and the new tokens",
        ),
        Stage(
            "gates",
            "k3lab.stages.kda.gates",
            kda_gates,
            reads=("PROJ", "QK", "w_fb", "a_log", "dt_bias"),
            writes=("decay", "beta", "qn", "kn"),
            points=(Point("gates.g1", "bf16", "S PROJ", "f_b f_a, before the bias"),),
            options=(Point("gates.beta", "bf16", "R L HEADS", "beta after its sigmoid"),),
            about="decay per key column, beta, l2-normed q and k",
        ),
        Stage(
            "recur",
            "k3lab.stages.kda.recur",
            kda_recur,
            reads=("rstate", "st_idx", "num_acc", "decay", "beta", "qn", "kn", "v"),
            writes=("o", "ONRM", "rstate"),
            points=(Point("recur.o", "bf16", "R L HEADS 128", "state times q"),),
            about="gated delta rule, token by token",
        ),
        Stage(
            "norm",
            "k3lab.stages.kda.norm",
            kda_norm,
            reads=("o", "ONRM", "PROJ", "on_w"),
            writes=("core_out",),
            points=(Point("norm.core", "bf16", "S PROJ", "gated, normed core output"),),
            about="output norm over the head, times the output gate",
        ),
    ),
    regions=(
        *seam.REGIONS,
        Region("PROJ", "S NPROJ", "bf16", about="in_proj output"),
        Region("QK", "R HEADS L 2 128", "bf16", about="q and k after convolution and silu"),
        Region("ONRM", "R HEADS L 8", "fp32", about="sums of o^2 over 16 channels each, for the output norm"),
    ),
    rows=(PlainRows("x", "S HIDDEN", "bf16", guard="XRDY", about=seam.X_ABOUT),),
    locals=(
        *seam.LOCALS,
        Local("v", "R L HEADS 128", "bf16", "conv", ("recur",), about="v after convolution and silu"),
        Local("decay", "R L HEADS 128", "fp32", "gates", ("recur",), about="what the state decays by, per key column"),
        Local(
            "beta", "R L HEADS", "fp32", "gates", ("recur",), about="how far the state moves to the new value, 0 .. 1"
        ),
        Local("qn", "R L HEADS 128", "fp32", "gates", ("recur",), about="l2-normed q"),
        Local("kn", "R L HEADS 128", "fp32", "gates", ("recur",), about="l2-normed k"),
        Local("o", "R L HEADS 128", "bf16", "recur", ("norm",), about="state times q, before output norm and gate"),
    ),
    made=(Output("core_out", "S PROJ", "bf16", "gated, normed core output"),),
    outputs=("prefix", "blocks", "conv_state", "rstate", "core_out"),
    end_tensors=("core_out", "conv_state", "rstate", "prefix", "x"),
    stamp_points=(
        START,
        *SEAM,
        StampPoint("x_in_lds", "gemv", GEMV, "all flags of x waited for, x in LDS, or the last part of it", last=True),
        StampPoint("first_task", "gemv", GEMV, "first task multiplied and put", last=True),
        StampPoint("second_task", "gemv", GEMV, "second task multiplied and put", last=True),
        StampPoint("kda_staged", "conv", KDA, "the task's window, weights and state asked for", last=True),
        StampPoint("conv", "conv", KDA, "all waves through with the convolution", last=True),
        StampPoint("gates", "gates", KDA, "f_a, beta, q and k waited for; decay and norms", last=True),
        StampPoint("recur", "recur", KDA, "the state through the request's tokens, stored", last=True),
        StampPoint("norm", "norm", KDA, "the head's sums waited for, core written", last=True),
        StampPoint("conv_entered", "conv", KDA, "conv begins", before="conv", last=True),
        StampPoint("conv_inputs", "conv", KDA, "projected values waited for", before="conv", last=True),
        StampPoint("conv_stored", "conv", KDA, "convolved, q and k put, state stored", before="conv", last=True),
    ),
    check=check_inputs,
    tie_weights=seam.TIE_WEIGHTS,
)
