/* quota.c - see quota.h. SPDX-License-Identifier: Apache-2.0 */
#include "base/quota.h"

int64_t dsc_quota_micro_steps(const dsc_quota *quota)
{
    int64_t most = dsc_quota_of(quota, 0);
    DSC_ASSERT(quota->ranks >= 1 && quota->total >= quota->ranks);
    for (int32_t r = 1; r < quota->ranks && quota->of_rank != NULL; r++)
        most = dsc_max_i64(most, quota->of_rank[r]);
    return most;
}

int64_t dsc_quota_first(const dsc_quota *quota, int64_t micro_step)
{
    int64_t before = 0;
    if (quota->of_rank == NULL) /* micro-steps before the last one are full */
        return dsc_min_i64(micro_step * quota->ranks, quota->total);
    for (int32_t r = 0; r < quota->ranks; r++)
        before += dsc_min_i64(quota->of_rank[r], micro_step);
    return before;
}

int64_t dsc_quota_number(const dsc_quota *quota, int32_t rank, int64_t micro_step)
{
    int64_t number = dsc_quota_first(quota, micro_step);
    DSC_ASSERT(dsc_quota_has(quota, rank, micro_step));
    if (quota->of_rank == NULL)
        return number + rank;
    for (int32_t r = 0; r < rank; r++)
        number += dsc_quota_has(quota, r, micro_step);
    return number;
}

bool dsc_quota_is_full(const dsc_quota *quota, int64_t micro_step)
{
    for (int32_t r = 0; r < quota->ranks && quota->of_rank != NULL; r++)
        if (quota->of_rank[r] <= micro_step)
            return false;
    return quota->of_rank != NULL || (micro_step + 1) * quota->ranks <= quota->total;
}

/* Each further micro-batch goes to the rank that ends first with it. Exchanging one of them for another rank's would
 * end no earlier, so the largest time is the smallest possible. */
void dsc_quota_balance(const double *seconds, int32_t ranks, int64_t total, int64_t most, int64_t *of_rank)
{
    DSC_ASSERT(ranks >= 1 && total >= ranks && total <= ranks * most);
    for (int32_t r = 0; r < ranks; r++) {
        DSC_ASSERT(seconds[r] > 0);
        of_rank[r] = 1;
    }
    for (int64_t k = ranks; k < total; k++) {
        int32_t best = -1;
        for (int32_t r = 0; r < ranks; r++)
            if (of_rank[r] < most &&
                (best < 0 || (double)(of_rank[r] + 1) * seconds[r] < (double)(of_rank[best] + 1) * seconds[best]))
                best = r;
        of_rank[best]++;
    }
}
