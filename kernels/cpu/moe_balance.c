/* moe_balance.c - loads of experts and the losses that keep them even: reference and only variant, with sums in double.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/moe_internal.h"

/* ---- the record of a layer ---- */

/* Tokens of a sample up to the one that its last counted target names. */
static void find_real(const void *args, int64_t first, int64_t last)
{
    const dsc_moe_tally_args *a = args;
    for (int64_t s = first; s < last; s++) {
        int64_t end = a->length;
        while (a->targets != NULL && end > 0 && a->targets[s * a->length + end - 1] < 0)
            end--;
        a->out.real[s] = (int32_t)(end > 0 ? dsc_min_i64(end + 1, a->length) : 0);
    }
}

static int32_t count_targets(const dsc_moe_tally_args *a)
{
    int32_t counted = 0;
    for (int64_t i = 0; i < a->samples * a->length; i++)
        counted += a->targets == NULL || a->targets[i] >= 0;
    return counted;
}

/* Probabilities of a token, and its log-sum-exp. */
static double softmax_of(const void *logits, int64_t token, int32_t experts, dsc_dtype dtype, double *p)
{
    double largest = -INFINITY, sum = 0;
    for (int32_t e = 0; e < experts; e++) {
        p[e] = (double)dsc_get(logits, token * experts + e, dtype);
        largest = fmax(largest, p[e]);
    }
    for (int32_t e = 0; e < experts; e++) {
        p[e] = exp(p[e] - largest);
        sum += p[e];
    }
    for (int32_t e = 0; e < experts; e++)
        p[e] /= sum;
    return largest + log(sum);
}

/* Sums of a run of tokens: slots as numbers in fp32's memory, probabilities, squares. */
static void tally_part(const void *args, int64_t first, int64_t last)
{
    const dsc_moe_tally_args *a = args;
    const int64_t tokens = a->samples * a->length, words = 2 * a->experts + 1;
    double p[DSC_MOE_EXPERTS_MAX], sum[DSC_MOE_EXPERTS_MAX];
    for (int64_t part = first; part < last; part++) {
        int32_t *const load = (int32_t *)(void *)(a->work + part * words);
        double z = 0;
        memset(load, 0, (size_t)a->experts * sizeof *load);
        memset(sum, 0, (size_t)a->experts * sizeof *sum);
        for (int64_t t = part * tokens / DSC_MOE_TALLY_PARTS; t < (part + 1) * tokens / DSC_MOE_TALLY_PARTS; t++) {
            if (t % a->length >= a->out.real[t / a->length])
                continue;
            for (int32_t slot = 0; slot < a->top_k; slot++)
                load[a->chosen[t * a->top_k + slot]]++;
            if (a->logits == NULL)
                continue;
            const double lse = softmax_of(a->logits, t, a->experts, a->dtype, p);
            for (int32_t e = 0; e < a->experts; e++)
                sum[e] += p[e];
            z += lse * lse;
        }
        for (int32_t e = 0; e < a->experts; e++)
            a->work[part * words + a->experts + e] = (float)sum[e];
        a->work[part * words + 2 * a->experts] = (float)z;
    }
}

static void tally_finish(const dsc_moe_tally_args *a)
{
    const int64_t words = 2 * a->experts + 1;
    double z = 0;
    for (int32_t e = 0; e < a->experts; e++) {
        double sum = 0;
        a->out.load[e] = 0;
        for (int64_t part = 0; part < DSC_MOE_TALLY_PARTS; part++) {
            const float *from = a->work + part * words;
            a->out.load[e] += ((const int32_t *)(const void *)from)[e];
            sum += (double)from[a->experts + e];
        }
        a->out.probability[e] = (float)sum;
    }
    for (int64_t part = 0; part < DSC_MOE_TALLY_PARTS; part++)
        z += (double)a->work[part * words + 2 * a->experts];
    *a->out.z = (float)z;
    *a->out.tokens = 0;
    for (int64_t s = 0; s < a->samples; s++)
        *a->out.tokens += a->out.real[s];
    *a->out.counted = count_targets(a);
}

static dsc_status tally(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_moe_tally_args *a = args;
    DSC_ASSERT(a->experts >= 1 && a->experts <= DSC_MOE_EXPERTS_MAX);
    DSC_ASSERT(a->top_k >= 1 && a->top_k <= a->experts);
    DSC_ASSERT(a->samples >= 1 && a->length >= 1);
    DSC_TRY(dsc_range_dtype_check("MOE_TALLY", a->dtype, err));
    dsc_range_run(pool, a->samples, find_real, a);
    dsc_range_run(pool, DSC_MOE_TALLY_PARTS, tally_part, a);
    tally_finish(a);
    return DSC_OK;
}

/* ---- gradients ---- */

/* work[e]: the factor of expert e's probability; work[experts]: that of the log-sum-exp. */
static void sum_layers(const dsc_moe_balance_bwd_args *a)
{
    const double tokens = (double)*a->own.tokens, n = tokens * (double)a->layers;
    const double share = (double)*a->own.counted / (double)(a->samples * a->length), w = a->by_counted ? share : 1;
    for (int32_t e = 0; e < a->experts; e++) {
        int64_t load = 0;
        for (int32_t l = 0; l < a->layers; l++)
            load += dsc_moe_record_at((void *)(uintptr_t)a->records, l, a->experts, a->samples).load[e];
        a->work[e] = tokens == 0 ? 0 : (float)(w * (double)a->balance * a->experts * (double)load / n / n);
    }
    a->work[a->experts] = tokens == 0 ? 0 : (float)(w * (double)a->z * 2 / n);
}

static void add_gradients(const void *args, int64_t first, int64_t last)
{
    const dsc_moe_balance_bwd_args *a = args;
    double p[DSC_MOE_EXPERTS_MAX];
    for (int64_t t = first; t < last; t++) {
        double mean = 0;
        if (t % a->length >= a->own.real[t / a->length])
            continue;
        const double lse = softmax_of(a->logits, t, a->experts, a->dtype, p);
        for (int32_t e = 0; e < a->experts; e++)
            mean += (double)a->work[e] * p[e];
        for (int32_t e = 0; e < a->experts; e++) {
            const int64_t at = t * a->experts + e;
            const double d = p[e] * ((double)a->work[e] - mean + (double)a->work[a->experts] * lse);
            dsc_put(a->d_logits, at, a->d_dtype, (float)((double)dsc_get(a->d_logits, at, a->d_dtype) + d));
        }
    }
}

static dsc_status balance_bwd(const void *args, const dsc_cpu_threads *pool, dsc_error *err)
{
    const dsc_moe_balance_bwd_args *a = args;
    DSC_ASSERT(a->experts >= 1 && a->experts <= DSC_MOE_EXPERTS_MAX);
    DSC_ASSERT(a->layers >= 1);
    DSC_ASSERT(a->samples >= 1 && a->length >= 1);
    DSC_TRY(dsc_range_dtype_check("MOE_BALANCE_BWD", a->dtype, err));
    DSC_TRY(dsc_range_dtype_check("MOE_BALANCE_BWD", a->d_dtype, err));
    sum_layers(a);
    dsc_range_run(pool, a->samples * a->length, add_gradients, a);
    return DSC_OK;
}

void dsc_moe_balance_init(dsc_kernel_table *table)
{
    table->fn[DSC_KERNEL_MOE_TALLY] = tally;
    table->fn[DSC_KERNEL_MOE_BALANCE_BWD] = balance_bwd;
}
