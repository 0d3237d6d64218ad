/* gemm.h - matrix products in output tiles cut by shape only; column sums.
 *
 * Row-major. C[M,N] = op(A)[M,K] * op(B)[K,N] with epilogue. Sums are fp32. One thread computes a tile, by oneDNN over
 * the whole K or by our bf16 kernel (docs/kernels.md). So the bits depend on the shape and the CPU's level alone. The
 * epilogue is applied to each tile while it is in cache.
 * reference: cpu/gemm_ref.c   variants: gemm_dnnl.c gemm_avx512bf16.c   check and bench: tests/checkkern/gemm.c
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_GEMM_H
#define DSC_KERNELS_GEMM_H

#include <dsc/error.h>
#include <dsc/types.h>

#include "kernels/fp8.h"
#include "kernels/gelu.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum dsc_epilogue {
    DSC_EPILOGUE_NONE,      /* c = x (or c + x with `accumulate`, fp32 C only) */
    DSC_EPILOGUE_BIAS,      /* c = x + bias[n] */
    DSC_EPILOGUE_BIAS_GELU, /* aux = x + bias[n] rounded to C's dtype (not stored when aux is NULL), c = gelu_tanh(aux);
                             * a GPU's library may give c = gelu_tanh(x + bias[n]), rounded once */
    DSC_EPILOGUE_BIAS_ADD,  /* c = (x + bias[n]) + aux[m,n]: the residual */
    DSC_EPILOGUE_DGELU,     /* c = x * gelu_tanh'(aux) */
    DSC_EPILOGUE_ADD,       /* c = x + aux[m,n] */
    /* The next three have the bits of a product and of GELU_FWD or GELU_BWD after it, with `activation` and its slope.
     * Rows of C lie side by side. */
    DSC_EPILOGUE_BIAS_ACTIVATION, /* aux = x + bias[n] rounded to C's dtype (not stored when aux is NULL), c = f(aux) */
    DSC_EPILOGUE_ACTIVATION,      /* the same without a bias */
    DSC_EPILOGUE_SLOPE            /* c = f'(aux) times x rounded to C's dtype; aux is not c */
} dsc_epilogue; /* x is fp32. A GPU's library may round it to C's dtype first, and also the residual's x + bias or x +
                 * aux: some of cuBLASLt's algorithms do, in either order. Its tanh is the GPU's own, with a relative
                 * error of up to 2^-11. */

/* Which epilogues read `bias` at all; only those. */
static inline bool dsc_epilogue_has_bias(dsc_epilogue epilogue)
{
    return epilogue == DSC_EPILOGUE_BIAS || epilogue == DSC_EPILOGUE_BIAS_GELU || epilogue == DSC_EPILOGUE_BIAS_ADD ||
           epilogue == DSC_EPILOGUE_BIAS_ACTIVATION;
}

/* Which take an activation of what they write to `aux`. */
static inline bool dsc_epilogue_activates(dsc_epilogue epilogue)
{
    return epilogue == DSC_EPILOGUE_BIAS_GELU || epilogue == DSC_EPILOGUE_BIAS_ACTIVATION ||
           epilogue == DSC_EPILOGUE_ACTIVATION;
}

/* Which multiply with the slope of an activation at `aux`. */
static inline bool dsc_epilogue_slopes(dsc_epilogue epilogue)
{
    return epilogue == DSC_EPILOGUE_DGELU || epilogue == DSC_EPILOGUE_SLOPE;
}

/* Which add `aux`. */
static inline bool dsc_epilogue_adds(dsc_epilogue epilogue)
{
    return epilogue == DSC_EPILOGUE_BIAS_ADD || epilogue == DSC_EPILOGUE_ADD;
}

/* Which operand's sums over K the product gives too: the bias gradient beside the weight's. */
typedef enum dsc_gemm_sums {
    DSC_GEMM_NO_SUMS,
    DSC_GEMM_SUMS_OF_A, /* sums[m] = sum over k of op(A)[m,k]; A is transposed: its rows are summed */
    DSC_GEMM_SUMS_OF_B  /* sums[n] = sum over k of op(B)[k,n]; B is not transposed */
} dsc_gemm_sums;

typedef struct dsc_gemm_args {
    const void *a, *b;
    void *c;
    const void *bias; /* [N] of A's dtype, or NULL */
    void *aux; /* [M,N] of C's dtype, row stride ldc; see dsc_epilogue. It may be c, except for activations and SLOPE */
    int64_t m, n, k;  /* k >= 1 */
    int64_t lda, ldb, ldc; /* elements between rows as stored */
    bool a_transposed;     /* A is stored [K,M] */
    bool b_transposed;     /* B is stored [N,K] */
    bool accumulate;       /* C += ; C is F32, epilogue NONE */
    dsc_epilogue epilogue;
    dsc_dtype ab_dtype; /* F32, BF16 or F16 */
    dsc_dtype c_dtype;  /* F32, the same or, where A and B are F32, a 16-bit one */
    dsc_gemm_sums sums_of; /* with epilogue NONE and F32 C, without `accumulate` */
    float *sums;           /* written, never added to */
    /* Both or none: A and B are matrices of fp8 (fp8.h), and x is the sum of products of their values. A is stored
     * [M,K], B [N,K], and every size and stride is a multiple of DSC_FP8_UNIT. ab_dtype is BF16, the bias's. There are
     * no sums beside such a product. They are not both E5M2. A CPU multiplies the values in bf16, which holds them. */
    dsc_fp8 a_fp8, b_fp8;
    const dsc_fp8_scale *a_scale, *b_scale;
    /* Both or none: A and B have scales of blocks instead (fp8.h), steps in the layout of dsc_fp8_step_count. */
    dsc_fp8_blocks a_blocks, b_blocks;
    const float *a_steps, *b_steps;
    bool fast_sums; /* with fp8: a GPU may keep sums with fewer bits, on sm_90 14 of the fraction for 128 products */
    dsc_activation activation; /* f of ACTIVATION, BIAS_ACTIVATION and SLOPE */
} dsc_gemm_args;

/* Prepared products of one device: library objects by tile shape, and the scratch of all threads, counted as LIBRARY. A
 * product that was not prepared is prepared by its first run. At most one GEMM runs in a store at a time; others wait.
 */
typedef struct dsc_gemm_store dsc_gemm_store;
struct dsc_alloc;
DSC_MUST_USE dsc_status dsc_gemm_store_open(struct dsc_alloc *alloc, int32_t threads, uint32_t caps,
                                            dsc_gemm_store **out, dsc_error *err);
void dsc_gemm_store_close(dsc_gemm_store **store);
DSC_MUST_USE dsc_status dsc_gemm_store_prepare(dsc_gemm_store *store, const dsc_gemm_args *shape, dsc_error *err);

/* out[c] = (accumulate ? out[c] : 0) + sum over rows of x[r, c], fp32: rows in blocks of 64 summed in order, block sums
 * added in order. A bias gradient. */
typedef struct dsc_colsum_args {
    float *out;    /* [cols] */
    const void *x; /* [rows, cols], row stride ld */
    int64_t rows, cols, ld;
    dsc_dtype x_dtype;
    bool accumulate;
} dsc_colsum_args;

/* The column sums that give a product's `sums` where the product itself does not: the same on every CPU. */
static inline dsc_colsum_args dsc_gemm_sums_args(const dsc_gemm_args *a)
{
    const bool of_a = a->sums_of == DSC_GEMM_SUMS_OF_A;
    dsc_colsum_args sum;
    sum.out = a->sums;
    sum.x = of_a ? a->a : a->b;
    sum.rows = a->k;
    sum.cols = of_a ? a->m : a->n;
    sum.ld = of_a ? a->lda : a->ldb;
    sum.x_dtype = a->ab_dtype;
    sum.accumulate = false;
    return sum;
}

#ifdef __cplusplus
}
#endif
#endif
