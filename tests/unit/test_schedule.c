/* test_schedule.c - every rate against what DeepSpeed's own schedules gave (tests/golden/make_lr.py).
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/schedule/schedule.h"

static dsc_alloc *alloc;
static dsc_config config;

static int setup(void **state)
{
    (void)state;
    return dsc_alloc_open(&alloc, NULL);
}

static int teardown(void **state)
{
    (void)state;
    dsc_alloc_close(&alloc);
    return 0;
}

static void parse(const char *name, const char *text, int64_t total_steps)
{
    dsc_error err = DSC_ERROR_INIT;
    const dsc_config_facts facts = { .world_size = 1, .total_steps = total_steps, .device = "cpu" };
    dsc_status status = dsc_config_parse(alloc, name, text, (int64_t)strlen(text), NULL, 0, false, &config, &err);
    if (status == DSC_OK)
        status = dsc_config_resolve(&config, &facts, &err);
    if (status != DSC_OK)
        fail_msg("%s: %s", err.where, err.message);
}

static bool near(double got, double wanted) { return fabs(got - wanted) <= 1e-12 * fabs(wanted); }

/* Returns the number of steps that were compared. */
static int check_file(const char *name)
{
    char path[128], line[4096];
    int count = 0, cases = 0;
    snprintf(path, sizeof path, "tests/golden/lr_%s.txt", name);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        fail_msg("%s is not there: run from the repository's root", path);
    while (fgets(line, sizeof line, file) != NULL) {
        long long step;
        double lr, beta1, beta2;
        if (line[0] == '{') {
            parse(path, line, 0);
            cases++;
        } else if (sscanf(line, "%lld %lf %lf %lf", &step, &lr, &beta1, &beta2) == 4) {
            if (!near(dsc_schedule_lr(&config, step), lr))
                fail_msg("%s case %d step %lld: lr %.17g, DeepSpeed %.17g", name, cases, step,
                         dsc_schedule_lr(&config, step), lr);
            if (!near(dsc_schedule_beta1(&config, step), beta1) || !near(dsc_schedule_beta2(&config, step), beta2))
                fail_msg("%s case %d step %lld: betas %.17g %.17g, DeepSpeed %.17g %.17g", name, cases, step,
                         dsc_schedule_beta1(&config, step), dsc_schedule_beta2(&config, step), beta1, beta2);
            count++;
        }
    }
    fclose(file);
    return count;
}

static void rates_as_deepspeed(void **state)
{
    (void)state;
    assert_true(check_file("WarmupLR") > 200);
    assert_true(check_file("WarmupDecayLR") > 300);
    assert_true(check_file("WarmupCosineLR") > 300);
    assert_true(check_file("OneCycle") > 400);
    assert_true(check_file("LRRangeTest") > 200);
}

static void rates_as_transformers(void **state)
{
    (void)state;
    assert_true(check_file("transformers") > 500);
}

/* The chained products and cosines of torch come to these values within a few roundings of each step. */
static void rates_as_torch(void **state)
{
    (void)state;
    assert_true(check_file("torch") > 300);
}

/* Counts of epochs are of whole epochs, at whose ends the rate changes; the last cosine ends with the run. */
static void epochs_are_counted_in_steps(void **state)
{
    (void)state;
    parse("t",
          "{\"train_batch_size\":1,\"optimizer\":{\"type\":\"SGD\",\"params\":{\"lr\":0.5}},\"scheduler\":{\"type\":"
          "\"CosineAnnealingLR\",\"params\":{\"unit\":\"epoch\",\"linear_warmup\":1,\"linear_warmup_factor\":0.5}}}",
          40);
    assert_true(near(dsc_schedule_lr(&config, 35), 0.25)); /* nothing is known of epochs: the first rate stays */
    config.schedule.unit_steps = 10;
    assert_true(near(dsc_schedule_lr(&config, 10), 0.25));
    assert_true(near(dsc_schedule_lr(&config, 11), 0.5));
    assert_true(near(dsc_schedule_lr(&config, 20), 0.5));
    assert_true(near(dsc_schedule_lr(&config, 21), 0.375)); /* a third of half a cosine */
    assert_true(near(dsc_schedule_lr(&config, 40), 0.125));
}

static void no_schedule_is_constant(void **state)
{
    (void)state;
    parse("t",
          "{\"train_batch_size\":1,\"optimizer\":{\"type\":\"Adam\",\"params\":{\"lr\":0.25,\"betas\":[0.5,0.75]}}}",
          0);
    assert_true(dsc_schedule_lr(&config, 1) == 0.25);
    assert_true(dsc_schedule_lr(&config, 1000000) == 0.25);
    assert_true(dsc_schedule_beta1(&config, 7) == 0.5);
    assert_true(dsc_schedule_beta2(&config, 7) == 0.75);
}

/* "auto" for the length of the schedule is the length of the run; unknown, the rate stays at its top. */
static void auto_total_is_the_run(void **state)
{
    (void)state;
    const char *text =
        "{\"train_batch_size\":1,\"optimizer\":{\"type\":\"Adam\",\"params\":{\"lr\":0.5}},\"scheduler\":{\"type\":"
        "\"WarmupDecayLR\",\"params\":{\"total_num_steps\":\"auto\",\"warmup_max_lr\":\"auto\",\"warmup_num_steps\":2}}"
        "}";
    parse("t", text, 12);
    assert_int_equal(config.schedule.total_num_steps, 12);
    assert_true(dsc_schedule_lr(&config, 4) == 0.5);     /* iteration 2 */
    assert_true(near(dsc_schedule_lr(&config, 9), 0.25)); /* iteration 7 of 2..12 */
    assert_true(dsc_schedule_lr(&config, 14) == 0.0);
    parse("t", text, 0);
    assert_true(config.schedule.total_num_steps == DSC_AUTO_I64);
    assert_true(dsc_schedule_lr(&config, 1000) == 0.5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates_as_deepspeed),
        cmocka_unit_test(rates_as_transformers),
        cmocka_unit_test(rates_as_torch),
        cmocka_unit_test(epochs_are_counted_in_steps),
        cmocka_unit_test(no_schedule_is_constant),
        cmocka_unit_test(auto_total_is_the_run),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
