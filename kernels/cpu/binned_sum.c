/* binned_sum.c - spreads matrix_squares over the thread pool: blocks of rows, then strips of columns.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cpu/binned_sum_range.h"
#include "kernels/thread_pool.h"

#define BLOCK_ELEMENTS 4096 /* elements of a block of rows, about */
#define BLOCK_COLS 64

typedef struct job {
    const dsc_matrix_squares_args *a;
    const dsc_binned_sum_ops *ops;
    int64_t first_row, end_row, rows_each, row_blocks;
} job;

static void blocks(void *ctx, int64_t first, int64_t last)
{
    const job *j = ctx;
    for (int64_t b = first; b < last; b++) {
        const int64_t row = j->first_row + b * j->rows_each, col = (b - j->row_blocks) * BLOCK_COLS;
        if (b < j->row_blocks)
            j->ops->rows(j->a, row, dsc_min_i64(row + j->rows_each, j->end_row));
        else
            j->ops->cols(j->a, col, dsc_min_i64(col + BLOCK_COLS, j->a->cols));
    }
}

static dsc_status run(const void *args, const dsc_cpu_threads *pool, const dsc_binned_sum_ops *ops)
{
    const dsc_matrix_squares_args *a = args;
    DSC_ASSERT(a->count >= 0 && a->at >= 0 && a->cols >= 1);
    if (a->count == 0)
        return DSC_OK;
    job j = { .a = a,
              .ops = ops,
              .first_row = a->at / a->cols,
              .end_row = dsc_div_ceil(a->at + a->count, a->cols),
              .rows_each = dsc_max_i64(1, BLOCK_ELEMENTS / a->cols) };
    j.row_blocks = dsc_div_ceil(j.end_row - j.first_row, j.rows_each);
    dsc_thread_pool_run(pool, j.row_blocks + dsc_div_ceil(a->cols, BLOCK_COLS), blocks, &j);
    return DSC_OK;
}

#define VARIANT(isa)                                                                                                   \
    static dsc_status run_##isa(const void *args, const dsc_cpu_threads *pool, dsc_error *err)                         \
    {                                                                                                                  \
        (void)err;                                                                                                     \
        return run(args, pool, &dsc_binned_sum_##isa);                                                                 \
    }
VARIANT(ref)
VARIANT(avx2)
VARIANT(avx512)

void dsc_binned_sum_init(dsc_kernel_table *table, uint32_t caps)
{
    const bool avx2 = (caps & DSC_CPU_AVX2) != 0, avx512 = (caps & DSC_CPU_AVX512) != 0;
    table->fn[DSC_KERNEL_MATRIX_SQUARES] = avx512 ? run_avx512 : avx2 ? run_avx2 : run_ref;
}
