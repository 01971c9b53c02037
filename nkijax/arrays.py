"""The caller's arrays: NumPy, JAX and torch in, the same kind out.  Torch is used only if the caller imported it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from nkijax import dtypes


def _is_torch(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def is_array(x: Any) -> bool:
    """Whether an argument is a tensor of the kernel (anything else is static)."""
    return isinstance(x, np.ndarray | jax.Array | jax.ShapeDtypeStruct) or _is_torch(x)


_names: dict[Any, str] = {}  # NumPy and torch dtypes seen → NKI names


def describe(x: Any) -> tuple[tuple[int, ...], str]:
    """Shape and NKI dtype of an array; TypeError for a dtype that NKI lacks."""
    name = _names.get(x.dtype)
    if name is None:
        spelled = str(x.dtype).removeprefix("torch.") if _is_torch(x) else x.dtype
        name = _names[x.dtype] = dtypes.of(spelled)
    return tuple(x.shape), name


def static(x: Any) -> Any:
    """A static argument: NumPy numbers become Python's, NumPy and JAX dtypes become NKI's."""
    if isinstance(x, np.generic):
        return x.item()
    if isinstance(x, np.dtype) or isinstance(x, type) and issubclass(x, np.generic) or _is_jax_scalar_type(x):
        return dtypes.of(x)
    return x


def _is_jax_scalar_type(x: Any) -> bool:
    return type(x).__name__ == "_ScalarMeta"


def kind_of(arrays: Sequence[Any]) -> str:
    """ "jax" if any array is one, else "torch" if any is one, else "numpy"."""
    if any(isinstance(x, jax.Array) for x in arrays):
        return "jax"
    return "torch" if any(_is_torch(x) for x in arrays) else "numpy"


def to_jax(x: Any) -> Any:
    """An array for the jitted function."""
    if isinstance(x, np.ndarray | jax.Array):
        return _words(x) if x.dtype.kind == "V" else x
    return jnp.asarray(_torch_to_numpy(x))


def _words(x: Any) -> Any:
    """An array of an x4 type as its words."""
    storage = dtypes.storage(describe(x)[1])
    return x if x.dtype == storage else x.view(storage)


def _torch_to_numpy(x: Any) -> np.ndarray:
    """A torch tensor as NumPy; dtypes that torch cannot convert go over as raw bytes."""
    torch = sys.modules["torch"]
    x = x.detach().cpu().contiguous()
    kind = dtypes.storage(describe(x)[1])
    raw = x.view(torch.uint8).numpy() if x.dim() else x.reshape(1).view(torch.uint8).numpy()
    return raw.view(kind).reshape(tuple(x.shape))


def device_of(arrays: Sequence[Any]) -> Any:
    """The device of the first torch tensor, where results go too."""
    return next((x.device for x in arrays if _is_torch(x)), None)


def from_jax(x: jax.Array, kind: str, device: Any = None) -> Any:
    """A result in the caller's kind, writable and its own; a torch tensor on `device`."""
    out = np.array(x)
    if kind == "torch":
        torch = sys.modules["torch"]
        if out.dtype == jnp.float8_e4m3:  # torch has the OCP format only
            out = out.astype(jnp.float8_e4m3fn)
        name = dtypes.of(out.dtype)
        flat = torch.from_numpy(np.ascontiguousarray(out).reshape(-1).view(np.uint8))
        return flat.view(getattr(torch, name)).reshape(out.shape).to(device)
    return out


def update(x: Any, value: jax.Array) -> None:
    """Write a kernel's result into the argument that it wrote."""
    if isinstance(x, np.ndarray):
        x = to_jax(x)
        x[...] = np.asarray(value).astype(x.dtype, copy=False)
    elif _is_torch(x):
        x.copy_(from_jax(value, "torch"))


def constant(x: Any, dtype: str) -> np.ndarray:
    """An array as the storage of an NKI dtype, converted as NumPy does."""
    return np.asarray(to_jax(x)).astype(dtypes.storage(dtype))


# ---- arrays that are sharded over a mesh


def auto_axes(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of arrays that may also lie on a mesh with explicit axes (what `jax.make_mesh` makes).

    How the work inside is split is left to XLA.  What the function returns then lies whole on each device: whoever
    wants it otherwise calls `jax.sharding.auto_axes` with an `out_sharding`, or `jax.shard_map`.
    """

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        mesh = _explicit_mesh(args)
        if mesh is None:
            return function(*args)
        return jax.sharding.auto_axes(
            function, axes=mesh.explicit_axes, out_sharding=NamedSharding(mesh, PartitionSpec())
        )(*args)

    return call


def local(x: Any) -> Any:
    """The array without a mesh in its type: as NumPy if it lies on one with explicit axes."""
    return x if _explicit_mesh([x]) is None else np.asarray(x)


def _explicit_mesh(args: Sequence[Any]) -> Any:
    """The mesh with explicit axes that one of the arrays lies on, if one does."""
    meshes = (jax.typeof(x).sharding.mesh for x in args)
    return next((mesh for mesh in meshes if mesh.explicit_axes), None)
