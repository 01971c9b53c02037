"""Instructions that search and gather, and those that find positions.

Each function translates its arguments and emits the instruction's entry of `nkijax.isa`, whose docstring says what it
computes, its rules, its cost and what is not emulated.  Shapes: P partitions (at most 128), F all free dimensions.
"""

from __future__ import annotations

from nkijax import arrays
from nkijax.dialects.nki.emit import NkiInstruction, emit, operand
from nkijax.dialects.nki.tensor import view_of
from nkijax.isa.gather import LocalGather, NcNGather, NcStreamShuffle
from nkijax.isa.search import Max8, NcFindIndex8, NcMatchReplace8, Topk
from nkijax.isa.segments import NonzeroWithCount, SequenceBounds

# ---- searching


def max8(dst, src, name=None) -> NkiInstruction:
    """dst (P, 8) = the 8 largest of each partition of src (P, F), descending."""
    return emit(Max8(view_of("nki.isa.max8 dst", dst), view_of("nki.isa.max8 src", src), name=name))


def nc_find_index8(dst, data, vals, name=None) -> NkiInstruction:
    """dst (P, 8) = where each of vals (P, 8) is in data (P, F); equal values find ascending positions.

    All ones where a value is not there.
    """
    to, of = view_of("nki.isa.nc_find_index8 dst", dst), view_of("nki.isa.nc_find_index8 data", data)
    return emit(NcFindIndex8(to, of, view_of("nki.isa.nc_find_index8 vals", vals), name=name))


def nc_match_replace8(dst, data, vals, imm, dst_idx=None, name=None) -> NkiInstruction:
    """dst = data (P, F) with imm in place of the first occurrence of each of vals (P, 8).

    dst_idx (P, 8) takes their positions, descending among equal values.
    """
    to, of = view_of("nki.isa.nc_match_replace8 dst", dst), view_of("nki.isa.nc_match_replace8 data", data)
    wanted = view_of("nki.isa.nc_match_replace8 vals", vals)
    slots = None if dst_idx is None else view_of("nki.isa.nc_match_replace8 dst_idx", dst_idx)
    return emit(NcMatchReplace8(to, of, wanted, operand(imm), slots, name=name))


def topk(val_dst, idx_dst, src, n, name=None) -> NkiInstruction:
    """val_dst, idx_dst (P, K) = the K largest of the n elements of each 16 partitions of src, and which they are.

    Elements and results go partition by partition through a column of 16, then on to the next column.
    """
    values, indices = view_of("nki.isa.topk val_dst", val_dst), view_of("nki.isa.topk idx_dst", idx_dst)
    return emit(Topk(values, indices, view_of("nki.isa.topk src", src), arrays.static(n), name=name))


# ---- gathering


def nc_stream_shuffle(dst, src, shuffle_mask, name=None) -> NkiInstruction:
    """dst[32q + i] = src[32q + shuffle_mask[i]] in each quadrant q; a mask of 255 leaves the partition alone."""
    to, of = view_of("nki.isa.nc_stream_shuffle dst", dst), view_of("nki.isa.nc_stream_shuffle src", src)
    return emit(NcStreamShuffle(to, of, shuffle_mask, name=name))


def local_gather(dst, src_buffer, index, num_elem_per_idx=1, num_valid_indices=None, name=None) -> NkiInstruction:
    """dst (P, N E) = N runs of E elements of src_buffer (P, F); the runs start at the indices of the 16 partitions.

    E is num_elem_per_idx, N num_valid_indices; indices (P, I) count partition by partition, then column by column.
    """
    to, of = view_of("nki.isa.local_gather dst", dst), view_of("nki.isa.local_gather src_buffer", src_buffer)
    starts = view_of("nki.isa.local_gather index", index)
    run, count = arrays.static(num_elem_per_idx), arrays.static(num_valid_indices)
    return emit(LocalGather(to, of, starts, run, count, name=name))


def nc_n_gather(dst, data, indices, name=None) -> NkiInstruction:
    """dst[p, i] = data[p, indices[p, i]], free dimensions flattened."""
    to, of = view_of("nki.isa.nc_n_gather dst", dst), view_of("nki.isa.nc_n_gather data", data)
    return emit(NcNGather(to, of, view_of("nki.isa.nc_n_gather indices", indices), name=name))


# ---- positions


def sequence_bounds(dst, segment_ids, name=None) -> NkiInstruction:
    """dst (1, 2, n) = where the segment of each of segment_ids (1, n) starts, and where it has ended; n, -1 at id 0."""
    to = view_of("nki.isa.sequence_bounds dst", dst)
    return emit(SequenceBounds(to, view_of("nki.isa.sequence_bounds segment_ids", segment_ids), name=name))


def nonzero_with_count(dst, src, index_offset=0, padding_val=-1, name=None) -> NkiInstruction:
    """dst (P, T + 1) = the positions of what is not 0 in src (P, T), plus index_offset, padding, and their count.

    Only of partitions 0, 16, 32, ...; the others of dst stay as they are.
    """
    to, of = view_of("nki.isa.nonzero_with_count dst", dst), view_of("nki.isa.nonzero_with_count src", src)
    return emit(NonzeroWithCount(to, of, operand(index_offset), operand(padding_val), name=name))
