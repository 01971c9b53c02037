"""The facts of the machine: sources, lookups, and that targets are cheap keys."""

import pytest

from nkijax.machine import TRN1, TRN2, TRN3, Engine, Generation, Target, facts_text

TARGETS = (TRN1, TRN2, TRN3)
UNITS = {"_bytes": "bytes", "_us": "us", "_cycles": "cycles", "_ghz": "GHz", "_bytes_per_us": "bytes/us"}


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_every_fact_has_unit_source_and_status(target):
    for name, fact in target.facts.items():
        assert len(fact.source) > 10, name
        assert fact.status in ("documented", "measured", "fitted", "assumed"), name
        unit = max((u for u in UNITS if name.endswith(u)), key=len, default="")
        assert fact.unit == (UNITS[unit] if unit else fact.unit), name
        assert fact.value >= 0, name


def test_targets_have_the_same_facts():
    assert set(TRN1.facts) == set(TRN2.facts) == set(TRN3.facts)


def test_sizes_are_those_of_the_architecture_guides():
    assert [t.sbuf_partition_bytes // 1024 for t in TARGETS] == [192, 224, 256]
    for t in TARGETS:
        assert t.psum_partition_bytes == t.psum_banks * t.psum_bank_bytes == 16384
        assert (t.pmax, t.stationary_fmax, t.moving_fmax) == (128, 128, 512)


def test_clocks_and_latencies():
    assert [t.ghz(Engine.vector) for t in TARGETS] == [1.12, 0.96, 1.2]
    assert [t.ghz(Engine.tensor) for t in TARGETS] == [2.8, 2.4, 2.4]
    assert TRN1.latency_cycles(Engine.scalar) == 222
    assert TRN2.latency_cycles(Engine.scalar) == 352
    assert TRN2.latency_cycles(Engine.scalar, copy=True) == 230
    assert TRN2.latency_cycles(Engine.vector, copy=True) == TRN2.latency_cycles(Engine.vector)
    assert TRN1.min_issue_cycles == 64
    assert TRN2.register_move_cycles == pytest.approx(68 * 1.2)


@pytest.mark.parametrize("engine", [Engine.dma, Engine.unknown])
def test_what_is_no_engine_has_no_clock(engine):
    with pytest.raises(ValueError, match="has no clock"):
        TRN1.ghz(engine)


def test_small_rows_are_slow_on_trn1_only():
    assert TRN1.dma_bytes_per_us(1024) == 103.5e3
    assert TRN1.dma_bytes_per_us(1025) == TRN1.dma_bytes_per_us() == 278.7e3
    assert TRN2.dma_bytes_per_us(1024) == TRN2.dma_bytes_per_us() == 368e3


@pytest.mark.parametrize(
    "name, target",
    [("trn1", TRN1), ("inf2", TRN1), ("gen2", TRN1), ("trn2", TRN2), ("gen3", TRN2), ("trn3", TRN3), ("gen4", TRN3)],
)
def test_names(name, target):
    assert Target.of(name) is target
    assert Target.of(target) is target


def test_unknown_name():
    with pytest.raises(ValueError, match="must be one of trn1, .*got 'trn9'"):
        Target.of("trn9")


def test_a_target_is_a_key():
    assert len({TRN1, TRN2, TRN3, Target.of("gen2")}) == 3
    assert TRN1 == Target("trn1", Generation.gen2, TRN1.facts)
    assert TRN1 != Target("trn1", Generation.gen2, TRN1.facts, precise=False)
    with pytest.raises(AttributeError):
        TRN1.name = "other"  # pyright: ignore


def test_assume():
    mine = TRN2.assume("mine", barrier_us=2.0)
    assert mine.value("barrier_us") == 2.0 and mine.facts["barrier_us"].status == "assumed"
    assert TRN2.value("barrier_us") == 3.06 and mine != TRN2
    with pytest.raises(ValueError, match="another name"):
        TRN2.assume("trn2", barrier_us=2.0)
    with pytest.raises(KeyError):
        TRN2.assume("mine", barier_us=2.0)


def test_facts_text_shows_each_fact_once():
    lines = facts_text(TRN1).splitlines()
    assert [line.split()[0] for line in lines] == list(TRN1.facts)
    assert all(f.source in line for line, f in zip(lines, TRN1.facts.values(), strict=True))
