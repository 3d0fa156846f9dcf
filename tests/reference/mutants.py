"""Wrong twins: one expression changed each, as a slip of the hand would.

A row is (name, file, old, new, tests); `old` occurs once in the file, `tests` picks the quick tests that must fail.
"""

from __future__ import annotations

from tests.mutation import Mutant

SLICE = "stages/attnres/slice/twin.py"
GATE = "stages/attnres/gate/twin.py"
MIX = "stages/attnres/mix/twin.py"
CONV = "stages/kda/conv/twin.py"
GATES = "stages/kda/gates/twin.py"
RECUR = "stages/kda/recur/twin.py"
ONORM = "stages/kda/norm/twin.py"
PROJ = "stages/mla/proj/twin.py"
LATENT = "stages/mla/norm/twin.py"
QB = "stages/mla/qb/twin.py"
UK = "stages/mla/uk/twin.py"
UNPACK = "stages/mla/unpack/twin.py"
REDUCE = "stages/oproj/reduce/twin.py"
BASE = "arith/base.py"
ORDERS = "arith/orders.py"
PLANS = "arith/plans.py"

ROWS_128 = "COLUMNS_128 = Order((Chain(4), Butterfly(32)))"
HEAD = "HEAD_128 = Order((Strided(HEAD_DIM // LANES), Butterfly(LANES)))"
WAVES = "Order((Chain(4), Butterfly(LANES), Chain(width // (4 * LANES))))"
GROUPS = "Order((Chain(na // SLICE_GROUPS), Chain(SLICE_GROUPS)))"
RMS = "sumsq * self.const(1.0 / width) + self.const(eps)"
DECAYED = "state = state * decay[:, :, None, :]\n    predicted = a.sum(state * k[:, :, None, :], COLUMNS_128)"
SQUARES = "(o * o).unflatten(-1, (V_CHUNKS, -1))"
JOIN = "FROM_ZERO.fold(sums.movedim(-3, -1))"

K1_ZEROS = "k1 and (outliers or zeros or Zeros or key_weights)"
M1A_ZEROS = "m1a and (outliers or zeros or Zeros)"

CAUGHT = (
    # The seam.
    Mutant(
        "key norm weight times v first",
        SLICE,
        "vals * (t.ares_nw * t.ares_qk)",
        "vals * t.ares_nw * t.ares_qk",
        "key_weights",
    ),
    Mutant("log2 e times rstd first", GATE, "(dot * rstd) * a.log2e", "dot * (rstd * a.log2e)", "k1"),
    Mutant("log2 e times dot first", GATE, "(dot * rstd) * a.log2e", "(dot * a.log2e) * rstd", "k1"),
    Mutant(
        "log2 e after the max",
        GATE,
        "(dot * rstd) * a.log2e\n    e = a.exp2(logit - logit.amax(-1, keepdim=True))",
        "dot * rstd\n    e = a.exp2((logit - logit.amax(-1, keepdim=True)) * a.log2e)",
        "k1",
    ),
    Mutant("denominator in order", GATE, "import LANES_64", "import FROM_FIRST as LANES_64", "k1"),
    Mutant("mix times a reciprocal", MIX, "FROM_ZERO) / den", "FROM_ZERO) * (1.0 / den)", "k1"),
    Mutant(
        "weights divided before the mix",
        MIX,
        "(e[:, :, None] * t.vals).movedim(1, -1), FROM_ZERO) / den",
        "((e / den)[:, :, None] * t.vals).movedim(1, -1), FROM_ZERO)",
        "k1",
    ),
    Mutant("sources reversed", MIX, ".movedim(1, -1), FROM_ZERO)", ".movedim(1, -1).flip(-1), FROM_ZERO)", "k1"),
    Mutant("mix from the first source", MIX, "import FROM_ZERO", "import FROM_FIRST as FROM_ZERO", "mix_and_taps"),
    Mutant("norm weight times r first", MIX, "normed * t.in_nw", "mixed * (r[:, None] * t.in_nw)", "k1"),
    Mutant("slice by a chain of threads", ORDERS, ROWS_128, ROWS_128.replace("Butterfly", "Chain"), "k1"),
    Mutant("slice's threads strided", ORDERS, ROWS_128, "COLUMNS_128 = Order((Strided(4), Butterfly(32)))", "k1"),
    Mutant(
        "groups of slices the other way",
        ORDERS,
        GROUPS,
        "Order((Chain(SLICE_GROUPS), Chain(na // SLICE_GROUPS)))",
        "k1",
    ),
    # Elementary functions.
    Mutant("eps added to the sum", BASE, RMS, "(sumsq + self.const(eps)) * self.const(1.0 / width)", "k1"),
    Mutant("division by the width", BASE, RMS, "sumsq / width + self.const(eps)", "m1a"),
    Mutant("torch's sigmoid", BASE, "1.0 / (1.0 + self.exp2(-z * self.log2e))", "torch.sigmoid(z)", "k1"),
    Mutant("torch's exp", BASE, "self.exp2(x * self.log2e)\n", "torch.exp(x)\n", "k1"),
    # Matrix products.
    Mutant("waves reversed", PLANS, JOIN, "FROM_ZERO.fold(sums.movedim(-3, -1).flip(-1))", "k1"),
    Mutant("waves from the first", PLANS, "import FROM_ZERO", "import FROM_FIRST as FROM_ZERO", "waves_start"),
    Mutant(
        "chunk rounds reversed", PLANS, "for chunk_round in dealt for", "for chunk_round in dealt.flip(0) for", "k1"
    ),
    Mutant(
        "missing chunk's weights zero", PLANS, "[w[..., -KCH:]]", "[torch.zeros_like(w[..., -KCH:])]", "infinite_weight"
    ),
    Mutant("missing chunk's weights the first", PLANS, "[w[..., -KCH:]]", "[w[..., :KCH]]", "infinite_weight"),
    Mutant(
        "g1's columns dealt in turn",
        PLANS,
        "movedim(-2, 0)\n        return [step.flatten(-2)",
        "movedim(-3, 0)\n        return [step.flatten(-2)",
        "k1",
    ),
    # KDA.
    Mutant("taps from the first", CONV, "import FROM_ZERO", "import FROM_FIRST as FROM_ZERO", "mix_and_taps"),
    Mutant(
        "taps reversed", CONV, "a.sum(taps * t.conv_w, FROM_ZERO)", "a.sum((taps * t.conv_w).flip(-1), FROM_ZERO)", "k1"
    ),
    Mutant("silu as one division", CONV, "(z * a.sigmoid(z))", "(z / (1.0 + a.exp2(-z * a.log2e)))", "k1"),
    Mutant("null conv slot stored", CONV, "live = slot > 0", "live = slot >= 0", "null_slots"),
    Mutant("l2 lanes take neighbours", ORDERS, HEAD, "HEAD_128 = Order((Chain(2), Butterfly(LANES)))", "k1"),
    Mutant("l2 by threads of four", ORDERS, HEAD, "HEAD_128 = COLUMNS_128", "k1"),
    Mutant("l2 eps added to the mean", GATES, "a.sum(x * x, HEAD_128) +", "a.sum(x * x, HEAD_128) / 128 +", "k1"),
    Mutant("q scaled after its norm", GATES, "q * (_l2_factor(a, q) * scale)", "(q * _l2_factor(a, q)) * scale", "k1"),
    Mutant(
        "bias times the rate by itself",
        GATES,
        "rate * by_head(g1 + t.dt_bias, key)",
        "rate * by_head(g1, key) + rate * t.dt_bias.view(-1, HEAD_DIM)",
        "k1",
    ),
    Mutant(
        "lower bound times log2 e first",
        GATES,
        "a.exp(gate)",
        "a.exp2(a.sigmoid(rate * by_head(g1 + t.dt_bias, key)) * a.const(key.lower_bound * a.log2e))",
        "k1",
    ),
    Mutant(
        "decay after the prediction",
        RECUR,
        DECAYED,
        "predicted = a.sum(state * k[:, :, None, :], COLUMNS_128)\n    state = state * decay[:, :, None, :]",
        "k1",
    ),
    Mutant("decay by value row", RECUR, "state * decay[:, :, None, :]", "state * decay[:, :, :, None]", "k1"),
    Mutant(
        "decay times k first",
        RECUR,
        DECAYED,
        "predicted = a.sum(state * (decay * k)[:, :, None, :], COLUMNS_128)\n    state = state * decay[:, :, None, :]",
        "k1",
    ),
    Mutant(
        "beta times v and p",
        RECUR,
        "(v - predicted) * beta[:, :, None]",
        "v * beta[:, :, None] - predicted * beta[:, :, None]",
        "k1",
    ),
    Mutant(
        "beta times k",
        RECUR,
        "u[..., None] * k[:, :, None, :]",
        "(v - predicted)[..., None] * (beta[:, :, None] * k)[:, :, None, :]",
        "k1",
    ),
    Mutant("null initial slot's states stored", RECUR, "live & (target > 0)", "target > 0", "null_slots"),
    Mutant("null target stored", RECUR, "live & (target > 0)", "live & (target >= 0)", "null_slots"),
    Mutant("16 squares reversed", RECUR, SQUARES, SQUARES + ".flip(-1)", "k1"),
    Mutant("16 squares by a butterfly", RECUR, "128, FROM_ZERO", "128, LANES_64 as FROM_ZERO", "k1"),
    Mutant("ONRM reversed", ONORM, "t.ONRM.movedim(2, 1)", "t.ONRM.movedim(2, 1).flip(-1)", "k1"),
    Mutant("ONRM by a butterfly", ONORM, "import FROM_FIRST", "import LANES_64 as FROM_FIRST", "k1"),
    Mutant("output norm weight times r", ONORM, "(t.o * r[..., None]) * t.on_w", "t.o * (r[..., None] * t.on_w)", "k1"),
    Mutant("output norm weight times the gate", ONORM, "* t.on_w) * a.sigmoid(g)", ") * (t.on_w * a.sigmoid(g))", "k1"),
    Mutant(
        "gate times o first",
        ONORM,
        "((t.o * r[..., None]) * t.on_w) * a.sigmoid(g)",
        "(t.o * a.sigmoid(g) * r[..., None]) * t.on_w",
        "k1",
    ),
    # MLA.
    Mutant("sigmoid of the unrounded gate", PROJ, "a.sigmoid(g), ", "a.sigmoid(a.matmul(t.x, t.w_g, GEMV)), ", "m1a"),
    Mutant("latent waves of 32", ORDERS, WAVES, "Order((Chain(4), Butterfly(32), Chain(width // 128)))", "m1a"),
    Mutant(
        "latent waves by a chain", ORDERS, WAVES, "Order((Chain(4), Chain(LANES), Chain(width // (4 * LANES))))", "m1a"
    ),
    Mutant("latent threads strided", ORDERS, WAVES, WAVES.replace("Chain(4)", "Strided(4)"), "m1a"),
    Mutant(
        "latent waves reversed",
        LATENT,
        "a.sum(v * v,",
        "a.sum((v * v).unflatten(-1, (-1, 256)).flip(-2).flatten(-2),",
        "m1a",
    ),
    Mutant("q's eps for kv", LATENT, "_normed(a, kv, key.kv_eps)", "_normed(a, kv, key.q_eps)", "m1a"),
    Mutant("kv's eps for q", LATENT, "_normed(a, q, key.q_eps)", "_normed(a, q, key.kv_eps)", "m1a"),
    Mutant(
        "q weight times r",
        LATENT,
        "_normed(a, q, key.q_eps) * t.q_nw",
        "q * (a.rms_scale(a.sum(q * q, waves_of_256(g.q_lora)), g.q_lora, key.q_eps)[:, None] * t.q_nw)",
        "m1a",
    ),
    Mutant("another rank's token stored", LATENT, "mine = slots >= 0", "mine = slots >= -1", "slot_0"),
    Mutant("slot 0 taken for null", LATENT, "mine = slots >= 0", "mine = slots > 0", "slot_0"),
    Mutant("pe to fp8 without bf16", QB, '"qb.q_pe_entry", q_pe,', '"qb.q_pe_entry", pe,', "m1a"),
    Mutant("another scale rule", UK, '"mxfp4:even"', '"mxfp4:rceil"', "m1a"),
    Mutant("query to fp8 without bf16", UK, '"uk.q_entry", q,', '"uk.q_entry", latent,', "m1a"),
    Mutant(
        "pads repeat the last heads",
        UNPACK,
        "heads[:, : key.q_heads - heads.shape[1]]",
        "heads[:, 2 * heads.shape[1] - key.q_heads :]",
        "m1a",
    ),
    Mutant(
        "pads reversed",
        UNPACK,
        "heads[:, : key.q_heads - heads.shape[1]]",
        "heads[:, : key.q_heads - heads.shape[1]].flip(1)",
        "m1a",
    ),
    Mutant("heads before ranks", UNPACK, "t.query.movedim(0, 1)", "t.query.movedim(0, 2)", "m1a"),
    # o_proj.
    Mutant(
        "ranks reversed",
        REDUCE,
        "in_order = a.sum(t.partial.",
        "in_order = a.sum(t.partial.flip(0).",
        "ranks_of_unlike",
    ),
    Mutant("ranks by a butterfly", REDUCE, "import FROM_FIRST", "import LANES_64 as FROM_FIRST", "k2a"),
    Mutant("ranks from zero", REDUCE, "import FROM_FIRST", "import FROM_ZERO as FROM_FIRST", "ranks_start"),
    Mutant(
        "each owner's ranks from its own on",
        REDUCE,
        "total = a.option(",
        "in_order = _rotated(a, t.partial)\n    total = a.option(",
        "k2a",
    ),
    Mutant("reset adds to the old prefix", SLICE, "if key.reset:", "if key.reset and False:", "k2a"),
)

EQUIVALENT = (
    # Sums of squares are never -0.0: where they start makes no difference.
    Mutant("16 squares from the first", RECUR, "128, FROM_ZERO", "128, FROM_FIRST as FROM_ZERO", K1_ZEROS),
    Mutant("ONRM from zero", ONORM, "import FROM_FIRST", "import FROM_ZERO as FROM_FIRST", K1_ZEROS),
    Mutant("latent waves from zero", ORDERS, WAVES, WAVES.replace("LANES))))", "LANES), True)))"), M1A_ZEROS),
    # A dot product of -0.0 gives the same weight, exp2(0) = 1, as one of +0.0, and the sum itself is not exposed.
    Mutant(
        "slices from zero",
        ORDERS,
        GROUPS,
        "Order((Chain(na // SLICE_GROUPS, True), Chain(SLICE_GROUPS, True)))",
        K1_ZEROS,
    ),
    # Adding two values commutes.
    Mutant("l2 pairs swapped", GATES, "a.sum(x * x, HEAD_128)", "a.sum((x * x).roll(64, -1), HEAD_128)", K1_ZEROS),
    # -(z log2 e) and (-z) log2 e differ in no bit.
    Mutant("sign after log2 e", BASE, "self.exp2(-z * self.log2e)", "self.exp2(-(z * self.log2e))", K1_ZEROS),
)
"""Changes that no test can see, and why."""
