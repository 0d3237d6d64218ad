/* fp8_blocks.c - the cast to fp8 with a scale for each block (fp8.h). A job is 128 rows, so that it owns its blocks.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "kernels/cpu/fp8_internal.h"
#include "kernels/thread_pool.h"

enum { SIDE = DSC_FP8_BLOCK };

typedef struct block_job {
    const dsc_cast_fp8_args *args;
    dsc_fp8_variant with;
} block_job;

static float power_of(int e)
{
    const uint32_t bits = dsc_fp8_power_bits(e);
    float power;
    memcpy(&power, &bits, 4);
    return power;
}

/* A run of numbers of one block. */
static void cast_run(const block_job *job, uint8_t *to, const uint16_t *x, int64_t count, int e)
{
    const dsc_cast_fp8_args run = { .rows = to, .from = x, .col_count = count, .format = job->args->format };
    job->with.rows(&run, 0, 1, power_of(e));
}

/* A run that is a block. Returns its step. */
static float cast_block(const block_job *job, uint8_t *to, const uint16_t *x, int64_t count)
{
    const int e = dsc_fp8_exponent(job->with.top(x, count), job->args->format);
    cast_run(job, to, x, count, e);
    return power_of(-e);
}

static void rows_in_blocks(const block_job *job, int64_t first, int64_t count)
{
    const dsc_cast_fp8_args *a = job->args;
    for (int64_t r = first; r < first + count; r++)
        for (int64_t c = 0; c < a->col_count; c += SIDE) {
            const int64_t at = r * a->col_count + c;
            a->row_steps[c / SIDE * a->row_count + r] =
                cast_block(job, a->rows + at, (const uint16_t *)a->from + at, dsc_min_i64(SIDE, a->col_count - c));
        }
}

static void columns_in_blocks(const block_job *job, int64_t first, int64_t count)
{
    enum { WIDE = 32 };
    const dsc_cast_fp8_args *a = job->args;
    uint16_t turned[WIDE][SIDE];
    for (int64_t c0 = 0; c0 < a->col_count; c0 += WIDE) {
        const int64_t cols = dsc_min_i64(WIDE, a->col_count - c0);
        for (int64_t r = 0; r < count; r++)
            for (int64_t c = 0; c < cols; c++)
                turned[c][r] = ((const uint16_t *)a->from)[(first + r) * a->col_count + c0 + c];
        for (int64_t c = 0; c < cols; c++)
            a->column_steps[first / SIDE * a->col_count + c0 + c] =
                cast_block(job, a->columns + (c0 + c) * a->row_count + first, turned[c], count);
    }
}

static void one_square(const block_job *job, int64_t first, int64_t count, int64_t c0)
{
    const dsc_cast_fp8_args *a = job->args;
    const int64_t cols = dsc_min_i64(SIDE, a->col_count - c0);
    uint8_t square[SIDE][SIDE];
    uint32_t top = 0;
    for (int64_t r = 0; r < count; r++) {
        const uint32_t of_row = job->with.top((const uint16_t *)a->from + (first + r) * a->col_count + c0, cols);
        top = of_row > top ? of_row : top;
    }
    const int e = dsc_fp8_exponent(top, a->format);
    for (int64_t r = 0; r < count; r++) {
        const int64_t at = (first + r) * a->col_count + c0;
        cast_run(job, square[r], (const uint16_t *)a->from + at, cols, e);
        if (a->rows != NULL)
            memcpy(a->rows + at, square[r], (size_t)cols);
    }
    for (int64_t c = 0; c < cols && a->columns != NULL; c++)
        for (int64_t r = 0; r < count; r++)
            a->columns[(c0 + c) * a->row_count + first + r] = square[r][c];
    if (a->rows != NULL)
        a->row_steps[first / SIDE * dsc_fp8_square_stride(a->col_count) + c0 / SIDE] = power_of(-e);
    if (a->columns != NULL)
        a->column_steps[c0 / SIDE * dsc_fp8_square_stride(a->row_count) + first / SIDE] = power_of(-e);
}

static void cast_rows(void *ctx, int64_t first, int64_t last)
{
    const block_job *job = ctx;
    const dsc_cast_fp8_args *a = job->args;
    for (int64_t block = first; block < last; block++) {
        const int64_t row = block * SIDE, count = dsc_min_i64(SIDE, a->row_count - row);
        for (int64_t c = 0; c < a->col_count && a->blocks == DSC_FP8_BLOCKS_SQUARE; c += SIDE)
            one_square(job, row, count, c);
        if (a->blocks == DSC_FP8_BLOCKS_ROW && a->rows != NULL)
            rows_in_blocks(job, row, count);
        if (a->blocks == DSC_FP8_BLOCKS_ROW && a->columns != NULL)
            columns_in_blocks(job, row, count);
    }
}

dsc_status dsc_fp8_cast_blocks(const dsc_cast_fp8_args *a, const dsc_cpu_threads *pool, dsc_fp8_variant with)
{
    block_job job = { a, with };
    DSC_ASSERT(a->rows == NULL || a->row_steps != NULL);
    DSC_ASSERT(a->columns == NULL || a->column_steps != NULL);
    dsc_thread_pool_run(pool, dsc_fp8_block_count(a->row_count), cast_rows, &job);
    return DSC_OK;
}
