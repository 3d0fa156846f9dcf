"""Wrong K2a kernels: one thing flipped each, as a slip of the hand would, with the test that catches it.

`EQUIVALENT` ones change nothing that a launch leaves: in what order, how often or where nobody looks.
"""

from __future__ import annotations

from tests.mutation import Mutant

PUSH, REDUCE, ROLE = "stages/oproj/push/kernel.py", "stages/oproj/reduce/kernel.py", "stages/oproj/role.py"
SLICE, PEERS, ROLES = "stages/attnres/slice/kernel.py", "device/peers.py", "kernels/k2a.py"

ONE_TAGGED, TWO_TAGGED = "every_detector and one-tagged", "every_detector and two-tagged"
ONE_SENTINEL, TWO_SENTINEL = "every_detector and one-sentinel", "every_detector and two-sentinel"
RANK_ORDER = "summed_in_rank_order and one-tagged"
MORE_RANKS = "equals_the_twin and r4"
BLOCKED = "summed_in_rank_order and one-sentinel"
NANS = "arrive_as_nan"
TILES = "equals_the_twin and S4 and few and not ahead"
AHEAD = "equals_the_twin and S4 and few and ahead"
TILES_AHEAD = "equals_the_twin and S4 and many and ahead"
FEW = "equals_the_twin and few"
MANY = "equals_the_twin and many"
RESET = "equals_the_twin and reset"
ZEROS = "negative_zeros"
ALONE = "named_alone"
ROUNDS = "second_round"

# Of test_k2a_chains.py.
EVEN = "keep_the_reuse_rule and one-tagged-even"
ODD = "keep_the_reuse_rule and one-tagged-odd"
ARMED = "keep_the_reuse_rule and sentinel-odd"
SIZES = "different_sizes"
CHAINS = (EVEN, ODD, ARMED, SIZES)

SUMMED, KEPT = "        words = _sum(c, ar, item)\n", "        _keep(c, lds, item, words)\n"
DISARMED = """        if const_expr(c.key.sentinel):
            words = Vector.from_elements([disarmed(words[i]) for i in range(WORDS)], Int32)
"""

CAUGHT = (
    # The sum.
    Mutant("sum from the last rank", REDUCE, "for partial in partials])", "for partial in reversed(partials)])",
           RANK_ORDER),
    Mutant("sum from the own rank", REDUCE, "item.index(c, Int32(source)), WORDS) for source",
           "item.index(c, other_rank(c, source)), WORDS) for source", RANK_ORDER),
    Mutant("sum from zero", REDUCE, "from_words, in_order\n", "from_words, from_zero as in_order\n", ZEROS),
    Mutant("sum rounded at every rank", REDUCE, "import bf16_words, from_words, in_order\n",
           "import bf16_words, from_words, rnd\nfrom functools import reduce as fold\n\n\ndef in_order(values):\n"
           "    return fold(lambda a, b: rnd(a + b), values)\n\n\n", MORE_RANKS),
    Mutant("last rank left out", REDUCE, "WORDS) for source in range(c.key.ranks)]",
           "WORDS) for source in range(c.key.ranks - 1)]", ONE_TAGGED),
    Mutant("prefix kept at a reset", SLICE, "    if c.key.reset:\n        return words\n", "", RESET),
    # Whose columns are whose.
    Mutant("wrong owner of a task", ROLE, "task // (key.geometry.hidden // ROWS // key.ranks)", "task % key.ranks",
           TWO_TAGGED),
    Mutant("wrong owner of a slice", ROLE, "number // (key.geometry.hidden // COLS // key.ranks)",
           "number % key.ranks", TWO_SENTINEL),
    Mutant("result into slot 0", REDUCE, "item.index(c, c.args.rank), [words[0]", "item.index(c, Int32(0)), [words[0]",
           TWO_TAGGED),
    Mutant("result taken from the own slot", REDUCE, "_items(c), owner_of_slice(c.key, c.cta)",
           "_items(c), c.args.rank", TWO_TAGGED),
    Mutant("result sent to ranks past 0", REDUCE, 'peers.region(c, "AR", other_rank(c, i))',
           'peers.region(c, "AR", Int32(i))', TWO_SENTINEL),
    Mutant("partial not to the own rank", PUSH, "for i in range_constexpr(c.key.ranks):",
           "for i in range_constexpr(1, c.key.ranks):", ONE_SENTINEL),
    # Where words lie.
    Mutant("tokens outside ranks", ROLE, "(source * c.key.tokens + token) * words",
           "(token * c.key.ranks + source) * words", RANK_ORDER),
    Mutant("armed words not in groups", ROLE, "return sent_ix(c, source, token, word)\n",
           "return (source * c.key.tokens + token) * words + word\n", BLOCKED),
    Mutant("halves by this build's size", PEERS, "half * c.args.half_bytes", "half * c.places[name].nbytes", SIZES),
    Mutant("first tile's rows again", PUSH, "load_core(c, p, first)", "load_core(c, p, 0)", TILES),
    Mutant("first tile's rows again, a task ahead", PUSH, "load_core(c, p, first, part, meanwhile)",
           "load_core(c, p, 0, part, meanwhile)", AHEAD),
    Mutant("token past the last sent", PUSH, "first + token < c.key.tokens", "first + token >= 0", TILES),
    Mutant("task past the last sent", PUSH, "there if real is None else there & real", "there", TILES_AHEAD),
    Mutant("first looped task left out", PUSH, "range(len(issued), tasks.count)",
           "range(len(issued) + 1, tasks.count)", FEW),
    Mutant("task past the last", ROLES, "if tasks.number(tasks.count - 1) < tasks.total:",
           "if tasks.number(tasks.count - 1) <= tasks.total:", MANY),
    Mutant("last items not taken", REDUCE, "-(-c.key.tokens * LANES_A_ROW // 64) * 64)",
           "(c.key.tokens * LANES_A_ROW // 64) * 64)", ONE_TAGGED),
    # The sentinel.
    Mutant("no re-arm", ROLES, "reduce.rearm_ar(c, peers)", "pass", ONE_SENTINEL),
    Mutant("re-arm too early", ROLES, "            reduce.run(c, lds, peers)\n",
           "            if const_expr(c.key.sentinel):\n                reduce.rearm_ar(c, peers)\n"
           "            reduce.run(c, lds, peers)\n", ARMED),
    Mutant("re-arm as soon as a thread has its words", REDUCE, "_keep(c, lds, item, _sum(c, ar, item))",
           "_keep(c, lds, item, _sum(c, ar, item)), rearm_ar(c, peers) if c.key.sentinel else None", ROUNDS),
    Mutant("rank 0's words not re-armed", REDUCE, "    for source in range(c.key.ranks):\n        rearm(",
           "    for source in range(1, c.key.ranks):\n        rearm(", ONE_SENTINEL),
    Mutant("owner re-arms its own words only", REDUCE, "c.args.rank:\n                    _rearm_all(c, ar, item)",
           "c.args.rank:\n                    rearm(ar, item.index(c, owner), WORDS)", TWO_SENTINEL),
    Mutant("result not re-armed", REDUCE, "rearm(ar, item.index(c, owner), WORDS)",
           "rearm(ar, item.index(c, c.args.rank), WORDS)", TWO_SENTINEL),
    Mutant("other half re-armed", REDUCE, '    """After a sentinel reduce: arm what this thread polled again, for the '
           'half\'s next use."""\n    ar = peers.region(c, "AR", c.args.rank)\n',
           '    peers.epoch = peers.epoch + 1\n    ar = peers.region(c, "AR", c.args.rank)\n', ONE_SENTINEL),
    Mutant("duplicates re-arm too", REDUCE, "        if item.fresh:\n            if const_expr(",
           "        if item.token >= 0:\n            if const_expr(", TWO_SENTINEL),
    Mutant("partial's sentinel not remapped", PUSH, "[disarmed(word) if c.key.sentinel else word]", "[word]", NANS),
    Mutant("result's sentinel not remapped", REDUCE, "[disarmed(words[i]) for i in range(WORDS)]",
           "[words[i] for i in range(WORDS)]", NANS),
    Mutant("owner keeps its sum as it was", REDUCE, SUMMED + DISARMED + KEPT, SUMMED + KEPT + DISARMED, NANS),
    Mutant("only the first word awaited", PEERS, "(words[i] == SENTINEL).select", "(words[0] == SENTINEL).select",
           ALONE),
    # Hand-offs.
    Mutant("half by epoch alone", PEERS, "half = (self.epoch * c.args.uses + c.args.use) & 1", "half = self.epoch & 1",
           ODD),
    Mutant("half by use alone", PEERS, "half = (self.epoch * c.args.uses + c.args.use) & 1", "half = c.args.use & 1",
           ONE_TAGGED),
    Mutant("half by launches of one use", PEERS, "half = (self.epoch * c.args.uses + c.args.use) & 1",
           "half = (self.epoch + c.args.use) & 1", EVEN),
    Mutant("pairs at device scope", PEERS, "return Pairs(name, resource, offset, SYSTEM)",
           "return Pairs(name, resource, offset, 16)", ONE_TAGGED),
    Mutant("armed words at device scope", PEERS, "resource, offset, SYSTEM, c.tag)", "resource, offset, 16, c.tag)",
           TWO_SENTINEL),
    Mutant("no barrier after the reduce", REDUCE, "_keep(c, lds, item, _sum(c, ar, item))\n    gpu.barrier()\n",
           "_keep(c, lds, item, _sum(c, ar, item))\n", ONE_TAGGED),
)  # fmt: skip

EQUIVALENT = (
    # All ranks are sent to, whoever comes first.
    Mutant("rank 0 sent to first", PUSH, 'peers.region(c, "AR", other_rank(c, i))', 'peers.region(c, "AR", Int32(i))',
           ONE_TAGGED),
    # Where a rank does not own a slice, only its owner writes: the other slots have stayed armed.
    Mutant("others arm every slot", REDUCE, "rearm(ar, item.index(c, owner), WORDS)", "_rearm_all(c, ar, item)",
           TWO_SENTINEL),
    # Tasks of a CTA may come in any order: nothing here waits for another task.
    Mutant("weights in flight for one task fewer", PUSH, "min(tasks.count, UNROLLED))",
           "min(tasks.count, UNROLLED - 1))", FEW),
)  # fmt: skip
