/* moe.h - mixture of experts: each token goes to some experts, and its output is a weighted sum of their outputs.
 *
 * A token has `top_k` slots, one for each expert that it is routed to, in descending order of the experts' scores. Rows
 * of (token, slot) lie in expert order: sorted by the expert, and those of one expert by token and slot. No row is
 * dropped, so there are always rows = tokens * top_k of them, and every size is known before the tokens are.
 *
 * All kernels here are deterministic: sums run in a fixed order, without atomics. GROUPED_GEMM on a CPU sums each
 * element over k in order, by fused multiply-adds from 0 on. Its rows do not depend on one another, whatever the number
 * of rows of an expert. The bits are the same with every variant.
 * reference: cpu/moe_ref.c cpu/grouped_gemm_ref.c   check and bench: tests/checkkern/moe.c
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_MOE_H
#define DSC_KERNELS_MOE_H
#include <dsc/types.h>
#ifdef __cplusplus
extern "C" {
#endif

#define DSC_MOE_EXPERTS_MAX 1024
#define DSC_MOE_TOP_K_MAX 32
#define DSC_MOE_GROUPS_MAX 32

/* How logits become scores: over all experts, or each by itself. */
typedef enum dsc_moe_score { DSC_MOE_SOFTMAX, DSC_MOE_SIGMOID } dsc_moe_score;

typedef struct dsc_moe_rule {
    int32_t experts, top_k; /* 1 <= top_k <= experts */
    dsc_moe_score score;
    bool renormalize; /* weights are divided by their sum over the slots */
    float factor;     /* then multiplied by this */
    /* With `groups` above 1 a token's experts are those of the `best_groups` best of so many equal parts, which have
     * top_k experts at least. A group is as good as its best expert, or with `group_pairs` as the sum of its two best.
     */
    int32_t groups, best_groups; /* best_groups <= groups <= DSC_MOE_GROUPS_MAX */
    bool group_pairs;
} dsc_moe_rule;

static inline bool dsc_moe_rule_is_valid(const dsc_moe_rule *rule)
{
    const bool experts = rule->experts >= 1 && rule->experts <= DSC_MOE_EXPERTS_MAX && rule->top_k >= 1 &&
                         rule->top_k <= rule->experts && rule->top_k <= DSC_MOE_TOP_K_MAX;
    if (!experts || rule->groups <= 1)
        return experts && rule->groups >= 0;
    const int32_t each = rule->experts / rule->groups;
    return rule->groups <= DSC_MOE_GROUPS_MAX && rule->experts % rule->groups == 0 && rule->best_groups >= 1 &&
           rule->best_groups <= rule->groups && rule->best_groups * each >= rule->top_k &&
           (each >= 2 || !rule->group_pairs);
}

/* The top_k experts of the largest logits; of equal ones the lower number. With a bias, or with groups by pairs, those
 * of the largest choice: score + bias in fp32. weights: their scores, by the rule and without the bias. A NaN is chosen
 * last. */
typedef struct dsc_moe_route_fwd_args {
    float *weights;  /* [tokens, top_k] */
    int32_t *chosen; /* [tokens, top_k] */
    const void *logits; /* [tokens, experts] */
    const float *bias;  /* [experts], NULL: none */
    int64_t tokens;
    dsc_moe_rule rule;
    dsc_dtype dtype; /* dtype of logits */
} dsc_moe_route_fwd_args;

/* The gradient of the logits, all of it overwritten. */
typedef struct dsc_moe_route_bwd_args {
    void *d_logits; /* [tokens, experts] */
    const float *d_weights;
    const void *logits;
    const int32_t *chosen;
    int64_t tokens;
    dsc_moe_rule rule;
    dsc_dtype dtype;   /* dtype of logits */
    dsc_dtype d_dtype; /* dtype of d_logits: the same, or a 16-bit one beside logits in F32 */
} dsc_moe_route_bwd_args;

/* A counting sort. place[i] is the row of slot i = token * top_k + slot, source its inverse. Expert e has the rows
 * starts[e] .. starts[e + 1] - 1. */
typedef struct dsc_moe_order_args {
    int32_t *place, *source; /* [slots] */
    int32_t *starts;         /* [experts + 1] */
    const int32_t *chosen;   /* [slots], 0 <= expert < experts */
    int64_t slots;
    int32_t experts;
} dsc_moe_order_args;

/* FWD: out[r] = in[source[r] / top_k]. BWD: a token's rows are added in the order of slots, in fp32, and `add` behind
 * them; the sum is rounded once. out[t] = (in[place[t, 0]] + in[place[t, 1]] + ...) + add[t]. */
typedef struct dsc_moe_dispatch_args {
    void *out;            /* FWD [tokens * top_k, C], BWD [tokens, C] */
    const void *in;       /* FWD [tokens, C], BWD [tokens * top_k, C] */
    const int32_t *order; /* FWD source, BWD place */
    const void *add;      /* BWD: [tokens, C] or NULL; may be `out` */
    int64_t tokens, channels;
    int32_t top_k;
    dsc_dtype dtype;
} dsc_moe_dispatch_args;

/* out[t] = the sum over slots in order of weights[t, slot] * rows[place[t, slot]], in fp32, rounded once. */
typedef struct dsc_moe_combine_fwd_args {
    void *out;            /* [tokens, C] */
    const void *rows;     /* [tokens * top_k, C] in expert order */
    const float *weights; /* [tokens, top_k] */
    const int32_t *place;
    int64_t tokens, channels;
    int32_t top_k;
    dsc_dtype dtype;
} dsc_moe_combine_fwd_args;

/* d_rows[place[t, slot]] = weights[t, slot] * d_out[t]; d_weights[t, slot] = the dot product of d_out[t] and that row
 * of `rows`. */
typedef struct dsc_moe_combine_bwd_args {
    void *d_rows; /* may be `rows` */
    float *d_weights;
    const void *d_out, *rows;
    const float *weights;
    const int32_t *place;
    int64_t tokens, channels;
    int32_t top_k;
    dsc_dtype dtype;
} dsc_moe_combine_bwd_args;

/* Products of the rows of each expert with its matrix w[e], which is stored [out, in]. */
typedef enum dsc_grouped_kind {
    DSC_GROUPED_FORWARD, /* c[r, out] = a[r, in] * w[e]^T (+ add) */
    DSC_GROUPED_INPUT,   /* c[r, in] = a[r, out] * w[e] (+ add) */
    DSC_GROUPED_WEIGHT   /* c[e, out, in] = a[rows of e, out]^T * b[rows of e, in], fp32; 0 without rows */
} dsc_grouped_kind;

typedef struct dsc_grouped_gemm_args {
    const void *a, *b; /* b: w for the first two kinds */
    void *c;
    const void *add;       /* c's shape, or NULL; may be c; not with WEIGHT */
    const int32_t *starts; /* [experts + 1] */
    int64_t rows;          /* rows of all experts: starts[experts] */
    int64_t in, out;
    int32_t experts;
    dsc_grouped_kind kind;
    dsc_dtype dtype; /* dtype of a and b, and but for WEIGHT of c and add */
} dsc_grouped_gemm_args;

#ifdef __cplusplus
}
#endif
#endif
