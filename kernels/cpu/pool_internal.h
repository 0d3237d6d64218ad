/* pool_internal.h - interface of the variants of pools. Private to kernels/. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CPU_POOL_INTERNAL_H
#define DSC_KERNELS_CPU_POOL_INTERNAL_H

#include "kernels/cpu/range.h"
#include "kernels/pool.h"

/* Pixels of a window in one sample, or windows that have a pixel. */
typedef struct dsc_pool_area {
    int64_t top, bottom, left, right;
} dsc_pool_area;

#define DSC_POOL_DECL(isa)                                                                                        \
    void dsc_pool_fwd_##isa(const void *args, int64_t first, int64_t last); /* block: a line of outputs */            \
    void dsc_pool_bwd_##isa(const void *args, int64_t first, int64_t last); /* block: a line of the gradient */
DSC_POOL_DECL(ref)
DSC_POOL_DECL(avx2)
DSC_POOL_DECL(avx512)
#undef DSC_POOL_DECL

#endif
