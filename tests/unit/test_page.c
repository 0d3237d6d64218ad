/* test_page.c - the parts of a run's page. Curves and the log have a bounded size, curves keep the mean, and a strict
 * reader accepts the JSON of any text of a run. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/formats/json.h"
#include "engine/monitor/http_api.h"
#include "engine/monitor/page.h"

static dsc_page page;
static char text[DSC_HTTP_PAGE_BYTES];
static const char hosts[DSC_MONITOR_RANKS_MAX][DSC_MONITOR_HOST_BYTES] = { "node\"1", "node2" };

static int setup(void **state)
{
    const dsc_monitor_about about = { .model = "a \"model\"", .transport = "shm", .device = "cpu", .numerics = "fp32",
                                      .zero_stage = 2, .ranks = 2, .batch = 8, .steps = 100, .hosts = hosts[0] };
    (void)state;
    memset(&page, 0, sizeof page);
    dsc_page_describe(&page, &about);
    return 0;
}

/* The caller closes both. */
static const cJSON *read_page(dsc_alloc **alloc, dsc_json **json)
{
    const dsc_json_limits limits = { DSC_HTTP_PAGE_BYTES, 8, 100000 };
    dsc_error err = DSC_ERROR_INIT;
    const size_t bytes = dsc_page_json(&page, text, sizeof text);
    assert_true(bytes > 0);
    assert_int_equal(dsc_alloc_open(alloc, &err), DSC_OK);
    if (dsc_json_open(*alloc, "run.json", text, (int64_t)bytes, DSC_JSON_STRICT, &limits, json, &err) != DSC_OK)
        fail_msg("%s: %s", err.where, err.message);
    return dsc_json_root(*json);
}

static void step(int64_t number, double loss)
{
    const dsc_scalar scalars[] = { { "Train/Samples/train_loss", loss }, { "Train/Samples/lr", 0.5 },
                                   { "Train/Samples/nobody_knows", 3 } };
    dsc_page_scalars(&page, 8 * number, scalars, DSC_COUNT(scalars));
}

static void test_long_runs_keep_their_mean(void **state)
{
    const dsc_page_series *loss = &page.series[DSC_PAGE_LOSS];
    (void)state;
    for (int64_t i = 1; i <= 10000; i++) {
        step(i, (double)i);
        assert_true(loss->count <= DSC_PAGE_POINTS);
    }
    double sum = loss->open_sum;
    for (int i = 0; i < loss->count; i++) {
        assert_true(i == 0 || loss->step[i] - loss->step[i - 1] == (double)loss->stride);
        sum += loss->value[i] * (double)loss->stride;
    }
    assert_true(fabs(sum - 10000.0 * 10001 / 2) < 1e-3);
    assert_int_equal(loss->count * loss->stride + loss->open_count, 10000);
    assert_true(loss->stride == 32 && loss->last == 10000 && page.step == 10000);
}

static void test_strict_json(void **state)
{
    const dsc_monitor_rank ranks[2] = { { 1.5, 10, 0.25, 100, { 400, 97, 50, NAN } },
                                        { .loss = NAN, .work_ms = INFINITY } };
    dsc_alloc *alloc;
    dsc_json *json;
    (void)state;
    step(1, 2.5);
    step(2, NAN);
    dsc_page_ranks(&page, ranks, 2);
    dsc_page_log(&page, DSC_LOG_WARNING, "a \"quoted\" \x1b[31mred\nline \xff");
    const cJSON *root = read_page(&alloc, &json);
    const cJSON *loss = cJSON_GetArrayItem(cJSON_GetObjectItem(root, "series"), DSC_PAGE_LOSS);
    const cJSON *value = cJSON_GetObjectItem(loss, "value");
    const cJSON *second = cJSON_GetArrayItem(cJSON_GetObjectItem(root, "rank"), 1);
    assert_int_equal(cJSON_GetArraySize(value), 2);
    assert_true(cJSON_GetArrayItem(value, 0)->valuedouble == 2.5 && cJSON_IsNull(cJSON_GetArrayItem(value, 1)));
    assert_true(cJSON_IsNull(cJSON_GetObjectItem(second, "loss")));
    assert_true(cJSON_IsNull(cJSON_GetObjectItem(second, "work_ms")));
    assert_string_equal(cJSON_GetObjectItem(second, "host")->valuestring, "node2");
    assert_string_equal(cJSON_GetObjectItem(root, "model")->valuestring, "a \"model\"");
    assert_int_equal(cJSON_GetObjectItem(root, "first_step")->valueint, 1);
    const char *line = cJSON_GetArrayItem(cJSON_GetObjectItem(root, "log"), 0)->valuestring;
    assert_memory_equal(line, "warning: a \"quoted\" ", 20);
    for (const char *at = line; *at != 0; at++)
        assert_true((unsigned char)*at >= 0x20);
    dsc_json_close(&json);
    dsc_alloc_close(&alloc);
}

static void test_the_worst_has_room(void **state)
{
    char line[1000];
    dsc_monitor_rank ranks[DSC_MONITOR_RANKS_MAX];
    dsc_alloc *alloc;
    dsc_json *json;
    (void)state;
    memset(line, '"', sizeof line - 1);
    line[sizeof line - 1] = 0;
    page.rank_count = 100000; /* more than are shown, or than there are hosts' names for */
    for (int i = 0; i < DSC_MONITOR_RANKS_MAX; i++)
        ranks[i] = (dsc_monitor_rank){ -1.23456e-300, -1.23456e-300, -1.23456e-300, -1.23456e-300,
                                       { -1.23456e-300, -1.23456e-300, -1.23456e-300, -1.23456e-300 } };
    dsc_page_ranks(&page, ranks, 100000);
    for (int64_t i = 1; i <= 3 * DSC_PAGE_POINTS; i++) {
        const dsc_scalar scalars[] = { { "Train/Samples/train_loss", -1.23456e-300 }, { "Train/Samples/lr", 1e-300 },
                                       { "Train/Samples/grad_norm", -1.23456e-300 },
                                       { "Train/Samples/tokens_per_second", 1.23456e300 },
                                       { "Validation/Samples/loss", -1.23456e-300 } };
        dsc_page_scalars(&page, INT64_C(1) << 53, scalars, DSC_COUNT(scalars));
        dsc_page_log(&page, DSC_LOG_ERROR, line);
    }
    const cJSON *root = read_page(&alloc, &json);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(root, "log")), DSC_PAGE_LINES);
    assert_int_equal(cJSON_GetArraySize(cJSON_GetObjectItem(root, "rank")), DSC_MONITOR_RANKS_MAX);
    dsc_json_close(&json);
    dsc_alloc_close(&alloc);
    assert_int_equal(dsc_page_json(&page, text, 1000), 0); /* no half documents */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_long_runs_keep_their_mean, setup),
        cmocka_unit_test_setup(test_strict_json, setup),
        cmocka_unit_test_setup(test_the_worst_has_room, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
