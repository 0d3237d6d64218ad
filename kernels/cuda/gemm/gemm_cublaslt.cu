/* gemm_cublaslt.cu - finding cuBLASLt, and plans for products. See gemm_cublaslt.h; gemm_measure.cu chooses among the
 * algorithms of a plan, gemm_text.cu writes and reads the choice.
 *
 * cuBLASLt is column-major. Our row-major C[M,N] = A B is C^T[N,M] = B^T A^T for the library. Its first operand is our
 * b, and its rows are our columns. Its bias, one number a row, is ours, one a column.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/gemm/gemm_plan.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

namespace {

/* ---- the library ---- */

bool lt_fill(lt_calls *lt, void *library)
{
    bool whole = true;
#define X(name)                                                                  \
    *reinterpret_cast<void **>(&lt->name) = dlsym(library, "cublasLt" #name);    \
    whole = whole && lt->name != NULL;
    LT_CALLS(X)
#undef X
    return whole;
}

#define LT_MAJOR (CUDART_VERSION / 1000)
#define LT_TEXT_OF(x) #x
#define LT_TEXT(x) LT_TEXT_OF(x)

/* The program's own first (the simulator's), then the machine's. An open library stays open: it is large. */
dsc_status lt_find(lt_calls *lt, dsc_error *err)
{
    char name[160];
    if (lt_fill(lt, RTLD_DEFAULT))
        return DSC_OK;
    static const char *const folders[] = { "", "/usr/local/cuda/lib64/", "/usr/local/cuda/targets/x86_64-linux/lib/" };
    for (size_t i = 0; i < DSC_COUNT(folders); i++) {
        snprintf(name, sizeof name, "%slibcublasLt.so.%d", folders[i], LT_MAJOR);
        void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        if (library == NULL)
            continue;
        if (lt_fill(lt, library))
            return DSC_OK;
        (void)dlclose(library);
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "dsc.device", "%s lacks calls that this build needs", name);
    }
    return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "dsc.device",
                    "\"cuda\" needs libcublasLt.so.%d and it is not in the loader's path or /usr/local/cuda/lib64; "
                    "install cuBLAS %d (make deps-cuda) or set LD_LIBRARY_PATH",
                    LT_MAJOR, LT_MAJOR);
}

/* ---- plans ---- */

static_assert(WORKSPACE_BYTES >= DSC_CUDA_WORKSPACE_BYTES_MIN, "column sums take their part of it");
/* PLANS_SPARE: plans for products without preparation, since a training step must not allocate. */
constexpr int64_t PLANS_AT_FIRST = 64, PLANS_SPARE = 32;
constexpr uint8_t ALIGN_MOST = 16;
constexpr size_t LT_WITH_BLOCKS = 120900;

uint8_t align_of(const void *p)
{
    const uintptr_t low = reinterpret_cast<uintptr_t>(p) % ALIGN_MOST;
    return low == 0 ? ALIGN_MOST : static_cast<uint8_t>(low & (~low + 1));
}

plan_key key_of(const dsc_gemm_args *a)
{
    plan_key key;
    memset(&key, 0, sizeof key);
    key.m = a->m, key.n = a->n, key.k = a->k;
    key.lda = a->lda, key.ldb = a->ldb, key.ldc = a->ldc;
    key.a_transposed = a->a_transposed, key.b_transposed = a->b_transposed, key.accumulate = a->accumulate;
    key.epilogue = static_cast<uint8_t>(a->epilogue);
    key.ab_dtype = static_cast<uint8_t>(a->ab_dtype), key.c_dtype = static_cast<uint8_t>(a->c_dtype);
    key.has_bias = a->bias != NULL;
    key.a_align = align_of(a->a), key.b_align = align_of(a->b), key.c_align = align_of(a->c);
    key.aux_align = align_of(a->aux);
    key.bias_align = a->sums_of != DSC_GEMM_NO_SUMS ? align_of(a->sums) : align_of(a->bias);
    key.sums_of = static_cast<uint8_t>(a->sums_of);
    key.a_fp8 = static_cast<uint8_t>(a->a_fp8), key.b_fp8 = static_cast<uint8_t>(a->b_fp8);
    key.fast_sums = a->fast_sums;
    key.a_blocks = static_cast<uint8_t>(a->a_blocks), key.b_blocks = static_cast<uint8_t>(a->b_blocks);
    return key;
}

/* NULL if the library's result is that of gemm.h, else why not. DGELU (13.1 on an H200) has three faults: in place,
 * some algorithms write C before they read it as aux. The manual requires rows of a multiple of 8 numbers there, as of
 * GELU's. In fp32 the slope is off by more than fp32 explains, so fp32 GELU is ours too. */
const char *fault_of(const dsc_gemm_args *a)
{
    const bool halves = a->c_dtype != DSC_F32, in_place = a->c != NULL && a->c == a->aux;
    const bool gelu = a->epilogue == DSC_EPILOGUE_BIAS_GELU, slope = a->epilogue == DSC_EPILOGUE_DGELU;
    if (halves && a->ab_dtype == DSC_F32)
        return "cuBLASLt does not round a product of fp32 to 16 bits";
    if (a->epilogue >= DSC_EPILOGUE_BIAS_ACTIVATION)
        return "cuBLASLt has no such activation beside what it was taken of";
    if ((gelu || slope) && !halves)
        return "cuBLASLt's GELU is not exact in fp32";
    if ((gelu || slope) && in_place)
        return "cuBLASLt's GELU does not work in place";
    if ((gelu || slope) && a->ldc % 8 != 0)
        return "cuBLASLt's GELU needs rows of a multiple of 8 numbers";
    return gelu && a->bias == NULL ? "a GELU without a bias" : NULL;
}

/* Whether the call has what the plan of a prepared product takes for granted: GELU's input is stored, and aligned. */
bool has_aux(const dsc_gemm_args *a)
{
    return a->epilogue != DSC_EPILOGUE_BIAS_GELU || (a->aux != NULL && align_of(a->aux) == ALIGN_MOST);
}

/* The library's own names came with version 11.4 of it; these are the statuses that a user may meet. */
const char *status_text(cublasStatus_t status)
{
    switch (status) {
    case CUBLAS_STATUS_NOT_INITIALIZED: return "it cannot use this GPU or its driver (NOT_INITIALIZED)";
    case CUBLAS_STATUS_ALLOC_FAILED: return "out of memory (ALLOC_FAILED)";
    case CUBLAS_STATUS_ARCH_MISMATCH: return "it has no code for this GPU (ARCH_MISMATCH)";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "the GPU failed (EXECUTION_FAILED)";
    default: return "refused";
    }
}

/* `key`: of the product; NULL: it was no product's call. */
dsc_status lt_check(cublasStatus_t status, const char *what, const plan_key *key, dsc_error *err)
{
    char product[DSC_PLAN_TEXT_BYTES] = "";
    if (status == CUBLAS_STATUS_SUCCESS)
        return DSC_OK;
    if (key != NULL)
        dsc_cuda_plan_text(key, product);
    return DSC_FAIL(err, status == CUBLAS_STATUS_ALLOC_FAILED ? DSC_ERR_NOMEM : DSC_ERR_DEVICE, "GEMM",
                    "cuBLASLt: %s%s%.200s: status %d, %s", what, key != NULL ? " for " : "", product,
                    static_cast<int>(status), status_text(status));
}

#define LT_TRY(gemm, key, call, args) DSC_TRY(lt_check((gemm)->lt.call args, "cublasLt" #call, key, err))

template <class T>
dsc_status set(dsc_cuda_gemm *g, const plan *p, cublasLtMatmulDescAttributes_t which, T value, dsc_error *err)
{
    LT_TRY(g, &p->key, MatmulDescSetAttribute, (p->desc, which, &value, sizeof value));
    return DSC_OK;
}

cudaDataType type_of(uint8_t dtype)
{
    return dtype == DSC_BF16 ? CUDA_R_16BF : dtype == DSC_F16 ? CUDA_R_16F : CUDA_R_32F;
}

/* Of an operand. */
cudaDataType type_of(uint8_t dtype, uint8_t fp8)
{
    return fp8 == DSC_FP8_E4M3 ? CUDA_R_8F_E4M3 : fp8 == DSC_FP8_E5M2 ? CUDA_R_8F_E5M2 : type_of(dtype);
}

/* A made-up address of the plan's alignment, or the one of the call. */
const void *like(uint8_t align) { return reinterpret_cast<const void *>(static_cast<uintptr_t>(0x1000) + align % 16); }

/* Our a is the library's second operand. It sums a first operand that is as stored and a second one that is transposed,
 * which are those of gemm.h. A column of sums has the type of the result, fp32. */
cublasLtEpilogue_t epilogue_of(const plan_key *k)
{
    if (k->sums_of != DSC_GEMM_NO_SUMS)
        return k->sums_of == DSC_GEMM_SUMS_OF_B ? CUBLASLT_EPILOGUE_BGRADA : CUBLASLT_EPILOGUE_BGRADB;
    if (k->epilogue == DSC_EPILOGUE_BIAS_GELU)
        return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    if (k->epilogue == DSC_EPILOGUE_DGELU)
        return CUBLASLT_EPILOGUE_DGELU;
    return k->has_bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

bool reads_aux(const plan_key *k)
{
    return k->epilogue == DSC_EPILOGUE_BIAS_GELU || k->epilogue == DSC_EPILOGUE_DGELU;
}

dsc_status describe_epilogue(dsc_cuda_gemm *g, plan *p, dsc_error *err)
{
    const plan_key *k = &p->key;
    const bool sums = k->sums_of != DSC_GEMM_NO_SUMS;
    const cublasLtEpilogue_t epilogue = epilogue_of(k);
    if (epilogue == CUBLASLT_EPILOGUE_DEFAULT)
        return DSC_OK;
    DSC_TRY(set(g, p, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue, err));
    if (k->has_bias || sums) {
        const uint8_t dtype = sums ? k->c_dtype : k->ab_dtype;
        DSC_TRY(set(g, p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, like(k->bias_align), err));
        DSC_TRY(set(g, p, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(type_of(dtype)), err));
    }
    if (!reads_aux(k))
        return DSC_OK;
    DSC_TRY(set(g, p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, like(k->aux_align), err));
    return set(g, p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, k->ldc, err);
}

/* Scales that the library multiplies the sum with. Without fast sums it adds to an fp32 sum every 128 products. */
dsc_status describe_fp8(dsc_cuda_gemm *g, plan *p, const float *of_second, const float *of_first, dsc_error *err)
{
    DSC_TRY(set(g, p, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void *>(of_first), err));
    return set(g, p, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, static_cast<const void *>(of_second), err);
}

cublasLtMatmulMatrixScale_t mode_of(uint8_t blocks)
{
    return blocks == DSC_FP8_BLOCKS_ROW ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F
                                        : CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
}

/* Steps of blocks lie as fp8.h says, which is as the library reads them. */
dsc_status describe_blocks(dsc_cuda_gemm *g, plan *p, dsc_error *err)
{
    const size_t version = g->lt.GetVersion();
    if (p->key.a_blocks == DSC_FP8_BLOCKS_NONE)
        return DSC_OK;
    if (version < LT_WITH_BLOCKS)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "dsc.fp8.scaling",
                        "cuBLASLt %zu.%zu has no scales of blocks, expected 12.9 or newer; set dsc.fp8.scaling tensor",
                        version / 10000, version / 100 % 100);
    DSC_TRY(set(g, p, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode_of(p->key.b_blocks), err));
    return set(g, p, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode_of(p->key.a_blocks), err);
}

dsc_status describe(dsc_cuda_gemm *g, plan *p, dsc_error *err)
{
    const plan_key *k = &p->key;
    const float *some = static_cast<const float *>(like(0));
    LT_TRY(g, k, MatmulDescCreate, (&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    DSC_TRY(set(g, p, CUBLASLT_MATMUL_DESC_TRANSA, k->b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N, err));
    DSC_TRY(set(g, p, CUBLASLT_MATMUL_DESC_TRANSB, k->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N, err));
    DSC_TRY(describe_epilogue(g, p, err));
    if (k->a_fp8 != DSC_FP8_NONE) {
        DSC_TRY(describe_blocks(g, p, err));
        DSC_TRY(describe_fp8(g, p, some, some, err));
        DSC_TRY(set(g, p, CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<int8_t>(k->fast_sums), err));
    }
    LT_TRY(g, k, MatrixLayoutCreate,
           (&p->first, type_of(k->ab_dtype, k->b_fp8), static_cast<uint64_t>(k->b_transposed ? k->k : k->n),
            static_cast<uint64_t>(k->b_transposed ? k->n : k->k), k->ldb));
    LT_TRY(g, k, MatrixLayoutCreate,
           (&p->second, type_of(k->ab_dtype, k->a_fp8), static_cast<uint64_t>(k->a_transposed ? k->m : k->k),
            static_cast<uint64_t>(k->a_transposed ? k->k : k->m), k->lda));
    LT_TRY(g, k, MatrixLayoutCreate,
           (&p->result, type_of(k->c_dtype), static_cast<uint64_t>(k->n), static_cast<uint64_t>(k->m), k->ldc));
    return DSC_OK;
}

dsc_status prefer(dsc_cuda_gemm *g, cublasLtMatmulPreference_t to, const plan_key *k, dsc_error *err)
{
    /* Parts of a sum over K may meet in the workspace, where a second step adds them in order, and nowhere else. */
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const uint64_t workspace = WORKSPACE_BYTES;
    const struct { cublasLtMatmulPreferenceAttributes_t which; uint8_t align; } aligns[] = {
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, k->b_align },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, k->a_align },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
          dsc_epilogue_adds(static_cast<dsc_epilogue>(k->epilogue)) ? k->aux_align : k->c_align },
        { CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, k->c_align },
    };
    LT_TRY(g, k, MatmulPreferenceSetAttribute,
           (to, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace));
    LT_TRY(g, k, MatmulPreferenceSetAttribute,
           (to, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions, sizeof reductions));
    for (size_t i = 0; i < DSC_COUNT(aligns); i++) {
        const uint32_t bytes = aligns[i].align;
        LT_TRY(g, k, MatmulPreferenceSetAttribute, (to, aligns[i].which, &bytes, sizeof bytes));
    }
    return DSC_OK;
}

/* One result for one plan. The parts of a sum over K have an order that depends on the algorithm's timing only if
 * they meet in the output. Such algorithms are neither requested nor used. */
dsc_status look_at(const dsc_cuda_gemm *g, const plan *p, const cublasLtMatmulHeuristicResult_t *found,
                   bool *is_repeatable, dsc_error *err)
{
    uint32_t scheme = 0;
    size_t written = 0;
    *is_repeatable = false;
    if (found->state != CUBLAS_STATUS_SUCCESS || found->workspaceSize > static_cast<size_t>(WORKSPACE_BYTES))
        return DSC_OK;
    LT_TRY(g, &p->key, MatmulAlgoConfigGetAttribute,
           (&found->algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme, sizeof scheme, &written));
    *is_repeatable = scheme == CUBLASLT_REDUCTION_SCHEME_NONE || scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    return DSC_OK;
}

/* That it has not this product is an answer of the library's; any other status is a failure. */
bool is_answer(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE;
}

dsc_status ask(dsc_cuda_gemm *g, const plan *p, cublasLtMatmulPreference_t preference, int most, plan_candidates *out,
               dsc_error *err)
{
    cublasLtMatmulHeuristicResult_t found[CANDIDATES_MAX];
    int count = 0;
    memset(found, 0, sizeof found);
    DSC_TRY(prefer(g, preference, &p->key, err));
    const cublasStatus_t answer =
        g->lt.MatmulAlgoGetHeuristic(g->handle, p->desc, p->first, p->second, p->result, p->result, preference,
                                     most, found, &count);
    if (is_answer(answer))
        return DSC_OK;
    DSC_TRY(lt_check(answer, "cublasLtMatmulAlgoGetHeuristic", &p->key, err));
    for (int i = 0; i < count; i++) {
        bool is_repeatable;
        DSC_TRY(look_at(g, p, &found[i], &is_repeatable, err));
        if (is_repeatable)
            out->algo[out->count++] = found[i].algo;
    }
    return DSC_OK;
}

/* The library's first choice, which is the same for the same library, GPU and plan. */
dsc_status choose(dsc_cuda_gemm *g, plan *p, dsc_error *err)
{
    plan_candidates candidates;
    DSC_TRY(dsc_cuda_plan_candidates(g, p, MEASURED_MAX, &candidates, err));
    p->usable = candidates.count > 0;
    p->apart = (g->fused & DSC_GEMM_FUSED_BY_TIME) != 0 &&
               (DSC_GEMM_FUSED_DEFAULT & fused_bit(p->key.epilogue, p->key.sums_of)) == 0 &&
               fused_bit(p->key.epilogue, p->key.sums_of) != 0;
    if (p->usable)
        p->algo = candidates.algo[0];
    return DSC_OK;
}

void plan_close(dsc_cuda_gemm *g, plan *p)
{
    if (p->desc != NULL)
        (void)g->lt.MatmulDescDestroy(p->desc);
    for (cublasLtMatrixLayout_t layout : { p->first, p->second, p->result })
        if (layout != NULL)
            (void)g->lt.MatrixLayoutDestroy(layout);
}

dsc_status reserve_plans(dsc_cuda_gemm *g, int64_t spare, dsc_error *err)
{
    if (g->plan_count + spare <= g->plan_capacity)
        return DSC_OK;
    const int64_t capacity = g->plan_capacity == 0 ? PLANS_AT_FIRST : 2 * g->plan_capacity;
    plan *plans = NULL;
    DSC_TRY(dsc_alloc_zeroed(g->alloc, DSC_TAG_CONTROL, capacity, sizeof *plans, &plans, err));
    if (g->plan_count > 0)
        memcpy(plans, g->plans, static_cast<size_t>(g->plan_count) * sizeof *plans);
    dsc_alloc_free(g->alloc, g->plans);
    g->plans = plans;
    g->plan_capacity = capacity;
    return DSC_OK;
}

/* The plan of a product, made when it is asked for first. The lock is held. */
dsc_status plan_of(dsc_cuda_gemm *g, const plan_key *key, plan **out, dsc_error *err)
{
    for (int64_t i = 0; i < g->plan_count; i++)
        if (memcmp(&g->plans[i].key, key, sizeof *key) == 0) {
            *out = &g->plans[i];
            return DSC_OK;
        }
    DSC_TRY(reserve_plans(g, 1, err));
    plan *p = &g->plans[g->plan_count];
    memset(p, 0, sizeof *p);
    p->key = *key;
    dsc_status status = describe(g, p, err);
    if (status == DSC_OK)
        status = choose(g, p, err);
    if (status != DSC_OK) {
        plan_close(g, p);
        return status;
    }
    g->plan_count++;
    *out = p;
    return DSC_OK;
}

} // namespace

dsc_status dsc_cuda_plan_candidates(dsc_cuda_gemm *g, const plan *p, int most, plan_candidates *out, dsc_error *err)
{
    cublasLtMatmulPreference_t preference = NULL;
    out->count = 0;
    LT_TRY(g, &p->key, MatmulPreferenceCreate, (&preference));
    const dsc_status status = ask(g, p, preference, most, out, err);
    (void)g->lt.MatmulPreferenceDestroy(preference);
    return status;
}

dsc_status dsc_cuda_plan_run(const dsc_cuda_launch *at, plan *p, const cublasLtMatmulAlgo_t *algo,
                             const dsc_gemm_args *a, dsc_error *err)
{
    dsc_cuda_gemm *g = at->gemm;
    const bool adds = dsc_epilogue_adds(a->epilogue);
    const float one = 1.0f, beta = adds || a->accumulate ? 1.0f : 0.0f;
    if (p->key.has_bias)
        DSC_TRY(set(g, p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, a->bias, err));
    const bool blocks = p->key.a_blocks != DSC_FP8_BLOCKS_NONE;
    if (p->key.a_fp8 != DSC_FP8_NONE)
        DSC_TRY(
            describe_fp8(g, p, blocks ? a->a_steps : &a->a_scale->step, blocks ? a->b_steps : &a->b_scale->step, err));
    if (p->key.sums_of != DSC_GEMM_NO_SUMS)
        DSC_TRY(set(g, p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void *>(a->sums), err));
    if (reads_aux(&p->key))
        DSC_TRY(set(g, p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, static_cast<const void *>(a->aux), err));
    LT_TRY(g, &p->key, Matmul,
           (g->handle, p->desc, &one, a->b, p->first, a->a, p->second, &beta, adds ? a->aux : a->c, p->result, a->c,
            p->result, algo, at->workspace, static_cast<size_t>(WORKSPACE_BYTES), at->stream));
    return DSC_OK;
}

dsc_status dsc_cuda_gemm_library(char *version, size_t version_bytes, dsc_error *err)
{
    lt_calls lt;
    DSC_TRY(lt_find(&lt, err));
    const size_t number = lt.GetVersion(); /* 130100 is 13.1.0; before 12, 11.x were 5 digits */
    if (version != NULL)
        snprintf(version, version_bytes, "cuBLASLt %zu.%zu.%zu", number / 10000, number / 100 % 100, number % 100);
    return DSC_OK;
}

dsc_status dsc_cuda_gemm_open(dsc_alloc *alloc, const char *card, dsc_cuda_gemm **out, dsc_error *err)
{
    dsc_cuda_gemm *g = NULL;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, 1, sizeof *g, &g, err));
    g->alloc = alloc;
    g->fused = DSC_GEMM_FUSED_DEFAULT;
    snprintf(g->card, sizeof g->card, "%s", card);
    pthread_mutex_init(&g->lock, NULL); /* cannot fail with default attributes on Linux */
    dsc_status status = lt_find(&g->lt, err);
    if (status == DSC_OK)
        status = lt_check(g->lt.Create(&g->handle), "cublasLtCreate", NULL, err);
    if (status != DSC_OK) {
        dsc_cuda_gemm_close(&g);
        return status;
    }
    *out = g;
    return DSC_OK;
}

void dsc_cuda_gemm_close(dsc_cuda_gemm **gemm)
{
    dsc_cuda_gemm *g = *gemm;
    if (g == NULL)
        return;
    for (int64_t i = 0; i < g->plan_count; i++)
        plan_close(g, &g->plans[i]);
    if (g->handle != NULL)
        (void)g->lt.Destroy(g->handle);
    pthread_mutex_destroy(&g->lock);
    dsc_alloc_free(g->alloc, g->plans);
    dsc_alloc_free(g->alloc, g);
    *gemm = NULL;
}

int64_t dsc_cuda_gemm_workspace_bytes(const dsc_cuda_gemm *) { return WORKSPACE_BYTES; }

void dsc_cuda_gemm_fuse(dsc_cuda_gemm *gemm, uint32_t fused)
{
    pthread_mutex_lock(&gemm->lock);
    gemm->fused = fused;
    pthread_mutex_unlock(&gemm->lock);
}

bool dsc_cuda_gemm_slow(dsc_cuda_gemm *gemm, int64_t index, char *text, int64_t capacity)
{
    char product[DSC_PLAN_TEXT_BYTES];
    const int64_t listed = dsc_min_i64(gemm->slow_count, SLOW_MAX);
    if (index > listed || (index == listed && gemm->slow_count == listed))
        return false;
    if (index == listed) {
        snprintf(text, static_cast<size_t>(capacity), "%lld more shapes", static_cast<long long>(
                 gemm->slow_count - listed));
        return true;
    }
    dsc_cuda_plan_text(&gemm->slow[index].key, product);
    char *const strides = strstr(product, " align ");
    if (strides != NULL)
        *strides = 0;
    snprintf(text, static_cast<size_t>(capacity), "%s: %s", product, gemm->slow[index].reason);
    return true;
}

namespace {

/* Multiply-adds from which the plain kernel takes longer than 0.05 ms at 5 to 10 TFLOP/s, ten times a launch. */
constexpr double LARGE_PRODUCT = 1 << 28;

void note_slow(dsc_cuda_gemm *g, const dsc_gemm_args *a, const char *reason)
{
    const plan_key key = key_of(a);
    if (static_cast<double>(a->m) * static_cast<double>(a->n) * static_cast<double>(a->k) < LARGE_PRODUCT)
        return;
    for (int64_t i = 0; i < dsc_min_i64(g->slow_count, SLOW_MAX); i++)
        if (memcmp(&g->slow[i].key, &key, sizeof key) == 0)
            return;
    if (g->slow_count < SLOW_MAX)
        g->slow[g->slow_count] = { key, reason };
    g->slow_count++;
}

/* *usable: the library computes exactly this. */
dsc_status prepare_one(dsc_cuda_gemm *g, const dsc_gemm_args *a, bool *usable, dsc_error *err)
{
    plan *p = NULL;
    *usable = false;
    if (fault_of(a) != NULL)
        return DSC_OK;
    plan_key key = key_of(a);
    key.bias_align = ALIGN_MOST;
    DSC_TRY(reserve_plans(g, PLANS_SPARE, err));
    DSC_TRY(plan_of(g, &key, &p, err));
    p->prepared = true;
    p->shape = *a;
    *usable = p->usable;
    return DSC_OK;
}

/* The rest of a product when its epilogue or its sums are a kernel's. */
dsc_gemm_args bare(const dsc_gemm_args *a)
{
    dsc_gemm_args rest = *a;
    const bool bias = a->epilogue == DSC_EPILOGUE_BIAS_GELU || a->epilogue == DSC_EPILOGUE_BIAS_ACTIVATION;
    rest.epilogue = bias ? DSC_EPILOGUE_BIAS : DSC_EPILOGUE_NONE;
    rest.activation = DSC_GELU_TANH;
    rest.sums_of = DSC_GEMM_NO_SUMS;
    if (!dsc_epilogue_has_bias(rest.epilogue))
        rest.bias = NULL;
    return rest;
}

/* Whether an epilogue is a kernel of its own behind every product. */
bool is_apart(dsc_epilogue epilogue) { return epilogue >= DSC_EPILOGUE_BIAS_ACTIVATION; }

/* The products that gemm.cu asks for, by the same rules. No kernel of ours multiplies fp8. */
dsc_status prepare_all(dsc_cuda_gemm *g, const dsc_gemm_args *a, dsc_error *err)
{
    bool usable = false;
    const uint32_t bit = fused_bit(static_cast<uint8_t>(a->epilogue), static_cast<uint8_t>(a->sums_of));
    if (bit == 0 || (g->fused & bit) != 0)
        DSC_TRY(prepare_one(g, a, &usable, err));
    const bool may_be_apart = bit == DSC_GEMM_FUSED_SUMS || (g->fused & DSC_GEMM_FUSED_BY_TIME) != 0;
    if (usable && (bit == 0 || !may_be_apart))
        return DSC_OK;
    const bool fused = usable, fp8 = a->a_fp8 != DSC_FP8_NONE;
    const dsc_gemm_args rest = bare(a);
    if (bit != 0 ||
        ((a->c_dtype == DSC_F32 || (a->a_blocks != DSC_FP8_BLOCKS_NONE && !usable)) &&
         a->epilogue != DSC_EPILOGUE_NONE) ||
        is_apart(a->epilogue))
        DSC_TRY(prepare_one(g, &rest, &usable, err));
    if (a->a_blocks != DSC_FP8_BLOCKS_NONE && !usable && rest.epilogue != DSC_EPILOGUE_NONE) {
        const dsc_gemm_args alone = bare(&rest); /* the bias is apart too */
        DSC_TRY(prepare_one(g, &alone, &usable, err));
    }
    if (fp8 && !usable && !fused)
        return dsc_cuda_gemm_no_fp8(a, err);
    if (!usable && !fused)
        note_slow(g, a, fault_of(&rest) != NULL ? fault_of(&rest) : "cuBLASLt has no algorithm for it");
    return DSC_OK;
}

} // namespace

dsc_status dsc_cuda_gemm_no_fp8(const dsc_gemm_args *a, dsc_error *err)
{
    char product[DSC_PLAN_TEXT_BYTES];
    const plan_key key = key_of(a);
    dsc_cuda_plan_text(&key, product);
    return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "GEMM",
                    "cuBLASLt has no algorithm for a product in fp8, %.200s; a newer cuBLAS may have one, and without "
                    "dsc.fp8 products are bf16",
                    product);
}

dsc_status dsc_cuda_gemm_prepare(dsc_cuda_gemm *gemm, const dsc_gemm_args *shape, dsc_error *err)
{
    static const char some = 0;
    dsc_gemm_args a = *shape;
    a.a = a.b = a.c = a.aux = NULL;
    a.sums = NULL;
    a.bias = dsc_epilogue_has_bias(a.epilogue) ? &some : NULL;
    pthread_mutex_lock(&gemm->lock);
    const dsc_status status = prepare_all(gemm, &a, err);
    pthread_mutex_unlock(&gemm->lock);
    return status;
}

dsc_status dsc_cuda_gemm_try(const dsc_cuda_launch *at, const dsc_gemm_args *args, bool *done, dsc_error *err)
{
    dsc_cuda_gemm *g = at->gemm;
    dsc_gemm_args a = *args;
    plan *p = NULL;
    *done = false;
    DSC_ASSERT(at->workspace_bytes >= WORKSPACE_BYTES);
    if (!dsc_epilogue_has_bias(a.epilogue))
        a.bias = NULL;
    if (a.epilogue == DSC_EPILOGUE_NONE || a.epilogue == DSC_EPILOGUE_BIAS)
        a.aux = NULL;
    const uint32_t bit = fused_bit(static_cast<uint8_t>(a.epilogue), static_cast<uint8_t>(a.sums_of));
    if ((bit != 0 && (g->fused & bit) == 0) || fault_of(&a) != NULL || !has_aux(&a))
        return DSC_OK;
    const plan_key key = key_of(&a);
    pthread_mutex_lock(&g->lock);
    dsc_status status = plan_of(g, &key, &p, err);
    if (status == DSC_OK && p->usable && !p->apart) {
        status = dsc_cuda_plan_run(at, p, &p->algo, &a, err);
        *done = status == DSC_OK;
    }
    pthread_mutex_unlock(&g->lock);
    return status;
}
