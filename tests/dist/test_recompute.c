/* test_recompute.c - every level of "recompute" gives the same losses and states: all families, adapters and samples of
 * several documents, at every stage. The plan has the bytes that a level keeps. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "tests/support/tiny_gpt.h"
#include "tests/support/tiny_models.h"
#include "tests/support/tiny_run.h"

static const char gpt2[] = "{\"model_type\": \"gpt2\", \"vocab_size\": 61, \"n_positions\": 16, \"n_embd\": 64,"
                           " \"n_head\": 4, \"n_layer\": 2}";

/* Documents of five tokens, and at a sample's end what is left. */
static dsc_status fill_documents(void *user, int64_t first_sample, int64_t count, void *const *data, dsc_error *err)
{
    const dsc_model *model = user;
    const dsc_data_source plain = tiny_gpt_data(model, 1);
    DSC_TRY(plain.fill(plain.user, first_sample, count, data, err));
    for (int64_t i = 0; i < count * model->seq_length; i++)
        ((int32_t *)data[2])[i] = (int32_t)(i % model->seq_length % 5);
    return DSC_OK;
}

static dsc_model *open_with_documents(const char *config)
{
    char path[] = "/tmp/dsc-test-recompute-XXXXXX.json";
    const int fd = mkstemps(path, 5);
    dsc_model_options options = DSC_MODEL_OPTIONS_INIT;
    dsc_model *model = NULL;
    assert_true(fd >= 0);
    assert_true(dprintf(fd, "%s", config) > 0);
    close(fd);
    options.documents = true;
    assert_int_equal(dsc_model_open(&model, path, &options, NULL), DSC_OK);
    unlink(path);
    return model;
}

/* Stage 0 at "none", then each level at each stage; every second stage with both micro-batches in one group. */
static void levels_agree(const char *name, const dsc_model *model, dsc_data_source data, bool bf16)
{
    static const char together[] = ", \"micro_batches_together\": 2";
    run_result first, other;
    run_options options = { .data = data };
    tiny_run(model, &(tiny_variant) { "cpu", 2, 0, 2, bf16, false, DSC_RECOMPUTE_NONE, NULL }, &options, &first);
    for (int32_t stage = 0; stage <= 3; stage++)
        for (int level = DSC_RECOMPUTE_KEPT; level <= DSC_RECOMPUTE_FULL; level++) {
            const char *own = (stage + level) % 2 == 0 ? together : NULL;
            printf("# %s, stage %d, %s\n", name, (int)stage, dsc_recompute_text((dsc_recompute)level));
            tiny_run(model, &(tiny_variant) { "cpu", 2, stage, 2, bf16, stage % 2 == 0, (dsc_recompute)level, own },
                     &options, &other);
            run_expect_same(&first, &other);
            assert_true(other.tracked_peak <= other.planned);
            assert_int_equal(other.alloc_calls_after_first, other.alloc_calls_at_end);
        }
}

static void families(void **state)
{
    for (size_t i = 0; i < DSC_COUNT(tiny_models); i++) {
        dsc_model *model = tiny_model_open(tiny_models[i].config, tiny_models[i].lora);
        levels_agree(tiny_models[i].name, model, tiny_gpt_data(model, 1 << 20), i % 2 == 0);
        dsc_model_close(&model);
    }
    dsc_model *model = tiny_model_open(gpt2, NULL);
    levels_agree("gpt2", model, tiny_gpt_data(model, 1 << 20), true);
    dsc_model_close(&model);
}

static void documents(void **state)
{
    const char *const configs[] = { gpt2, tiny_models[0].config };
    for (size_t i = 0; i < DSC_COUNT(configs); i++) {
        dsc_model *model = open_with_documents(configs[i]);
        const dsc_data_source data = { .fill = fill_documents, .user = model, .sample_count = 1 << 20 };
        levels_agree("documents", model, data, i == 0);
        dsc_model_close(&model);
    }
}

/* GPT-2's block: outputs of two norms and the activation, R (2C + I) numbers, and 4 R statistics in fp32. */
static void kept_values_are_planned(void **state)
{
    dsc_model *model = tiny_model_open(gpt2, NULL);
    run_result none, kept;
    const int64_t rows = TINY_MICRO_BATCH * 16, block = rows * (2 * 64 + 256) * 2 + 4 * rows * 4;
    for (int32_t together = 1; together <= 2; together++) {
        const char *own = together == 2 ? ", \"micro_batches_together\": 2" : NULL;
        tiny_variant v = { "cpu", 1, 1, 2, true, false, DSC_RECOMPUTE_NONE, own };
        tiny_run(model, &v, &(run_options) { 0 }, &none);
        v.recompute = DSC_RECOMPUTE_KEPT;
        tiny_run(model, &v, &(run_options) { 0 }, &kept);
        assert_int_equal(kept.planned - none.planned, 2 * together * block);
        assert_int_equal(kept.tracked_peak - none.tracked_peak, 2 * together * block);
    }
    dsc_model_close(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families),
        cmocka_unit_test(documents),
        cmocka_unit_test(kept_values_are_planned),
    };
    return cmocka_run_group_tests_name("recompute", tests, NULL, NULL);
}
