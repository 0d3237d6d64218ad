/* test_config_elastic.c - batch sizes that follow from the world size, against what DeepSpeed 0.16.5 computes
 * (deepspeed.elasticity.compute_elastic_config) within the limit, and rates that do.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/schedule/schedule.h"
#include "tests/unit/config_case.h"

static const char *elastic(const char *members)
{
    static char text[1024];
    snprintf(text, sizeof text, "{\"elasticity\":{\"enabled\":true,%s}}", members);
    return text;
}

static void batches_as_deepspeed(void **state)
{
    (void)state;
    static const struct { int64_t w; const char *members; int64_t t, m, g; } rows[] = {
        { 2, "\"max_train_batch_size\":10000,\"micro_batch_sizes\":[7,17],\"min_gpus\":32,\"max_gpus\":1500,"
             "\"num_gpus_per_node\":2", 9996, 17, 294 },
        { 1, "\"max_train_batch_size\":2000,\"micro_batch_sizes\":[4,6],\"version\":0.2,\"max_gpus\":8", 1440, 6, 240 },
        { 1, "\"max_train_batch_size\":10000,\"micro_batch_sizes\":[7],\"version\":0.1,\"max_gpus\":1", 8820, 7, 1260 },
        { 1, "\"max_train_batch_size\":128,\"micro_batch_sizes\":[1],\"version\":0.2,\"max_gpus\":4,"
             "\"num_gpus_per_node\":2", 128, 1, 128 },
        { 12, "\"max_train_batch_size\":2000,\"micro_batch_sizes\":[8,17,5,1],\"min_gpus\":1", 1680, 5, 28 },
        { 4, "\"max_train_batch_size\":99999,\"micro_batch_sizes\":[3,12,5],\"min_gpus\":8,"
             "\"prefer_larger_batch\":false,\"num_gpus_per_node\":3", 99980, 5, 4999 },
        { 12, "\"max_train_batch_size\":4096,\"micro_batch_sizes\":[24,3,5,16],\"version\":0.1,\"min_gpus\":2,"
              "\"max_gpus\":64", 3780, 5, 63 },
        { 3, "\"max_train_batch_size\":720720,\"micro_batch_sizes\":[12,5,6,32],\"prefer_larger_batch\":false",
          665280, 32, 6930 },
        { 3, "\"max_train_batch_size\":99999,\"micro_batch_sizes\":[3,1,32,24],\"min_gpus\":2", 83160, 24, 1155 },
        { 12, "\"max_train_batch_size\":500,\"micro_batch_sizes\":[17,2,7],\"version\":0.1", 480, 2, 20 },
        { 8, "\"max_train_batch_size\":500,\"micro_batch_sizes\":[6,8,2],\"max_gpus\":1,\"num_gpus_per_node\":2",
          480, 6, 10 },
        { 2, "\"max_train_batch_size\":10000,\"micro_batch_sizes\":[12],\"min_gpus\":1,\"max_gpus\":1,"
             "\"prefer_larger_batch\":false", 9984, 12, 416 },
    };
    for (size_t i = 0; i < DSC_COUNT(rows); i++) {
        if (parse_with(elastic(rows[i].members), NULL, 0, false, rows[i].w) != DSC_OK)
            fail_msg("%s\n  was refused: %s: %s", rows[i].members, err.where, err.message);
        if (config.train_batch_size != rows[i].t || config.train_micro_batch_size_per_gpu != rows[i].m ||
            config.gradient_accumulation_steps != rows[i].g)
            fail_msg("%s\n  is %lld = %lld * %lld", rows[i].members, (long long)config.train_batch_size,
                     (long long)config.train_micro_batch_size_per_gpu, (long long)config.gradient_accumulation_steps);
        assert_true(noted("elasticity: train_batch_size"));
    }
    parse_ok("{\"elasticity\":{\"enabled\":false,\"micro_batch_sizes\":[3]},\"train_batch_size\":5}");
    assert_int_equal(config.train_batch_size, 5);
    /* Without a world size version 0.1 knows the batch, 0.2 does not. */
    const char *text = elastic("\"max_train_batch_size\":500,\"micro_batch_sizes\":[2],\"version\":0.1");
    assert_int_equal(parse_with(text, NULL, 0, false, 0), DSC_OK);
    assert_int_equal(config.train_batch_size, 480);
    assert_int_equal(config.gradient_accumulation_steps, DSC_AUTO_I64);
    text = elastic("\"max_train_batch_size\":500,\"micro_batch_sizes\":[2]");
    assert_int_equal(parse_with(text, NULL, 0, false, 0), DSC_OK);
    assert_int_equal(config.train_batch_size, DSC_AUTO_I64);
}

static void refused_as_deepspeed(void **state)
{
    (void)state;
    static const struct { int64_t w; const char *members, *message; } rows[] = {
        { 1, "\"micro_batch_sizes\":[2]", "elasticity.enabled: needs elasticity.max_train_batch_size" },
        { 1, "\"max_train_batch_size\":8", "needs elasticity.max_train_batch_size and elasticity.micro_batch_sizes" },
        { 1, "\"max_train_batch_size\":8,\"micro_batch_sizes\":[]", "an empty list" },
        { 1, "\"max_train_batch_size\":8,\"micro_batch_sizes\":[2,0]", "a list of integers" },
        { 1, "\"max_train_batch_size\":8,\"micro_batch_sizes\":[2,2.5]", "a list of integers" },
        { 1, "\"max_train_batch_size\":8,\"micro_batch_sizes\":[\"2\"]", "a list of integers" },
        { 1, "\"max_train_batch_size\":8,\"micro_batch_sizes\":2", "elasticity.micro_batch_sizes: 2 is not" },
        { 1, "\"max_train_batch_size\":0,\"micro_batch_sizes\":[2]", "max_train_batch_size: 0" },
        { 1, "\"max_train_batch_size\":8,\"micro_batch_sizes\":[4,24]", "24 is above max_train_batch_size 8" },
        { 1, "\"max_train_batch_size\":8,\"micro_batch_sizes\":[2],\"min_gpus\":0", "elasticity.min_gpus: 0" },
        { 1, "\"max_train_batch_size\":8,\"micro_batch_sizes\":[2],\"min_gpus\":4,\"max_gpus\":2",
          "below elasticity.min" },
        { 1, "\"max_train_batch_size\":8,\"micro_batch_sizes\":[2],\"version\":0.3", "0.3 is not 0.1 or 0.2" },
        { 1, "\"max_train_batch_size\":8,\"micro_batch_sizes\":[2],\"version\":0.1,\"model_parallel_size\":2",
          "needs elasticity.version 0.2" },
        { 1, "\"max_train_batch_size\":8,\"micro_batch_sizes\":[2],\"num_gpus_per_node\":3,\"model_parallel_size\":2",
          "not divisible by model_parallel_size" },
        { 7, "\"max_train_batch_size\":8,\"micro_batch_sizes\":[2],\"version\":0.1",
          "world size 7 does not work with train_batch_size 8; these do: 1, 2, 4" },
        { 8, "\"max_train_batch_size\":60,\"micro_batch_sizes\":[16]", "does not split" },
        { 3, "\"max_train_batch_size\":10000,\"micro_batch_sizes\":[12,16,4,17],\"version\":0.1,\"min_gpus\":4",
          "world size 3 does not work" },
    };
    for (size_t i = 0; i < DSC_COUNT(rows); i++) {
        assert_int_equal(parse_with(elastic(rows[i].members), NULL, 0, false, rows[i].w), DSC_ERR_CONFIG);
        if (strstr(err.message, rows[i].message) == NULL || strncmp(err.where, "t.json:1:", 9) != 0)
            fail_msg("%s\n  said %s: %s", rows[i].members, err.where, err.message);
    }
}

/* max_train_batch_size 100 with micro-batches 8, 10 and 12: their multiple 120 is above it. */
static void no_batch_is_above_the_limit(void **state)
{
    (void)state;
    const char *text = elastic("\"max_train_batch_size\":100,\"micro_batch_sizes\":[8,10,12],\"version\":0.1,"
                               "\"max_gpus\":1500");
    assert_int_equal(parse_with(text, NULL, 0, true, 4), DSC_OK);
    assert_int_equal(config.train_batch_size, 96);
    assert_true(noted_as_warning("elasticity: train_batch_size 96; DeepSpeed before August 2026 takes 120"));
    text = elastic("\"max_train_batch_size\":120,\"micro_batch_sizes\":[8,10,12],\"version\":0.1,"
                   "\"max_gpus\":1500");
    assert_int_equal(parse_with(text, NULL, 0, true, 4), DSC_OK);
    assert_int_equal(config.train_batch_size, 120);
    assert_false(noted_as_warning("elasticity"));
    text = elastic("\"max_train_batch_size\":50,\"micro_batch_sizes\":[8,10,12],\"num_gpus_per_node\":2,"
                   "\"version\":0.2");
    assert_int_equal(parse_with(text, NULL, 0, true, 2), DSC_OK);
    assert_true(config.train_batch_size <= 50);
}

#define TWO "\"elasticity\":{\"enabled\":true,\"max_train_batch_size\":480,\"micro_batch_sizes\":[2],\"version\":0.1"

static void batch_keys_beside_it(void **state)
{
    (void)state;
    const dsc_config_override flag = { "train_micro_batch_size_per_gpu", "3", "--batch-size" };
    assert_int_equal(parse_with("{" TWO "},\"train_batch_size\":8}", NULL, 0, false, 2), DSC_ERR_CONFIG);
    assert_non_null(strstr(err.message, "train_batch_size: conflicts with elasticity"));
    const char *ignored = "{" TWO ",\"ignore_non_elastic_batch_info\":true},\"train_batch_size\":8}";
    assert_int_equal(parse_with(ignored, NULL, 0, false, 2), DSC_OK);
    assert_int_equal(config.train_batch_size, 480);
    assert_true(warned("ignored because elasticity decides it"));
    assert_int_equal(parse_with("{" TWO "}}", &flag, 1, false, 2), DSC_OK);
    assert_int_equal(config.train_batch_size, 6);
    assert_true(noted("elasticity gives way to --batch-size"));
    const char *parallel = elastic("\"max_train_batch_size\":8,\"micro_batch_sizes\":[2],"
                                   "\"model_parallel_size\":2,\"num_gpus_per_node\":2");
    assert_int_equal(parse_with(parallel, NULL, 0, false, 2), DSC_OK);
    assert_int_equal(dsc_config_built(&config, &err), DSC_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "elasticity.model_parallel_size: 2"));
}

static void rates_follow_the_world_size(void **state)
{
    (void)state;
    static const char *const schedules[] = {
        "", ",\"scheduler\":{\"type\":\"WarmupLR\",\"params\":{\"warmup_max_lr\":0.5,\"warmup_num_steps\":4}}",
        ",\"scheduler\":{\"type\":\"WarmupCosineLR\",\"params\":{\"total_num_steps\":9,\"warmup_num_steps\":4}}",
        ",\"scheduler\":{\"type\":\"OneCycle\",\"params\":{\"cycle_min_lr\":0.1,\"cycle_max_lr\":0.5}}",
    };
    for (size_t i = 0; i < DSC_COUNT(schedules); i++) {
        double plain[8];
        char text[512];
        snprintf(text, sizeof text,
                 "{\"train_micro_batch_size_per_gpu\":1,\"optimizer\":{\"type\":\"AdamW\",\"params\":{\"lr\":0.5}}%s}",
                 schedules[i]);
        assert_int_equal(parse_with(text, NULL, 0, false, 4), DSC_OK);
        for (int step = 1; step <= 8; step++)
            plain[step - 1] = dsc_schedule_lr(&config, step);
        snprintf(text + strlen(text) - 1, 64, ",\"dsc\":{\"lr_scaling\":\"linear\"}}");
        assert_int_equal(parse_with(text, NULL, 0, false, 4), DSC_OK);
        assert_true(noted("every rate is times 4, the world size"));
        for (int step = 1; step <= 8; step++)
            assert_true(dsc_schedule_lr(&config, step) == 4 * plain[step - 1]);
        assert_int_equal(parse_with(text, NULL, 0, false, 1), DSC_OK);
        assert_true(dsc_schedule_lr(&config, 3) == plain[2]);
    }
    parse_ok(around("\"dsc\":{\"stop\":{\"eval_patience\":3}}"));
    assert_true(warned("no effect without dsc.eval_every"));
    parse_ok(around("\"dsc\":{\"eval_every\":2,\"eval_data\":\"e.txt\",\"stop\":{\"eval_patience\":3}}"));
    assert_int_equal(config.own.eval_patience, 3);
    assert_int_equal(config.warning_count, 0);
    assert_int_equal(parse(around("\"dsc\":{\"stop\":{\"eval_patience\":-1}}")), DSC_ERR_CONFIG);
    assert_int_equal(parse(around("\"dsc\":{\"lr_scaling\":\"sqrt\"}")), DSC_ERR_CONFIG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches_as_deepspeed),
        cmocka_unit_test(refused_as_deepspeed),
        cmocka_unit_test(no_batch_is_above_the_limit),
        cmocka_unit_test(batch_keys_beside_it),
        cmocka_unit_test(rates_follow_the_world_size),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
