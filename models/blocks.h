/* blocks.h - parts of transformer blocks: steps on the residual stream, attention with its products, MLPs.
 *
 * A family's emit_block describes a dsc_block once and composes the parts with it; each part adds its parameters and
 * ops to the block's program. A family whose block has other ops puts these between the parts. Names are those of
 * Hugging Face behind the layer's, as "self_attn.q_proj" in "model.layers.3.". Inside models/ only.
 * Letters: C channels, H query heads, K key and value heads, D size of a head, I inner width of the MLP.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_MODELS_BLOCKS_H
#define DSC_MODELS_BLOCKS_H

#include "models/program.h"

/* Facts that the parts of a block share. */
typedef struct dsc_block {
    dsc_program *program;
    dsc_op_norm norm; /* kind and eps of all norms; groups and weight are set by the parts */
    bool out_in;      /* weights are stored [out,in] */
    double std;       /* deviation of the first values of weights */
    double out_std;   /* the same of the product at the end of a part; 0: std */
    double residual;  /* factor of what a step adds to the residual stream; 0: 1 */
} dsc_block;

int16_t dsc_block_norm(const dsc_block *block, int16_t x, const char *name);

/* A parameter [elements] of its own name, whole on each rank: its number. */
int32_t dsc_block_vector(const dsc_block *block, const char *name, int64_t elements, dsc_init_kind init);

/* One step on the residual stream: of x, its norm goes into a part, and the part's output is added to x. */
typedef struct dsc_step_norms {
    const char *before; /* norm of the part's input; NULL: the part reads x */
    const char *behind; /* norm of the part's output, before factor and addition; NULL: none */
    const char *sum;    /* norm of the sum; NULL: none */
    const char *scale;  /* factors [C] of the part's output behind the norm, first 1; NULL: none */
} dsc_step_norms;
typedef struct dsc_step {
    int16_t x, in; /* the stream, and what the part reads */
    dsc_op_norm behind, sum;
    bool has_behind, has_sum;
    int32_t scale; /* the parameter of the factors; NONE: there are none */
} dsc_step;
/* Adds the norms' parameters, in the order of dsc_step_norms, ahead of those of the part. */
dsc_step dsc_block_begin(const dsc_block *block, int16_t x, const dsc_step_norms *norms);
/* `part` is what the part gave for step->in. `onto`: what it is added to, step->x but in parallel blocks. */
int16_t dsc_block_end(const dsc_block *block, const dsc_step *step, int16_t part, int16_t onto);

/* How q, k and v are made: by three products, or by one. The outputs of one are q, k and v, [(H+2K)*D]; or [H,3,D],
 * with H = K; or [K,H/K+2,D]. */
typedef enum dsc_qkv_kind { DSC_QKV_APART, DSC_QKV_PARTS, DSC_QKV_HEADS, DSC_QKV_GROUPS } dsc_qkv_kind;

typedef struct dsc_block_attention {
    dsc_qkv_kind kind;
    const char *qkv[3]; /* q, k and v, or the one product */
    const char *out;    /* [H*D] to [C] */
    bool qkv_bias, out_bias;
    /* APART: the product of q has a gate behind each head, [H,2,D], by whose sigmoid the attention's output goes. */
    bool gated;
    /* Norms of q and k; NULL: none. Their parameters are behind those of the products. */
    const char *q_norm, *k_norm;
    bool norm_whole;     /* one over all heads, else over each head with one weight for all */
    bool norm_turned;    /* behind the rotary positions, else before them */
    dsc_op_rope rope;    /* rope.rope NULL: the layer has no rotary positions. heads and head_size: set by the part */
    dsc_op_attention op; /* heads, kv_heads, head_size, scale, window and the like */
} dsc_block_attention;
int16_t dsc_block_attend(const dsc_block *block, int16_t x, const dsc_block_attention *part);

/* down(activation(up(x))), or with a gate down(activation(gate(x)) * up(x)). */
typedef struct dsc_block_mlp {
    const char *gate, *up, *down; /* gate NULL: none, or one product with up */
    bool gate_in_up;              /* the outputs of `up` are those of gate and up, [2*I] */
    bool no_up_adapter;           /* with gate_in_up: that product cannot have an adapter */
    bool up_bias, down_bias;      /* gate's is up's */
    int64_t inner;
    dsc_activation activation;
    double activation_scale; /* without a gate: activation(s x) / s; 0: 1 */
} dsc_block_mlp;
int16_t dsc_block_feed(const dsc_block *block, int16_t x, const dsc_block_mlp *part);

#endif
