"""The machine: engines, memories and the three generations, each number with its unit, source and status.

Sources are pages of the AWS Neuron SDK documentation (v2.32 unless a tag is given) or public measurements.  `status`
says how far to trust a number: documented by AWS, measured on that generation, fitted to a published measurement, or
assumed (carried over from another generation).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from typing import Literal


class Engine(Enum):
    """The engines of a NeuronCore, by NKI's names, and the queue names of profiles."""

    unknown = 0
    tensor = 1
    scalar = 2
    gpsimd = 3
    dma = 4
    vector = 5
    sync = 6


class Memory(Enum):
    """Where a buffer lives.  `register` and `state` hold what outlives an instruction but has no address."""

    sbuf = "sbuf"
    psum = "psum"
    private_hbm = "private_hbm"
    shared_hbm = "shared_hbm"
    register = "register"
    state = "state"

    @property
    def on_chip(self) -> bool:
        return self is Memory.sbuf or self is Memory.psum

    @property
    def is_hbm(self) -> bool:
        return self is Memory.private_hbm or self is Memory.shared_hbm


class Generation(IntEnum):
    """NeuronCore generations: trn1 and inf2 are gen2, trn2 gen3, trn3 gen4."""

    gen2 = 2
    gen3 = 3
    gen4 = 4


@dataclass(frozen=True)
class Work:
    """What an instruction costs on its engine, in that engine's cycles.

    `issue_cycles` is how long the engine is taken; `latency_cycles` how much longer the result needs to be visible.
    """

    issue_cycles: float
    latency_cycles: float


@dataclass(frozen=True)
class Transfer:
    """What a DMA instruction moves: payload `bytes`, and `row_bytes` of contiguous HBM (0 when it touches none)."""

    bytes: int
    row_bytes: int = 0


Status = Literal["documented", "measured", "fitted", "assumed"]


@dataclass(frozen=True)
class Fact:
    """One number of the machine; `source` is a page or a public measurement, never empty."""

    value: float
    unit: str
    source: str
    status: Status


@dataclass(frozen=True)
class Target:
    """One kind of NeuronCore, and how to emulate it.  Sizes are of one core.

    Two targets are equal when name, generation and precision are: `assume` therefore asks for a new name.
    """

    name: str
    generation: Generation
    facts: Mapping[str, Fact] = field(compare=False, repr=False)
    precise: bool = True  # False stores every float as float32 (NKI_PRECISE_FP=0)

    @staticmethod
    def of(name: str | Target) -> Target:
        """The target called trn1, inf2 or gen2; trn2 or gen3; trn3 or gen4; a Target stands for itself."""
        if isinstance(name, Target):
            return name
        if name not in _NAMES:
            raise ValueError(f"target: must be one of {', '.join(_NAMES)}, got {name!r}")
        return _NAMES[name]

    def assume(self, name: str, **values: float) -> Target:
        """A target called `name` with other values of some facts, such as `TRN2.assume("mine", barrier_us=2)`."""
        if name == self.name:
            raise ValueError(f"assume: other facts need another name than {name!r}")
        facts = dict(self.facts)
        for key, value in values.items():
            facts[key] = Fact(value, self.facts[key].unit, f"assumed by the caller of {name}", "assumed")
        return replace(self, name=name, facts=facts)

    def value(self, fact: str) -> float:
        """The value of a fact, in the unit that its name ends in."""
        return self.facts[fact].value

    @property
    def sbuf_partition_bytes(self) -> int:
        return int(self.value("sbuf_partition_bytes"))

    @property
    def psum_partition_bytes(self) -> int:
        return int(self.value("psum_partition_bytes"))

    @property
    def psum_bank_bytes(self) -> int:
        """Bytes of one partition of one PSUM bank: 512 float32."""
        return int(self.value("psum_bank_bytes"))

    @property
    def psum_banks(self) -> int:
        return int(self.value("psum_banks"))

    @property
    def pmax(self) -> int:
        """Partitions of SBUF and PSUM."""
        return int(self.value("pmax"))

    @property
    def stationary_fmax(self) -> int:
        """Free size of the stationary operand of a matmul, in elements."""
        return int(self.value("stationary_fmax"))

    @property
    def moving_fmax(self) -> int:
        """Free size of the moving operand of a matmul, in elements."""
        return int(self.value("moving_fmax"))

    def ghz(self, engine: Engine) -> float:
        """Clock of an engine, in cycles a nanosecond."""
        if engine in (Engine.unknown, Engine.dma):
            raise ValueError(f"ghz engine: {engine.name} has no clock; DMA instructions cost a Transfer")
        return self.value(f"{engine.name}_ghz")

    def latency_cycles(self, engine: Engine, copy: bool = False) -> float:
        """Cycles between the end of an instruction's issue and its result, on `engine`.

        With `copy`, that of a plain copy, which the scalar engine finishes sooner than an activation.
        """
        if engine is Engine.scalar and copy:
            return self.value("scalar_copy_latency_cycles")
        return self.value(f"{engine.name}_latency_cycles")

    @property
    def min_issue_cycles(self) -> float:
        """The shortest issue interval of a compute instruction (MIN_II), in engine cycles."""
        return self.value("min_issue_cycles")

    @property
    def register_move_cycles(self) -> float:
        """Sequencer time of a register move or load, in cycles of Engine.sync."""
        return self.value("register_move_us") * 1e3 * self.ghz(Engine.sync)

    def dma_bytes_per_us(self, row_bytes: int = 0) -> float:
        """Bandwidth of all DMA engines of a core together, for contiguous HBM rows of `row_bytes` (0: none)."""
        if 0 < row_bytes <= self.value("small_row_bytes"):
            return self.value("small_row_bytes_per_us")
        return self.value("dma_bytes_per_us")


def facts_text(target: Target) -> str:
    """A table of every fact of a target: name, value, unit, status, source."""
    rows = [(name, f"{f.value:g}", f.unit, f.status, f.source) for name, f in target.facts.items()]
    widths = [max(len(row[k]) for row in rows) for k in range(4)]
    return "\n".join("  ".join([*map(str.ljust, row, widths), row[4]]) for row in rows)


_GEN2 = "nki/guides/architecture/trainium_inferentia2_arch.rst"
_GEN3 = "nki/guides/architecture/trainium2_arch.rst"
_GEN4 = "nki/guides/architecture/trainium3_arch.rst"
_ISA = "nki/api/nki/isa/__init__.py @v2.26.1"
_DMA = "nki/get-started/about/nki-dma-overview.rst"
_RING = "nki-dma-intro-3.png in " + _DMA
_SOFTWARE_RING = "nki-dma-intro-5.png in " + _DMA
_PERF = "nki/deep-dives/nki_perf_guide.rst"
_ISSUE = "aws-neuron-sdk issue 1411"
_CLOCK = "profiler base clock, tools/neuron-explorer/profile-schema-reference.rst"
_PUBLIC = "github.com/Joejoedesu/voyager-compiler, src/voyager_compiler/trainium/*.json (neuronx-cc 2.22)"


def _carried(facts: Mapping[str, Fact], origin: str) -> dict[str, Fact]:
    """Facts of another generation, as assumptions."""
    return {k: Fact(f.value, f.unit, f"as {origin}: {f.source}", "assumed") for k, f in facts.items()}


def _sizes(sbuf_kib: int, page: str) -> dict[str, Fact]:
    def size(value: float, unit: str) -> Fact:
        return Fact(value, unit, page, "documented")

    return {
        "sbuf_partition_bytes": size(sbuf_kib * 1024, "bytes"),
        "psum_partition_bytes": size(16384, "bytes"),
        "psum_bank_bytes": size(2048, "bytes"),
        "psum_banks": size(8, "banks"),
        "pmax": size(128, "partitions"),
        "stationary_fmax": size(128, "elements"),
        "moving_fmax": size(512, "elements"),
    }


def _clocks(tensor: float, vector: float, other: float, page: str) -> dict[str, Fact]:
    return {
        "tensor_ghz": Fact(tensor, "GHz", page, "documented"),
        "vector_ghz": Fact(vector, "GHz", page, "documented"),
        "scalar_ghz": Fact(other, "GHz", page, "documented"),
        "gpsimd_ghz": Fact(other, "GHz", page, "documented"),
        "sync_ghz": Fact(other, "GHz", _CLOCK, "assumed"),
    }


# Measured on trn2 only; the other generations assume them.
_TRN2_DMA = {
    "static_start_us": Fact(1.00, "us", "trigger to first data, " + _RING, "measured"),
    "static_done_us": Fact(0.32, "us", "last data to consumer, " + _RING, "measured"),
    "software_start_us": Fact(0.65, "us", "trigger to first data, " + _SOFTWARE_RING, "measured"),
    "software_done_us": Fact(0.32, "us", "last data to consumer, " + _SOFTWARE_RING, "measured"),
    "register_move_us": Fact(0.068, "us", "register move, " + _PUBLIC, "measured"),
}

_TRN1_FACTS = {
    **_sizes(192, _GEN2),
    **_clocks(2.8, 1.12, 1.4, _GEN2),
    "tensor_latency_cycles": Fact(400, "cycles", "188 ns MATMUL of 128 rows, fig20-21 in " + _PERF, "measured"),
    "vector_latency_cycles": Fact(
        161, "cycles", "1.071 us at 1024 cycles, mamba_v1_profile_zoomed.png in nki/guides/tutorials", "measured"
    ),
    "scalar_latency_cycles": Fact(222, "cycles", "159 ns ACTIVATE of one element, fig16 in " + _PERF, "measured"),
    "scalar_copy_latency_cycles": Fact(222, "cycles", "as any activation, fig16 in " + _PERF, "assumed"),
    "gpsimd_latency_cycles": Fact(150, "cycles", "start of iota and affine_select, " + _ISA, "documented"),
    "sync_latency_cycles": Fact(0, "cycles", "a register move is done when its sequencer time is over", "assumed"),
    "min_issue_cycles": Fact(64, "cycles", "MIN_II, " + _ISA, "documented"),
    "semaphore_us": Fact(0.030, "us", "producer's end to consumer's start, fig16 in " + _PERF, "measured"),
    "dma_bytes_per_us": Fact(278.7e3, "bytes/us", "64 unrolled tiles in 483 us, " + _ISSUE, "fitted"),
    "small_row_bytes": Fact(1024, "bytes", "rows of the first three matmul tutorial kernels @v2.26.1", "fitted"),
    "small_row_bytes_per_us": Fact(
        103.5e3, "bytes/us", "51.80, 42.96 and 22.07 ms of nki/tutorials/matrix_multiplication.rst @v2.26.1", "fitted"
    ),
    "dma_trigger_us": Fact(0.35, "us", "the issue interval: a trigger holds its sequencer that long", "assumed"),
    "dma_issue_us": Fact(0.35, "us", "interval of small DMAs, third-party measurement", "measured"),
    **_carried(_TRN2_DMA, "trn2"),
    "software_generate_us": Fact(0.87, "us", "as trn2: producer to trigger, " + _SOFTWARE_RING, "assumed"),
    "barrier_us": Fact(3.06, "us", "64 iterations in 1147 us, " + _ISSUE, "fitted"),
    "fixed_us": Fact(0.0, "us", f"the published totals are explained without a fixed time, {_ISSUE}", "assumed"),
}

_TRN2_FACTS = {
    **_sizes(224, _GEN3),
    **_clocks(2.4, 0.96, 1.2, _GEN3),
    "tensor_latency_cycles": Fact(390, "cycles", "completion less service of nc_matmul, " + _PUBLIC, "measured"),
    "vector_latency_cycles": Fact(150, "cycles", "intercepts of 143 to 161 ns, " + _PUBLIC, "measured"),
    "scalar_latency_cycles": Fact(352, "cycles", "293 ns intercept of exp, " + _PUBLIC, "measured"),
    "scalar_copy_latency_cycles": Fact(230, "cycles", "190 ns intercept of tensor_copy, " + _PUBLIC, "measured"),
    "gpsimd_latency_cycles": Fact(212, "cycles", "177 ns intercept of affine_select, " + _PUBLIC, "measured"),
    "sync_latency_cycles": _TRN1_FACTS["sync_latency_cycles"],
    "min_issue_cycles": Fact(64, "cycles", "as trn1: MIN_II, " + _ISA, "assumed"),
    "semaphore_us": Fact(0.030, "us", "10 ns to the semaphore, 30 ns to the trigger, " + _RING, "measured"),
    "dma_bytes_per_us": Fact(368e3, "bytes/us", "16 engines of 23 bytes/ns, " + _DMA, "documented"),
    "small_row_bytes": Fact(0, "bytes", "no penalty beyond the issue interval is published for trn2", "assumed"),
    "small_row_bytes_per_us": Fact(368e3, "bytes/us", "16 engines of 23 bytes/ns, " + _DMA, "assumed"),
    "dma_trigger_us": Fact(0.60, "us", "about 600 ns a DMA instruction, nki/deep-dives/nki-dge.rst", "documented"),
    "dma_issue_us": Fact(0.60, "us", "about 600 ns a DMA instruction, nki/deep-dives/nki-dge.rst", "documented"),
    **_TRN2_DMA,
    "software_generate_us": Fact(0.60, "us", "issue interval of 599 and 609 ns, " + _PUBLIC, "measured"),
    "barrier_us": Fact(3.06, "us", f"as trn1: 64 iterations in 1147 us, {_ISSUE}", "assumed"),
    "fixed_us": Fact(9.4, "us", "fixed device time of a kernel, " + _PUBLIC, "measured"),
}

_TRN3_FACTS = {
    **_carried(_TRN2_FACTS, "trn2"),
    **_sizes(256, _GEN4),
    **_clocks(2.4, 1.2, 1.2, _GEN4),
    "dma_bytes_per_us": Fact(528e3, "bytes/us", "16 engines of 33 bytes/ns, " + _DMA, "documented"),
    "small_row_bytes_per_us": Fact(528e3, "bytes/us", "16 engines of 33 bytes/ns, " + _DMA, "assumed"),
}

TRN1 = Target("trn1", Generation.gen2, _TRN1_FACTS)
TRN2 = Target("trn2", Generation.gen3, _TRN2_FACTS)
TRN3 = Target("trn3", Generation.gen4, _TRN3_FACTS)
_NAMES = {
    "trn1": TRN1,
    "inf2": TRN1,
    "gen2": TRN1,
    "trn2": TRN2,
    "gen3": TRN2,
    "trn3": TRN3,
    "gen4": TRN3,
}
