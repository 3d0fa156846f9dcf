"""Declarations: what a launch says about itself agrees with what its twins do."""

from __future__ import annotations

import importlib
from math import prod

import pytest

from k3lab import launches
from k3lab.errors import BadInput
from k3lab.geometry import Geometry
from k3lab.launches import LAUNCHES
from k3lab.layout import PAIR_BYTES, shape_of, step_tag

MINI, K3 = Geometry.mini(), Geometry.k3()


@pytest.mark.parametrize("launch", LAUNCHES.values(), ids=LAUNCHES)
class TestEveryLaunch:
    def test_stages_read_only_what_is_given_or_written_before(self, launch):
        known = {decl.name for decl in launch.inputs}
        for stage in launch.stages:
            assert set(stage.reads) <= known, stage.name
            known |= set(stage.writes)
            assert set(stage.gathers) <= set(stage.reads)
        assert set(launch.outputs) | set(launch.end_tensors) <= known

    def test_a_stages_folder_holds_its_twin(self, launch):
        for stage in launch.stages:
            module = importlib.import_module(f"{stage.folder}.twin")
            assert getattr(module, stage.twin.__name__) is stage.twin

    def test_regions_rows_and_locals_are_written_by_a_stage(self, launch):
        written = {name for stage in launch.stages for name in stage.writes}
        flags = {region.name for region in launch.regions if region.word == "flag"}
        for item in (*launch.regions, *launch.rows, *launch.locals):
            assert item.name in written | flags, item.name
        for plain in launch.rows:
            assert plain.guard in flags
        for local in launch.locals:
            assert local.name in launch.stage(local.producer).writes
            assert all(local.name in launch.stage(consumer).reads for consumer in local.consumers)

    def test_every_exposed_tensor_has_a_format_and_a_kind(self, launch):
        key = launch.key(MINI, tokens=2, nblocks=1, **({"ranks": 2} if launch.name == "k2a" else {}))
        for name in launch.exposed:
            assert launch.format_of(name, key) in ("bf16", "fp32", "fp8_e4m3")
            assert launch.kind_of(name) in ("output", "region", "rows", "local")

    def test_an_unknown_stage_or_option_is_refused(self, launch):
        with pytest.raises(BadInput, match="stage: expected one of"):
            launch.stage("nosuch")
        with pytest.raises(BadInput, match="option: expected one of"):
            launch.key(MINI, tokens=1, nblocks=1, nosuch=1)


def test_k1_scratch_is_laid_out_as_the_spec_says():
    key = launches.K1.key(K3, tokens=4, qlen=4, nblocks=4)
    placed = launches.K1.scratch(key)
    assert [p.name for p in placed] == ["PART", "WGT", "MSQ", "XRDY", "PROJ", "QK", "ONRM", "x"]
    pairs = [56 * 4 * 5 * 2, 4 * 6, 56 * 4, 56, 4 * 6288, 12 * 4 * 2 * 128, 12 * 4 * 8]
    offset = 0
    for region, count in zip(placed, pairs, strict=False):
        assert (region.offset, region.nbytes) == (offset, count * PAIR_BYTES)
        offset += region.nbytes
    assert placed[-1].offset == -(-offset // 16) * 16 and placed[-1].nbytes == 4 * 7168 * 2


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"tokens": 0}, "tokens"),
        ({"tokens": 3, "qlen": 2}, "tokens"),
        ({"tokens": 4.0}, "tokens"),
        ({"qlen": 17, "tokens": 17}, "qlen"),
        ({"nblocks": 9}, "nblocks"),
        ({"write_idx": 1}, "write_idx"),
        ({"state_len": 4, "qlen": 4}, "state_len"),
        ({"eps": 0.0}, "eps"),
        ({"kda0": 48}, "kda0"),
        ({"delta": "no"}, "delta"),
        ({"gate_local": 1}, "gate_local"),
        ({"eps": "abc"}, "eps"),
        ({"onorm_eps": float("nan")}, "onorm_eps"),
        ({"lower_bound": float("-inf")}, "lower_bound"),
        ({"lower_bound": 1.0}, "lower_bound"),
    ],
)
def test_a_key_out_of_range_is_one_sentence(options, named):
    with pytest.raises(BadInput, match=named):
        launches.K1.key(MINI, **{"tokens": 4, "nblocks": 2, **options})


def test_keys_round_trip_and_refuse_misfits():
    key = launches.K1.key(MINI, tokens=4, qlen=2, nblocks=2, write_idx=3)
    assert launches.K1Key.from_dict(key.to_dict()) == key
    for spoiled in ({**key.to_dict(), "nosuch": 1}, {"geometry": {}}, {**key.to_dict(), "tokens": "4"}):
        with pytest.raises(BadInput):
            launches.K1Key.from_dict(spoiled)


def test_tags_are_never_zero_and_tell_launches_apart():
    assert step_tag(0, 0) == 1
    assert step_tag(3, 7) == 3 * 256 + 8
    assert step_tag(2**22 - 1, 255) == 2**30 and step_tag(2**22, 0) == 1
    tags = {step_tag(epoch, slot) for epoch in range(8) for slot in range(256)}
    assert len(tags) == 8 * 256
    for epoch, slot in ((-1, 0), (0, 256)):
        with pytest.raises(BadInput):
            step_tag(epoch, slot)


def test_shapes_are_named():
    assert shape_of("NA S NS+1 2", {"NA": 3, "S": 4, "NS": 5}) == (3, 4, 6, 2)
    assert prod(shape_of("R HEADS", {"R": 2, "HEADS": 12})) == 24
