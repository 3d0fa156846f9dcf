"""Wrong M1a kernels: one thing flipped each, as a slip of the hand would, with the test that catches it."""

from __future__ import annotations

from tests.mutation import Mutant

NARROW, PEERS = "device/narrow.py", "device/peers.py"
PROJ, NORM, QB = (f"stages/mla/{stage}/kernel.py" for stage in ("proj", "norm", "qb"))
UK, UNPACK = (f"stages/mla/{stage}/kernel.py" for stage in ("uk", "unpack"))
QUERY, ROLE = "stages/mla/query.py", "stages/mla/role.py"

BLOCKS = "every_kind and False"
STATED = "stated_mxfp4_blocks"
WATCHED = "every_detector"
NORMED = "stated_order"
SLOTS = "another_ranks"
GATHER = "pads_repeat and 3"

CAUGHT = (
    # Formats.
    Mutant("scale rounded down", NARROW, "reduce(fx.max, halves) + EVEN_HALF", "reduce(fx.max, halves)", BLOCKS),
    Mutant("scale code 0", NARROW, "E2M1_EXPONENT, Int32(1))", "E2M1_EXPONENT, Int32(0))", "every_kind and True"),
    Mutant("signs in the magnitude", NARROW, "(pair & MAGNITUDE,", "(pair & 0xFFFF,", BLOCKS),
    Mutant("saturated above only", NARROW, "return (x < F32(-E4M3_MAX)).select(F32(-E4M3_MAX), x)", "return x", BLOCKS),
    Mutant("fp8 high bytes first", NARROW, "(T.i32, a, b, Int32(0), False)", "(T.i32, b, a, Int32(0), False)", WATCHED),
    Mutant("swapped nibbles", NARROW, "from_elements([pair], Int32)",
           "from_elements([(pair << 16) | ((pair >> 16) & 0xFFFF)], Int32)", STATED),
    Mutant("clamp missing", NARROW, "(saturated(value) for value in values)", "values", BLOCKS),
    Mutant("FNUZ's bias", NARROW, "(saturated(value) for value in values)", "(saturated(x + x) for x in values)",
           BLOCKS),
    Mutant("FNUZ's range", NARROW, "E4M3_MAX = 448.0", "E4M3_MAX = 240.0", BLOCKS),
    Mutant("scales swapped", UK, "task.scale, code)\n", "code, task.scale)\n", BLOCKS),
    # Roundings.
    Mutant("query straight to fp8", QUERY, "fp8_word([rnd(value) for value in values])", "fp8_word(values)", WATCHED),
    Mutant("kv straight to fp8", NORM, "fp8_word([rnd(x) for x in normed])", "fp8_word(normed)", WATCHED),
    Mutant("gate from fp32", PROJ, "sigmoid(rnd(value))", "sigmoid(value)", WATCHED),
    # Orders, constants.
    Mutant("q waves backwards", NORM, "wave in range(at.q_waves)]", "wave in reversed(range(at.q_waves))]", NORMED),
    Mutant("weight on the factor", NORM, "(x * scale) * w for", "x * (scale * w) for", NORMED),
    Mutant("kv mean over both", NORM, "rms_scale(kv_sum, c.g.kv_lora,", "rms_scale(kv_sum, c.g.q_lora,", WATCHED),
    # What goes where.
    Mutant("another rank's token stored", NORM, "if slot >= 0:", "if slot >= -1:", SLOTS),
    Mutant("k_pe over the latent", NORM, "place + c.g.kv_lora // COLUMNS", "place", WATCHED),
    Mutant("pe words over the latent's", QB, "(column + c.g.kv_lora) >> 2", "column >> 2", WATCHED),
    Mutant("pads repeat the last heads", UNPACK, "slot < c.key.q_heads - heads", "slot >= 2 * heads - c.key.q_heads",
           GATHER),
    Mutant("pad head off by one", UNPACK, "put_q(c, token, slot + heads, word, held)",
           "put_q(c, token, slot + heads - 1, word, held)", GATHER),
    Mutant("a pad too few", UNPACK, "c.key.q_heads - heads:", "c.key.q_heads - heads - 1:", GATHER),
    Mutant("sources backwards", UNPACK, "source * c.g.heads + entry", "(c.key.ranks - 1 - source) * c.g.heads + entry",
           GATHER),
    Mutant("own rank left out", QUERY, "for i in range(c.key.ranks)]", "for i in range(1, c.key.ranks)]", GATHER),
    # Hand-offs.
    Mutant("q_c not awaited", QB, '    wait_flags(c, c.pairs("QCR"), c.key.tokens)\n', "", WATCHED),
    Mutant("always the first half", PEERS, "half = (self.epoch * c.args.uses + c.args.use) & 1", "half = 0",
           "halves_in_turn"),
    Mutant("half by use alone", PEERS, "half = (self.epoch * c.args.uses + c.args.use) & 1", "half = c.args.use & 1",
           "halves_in_turn"),
)  # fmt: skip

EQUIVALENT = (
    Mutant("pe tasks elsewhere", ROLE, "c.key.qb0)", "c.key.qb0 - 5)", WATCHED),
    Mutant("fewer W_UK CTAs", ROLE, "min(int(key.uk_ctas),", "min(5,", WATCHED),
)  # fmt: skip
