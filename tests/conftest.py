"""Strict JAX for every test, on the CPU by default, and no deadline for hypothesis, since a first call compiles."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # or a GPU, where the user says so
os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"  # nothing is left in the user's cache folder
# XLA's older emitters compile small kernels in two thirds of the time; `tests.SHIPPED` gives what users have.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_use_fusion_emitters=false"

import hypothesis
import jax

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

hypothesis.settings.register_profile("nkijax", deadline=None)
hypothesis.settings.load_profile("nkijax")

# What NKI users set must not reach a test that does not ask for it.
for name in ("NEURON_PLATFORM_TARGET_OVERRIDE", "NKI_PRECISE_FP", "NKI_SIMULATOR", "NKI_ARTIFACTS_DIR", "NKIJAX_LOOPS"):
    os.environ.pop(name, None)
