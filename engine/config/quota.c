/* quota.c - "dsc.quota": micro-batches of a step for each rank, where the batch and the micro-batch alone decide their
 * number. SPDX-License-Identifier: Apache-2.0 */
#include "engine/config/internal.h"

#include <stdio.h>
#include <string.h>

#define MEASURED_MOST 4 /* a measured quota is at most 4 times the even one: buffers of losses are planned for it */

static dsc_status fill_list(dsc_config_parse_state *s, const cJSON *list)
{
    dsc_quota_section *quota = &s->config->own.quota;
    bool from_text;
    for (const cJSON *each = list->child; each != NULL; each = each->next) {
        int64_t of_rank = 0;
        if (quota->count == DSC_CONFIG_QUOTAS_MAX)
            return dsc_config_fail(s, DSC_ID_QUOTA, DSC_ERR_CONFIG, "more than %d numbers", DSC_CONFIG_QUOTAS_MAX);
        if (!cJSON_IsNumber(each) || !dsc_value_int(each, &of_rank, &from_text) || of_rank < 1 || of_rank > INT32_MAX)
            return dsc_config_fail(s, DSC_ID_QUOTA, DSC_ERR_CONFIG,
                                   "expected a list of whole numbers above 0, one for each rank");
        quota->of_rank[quota->count++] = of_rank;
    }
    quota->kind = DSC_QUOTA_LIST;
    return quota->count > 0 ? DSC_OK : dsc_config_fail(s, DSC_ID_QUOTA, DSC_ERR_CONFIG, "an empty list");
}

dsc_status dsc_config_fill_quota(dsc_config_parse_state *s)
{
    static const char *const names[] = { [DSC_QUOTA_EVEN] = "even", [DSC_QUOTA_MEASURED] = "measured" };
    dsc_quota_section *quota = &s->config->own.quota;
    const cJSON *value = s->given[DSC_ID_QUOTA];
    char text[128];
    if (value == NULL || cJSON_IsNull(value))
        return DSC_OK;
    s->config->unresolved.quota = dsc_config_source_pos(s, DSC_ID_QUOTA);
    if (dsc_config_has(s, DSC_ID_ACCUMULATION))
        return dsc_config_fail(s, DSC_ID_ACCUMULATION, DSC_ERR_CONFIG,
                               "conflicts with dsc.quota, which decides the number of micro-batches of each rank; keep "
                               "one of them");
    if (cJSON_IsArray(value))
        return fill_list(s, value);
    for (int kind = DSC_QUOTA_EVEN; kind <= DSC_QUOTA_MEASURED; kind++)
        if (cJSON_IsString(value) && strcmp(value->valuestring, names[kind]) == 0)
            quota->kind = (dsc_quota_kind)kind;
    if (quota->kind != DSC_QUOTA_ABSENT)
        return DSC_OK;
    return dsc_config_fail(s, DSC_ID_QUOTA, DSC_ERR_CONFIG,
                           "%s is not \"even\", \"measured\" or a list of one number for each rank",
                           dsc_value_text(value, text, sizeof text));
}

static dsc_status check_list(const dsc_config *config, int64_t ranks, int64_t total, dsc_error *err)
{
    const dsc_quota_section *quota = &config->own.quota;
    int64_t sum = 0;
    for (int i = 0; i < quota->count; i++)
        sum += quota->of_rank[i];
    if (quota->count != ranks)
        return dsc_config_refuse(config, config->unresolved.quota, "dsc.quota", err,
                                 "the list has %d numbers for %lld rank%s; give one for each, or \"even\"",
                                 quota->count, (long long)ranks, ranks == 1 ? "" : "s");
    if (sum != total)
        return dsc_config_refuse(config, config->unresolved.quota, "dsc.quota", err,
                                 "the numbers add up to %lld; expected %lld, which is train_batch_size %lld / "
                                 "train_micro_batch_size_per_gpu %lld",
                                 (long long)sum, (long long)total, (long long)config->train_batch_size,
                                 (long long)config->train_micro_batch_size_per_gpu);
    return DSC_OK;
}

dsc_status dsc_config_resolve_quota(dsc_config *config, int64_t ranks, dsc_error *err)
{
    const int64_t batch = config->unresolved.train_batch_size;
    const int64_t micro = config->unresolved.train_micro_batch_size_per_gpu;
    if (batch == DSC_AUTO_I64 || micro == DSC_AUTO_I64)
        return dsc_config_refuse(
            config, config->unresolved.quota, "dsc.quota", err,
            "it needs train_batch_size and train_micro_batch_size_per_gpu, which fix the number of "
            "micro-batches of a step");
    if (batch % micro != 0)
        return dsc_config_refuse(config, config->unresolved.quota, "dsc.quota", err,
                                 "train_batch_size %lld is not a multiple of train_micro_batch_size_per_gpu %lld",
                                 (long long)batch, (long long)micro);
    const int64_t total = batch / micro;
    if (total < ranks)
        return dsc_config_refuse(
            config, config->unresolved.quota, "dsc.quota", err,
            "a step has %lld micro-batch%s for %lld ranks, and each rank needs one; use fewer ranks, "
            "or a smaller train_micro_batch_size_per_gpu",
            (long long)total, total == 1 ? "" : "es", (long long)ranks);
    config->train_batch_size = batch;
    config->train_micro_batch_size_per_gpu = micro;
    config->gradient_accumulation_steps = DSC_AUTO_I64;
    if (ranks == 0)
        return DSC_OK;
    if (config->own.quota.kind == DSC_QUOTA_LIST)
        DSC_TRY(check_list(config, ranks, total, err));
    const dsc_quota quota = dsc_config_quota(config, (int32_t)ranks);
    config->gradient_accumulation_steps = dsc_quota_micro_steps(&quota);
    if (!dsc_quota_is_full(&quota, config->gradient_accumulation_steps - 1))
        dsc_config_note(config, "dsc.quota: %lld micro-batches a step over %lld ranks, at most %lld for each",
                        (long long)total, (long long)ranks, (long long)config->gradient_accumulation_steps);
    return DSC_OK;
}

dsc_quota dsc_config_quota(const dsc_config *config, int32_t ranks)
{
    dsc_quota quota = dsc_quota_even(config->train_batch_size / config->train_micro_batch_size_per_gpu, ranks);
    if (config->own.quota.kind == DSC_QUOTA_LIST)
        quota.of_rank = config->own.quota.of_rank;
    return quota;
}

int64_t dsc_config_micro_steps_most(const dsc_config *config, int32_t ranks)
{
    const int64_t even = config->gradient_accumulation_steps;
    const int64_t total = config->train_batch_size / config->train_micro_batch_size_per_gpu;
    return config->own.quota.kind == DSC_QUOTA_MEASURED ? dsc_min_i64(MEASURED_MOST * even, total - ranks + 1) : even;
}
