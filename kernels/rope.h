/* rope.h - rotary position embeddings (Su et al. 2021) as Hugging Face's models apply them: pairs are elements i and i
 * + R/2 of a head ("rotate half"), or neighbours (GPT-J, GLM-4, Cohere).
 *
 * Two kernels: one fills tables of cosines and sines, one turns heads by them, both ways. Scaling for long contexts
 * (linear, Llama 3's, YaRN) is in the frequencies that the caller gives.
 * reference: cpu/rope_ref.c   variants: rope_avx2.c rope_avx512.c   check and bench: tests/checkkern/rope.c
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_ROPE_H
#define DSC_KERNELS_ROPE_H
#include <dsc/types.h>
#include <stddef.h>
#ifdef __cplusplus
extern "C" {
#endif

#define DSC_ROPE_PAIRS_MAX 256

/* cos[p,i] = factor * cos(a), sin[p,i] = factor * sin(a), a = (float)(first + p) * frequency[i] rounded to fp32, as
 * in the code that trained these models. The cosine of the rounded angle is accurate to fp32's last bit. */
typedef struct dsc_rope_table_args {
    float *cos, *sin;       /* [positions, pairs] written */
    const float *frequency; /* [pairs] in host memory, on GPUs too: the launch reads it. Mostly theta^(-2i/R) */
    int64_t first, positions;
    int32_t pairs; /* R / 2, 1 .. DSC_ROPE_PAIRS_MAX */
    float factor;  /* 1, but with YaRN */
} dsc_rope_table_args;

/* Row r (a token) has position places[r], or without them r % tokens. For each head, with c = cos[position, i], s =
 * sin[position, i], i < pairs:
 *   out[i] = fma(-in[i + pairs], s, in[i] * c);   out[i + pairs] = fma(in[i], s, in[i + pairs] * c)
 * in fp32, rounded once; elements from 2 * pairs on are copied. With `neighbours`, 2 i and 2 i + 1 stand for i and
 * i + pairs. `inverse`: with -s, which is the backward pass.
 * Every variant and device gives the same bits. out may be in. */
typedef struct dsc_rope_args {
    void *out;              /* [rows, heads, D]: row r at r * stride elements, its heads side by side */
    const void *in;
    const float *cos, *sin; /* [tokens, pairs] */
    const int32_t *places;  /* [rows], 0 <= place < tokens, or NULL */
    int64_t rows, tokens, stride;
    int32_t heads, head_size, pairs; /* 2 * pairs <= head_size */
    bool inverse, neighbours;
    dsc_dtype dtype; /* F32, BF16 or F16 */
} dsc_rope_args;

/* The position of row r. */
static inline int64_t dsc_rope_position(const dsc_rope_args *a, int64_t r)
{
    return a->places != NULL ? a->places[r] : r % a->tokens;
}

#ifdef __cplusplus
}
#endif
#endif
