/* gemm_plan.h - shared by the files about plans of products: the library's calls, a plan, and the handle that keeps
 * them. Only gemm_*.cu include it.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CUDA_GEMM_GEMM_PLAN_H
#define DSC_KERNELS_CUDA_GEMM_GEMM_PLAN_H

#include "kernels/cuda/gemm/gemm_cublaslt.h"

#include <cublasLt.h>
#include <pthread.h>

#define LT_CALLS(X)                                                                                   \
    X(GetVersion) X(Create) X(Destroy) X(MatmulDescCreate) X(MatmulDescDestroy) X(MatmulDescSetAttribute) \
    X(MatrixLayoutCreate) X(MatrixLayoutDestroy) X(MatmulPreferenceCreate) X(MatmulPreferenceDestroy)     \
    X(MatmulPreferenceSetAttribute) X(MatmulAlgoGetHeuristic) X(MatmulAlgoConfigGetAttribute) X(Matmul)

/* cublasLtMatmul is lt.Matmul, and so on. */
typedef struct lt_calls {
#define X(name) decltype(&cublasLt##name) name;
    LT_CALLS(X)
#undef X
} lt_calls;

/* It is the same on every GPU, since plans depend on it. */
constexpr int64_t WORKSPACE_BYTES = DSC_GPU_GEMM_WORKSPACE_BYTES;
/* Algorithms of one product that are measured, and that a text's algorithm is searched in. Among many that the
 * library rates as equally fast, it names others first the next time (13.1 does, for products of 61 rows on an
 * H200). */
constexpr int MEASURED_MAX = 64, CANDIDATES_MAX = 128;

/* Key of a plan. Plain bytes, compared as such: no padding. */
typedef struct plan_key {
    int64_t m, n, k, lda, ldb, ldc;
    uint8_t a_transposed, b_transposed, accumulate, epilogue, ab_dtype, c_dtype;
    uint8_t has_bias, a_align, b_align, c_align, aux_align;
    uint8_t bias_align; /* alignment of the sums where there are any */
    uint8_t sums_of, a_fp8, b_fp8, fast_sums;
    uint8_t a_blocks, b_blocks, unused[6];
} plan_key;

/* Large products that the plain kernel computes, each once; `reason` is a constant. */
constexpr int SLOW_MAX = 16;
typedef struct slow_product { plan_key key; const char *reason; } slow_product;

typedef struct plan {
    plan_key key;
    bool usable;         /* the library has this product */
    bool apart;          /* it has, and its epilogue runs as a kernel of its own all the same */
    bool unrepeatable;   /* its sums differed between two runs of each algorithm: it stays apart */
    bool prepared;       /* a training step will ask for it; `shape` is what was prepared, without pointers */
    bool from_text;          /* its algorithm is that of a text: not to be measured */
    dsc_gemm_args shape;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t first, second, result;
    cublasLtMatmulAlgo_t algo;
} plan;

struct dsc_cuda_gemm {
    dsc_alloc *alloc;
    char card[160];
    lt_calls lt;
    cublasLtHandle_t handle;
    pthread_mutex_t lock; /* plans: streams of one device may run products at the same time */
    plan *plans;
    int64_t plan_count, plan_capacity;
    uint32_t fused; /* of dsc_gemm_fused */
    slow_product slow[SLOW_MAX];
    int64_t slow_count; /* may be more than there is capacity for */
};

/* The bit of dsc_gemm_fused that a product's epilogue depends on; 0: none, it is the library's in any case. */
static inline uint32_t fused_bit(uint8_t epilogue, uint8_t sums_of)
{
    return sums_of != DSC_GEMM_NO_SUMS            ? DSC_GEMM_FUSED_SUMS
           : epilogue == DSC_EPILOGUE_BIAS_GELU ? DSC_GEMM_FUSED_GELU
           : epilogue == DSC_EPILOGUE_DGELU     ? DSC_GEMM_FUSED_DGELU
                                                : 0;
}

/* The product in words: "32x64x192 ld 192,64,64 NN bf16 to bf16 ...". No two keys have the same. */
#define DSC_PLAN_TEXT_BYTES 512
void dsc_cuda_plan_text(const plan_key *key, char text[DSC_PLAN_TEXT_BYTES]);

/* Up to `most` of the algorithms that a plan may take, the library's first choice first; none: the library has not this
 * product. */
typedef struct plan_candidates {
    cublasLtMatmulAlgo_t algo[CANDIDATES_MAX];
    int count;
} plan_candidates;
dsc_status dsc_cuda_plan_candidates(dsc_cuda_gemm *g, const plan *p, int most, plan_candidates *out, dsc_error *err);
/* Enqueues the product by one of them. The lock is held, here and there. */
dsc_status dsc_cuda_plan_run(const dsc_cuda_launch *at, plan *p, const cublasLtMatmulAlgo_t *algo,
                             const dsc_gemm_args *a, dsc_error *err);

#endif
