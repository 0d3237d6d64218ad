/* sample.c - see sample.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/generate/sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int32_t most_likely(const float *logits, int64_t count)
{
    int64_t best = 0;
    for (int64_t i = 1; i < count; i++)
        if (logits[i] > logits[best])
            best = i;
    return (int32_t)best;
}

/* Draws from softmax(logits / temperature). */
static int32_t draw(const float *logits, int64_t count, double temperature, double uniform)
{
    const double top = (double)logits[most_likely(logits, count)];
    double total = 0;
    for (int64_t i = 0; i < count; i++)
        total += exp(((double)logits[i] - top) / temperature);
    double left = uniform * total;
    for (int64_t i = 0; i < count; i++) {
        left -= exp(((double)logits[i] - top) / temperature);
        if (left < 0)
            return (int32_t)i;
    }
    return most_likely(logits, count);
}

static int by_likelihood(const void *a, const void *b)
{
    const dsc_sample_work *left = a, *right = b;
    if (left->logit != right->logit)
        return left->logit > right->logit ? -1 : 1;
    return left->id < right->id ? -1 : left->id > right->id;
}

/* Samples from the first candidates of a sorted list. */
static int32_t draw_first(const dsc_sample_work *sorted, int64_t count, const dsc_sample_options *o, double uniform)
{
    const double top = (double)sorted[0].logit;
    const int64_t most = o->top_k > 0 ? dsc_min_i64(o->top_k, count) : count;
    double total = 0, kept = 0;
    int64_t keep = 0;
    for (int64_t i = 0; i < most; i++)
        total += exp(((double)sorted[i].logit - top) / o->temperature);
    while (keep < most && (keep == 0 || kept < o->top_p * total))
        kept += exp(((double)sorted[keep++].logit - top) / o->temperature);
    double left = uniform * kept;
    for (int64_t i = 0; i < keep; i++) {
        left -= exp(((double)sorted[i].logit - top) / o->temperature);
        if (left < 0)
            return sorted[i].id;
    }
    return sorted[0].id;
}

int32_t dsc_sample(const float *logits, int64_t count, const dsc_sample_options *o, double uniform,
                   dsc_sample_work *work)
{
    if (o->temperature == 0)
        return most_likely(logits, count);
    if (o->top_k <= 0 && o->top_p >= 1)
        return draw(logits, count, o->temperature, uniform);
    for (int64_t i = 0; i < count; i++)
        work[i] = (dsc_sample_work){ logits[i], (int32_t)i };
    qsort(work, (size_t)count, sizeof *work, by_likelihood);
    return draw_first(work, count, o, uniform);
}

void dsc_sample_penalize(const float *logits, int64_t count, const int32_t *tokens, int64_t token_count, double penalty,
                         float *out)
{
    const float by = (float)penalty;
    memcpy(out, logits, (size_t)count * sizeof *out);
    for (int64_t i = 0; i < token_count; i++) {
        const float logit = logits[tokens[i]];
        out[tokens[i]] = logit < 0 ? logit * by : logit / by;
    }
}
