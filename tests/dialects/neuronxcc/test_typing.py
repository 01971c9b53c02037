"""Annotations."""

from nkijax.dialects.neuronxcc import typing as nt


def test_annotations():
    assert nt.tensor[128, 512] is nt.tensor and nt.tensor[nt.mutable] is nt.tensor
    assert issubclass(nt.mutable_tensor, nt.tensor) and nt.scalar(3) == 3
