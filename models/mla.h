/* mla.h - multi-head latent attention (DeepSeek-V2, Liu et al. 2024, section 2.1). Queries, keys and values are made of
 * latents. One part of the key turns with the position, and is the same for all heads. Inside models/ only.
 * Letters: C channels, H heads, N columns of a head that do not turn, R that turn, V columns of a head's value.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_MODELS_MLA_H
#define DSC_MODELS_MLA_H

#include "models/blocks.h"

typedef struct dsc_mla {
    int64_t q_latent;  /* columns of the queries' latent; 0: q is a product of x */
    int64_t kv_latent; /* columns of the latent of keys and values */
    int64_t heads, plain, turned, value; /* H, N, R, V */
    bool latent_bias, out_bias; /* latent_bias: of the products that make latents */
    double latent_eps;          /* eps of the latents' norms */
    double scale;               /* factor of the scores */
    const dsc_rope *rope;       /* of R columns */
} dsc_mla;

/* Parameters behind "self_attn.": q_proj, or q_a_proj, q_a_layernorm and q_b_proj; kv_a_proj_with_mqa, kv_a_layernorm,
 * kv_b_proj, o_proj. The attention kernels have one size of heads, so the narrower of N + R and V are widened by zeros,
 * and the output is narrowed to V columns a head. */
int16_t dsc_mla_attend(const dsc_block *block, int16_t x, const dsc_mla *part);

#endif
