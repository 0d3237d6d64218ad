/* attention.h - softmax attention without a [T,T] tensor, forward and backward (online softmax over key tiles: Milakov
 * & Gimelshein 2018, Dao et al. 2022). It is causal (within documents and windows) or sees all keys but hidden ones,
 * with grouped heads.
 *
 * Row (b, t) of q starts at q + (b * T + t) * q_stride elements; head h of it at + h * head_stride. Rows of k, v follow
 * this rule with kv_stride and kv_heads; query head h reads key head h / (heads / kv_heads). The heads of out
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
#include <dsc/types.h>
#ifdef __cplusplus
extern "C" {
#endif

/* Which keys a query sees. A sample whose keys are all hidden gives finite numbers that mean nothing, and gradients 0.
 */
typedef struct dsc_attention_keys {
    bool all;              /* all of its sample; false: those up to its own token */
    const int32_t *tokens; /* [B,T], with `all`: keys where it has `hidden` are seen by nobody; NULL: none is hidden */
    int32_t hidden;
    /* The others are without `all`. [B,T] a query's place in its document, of which it sees the keys: 0, or one more
     * than that of the query before; NULL: a sample is one document. */
    const int32_t *positions;
    int32_t window; /* and no more than so many keys, its own among them; 0: any number */
    int32_t past;   /* forward of one sample that is one document: k and v have so many rows more before the first
                     * query's own */
} dsc_attention_keys;

typedef struct dsc_attention_fwd_args {
    void *out;     /* [B,T,H,D] */
    float *lse;    /* [B,H,T] written: log sum exp of the scaled scores; NULL when no backward follows */
    const void *q, *k, *v;
    void *scratch; /* dsc_attention_fwd_scratch_bytes, 64-byte aligned */
    int64_t q_stride, kv_stride, out_stride; /* elements between rows t and t + 1 */
    int64_t head_stride; /* elements between heads of q, k and v; 0: D */
    int32_t batch, tokens, heads, kv_heads, head_size;
    float scale; /* usually 1 / sqrt(D); > 0 */
    dsc_attention_keys keys;
    dsc_dtype dtype; /* F32, BF16 or F16 */
} dsc_attention_fwd_args;

/* dq, dk, dv have the strides of q, k, v and are overwritten. No buffer overlaps another. */
typedef struct dsc_attention_bwd_args {
    void *dq, *dk, *dv;
    const void *d_out, *out; /* [B,T,H,D], stride out_stride */
    const float *lse;
    const void *q, *k, *v;
    void *scratch; /* dsc_attention_bwd_scratch_bytes, 64-byte aligned */
    int64_t q_stride, kv_stride, out_stride, head_stride;
    int32_t batch, tokens, heads, kv_heads, head_size;
    float scale;
    dsc_attention_keys keys;
    dsc_dtype dtype;
} dsc_attention_bwd_args;

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

#ifdef __cplusplus
}
#endif
#endif
