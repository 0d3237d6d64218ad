/* range.h - interface of a row kernel's variant: blocks first..last-1 of an op on one thread, given the op's own
 * argument struct. X.c cuts the work and chooses, X_ref.c is the reference, X_v16.h the body that X_avx2.c and
 * X_avx512.c compile. Private to kernels/. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CPU_RANGE_H
#define DSC_KERNELS_CPU_RANGE_H

#include <math.h>

#include "kernels/scalar.h"
#include "kernels/thread_pool.h"

/* Sizes of a block, fixed by the shape. */
enum {
    DSC_DORA_OUTPUTS = 8,          /* outputs, which share A's elements */
    DSC_DORA_COLS = 64,            /* columns of a sum over rows */
    DSC_DROPOUT_BLOCK = 4096,      /* elements */
    DSC_NF4_PART = 4096,           /* elements */
    DSC_GELU_BLOCK = 4096,         /* elements: 16 to 32 KiB in and out, about 2 us */
    DSC_LAYERNORM_BWD_ROWS = 64,   /* rows whose weight gradients add up in one scratch row (also rmsnorm.h) */
    DSC_LAYERNORM_SUM_COLS = 64,   /* columns of the scratch rows */
    DSC_SWIGLU_COLS = 4096,        /* columns of a row, as GELU's elements */
    DSC_EMBEDDING_TABLE_ROWS = 64, /* rows of the table */
};

#define DSC_RANGE_DECL(isa)                                                                                            \
    void dsc_dora_factors_##isa(const void *args, int64_t first, int64_t last);                                        \
    void dsc_dora_scale_##isa(const void *args, int64_t first, int64_t last); /* block: a row */                       \
    void dsc_dora_gradient_##isa(const void *args, int64_t first, int64_t last);                                       \
    void dsc_dropout_##isa(const void *args, int64_t first, int64_t last);                                             \
    void dsc_nf4_unpack_##isa(const void *args, int64_t first, int64_t last);                                          \
    void dsc_gelu_fwd_##isa(const void *args, int64_t first, int64_t last);                                            \
    void dsc_gelu_bwd_##isa(const void *args, int64_t first, int64_t last);                                            \
    void dsc_swiglu_fwd_##isa(const void *args, int64_t first, int64_t last); /* dsc_swiglu_piece */                   \
    void dsc_swiglu_bwd_##isa(const void *args, int64_t first, int64_t last);                                          \
    void dsc_rope_##isa(const void *args, int64_t first, int64_t last);          /* block: a row */                    \
    void dsc_layernorm_fwd_##isa(const void *args, int64_t first, int64_t last); /* block: a row */                    \
    void dsc_layernorm_bwd_##isa(const void *args, int64_t first, int64_t last);                                       \
    void dsc_layernorm_bwd_sum_##isa(const void *args, int64_t first, int64_t last);                                   \
    void dsc_rmsnorm_fwd_##isa(const void *args, int64_t first, int64_t last); /* block: a row */                      \
    void dsc_rmsnorm_bwd_##isa(const void *args, int64_t first, int64_t last);                                         \
    void dsc_rmsnorm_bwd_sum_##isa(const void *args, int64_t first, int64_t last);                                     \
    void dsc_cross_entropy_##isa(const void *args, int64_t first, int64_t last); /* block: a row */                    \
    void dsc_cross_entropy_part_##isa(const void *args, int64_t first, int64_t last);                                  \
    void dsc_cross_entropy_join_##isa(const void *args, int64_t first, int64_t last);                                  \
    void dsc_embedding_fwd_##isa(const void *args, int64_t first, int64_t last); /* block: a row */                    \
    void dsc_embedding_bwd_table_##isa(const void *args, int64_t first, int64_t last);                                 \
    void dsc_embedding_bwd_position_##isa(const void *args, int64_t first, int64_t last); /* block: a position */
DSC_RANGE_DECL(ref)
DSC_RANGE_DECL(avx2)
DSC_RANGE_DECL(avx512)
#undef DSC_RANGE_DECL

/* The sum of the lanes, which are changed, as a norm (dora.h). */
static inline float dsc_dora_norm(double lane[DSC_DORA_LANES], dsc_dtype dtype)
{
    for (int n = DSC_DORA_LANES / 2; n >= 1; n /= 2)
        for (int l = 0; l < n; l++)
            lane[l] += lane[l + n];
    return dsc_rounded((float)sqrt(lane[0]), dtype);
}

static inline float dsc_dora_factor(float x, float norm) { return norm == 0 ? 0 : x / norm; }

float dsc_gelu_ref(float x); /* DSC_GELU_TANH of the reference, also for gemm_ref.c */
double dsc_activation_ref(dsc_activation kind, double x);
double dsc_activation_slope_ref(dsc_activation kind, double x);

/* A gated activation's block: a piece of a row, where it starts in gate and up, and in out. */
typedef struct dsc_swiglu_piece { int64_t at, dense, count; } dsc_swiglu_piece;

static inline dsc_swiglu_piece dsc_swiglu_piece_of(int64_t block, int64_t cols, int64_t in_stride)
{
    const int64_t pieces = dsc_div_ceil(cols, DSC_SWIGLU_COLS), row = block / pieces;
    const int64_t first = block % pieces * DSC_SWIGLU_COLS, count = dsc_min_i64(DSC_SWIGLU_COLS, cols - first);
    return (dsc_swiglu_piece){ row * in_stride + first, row * cols + first, count };
}

/* A norm's factor of channel c (rmsnorm.h, layernorm.h). */
static inline float dsc_norm_weight(const void *weight, bool plus_one, int64_t c, dsc_dtype dtype)
{
    if (weight == NULL)
        return 1.0f;
    return plus_one ? 1.0f + dsc_get(weight, c, dtype) : dsc_get(weight, c, dtype);
}

typedef void (*dsc_range_fn)(const void *args, int64_t first, int64_t last);

typedef struct dsc_range_job {
    dsc_range_fn fn;
    const void *args;
} dsc_range_job;

static inline void dsc_range_blocks(void *ctx, int64_t first, int64_t last)
{
    const dsc_range_job *job = (const dsc_range_job *)ctx;
    job->fn(job->args, first, last);
}

static inline void dsc_range_run(const dsc_cpu_threads *pool, int64_t block_count, dsc_range_fn fn, const void *args)
{
    dsc_range_job job = { fn, args };
    dsc_thread_pool_run(pool, block_count, dsc_range_blocks, &job);
}

static inline dsc_status dsc_range_dtype_check(const char *kernel, dsc_dtype dtype, dsc_error *err)
{
    if (dsc_dtype_computes(dtype))
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, kernel, "dtype %d; expected F32, BF16 or F16", (int)dtype);
}

/* One instance of `call` for each dtype: `dtype` is a constant in it. */
#define DSC_FOR_DTYPE(value, call)             \
    do {                                       \
        if ((value) == DSC_F32) {              \
            const dsc_dtype dtype = DSC_F32;   \
            call;                              \
        } else if ((value) == DSC_BF16) {      \
            const dsc_dtype dtype = DSC_BF16;  \
            call;                              \
        } else {                               \
            const dsc_dtype dtype = DSC_F16;   \
            call;                              \
        }                                      \
    } while (0)

#endif
