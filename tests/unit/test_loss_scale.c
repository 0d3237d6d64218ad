/* test_loss_scale.c - every scale against what DeepSpeed's own scaler went through (tests/golden/make_loss_scale.py).
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "engine/schedule/loss_scale.h"

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

/* `members` begins with "{". */
static void parse(const char *members)
{
    dsc_error err = DSC_ERROR_INIT;
    char text[1024];
    snprintf(text, sizeof text, "{\"train_batch_size\":1,%s", members + 1);
    if (dsc_config_parse(alloc, "t.json", text, (int64_t)strlen(text), NULL, 0, false, &config, &err) != DSC_OK)
        fail_msg("%s: %s", err.where, err.message);
}

static void as_deepspeed(void **state)
{
    (void)state;
    FILE *file = fopen("tests/golden/loss_scale.txt", "r");
    char line[1024];
    dsc_loss_scaler scaler = { 0 };
    bool went_on = true;
    int cases = 0, steps = 0, ends = 0;
    if (file == NULL)
        fail_msg("tests/golden/loss_scale.txt is not there: run from the repository's root");
    while (fgets(line, sizeof line, file) != NULL) {
        int overflow;
        double scale;
        if (line[0] == '{') {
            parse(line);
            dsc_loss_scaler_start(&config, &scaler);
            went_on = true;
            cases++;
        } else if (strcmp(line, "end\n") == 0) {
            assert_false(went_on);
            ends++;
        } else if (sscanf(line, "%d %lf", &overflow, &scale) == 2) {
            assert_true(went_on);
            if (scaler.scale != scale)
                fail_msg("case %d step %lld: %.17g, DeepSpeed %.17g", cases, (long long)scaler.step, scaler.scale,
                         scale);
            went_on = dsc_loss_scaler_next(&config, overflow != 0, &scaler);
            steps++;
        }
    }
    fclose(file);
    assert_true(cases == 11 && steps > 350 && ends == 3);
}

static void nothing_is_scaled_but_fp16(void **state)
{
    (void)state;
    dsc_loss_scaler scaler;
    parse("{\"bf16\":{\"enabled\":true}}");
    dsc_loss_scaler_start(&config, &scaler);
    for (int i = 0; i < 5; i++) {
        assert_true(scaler.scale == 1);
        assert_true(dsc_loss_scaler_next(&config, i % 2 == 0, &scaler));
    }
}

/* It stays an fp32 number, however long nothing overflows. */
static void growth_ends(void **state)
{
    (void)state;
    dsc_loss_scaler scaler;
    parse("{\"fp16\":{\"enabled\":true,\"loss_scale_window\":1}}");
    dsc_loss_scaler_start(&config, &scaler);
    for (int i = 0; i < 300; i++)
        assert_true(dsc_loss_scaler_next(&config, false, &scaler));
    assert_true(scaler.scale == 0x1p126);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(as_deepspeed), cmocka_unit_test(nothing_is_scaled_but_fp16),
                                        cmocka_unit_test(growth_ends) };
    return cmocka_run_group_tests(tests, setup, teardown);
}
