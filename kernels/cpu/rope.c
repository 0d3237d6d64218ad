/* rope.c - tables of rotary embeddings, and the cut of their application into rows.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/cpu/range.h"

/* ---- tables: in double, rounded once, whatever the variant ---- */

static void table_rows(const void *args, int64_t first, int64_t last)
{
    const dsc_rope_table_args *a = args;
    for (int64_t p = first; p < last; p++)
        for (int32_t i = 0; i < a->pairs; i++) {
            const double angle = (double)((float)(a->first + p) * a->frequency[i]);
            a->cos[p * a->pairs + i] = (float)((double)a->factor * cos(angle));
            a->sin[p * a->pairs + i] = (float)((double)a->factor * sin(angle));
        }
}

static dsc_status table(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_rope_table_args *a = args;
    (void)err;
    DSC_ASSERT(a->positions >= 0 && a->first >= 0);
    DSC_ASSERT(a->pairs >= 1 && a->pairs <= DSC_ROPE_PAIRS_MAX);
    dsc_range_run(pool, a->positions, table_rows, a);
    return DSC_OK;
}

/* ---- application ---- */

static dsc_status rope(const dsc_rope_args *a, const dsc_cpu_threads *pool, dsc_error *err, dsc_range_fn fn)
{
    DSC_ASSERT(a->rows >= 0 && a->tokens >= 1);
    DSC_ASSERT(a->heads >= 1 && a->pairs >= 0 && 2 * a->pairs <= a->head_size); /* 0: all is copied */
    DSC_ASSERT(a->stride >= (int64_t)a->heads * a->head_size);
    for (int64_t r = 0; a->places != NULL && r < a->rows; r++)
        DSC_ASSERT(a->places[r] >= 0 && a->places[r] < a->tokens);
    DSC_TRY(dsc_range_dtype_check("ROPE", a->dtype, err));
    dsc_range_run(pool, a->rows, fn, a);
    return DSC_OK;
}

#define ROPE_VARIANT(isa)                                                                                              \
    static dsc_status rope_##isa(const void *args, const dsc_cpu_threads *pool, dsc_error *err)                        \
    {                                                                                                                  \
        return rope(args, pool, err, dsc_rope_##isa);                                                                  \
    }
ROPE_VARIANT(ref)
ROPE_VARIANT(avx2)
ROPE_VARIANT(avx512)

void dsc_rope_init(dsc_kernel_table *kernels, uint32_t caps)
{
    const bool avx2 = (caps & DSC_CPU_AVX2) != 0, avx512 = (caps & DSC_CPU_AVX512) != 0;
    kernels->fn[DSC_KERNEL_ROPE_TABLE] = table;
    kernels->fn[DSC_KERNEL_ROPE] = avx512 ? rope_avx512 : avx2 ? rope_avx2 : rope_ref;
}
