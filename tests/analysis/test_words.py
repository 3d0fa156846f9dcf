from __future__ import annotations

import copy
import math
from dataclasses import replace

import pytest

from k3lab.analysis import sentences
from k3lab.analysis.glossary import TERMS, glossary
from k3lab.analysis.report import BIT_EQUAL, Report, Verdict
from k3lab.analysis.words import decibel, listed, number, percent, plain, plural, shape, share_text


def on_ranks(report: Report, ranks: int) -> Report:
    """`report` as if its run had had that many ranks."""
    provenance = copy.deepcopy(report.provenance)
    provenance["run"]["case"]["key"]["ranks"] = ranks
    return replace(report, provenance=provenance)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0"),
        (-0.0, "0"),
        (1.0, "1"),
        (0.5, "0.5"),
        (0.012345, "0.0123"),
        (-123.456, "−123"),
        (1063.0, "1060"),
        (99999.0, "100000"),
        (1.783e-4, "1.78 × 10⁻⁴"),
        (-6.72e5, "−6.72 × 10⁵"),
        (1.5e-12, "1.50 × 10⁻¹²"),
        (math.inf, "∞"),
        (math.nan, "NaN"),
    ],
)
def test_number(value: float | None, text: str):
    assert number(value) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(None, "–"), (0.0, "0 %"), (1e-9, "< 0.001 %"), (0.457, "45.7 %"), (0.99999, "> 99.9 %"), (1.0, "100 %")],
)
def test_percent(share: float | None, text: str):
    assert percent(share) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [(0.0, "0 %"), (1e-9, "< 0.1 %"), (0.0098, "1 %"), (0.004, "0.4 %"), (0.43, "43 %"), (1.4, "140 %")],
)
def test_share(share: float, text: str):
    assert share_text(share) == text


def test_small_words():
    assert [listed([]), listed(["a"]), listed(["a", "b"]), listed("abc", "or")] == ["", "a", "a and b", "a, b or c"]
    assert [plural(1, "point"), plural(2, "point")] == ["1 point", "2 points"]
    assert [shape([4, 7168]), shape([4], ranks=8), shape([])] == ["4 × 7168", "8 ranks × 4", "scalar"]
    assert [decibel(None), decibel(-3.21)] == ["–", "−3.2 dB"]
    assert [plain(0.25), plain(1.5e-3), plain(2048)] == ["0.25", "1.5 × 10⁻³", "2048"]


def test_verdict_counts_and_names_what_failed(report: Report):
    count = len(report.verdicts)
    assert sentences.verdict(report) == f"All {count} roundings are correctly rounded."
    assert "Sanity check" in sentences.verdict_about(report) and not sentences.decisive(report)
    first = replace(report.verdicts[0], passed=False, measured="0.7 ulp")
    failed = replace(report, verdicts=[first, *report.verdicts[1:]])
    assert sentences.verdict(failed) == f"1 of {count} roundings is not correctly rounded."
    assert sentences.decisive(failed)
    assert first.name in sentences.verdict_about(failed) and "0.7 ulp" in sentences.verdict_about(failed)
    assert sentences.verdict(replace(report, verdicts=[])) == "No bound was judged."


def test_a_kernel_is_judged_by_its_bits_first(report: Report):
    bits = [Verdict(row.name, BIT_EQUAL, "0 of 8 differ", True) for row in report.tensors]
    kernel = replace(report, verdicts=[*report.verdicts, *bits])
    text = sentences.verdict(kernel)
    assert text.startswith(f"All {len(bits)} tensors are equal to the twin's, bit for bit. All 8 roundings")
    assert sentences.decisive(kernel)
    other = replace(kernel, verdicts=[*kernel.verdicts[:-2], *(replace(v, passed=False) for v in bits[-2:])])
    assert sentences.verdict(other).startswith(f"2 of {len(bits)} tensors are not equal to the twin's, bit for bit.")


def test_titles_name_the_ranks(report: Report):
    assert sentences.title(report) == "k1"
    assert sentences.title(on_ranks(report, 1)) == "k1, 1 rank"
    assert sentences.title(on_ranks(report, 8)) == "k1, 8 ranks"


def test_what_counts_differ_over_is_said(report: Report):
    text = sentences.slots_about(report)
    assert "conv_state: 4608 of 27648 values" in text and "rstate: 131072 of " in text and "prefix" not in text
    whole = [row for row in report.tensors if not row.partly_written]
    assert sentences.slots_about(replace(report, tensors=whole)) == ""


def test_ranks_are_explained_where_there_are_several(report: Report):
    assert sentences.ranks_about(report) == ""
    several = replace(report, tensors=[replace(report.tensors[0], ranks=8), *report.tensors[1:]])
    assert sentences.ranks_about(several).startswith('"8 ranks × 4 × 2048": each of the ranks has its own')


def test_the_glossary_has_the_words_that_occur(report: Report):
    words = {term.word for term in glossary(report, sentences.case(report))}
    assert words >= {"AttnRes", "KDA", "seam", "rank", "region, local", "outliers", "rounding point", "bf16"}
    assert not words & {"MLA", "fp8 (e4m3)", "mxfp4"}
    bare = replace(report, about="", points=[], tensors=[])
    assert not {term.word for term in glossary(bare, "")} & {"AttnRes", "KDA", "seam", "rank", "outliers"}
    assert len(TERMS) == len({term.word for term in TERMS})


def test_answers_name_the_largest_contributors_first(report: Report):
    answers = {answer.tensor: answer for answer in sentences.answers(report)}
    assert list(answers) == ["core_out", "conv_state", "rstate", "prefix", "x"]
    assert answers["prefix"].sources == "100 % of its error energy comes from k1.slice.prefix"
    assert "k1.gemv.proj or k1.conv.state (they round the same value)" in answers["conv_state"].sources
    assert answers["x"].about == "mixed, normed row that the projections read"


def test_without_a_budget_the_outputs_answer_without_sources(report: Report):
    answers = sentences.answers(replace(report, budget=None))
    assert {answer.tensor for answer in answers} == {"prefix", "conv_state", "rstate", "core_out"}
    assert not any(answer.sources for answer in answers)


def test_an_answer_says_what_its_error_is_measured_against(report: Report):
    """Not the run that the title names beside it: another twin, or a kernel's."""
    errors = [answer.error for answer in sentences.answers(report)]
    assert errors and all(error.startswith("rms error against the oracle ") for error in errors)


def test_ordering_is_reported_not_judged(report: Report):
    assert sentences.ordering_only(report)
    assert "reported, not judged" in sentences.difference(report)
    assert "reported, not judged" in sentences.difference_title(report)


def test_uncertainty_says_that_no_hardware_has_run_it(report: Report):
    assert "Nobody has run these on the hardware yet" in sentences.uncertainty(report)
    assert sentences.uncertainty(replace(report, spread=[])) == ""
