/* moe_internal.h - between the files of mixture of experts: the cut of grouped products, and a token's slots.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CPU_MOE_INTERNAL_H
#define DSC_KERNELS_CPU_MOE_INTERNAL_H

#include "kernels/cpu/range.h"
#include "kernels/kernels.h"

/* A tile of a grouped product; 120 is a multiple of the rows that a variant computes at once. */
enum { DSC_GROUPED_M = 120, DSC_GROUPED_N = 64, DSC_GROUPED_K = 256 };

/* One tile: rows and columns of an expert's product, over all of k. */
typedef struct dsc_grouped_tile {
    int32_t expert;
    int64_t m0, n0, rows, cols;
} dsc_grouped_tile;

static inline int64_t dsc_grouped_rows(const dsc_grouped_gemm_args *a, int32_t expert)
{
    return a->starts[expert + 1] - a->starts[expert];
}

/* Sizes of an expert's product C[m, n] over k. */
typedef struct dsc_grouped_shape {
    int64_t m, n, k;
} dsc_grouped_shape;

static inline dsc_grouped_shape dsc_grouped_shape_of(const dsc_grouped_gemm_args *a, int32_t expert)
{
    const int64_t rows = dsc_grouped_rows(a, expert);
    if (a->kind == DSC_GROUPED_FORWARD)
        return (dsc_grouped_shape) { rows, a->out, a->in };
    if (a->kind == DSC_GROUPED_INPUT)
        return (dsc_grouped_shape) { rows, a->in, a->out };
    return (dsc_grouped_shape) { a->out, a->in, rows };
}

static inline int64_t dsc_grouped_tiles(const dsc_grouped_gemm_args *a, int32_t expert)
{
    const dsc_grouped_shape s = dsc_grouped_shape_of(a, expert);
    return dsc_div_ceil(s.m, DSC_GROUPED_M) * dsc_div_ceil(s.n, DSC_GROUPED_N);
}

/* Tile number `block` of all; tiles of the same rows follow each other. */
static inline dsc_grouped_tile dsc_grouped_tile_of(const dsc_grouped_gemm_args *a, int64_t block)
{
    int32_t expert = 0;
    for (int64_t tiles = dsc_grouped_tiles(a, 0); block >= tiles; tiles = dsc_grouped_tiles(a, expert)) {
        block -= tiles;
        expert++;
        DSC_ASSERT(expert < a->experts);
    }
    const dsc_grouped_shape s = dsc_grouped_shape_of(a, expert);
    const int64_t across = dsc_div_ceil(s.n, DSC_GROUPED_N);
    const int64_t m0 = block / across * DSC_GROUPED_M, n0 = block % across * DSC_GROUPED_N;
    return (dsc_grouped_tile) { expert, m0, n0, dsc_min_i64(DSC_GROUPED_M, s.m - m0),
                                dsc_min_i64(DSC_GROUPED_N, s.n - n0) };
}

/* Where an expert's operands begin, in elements: rows of a (and of b with WEIGHT), its matrix, its part of c. */
static inline int64_t dsc_grouped_a_at(const dsc_grouped_gemm_args *a, int32_t expert)
{
    return a->starts[expert] * (a->kind == DSC_GROUPED_FORWARD ? a->in : a->out);
}
static inline int64_t dsc_grouped_b_at(const dsc_grouped_gemm_args *a, int32_t expert)
{
    return a->kind == DSC_GROUPED_WEIGHT ? a->starts[expert] * a->in : expert * a->out * a->in;
}
static inline int64_t dsc_grouped_c_at(const dsc_grouped_gemm_args *a, int32_t expert)
{
    if (a->kind == DSC_GROUPED_WEIGHT)
        return expert * a->out * a->in;
    return a->starts[expert] * (a->kind == DSC_GROUPED_FORWARD ? a->out : a->in);
}

/* Blocks first .. last - 1: a token, or a tile. */
#define DSC_MOE_DECL(isa)                                                                                              \
    void dsc_moe_dispatch_bwd_##isa(const void *args, int64_t first, int64_t last);                                    \
    void dsc_moe_combine_fwd_##isa(const void *args, int64_t first, int64_t last);                                     \
    void dsc_moe_combine_bwd_##isa(const void *args, int64_t first, int64_t last);                                     \
    void dsc_grouped_gemm_##isa(const void *args, int64_t first, int64_t last);
DSC_MOE_DECL(ref)
DSC_MOE_DECL(avx2)
DSC_MOE_DECL(avx512)
#undef DSC_MOE_DECL

void dsc_moe_route_fwd_ref(const void *args, int64_t first, int64_t last);
void dsc_moe_route_bwd_ref(const void *args, int64_t first, int64_t last);
void dsc_moe_order_ref(const dsc_moe_order_args *a);

#endif
