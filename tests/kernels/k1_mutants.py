"""Wrong K1 kernels: one thing flipped each, as a slip of the hand would, with the test that catches it.

`EQUIVALENT` ones change nothing that a launch computes: addition commutes, and hand-offs may be awaited in any order.
"""

from __future__ import annotations

from tests.mutation import Mutant

FLOATS, WAVE, MAILBOX = "device/floats.py", "device/wave.py", "device/mailbox.py"
SLICE = "stages/attnres/slice/kernel.py"
GATE = "stages/attnres/gate/kernel.py"
MIX = "stages/attnres/mix/kernel.py"
GEMV, PRODUCT, ROWS, TASKS = (f"stages/gemv/{name}.py" for name in ("kernel", "product", "rows", "tasks"))
CONV = "stages/kda/conv/kernel.py"
GATES = "stages/kda/gates/kernel.py"
RECUR = "stages/kda/recur/kernel.py"
ONORM = "stages/kda/norm/kernel.py"
TASK = "stages/kda/task.py"
ROLES = "kernels/k1.py"

BITS = "one_small_launch"
WATCHED = "no_finding and default"
VARIED = "no_finding and (default or relaxed)"
ZEROS = "zeros_tell"
NULLS = "null_slots"
STEPS = "steps_in_a_row"
MANY = "many_tokens"
ORDERS = "another_order"
WEIGHTS = "overflow_when_taken_first"
LAST = "comes_last"
ALL = "where_all_multiply and default"
PAIR = "one_stale_pair"
"""Of tests/device/test_mailbox.py: a lane stores both pairs in one go, so no simulated launch tears them apart."""

CAUGHT = (
    # Orders.
    Mutant("columns in pairs", FLOATS, "((values[0] + values[1]) + values[2]) + values[3]",
           "(values[0] + values[1]) + (values[2] + values[3])", BITS),
    Mutant("half wave starts near", WAVE, "    x = _far(x, 16, combine)\n    for control in NEAR:\n",
           "    x = combine(x, dpp(x, QUAD_XOR_1))\n    x = _far(x, 16, combine)\n    for control in NEAR[:-1]:\n",
           BITS),
    Mutant("slices dealt in turn", GATE, "group * width + i for i", "group + SLICE_GROUPS * i for i", BITS),
    Mutant("mean square dealt in turn", MIX, "lds.msq.load((g * width + i) *", "lds.msq.load((g + SLICE_GROUPS * i) *",
           ORDERS),
    Mutant("l2 over neighbours", GATES, "first = vector * HEAD_DIM + c.lane\n    low, high = lds.qk.load(first), "
           "lds.qk.load(first + LANES)", "first = vector * HEAD_DIM + 2 * c.lane\n    low, high = lds.qk.load(first), "
           "lds.qk.load(first + 1)", BITS),
    Mutant("mix from the first", MIX, "from_zero([e[s]", "in_order([e[s]", ZEROS),
    Mutant("taps from the first", CONV, "z = from_zero(", "z = (lambda v: ((v[0] + v[1]) + v[2]) + v[3])(", ZEROS),
    Mutant("waves backwards", PRODUCT, "width) for w in range(WAVES)]", "width) for w in reversed(range(WAVES))]",
           ORDERS),
    # Parts of K and several tasks.
    Mutant("a part's sums dropped", TASKS, "tasks, issued, part, held)", "tasks, issued, part)", ALL),
    Mutant("the first part's columns again", ROWS, "column + begin if begin else column", "column", ALL),
    Mutant("the first part's weights again", TASKS, "p.rounds_of(part)[: p.depth]", "p.rounds_of(0)[: p.depth]", ALL),
    Mutant("the first rounds twice", TASKS, "p.rounds_of(0)[p.depth : p.depth + p.ahead]", "p.rounds_of(0)[: p.ahead]",
           ALL),
    Mutant("tasks from the attention CTAs on", TASKS, "(c.cta - c.key.gemv0) * count", "(c.cta - c.g.na) * count", ALL),
    # Arithmetic and roundings.
    Mutant("log2 e on rstd", GATE, "(dot * rms_scale(square, c.g.hidden, c.key.eps)) * F32(LOG2E)",
           "dot * (rms_scale(square, c.g.hidden, c.key.eps) * F32(LOG2E))", BITS),
    Mutant("query without its norm weight", SLICE, "keyed = [w * q for", "keyed = [q for", BITS),
    Mutant("conv output not rounded", CONV, "out = rnd(z * sigmoid(z))", "out = z * sigmoid(z)", BITS),
    Mutant("g1 not rounded", GATES, "(rnd(acc[i])", "(acc[i]", BITS),
    Mutant("proj not rounded", GEMV, "task * ROWS + row, rnd(value))", "task * ROWS + row, value)", BITS),
    Mutant("q scaled after its factor", GATES, "factor = ((vector & 1) == 0).select(factor * F32(HEAD_DIM**-0.5), "
           "factor)", "low = ((vector & 1) == 0).select(low * F32(HEAD_DIM**-0.5), low)\n    high = ((vector & 1) == 0)"
           ".select(high * F32(HEAD_DIM**-0.5), high)", BITS),
    Mutant("norm weight on the factor", ONORM, "((lds.o.load(c.tid) * r) * low_bf16(issued.weight.to(Int32)))",
           "(lds.o.load(c.tid) * (r * low_bf16(issued.weight.to(Int32))))", WEIGHTS),
    Mutant("state before decay", RECUR, "state = [state[i] * decay[i] for i in range(4)]\n        predicted = bfly32("
           "sum4([state[i] * k[i] for i in range(4)]))", "predicted = bfly32(sum4([state[i] * k[i] for i in range(4)]))"
           "\n        state = [state[i] * decay[i] for i in range(4)]", BITS),
    # What goes where.
    Mutant("window one late", CONV, "task.accepted + i))", "task.accepted + i + 1))", BITS),
    Mutant("carried entries one early", CONV, "*issued.window[1:]", "*issued.window[:2]", BITS),
    Mutant("null conv slot stored", CONV, "if task.conv_slot > 0:", "if task.conv_slot >= 0:", NULLS),
    Mutant("null conv slot not clamped", CONV, "readable(task.conv_slot), task", "task.conv_slot, task", NULLS),
    Mutant("null first slot alive", TASK, "return self.first_slot > 0", "return self.first_slot >= 0", NULLS),
    Mutant("duplicate token stored", MIX, "    if token < c.key.tokens:\n        rows, first =", "    if token >= 0:\n"
           "        rows, first =", BITS),
    Mutant("task past the last published", GEMV, "if (task < tasks.total) & (token < c.key.tokens):",
           "if token < c.key.tokens:", WATCHED),
    Mutant("token past the last published", GEMV, "if (task < tasks.total) & (token < c.key.tokens):",
           "if task < tasks.total:", MANY),
    # Hand-offs.
    Mutant("no drain before the flag", MAILBOX, "    rocdl.s_waitcnt(vmcnt=0)\n    gpu.barrier()\n    _put_flag",
           "    gpu.barrier()\n    _put_flag", WATCHED),
    Mutant("no barrier before the flag", MAILBOX, "    rocdl.s_waitcnt(vmcnt=0)\n    gpu.barrier()\n    _put_flag",
           "    rocdl.s_waitcnt(vmcnt=0)\n    _put_flag", WATCHED),
    Mutant("tag without its slot", MAILBOX, "* TAG_SLOTS) + slot + 1", "* TAG_SLOTS) + 1", "tags_of_their_own"),
    Mutant("tag of the epoch before", MAILBOX, "(epoch & (EPOCHS - 1))", "((epoch >> 1) & (EPOCHS - 1))", STEPS),
    Mutant("tag that does not wrap", MAILBOX, "(epoch & (EPOCHS - 1))", "(epoch & (EPOCHS // 2 - 1))", STEPS),
    Mutant("only the first spec awaited", MAILBOX, "    for words in seen:\n", "    for words in seen[:1]:\n", LAST),
    Mutant("only the first pair awaited", MAILBOX, "range(1, words.numel, 2)", "range(1, 2, 2)", PAIR),
    Mutant("pairs at workgroup scope", "device/context.py", "self.places[name].offset, DEVICE)",
           "self.places[name].offset, 0)", WATCHED),
    Mutant("rows written at workgroup scope", MIX, "c.g.hidden + column) * 2, DEVICE)",
           "c.g.hidden + column) * 2, 0)", WATCHED),
    Mutant("rows read at workgroup scope", ROWS, "column) * 2, 4, DEVICE)", "column) * 2, 4, 0)", VARIED),
    Mutant("no barrier after the rows", ROWS, "    if c.tid == 0:\n        p.x.store(fx.Vector.filled(LANE_K, 0.0, "
           "BF16), p.tokens * p.row)\n    gpu.barrier()\n", "    if c.tid == 0:\n        p.x.store(fx.Vector.filled("
           "LANE_K, 0.0, BF16), p.tokens * p.row)\n", WATCHED),
    Mutant("no barrier before the squares", RECUR, "    gpu.barrier()\n    if c.tid < c.key.qlen:\n        squares",
           "    if c.tid < c.key.qlen:\n        squares", WATCHED),
    Mutant("no barrier before a part's rows", TASKS, "        if const_expr(number > 0):\n            gpu.barrier()",
           "        if const_expr(number < 0):\n            gpu.barrier()", ALL),
    Mutant("x not awaited", GEMV, "    wait_x(c)\n", "", WATCHED),
)  # fmt: skip

EQUIVALENT = (
    # Still a permutation of the tasks over the CTAs: no result depends on the deal.
    Mutant("tasks dealt the other way", ROLES, "shifted = c.cta - c.key.kda0", "shifted = c.key.kda0 - c.cta", "deals"),
    # A wave's tile starts from +0.0 and is therefore never -0.0.
    Mutant("waves from the first", PRODUCT, "floats import from_zero\n", "floats import in_order as from_zero\n",
           ZEROS),
    Mutant("butterfly's operands swapped", WAVE, "combine(low.bitcast(F32), high.bitcast(F32))",
           "combine(high.bitcast(F32), low.bitcast(F32))", BITS),
    Mutant("fewer rows in flight", ROWS, "ROWS_IN_FLIGHT = 8", "ROWS_IN_FLIGHT = 2", BITS),
    Mutant("fewer sources in flight", SLICE, "AT_ONCE = 8", "AT_ONCE = 1", MANY),
    Mutant("slots clamped by a comparison", TASK, "return fx.max(slot, Int32(0))",
           "return (slot > 0).select(slot, Int32(0))", NULLS),
)  # fmt: skip
