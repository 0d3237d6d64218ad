/* fp8.c - the cast to fp8 in blocks of rows, and the way back, for products of a CPU.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "kernels/cpu/fp8_internal.h"
#include "kernels/scalar.h"
#include "kernels/thread_pool.h"

typedef struct cast_job {
    const dsc_cast_fp8_args *args;
    dsc_fp8_variant with;
    _Atomic uint32_t top;
    float power;
} cast_job;

static int64_t rows_of_block(const dsc_cast_fp8_args *a, int64_t block)
{
    return dsc_min_i64(FP8_ROWS, a->row_count - block * FP8_ROWS);
}

static void find_top(void *ctx, int64_t first, int64_t last)
{
    cast_job *job = ctx;
    const dsc_cast_fp8_args *a = job->args;
    for (int64_t block = first; block < last; block++) {
        const uint16_t *x = (const uint16_t *)a->from + block * FP8_ROWS * a->col_count;
        const uint32_t top = job->with.top(x, rows_of_block(a, block) * a->col_count);
        uint32_t before = atomic_load_explicit(&job->top, memory_order_relaxed);
        while (top > before && !atomic_compare_exchange_weak(&job->top, &before, top))
            ;
    }
}

static void cast_blocks(void *ctx, int64_t first, int64_t last)
{
    const cast_job *job = ctx;
    for (int64_t block = first; block < last; block++)
        job->with.rows(job->args, block * FP8_ROWS, rows_of_block(job->args, block), job->power);
}

static float power_of(int e)
{
    const uint32_t bits = dsc_fp8_power_bits(e);
    float power;
    memcpy(&power, &bits, 4);
    return power;
}

/* Numbers that are cast already, in squares that stay in cache. */
static void turn_blocks(void *ctx, int64_t first, int64_t last)
{
    const dsc_cast_fp8_args *a = ctx;
    const uint8_t *from = a->from;
    for (int64_t block = first; block < last; block++)
        for (int64_t c0 = 0; c0 < a->col_count; c0 += FP8_ROWS)
            for (int64_t c = c0; c < dsc_min_i64(c0 + FP8_ROWS, a->col_count); c++)
                for (int64_t r = block * FP8_ROWS; r < block * FP8_ROWS + rows_of_block(a, block); r++)
                    a->columns[c * a->row_count + r] = from[r * a->col_count + c];
}

static dsc_status cast(const dsc_cast_fp8_args *a, const dsc_cpu_threads *pool, dsc_fp8_variant with)
{
    DSC_ASSERT(a->row_count > 0 && a->row_count % DSC_FP8_UNIT == 0);
    DSC_ASSERT(a->col_count > 0 && a->col_count % DSC_FP8_UNIT == 0);
    DSC_ASSERT(a->format == DSC_FP8_E4M3 || a->format == DSC_FP8_E5M2);
    DSC_ASSERT(a->rows != NULL || a->columns != NULL);
    DSC_ASSERT(!a->from_fp8 || (a->rows == NULL && a->blocks == DSC_FP8_BLOCKS_NONE));
    const int64_t blocks = dsc_div_ceil(a->row_count, FP8_ROWS);
    if (a->blocks != DSC_FP8_BLOCKS_NONE)
        return dsc_fp8_cast_blocks(a, pool, with);
    if (a->from_fp8) {
        dsc_thread_pool_run(pool, blocks, turn_blocks, (void *)(uintptr_t)a);
        return DSC_OK;
    }
    cast_job job = { .args = a, .with = with };
    dsc_thread_pool_run(pool, blocks, find_top, &job);
    const int e = dsc_fp8_exponent(atomic_load(&job.top), a->format);
    job.power = power_of(e);
    a->scale->step = power_of(-e);
    dsc_thread_pool_run(pool, blocks, cast_blocks, &job);
    return DSC_OK;
}

/* ---- a piece of a matrix ---- */

enum { PIECE = FP8_ROWS * FP8_COLS }; /* numbers at a time */

typedef struct piece_job {
    const dsc_fp8_piece_args *args;
    dsc_fp8_variant with;
    _Atomic uint32_t top;
} piece_job;

static void piece_blocks(void *ctx, int64_t first, int64_t last)
{
    piece_job *job = ctx;
    const dsc_fp8_piece_args *a = job->args;
    for (int64_t block = first; block < last; block++) {
        const int64_t at = block * PIECE, count = dsc_min_i64(PIECE, a->count - at), whole = count / FP8_COLS;
        const uint16_t *const x = (const uint16_t *)a->from + at;
        if (a->work == DSC_FP8_PIECE_TOP) {
            const uint32_t top = job->with.top(x, count);
            uint32_t before = atomic_load_explicit(&job->top, memory_order_relaxed);
            while (top > before && !atomic_compare_exchange_weak(&job->top, &before, top))
                ;
            continue;
        }
        dsc_cast_fp8_args rows = { .rows = a->to + at, .from = x, .col_count = FP8_COLS, .format = DSC_FP8_E4M3 };
        if (whole > 0)
            job->with.rows(&rows, 0, whole, 1.0f / a->scale->step);
        rows.rows += whole * FP8_COLS;
        rows.from = x + whole * FP8_COLS;
        rows.col_count = count - whole * FP8_COLS;
        if (rows.col_count > 0)
            job->with.rows(&rows, 0, 1, 1.0f / a->scale->step);
    }
}

static dsc_status piece(const dsc_fp8_piece_args *a, const dsc_cpu_threads *pool, dsc_fp8_variant with)
{
    uint32_t top = 0;
    DSC_ASSERT(a->count >= 0 && a->count % DSC_FP8_UNIT == 0);
    DSC_ASSERT(a->work != DSC_FP8_PIECE_SCALE || a->top_count > 0);
    if (a->work == DSC_FP8_PIECE_SCALE) {
        for (int64_t i = 0; i < a->top_count; i++)
            top = a->tops[i * a->top_stride] > top ? a->tops[i * a->top_stride] : top;
        a->scale->step = power_of(-dsc_fp8_exponent(top, DSC_FP8_E4M3));
        return DSC_OK;
    }
    piece_job job = { .args = a, .with = with };
    dsc_thread_pool_run(pool, dsc_div_ceil(a->count, PIECE), piece_blocks, &job);
    top = atomic_load(&job.top);
    if (a->work == DSC_FP8_PIECE_TOP && top > *a->top)
        *a->top = top;
    return DSC_OK;
}

#define CAST_VARIANT(isa)                                                                                              \
    static dsc_status cast_##isa(const void *args, const dsc_cpu_threads *pool, dsc_error *err)                        \
    {                                                                                                                  \
        return cast(args, pool, (dsc_fp8_variant) { dsc_fp8_top_##isa, dsc_fp8_rows_##isa });                          \
    }                                                                                                                  \
    static dsc_status piece_##isa(const void *args, const dsc_cpu_threads *pool, dsc_error *err)                       \
    {                                                                                                                  \
        return piece(args, pool, (dsc_fp8_variant) { dsc_fp8_top_##isa, dsc_fp8_rows_##isa });                         \
    }
CAST_VARIANT(ref)
CAST_VARIANT(avx2)
CAST_VARIANT(avx512)

/* ---- the way back ---- */

static float value_of(uint8_t q, dsc_fp8 format)
{
    const int mantissa = format == DSC_FP8_E4M3 ? 3 : 2, low = format == DSC_FP8_E4M3 ? -6 : -14;
    const int exponent = q >> mantissa & (format == DSC_FP8_E4M3 ? 15 : 31), part = q & ((1 << mantissa) - 1);
    const bool nan = format == DSC_FP8_E4M3 ? (q & 0x7f) == 0x7f : exponent == 31 && part != 0;
    float x = ldexpf((float)part, low - mantissa);
    if (nan)
        return NAN;
    if (exponent > 0)
        x = ldexpf((float)(part + (1 << mantissa)), low - mantissa + exponent - 1);
    if (format == DSC_FP8_E5M2 && exponent == 31)
        x = INFINITY;
    return (q & 0x80) != 0 ? -x : x;
}

void dsc_fp8_values(dsc_fp8 format, float step, uint16_t values[256])
{
    for (int q = 0; q < 256; q++)
        values[q] = dsc_bf16_from_f32(value_of((uint8_t)q, format) * step);
}

typedef struct unpack_job {
    const dsc_fp8_unpack *unpack;
    uint16_t values[256];
} unpack_job;

static void unpack_row_in_blocks(const unpack_job *job, int64_t r)
{
    const dsc_fp8_unpack *u = job->unpack;
    for (int64_t c = 0; c < u->cols; c++)
        u->to[r * u->cols + c] = dsc_bf16_from_f32(dsc_f32_from_bf16(job->values[u->from[r * u->ld + c]]) *
                                                   u->steps[dsc_fp8_step_at(u->blocks, u->rows, u->cols, r, c)]);
}

static void unpack_rows(void *ctx, int64_t first, int64_t last)
{
    const unpack_job *job = ctx;
    const dsc_fp8_unpack *u = job->unpack;
    for (int64_t r = first; r < last && u->blocks != DSC_FP8_BLOCKS_NONE; r++)
        unpack_row_in_blocks(job, r);
    for (int64_t r = first; r < last && u->blocks == DSC_FP8_BLOCKS_NONE; r++)
        for (int64_t c = 0; c < u->cols; c++)
            u->to[r * u->cols + c] = job->values[u->from[r * u->ld + c]];
}

void dsc_fp8_unpack_run(const dsc_fp8_unpack *unpack, const dsc_cpu_threads *pool)
{
    unpack_job job = { .unpack = unpack };
    dsc_fp8_values(unpack->format, unpack->blocks != DSC_FP8_BLOCKS_NONE ? 1.0f : unpack->step, job.values);
    dsc_thread_pool_run(pool, unpack->rows, unpack_rows, &job);
}

void dsc_fp8_init(dsc_kernel_table *table, uint32_t caps)
{
    const bool avx2 = (caps & DSC_CPU_AVX2) != 0, avx512 = (caps & DSC_CPU_AVX512) != 0;
    table->fn[DSC_KERNEL_CAST_FP8] = avx512 ? cast_avx512 : avx2 ? cast_avx2 : cast_ref;
    table->fn[DSC_KERNEL_FP8_PIECE] = avx512 ? piece_avx512 : avx2 ? piece_avx2 : piece_ref;
}
