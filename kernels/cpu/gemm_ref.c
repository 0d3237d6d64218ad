/* gemm_ref.c - plain C: products summed in double over k in order and rounded once, epilogues, column sums.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/cpu/fp8_internal.h"
#include "kernels/cpu/gemm_internal.h"
#include "kernels/cpu/range.h"
#include "kernels/scalar.h"
#include "kernels/thread_pool.h"

/* 0.5 (1 + tanh(u)) without its cancellation */
static float gelu_gate(float x)
{
    const double u = 0.7978845608028654 * ((double)x + 0.044715 * x * x * x);
    return (float)(1 / (1 + exp(-2 * u)));
}

static float gelu_slope(float x)
{
    const double s = gelu_gate(x), u2_slope = 2 * 0.7978845608028654 * (1 + 3 * 0.044715 * fmin((double)x * x, 1e30));
    return (float)(s + x * s * (1 - s) * u2_slope);
}

/* As dsc_gelu_fwd_ref and dsc_gelu_bwd_ref: x is a number of C's dtype. */
static float activated(const dsc_epilogue_tile *t, float x)
{
    return (float)dsc_activation_ref(t->activation, (double)x);
}

static float times_slope(const dsc_epilogue_tile *t, float x, float at)
{
    return (float)((double)x * dsc_activation_slope_ref(t->activation, (double)at));
}

void dsc_epilogue_ref(const dsc_epilogue_tile *t)
{
    for (int64_t r = 0; r < t->rows; r++)
        for (int64_t c = 0; c < t->cols; c++) {
            const int64_t at = r * t->ldc + c;
            float x = t->x[r * t->ldx + c];
            if (t->bias != NULL && dsc_epilogue_has_bias(t->kind))
                x += dsc_get(t->bias, c, t->bias_dtype);
            if (dsc_epilogue_activates(t->kind)) {
                x = dsc_rounded(x, t->c_dtype);
                if (t->aux != NULL)
                    dsc_put(t->aux, at, t->c_dtype, x);
                /* rounded once, so that it has the bits of GELU_FWD */
                x = t->kind == DSC_EPILOGUE_BIAS_GELU ? dsc_gelu_ref(x) : activated(t, x);
            } else if (dsc_epilogue_adds(t->kind)) {
                x += dsc_get(t->aux, at, t->c_dtype);
            } else if (t->kind == DSC_EPILOGUE_DGELU) {
                x *= gelu_slope(dsc_get(t->aux, at, t->c_dtype));
            } else if (t->kind == DSC_EPILOGUE_SLOPE) {
                x = times_slope(t, dsc_rounded(x, t->c_dtype), dsc_get(t->aux, at, t->c_dtype));
            }
            dsc_put(t->c, at, t->c_dtype, x);
        }
}

void dsc_gemm_check(const dsc_gemm_args *a)
{
    DSC_ASSERT(a->m >= 0 && a->n >= 0 && a->k >= 1);
    DSC_ASSERT(a->lda >= (a->a_transposed ? a->m : a->k));
    DSC_ASSERT(a->ldb >= (a->b_transposed ? a->k : a->n));
    DSC_ASSERT(a->ldc >= a->n);
    DSC_ASSERT(dsc_dtype_computes(a->ab_dtype));
    DSC_ASSERT(dsc_dtype_computes(a->c_dtype));
    DSC_ASSERT(a->ab_dtype == DSC_F32 || a->c_dtype == DSC_F32 || a->c_dtype == a->ab_dtype);
    DSC_ASSERT(!a->accumulate || (a->c_dtype == DSC_F32 && a->epilogue == DSC_EPILOGUE_NONE));
    DSC_ASSERT(a->sums_of == DSC_GEMM_NO_SUMS || (a->c_dtype == DSC_F32 && a->epilogue == DSC_EPILOGUE_NONE));
    DSC_ASSERT(a->sums_of == DSC_GEMM_NO_SUMS || !a->accumulate);
    DSC_ASSERT((uint32_t)a->activation < DSC_ACTIVATIONS);
    DSC_ASSERT(a->epilogue < DSC_EPILOGUE_BIAS_ACTIVATION || a->ldc == a->n);
    DSC_ASSERT(a->epilogue != DSC_EPILOGUE_SLOPE || a->aux == NULL || a->aux != a->c); /* NULL: a shape alone */
    DSC_ASSERT(a->sums_of == DSC_GEMM_NO_SUMS || (a->m > 0 && a->n > 0));
    DSC_ASSERT(a->sums_of != DSC_GEMM_SUMS_OF_A || a->a_transposed);
    DSC_ASSERT(a->sums_of != DSC_GEMM_SUMS_OF_B || !a->b_transposed);
    DSC_ASSERT((a->a_fp8 == DSC_FP8_NONE) == (a->b_fp8 == DSC_FP8_NONE));
    if (a->a_fp8 == DSC_FP8_NONE)
        return;
    DSC_ASSERT(!a->a_transposed && a->b_transposed && a->sums_of == DSC_GEMM_NO_SUMS);
    DSC_ASSERT(a->ab_dtype == DSC_BF16 && (a->a_fp8 == DSC_FP8_E4M3 || a->b_fp8 == DSC_FP8_E4M3));
    DSC_ASSERT((a->m | a->n | a->k | a->lda | a->ldb | a->ldc) % DSC_FP8_UNIT == 0);
    DSC_ASSERT((a->a_blocks == DSC_FP8_BLOCKS_NONE) == (a->b_blocks == DSC_FP8_BLOCKS_NONE));
}

/* The product, and in fp8 the value of each number of A and B. */
typedef struct ref_job {
    const dsc_gemm_args *args;
    uint16_t a_values[256], b_values[256];
} ref_job;

static double element(const void *x, int64_t at, const dsc_gemm_args *a, dsc_fp8 format, const uint16_t *values)
{
    if (format == DSC_FP8_NONE)
        return (double)dsc_get(x, at, a->ab_dtype);
    return (double)dsc_f32_from_bf16(values[((const uint8_t *)x)[at]]);
}

/* Both numbers' steps, of blocks. */
static double steps_of(const dsc_gemm_args *a, int64_t i, int64_t j, int64_t k)
{
    return (double)a->a_steps[dsc_fp8_step_at(a->a_blocks, a->m, a->k, i, k)] *
           (double)a->b_steps[dsc_fp8_step_at(a->b_blocks, a->n, a->k, j, k)];
}

static double sum_of(const ref_job *job, int64_t i, int64_t j)
{
    const dsc_gemm_args *a = job->args;
    double sum = 0;
    for (int64_t k = 0; k < a->k; k++)
        sum += element(a->a, a->a_transposed ? k * a->lda + i : i * a->lda + k, a, a->a_fp8, job->a_values) *
               element(a->b, a->b_transposed ? j * a->ldb + k : k * a->ldb + j, a, a->b_fp8, job->b_values) *
               (a->a_blocks != DSC_FP8_BLOCKS_NONE ? steps_of(a, i, j, k) : 1);
    return sum;
}

static void ref_rows(void *ctx, int64_t first, int64_t last)
{
    const dsc_gemm_args *a = ((const ref_job *)ctx)->args;
    const size_t c_bytes = dsc_dtype_bytes(a->c_dtype), bias_bytes = dsc_dtype_bytes(a->ab_dtype);
    for (int64_t i = first; i < last; i++)
        for (int64_t j = 0; j < a->n; j++) {
            double sum = sum_of(ctx, i, j);
            const int64_t at = i * a->ldc + j;
            if (a->accumulate)
                sum += (double)((float *)a->c)[at];
            const float x = (float)sum;
            const bool has_bias = a->bias != NULL && dsc_epilogue_has_bias(a->epilogue);
            const dsc_epilogue_tile one = {
                .kind = a->epilogue,
                .c_dtype = a->c_dtype,
                .bias_dtype = a->ab_dtype,
                .rows = 1,
                .cols = 1,
                .x = &x,
                .ldx = 1,
                .c = (char *)a->c + (size_t)at * c_bytes,
                .aux = a->aux != NULL ? (char *)a->aux + (size_t)at * c_bytes : NULL,
                .ldc = a->ldc,
                .bias = has_bias ? (const char *)a->bias + (size_t)j * bias_bytes : NULL,
                .activation = a->activation,
            };
            dsc_epilogue_ref(&one);
        }
}

dsc_status dsc_gemm_ref(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    dsc_gemm_args a = *(const dsc_gemm_args *)args;
    dsc_gemm_check(&a);
    ref_job job = { .args = &a };
    if (a.a_fp8 != DSC_FP8_NONE && a.n > 0 && a.m > 0) {
        const bool blocks = a.a_blocks != DSC_FP8_BLOCKS_NONE;
        dsc_fp8_values(a.a_fp8, blocks ? 1.0f : a.a_scale->step, job.a_values);
        dsc_fp8_values(a.b_fp8, blocks ? 1.0f : a.b_scale->step, job.b_values);
    }
    dsc_thread_pool_run(pool, a.n > 0 ? a.m : 0, ref_rows, &job);
    if (a.sums_of != DSC_GEMM_NO_SUMS) {
        const dsc_colsum_args sums = dsc_gemm_sums_args(&a);
        dsc_colsum_ref(&sums, 0, sums.cols);
    }
    return DSC_OK;
}

void dsc_colsum_ref(const dsc_colsum_args *a, int64_t first, int64_t last)
{
    for (int64_t c = first; c < last; c++) {
        float total = 0;
        for (int64_t block = 0; block < a->rows; block += 64) {
            float sum = 0;
            for (int64_t r = block; r < dsc_min_i64(block + 64, a->rows); r++)
                sum += dsc_get(a->x, r * a->ld + c, a->x_dtype);
            total += sum;
        }
        a->out[c] = a->accumulate ? a->out[c] + total : total;
    }
}
