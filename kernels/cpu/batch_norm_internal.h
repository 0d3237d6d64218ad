/* batch_norm_internal.h - interface of the variants of batch norms. Private to kernels/.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CPU_BATCH_NORM_INTERNAL_H
#define DSC_KERNELS_CPU_BATCH_NORM_INTERNAL_H

#include "kernels/batch_norm.h"
#include "kernels/cpu/range.h"

enum { DSC_BATCH_NORM_BLOCK_ROWS = 16 };

/* Blocks: a part of the rows, and DSC_BATCH_NORM_BLOCK_ROWS rows. Sums of all variants have one order. */
#define DSC_BATCH_NORM_DECL(isa)                                                                                       \
    void dsc_batch_stats_parts_##isa(const void *args, int64_t first, int64_t last);                                   \
    void dsc_batch_norm_fwd_##isa(const void *args, int64_t first, int64_t last);                                      \
    void dsc_batch_norm_bwd_parts_##isa(const void *args, int64_t first, int64_t last);                                \
    void dsc_batch_norm_bwd_##isa(const void *args, int64_t first, int64_t last);
DSC_BATCH_NORM_DECL(ref)
DSC_BATCH_NORM_DECL(avx2)
DSC_BATCH_NORM_DECL(avx512)
#undef DSC_BATCH_NORM_DECL

static inline float *dsc_batch_norm_sums(float *scratch, int64_t part, int which, int64_t channels)
{
    return scratch + (2 * part + which) * channels;
}

static inline int64_t dsc_batch_norm_part_end(int64_t part, int64_t rows)
{
    return dsc_min_i64((part + 1) * dsc_batch_norm_part_rows(rows), rows);
}

#endif
