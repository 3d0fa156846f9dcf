"""Sizes of the model and of the launch: facts in one frozen object that twins, kernels and cases read.

`Geometry.k3()` is Kimi-K3 at tensor parallel 8 (config.json of moonshotai/Kimi-K3; launch sizes for one MI355X with
256 compute units). `Geometry.mini()` has the same structure at a size where a test takes a second.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from k3lab.errors import BadInput, expect

COLS = 128  # hidden columns of a slice, one attention CTA each
ROWS = 16  # weight rows of a GEMV task: one MFMA tile
KCH = 128  # K columns of a chunk: four MFMAs of K 32
HELD_TASKS = 4  # GEMV tasks whose sums a CTA holds at once
WAVES = 8  # waves of a CTA; wave w takes chunks w, w + 8, ...
LANES = 64
THREADS = WAVES * LANES
LDS_PAD = 8  # bf16 elements padded to each token row in LDS
LDS_BYTES = 160 * 1024
TAG_SLOTS = 256  # launches a step's tags can tell apart
SLICE_GROUPS = 8  # slices are summed in 8 groups of NA / 8
HEAD_DIM = 128  # KDA head width: q, k, v and gate alike
CONV_WIDTH = 4
V_CHUNKS = HEAD_DIM // 16  # value chunks of 16 state rows of a KDA head
NOPE, ROPE = 128, 64
MX_BLOCK = 32  # values that share one E8M0 scale
K3_HEADS = 96
TP_SIZES = (1, 2, 4, 8)


@dataclass(frozen=True)
class Geometry:
    """The sizes a rank sees; everything else is derived from these.

    Raises:
        BadInput: when the sizes break a rule the launches rely on (`validate`).
    """

    name: str
    hidden: int
    heads: int  # local heads of a rank
    tp: int
    q_lora: int
    kv_lora: int
    blocks: int  # CTAs of a launch

    def __post_init__(self) -> None:
        self.validate()

    @classmethod
    def k3(cls, tp: int = 8) -> Geometry:
        """Kimi-K3 as one of `tp` ranks sees it (tp divides 8)."""
        if tp not in TP_SIZES:
            raise BadInput(f"tp: expected one of {TP_SIZES}, got {tp!r}.")
        return cls("k3", hidden=7168, heads=K3_HEADS // tp, tp=tp, q_lora=1536, kv_lora=512, blocks=256)

    @classmethod
    def mini(cls) -> Geometry:
        """The same structure at test size: 16 attention CTAs, 2 heads, 48 CTAs, TP 2, a ragged K of 1280."""
        return cls("mini", hidden=2048, heads=2, tp=2, q_lora=1280, kv_lora=512, blocks=48)

    @classmethod
    def named(cls, name: str, tp: int | None = None) -> Geometry:
        """`k3` (with `tp`) or `mini` by name."""
        if name == "k3":
            return cls.k3(8 if tp is None else tp)
        if name == "mini" and tp in (None, 2):
            return cls.mini()
        raise BadInput(f"geometry: expected 'k3' or 'mini' (tp 2), got {name!r} with tp {tp!r}.")

    @property
    def na(self) -> int:
        """Attention CTAs: one for each slice of 128 hidden columns."""
        return self.hidden // COLS

    @property
    def proj(self) -> int:
        """A rank's columns of q, of k, of v, of the gate; the K of o_proj."""
        return self.heads * HEAD_DIM

    @property
    def nproj_pad(self) -> int:
        """Zero rows that fill in_proj up to whole GEMV tasks."""
        return -self.heads % ROWS

    @property
    def nproj(self) -> int:
        """KDA in_proj rows: q, k, v, g, f_a, beta, pad."""
        return 4 * self.proj + HEAD_DIM + self.heads + self.nproj_pad

    @property
    def conv_channels(self) -> int:
        """Channels of the short convolution: q, k and v."""
        return 3 * self.proj

    @property
    def entry(self) -> int:
        """Width of a cache entry and of an absorbed query head."""
        return self.kv_lora + ROPE

    @property
    def qkv_a(self) -> int:
        """Rows of MLA's fused_qkv_a: q_c, kv_c, k_pe."""
        return self.q_lora + self.kv_lora + ROPE

    @property
    def q_b(self) -> int:
        """Rows of MLA's q_b: a head's 128 nope, then 64 pe."""
        return self.heads * (NOPE + ROPE)

    @property
    def kv_b(self) -> int:
        """Rows of kv_b_proj: a head's 128 K rows, then its 128 V rows."""
        return self.heads * 2 * NOPE

    @property
    def all_heads(self) -> int:
        return self.heads * self.tp

    @property
    def owner_cols(self) -> int:
        """Hidden columns a rank owns in the two-shot all-reduce."""
        return self.hidden // self.tp

    def tasks(self, rows: int) -> int:
        """GEMV tasks of a weight with `rows` rows."""
        return -(-rows // ROWS)

    def validate(self) -> None:
        """Check every relation the launches rely on.

        Raises:
            BadInput: naming the size, the rule and the value.
        """
        where = f"geometry {self.name!r}"
        for label in ("hidden", "heads", "tp", "q_lora", "kv_lora", "blocks"):
            size = getattr(self, label)
            expect(type(size) is int, f"{where} {label}", "a whole number", repr(size))
        expect(self.hidden > 0 and self.hidden % COLS == 0, f"{where} hidden", f"a multiple of {COLS}", self.hidden)
        expect(self.tp in TP_SIZES, f"{where} tp", f"one of {TP_SIZES}", self.tp)
        expect(
            self.na % SLICE_GROUPS == 0 and self.na % self.tp == 0,
            f"{where} attention CTAs",
            f"a multiple of {SLICE_GROUPS} and of tp {self.tp}",
            self.na,
        )
        expect(self.heads >= 1, f"{where} heads", "at least 1", self.heads)
        for label, size in (("q_lora", self.q_lora), ("kv_lora", self.kv_lora)):
            expect(size >= 512 and size % 256 == 0, f"{where} {label}", "a multiple of 256, at least 512", size)
        latents = self.q_lora + self.kv_lora
        expect(latents <= 2048, f"{where} q_lora + kv_lora", "at most 2048 (512 threads x 4 columns)", latents)
        expect(self.blocks > self.na, f"{where} blocks", f"more than the {self.na} attention CTAs", self.blocks)
        expect(self.nproj % ROWS == 0, f"{where} in_proj rows", f"a multiple of {ROWS}", self.nproj)

    def to_dict(self) -> dict[str, object]:
        """The seven free sizes, as JSON holds them."""
        return asdict(self)
