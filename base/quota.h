/* quota.h - the micro-batches of an optimizer step over its ranks.
 *
 * A step has K micro-batches, and rank r computes q_r of them, its quota. In micro-step m every rank with q_r > m
 * computes one. Micro-batches are numbered micro-step by micro-step, and by rank inside a micro-step. So K fixes the
 * samples and the order of sums of a step, whatever the number of ranks and their quotas are.
 *
 * With equal quotas, micro-batch (m, r) has number m * W + r. If W does not divide K, the first K mod W ranks have one
 * more, and the last micro-step has no micro-batch of the other ranks. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_BASE_QUOTA_H
#define DSC_BASE_QUOTA_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dsc_quota {
    int64_t total;          /* K; at least the number of ranks */
    int32_t ranks;          /* W */
    const int64_t *of_rank; /* [W] each at least 1, their sum is K; borrowed; NULL: even quotas */
} dsc_quota;

static inline dsc_quota dsc_quota_even(int64_t total, int32_t ranks) { return (dsc_quota) { total, ranks, NULL }; }

/* Micro-batches of a rank in a step. */
static inline int64_t dsc_quota_of(const dsc_quota *quota, int32_t rank)
{
    return quota->of_rank != NULL ? quota->of_rank[rank]
                                  : quota->total / quota->ranks + (rank < quota->total % quota->ranks);
}

static inline bool dsc_quota_has(const dsc_quota *quota, int32_t rank, int64_t micro_step)
{
    return micro_step < dsc_quota_of(quota, rank);
}

/* Micro-steps of a step: the largest quota. */
int64_t dsc_quota_micro_steps(const dsc_quota *quota);
/* Number of the first micro-batch of a micro-step. */
int64_t dsc_quota_first(const dsc_quota *quota, int64_t micro_step);
/* Number of a rank's micro-batch in a micro-step in which it has one. */
int64_t dsc_quota_number(const dsc_quota *quota, int32_t rank, int64_t micro_step);
/* Every rank has a micro-batch in the micro-step. */
bool dsc_quota_is_full(const dsc_quota *quota, int64_t micro_step);

/* Quotas that make the largest of q_r * seconds[r] as small as possible, with 1 <= q_r <= most; among these the work of
 * lower ranks is larger. `seconds` of a micro-batch are above 0, and W <= total <= W * most. */
void dsc_quota_balance(const double *seconds, int32_t ranks, int64_t total, int64_t most, int64_t *of_rank);

#ifdef __cplusplus
}
#endif
#endif
