/* test_config_quota.c - dsc.quota: micro-batches of a step for each rank, and what does not go with it.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/config_case.h"

#define BATCH "{\"train_batch_size\":20,\"train_micro_batch_size_per_gpu\":2,\n"

static dsc_status parse_at(const char *text, int64_t world_size)
{
    const dsc_status status = parse_with(text, NULL, 0, false, world_size);
    return status == DSC_OK ? dsc_config_built(&config, &err) : status;
}

static void quotas_of_ten_micro_batches(void **state)
{
    static const struct {
        const char *quota;
        int64_t ranks, steps, most, of_last;
    } rows[] = { { "\"even\"", 1, 10, 10, 10 },  { "\"even\"", 3, 4, 4, 3 },     { "\"even\"", 4, 3, 3, 2 },
                 { "\"even\"", 10, 1, 1, 1 },    { "\"measured\"", 4, 3, 7, 2 }, { "\"measured\"", 10, 1, 1, 1 },
                 { "\"measured\"", 2, 5, 9, 5 }, { "[1, 5, 1, 3]", 4, 5, 5, 3 }, { "[10]", 1, 10, 10, 10 } };
    (void)state;
    for (size_t i = 0; i < DSC_COUNT(rows); i++) {
        char text[256];
        snprintf(text, sizeof text, BATCH "\"dsc\":{\"quota\":%s}}", rows[i].quota);
        if (parse_at(text, rows[i].ranks) != DSC_OK)
            fail_msg("%s was refused: %s: %s", text, err.where, err.message);
        const dsc_quota quota = dsc_config_quota(&config, (int32_t)rows[i].ranks);
        assert_int_equal(quota.total, 10);
        assert_int_equal(config.gradient_accumulation_steps, rows[i].steps);
        assert_int_equal(dsc_quota_micro_steps(&quota), rows[i].steps);
        assert_int_equal(config.micro_steps_most, rows[i].most);
        assert_int_equal(dsc_quota_of(&quota, quota.ranks - 1), rows[i].of_last);
        assert_int_equal(noted("dsc.quota: 10 micro-batches"), rows[i].ranks == 3 || rows[i].ranks == 4);
    }
    assert_int_equal(parse_at(BATCH "\"gradient_accumulation_steps\":\"auto\",\"dsc\":{\"quota\":\"even\"}}", 4),
                     DSC_OK);
    assert_int_equal(parse_at(BATCH "\"dsc\":{\"quota\":\"even\"}}", 0), DSC_OK);
    assert_int_equal(config.gradient_accumulation_steps, DSC_AUTO_I64);
}

static void wrong_quotas_are_refused_with_the_reason(void **state)
{
    static const struct {
        int64_t ranks;
        const char *text, *message;
        dsc_status status;
    } rows[] = {
        { 4, BATCH "\"dsc\":{\"quota\":\"fast\"}}", "dsc.quota: \"fast\" is not \"even\", \"measured\" or a list",
          DSC_ERR_CONFIG },
        { 4, BATCH "\"dsc\":{\"quota\":{}}}", "is not \"even\"", DSC_ERR_CONFIG },
        { 4, BATCH "\"dsc\":{\"quota\":[]}}", "an empty list", DSC_ERR_CONFIG },
        { 4, BATCH "\"dsc\":{\"quota\":[4, 3, 3, 0]}}", "whole numbers above 0", DSC_ERR_CONFIG },
        { 4, BATCH "\"dsc\":{\"quota\":[4, 3, 2.5, 0.5]}}", "whole numbers above 0", DSC_ERR_CONFIG },
        { 4, BATCH "\"dsc\":{\"quota\":[4, 3, 3]}}", "the list has 3 numbers for 4 ranks", DSC_ERR_CONFIG },
        { 4, BATCH "\"dsc\":{\"quota\":[4, 3, 3, 1]}}", "add up to 11; expected 10, which is train_batch_size 20 / ",
          DSC_ERR_CONFIG },
        { 11, BATCH "\"dsc\":{\"quota\":\"even\"}}", "a step has 10 micro-batches for 11 ranks", DSC_ERR_CONFIG },
        { 4, "{\"train_batch_size\":20,\"dsc\":{\"quota\":\"even\"}}", "it needs train_batch_size and train_micro",
          DSC_ERR_CONFIG },
        { 4, "{\"train_batch_size\":21,\"train_micro_batch_size_per_gpu\":2,\"dsc\":{\"quota\":\"even\"}}",
          "train_batch_size 21 is not a multiple of train_micro_batch_size_per_gpu 2", DSC_ERR_CONFIG },
        { 2, BATCH "\"gradient_accumulation_steps\":5,\"dsc\":{\"quota\":\"even\"}}",
          "gradient_accumulation_steps: conflicts with dsc.quota", DSC_ERR_CONFIG },
        { 2, BATCH "\"dsc\":{\"quota\":\"measured\",\"micro_batches_together\":2}}",
          "conflicts with dsc.micro_batches_together 2 (the number of micro-steps changes)", DSC_ERR_UNSUPPORTED },
        { 2, BATCH "\"zero_optimization\":{\"stage\":3,\"mics_shard_size\":1},\"dsc\":{\"quota\":\"even\"}}",
          "conflicts with zero_optimization.mics_shard_size 1", DSC_ERR_UNSUPPORTED },
        { 2, BATCH "\"optimizer\":{\"type\":\"OneBitAdam\"},\"dsc\":{\"quota\":\"even\"}}", "conflicts with dsc.quota",
          DSC_ERR_UNSUPPORTED },
        { 2, BATCH "\"dsc\":{\"quota\":\"even\",\"grid\":{\"pipeline\":2}}}", "stages do not work with dsc.quota",
          DSC_ERR_UNSUPPORTED },
        { 3, "{\"train_batch_size\":20,\"train_micro_batch_size_per_gpu\":2}", "{\"quota\": \"even\"}",
          DSC_ERR_CONFIG },
    };
    (void)state;
    for (size_t i = 0; i < DSC_COUNT(rows); i++) {
        const dsc_status status = parse_at(rows[i].text, rows[i].ranks);
        if (status != rows[i].status || strstr(err.message, rows[i].message) == NULL)
            fail_msg("%s\n  gave %d: %s", rows[i].text, (int)status, err.message);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quotas_of_ten_micro_batches),
        cmocka_unit_test(wrong_quotas_are_refused_with_the_reason),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
