"""Tensors and registers outside of any kernel: what tests of pure addressing stand on."""

import itertools

import numpy as np

from nkijax.dialects.nki.register import VirtualRegister
from nkijax.dialects.nki.tensor import NkiTensor
from nkijax.machine import Memory
from nkijax.view import Buffer, View

_indices = itertools.count()


def tensor(shape, dtype="float32", memory=Memory.private_hbm, name=""):
    """A whole new tensor."""
    return NkiTensor(View.whole(Buffer(next(_indices), tuple(shape), dtype, memory, name)))


def register():
    """A new register."""
    return VirtualRegister(View.whole(Buffer(next(_indices), (1,), "int32", Memory.register)))


def addresses(x: NkiTensor) -> np.ndarray:
    """The storage address of every element of a static view, in its shape."""
    out = np.full(x.shape, x.offset)
    for axis, (stride, n) in enumerate(zip(x.strides, x.shape, strict=True)):
        steps = np.arange(n) * stride
        out = out + steps.reshape([-1 if k == axis else 1 for k in range(x.ndim)])
    return out


def whole_addresses(x: NkiTensor) -> np.ndarray:
    """The address of every element of a whole tensor."""
    return np.arange(x.size).reshape(x.shape)
