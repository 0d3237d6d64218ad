/* delta.h - the gated delta rule (Yang, Kautz & Hatamizadeh 2024), the linear attention of Qwen3-Next, forward and
 * backward. Tokens come in chunks of 64, and each head of values has one state [Dk, Dv].
 *
 *     S_t = exp(g_t) S_{t-1};   S_t += k_t (beta_t (v_t - k_t S_t))^T;   o_t = q_t S_t
 *     beta = 1 / (1 + exp(-b));   g = -exp(a_log) softplus(a + dt_bias)
 *     q, k: x / sqrt(sum of x^2 + 1e-6), and q also / sqrt(Dk)
 *
 * S is 0 at the start of a sample and of each document in it. Sums are fp32.
 * Letters: B samples, T tokens, Hk heads of queries and keys, Hv heads of values (a multiple of Hk), Dk and Dv their
 * sizes. Head h of values has head h / (Hv / Hk) of queries and keys.
 * reference: cpu/delta_ref.c   variants: delta_avx2.c delta_avx512.c   on a GPU: cuda/delta.cu
 * check: tests/checkkern/delta.c   SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_DELTA_H
#define DSC_KERNELS_DELTA_H
#include <dsc/types.h>
#ifdef __CUDACC__
#define DSC_DELTA_FN static __host__ __device__ __forceinline__
#else
#define DSC_DELTA_FN static inline
#endif
#ifdef __cplusplus
extern "C" {
#endif

enum { DSC_DELTA_CHUNK = 64, DSC_DELTA_SIZE_MAX = 512 };

typedef struct dsc_delta_shape {
    int32_t batch, tokens, key_heads, value_heads, key_size, value_size;
} dsc_delta_shape;

typedef struct dsc_delta_fwd_args {
    void *out;                   /* [B*T, Hv*Dv] */
    float *states;               /* [B, chunks, Hv, Dk, Dv]: the state in front of each chunk, for backward */
    const void *qkv;             /* [B*T, 2*Hk*Dk + Hv*Dv]: queries, keys, values */
    const void *b, *a;           /* [B*T, Hv] */
    const void *a_log, *dt_bias; /* [Hv] */
    const int32_t *positions;    /* [B*T], 0 at the start of a document, or NULL */
    float *state;                /* [B, Hv, Dk, Dv], the state behind the last token, or NULL */
    bool resume;                 /* with `state`: a sample begins with it */
    void *scratch;               /* dsc_delta_fwd_scratch_bytes */
    dsc_delta_shape shape;
    dsc_dtype dtype; /* F32, BF16 or F16 */
} dsc_delta_fwd_args;

/* Of a forward without `resume`. Gradients of a_log and dt_bias are fp32 and overwritten: tokens of a sample from the
 * last to the first, then samples in order. */
typedef struct dsc_delta_bwd_args {
    void *d_qkv, *d_b, *d_a;    /* as qkv, b and a */
    float *d_a_log, *d_dt_bias; /* [Hv]; NULL: frozen */
    const void *d_out;          /* [B*T, Hv*Dv] */
    const float *states;        /* forward's */
    const void *qkv, *b, *a;
    const void *a_log, *dt_bias;
    const int32_t *positions;
    void *scratch; /* dsc_delta_bwd_scratch_bytes */
    dsc_delta_shape shape;
    dsc_dtype dtype;
} dsc_delta_bwd_args;

DSC_DELTA_FN int64_t dsc_delta_chunks(int64_t tokens) { return (tokens + DSC_DELTA_CHUNK - 1) / DSC_DELTA_CHUNK; }

/* Floats of one unit of work: forward's is a head of values of a sample, backward's a head of keys. */
DSC_DELTA_FN int64_t dsc_delta_fwd_unit(const dsc_delta_shape *of)
{
    const int64_t chunk = DSC_DELTA_CHUNK;
    return chunk * (2 * (int64_t)of->key_size + 3 * (int64_t)of->value_size) + 3 * chunk * chunk + 16 * chunk;
}

DSC_DELTA_FN int64_t dsc_delta_bwd_unit(const dsc_delta_shape *of)
{
    const int64_t chunk = DSC_DELTA_CHUNK, group = of->value_heads / of->key_heads;
    return group * of->key_size * (int64_t)of->value_size +
           chunk * (6 * (int64_t)of->key_size + 6 * (int64_t)of->value_size) + 5 * chunk * chunk + 16 * chunk;
}

DSC_DELTA_FN int64_t dsc_delta_fwd_scratch_bytes(const dsc_delta_shape *of)
{
    return (int64_t)of->batch * of->value_heads * dsc_delta_fwd_unit(of) * 4;
}

/* Behind the units: sums of each sample for a_log and dt_bias. */
DSC_DELTA_FN int64_t dsc_delta_bwd_scratch_bytes(const dsc_delta_shape *of)
{
    return (int64_t)of->batch * (of->key_heads * dsc_delta_bwd_unit(of) + 2 * (int64_t)of->value_heads) * 4;
}

#ifdef __cplusplus
}
#endif
#endif
