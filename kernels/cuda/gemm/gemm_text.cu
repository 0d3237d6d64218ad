/* gemm_text.cu - the chosen plans as lines of text, for other ranks and for checkpoints.
 *
 * The first line is the card and the library. Each other one is a product and its algorithm, the library's own 64 bytes
 * in hex, or "apart" where the product's epilogue is a kernel of its own. A text may come from anybody: no byte of it
 * reaches the library. It only chooses among the algorithms that the library itself names for the product here.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/gemm/gemm_plan.h"
#include "kernels/cuda/plan_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const char *text_of(uint8_t dtype)
{
    return dtype == DSC_BF16 ? "bf16" : dtype == DSC_F16 ? "fp16" : "fp32";
}

/* Both operands' formats, since a shape may have two orders of them. */
static const char *operands_text(const plan_key *k)
{
    static const char *const both[3][3] = { { "", "", "" },
                                            { "", "e4m3*e4m3", "e4m3*e5m2" },
                                            { "", "e5m2*e4m3", "e5m2*e5m2" } };
    return k->a_fp8 == DSC_FP8_NONE ? text_of(k->ab_dtype) : both[k->a_fp8][k->b_fp8];
}

static const char *blocks_text(const plan_key *k)
{
    return k->a_blocks == DSC_FP8_BLOCKS_NONE ? "" : k->b_blocks == DSC_FP8_BLOCKS_ROW ? " rows*rows" : " rows*squares";
}

static const char *sums_text(uint8_t sums_of)
{
    return sums_of == DSC_GEMM_SUMS_OF_A ? " sums a" : sums_of == DSC_GEMM_SUMS_OF_B ? " sums b" : "";
}

/* Everything of the key: two plans of one text would be one plan. */
void dsc_cuda_plan_text(const plan_key *k, char line[DSC_PLAN_TEXT_BYTES])
{
    snprintf(line, DSC_PLAN_TEXT_BYTES,
             "%" PRId64 "x%" PRId64 "x%" PRId64 " ld %" PRId64 ",%" PRId64 ",%" PRId64 " %s%s %s to %s%s epilogue %d"
             "%s%s%s%s align %d,%d,%d,%d,%d",
             k->m, k->n, k->k, k->lda, k->ldb, k->ldc, k->a_transposed ? "T" : "N", k->b_transposed ? "T" : "N",
             operands_text(k), text_of(k->c_dtype), k->accumulate ? " added" : "", static_cast<int>(k->epilogue),
             k->has_bias ? " bias" : "", sums_text(k->sums_of), k->fast_sums ? " fast" : "", blocks_text(k),
             static_cast<int>(k->a_align), static_cast<int>(k->b_align), static_cast<int>(k->c_align),
             static_cast<int>(k->aux_align), static_cast<int>(k->bias_align));
}

namespace {

enum { LINE_BYTES = DSC_PLAN_TEXT_BYTES };

void head_of(const dsc_cuda_gemm *g, char line[LINE_BYTES])
{
    snprintf(line, LINE_BYTES, "%s, cuBLASLt %zu, workspace %" PRId64, g->card, g->lt.GetVersion(), WORKSPACE_BYTES);
}

/* algo: NULL for a product that is not used, since its epilogue is apart. */
void line_of(const plan_key *k, const cublasLtMatmulAlgo_t *algo, char line[LINE_BYTES])
{
    dsc_cuda_plan_text(k, line);
    size_t used = strlen(line);
    used += static_cast<size_t>(snprintf(line + used, LINE_BYTES - used, algo != NULL ? ": " : ": apart"));
    if (algo == NULL)
        return;
    for (uint64_t word : algo->data)
        used += static_cast<size_t>(snprintf(line + used, LINE_BYTES - used, "%016" PRIx64, word));
    DSC_ASSERT(used < LINE_BYTES - 1);
}

dsc_status take(dsc_cuda_gemm *g, plan *p, const char *text, bool *found, dsc_error *err)
{
    plan_candidates c;
    char line[LINE_BYTES];
    *found = false;
    if (fused_bit(p->key.epilogue, p->key.sums_of) != 0) {
        line_of(&p->key, NULL, line);
        *found = has_line(text, line);
        p->apart = p->apart || *found;
    }
    DSC_TRY(dsc_cuda_plan_candidates(g, p, CANDIDATES_MAX, &c, err));
    for (int i = 0; i < c.count && !*found; i++) {
        line_of(&p->key, &c.algo[i], line);
        *found = has_line(text, line);
        if (!*found)
            continue;
        p->algo = c.algo[i];
        p->apart = false;
    }
    return DSC_OK;
}

dsc_status take_all(dsc_cuda_gemm *g, const char *text, int64_t *others, dsc_error *err)
{
    const bool is_mine = dsc_cuda_gemm_plans_are_mine(g, text);
    for (int64_t i = 0; i < g->plan_count; i++) {
        bool found = false;
        if (!g->plans[i].prepared || !g->plans[i].usable)
            continue;
        if (is_mine)
            DSC_TRY(take(g, &g->plans[i], text, &found, err));
        g->plans[i].from_text = g->plans[i].from_text || found;
        *others += !found;
    }
    return DSC_OK;
}

} // namespace

dsc_status dsc_cuda_gemm_plans_get(dsc_cuda_gemm *g, char *text, int64_t capacity, int64_t *bytes, dsc_error *)
{
    char line[LINE_BYTES];
    *bytes = 0;
    pthread_mutex_lock(&g->lock);
    head_of(g, line);
    put_line(line, text, capacity, bytes);
    for (int64_t i = 0; i < g->plan_count; i++)
        if (g->plans[i].prepared && g->plans[i].usable) {
            line_of(&g->plans[i].key, g->plans[i].apart ? NULL : &g->plans[i].algo, line);
            put_line(line, text, capacity, bytes);
        }
    pthread_mutex_unlock(&g->lock);
    return DSC_OK;
}

bool dsc_cuda_gemm_plans_are_mine(const dsc_cuda_gemm *g, const char *text)
{
    char head[LINE_BYTES];
    head_of(g, head);
    return has_line(text, head);
}

dsc_status dsc_cuda_gemm_plans_set(dsc_cuda_gemm *g, const char *text, int64_t *others, dsc_error *err)
{
    *others = 0;
    pthread_mutex_lock(&g->lock);
    const dsc_status status = take_all(g, text, others, err);
    pthread_mutex_unlock(&g->lock);
    return status;
}
