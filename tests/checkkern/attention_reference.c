/* attention_reference.c - attention in double precision with the allowed errors of every element.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/checkkern/attention_reference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/bf16.h"

static const double eps = 0x1p-24, eps_bf16 = 0x1p-8;

double *ck_attention_doubles(int64_t count)
{
    double *all = calloc((size_t)count, sizeof *all);
    DSC_ASSERT(all != NULL);
    return all;
}

static int64_t at(const shape *s, int64_t heads, int64_t b, int64_t t, int64_t h)
{
    return ((b * s->tokens + t) * heads + h) * s->size;
}

void ck_attention_open(problem *p, const shape *s, dsc_dtype dtype)
{
    memset(p, 0, sizeof *p);
    p->s = *s;
    p->dtype = dtype;
    p->scale = (double)(float)(s->scale_up / sqrt(s->size));
    double **q[] = { &p->q, &p->out, &p->d_out, &p->out_want, &p->out_tol, &p->dq_want, &p->dq_tol };
    double **kv[] = { &p->k, &p->v, &p->dk_want, &p->dk_tol, &p->dv_want, &p->dv_tol };
    double **lse[] = { &p->lse, &p->lse_want, &p->lse_tol };
    for (size_t i = 0; i < DSC_COUNT(q); i++)
        *q[i] = ck_attention_doubles(q_count(s));
    for (size_t i = 0; i < DSC_COUNT(kv); i++)
        *kv[i] = ck_attention_doubles(kv_count(s));
    double **head[] = { &p->sinks, &p->d_sinks_want, &p->d_sinks_tol };
    for (size_t i = 0; i < DSC_COUNT(head); i++)
        *head[i] = ck_attention_doubles(s->heads);
    for (size_t i = 0; i < DSC_COUNT(lse); i++)
        *lse[i] = ck_attention_doubles(rows_of(s) * s->heads);
}

void ck_attention_close(problem *p)
{
    double *all[] = { p->q,        p->out,     p->d_out,   p->out_want,     p->out_tol,    p->dq_want, p->dq_tol,
                      p->k,        p->v,       p->dk_want, p->dk_tol,       p->dv_want,    p->dv_tol,  p->lse,
                      p->lse_want, p->lse_tol, p->sinks,   p->d_sinks_want, p->d_sinks_tol };
    for (size_t i = 0; i < DSC_COUNT(all); i++)
        free(all[i]);
}

typedef struct query { /* one query row against the keys that it sees */
    int64_t b, h, t, q, group; /* q: offset of its row; group: its key head */
    int64_t first, keys;       /* the first that it sees; those before it, and itself; or all */
    double p[1024], p_rel[1024]; /* probabilities and their allowed relative error */
    double max_abs; /* largest |score| */
} query;

/* A score sums D products: each rounding counts once, and they add up like a random walk; its error moves log p. */
static double score_error(const shape *s, double abs_sum) { return 4 * eps * (sqrt(s->size) + 2) * abs_sum; }

static double score(const problem *p, const query *row, int64_t k, double *abs_sum)
{
    const shape *s = &p->s;
    const double *x = p->q + row->q, *y = p->k + at(s, s->kv_heads, row->b, k, row->group);
    double sum = 0;
    *abs_sum = 0;
    for (int32_t d = 0; d < s->size; d++) {
        sum += x[d] * y[d];
        *abs_sum += fabs(x[d] * y[d]);
    }
    *abs_sum *= p->scale;
    return sum * p->scale;
}

/* A logit of a scaled score, its slope, and what the arithmetic of tanh may be off by. */
typedef struct logit {
    double value, slope, tol;
} logit;

/* transformers' build_alibi_tensor for BLOOM: from the next lower power of two, and from twice as many heads. */
static double slope_of(const problem *p, int64_t h)
{
    const double whole = pow(2, floor(log2(p->s.heads)));
    const double base = pow(2, -p->s.alibi / whole), extra = pow(2, -p->s.alibi / (2 * whole));
    if (p->s.alibi == 0)
        return 0;
    return h < (int64_t)whole ? pow(base, (double)h + 1) : pow(extra, 1 + 2 * ((double)h - whole));
}

static double in_bf16(double x) { return (double)dsc_f32_from_bf16(dsc_bf16_from_f32((float)x)); }

static logit logit_of(const problem *p, const query *row, int64_t k, double score)
{
    logit x = { score, 1, 0 };
    const double slope = slope_of(p, row->h);
    const double bias = p->s.of_key > 0 ? -(double)p->s.of_key * in_bf16(in_bf16(slope) * in_bf16((double)k))
                                        : slope * fabs((double)(p->s.past + row->t - k));
    if (p->s.softcap > 0) {
        const double cap = p->s.softcap, t = tanh(score / cap);
        x = (logit) { cap * t, 1 - t * t, cap * (8 * eps + (p->bf16_products ? 4e-6 : 0)) };
    }
    x.value -= bias;
    x.tol += 8 * eps * fabs(bias);
    return x;
}

static bool is_hidden(const problem *p, const query *row, int64_t k)
{
    return p->key_tokens != NULL && p->key_tokens[row->b * p->s.tokens + k] == HIDDEN;
}

static void query_start(const problem *p, query *row, int64_t b, int64_t h, int64_t t)
{
    row->b = b;
    row->h = h;
    row->t = t;
    row->q = at(&p->s, p->s.heads, b, t, h);
    row->group = h / (p->s.heads / p->s.kv_heads);
    row->keys = p->s.all ? p->s.tokens : p->s.past + t + 1;
    row->first = p->positions != NULL ? t - p->positions[b * p->s.tokens + t] : 0;
    for (int64_t k = t + 1; p->s.all && p->positions != NULL && k < row->keys; k++)
        if (p->positions[b * p->s.tokens + k] == 0)
            row->keys = k;
    if (p->s.window > 0 && p->s.all) {
        row->first = dsc_max_i64(row->first, t - p->s.window / 2);
        row->keys = dsc_min_i64(row->keys, t + p->s.window / 2 + 1);
    } else if (p->s.window > 0)
        row->first = dsc_max_i64(row->first, row->keys - p->s.window);
    row->max_abs = 0;
}

double ck_attention_rounded(const problem *p, double x)
{
    return eps * fabs(x) + ck_rounding(p->dtype, x);
}

static void forward_row(const problem *p, query *row, double *out, double *out_tol, double *lse, double *lse_tol)
{
    const shape *s = &p->s;
    const double sink = s->sinks ? p->sinks[row->h] : -INFINITY;
    double max = sink, sum = 0, worst = s->sinks ? 4 * eps * fabs(sink) : 0;
    for (int64_t k = row->first; k < row->keys; k++) {
        double abs_sum;
        row->p[k] = -INFINITY;
        if (is_hidden(p, row, k))
            continue;
        const logit x = logit_of(p, row, k, score(p, row, k, &abs_sum));
        row->p[k] = x.value;
        max = fmax(max, row->p[k]);
        worst = fmax(worst, score_error(s, abs_sum) + 4 * eps * fabs(row->p[k]) + x.tol);
    }
    for (int64_t k = row->first; k < row->keys; k++)
        sum += row->p[k] = exp(row->p[k] - max);
    sum += exp(sink - max);
    *lse = max + log(sum);
    /* exp: 4 ulp (3e-6 beside bf16 products); the running sum and its rescaling by every tile */
    const double rel = 2 * worst + 4 * eps * (4 + sqrt((double)row->keys)) + (p->bf16_products ? 4e-6 : 0);
    *lse_tol = rel + 4 * eps * fabs(*lse);
    for (int32_t d = 0; d < s->size; d++) {
        double total = 0, abs_total = 0;
        for (int64_t k = row->first; k < row->keys; k++) {
            const double x = row->p[k] / sum * p->v[at(s, s->kv_heads, row->b, k, row->group) + d];
            total += x;
            abs_total += fabs(x);
        }
        out[d] = total;
        out_tol[d] = (rel + (p->bf16_products ? eps_bf16 : 0)) * abs_total;
        out_tol[d] += ck_attention_rounded(p, total) * 1.01 + 1e-37;
    }
}

/* From the given out and lse, as the kernel: dq of the row, and its terms of dk and dv. */
static void backward_row(const problem *p, query *row)
{
    const shape *s = &p->s;
    const double *d_out = p->d_out + row->q, *out = p->out + row->q, *q = p->q + row->q;
    const double lse = p->lse[(row->b * s->heads + row->h) * s->tokens + row->t];
    const double round_p = p->bf16_products ? eps_bf16 : 0, walk = 4 * (sqrt((double)s->tokens) + 2) * eps;
    double delta = 0, delta_abs = 0;
    for (int32_t d = 0; d < s->size; d++) {
        delta += d_out[d] * out[d];
        delta_abs += fabs(d_out[d] * out[d]);
    }
    if (s->sinks) {
        const double sink = p->sinks[row->h], prob = exp(sink - lse);
        const double rel = 4 * eps * (fabs(sink) + fabs(lse) + 4) + walk;
        p->d_sinks_want[row->h] -= prob * delta;
        p->d_sinks_tol[row->h] += prob * (rel * fabs(delta) + score_error(s, delta_abs)) + 4 * eps * fabs(prob * delta);
    }
    for (int64_t k = row->first; k < row->keys; k++) {
        if (is_hidden(p, row, k))
            continue;
        const int64_t kv = at(s, s->kv_heads, row->b, k, row->group);
        double dp = 0, dp_abs = 0, abs_sum;
        const logit x = logit_of(p, row, k, score(p, row, k, &abs_sum));
        const double prob = exp(x.value - lse);
        for (int32_t d = 0; d < s->size; d++) {
            dp += d_out[d] * p->v[kv + d];
            dp_abs += fabs(d_out[d] * p->v[kv + d]);
        }
        const double exp_rel = 4 * eps + (p->bf16_products ? 4e-6 : 0);
        const double rel = score_error(s, abs_sum) + 4 * eps * (fabs(x.value) + fabs(lse)) + exp_rel + x.tol;
        const double ds = prob * (dp - delta) * x.slope * p->scale;
        const double dp_tol = score_error(s, dp_abs + delta_abs);
        /* tanh moves the slope as twice its own error, and so does the score's error in units of the cap */
        const double slope_tol = p->s.softcap > 0 ? 2 * (x.tol + score_error(s, abs_sum)) / p->s.softcap : 0;
        const double ds_tol = fabs(ds) * (rel + 4 * eps + round_p) + prob * p->scale * dp_tol +
                              prob * p->scale * slope_tol * (fabs(dp) + fabs(delta));
        for (int32_t d = 0; d < s->size; d++) {
            p->dv_want[kv + d] += prob * d_out[d];
            p->dv_tol[kv + d] += fabs(prob * d_out[d]) * (rel + round_p + walk);
            p->dk_want[kv + d] += ds * q[d];
            p->dk_tol[kv + d] += fabs(q[d]) * (ds_tol + walk * fabs(ds));
            p->dq_want[row->q + d] += ds * p->k[kv + d];
            p->dq_tol[row->q + d] += fabs(p->k[kv + d]) * (ds_tol + walk * fabs(ds));
        }
    }
}

static void each_row(problem *p, bool backward)
{
    const shape *s = &p->s;
    query *row = malloc(sizeof *row);
    DSC_ASSERT(row != NULL);
    DSC_ASSERT((size_t)s->tokens <= DSC_COUNT(row->p));
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t h = 0; h < s->heads; h++)
            for (int64_t t = 0; t < s->tokens; t++) {
                const int64_t l = (b * s->heads + h) * s->tokens + t;
                query_start(p, row, b, h, t);
                if (backward)
                    backward_row(p, row);
                else
                    forward_row(p, row, p->out_want + row->q, p->out_tol + row->q, p->lse_want + l, p->lse_tol + l);
            }
    free(row);
}

void ck_attention_forward(problem *p) { each_row(p, false); }

void ck_attention_backward(problem *p)
{
    const size_t q = (size_t)q_count(&p->s) * sizeof(double), kv = (size_t)kv_count(&p->s) * sizeof(double);
    memset(p->dq_want, 0, q), memset(p->dq_tol, 0, q);
    memset(p->dk_want, 0, kv), memset(p->dk_tol, 0, kv);
    memset(p->dv_want, 0, kv), memset(p->dv_tol, 0, kv);
    memset(p->d_sinks_want, 0, (size_t)p->s.heads * sizeof(double));
    memset(p->d_sinks_tol, 0, (size_t)p->s.heads * sizeof(double));
    each_row(p, true);
}

