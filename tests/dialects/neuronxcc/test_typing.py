"""Annotations."""

from nkijax.dialects.neuronxcc import typing as nt


def test_annotations():
    assert nt.tensor[128, 512] is nt.tensor and nt.tensor[nt.mutable] is nt.tensor
    assert issubclass(nt.mutable_tensor, nt.tensor) and nt.scalar(3) == 3


def test_a_spec_has_a_shape_and_a_dtype():
    spec = nt.tensor[[8192, 4096], "bfloat16"]
    assert spec == nt.Spec((8192, 4096), "bfloat16")
