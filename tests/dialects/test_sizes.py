"""What both dialects call `nl.tile_size`."""

from nkijax.dialects.neuronxcc import language as legacy
from nkijax.dialects.nki import language as nl
from nkijax.dialects.sizes import Sizes, active_target


def test_the_default_target_is_the_dialects(monkeypatch):
    monkeypatch.delenv("NEURON_PLATFORM_TARGET_OVERRIDE", raising=False)
    assert active_target().name == "trn3" and active_target("trn1").name == "trn1"
    assert nl.tile_size.total_available_sbuf_size == Sizes().total_available_sbuf_size == 240 * 1024
    assert legacy.tile_size.total_available_sbuf_size == Sizes("trn1").total_available_sbuf_size == 176 * 1024
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn2")
    assert nl.tile_size.total_available_sbuf_size == legacy.tile_size.total_available_sbuf_size == 208 * 1024


def test_the_older_dialect_has_no_newer_names():
    assert nl.tile_size.psum_bank_fmax == legacy.tile_size.psum_fmax == 512
    assert not hasattr(legacy.tile_size, "psum_bank_fmax")
