/* delta_internal.h - memory and rows of a chunk, for all variants of the gated delta rule. Private to kernels/.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CPU_DELTA_INTERNAL_H
#define DSC_KERNELS_CPU_DELTA_INTERNAL_H

#include "base/base.h"
#include "kernels/delta.h"
#include "kernels/scalar.h"

/* Rows of a chunk: the first one among all samples', how many, and the columns of qkv. */
typedef struct delta_span {
    int64_t row, count, columns;
} delta_span;

DSC_DELTA_FN delta_span delta_span_of(const dsc_delta_shape *of, int64_t sample, int64_t chunk)
{
    delta_span s;
    const int64_t most = DSC_DELTA_CHUNK, first = chunk * most, left = of->tokens - first;
    s.row = sample * of->tokens + first;
    s.count = left < most ? left : most;
    s.columns = 2 * (int64_t)of->key_heads * of->key_size + (int64_t)of->value_heads * of->value_size;
    return s;
}

/* A unit's memory, in scratch. */
typedef struct delta_chunk {
    float *q, *k, *dq, *dk;              /* [64, Dk] */
    float *v, *r, *ks, *d_out, *dr, *kd; /* [64, Dv] */
    float *decay, *kk, *qk;              /* [64, 64] */
    float *beta, *slope, *log_decay, *sum, *document, *gamma, *delta, *q_inverse, *k_inverse, *d_sum,
        *d_beta; /* [64] */
    float whole, d_whole;
} delta_chunk;

DSC_DELTA_FN float *delta_piece(float **end, int64_t floats)
{
    float *at = *end;
    *end += floats;
    return at;
}

DSC_DELTA_FN delta_chunk delta_chunk_of(float *at, const dsc_delta_shape *of, bool backward)
{
    const int64_t chunk = DSC_DELTA_CHUNK, keys = chunk * of->key_size, values = chunk * of->value_size;
    const int64_t more_keys = backward ? keys : 0, more_values = backward ? values : 0;
    delta_chunk w;
    w.q = delta_piece(&at, keys);
    w.k = delta_piece(&at, keys);
    w.dq = delta_piece(&at, more_keys);
    w.dk = delta_piece(&at, more_keys);
    w.v = delta_piece(&at, values);
    w.r = delta_piece(&at, values);
    w.ks = delta_piece(&at, values);
    w.d_out = delta_piece(&at, more_values);
    w.dr = delta_piece(&at, more_values);
    w.kd = delta_piece(&at, more_values);
    w.decay = delta_piece(&at, chunk * chunk);
    w.kk = delta_piece(&at, chunk * chunk);
    w.qk = delta_piece(&at, chunk * chunk);
    w.beta = delta_piece(&at, chunk);
    w.slope = delta_piece(&at, chunk);
    w.log_decay = delta_piece(&at, chunk);
    w.sum = delta_piece(&at, chunk);
    w.document = delta_piece(&at, chunk);
    w.gamma = delta_piece(&at, chunk);
    w.delta = delta_piece(&at, chunk);
    w.q_inverse = delta_piece(&at, chunk);
    w.k_inverse = delta_piece(&at, chunk);
    w.d_sum = delta_piece(&at, chunk);
    w.d_beta = delta_piece(&at, chunk);
    w.whole = w.d_whole = 0;
    return w;
}

/* Sums of a_log's and dt_bias's gradients, [B, Hv, 2], behind backward's units. */
static inline float *dsc_delta_sums(const dsc_delta_bwd_args *a)
{
    return (float *)a->scratch + (int64_t)a->shape.batch * a->shape.key_heads * dsc_delta_bwd_unit(&a->shape);
}

#define DELTA_DECL(isa)                                                                                                \
    void dsc_delta_fwd_##isa(const void *args, int64_t first, int64_t last); /* block: a head of values of a sample */ \
    void dsc_delta_bwd_##isa(const void *args, int64_t first, int64_t last); /* block: a head of keys of a sample */
DELTA_DECL(ref)
DELTA_DECL(avx2)
DELTA_DECL(avx512)
#undef DELTA_DECL

#endif
