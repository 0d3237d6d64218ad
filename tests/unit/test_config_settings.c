/* test_config_settings.c - the settings that a checkpoint keeps. An edit of a value that changes numbers changes its
 * own line alone. An edit of any other value changes no line. SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/config_case.h"

#include <stdlib.h>

static char *settings_of(const char *fragment)
{
    char *lines = NULL;
    parse_ok(around(fragment));
    assert_int_equal(dsc_config_settings(alloc, &config, &lines, &err), DSC_OK);
    return lines;
}

/* Lines of `a` that `b` has not, with blanks for tabs and ends. */
static void lines_missing(const char *a, const char *b, char *out, size_t out_bytes)
{
    size_t used = 0;
    out[0] = 0;
    while (*a != 0) {
        const size_t bytes = strcspn(a, "\n") + 1;
        char *line = strndup(a, bytes);
        const char *found = strstr(b, line);
        if (found == NULL || (found != b && found[-1] != '\n'))
            used += (size_t)snprintf(out + used, out_bytes - used, "%s", line);
        free(line);
        a += bytes;
    }
    for (char *c = out; *c != 0; c++)
        *c = *c == '\n' ? ';' : *c == '\t' ? '=' : *c;
}

static void each_edit_is_named_with_both_values(void **state)
{
    (void)state;
#define ADAMW(params) "\"optimizer\":{\"type\":\"AdamW\",\"params\":{" params "}}"
#define SCHEDULE(type, params) "\"scheduler\":{\"type\":\"" type "\",\"params\":{" params "}}"
    static const struct { const char *saved, *now, *gone, *come;
    } cases[] = {
        { ADAMW("\"lr\":1e-3"), ADAMW("\"lr\":1e-5"), "optimizer.params.lr=0.001;", "optimizer.params.lr=1e-05;" },
        { ADAMW("\"lr\":0.1"), ADAMW("\"lr\":0.10000000000000001"), "", "" },
        { ADAMW("\"betas\":[0.9,0.95]"), ADAMW("\"betas\":[0.9,0.999]"), "optimizer.params.betas=[0.9,0.95];",
          "optimizer.params.betas=[0.9,0.999];" },
        { ADAMW("\"weight_decay\":0.1"), ADAMW("\"weight_decay\":0"), "optimizer.params.weight_decay=0.1;",
          "optimizer.params.weight_decay=0;" },
        { ADAMW("\"eps\":1e-8"), ADAMW("\"eps\":1e-6"), "optimizer.params.eps=1e-08;", "optimizer.params.eps=1e-06;" },
        { ADAMW("\"bias_correction\":true"), ADAMW("\"bias_correction\":false"),
          "optimizer.params.bias_correction=true;", "optimizer.params.bias_correction=false;" },
        { "\"optimizer\":{\"type\":\"Muon\",\"params\":{\"ns_steps\":5}}",
          "\"optimizer\":{\"type\":\"Muon\",\"params\":{\"ns_steps\":6}}", "optimizer.params.ns_steps=5;",
          "optimizer.params.ns_steps=6;" },
        { SCHEDULE("WarmupDecayLR", "\"total_num_steps\":10"), SCHEDULE("WarmupDecayLR", "\"total_num_steps\":20"),
          "scheduler.params.total_num_steps=10;", "scheduler.params.total_num_steps=20;" },
        { SCHEDULE("WarmupDecayLR", "\"total_num_steps\":\"auto\"") ",\"dsc\":{\"steps\":10}",
          SCHEDULE("WarmupDecayLR", "\"total_num_steps\":\"auto\"") ",\"dsc\":{\"steps\":20}",
          "scheduler.params.total_num_steps=10;", "scheduler.params.total_num_steps=20;" },
        { SCHEDULE("WarmupLR", "\"warmup_num_steps\":4"), SCHEDULE("WarmupLR", "\"warmup_num_steps\":8"),
          "scheduler.params.warmup_num_steps=4;", "scheduler.params.warmup_num_steps=8;" },
        { SCHEDULE("WarmupLR", "\"warmup_type\":\"log\""), SCHEDULE("WarmupLR", "\"warmup_type\":\"linear\""),
          "scheduler.params.warmup_type=log;", "scheduler.params.warmup_type=linear;" },
        { "\"dsc\":{\"lr_schedule\":\"cosine\",\"steps\":10}", "\"dsc\":{\"lr_schedule\":\"cosine\",\"steps\":20}",
          "steps of dsc.lr_schedule=10;", "steps of dsc.lr_schedule=20;" },
        { "\"dsc\":{\"lr_schedule\":\"cosine\",\"steps\":10}", "\"dsc\":{\"lr_schedule\":\"linear\",\"steps\":10}",
          "dsc.lr_schedule=cosine;", "dsc.lr_schedule=linear;" },
        { "\"gradient_clipping\":1", "\"gradient_clipping\":0.5", "gradient_clipping=1;", "gradient_clipping=0.5;" },
        { "\"prescale_gradients\":false", "\"prescale_gradients\":true", "prescale_gradients=false;",
          "prescale_gradients=true;" },
        { "\"gradient_allreduce_op\":\"mean\"", "\"gradient_allreduce_op\":\"sum\"", "gradient_allreduce_op=mean;",
          "gradient_allreduce_op=sum;" },
        { "\"bf16\":{\"enabled\":true}", "\"bf16\":{\"enabled\":true},\"communication_data_type\":\"fp32\"", "",
          "communication_data_type=fp32;" },
        { "\"fp16\":{\"enabled\":true}", "\"fp16\":{\"enabled\":true,\"loss_scale\":128}", "fp16.loss_scale=0;",
          "fp16.loss_scale=128;" },
        { "\"dsc\":{\"head_chunk_bytes\":0}", "\"dsc\":{\"head_chunk_bytes\":67108864}", "",
          "dsc.head_chunk_bytes=67108864;" },
        { "\"dsc\":{\"gradients\":\"fp32\"}", "\"dsc\":{\"gradients\":\"bf16\"}", "dsc.gradients=fp32;",
          "dsc.gradients=bf16;" },
        { "\"bf16\":{\"enabled\":true}", "\"bf16\":{\"enabled\":true},\"dsc\":{\"fp8\":{\"enabled\":true}}", "",
          "dsc.fp8.enabled=true;dsc.fp8.format=hybrid;dsc.fp8.fast_sums=forward;" },
        { "\"dsc\":{\"freeze\":\"a*\"}", "\"dsc\":{\"freeze\":[\"a*\",\"b\"]}", "dsc.freeze=a*;", "dsc.freeze=a*, b;" },
        { "\"dsc\":{\"data\":\"a.txt\"}", "\"dsc\":{\"data\":[\"a.txt\",\"b.txt\"],\"data_weights\":[1,2]}",
          "dsc.data=a.txt;dsc.data_weights=;", "dsc.data=a.txt, b.txt;dsc.data_weights=1, 2;" },
        { "\"dsc\":{\"param_groups\":[{\"params\":\"a\",\"weight_decay\":0}]}", "\"seed\":1",
          "dsc.param_groups={a lr_scale 1 weight_decay 0};", "dsc.param_groups=;" },
        { "\"dsc\":{\"sft\":{}}", "\"dsc\":{\"sft\":{\"packing\":false}}", "dsc.sft.packing=true;",
          "dsc.sft.packing=false;" },
        { "\"dsc\":{\"sft\":{}}", "\"dsc\":{\"sft\":{\"train_on\":[\"user\",\"assistant\"]}}", "dsc.sft.train_on=;",
          "dsc.sft.train_on=user, assistant;" },
        { "\"dsc\":{\"sft\":{}}", "\"dsc\":{\"sft\":{\"over_long\":\"drop\"}}", "dsc.sft.over_long=truncate;",
          "dsc.sft.over_long=drop;" },
        { "\"dsc\":{\"sft\":{}}", "\"dsc\":{\"sft\":{\"columns\":{\"prompt\":\"q\"}}}",
          "dsc.sft.columns.prompt=prompt;", "dsc.sft.columns.prompt=q;" },
        { "\"dsc\":{\"mlm\":{\"probability\":0.15}}", "\"dsc\":{\"mlm\":{\"probability\":0.3}}",
          "dsc.mlm.probability=0.15;", "dsc.mlm.probability=0.3;" },
    };
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        char gone[1024], come[1024];
        char *saved = settings_of(cases[i].saved), *now = settings_of(cases[i].now);
        lines_missing(saved, now, gone, sizeof gone);
        lines_missing(now, saved, come, sizeof come);
        if (strcmp(gone, cases[i].gone) != 0 || strcmp(come, cases[i].come) != 0)
            fail_msg("%s\n  to %s\n  gone: %s\n  come: %s", cases[i].saved, cases[i].now, gone, come);
        dsc_alloc_free(alloc, now);
        dsc_alloc_free(alloc, saved);
    }
}

static void settings_that_change_no_bit_are_not_kept(void **state)
{
    (void)state;
    static const char *const others[] = {
        "\"zero_optimization\":{\"stage\":3,\"reduce_bucket_size\":1000,\"sub_group_size\":5000}",
        "\"zero_optimization\":{\"stage\":2,\"offload_optimizer\":{\"device\":\"cpu\"}}",
        "\"dsc\":{\"save\":\"x\",\"save_every\":2,\"keep_last\":1,\"steps\":50,\"log\":\"l\",\"threads\":2}",
        "\"steps_per_print\":7,\"wall_clock_breakdown\":true,\"dsc\":{\"recompute\":\"full\"}",
    };
    char *base = settings_of("\"seed\":1");
    for (size_t i = 0; i < DSC_COUNT(others); i++) {
        char *other = settings_of(others[i]);
        assert_string_equal(other, base);
        dsc_alloc_free(alloc, other);
    }
    dsc_alloc_free(alloc, base);
}

/* A line has a bound, and a difference behind it shows as another hash. */
static void long_values_differ_by_their_hash(void **state)
{
    (void)state;
    char fragment[2][2048], gone[1024];
    for (int n = 0; n < 2; n++) {
        size_t used = (size_t)snprintf(fragment[n], sizeof fragment[n], "\"dsc\":{\"data\":[");
        for (int i = 0; i < 40; i++)
            used += (size_t)snprintf(fragment[n] + used, sizeof fragment[n] - used,
                                     "\"folder/of/a/file.%02d.txt\",", i);
        snprintf(fragment[n] + used, sizeof fragment[n] - used, "\"last.%d\"]}", n);
    }
    char *a = settings_of(fragment[0]), *b = settings_of(fragment[1]);
    lines_missing(a, b, gone, sizeof gone);
    assert_memory_equal(gone, "dsc.data=folder/of/a/file.00.txt, ", 34);
    assert_non_null(strstr(gone, "...#"));
    assert_true(strlen(gone) < DSC_SETTING_LINE_BYTES);
    dsc_alloc_free(alloc, a);
    dsc_alloc_free(alloc, b);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(each_edit_is_named_with_both_values),
        TEST(settings_that_change_no_bit_are_not_kept),
        TEST(long_values_differ_by_their_hash),
    };
    return cmocka_run_group_tests_name("config_settings", tests, NULL, NULL);
}
