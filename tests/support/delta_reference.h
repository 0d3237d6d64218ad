/* delta_reference.h - the gated delta rule of kernels/delta.h in double, token by token, with its gradients.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TESTS_DELTA_REFERENCE_H
#define DSC_TESTS_DELTA_REFERENCE_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "kernels/delta.h"

typedef struct delta_reference {
    dsc_delta_shape shape;
    const int32_t *positions;
    const double *qkv, *b, *a, *a_log, *dt_bias;
    const double *first; /* [B, Hv, Dk, Dv] the state that samples begin with; NULL: 0 */
    double *last;        /* the state that they end with, or NULL */
    double *out;
    /* Gradients are added to; d_out NULL: forward alone. */
    const double *d_out;
    double *d_qkv, *d_b, *d_a, *d_a_log, *d_dt_bias;
} delta_reference;

/* A token of one head. */
typedef struct delta_token {
    int64_t row, q, k, v, gate; /* elements of qkv, and of b and a */
    double beta, x, log_decay, decay, q_norm, k_norm;
    bool start;
} delta_token;

static delta_token delta_reference_token(const delta_reference *r, int64_t b, int64_t h, int64_t t)
{
    const dsc_delta_shape *of = &r->shape;
    const int64_t dk = of->key_size, dv = of->value_size, head = h / (of->value_heads / of->key_heads);
    const int64_t columns = 2 * of->key_heads * dk + of->value_heads * dv, row = b * of->tokens + t;
    delta_token at = { .row = row, .gate = row * of->value_heads + h };
    double q = 1e-6, k = 1e-6;
    at.q = row * columns + head * dk;
    at.k = row * columns + (of->key_heads + head) * dk;
    at.v = row * columns + 2 * of->key_heads * dk + h * dv;
    for (int64_t i = 0; i < dk; i++) {
        q += r->qkv[at.q + i] * r->qkv[at.q + i];
        k += r->qkv[at.k + i] * r->qkv[at.k + i];
    }
    at.q_norm = sqrt(q), at.k_norm = sqrt(k);
    at.start = r->positions != NULL && r->positions[row] == 0;
    at.x = r->a[at.gate] + r->dt_bias[h];
    at.beta = 1 / (1 + exp(-r->b[at.gate]));
    at.log_decay = -exp(r->a_log[h]) * log1p(exp(at.x));
    at.decay = at.start ? 0 : exp(at.log_decay);
    return at;
}

/* state[Dk,Dv] <- that behind token t, whose error (v - k S) is in error[Dv]. */
static void delta_reference_step(const delta_reference *r, const delta_token *at, double *state, double *error)
{
    const int64_t dk = r->shape.key_size, dv = r->shape.value_size;
    for (int64_t i = 0; i < dk * dv; i++)
        state[i] *= at->decay;
    for (int64_t c = 0; c < dv; c++) {
        error[c] = r->qkv[at->v + c];
        for (int64_t d = 0; d < dk; d++)
            error[c] -= r->qkv[at->k + d] / at->k_norm * state[d * dv + c];
        for (int64_t d = 0; d < dk; d++)
            state[d * dv + c] += r->qkv[at->k + d] / at->k_norm * at->beta * error[c];
    }
}

/* From the gradient of a unit row times `factor` to that of the row itself. */
static void delta_reference_unit(const double *x, double norm, double factor, const double *d, int64_t n, double *out)
{
    double along = 0;
    for (int64_t i = 0; i < n; i++)
        along += x[i] / norm * d[i];
    for (int64_t i = 0; i < n; i++)
        out[i] += factor / norm * (d[i] - x[i] / norm * along);
}

/* before: the state in front of the token; after: behind it; d_state: the gradient of `after`, then of `before`. */
static void delta_reference_back(const delta_reference *r, const delta_token *at, int64_t h, const double *before,
                                 const double *after, const double *error, double *d_state, double *work)
{
    const int64_t dk = r->shape.key_size, dv = r->shape.value_size;
    const double factor = 1 / sqrt((double)dk), *d_out = r->d_out + (at->row * r->shape.value_heads + h) * dv;
    double *d_q = work, *d_k = work + dk, d_beta = 0, d_log = 0;
    memset(work, 0, (size_t)(2 * dk) * sizeof *work);
    for (int64_t d = 0; d < dk; d++)
        for (int64_t c = 0; c < dv; c++) {
            d_q[d] += after[d * dv + c] * d_out[c];
            d_state[d * dv + c] += r->qkv[at->q + d] / at->q_norm * factor * d_out[c];
        }
    for (int64_t c = 0; c < dv; c++) {
        double d_write = 0;
        for (int64_t d = 0; d < dk; d++) {
            d_write += d_state[d * dv + c] * r->qkv[at->k + d] / at->k_norm;
            d_k[d] += d_state[d * dv + c] * at->beta * error[c];
        }
        d_beta += d_write * error[c];
        r->d_qkv[at->v + c] += at->beta * d_write;
        for (int64_t d = 0; d < dk; d++) {
            d_k[d] -= at->decay * before[d * dv + c] * at->beta * d_write;
            d_state[d * dv + c] -= r->qkv[at->k + d] / at->k_norm * at->beta * d_write;
        }
    }
    for (int64_t i = 0; i < dk * dv; i++) {
        d_log += at->decay * before[i] * d_state[i];
        d_state[i] *= at->decay;
    }
    delta_reference_unit(r->qkv + at->q, at->q_norm, factor, d_q, dk, r->d_qkv + at->q);
    delta_reference_unit(r->qkv + at->k, at->k_norm, 1, d_k, dk, r->d_qkv + at->k);
    const double slope = -exp(r->a_log[h]) / (1 + exp(-at->x));
    r->d_b[at->gate] += d_beta * at->beta * (1 - at->beta);
    r->d_a[at->gate] += d_log * slope;
    r->d_a_log[h] += d_log * at->log_decay;
    r->d_dt_bias[h] += d_log * slope;
}

static void delta_reference_head(const delta_reference *r, int64_t b, int64_t h)
{
    const dsc_delta_shape *of = &r->shape;
    const int64_t dk = of->key_size, dv = of->value_size, n = dk * dv, at_state = (b * of->value_heads + h) * n;
    double *states = calloc((size_t)((of->tokens + 2) * n), sizeof *states);
    double *errors = calloc((size_t)(of->tokens * dv + 2 * dk), sizeof *errors);
    DSC_ASSERT(states != NULL && errors != NULL);
    if (r->first != NULL)
        memcpy(states, r->first + at_state, (size_t)n * sizeof *states);
    for (int64_t t = 0; t < of->tokens; t++) {
        const delta_token at = delta_reference_token(r, b, h, t);
        double *state = states + (t + 1) * n;
        memcpy(state, state - n, (size_t)n * sizeof *state);
        delta_reference_step(r, &at, state, errors + t * dv);
        for (int64_t c = 0; c < dv && r->out != NULL; c++) {
            double sum = 0;
            for (int64_t d = 0; d < dk; d++)
                sum += r->qkv[at.q + d] / at.q_norm / sqrt((double)dk) * state[d * dv + c];
            r->out[(at.row * of->value_heads + h) * dv + c] = sum;
        }
    }
    if (r->last != NULL)
        memcpy(r->last + at_state, states + of->tokens * n, (size_t)n * sizeof *states);
    for (int64_t t = of->tokens - 1; t >= 0 && r->d_out != NULL; t--) {
        const delta_token at = delta_reference_token(r, b, h, t);
        delta_reference_back(r, &at, h, states + t * n, states + (t + 1) * n, errors + t * dv,
                             states + (of->tokens + 1) * n, errors + of->tokens * dv);
    }
    free(states);
    free(errors);
}

static void delta_reference_run(const delta_reference *r)
{
    for (int64_t b = 0; b < r->shape.batch; b++)
        for (int64_t h = 0; h < r->shape.value_heads; h++)
            delta_reference_head(r, b, h);
}

#endif
