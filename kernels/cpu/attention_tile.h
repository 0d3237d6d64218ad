/* attention_tile.h - attention over tiles of 64 queries and 64 keys, written once for all vector widths. Included by
 * each attention_<isa>.c after it has defined the vector primitives below; everything here is static.
 *
 * Queries lie in the lanes: a tile of scores is kept transposed, [key, query], so that maxima, sums and the softmax go
 * lane by lane, never across lanes. All operands of a product are packed into scratch first, as 4-byte words: one fp32
 * (ATT_PAIR 1) or two bf16 that VDPBF16PS multiplies and adds (ATT_PAIR 2). A product's left operand is read one word
 * at a time and broadcast, its right operand in whole vectors along the lanes:
 *
 *   scores        s[k,q]   = sum_d k[k,d] q^T[d,q]            gradients     dp[k,q]  = sum_d v[k,d] d_out^T[d,q]
 *   output        out[q,d] = sum_k p[k,q] v[k,d]              of inputs     dv[k,d]  = sum_q p[k,q] d_out[q,d]
 *                                                                           dk[k,d]  = sum_q ds[k,q] q[q,d]
 *                                                                           dq[q,d]  = sum_k ds[k,q] k[k,d]
 *
 * Rows past T and elements past D are packed as zeros, so products run over whole vectors and their results there are
 * zero or are not stored. On the diagonal, work is skipped in steps of one vector of queries and four keys.
 *
 * Primitives: ATT_LANES, ATT_PAIR, ATT_ROWS (rows of a register block), ATT_VECS (vectors of one).
 *   att_vec (fp32 lanes) and att_load, att_store, att_set1, att_add, att_sub, att_mul, att_div, att_fma,
 *   att_max.
 *   att_word (4-byte lanes), att_word_load, att_word_store, att_word_zero, att_word_set1 (broadcast from memory).
 *   att_dot(sum, a, b): adds the products of the words' elements;   att_exp2(x) for x <= 64.
 *   att_from_lane(x, n, low): x in lanes n and up, `low` below;   att_transpose(att_word[ATT_LANES]).
 *   att_words(row, dtype, first, count): words `first` + lane of a row of `count` elements, 0 past its end.
 *   att_pairs(row0, row1, first, count): ATT_PAIR 2: elements `first` + lane of two rows as words; NULL: a zero row.
 *   att_p_row(float *to, x): lanes as an operand's row of words (ATT_PAIR 2: rounded, two lanes in a word).
 *   att_as_word(vec), att_as_vec(word): the same bits.
 *   att_p_pair(x0, x1): ATT_PAIR 2: two rows as one row of words.   att_put(to, dtype, first, count, x): stores lanes.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CPU_ATTENTION_TILE_H
#define DSC_KERNELS_CPU_ATTENTION_TILE_H

#include <string.h>

#include "kernels/cpu/attention_part.h"
#include "kernels/scalar.h"

#define ATT_INLINE static inline __attribute__((always_inline))
enum { ATT_TILE = DSC_ATTENTION_TILE, ATT_TILE_VECS = DSC_ATTENTION_TILE / ATT_LANES };
#define ATT_LOW DSC_ATTENTION_LOW
#define ATT_LOG2E 1.44269504088896340736f
#define ATT_LN2 0.69314718055994530942f

#include "kernels/cpu/attention_logits.h"

/* ---- products ---- */

typedef struct att_operand { /* element (row, step) of a left operand: base[row * by_row + step * by_step] */
    const float *base;
    int64_t by_row, by_step;
} att_operand;

/* c[ATT_ROWS, vecs] = factor[row] * c + a * b; factor NULL: 1; fresh: c was nothing. */
ATT_INLINE void att_block(const int vecs, const bool fresh, const float *factor, att_operand a, const float *b,
                          int64_t b_step, float *c, int64_t c_row, int64_t steps)
{
    att_vec sum[ATT_ROWS][ATT_VECS];
    for (int r = 0; r < ATT_ROWS; r++)
        for (int v = 0; v < vecs; v++) {
            sum[r][v] = fresh ? att_set1(0) : att_load(c + r * c_row + v * ATT_LANES);
            if (!fresh && factor != NULL)
                sum[r][v] = att_mul(sum[r][v], att_set1(factor[r]));
        }
    const float *x = a.base;
    for (int64_t s = 0; s < steps; s++) {
        att_word right[ATT_VECS];
        for (int v = 0; v < vecs; v++)
            right[v] = att_word_load(b + v * ATT_LANES);
        for (int r = 0; r < ATT_ROWS; r++) {
            const att_word left = att_word_set1(x + r * a.by_row);
            for (int v = 0; v < vecs; v++)
                sum[r][v] = att_dot(sum[r][v], left, right[v]);
        }
        x += a.by_step;
        b += b_step;
    }
    for (int r = 0; r < ATT_ROWS; r++)
        for (int v = 0; v < vecs; v++)
            att_store(c + r * c_row + v * ATT_LANES, sum[r][v]);
}

/* One row block over any number of vectors, in equal shares. */
ATT_INLINE void att_row_block(const bool fresh, const float *factor, att_operand a, const float *b, int64_t b_step,
                              float *c, int64_t c_row, int64_t vecs, int64_t steps)
{
    while (vecs > 0) {
        const int64_t now = dsc_div_ceil(vecs, dsc_div_ceil(vecs, ATT_VECS));
        switch (now) {
        case 1: att_block(1, fresh, factor, a, b, b_step, c, c_row, steps); break;
        case 2: att_block(2, fresh, factor, a, b, b_step, c, c_row, steps); break;
#if ATT_VECS > 3
        case 3: att_block(3, fresh, factor, a, b, b_step, c, c_row, steps); break;
#endif
        default: att_block(ATT_VECS, fresh, factor, a, b, b_step, c, c_row, steps);
        }
        vecs -= now;
        b += now * ATT_LANES;
        c += now * ATT_LANES;
    }
}

/* to[ATT_LANES keys, vectors from `first` to `vecs`] = left rows times the transposed tile `right`. */
static void att_scores(float *to, const float *left, int64_t words, const float *right, int64_t steps, int64_t first,
                       int64_t vecs)
{
    const int64_t lane = first * ATT_LANES;
    for (int64_t k = 0; k < ATT_LANES; k += ATT_ROWS)
        att_row_block(true, NULL, (att_operand){ left + k * words, words, 1 }, right + lane, ATT_TILE,
                      to + k * ATT_TILE + lane, ATT_TILE, vecs - first, steps);
}

/* to[queries, lanes] = factor[query] * to + x^T times rows: x is [keys, TILE queries], rows is [keys, lanes]. */
ATT_INLINE void att_sum_keys(const bool fresh, const float *factor, float *to, const float *x, const float *rows,
                             int64_t lanes, int64_t queries, bool diagonal)
{
    for (int64_t q = 0; q < queries; q += ATT_ROWS)
        att_row_block(fresh, factor == NULL ? NULL : factor + q, (att_operand){ x + q, 1, ATT_TILE }, rows, lanes,
                      to + q * lanes, lanes, lanes / ATT_LANES, (diagonal ? q + ATT_ROWS : ATT_TILE) / ATT_PAIR);
}

/* to[keys, lanes] += x times rows: x is [keys, TILE queries], rows is [queries, lanes]. */
ATT_INLINE void att_sum_queries(const bool fresh, float *to, const float *x, const float *rows, int64_t lanes,
                                int64_t keys, int64_t queries, bool diagonal)
{
    for (int64_t k = 0; k < keys; k += ATT_ROWS) {
        const int64_t first = (diagonal ? k : 0) / ATT_PAIR;
        att_row_block(fresh, NULL, (att_operand){ x + k * (ATT_TILE / ATT_PAIR) + first, ATT_TILE / ATT_PAIR, 1 },
                      rows + first * lanes, lanes, to + k * lanes, lanes, lanes / ATT_LANES,
                      queries / ATT_PAIR - first);
    }
}

/* ---- packing ---- */

typedef struct att_rows { /* the rows of one head */
    const char *base; /* of row 0 */
    int64_t start_bytes, step_bytes; /* offset of row 0 in its tensor; distance between rows */
    int64_t count, size;
    dsc_dtype dtype;
} att_rows;

/* Element `head` of a row is where the head starts. */
static att_rows att_rows_of(const void *tensor, dsc_dtype dtype, int64_t batch, int64_t tokens, int64_t stride,
                            int64_t head, int64_t size)
{
    const int64_t each = (int64_t)dsc_dtype_bytes(dtype), start = (batch * tokens * stride + head) * each;
    return (att_rows){ (const char *)tensor + start, start, stride * each, tokens, size, dtype };
}

ATT_INLINE const char *att_row(const att_rows *rows, int64_t t)
{
    return t < rows->count ? rows->base + t * rows->step_bytes : NULL;
}

ATT_INLINE att_word att_row_words(const att_rows *rows, int64_t t, int64_t first)
{
    const char *row = att_row(rows, t);
    return row == NULL ? att_word_zero() : att_words(row, rows->dtype, first, rows->size);
}

/* Left operand of a sum over D: row after row, [last - first, words]. */
static void att_pack_rows(float *to, const att_rows *rows, int64_t first, int64_t last, int64_t words)
{
    for (int64_t t = first; t < last; t++)
        for (int64_t w = 0; w < words; w += ATT_LANES)
            att_word_store(to + (t - first) * words + w, att_row_words(rows, t, w));
}

/* Right operand of a sum over D: [words, TILE], rows `first` and following in the lanes. */
static void att_pack_transposed(float *to, const att_rows *rows, int64_t first, int64_t vecs, int64_t words)
{
    for (int64_t v = 0; v < vecs; v++)
        for (int64_t w = 0; w < words; w += ATT_LANES) {
            att_word block[ATT_LANES];
            for (int64_t i = 0; i < ATT_LANES; i++)
                block[i] = att_row_words(rows, first + v * ATT_LANES + i, w);
            att_transpose(block);
            for (int64_t i = 0; i < ATT_LANES; i++)
                att_word_store(to + (w + i) * ATT_TILE + v * ATT_LANES, block[i]);
        }
}

/* Right operand of a sum over tokens: [(last - first) / ATT_PAIR, lanes]. */
static void att_pack_pairs(float *to, const att_rows *rows, int64_t first, int64_t last, int64_t lanes)
{
#if ATT_PAIR == 1
    att_pack_rows(to, rows, first, last, lanes);
#else
    for (int64_t t = first; t < last; t += 2, to += lanes)
        for (int64_t d = 0; d < lanes; d += ATT_LANES)
            att_word_store(to + d, att_pairs(att_row(rows, t), att_row(rows, t + 1), d, rows->size));
#endif
}

/* Row t of `to` (laid out as `like` says) = from[t - first] * factor[t - first]; factor NULL: 1. */
static void att_put_rows(void *to, const att_rows *like, int64_t first, int64_t last, const float *from, int64_t lanes,
                         const float *factor)
{
    const int64_t end = dsc_min_i64(last, like->count);
    for (int64_t t = first; t < end; t++, from += lanes)
        for (int64_t d = 0; d < like->size; d += ATT_LANES) {
            att_vec x = att_load(from + d);
            if (factor != NULL)
                x = att_mul(x, att_set1(factor[t - first]));
            att_put((char *)to + like->start_bytes + t * like->step_bytes, like->dtype, d, like->size, x);
        }
}

/* Scores of `count` keys from `key` on, [keys, TILE]: of those that nobody sees they become ATT_LOW. */
static void att_hide_keys(float *s, const dsc_attention_keys *keys, int64_t batch, int64_t tokens, int64_t key,
                          int64_t count)
{
    for (int64_t k = 0; k < count; k++, s += ATT_TILE)
        for (int64_t v = 0; v < ATT_TILE_VECS && dsc_attention_hides(keys, batch, tokens, key + k); v++)
            att_store(s + v * ATT_LANES, att_set1(ATT_LOW));
}

/* Scores of `count` keys from `key` on, [keys, TILE], with queries from `query` on in the lanes: of what a query does
 * not see they become ATT_LOW. */
static void att_limit_keys(float *s, const dsc_attention_keys *keys, int64_t batch, int64_t tokens, int64_t query,
                           int64_t vecs, int64_t key, int64_t count)
{
    for (int64_t v = 0; v < vecs; v++) {
        const int64_t lane0 = query + v * ATT_LANES;
        int64_t first[ATT_LANES], last[ATT_LANES];
        for (int64_t i = 0; i < ATT_LANES; i++) {
            const int64_t token = dsc_min_i64(lane0 + i, tokens - 1);
            first[i] = dsc_attention_first_key(keys, batch, tokens, token);
            last[i] = dsc_attention_last_key(keys, batch, tokens, token);
        }
        for (int64_t k = 0; k < count; k++) {
            if (key + k >= first[ATT_LANES - 1] && key + k < last[0])
                continue;
            float *row = s + k * ATT_TILE + v * ATT_LANES;
            for (int64_t i = 0; i < ATT_LANES; i++)
                row[i] = key + k >= first[i] && key + k < last[i] ? row[i] : ATT_LOW;
        }
    }
}

/* Whether some query of a tile does not see some key of another: beyond what the diagonal knows of itself. */
static bool att_limits(const dsc_attention_keys *keys, int64_t batch, int64_t tokens, int64_t query, int64_t queries,
                       int64_t key)
{
    if (key < dsc_attention_first_key(keys, batch, tokens, query + queries - 1))
        return true;
    if (keys->all)
        return dsc_attention_has_limits(keys) &&
               dsc_min_i64(key + ATT_TILE, tokens) > dsc_attention_last_key(keys, batch, tokens, query);
    return (keys->past > 0 && key + ATT_TILE > keys->past + query + 1);
}

/* ---- forward ---- */

/* One tile of scores, [keys, queries], becomes probabilities relative to the largest score so far. max (in units of
 * log 2) and sum are updated; alpha is the factor of earlier sums and outputs. */
static void att_softmax(dsc_attention_fwd_scratch *sc, float scale2, int64_t keys, int64_t vecs, bool diagonal)
{
    for (int64_t v = 0; v < vecs; v++) {
        float *s = sc->s + v * ATT_LANES;
        const int64_t whole = diagonal ? v * ATT_LANES : keys, all = diagonal ? whole + ATT_LANES : keys;
        const att_vec low = att_set1(ATT_LOW);
        att_vec max0 = low, max1 = low;
        for (int64_t k = 0; k < whole; k += 2) {
            max0 = att_max(max0, att_load(s + k * ATT_TILE));
            max1 = att_max(max1, att_load(s + (k + 1) * ATT_TILE));
        }
        for (int64_t k = whole; k < all; k++) {
            const att_vec x = att_from_lane(att_load(s + k * ATT_TILE), k - whole, low);
            att_store(s + k * ATT_TILE, x);
            max0 = att_max(max0, x);
        }
        const att_vec factor = att_set1(scale2), old = att_load(sc->max + v * ATT_LANES);
        const att_vec max = att_max(old, att_mul(att_max(max0, max1), factor)), minus = att_sub(att_set1(0), max);
        const att_vec alpha = att_exp2(att_sub(old, max));
        att_vec sum0 = att_mul(att_load(sc->sum + v * ATT_LANES), alpha), sum1 = att_set1(0);
        for (int64_t k = 0; k < all; k += 2) {
            const att_vec p0 = att_exp2(att_fma(att_load(s + k * ATT_TILE), factor, minus));
            const att_vec p1 = att_exp2(att_fma(att_load(s + (k + 1) * ATT_TILE), factor, minus));
            sum0 = att_add(sum0, p0);
            sum1 = att_add(sum1, p1);
#if ATT_PAIR == 1
            att_store(s + k * ATT_TILE, p0);
            att_store(s + (k + 1) * ATT_TILE, p1);
#else
            att_word_store(sc->p + k / 2 * ATT_TILE + v * ATT_LANES, att_p_pair(p0, p1));
#endif
        }
        att_store(sc->max + v * ATT_LANES, max);
        att_store(sc->sum + v * ATT_LANES, att_add(sum0, sum1));
        att_store(sc->alpha + v * ATT_LANES, alpha);
    }
}

/* log2 of a normal x > 0: x = 2^e m with m in [sqrt 1/2, sqrt 2), log m = 2 atanh((m - 1) / (m + 1)), as a series. */
ATT_INLINE float att_log2(float x)
{
    int32_t bits;
    memcpy(&bits, &x, 4);
    const int32_t e = (bits - 0x3f3504f3) >> 23;
    bits -= e * (1 << 23);
    float m;
    memcpy(&m, &bits, 4);
    const float z = (m - 1) / (m + 1), zz = z * z;
    const float series = 1 + zz * (1.0f / 3 + zz * (1.0f / 5 + zz * (1.0f / 7 + zz * (1.0f / 9))));
    return (float)e + z * series * (2 * ATT_LOG2E);
}

static void att_put_lse(float *lse, const dsc_attention_fwd_scratch *sc, int64_t count)
{
    float all[ATT_TILE];
    for (int64_t q = 0; q < ATT_TILE; q++)
        all[q] = (sc->max[q] + att_log2(sc->sum[q])) * ATT_LN2;
    memcpy(lse, all, (size_t)count * sizeof *lse);
}

typedef struct att_forward { /* one call */
    const dsc_attention_fwd_args *a;
    int64_t batch;
    att_rows q, k, v, out;
    dsc_attention_dims dims;
    dsc_attention_fwd_scratch sc;
    float *lse; /* the head's row; NULL: not wanted */
    dsc_attention_head_logits logits;
    float sink; /* in units of log 2, with sinks */
    bool each;  /* keys are packed for each tile of queries, a tile at a time: the scratch has room for one */
} att_forward;

/* Scores of one tile of keys, and what they make of sums and outputs. `fresh`: the first one. */
static void att_forward_keys(att_forward *f, int64_t t, int64_t first, int64_t queries, bool fresh)
{
    const dsc_attention_fwd_args *a = f->a;
    dsc_attention_fwd_scratch *sc = &f->sc;
    const bool diagonal = !a->keys.all && a->keys.past == 0 && t == first / ATT_TILE;
    const int64_t vecs = dsc_div_ceil(queries, ATT_LANES), steps = dsc_div_ceil(a->head_size, ATT_PAIR);
    const int64_t keys = diagonal ? vecs * ATT_LANES : ATT_TILE, place = f->each ? 0 : t;
    float *const k_tile = sc->k + place * ATT_TILE * f->dims.words;
    float *const v_tile = sc->v + place * (ATT_TILE / ATT_PAIR) * f->dims.lanes;
    if (f->each) {
        att_pack_rows(k_tile, &f->k, t * ATT_TILE, (t + 1) * ATT_TILE, f->dims.words);
        att_pack_pairs(v_tile, &f->v, t * ATT_TILE, (t + 1) * ATT_TILE, f->dims.lanes);
    }
    for (int64_t k = 0; k < keys; k += ATT_LANES) {
        const int64_t begin = diagonal ? k / ATT_LANES : 0;
        att_scores(sc->s + k * ATT_TILE, k_tile + k * f->dims.words, f->dims.words, sc->q, steps, begin, vecs);
        if (f->logits.any)
            att_make_logits(sc->s + k * ATT_TILE, NULL, NULL, &f->logits, a->keys.past + first, t * ATT_TILE + k, begin,
                            vecs);
    }
    if (a->keys.all)
        att_hide_keys(sc->s, &a->keys, f->batch, a->tokens, t * ATT_TILE, ATT_TILE);
    if (att_limits(&a->keys, f->batch, a->tokens, first, queries, t * ATT_TILE))
        att_limit_keys(sc->s, &a->keys, f->batch, a->tokens, first, vecs, t * ATT_TILE, keys);
    att_softmax(sc, f->logits.any ? ATT_LOG2E : a->scale * ATT_LOG2E, keys, vecs, diagonal);
    if (fresh)
        att_sum_keys(true, NULL, sc->out, sc->p, v_tile, f->dims.lanes, queries, diagonal);
    else
        att_sum_keys(false, sc->alpha, sc->out, sc->p, v_tile, f->dims.lanes, queries, diagonal);
}

static void att_forward_tile(att_forward *f, int64_t tile)
{
    const dsc_attention_fwd_args *a = f->a;
    dsc_attention_fwd_scratch *sc = &f->sc;
    const int64_t first = tile * ATT_TILE, queries = dsc_min_i64(ATT_TILE, a->tokens - first);
    const int64_t begin = dsc_attention_first_key(&a->keys, f->batch, a->tokens, first) / ATT_TILE;
    const int64_t last = (dsc_attention_last_key(&a->keys, f->batch, a->tokens, first + queries - 1) - 1) / ATT_TILE;
    att_pack_transposed(sc->q, &f->q, first, dsc_div_ceil(queries, ATT_LANES), f->dims.words);
    for (int64_t i = 0; i < ATT_TILE; i++) {
        sc->max[i] = ATT_LOW;
        sc->sum[i] = 0;
    }
    for (int64_t t = begin; t <= last; t++)
        att_forward_keys(f, t, first, queries, t == begin);
    if (a->sinks != NULL)
        att_add_sink(sc, f->sink);
    if (f->lse != NULL)
        att_put_lse(f->lse + first, sc, queries);
    for (int64_t i = 0; i < ATT_TILE; i++)
        sc->sum[i] = (a->sinks != NULL ? sc->alpha[i] : 1) / sc->sum[i];
    att_put_rows(a->out, &f->out, first, first + ATT_TILE, sc->out, f->dims.lanes, sc->sum);
}

static void forward(const dsc_attention_fwd_args *a, int32_t batch, int32_t head, int32_t first, int32_t last,
                    float *scratch)
{
    const int64_t apart = dsc_attention_head_stride(a->head_stride, a->head_size), size = a->head_size;
    const int64_t key_head = head / (a->heads / a->kv_heads) * apart, tokens = a->tokens;
    const int64_t all_keys = a->keys.past + tokens;
    att_forward f = { .a = a,
                      .batch = batch,
                      .dims = dsc_attention_dims_of(tokens, size, ATT_PAIR),
                      .logits = dsc_attention_logits_of(&a->logits, a->scale, a->heads, head),
                      .sink = a->sinks != NULL ? dsc_get(a->sinks, head, a->dtype) * ATT_LOG2E : 0,
                      .each = a->keys.past > 0 };
    dsc_attention_fwd_layout(f.dims, scratch, &f.sc);
    f.q = att_rows_of(a->q, a->dtype, batch, tokens, a->q_stride, head * apart, size);
    f.k = att_rows_of(a->k, a->dtype, batch, all_keys, a->k_stride, key_head, size);
    f.v = att_rows_of(a->v, a->dtype, batch, all_keys, a->v_stride, key_head, size);
    f.out = att_rows_of(a->out, a->dtype, batch, tokens, a->out_stride, head * size, size);
    f.lse = a->lse == NULL ? NULL : a->lse + ((int64_t)batch * a->heads + head) * tokens;
    if (!f.each) {
        const int64_t begin = dsc_attention_first_key(&a->keys, batch, tokens, (int64_t)first * ATT_TILE) / ATT_TILE;
        const int64_t end = a->keys.all ? f.dims.rows : (int64_t)last * ATT_TILE;
        att_pack_rows(f.sc.k + begin * ATT_TILE * f.dims.words, &f.k, begin * ATT_TILE, end, f.dims.words);
        att_pack_pairs(f.sc.v + begin * (ATT_TILE / ATT_PAIR) * f.dims.lanes, &f.v, begin * ATT_TILE, end,
                       f.dims.lanes);
    }
    for (int64_t tile = first; tile < last; tile++)
        att_forward_tile(&f, tile);
}

/* ---- backward ---- */

/* delta[q] = sum_d d_out[q,d] * out[q,d], ATT_LANES rows at a time. */
static void att_delta(float *delta, const att_rows *d_out, const att_rows *out, int64_t first, int64_t vecs,
                      int64_t words)
{
    for (int64_t v = 0; v < vecs; v++) {
        att_word part[ATT_LANES];
        for (int64_t i = 0; i < ATT_LANES; i++) {
            const int64_t t = first + v * ATT_LANES + i;
            att_vec sum = att_set1(0);
            for (int64_t w = 0; w < words; w += ATT_LANES)
                sum = att_dot(sum, att_row_words(d_out, t, w), att_row_words(out, t, w));
            part[i] = att_as_word(sum);
        }
        att_transpose(part);
        att_vec sum = att_as_vec(part[0]);
        for (int64_t i = 1; i < ATT_LANES; i++)
            sum = att_add(sum, att_as_vec(part[i]));
        att_store(delta + v * ATT_LANES, sum);
    }
}

/* ATT_LANES keys from `key` of the tile on: p = exp(scale s - lse), ds = p (dp - delta) scale, as operands. With
 * `logits`, att_make_logits was before: p = exp(s - lse), ds = p dp scale. */
static void att_gradients(dsc_attention_bwd_scratch *sc, float scale, bool logits, int64_t key, int64_t first,
                          int64_t vecs, bool diagonal)
{
    const att_vec zero = att_set1(0), factor = att_set1(scale), factor2 = att_set1((logits ? 1 : scale) * ATT_LOG2E);
    for (int64_t v = first; v < vecs; v++) {
        const att_vec lse = att_load(sc->lse + v * ATT_LANES);
        const att_vec delta = logits ? zero : att_load(sc->delta + v * ATT_LANES);
        const bool masked = diagonal && v == first;
        for (int64_t k = 0; k < ATT_LANES; k += ATT_PAIR) {
            att_vec ds[ATT_PAIR];
            for (int64_t i = 0; i < ATT_PAIR; i++) {
                const int64_t at = (k + i) * ATT_TILE + v * ATT_LANES;
                const int64_t row = ((key + k + i) * ATT_TILE + v * ATT_LANES) / ATT_PAIR;
                att_vec p = att_exp2(att_fma(att_load(sc->s + at), factor2, lse));
                ds[i] = att_mul(att_mul(p, factor), att_sub(att_load(sc->dp + at), delta));
                if (masked) {
                    p = att_from_lane(p, k + i, zero);
                    ds[i] = att_from_lane(ds[i], k + i, zero);
                }
                att_p_row(sc->p + row, p);
                att_p_row(sc->ds + row, ds[i]);
            }
#if ATT_PAIR == 2
            att_word_store(sc->ds_keys + (key + k) / 2 * ATT_TILE + v * ATT_LANES, att_p_pair(ds[0], ds[1]));
#endif
        }
    }
}

typedef struct att_backward { /* one call */
    const dsc_attention_bwd_args *a;
    const dsc_attention_bwd_part *part;
    dsc_attention_dims dims;
    dsc_attention_bwd_scratch sc;
    dsc_attention_head_logits logits; /* logits of the queries' head */
} att_backward;

static void att_backward_pack_queries(att_backward *b, int64_t head, int64_t tile, int64_t vecs)
{
    const dsc_attention_bwd_args *a = b->a;
    dsc_attention_bwd_scratch *sc = &b->sc;
    const int64_t first = tile * ATT_TILE, last = first + vecs * ATT_LANES, batch = b->part->batch;
    const int64_t size = a->head_size, q_head = head * dsc_attention_head_stride(a->head_stride, a->head_size);
    const att_rows q = att_rows_of(a->q, a->dtype, batch, a->tokens, a->q_stride, q_head, size);
    const att_rows out = att_rows_of(a->out, a->dtype, batch, a->tokens, a->out_stride, head * size, size);
    const att_rows d_out = att_rows_of(a->d_out, a->dtype, batch, a->tokens, a->out_stride, head * size, size);
    att_pack_transposed(sc->q, &q, first, vecs, b->dims.words);
    att_pack_transposed(sc->d_out, &d_out, first, vecs, b->dims.words);
    if (b->part->want_dkv) {
        att_pack_pairs(sc->q_rows, &q, first, last, b->dims.lanes);
        att_pack_pairs(sc->d_out_rows, &d_out, first, last, b->dims.lanes);
    }
    att_delta(sc->delta, &d_out, &out, first, vecs, b->dims.words);
    const float *lse = a->lse + (batch * a->heads + head) * a->tokens;
    for (int64_t i = 0; i < ATT_TILE; i++)
        sc->lse[i] = first + i < a->tokens ? lse[first + i] * -ATT_LOG2E : 0;
}

/* One tile of queries against one tile of keys, which starts at key row `row` of the scratch. */
static void att_backward_tile(att_backward *b, int64_t row, int64_t query, int64_t queries, bool diagonal,
                              bool fresh_dq, bool fresh_dkv)
{
    const int64_t key = (int64_t)b->part->key_first * ATT_TILE + row;
    dsc_attention_bwd_scratch *sc = &b->sc;
    const int64_t words = b->dims.words, lanes = b->dims.lanes, vecs = dsc_div_ceil(queries, ATT_LANES);
    const int64_t keys = diagonal ? vecs * ATT_LANES : ATT_TILE, steps = dsc_div_ceil(b->a->head_size, ATT_PAIR);
    const bool limits = att_limits(&b->a->keys, b->part->batch, b->a->tokens, query, queries, key);
    for (int64_t k = 0; k < keys; k += ATT_LANES) {
        const int64_t first = diagonal ? k / ATT_LANES : 0;
        att_scores(sc->s, sc->k + (row + k) * words, words, sc->q, steps, first, vecs);
        att_scores(sc->dp, sc->v + (row + k) * words, words, sc->d_out, steps, first, vecs);
        if (b->logits.any)
            att_make_logits(sc->s, sc->dp, sc->delta, &b->logits, query, key + k, first, vecs);
        if (b->a->keys.all)
            att_hide_keys(sc->s, &b->a->keys, b->part->batch, b->a->tokens, key + k, ATT_LANES);
        if (limits)
            att_limit_keys(sc->s, &b->a->keys, b->part->batch, b->a->tokens, query, vecs, key + k, ATT_LANES);
        att_gradients(sc, b->a->scale, b->logits.any, k, first, vecs, diagonal);
    }
    if (b->part->want_dkv) {
        if (fresh_dkv) {
            att_sum_queries(true, sc->dv + row * lanes, sc->p, sc->d_out_rows, lanes, keys, vecs * ATT_LANES, diagonal);
            att_sum_queries(true, sc->dk + row * lanes, sc->ds, sc->q_rows, lanes, keys, vecs * ATT_LANES, diagonal);
        } else {
            att_sum_queries(false, sc->dv + row * lanes, sc->p, sc->d_out_rows, lanes, keys, vecs * ATT_LANES,
                            diagonal);
            att_sum_queries(false, sc->dk + row * lanes, sc->ds, sc->q_rows, lanes, keys, vecs * ATT_LANES, diagonal);
        }
    }
    if (b->part->want_dq) {
        const float *k_rows = sc->k_rows + row / ATT_PAIR * lanes;
        if (fresh_dq)
            att_sum_keys(true, NULL, sc->dq, sc->ds_keys, k_rows, lanes, queries, diagonal);
        else
            att_sum_keys(false, NULL, sc->dq, sc->ds_keys, k_rows, lanes, queries, diagonal);
    }
}

/* The first query tile that sees a key tile: its diagonal or, as tokens then see each other, the first keys that its
 * first token sees. */
static int64_t att_first_tile(const att_backward *b, int64_t t)
{
    const dsc_attention_bwd_args *a = b->a;
    if (!a->keys.all)
        return t;
    return dsc_attention_first_key(&a->keys, b->part->batch, a->tokens, t * ATT_TILE) / ATT_TILE;
}

/* Query tiles outside, key tiles inside. The sums in flight are dq of one tile and dk, dv of all keys; the heads of
 * a group add to the same dk, dv in order. A key tile's first term is att_first_tile, in the group's first head. */
static void backward(const dsc_attention_bwd_args *a, const dsc_attention_bwd_part *part, float *scratch)
{
    att_backward b = { .a = a, .part = part, .dims = dsc_attention_dims_of(a->tokens, a->head_size, ATT_PAIR) };
    dsc_attention_bwd_layout(b.dims, scratch, &b.sc);
    const int64_t apart = dsc_attention_head_stride(a->head_stride, a->head_size), size = a->head_size;
    const int64_t key_head = part->head_first / (a->heads / a->kv_heads) * apart, lanes = b.dims.lanes;
    const int64_t first = (int64_t)part->key_first * ATT_TILE, last = (int64_t)part->key_last * ATT_TILE;
    const att_rows k = att_rows_of(a->k, a->dtype, part->batch, a->tokens, a->k_stride, key_head, size);
    const att_rows v = att_rows_of(a->v, a->dtype, part->batch, a->tokens, a->v_stride, key_head, size);
    att_pack_rows(b.sc.k, &k, first, last, b.dims.words);
    att_pack_rows(b.sc.v, &v, first, last, b.dims.words);
    if (part->want_dq && ATT_PAIR != 1)
        att_pack_pairs(b.sc.k_rows, &k, first, last, lanes);
    for (int64_t head = part->head_first; head < part->head_last; head++) {
        b.logits = dsc_attention_logits_of(&a->logits, a->scale, a->heads, head);
        for (int64_t tile = part->query_first; tile < part->query_last; tile++) {
            const int64_t token = tile * ATT_TILE, queries = dsc_min_i64(ATT_TILE, a->tokens - token);
            att_backward_pack_queries(&b, head, tile, dsc_div_ceil(queries, ATT_LANES));
            const int64_t begin = dsc_attention_first_key(&a->keys, part->batch, a->tokens, token) / ATT_TILE;
            const int64_t end = dsc_attention_last_key(&a->keys, part->batch, a->tokens, token + queries - 1);
            for (int64_t t = dsc_max_i64(begin, part->key_first); t < part->key_last && t * ATT_TILE < end; t++)
                att_backward_tile(&b, t * ATT_TILE - first, token, queries, !a->keys.all && t == tile, t == begin,
                                  tile == att_first_tile(&b, t) && head == part->head_first);
            if (part->want_dq) {
                const att_rows q = att_rows_of(a->q, a->dtype, part->batch, a->tokens, a->q_stride, head * apart, size);
                att_put_rows(a->dq, &q, token, token + ATT_TILE, b.sc.dq, lanes, NULL);
            }
        }
    }
    if (part->want_dkv) {
        att_put_rows(a->dk, &k, first, last, b.sc.dk, lanes, NULL);
        att_put_rows(a->dv, &v, first, last, b.sc.dv, lanes, NULL);
    }
}

#endif
