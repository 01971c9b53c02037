"""The old dialect, Neuron 2.20 to 2.26: what `import neuronxcc.nki` gives after `nkijax.install()`."""

from __future__ import annotations

from nkijax.dialects.neuronxcc import compiler as compiler
from nkijax.dialects.neuronxcc import isa as isa
from nkijax.dialects.neuronxcc import language as language
from nkijax.dialects.neuronxcc import typing as typing
from nkijax.dialects.neuronxcc.frameworks import FrameworkKernel as FrameworkKernel
from nkijax.dialects.neuronxcc.jit import baremetal as baremetal
from nkijax.dialects.neuronxcc.jit import benchmark as benchmark
from nkijax.dialects.neuronxcc.jit import jit as jit
from nkijax.dialects.neuronxcc.jit import profile as profile
from nkijax.dialects.neuronxcc.jit import simulate_kernel as simulate_kernel
from nkijax.dialects.neuronxcc.jit import trace as trace
from nkijax.dialects.neuronxcc.typing import tensor as tensor
