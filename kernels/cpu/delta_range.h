/* delta_range.h - the gated delta rule on one thread; DELTA_ISA names the variant.
 *
 * Of a chunk, D_ij is the decay from token j to i, and 0 across a document's start. gamma_i is that from the chunk's
 * start, delta_j that to its end. Token i writes r_i and gives o_i:
 *
 *     r_i = beta_i (v_i - gamma_i k_i S) - beta_i sum over j < i of D_ij (k_i k_j) r_j
 *     o_i = gamma_i q_i S + sum over j <= i of D_ij (q_i k_j) r_j
 *
 * Then S becomes gamma S + the sum of delta_j k_j r_j.
 * Loops over columns have no order among one another, so that variants agree bit by bit.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "kernels/cpu/delta_internal.h"

#define DELTA_NAME2(name, isa) dsc_delta_##name##_##isa
#define DELTA_NAME1(name, isa) DELTA_NAME2(name, isa)
#define DELTA_NAME(name) DELTA_NAME1(name, DELTA_ISA)

enum { CHUNK = DSC_DELTA_CHUNK, LANES = 16 };

/* Inputs that forward and backward read alike. */
typedef struct delta_in {
    const void *qkv, *b, *a, *a_log, *dt_bias;
    const int32_t *positions;
    dsc_delta_shape shape;
    dsc_dtype dtype;
} delta_in;

static delta_in in_of_fwd(const dsc_delta_fwd_args *a)
{
    return (delta_in) { a->qkv, a->b, a->a, a->a_log, a->dt_bias, a->positions, a->shape, a->dtype };
}

static delta_in in_of_bwd(const dsc_delta_bwd_args *a)
{
    return (delta_in) { a->qkv, a->b, a->a, a->a_log, a->dt_bias, a->positions, a->shape, a->dtype };
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static float dot(const float *x, const float *y, int64_t n)
{
    float lane[LANES] = { 0 };
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++)
            lane[l] += x[i + l] * y[i + l];
    for (; i < n; i++)
        lane[i % LANES] += x[i] * y[i];
    for (int w = LANES / 2; w >= 1; w /= 2)
        for (int l = 0; l < w; l++)
            lane[l] += lane[l + w];
    return lane[0];
}

/* out[n] += sum over i < count of factor[i * step] * row i of rows[count, n] */
static void add_rows(float *restrict out, int64_t n, const float *factor, int64_t step, const float *restrict rows,
                     int64_t count)
{
    int64_t i = 0;
    for (; i + 4 <= count; i += 4) {
        const float a = factor[i * step], b = factor[(i + 1) * step], c = factor[(i + 2) * step],
                    d = factor[(i + 3) * step];
        const float *restrict x = rows + i * n;
        for (int64_t j = 0; j < n; j++)
            out[j] += (a * x[j] + b * x[n + j]) + (c * x[2 * n + j] + d * x[3 * n + j]);
    }
    for (; i < count; i++)
        for (int64_t j = 0; j < n; j++)
            out[j] += factor[i * step] * rows[i * n + j];
}

static void scale_row(float *x, int64_t n, float factor)
{
    for (int64_t j = 0; j < n; j++)
        x[j] *= factor;
}

static void clear(float *x, int64_t n) { memset(x, 0, (size_t)n * sizeof *x); }

static void get_row(float *out, const void *from, int64_t at, int64_t n, dsc_dtype dtype)
{
    for (int64_t j = 0; j < n; j++)
        out[j] = dsc_get(from, at + j, dtype);
}

static void put_row(void *to, int64_t at, const float *x, int64_t n, dsc_dtype dtype)
{
    for (int64_t j = 0; j < n; j++)
        dsc_put(to, at + j, dtype, x[j]);
}

/* ---- a chunk ----------------------------------------------------------------------------------------------------- */

/* 1 / norm of each row, which is scaled by it. */
static void get_unit_rows(float *out, float *inverse, const delta_in *in, const delta_span *s, int64_t column)
{
    const int64_t n = in->shape.key_size;
    for (int64_t i = 0; i < s->count; i++) {
        float *row = out + i * n;
        get_row(row, in->qkv, (s->row + i) * s->columns + column, n, in->dtype);
        inverse[i] = 1 / sqrtf(dot(row, row, n) + 1e-6f);
        scale_row(row, n, inverse[i]);
    }
}

static float softplus(float x) { return x > 20 ? x : log1pf(expf(x)); }

/* beta and the decays of head `h` of values. */
static void get_gates(const delta_in *in, const delta_span *s, int64_t h, delta_chunk *w)
{
    const float rate = -expf(dsc_get(in->a_log, h, in->dtype)), bias = dsc_get(in->dt_bias, h, in->dtype);
    float sum = 0, document = 0;
    for (int64_t i = 0; i < s->count; i++) {
        const int64_t at = (s->row + i) * in->shape.value_heads + h;
        const float x = dsc_get(in->a, at, in->dtype) + bias;
        const bool start = in->positions != NULL && in->positions[s->row + i] == 0;
        w->beta[i] = 1 / (1 + expf(-dsc_get(in->b, at, in->dtype)));
        w->slope[i] = start ? 0 : rate / (1 + expf(-x));
        w->log_decay[i] = start ? 0 : rate * softplus(x);
        sum += w->log_decay[i];
        document += start ? 1.0f : 0.0f;
        w->sum[i] = sum;
        w->document[i] = document;
    }
    for (int64_t i = 0; i < s->count; i++) {
        w->gamma[i] = w->document[i] == 0 ? expf(w->sum[i]) : 0;
        w->delta[i] = w->document[i] == document ? expf(sum - w->sum[i]) : 0;
    }
    w->whole = document == 0 ? expf(sum) : 0;
}

/* decay <- D, kk <- D k k, qk <- D q k, for j <= i. */
static void get_pairs(const delta_span *s, int64_t size, delta_chunk *w)
{
    for (int64_t i = 0; i < s->count; i++)
        for (int64_t j = 0; j <= i; j++) {
            const float decay = w->document[i] == w->document[j] ? expf(w->sum[i] - w->sum[j]) : 0;
            const float *k = w->k + j * size;
            w->decay[i * CHUNK + j] = decay;
            w->kk[i * CHUNK + j] = decay * dot(w->k + i * size, k, size);
            w->qk[i * CHUNK + j] = decay * dot(w->q + i * size, k, size);
        }
}

/* w->r <- the row that each token writes, from v in w->v; w->ks <- k S. */
static void get_written(const delta_in *in, const delta_span *s, const float *state, delta_chunk *w)
{
    const int64_t dk = in->shape.key_size, dv = in->shape.value_size;
    for (int64_t i = 0; i < s->count; i++) {
        float *ks = w->ks + i * dv, *r = w->r + i * dv;
        float factor[CHUNK];
        clear(ks, dv);
        add_rows(ks, dv, w->k + i * dk, 1, state, dk);
        for (int64_t j = 0; j < dv; j++)
            r[j] = w->beta[i] * (w->v[i * dv + j] - w->gamma[i] * ks[j]);
        for (int64_t j = 0; j < i; j++)
            factor[j] = -w->beta[i] * w->kk[i * CHUNK + j];
        add_rows(r, dv, factor, 1, w->r, i);
    }
}

/* All of a chunk that forward and backward make alike. */
static void get_chunk(const delta_in *in, const delta_span *s, int64_t h, const float *state, delta_chunk *w)
{
    const dsc_delta_shape *of = &in->shape;
    const int64_t dv = of->value_size, values = 2 * (int64_t)of->key_heads * of->key_size;
    get_gates(in, s, h, w);
    get_pairs(s, of->key_size, w);
    for (int64_t i = 0; i < s->count; i++)
        get_row(w->v + i * dv, in->qkv, (s->row + i) * s->columns + values + h * dv, dv, in->dtype);
    get_written(in, s, state, w);
}

static void get_keys(const delta_in *in, const delta_span *s, int64_t key_head, delta_chunk *w)
{
    const dsc_delta_shape *of = &in->shape;
    const int64_t dk = of->key_size;
    get_unit_rows(w->q, w->q_inverse, in, s, key_head * dk);
    get_unit_rows(w->k, w->k_inverse, in, s, (of->key_heads + key_head) * dk);
    scale_row(w->q, s->count * dk, 1 / sqrtf((float)dk));
}

/* ---- forward ----------------------------------------------------------------------------------------------------- */

static void put_out(const dsc_delta_fwd_args *a, const delta_span *s, int64_t h, const float *state, delta_chunk *w)
{
    const int64_t dk = a->shape.key_size, dv = a->shape.value_size;
    for (int64_t i = 0; i < s->count; i++) {
        float *o = w->ks; /* no longer read */
        clear(o, dv);
        add_rows(o, dv, w->q + i * dk, 1, state, dk);
        scale_row(o, dv, w->gamma[i]);
        add_rows(o, dv, w->qk + i * CHUNK, 1, w->r, i + 1);
        put_row(a->out, ((s->row + i) * a->shape.value_heads + h) * dv, o, dv, a->dtype);
    }
}

/* next <- the state behind the chunk. */
static void next_state(const dsc_delta_shape *of, const delta_span *s, const float *state, const delta_chunk *w,
                       float *next)
{
    const int64_t dk = of->key_size, dv = of->value_size;
    for (int64_t d = 0; d < dk; d++) {
        float factor[CHUNK], *row = next + d * dv;
        for (int64_t i = 0; i < s->count; i++)
            factor[i] = w->delta[i] * w->k[i * dk + d];
        for (int64_t j = 0; j < dv; j++)
            row[j] = w->whole * state[d * dv + j];
        add_rows(row, dv, factor, 1, w->r, s->count);
    }
}

void DELTA_NAME(fwd)(const void *args, int64_t first, int64_t last)
{
    const dsc_delta_fwd_args *a = args;
    const delta_in in = in_of_fwd(a);
    const dsc_delta_shape *of = &a->shape;
    const int64_t elements = of->key_size * (int64_t)of->value_size, chunks = dsc_delta_chunks(of->tokens);
    for (int64_t unit = first; unit < last; unit++) {
        const int64_t b = unit / of->value_heads, h = unit % of->value_heads;
        delta_chunk w = delta_chunk_of((float *)a->scratch + unit * dsc_delta_fwd_unit(of), of, false);
        float *state = a->states + (b * chunks * of->value_heads + h) * elements;
        float *kept = a->state != NULL ? a->state + unit * elements : NULL;
        if (a->resume)
            memcpy(state, kept, (size_t)elements * sizeof *state);
        else
            clear(state, elements);
        for (int64_t c = 0; c < chunks; c++) {
            const delta_span s = delta_span_of(of, b, c);
            float *next = c + 1 < chunks ? state + of->value_heads * elements : kept;
            get_keys(&in, &s, h / (of->value_heads / of->key_heads), &w);
            get_chunk(&in, &s, h, state, &w);
            put_out(a, &s, h, state, &w);
            if (next != NULL)
                next_state(of, &s, state, &w, next);
            state = next;
        }
    }
}

/* ---- backward ---------------------------------------------------------------------------------------------------- */

/* w->dr <- the gradients of what tokens wrote before its chain; w->kd <- k dS. */
static void get_written_bwd(const dsc_delta_shape *of, const delta_span *s, const float *d_state, delta_chunk *w)
{
    const int64_t dk = of->key_size, dv = of->value_size;
    for (int64_t j = s->count - 1; j >= 0; j--) {
        float *kd = w->kd + j * dv, *dr = w->dr + j * dv, factor[CHUNK];
        clear(kd, dv);
        add_rows(kd, dv, w->k + j * dk, 1, d_state, dk);
        for (int64_t c = 0; c < dv; c++)
            dr[c] = w->delta[j] * kd[c];
        add_rows(dr, dv, w->qk + j * CHUNK + j, CHUNK, w->d_out + j * dv, s->count - j);
        for (int64_t i = j + 1; i < s->count; i++)
            factor[i - j - 1] = -w->beta[i] * w->kk[i * CHUNK + j];
        add_rows(dr, dv, factor, 1, dr + dv, s->count - 1 - j);
    }
}

/* The gradients of pairs: kk and qk become those of k k and q k, and decays' go to d_sum. */
static void pairs_bwd(const dsc_delta_shape *of, const delta_span *s, delta_chunk *w)
{
    const int64_t dv = of->value_size;
    for (int64_t i = 0; i < s->count; i++)
        for (int64_t j = 0; j <= i; j++) {
            const int64_t at = i * CHUNK + j;
            const float *r = w->r + j * dv;
            const float dp = dot(w->d_out + i * dv, r, dv), da = j < i ? -dot(w->dr + i * dv, r, dv) : 0;
            const float along = dp * w->qk[at] + w->beta[i] * da * w->kk[at];
            w->d_beta[i] += da * w->kk[at];
            if (j < i) {
                w->d_sum[i] += along;
                w->d_sum[j] -= along;
            }
            w->kk[at] = da * w->beta[i] * w->decay[at];
            w->qk[at] = dp * w->decay[at];
        }
}

/* The parts of token i's gradients that go through the state in front of the chunk. */
static void token_state_bwd(const dsc_delta_shape *of, const float *state, const float *d_state, int64_t i,
                            delta_chunk *w)
{
    const int64_t dk = of->key_size, dv = of->value_size;
    const float *q = w->q + i * dk, *k = w->k + i * dk, gamma = w->gamma[i], beta = w->beta[i];
    float *dq = w->dq + i * dk, *dk_row = w->dk + i * dk;
    float d_gamma = 0, left = 0;
    for (int64_t d = 0; d < dk; d++) {
        const float so = dot(state + d * dv, w->d_out + i * dv, dv), sr = dot(state + d * dv, w->dr + i * dv, dv);
        dq[d] += gamma * so;
        dk_row[d] += w->delta[i] * dot(d_state + d * dv, w->r + i * dv, dv) - beta * gamma * sr;
        d_gamma += q[d] * so - beta * (k[d] * sr);
    }
    for (int64_t c = 0; c < dv; c++)
        left += w->dr[i * dv + c] * (w->v[i * dv + c] - gamma * w->ks[i * dv + c]);
    w->d_beta[i] += left;
    const float end = w->delta[i] * dot(w->kd + i * dv, w->r + i * dv, dv);
    w->d_sum[i] += gamma * d_gamma - end;
    w->d_whole += end;
}

/* d_state <- the gradient of the state in front of the chunk; it was that of the state behind it. */
static void state_bwd(const dsc_delta_shape *of, const delta_span *s, float *d_state, const delta_chunk *w)
{
    const int64_t dk = of->key_size, dv = of->value_size;
    for (int64_t d = 0; d < dk; d++) {
        float q[CHUNK], k[CHUNK], *row = d_state + d * dv;
        for (int64_t i = 0; i < s->count; i++) {
            q[i] = w->gamma[i] * w->q[i * dk + d];
            k[i] = -w->beta[i] * w->gamma[i] * w->k[i * dk + d];
        }
        scale_row(row, dv, w->whole);
        add_rows(row, dv, q, 1, w->d_out, s->count);
        add_rows(row, dv, k, 1, w->dr, s->count);
    }
}

/* Gradients of b, a and v; those of a_log and dt_bias are added to sums[2]. */
static void put_gates(const dsc_delta_bwd_args *a, const delta_span *s, int64_t h, const delta_chunk *w, float *sums)
{
    const dsc_delta_shape *of = &a->shape;
    const int64_t dv = of->value_size, values = 2 * (int64_t)of->key_heads * of->key_size;
    float behind = w->d_whole;
    for (int64_t i = s->count - 1; i >= 0; i--) {
        const int64_t row = s->row + i, at = row * of->value_heads + h;
        const float beta = w->beta[i];
        behind += w->d_sum[i];
        float *d_v = w->kd; /* no longer read */
        for (int64_t c = 0; c < dv; c++)
            d_v[c] = beta * w->dr[i * dv + c];
        put_row(a->d_qkv, row * s->columns + values + h * dv, d_v, dv, a->dtype);
        dsc_put(a->d_b, at, a->dtype, w->d_beta[i] * beta * (1 - beta));
        dsc_put(a->d_a, at, a->dtype, behind * w->slope[i]);
        sums[0] += behind * w->log_decay[i];
        sums[1] += behind * w->slope[i];
    }
}

static void value_head_bwd(const dsc_delta_bwd_args *a, const delta_span *s, int64_t h, const float *state,
                           float *d_state, delta_chunk *w, float *sums)
{
    const delta_in in = in_of_bwd(a);
    const dsc_delta_shape *of = &a->shape;
    const int64_t dk = of->key_size, dv = of->value_size;
    get_chunk(&in, s, h, state, w);
    for (int64_t i = 0; i < s->count; i++)
        get_row(w->d_out + i * dv, a->d_out, ((s->row + i) * of->value_heads + h) * dv, dv, a->dtype);
    clear(w->d_sum, CHUNK);
    clear(w->d_beta, CHUNK);
    w->d_whole = w->whole * dot(state, d_state, dk * dv);
    get_written_bwd(of, s, d_state, w);
    pairs_bwd(of, s, w);
    for (int64_t i = 0; i < s->count; i++) {
        token_state_bwd(of, state, d_state, i, w);
        add_rows(w->dq + i * dk, dk, w->qk + i * CHUNK, 1, w->k, i + 1);
        add_rows(w->dk + i * dk, dk, w->kk + i * CHUNK, 1, w->k, i);
        add_rows(w->dk + i * dk, dk, w->kk + (i + 1) * CHUNK + i, CHUNK, w->k + (i + 1) * dk, s->count - 1 - i);
        add_rows(w->dk + i * dk, dk, w->qk + i * CHUNK + i, CHUNK, w->q + i * dk, s->count - i);
    }
    state_bwd(of, s, d_state, w);
    put_gates(a, s, h, w, sums);
}

/* From the gradient of a unit row x / |x|, times `factor`, to that of x. */
static void put_unit_rows(const dsc_delta_bwd_args *a, const delta_span *s, int64_t column, const float *unit,
                          float *d_unit, const float *inverse, float factor)
{
    const int64_t n = a->shape.key_size;
    for (int64_t i = 0; i < s->count; i++) {
        const float *x = unit + i * n;
        float *d = d_unit + i * n;
        const float along = dot(x, d, n) / (factor * factor);
        for (int64_t c = 0; c < n; c++)
            d[c] = inverse[i] * factor * (d[c] - x[c] * along);
        put_row(a->d_qkv, (s->row + i) * s->columns + column, d, n, a->dtype);
    }
}

void DELTA_NAME(bwd)(const void *args, int64_t first, int64_t last)
{
    const dsc_delta_bwd_args *a = args;
    const delta_in in = in_of_bwd(a);
    const dsc_delta_shape *of = &a->shape;
    const int64_t dk = of->key_size, elements = dk * of->value_size, chunks = dsc_delta_chunks(of->tokens);
    const int64_t group = of->value_heads / of->key_heads;
    for (int64_t unit = first; unit < last; unit++) {
        const int64_t b = unit / of->key_heads, head = unit % of->key_heads;
        float *d_state = (float *)a->scratch + unit * dsc_delta_bwd_unit(of);
        delta_chunk w = delta_chunk_of(d_state + group * elements, of, true);
        float *sums = dsc_delta_sums(a) + 2 * (b * of->value_heads + head * group);
        clear(d_state, group * elements);
        clear(sums, 2 * group);
        for (int64_t c = chunks - 1; c >= 0; c--) {
            const delta_span s = delta_span_of(of, b, c);
            get_keys(&in, &s, head, &w);
            clear(w.dq, CHUNK * dk);
            clear(w.dk, CHUNK * dk);
            for (int64_t g = 0; g < group; g++) {
                const int64_t h = head * group + g;
                const float *state = a->states + ((b * chunks + c) * of->value_heads + h) * elements;
                value_head_bwd(a, &s, h, state, d_state + g * elements, &w, sums + 2 * g);
            }
            put_unit_rows(a, &s, head * dk, w.q, w.dq, w.q_inverse, 1 / sqrtf((float)dk));
            put_unit_rows(a, &s, (of->key_heads + head) * dk, w.k, w.dk, w.k_inverse, 1);
        }
    }
}
