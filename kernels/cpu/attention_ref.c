/* attention_ref.c - attention in plain C, one query row at a time. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/attention_part.h"
#include "kernels/scalar.h"

static float dot(const void *a, int64_t a_row, const void *b, int64_t b_row, dsc_dtype dtype, int64_t count)
{
    float sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += dsc_get(a, a_row + i, dtype) * dsc_get(b, b_row + i, dtype);
    return sum;
}

/* to[i] += factor * row[i] */
static void add_row(float *to, float factor, const void *row, int64_t at, dsc_dtype dtype, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] += factor * dsc_get(row, at + i, dtype);
}

static void put_row(void *to, int64_t at, dsc_dtype dtype, const float *from, float factor, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        dsc_put(to, at + i, dtype, from[i] * factor);
}

/* A logit, and how fast it grows with the scaled score. */
typedef struct logit {
    float value, slope;
} logit;

static logit logit_of(const dsc_attention_head_logits *rule, float score, int64_t distance, int64_t key)
{
    logit x = { score * rule->scale, 1 };
    if (rule->softcap > 0) {
        const float t = tanhf(x.value / rule->softcap);
        x = (logit) { rule->softcap * t, 1 - t * t };
    }
    if (rule->of_key > 0)
        x.value += dsc_attention_key_addend(rule->of_key, rule->slope, (int32_t)key);
    else if (rule->slope > 0)
        x.value -= rule->slope * (float)(distance < 0 ? -distance : distance);
    return x;
}

/* The logit of query `t` (past keys count) and key `k`, whose rows start at q_row and k_row; of a hidden key a very low
 * one. */
static float score_of(const dsc_attention_fwd_args *a, const dsc_attention_head_logits *rule, int64_t batch, int64_t t,
                      int64_t k, int64_t q_row, int64_t k_row)
{
    if (a->keys.all && dsc_attention_hides(&a->keys, batch, a->tokens, k))
        return DSC_ATTENTION_LOW;
    return logit_of(rule, dot(a->q, q_row, a->k, k_row, a->dtype, a->head_size), t - k, k).value;
}

/* Scratch here: p [T], out [D]. Both layouts have more. Keys beyond p have their scores computed twice. */
static void forward(const dsc_attention_fwd_args *a, int32_t batch, int32_t head, int32_t first, int32_t last,
                    float *scratch)
{
    const int64_t tokens = a->tokens, size = a->head_size;
    const int64_t apart = dsc_attention_head_stride(a->head_stride, a->head_size);
    const int64_t q_head = head * apart, key_head = head / (a->heads / a->kv_heads) * apart;
    const int64_t end = dsc_min_i64((int64_t)last * DSC_ATTENTION_TILE, tokens);
    const dsc_attention_head_logits rule = dsc_attention_logits_of(&a->logits, a->scale, a->heads, head);
    float *p = scratch, *out = scratch + tokens;
    for (int64_t t = (int64_t)first * DSC_ATTENTION_TILE; t < end; t++) {
        const int64_t q_row = dsc_attention_row(batch, tokens, t, a->q_stride, q_head);
        const float sink = a->sinks != NULL ? dsc_get(a->sinks, head, a->dtype) : -INFINITY;
        float max = sink, sum = 0;
        const int64_t start = dsc_attention_first_key(&a->keys, batch, tokens, t);
        const int64_t keys = dsc_attention_last_key(&a->keys, batch, tokens, t);
        for (int64_t k = start; k < keys; k++) {
            const int64_t k_row = dsc_attention_row(batch, tokens, k, a->k_stride, key_head);
            const float score = score_of(a, &rule, batch, a->keys.past + t, k, q_row, k_row);
            if (k < tokens)
                p[k] = score;
            max = fmaxf(max, score);
        }
        memset(out, 0, (size_t)size * sizeof *out);
        if (a->sinks != NULL)
            sum = expf(sink - max);
        for (int64_t k = start; k < keys; k++) {
            const int64_t k_row = dsc_attention_row(batch, tokens, k, a->k_stride, key_head);
            const int64_t v_row = dsc_attention_row(batch, tokens, k, a->v_stride, key_head);
            const float score = k < tokens ? p[k] : score_of(a, &rule, batch, a->keys.past + t, k, q_row, k_row);
            const float e = expf(score - max);
            sum += e;
            add_row(out, e, a->v, v_row, a->dtype, size);
        }
        put_row(a->out, dsc_attention_row(batch, tokens, t, a->out_stride, head * size), a->dtype, out, 1 / sum, size);
        if (a->lse != NULL)
            a->lse[((int64_t)batch * a->heads + head) * tokens + t] = max + logf(sum);
    }
}

/* Gradients of one query row against keys first..end-1; adds to dk, dv (rows from `first`) and dq. */
static void backward_row(const dsc_attention_bwd_args *a, int64_t batch, int64_t head, int64_t t, int64_t first,
                         int64_t end, float *dk, float *dv, float *dq)
{
    const int64_t tokens = a->tokens, size = a->head_size;
    const int64_t apart = dsc_attention_head_stride(a->head_stride, a->head_size);
    const int64_t key_head = head / (a->heads / a->kv_heads) * apart;
    const int64_t q_row = dsc_attention_row(batch, tokens, t, a->q_stride, head * apart);
    const int64_t out_row = dsc_attention_row(batch, tokens, t, a->out_stride, head * size);
    const float lse = a->lse[(batch * a->heads + head) * tokens + t];
    const float delta = dot(a->d_out, out_row, a->out, out_row, a->dtype, size);
    const dsc_attention_head_logits rule = dsc_attention_logits_of(&a->logits, a->scale, a->heads, head);
    const int64_t start = dsc_max_i64(first, dsc_attention_first_key(&a->keys, batch, tokens, t));
    for (int64_t k = start; k < dsc_min_i64(end, dsc_attention_last_key(&a->keys, batch, tokens, t)); k++) {
        if (a->keys.all && dsc_attention_hides(&a->keys, batch, tokens, k))
            continue;
        const int64_t k_row = dsc_attention_row(batch, tokens, k, a->k_stride, key_head);
        const int64_t v_row = dsc_attention_row(batch, tokens, k, a->v_stride, key_head);
        const logit x = logit_of(&rule, dot(a->q, q_row, a->k, k_row, a->dtype, size), t - k, k);
        const float p = expf(x.value - lse);
        const float dp = dot(a->d_out, out_row, a->v, v_row, a->dtype, size);
        const float ds = p * (dp - delta) * x.slope * a->scale;
        add_row(dv + (k - first) * size, p, a->d_out, out_row, a->dtype, size);
        add_row(dk + (k - first) * size, ds, a->q, q_row, a->dtype, size);
        add_row(dq, ds, a->k, k_row, a->dtype, size);
    }
}

/* Scratch here: dk [T, D], dv [T, D], dq [D]. Both layouts have more. */
static void backward(const dsc_attention_bwd_args *a, const dsc_attention_bwd_part *part, float *scratch)
{
    const int64_t tokens = a->tokens, size = a->head_size;
    const int64_t apart = dsc_attention_head_stride(a->head_stride, a->head_size);
    const int64_t key_head = part->head_first / (a->heads / a->kv_heads) * apart;
    const int64_t first = (int64_t)part->key_first * DSC_ATTENTION_TILE;
    const int64_t end = dsc_min_i64((int64_t)part->key_last * DSC_ATTENTION_TILE, tokens);
    float *dk = scratch, *dv = dk + (end - first) * size, *dq = dv + (end - first) * size;
    memset(dk, 0, (size_t)(2 * (end - first) * size) * sizeof *dk);
    for (int64_t head = part->head_first; head < part->head_last; head++)
        for (int64_t t = (int64_t)part->query_first * DSC_ATTENTION_TILE;
             t < dsc_min_i64((int64_t)part->query_last * DSC_ATTENTION_TILE, tokens); t++) {
            memset(dq, 0, (size_t)size * sizeof *dq);
            backward_row(a, part->batch, head, t, first, end, dk, dv, dq);
            if (part->want_dq)
                put_row(a->dq, dsc_attention_row(part->batch, tokens, t, a->q_stride, head * apart), a->dtype, dq, 1,
                        size);
        }
    for (int64_t k = first; part->want_dkv && k < end; k++) {
        const int64_t k_row = dsc_attention_row(part->batch, tokens, k, a->k_stride, key_head);
        const int64_t v_row = dsc_attention_row(part->batch, tokens, k, a->v_stride, key_head);
        put_row(a->dk, k_row, a->dtype, dk + (k - first) * size, 1, size);
        put_row(a->dv, v_row, a->dtype, dv + (k - first) * size, 1, size);
    }
}

const dsc_attention_ops dsc_attention_ref = { forward, backward };
