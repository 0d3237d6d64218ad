/* moe_balance.h - the load of experts, and the losses that keep it even.
 *
 * A layer's record of a micro-batch has sums over its tokens that are not padding. With F_e the slots of expert e and
 * P_e the sum of its softmax probabilities over all layers, n the sum of their tokens and E experts:
 *
 *     balance = E * sum over e of (F_e / n) (P_e / n)         (transformers' load_balancing_loss_func)
 *     z       = (sum over tokens of log-sum-exp^2) / n        (Zoph et al. 2022)
 *
 * F_e has no gradient. So the gradient of a layer's logits needs the slots of all layers, and nothing else of others:
 *
 *     d balance / d logit_j = E / n^2 * p_j (F_j - sum over e of F_e p_e)
 *
 * The forward pass of all layers ends before any backward. A forward that is computed again writes the same record.
 *
 * Padding: a token counts up to the one that the last counted target of its sample names. Sums run in a fixed order.
 * reference: cpu/moe_balance.c   check and bench: tests/checkkern/moe_balance.c
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_KERNELS_MOE_BALANCE_H
#define DSC_KERNELS_MOE_BALANCE_H
#include "kernels/moe.h"
#ifdef __cplusplus
extern "C" {
#endif

#define DSC_MOE_TALLY_PARTS 128 /* runs of tokens whose sums are added in order */

/* Words of 4 bytes of a layer's record, and of the work space of MOE_TALLY. */
static inline int64_t dsc_moe_record_words(int64_t experts, int64_t samples) { return 2 * experts + 3 + samples; }
static inline int64_t dsc_moe_tally_words(int64_t experts) { return DSC_MOE_TALLY_PARTS * (2 * experts + 1); }

/* Places in a record. */
typedef struct dsc_moe_record {
    int32_t *load;             /* [experts] slots */
    float *probability;        /* [experts] sums of softmax probabilities */
    float *z;                  /* [1] sum of squared log-sum-exps */
    int32_t *tokens, *counted; /* [1] tokens that are not padding; counted targets */
    int32_t *real;             /* [samples] tokens of a sample before its padding */
} dsc_moe_record;

static inline dsc_moe_record dsc_moe_record_at(void *records, int64_t layer, int64_t experts, int64_t samples)
{
    int32_t *at = (int32_t *)records + layer * dsc_moe_record_words(experts, samples);
    const dsc_moe_record record = { at,
                                    (float *)(void *)(at + experts),
                                    (float *)(void *)(at + 2 * experts),
                                    at + 2 * experts + 1,
                                    at + 2 * experts + 2,
                                    at + 2 * experts + 3 };
    return record;
}

/* The record of a layer. */
typedef struct dsc_moe_tally_args {
    dsc_moe_record out;
    float *work;            /* [dsc_moe_tally_words] */
    const void *logits;     /* [samples * length, experts]; NULL: probabilities and z are 0 */
    const int32_t *chosen;  /* [samples * length, top_k] */
    const int32_t *targets; /* [samples, length]; NULL: every token counts */
    int64_t samples, length;
    int32_t experts, top_k;
    dsc_dtype dtype;
} dsc_moe_tally_args;

/* d_logits += w (balance * d balance / d logits + z * d z / d logits), in fp32, rounded once. w is the share of counted
 * targets if `by_counted`, else 1. A micro-batch without a token adds nothing. */
typedef struct dsc_moe_balance_bwd_args {
    void *d_logits; /* [samples * length, experts] */
    const void *logits;
    const void *records; /* [layers] records of this micro-batch */
    dsc_moe_record own;
    float *work; /* [experts + 1] */
    int64_t samples, length;
    int32_t layers, experts;
    float balance, z; /* factors of the losses, with the loss scale */
    bool by_counted;
    dsc_dtype dtype;   /* dtype of logits */
    dsc_dtype d_dtype; /* dtype of d_logits: the same, or a 16-bit one beside logits in F32 */
} dsc_moe_balance_bwd_args;

#ifdef __cplusplus
}
#endif
#endif
