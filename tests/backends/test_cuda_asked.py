"""Which ballots are only asked whether any lane voted, on graphs made by hand, and what they become."""

from __future__ import annotations

import re

import pytest

from k3lab.backends.cuda.asked import asked
from k3lab.backends.cuda.emit import translate
from k3lab.lowering.ir import Block, HostLaunch, Kernel, Module
from k3lab.lowering.types import parse_type
from tests.backends.made import I32, I64, IN_GLOBAL, Made

I1 = parse_type("i1")
EQUAL, UNEQUAL, SIGNED_ABOVE, BELOW = 0, 1, 4, 6
ANYTHING_ELSE = [
    "shifted",
    "combined",
    "compared with 1",
    "compared with a parameter",
    "stored",
    "chosen",
    "switched on",
]


class Votes(Made):
    """A kernel that votes; its parameters are an address and a number."""

    def __init__(self) -> None:
        super().__init__(IN_GLOBAL, I64)
        self.address, self.number = self.params
        self.zero, self.one = self("llvm.mlir.constant", value=0), self("llvm.mlir.constant", value=1)
        thread = self("rocdl.workitem.id.x", kind=I32)
        self.voted = self("llvm.icmp", thread, thread, kind=I1, of=I32, predicate=SIGNED_ABOVE)

    def ballot(self) -> int:
        return self("rocdl.ballot", self.voted, kind=I64, of=I1)

    def compare(self, one: int, other: int, predicate: int = EQUAL) -> int:
        return self("llvm.icmp", one, other, kind=I1, predicate=predicate)

    def use(self, value: int, how: str) -> None:
        match how:
            case "shifted":
                self("llvm.lshr", value, self.one)
            case "combined":
                self("llvm.and", value, self.number)
            case "compared with 1":
                self.compare(value, self.one)
            case "compared with a parameter":
                self.compare(self.number, value, UNEQUAL)
            case "stored":
                self("llvm.store", value, self.address, kind=None)
            case "chosen":
                self("llvm.select", self.voted, value, self.zero)
            case "switched on":
                self.to((1, ()), (1, ()), when=value)
                self.block()

    def asked(self) -> frozenset[int]:
        return asked(self.graph())

    def text(self, fast: bool) -> str:
        """The kernel's translation."""
        blocks = tuple(Block(f"b{i}", tuple(args), tuple(ops)) for i, (args, ops) in enumerate(self.blocks))
        launch = HostLaunch("votes", (1, 1, 1), (64, 1, 1), 0, (("arg", 0), ("arg", 1)))
        module = Module({"votes": Kernel("votes", blocks, {})}, {}, (launch,), (IN_GLOBAL, I64), "")
        return translate(module, fast).body


def polling(how: str = "", predicate: int = EQUAL) -> tuple[Votes, int, int]:
    """A loop that is handed the ballot before it, then its own, and ends by what it was handed."""
    made = Votes()
    first = made.ballot()
    made.to((1, (first,)))
    (held,) = made.block(I64)
    again = made.ballot()
    made.use(held, how)
    made.to((1, (again,)), (2, ()), when=made.compare(held, made.zero, predicate))
    made.block()
    made.to()
    return made, first, again


class TestAsked:
    @pytest.mark.parametrize("predicate", [EQUAL, UNEQUAL])
    @pytest.mark.parametrize("turned", [False, True])
    def test_a_ballot_that_is_told_from_0(self, predicate, turned):
        made = Votes()
        ballot = made.ballot()
        made.compare(*((made.zero, ballot) if turned else (ballot, made.zero)), predicate)
        made.to()
        assert made.asked() == {ballot}

    @pytest.mark.parametrize("how", ANYTHING_ELSE)
    def test_one_that_is_also_used_otherwise_is_not(self, how):
        made = Votes()
        ballot, other = made.ballot(), made.ballot()
        made.compare(ballot, made.zero)
        made.compare(other, made.zero)
        made.use(ballot, how)
        made.to()
        assert made.asked() == {other}

    @pytest.mark.parametrize("predicate", range(2, 10))
    def test_one_that_is_ordered_against_0_is_not(self, predicate):
        made = Votes()
        ballot = made.ballot()
        made.compare(ballot, made.zero)
        made.compare(ballot, made.zero, predicate)
        made.to()
        assert not made.asked()

    @pytest.mark.parametrize("predicate", [EQUAL, UNEQUAL])
    def test_ballots_that_a_loop_hands_on(self, predicate):
        made, first, again = polling(predicate=predicate)
        assert made.asked() == {first, again}

    @pytest.mark.parametrize("how", [how for how in ANYTHING_ELSE if how != "switched on"])
    def test_what_is_used_otherwise_once_handed_on_is_not(self, how):
        made, _, _ = polling(how)
        assert not made.asked()

    @pytest.mark.parametrize("how", ["", "shifted"])
    def test_one_that_is_handed_on_from_block_to_block(self, how):
        made = Votes()
        ballot = held = made.ballot()
        for number in (1, 2):
            made.to((number, (held,)))
            (held,) = made.block(I64)
        made.compare(held, made.zero)
        made.use(held, how)
        made.to()
        assert made.asked() == ({ballot} if not how else set())

    def test_one_that_a_loop_hands_back_and_then_on(self):
        made = Votes()
        made.to((1, (made.number,)))
        (held,) = made.block(I64)
        ballot = made.ballot()
        made.to((2, (held,)), (1, (ballot,)), when=made.compare(ballot, made.zero))
        (last,) = made.block(I64)
        made.use(last, "shifted")
        made.to()
        assert not made.asked()

    @pytest.mark.parametrize("which", [0, 1])
    def test_of_two_that_share_an_argument_one_is_used_otherwise(self, which):
        """The argument is only told from 0, so the other one is not held up by it."""
        made = Votes()
        made.to((1, ()), (2, ()), when=made.compare(made.number, made.one))
        ballots = []
        for number in (1, 2):
            made.block()
            ballots.append(made.ballot())
            if number == which + 1:
                made("llvm.lshr", ballots[-1], made.one)
            made.to((3, (ballots[-1],)))
        (held,) = made.block(I64)
        made.compare(held, made.zero)
        made.to()
        assert made.asked() == {ballots[1 - which]}

    def test_an_argument_may_stand_for_another_number_too(self):
        made = Votes()
        ballot = made.ballot()
        made.to((1, (ballot,)), (1, (made.number,)), when=made.compare(made.number, made.one))
        (held,) = made.block(I64)
        made.compare(held, made.zero)
        made.to()
        assert made.asked() == {ballot}

    def test_one_of_half_a_wave_is_not(self):
        """Votes of the other lanes do not count there."""
        made = Votes()
        half = made("rocdl.ballot", made.voted, kind=I32, of=I1)
        made("llvm.icmp", half, made("llvm.mlir.constant", kind=I32, value=0), kind=I1, of=I32, predicate=EQUAL)
        made.to()
        assert made.asked() == set()

    def test_one_round_against_the_next_is_not(self):
        """Votes that differ and are both not 0: whether any lane voted would say that they are the same."""
        made = Votes()
        made.to((1, (made.ballot(),)))
        (held,) = made.block(I64)
        again = made.ballot()
        made.compare(again, made.zero)
        made.to((1, (again,)), (2, ()), when=made.compare(held, again))
        made.block()
        made.to()
        assert again not in made.asked()


class TestText:
    @pytest.mark.parametrize("fast", [False, True])
    def test_only_what_is_asked_is_a_barrier_that_says_so(self, fast):
        made = Votes()
        told, shifted = made.ballot(), made.ballot()
        for ballot in (told, shifted):
            made.compare(ballot, made.zero)
        made.use(shifted, "shifted")
        made.to()
        found = re.findall(r"(v\d+) = (k3_wave_any|k3_ballot)\(", made.text(fast))
        assert found == [(f"v{told}", "k3_wave_any"), (f"v{shifted}", "k3_ballot")]

    @pytest.mark.parametrize("fast", [False, True])
    @pytest.mark.parametrize(("how", "name"), [("", "k3_wave_any"), ("combined", "k3_ballot")])
    def test_in_a_loop(self, fast, how, name):
        made, first, again = polling(how)
        found = re.findall(r"(v\d+) = (k3_wave_any|k3_ballot)\(", made.text(fast))
        assert found == [(f"v{first}", name), (f"v{again}", name)]
