/* attention_part.h - attention on one thread over a part of the tiles: what a variant has to provide, and how it lays
 * out its scratch. Private to kernels/attention*.c. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_CPU_ATTENTION_PART_H
#define DSC_KERNELS_CPU_ATTENTION_PART_H

#include <math.h>

#include "base/base.h"
#include "kernels/attention.h"

/* Tokens in a tile of queries and in a tile of keys. 64 keeps one tile's scores (16 KiB) in the first-level cache and
 * makes the work above the diagonal that a tile cannot skip 6 % at T = 256. */
enum { DSC_ATTENTION_TILE = 64 };

/* Forward: query tiles first..last-1 of head `head` of sample `batch`.
 * Backward: see dsc_attention_bwd_part. `scratch` belongs to the calling thread. */
typedef struct dsc_attention_bwd_part {
    int32_t batch, head_first, head_last; /* heads of one group, in order */
    int32_t key_first, key_last;          /* key tiles */
    int32_t query_first, query_last;      /* query tiles */
    bool want_dq;   /* key tiles start at 0: dq of the query tiles is complete */
    bool want_dkv;  /* query tiles reach the end and heads are the group: dk and dv of the key tiles are complete */
} dsc_attention_bwd_part;

typedef struct dsc_attention_ops {
    void (*forward)(const dsc_attention_fwd_args *a, int32_t batch, int32_t head, int32_t first, int32_t last,
                    float *scratch);
    void (*backward)(const dsc_attention_bwd_args *a, const dsc_attention_bwd_part *part, float *scratch);
} dsc_attention_ops;

/* The bf16 ops take BF16 tensors only, the others all dtypes. */
extern const dsc_attention_ops dsc_attention_ref, dsc_attention_avx2, dsc_attention_avx512, dsc_attention_avx512bf16;

/* Sizes of one worker's scratch, in 4-byte words. A word holds one fp32 (pair = 1) or two bf16 (pair = 2). */
typedef struct dsc_attention_dims {
    int64_t rows;  /* T rounded up to whole tiles */
    int64_t words; /* words of a row of D elements, rounded up to a vector */
    int64_t lanes; /* D rounded up to a vector */
    int64_t pair;
} dsc_attention_dims;

static inline dsc_attention_dims dsc_attention_dims_of(int64_t tokens, int64_t head_size, int64_t pair)
{
    const dsc_attention_dims dims = { dsc_align_up(tokens, DSC_ATTENTION_TILE),
                                      dsc_align_up(dsc_div_ceil(head_size, pair), 16), dsc_align_up(head_size, 16),
                                      pair };
    return dims;
}

/* Next `count` words of a scratch that is handed out in order; NULL stays NULL, for counting. */
static inline float *dsc_attention_scratch(float *scratch, int64_t *used, int64_t count)
{
    float *part = scratch == NULL ? NULL : scratch + *used;
    *used += count;
    return part;
}

typedef struct dsc_attention_fwd_scratch {
    float *k;   /* [rows, words] keys */
    float *v;   /* [rows / pair, lanes] values, `pair` rows in a word */
    float *q;   /* [words, TILE] queries, transposed */
    float *s;   /* [TILE keys, TILE] scores, transposed */
    float *p;   /* [TILE / pair keys, TILE] probabilities; s itself when pair = 1 */
    float *out; /* [TILE, lanes] */
    float *max, *sum, *alpha; /* [TILE] */
} dsc_attention_fwd_scratch;

/* Fills *out and returns the words used. */
static inline int64_t dsc_attention_fwd_layout(dsc_attention_dims d, float *scratch, dsc_attention_fwd_scratch *out)
{
    const int64_t tile = DSC_ATTENTION_TILE;
    int64_t used = 0;
    out->k = dsc_attention_scratch(scratch, &used, d.rows * d.words);
    out->v = dsc_attention_scratch(scratch, &used, d.rows / d.pair * d.lanes);
    out->q = dsc_attention_scratch(scratch, &used, d.words * tile);
    out->s = dsc_attention_scratch(scratch, &used, tile * tile);
    out->p = d.pair == 1 ? out->s : dsc_attention_scratch(scratch, &used, tile / d.pair * tile);
    out->out = dsc_attention_scratch(scratch, &used, tile * d.lanes);
    out->max = dsc_attention_scratch(scratch, &used, tile);
    out->sum = dsc_attention_scratch(scratch, &used, tile);
    out->alpha = dsc_attention_scratch(scratch, &used, tile);
    return used;
}

typedef struct dsc_attention_bwd_scratch {
    float *k, *v;       /* [rows, words] keys and values */
    float *k_rows;      /* [rows / pair, lanes] keys, `pair` rows in a word; k itself when pair = 1 */
    float *dk, *dv;     /* [rows, lanes] */
    float *q, *d_out;   /* [words, TILE] transposed */
    float *q_rows, *d_out_rows; /* [TILE / pair, lanes] */
    float *s, *dp;      /* [16 keys, TILE] scores and gradients of probabilities */
    float *p, *ds;      /* [TILE keys, TILE / pair] probabilities and gradients of scores, `pair` queries in a word */
    float *ds_keys;     /* [TILE / pair keys, TILE] `pair` keys in a word; ds itself when pair = 1 */
    float *dq;          /* [TILE, lanes] */
    float *lse, *delta; /* [TILE] */
} dsc_attention_bwd_scratch;

static inline int64_t dsc_attention_bwd_layout(dsc_attention_dims d, float *scratch, dsc_attention_bwd_scratch *out)
{
    const int64_t tile = DSC_ATTENTION_TILE;
    int64_t used = 0;
    out->k = dsc_attention_scratch(scratch, &used, d.rows * d.words);
    out->v = dsc_attention_scratch(scratch, &used, d.rows * d.words);
    out->k_rows = d.pair == 1 ? out->k : dsc_attention_scratch(scratch, &used, d.rows / d.pair * d.lanes);
    out->dk = dsc_attention_scratch(scratch, &used, d.rows * d.lanes);
    out->dv = dsc_attention_scratch(scratch, &used, d.rows * d.lanes);
    out->q = dsc_attention_scratch(scratch, &used, d.words * tile);
    out->d_out = dsc_attention_scratch(scratch, &used, d.words * tile);
    out->q_rows = dsc_attention_scratch(scratch, &used, tile / d.pair * d.lanes);
    out->d_out_rows = dsc_attention_scratch(scratch, &used, tile / d.pair * d.lanes);
    out->s = dsc_attention_scratch(scratch, &used, 16 * tile);
    out->dp = dsc_attention_scratch(scratch, &used, 16 * tile);
    out->p = dsc_attention_scratch(scratch, &used, tile * tile / d.pair);
    out->ds = dsc_attention_scratch(scratch, &used, tile * tile / d.pair);
    out->ds_keys = d.pair == 1 ? out->ds : dsc_attention_scratch(scratch, &used, tile / d.pair * tile);
    out->dq = dsc_attention_scratch(scratch, &used, tile * d.lanes);
    out->lse = dsc_attention_scratch(scratch, &used, tile);
    out->delta = dsc_attention_scratch(scratch, &used, tile);
    return used;
}

/* Below every score, and far enough from the end of fp32 that scaling keeps it finite for any usual scale. A power of
 * two: scaled it is exact, so that a row of nothing else has exponents of 0, not of a rounding error. */
#define DSC_ATTENTION_LOW (-0x1p100f)

/* Whether key `key` of sample `batch` is one that nobody sees; of `tokens` keys. */
static inline bool dsc_attention_hides(const dsc_attention_keys *keys, int64_t batch, int64_t tokens, int64_t key)
{
    return key >= tokens || (keys->tokens != NULL && keys->tokens[batch * tokens + key] == keys->hidden);
}

/* The first key that query `token` of `tokens` sees, and the one after its last. */
static inline int64_t dsc_attention_first_key(const dsc_attention_keys *keys, int64_t batch, int64_t tokens,
                                              int64_t token)
{
    const int64_t start = keys->positions != NULL ? token - keys->positions[batch * tokens + token] : 0;
    const int64_t before = keys->all ? keys->window / 2 : keys->window - 1;
    return keys->window > 0 ? dsc_max_i64(start, keys->past + token - before) : start;
}

/* With `all`, a token sees another one if that one sees it. First keys never decrease, so a search by halves finds the
 * first token behind that does not see this one. */
static inline int64_t dsc_attention_last_key(const dsc_attention_keys *keys, int64_t batch, int64_t tokens,
                                             int64_t token)
{
    if (!keys->all)
        return keys->past + token + 1;
    int64_t low = token + 1, high = tokens;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (dsc_attention_first_key(keys, batch, tokens, middle) <= token)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Whether queries may see less than all keys before them and, with `all`, behind them. */
static inline bool dsc_attention_has_limits(const dsc_attention_keys *keys)
{
    return keys->window > 0 || keys->positions != NULL;
}

/* The logits of a head's scores. */
typedef struct dsc_attention_head_logits {
    bool any;
    float scale, softcap, slope, of_key;
} dsc_attention_head_logits;

static inline dsc_attention_head_logits dsc_attention_logits_of(const dsc_attention_logits *logits, float scale,
                                                                int32_t heads, int64_t head)
{
    const float power = dsc_attention_slope_power(logits->alibi, heads, (int32_t)head);
    return (dsc_attention_head_logits) { .any = dsc_attention_has_logits(logits),
                                         .scale = scale,
                                         .softcap = logits->softcap,
                                         .slope = logits->alibi > 0 ? exp2f(-power) : 0,
                                         .of_key = logits->alibi > 0 ? logits->alibi_of_key : 0 };
}

/* The element where row `token` of a head starts, which is element `head` of row 0. */
static inline int64_t dsc_attention_row(int64_t batch, int64_t tokens, int64_t token, int64_t stride, int64_t head)
{
    return (batch * tokens + token) * stride + head;
}

#endif
