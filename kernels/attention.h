/* attention.h - softmax attention without a [T,T] tensor, forward and backward (online softmax over key tiles: Milakov
 * & Gimelshein 2018, Dao et al. 2022). It is causal (within documents and windows) or sees all keys but hidden ones,
 * with grouped heads.
 *
 * Row (b, t) of q starts at q + (b * T + t) * q_stride elements; head h of it at + h * head_stride. Rows of k, v follow
 * this rule with k_stride, v_stride and kv_heads; query head h reads key head h / (heads / kv_heads). The heads of out
 * (out_stride) lie side by side. So one packed [B,T,3,H,D] tensor is three pointers with the same stride, and so is a
 * [B,T,H,3,D] one.
 * Each output element is computed by one thread in an order that depends on the shape only. The bits never depend on
 * the number of threads, and causal out[t] never on tokens after t.
 * Sums are fp32. The bf16 variant rounds probabilities and score gradients to bf16 before the second products.
 * reference: cpu/attention_ref.c   variants: attention_avx2.c attention_avx512.c attention_avx512bf16.c (over
 * attention_tile.h)
 * check and bench: tests/checkkern/attention.c
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_ATTENTION_H
#define DSC_KERNELS_ATTENTION_H
#include <string.h>

#include <dsc/types.h>
#ifdef __cplusplus
extern "C" {
#endif

#ifdef __CUDACC__
#define DSC_ATTENTION_ANYWHERE __host__ __device__
#else
#define DSC_ATTENTION_ANYWHERE
#endif

/* Which keys a query sees. A sample whose keys are all hidden gives finite numbers that mean nothing, and gradients 0.
 */
typedef struct dsc_attention_keys {
    bool all; /* all of its sample; false: those up to its own token */
    int32_t hidden;
    /* [B,T], with `all` and without positions and window: keys where it has `hidden` are seen by nobody; NULL: none is
     * hidden. */
    const int32_t *tokens;
    /* [B,T] a query's place in its document, of which it sees the keys: 0, or one more than that of the query before;
     * NULL: a sample is one document. */
    const int32_t *positions;
    /* And no more than so many keys, its own among them; with `all` those at most half of it, rounded down, before or
     * after. 0: any number. */
    int32_t window;
    /* Forward of one sample that is one document, without `all`: k and v have so many rows more before the first
     * query's own. */
    int32_t past;
} dsc_attention_keys;

/* The logit of a scaled score, before keys are hidden and the softmax sees it; zero: itself. */
typedef struct dsc_attention_logits {
    float softcap; /* softcap * tanh(score / softcap); 0: no cap */
    /* Then less the head's slope times the distance of query and key (Press et al. 2022), see
     * dsc_attention_slope_power. It is 8 in BLOOM and MPT; 0: no slopes. */
    float alibi;
    /* Above 0: with slopes a logit gets, in place of that, this times bf16(slope * key) more, where slope and the key's
     * number are rounded to bf16 before. Falcon's, whose factor is 1 / sqrt(D). */
    float alibi_of_key;
} dsc_attention_logits;

typedef struct dsc_attention_fwd_args {
    void *out;     /* [B,T,H,D] */
    float *lse;    /* [B,H,T] written: log sum exp of the logits; NULL when no backward follows */
    const void *q, *k, *v;
    void *scratch; /* dsc_attention_fwd_scratch_bytes, 64-byte aligned */
    int64_t q_stride, k_stride, v_stride, out_stride; /* elements between rows t and t + 1 */
    int64_t head_stride; /* elements between heads of q, k and v; 0: D */
    int32_t batch, tokens, heads, kv_heads, head_size;
    float scale; /* usually 1 / sqrt(D); > 0 */
    dsc_attention_keys keys;
    dsc_attention_logits logits;
    /* [H] in the dtype: a head's logit that adds to the sum of its softmax and has no value, also in lse; or NULL. */
    const void *sinks;
    dsc_dtype dtype; /* F32, BF16 or F16 */
    int64_t stored_bytes; /* of a shape told ahead: that of the gradients' calls */
} dsc_attention_fwd_args;

/* dq, dk, dv have the strides of q, k, v and are overwritten. No buffer overlaps another. */
typedef struct dsc_attention_bwd_args {
    void *dq, *dk, *dv;
    const void *d_out, *out; /* [B,T,H,D], stride out_stride */
    const float *lse;
    const void *q, *k, *v;
    /* 64-byte aligned, of dsc_attention_bwd_scratch_bytes or, with stored_bytes, dsc_attention_stored_at + them */
    void *scratch;
    int64_t q_stride, k_stride, v_stride, out_stride, head_stride;
    int32_t batch, tokens, heads, kv_heads, head_size;
    float scale;
    dsc_attention_keys keys;
    dsc_attention_logits logits;
    const void *sinks;
    float *d_sinks; /* [H] overwritten: samples and tokens are added in an order of the shape; NULL: frozen */
    dsc_dtype dtype;
    int64_t stored_bytes; /* scratch for score gradients, behind dsc_attention_stored_at; 0: none */
} dsc_attention_bwd_args;

/* Whether a logit is another number than the scaled score. */
static inline bool dsc_attention_has_logits(const dsc_attention_logits *logits)
{
    return logits->softcap > 0 || logits->alibi > 0;
}

/* Whether a pass has nothing of what only the kernels for all shapes have. */
static inline bool dsc_attention_is_plain(const dsc_attention_keys *keys, const dsc_attention_logits *logits,
                                          const void *sinks)
{
    const bool limits = keys->positions != NULL || keys->window > 0;
    return !(keys->all && limits) && !dsc_attention_has_logits(logits) && sinks == NULL;
}

/* A head's slope is 2 to the power of minus this. Heads up to a power of two share out `alibi` evenly; further ones
 * have the odd steps of twice as many. */
DSC_ATTENTION_ANYWHERE static inline float dsc_attention_slope_power(float alibi, int32_t heads, int32_t head)
{
    int32_t whole = 1;
    while (2 * whole <= heads)
        whole *= 2;
    const int32_t step = head < whole ? 2 * (head + 1) : 2 * (head - whole) + 1;
    return alibi * (float)step / (float)(2 * whole);
}

DSC_ATTENTION_ANYWHERE static inline float dsc_attention_round_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x7fffu + (bits >> 16 & 1)) & 0xffff0000u;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The addend of a logit for its key, by alibi_of_key. `slope` is the head's. */
DSC_ATTENTION_ANYWHERE static inline float dsc_attention_key_addend(float alibi_of_key, float slope, int32_t key)
{
    const float place = dsc_attention_round_bf16((float)key), steep = dsc_attention_round_bf16(slope);
    return alibi_of_key * dsc_attention_round_bf16(steep * place);
}

/* Elements between two heads of q, k and v. */
static inline int64_t dsc_attention_head_stride(int64_t head_stride, int32_t head_size)
{
    return head_stride > 0 ? head_stride : head_size;
}

/* Scratch of one call, for any variant, any number of threads (at most DSC_ATTENTION_WORKERS get a part) and any number
 * of past keys. */
#define DSC_ATTENTION_WORKERS 32
int64_t dsc_attention_fwd_scratch_bytes(int32_t batch, int32_t tokens, int32_t heads, int32_t head_size);
int64_t dsc_attention_bwd_scratch_bytes(int32_t batch, int32_t tokens, int32_t heads, int32_t head_size);

/* ---- stored score gradients ----
 *
 * GPUs may store the score gradients of some heads between the kernel of dk, dv and that of dq, which then computes no
 * scores. They lie in tiles of 64 keys and 64 queries, in bf16 and before `scale`. Pieces of 128 keys have one row of
 * tiles for each 64 keys: all queries or, without `all`, those from the piece's first key on. */
#define DSC_ATTENTION_STORED_TILE 64
#define DSC_ATTENTION_STORED_TILE_BYTES (2 * DSC_ATTENTION_STORED_TILE * DSC_ATTENTION_STORED_TILE)
#define DSC_ATTENTION_STORED_KEYS 128
#define DSC_ATTENTION_STORED_HEAD_MIN 40
#define DSC_ATTENTION_STORED_HEAD_MAX 128
/* Pieces whose score gradients exist at once: some for each multiprocessor of a large GPU. */
#define DSC_ATTENTION_STORED_PIECES 512

DSC_ATTENTION_ANYWHERE static inline int32_t dsc_attention_stored_pieces(int32_t tokens)
{
    return (tokens + DSC_ATTENTION_STORED_KEYS - 1) / DSC_ATTENTION_STORED_KEYS;
}

/* Tiles of a head before those of `piece`. */
DSC_ATTENTION_ANYWHERE static inline int64_t dsc_attention_stored_before(int32_t tokens, bool all, int32_t piece)
{
    const int64_t queries = (tokens + DSC_ATTENTION_STORED_TILE - 1) / DSC_ATTENTION_STORED_TILE;
    return 2 * (queries * piece - (all ? 0 : (int64_t)piece * (piece - 1)));
}

DSC_ATTENTION_ANYWHERE static inline int64_t dsc_attention_stored_head_bytes(int32_t tokens, bool all)
{
    return dsc_attention_stored_before(tokens, all, dsc_attention_stored_pieces(tokens)) *
           DSC_ATTENTION_STORED_TILE_BYTES;
}

/* The number within its head of the tile of keys from 64 * key_tile on and queries from 64 * query_tile on. */
DSC_ATTENTION_ANYWHERE static inline int64_t dsc_attention_stored_tile(int32_t tokens, bool all, int32_t key_tile,
                                                                       int32_t query_tile)
{
    const int32_t queries = (tokens + DSC_ATTENTION_STORED_TILE - 1) / DSC_ATTENTION_STORED_TILE;
    const int32_t piece = key_tile / 2, first = all ? 0 : 2 * piece;
    return dsc_attention_stored_before(tokens, all, piece) + key_tile % 2 * (queries - first) + query_tile - first;
}

/* Scratch for the gradients of this forward pass behind dsc_attention_stored_at bytes: of some heads, and at most
 * `most`. 0: no kernel stores the scores of such a shape, or they do not fit. Pointers in `shape` are ignored. */
int64_t dsc_attention_stored_bytes(const dsc_attention_fwd_args *shape, int64_t most);
int64_t dsc_attention_stored_at(int32_t batch, int32_t tokens, int32_t heads, int32_t head_size);

#ifdef __cplusplus
}
#endif
#endif
