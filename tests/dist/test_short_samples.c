/* test_short_samples.c - curriculum learning: a step's samples are cut, and the rest of the step uses the short length.
 * The bits are those of a model opened for short samples. They are equal at every stage and placement, for any number
 * of ranks with "world_size", and after a resume. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/base.h"
#include "tests/support/run_world.h"

#define STEPS 4
#define LONG 72
#define SHORT 40
#define CURRICULUM(type, schedule) "\"curriculum_learning\": {\"enabled\": true, \"min_difficulty\": 8, " \
    "\"max_difficulty\": 72, \"schedule_type\": \"" type "\", \"schedule_config\": " schedule "}, "
#define ALWAYS_SHORT CURRICULUM("fixed_discrete", "{\"difficulty\": [40, 40], \"max_step\": [2]}")
#define GROWING CURRICULUM("fixed_linear", "{\"total_curriculum_step\": 3, \"difficulty_step\": 8}") /* 24 48 72 72 */

static char folder[512], saves[600];

typedef struct samples {
    int64_t length;
    bool masked;
} samples;

/* Samples of LONG tokens, or the first SHORT ones of each. Masked ones have their counted targets in the first half. */
static dsc_status fill(void *user, int64_t first, int64_t count, void *const *out, dsc_error *err)
{
    const samples *kind = user;
    const int64_t length = kind->length;
    for (int64_t s = 0; s < count; s++)
        for (int64_t t = 0; t <= length; t++) {
            const int32_t token = (int32_t)(((first + s) * 7919 + t * t * 31 + t * 3) % 97);
            if (t < length)
                ((int32_t *)out[0])[s * length + t] = token;
            const bool masked = kind->masked && (t > SHORT || (first + s + t) % 3 == 0);
            if (t > 0)
                ((int32_t *)out[1])[s * length + t - 1] = masked ? -1 : token;
        }
    return DSC_OK;
}

typedef struct variant {
    int32_t world, stage, accumulation;
    int64_t length;
    const char *head, *zero, *own; /* members */
    bool masked;
} variant;

static void run_variant(const variant *v, dsc_status (*before)(dsc_engine *, int32_t, void *, dsc_error *),
                        run_result *out)
{
    samples kind = { v->length, v->masked };
    char config[4096], zero[1536];
    snprintf(zero, sizeof zero, v->zero, folder, folder);
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": %d, %s"
             " \"bf16\": {\"enabled\": true}, \"gradient_clipping\": 0.5,"
             " \"zero_optimization\": {\"stage\": %d%s},"
             " \"dsc\": {\"threads\": 1, \"model\": \"gpt2-nano\", \"seq_length\": %d%s}}",
             (int)v->accumulation, v->head, (int)v->stage, zero, (int)v->length, v->own);
    const run_options options = { .world = v->world,
                                  .steps = STEPS,
                                  .config = config,
                                  .fault_rank = -1,
                                  .data = { fill, &kind, 1 << 20 },
                                  .before = before };
    run_world(&options, out);
    if (out->status != DSC_OK)
        print_error("%s: %s\n", out->error.where, out->error.message);
}

static void expect_run(const variant *v, run_result *out)
{
    run_variant(v, NULL, out);
    assert_int_equal(out->status, DSC_OK);
    assert_true(out->tracked_peak <= out->planned + out->planned / 100);
    assert_int_equal(out->alloc_calls_after_first, out->alloc_calls_at_end);
}

static bool same(const run_result *a, const run_result *b)
{
    return memcmp(a->loss, b->loss, STEPS * sizeof(double)) == 0 &&
           memcmp(a->norm, b->norm, STEPS * sizeof(double)) == 0 && strcmp(a->hash, b->hash) == 0;
}

static void cut_samples_are_short_ones(void **state)
{
    for (int masked = 0; masked < 2; masked++) {
        run_result cut, brief, whole;
        variant v = { 2, 3, 2, LONG, ALWAYS_SHORT, "", "", masked != 0 };
        expect_run(&v, &cut);
        v.head = "";
        expect_run(&v, &whole);
        assert_false(same(&cut, &whole));
        v.length = SHORT;
        expect_run(&v, &brief);
        assert_true(same(&cut, &brief));
    }
}

static void the_bits_are_the_same_everywhere(void **state)
{
    static const struct { int32_t world, stage, accumulation; const char *zero, *own;
    } ways[] = {
        { 2, 0, 3, "", "" },
        { 3, 2, 2, "", ", \"recompute\": \"full\"" },
        { 1, 3, 6, ", \"overlap_comm\": true", "" },
        { 2, 3, 3,
          ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"},"
          " \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}",
          "" },
        { 2, 1, 6, "", ", \"grid\": {\"pipeline\": 2}" },
        { 4, 3, 3, "", ", \"grid\": {\"pipeline\": 2}, \"recompute\": \"full\"" },
    };
    run_result first, other;
    for (size_t i = 0; i < DSC_COUNT(ways); i++) {
        char own[256];
        snprintf(own, sizeof own, ", \"reproducible\": \"world_size\"%s", ways[i].own);
        const variant v = {
            ways[i].world, ways[i].stage, ways[i].accumulation, LONG, GROWING, ways[i].zero, own, true
        };
        expect_run(&v, i == 0 ? &first : &other);
        assert_true(i == 0 || same(&first, &other));
    }
}

static dsc_status train_and_save(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    static const int64_t tokens[] = { 24, 48 };
    for (int s = 0; s < 2; s++) {
        dsc_step_result result = DSC_STEP_RESULT_INIT;
        DSC_TRY(dsc_engine_train_batch(engine, &result, err));
        if (result.seq_length != tokens[s] || result.tokens != 4 * tokens[s])
            return DSC_FAIL(err, DSC_ERR_STATE, "", "step %d had %lld tokens", s + 1, (long long)result.tokens);
    }
    return dsc_engine_save(engine, saves, err);
}

static dsc_status load_saved(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    return dsc_engine_load(engine, saves, err);
}

static void a_resumed_run_goes_on_where_it_was(void **state)
{
    char command[700];
    run_result went_on, resumed;
    const variant v = { 2, 1, 1, LONG, GROWING, "", "", false };
    snprintf(saves, sizeof saves, "%s/curriculum-%d", folder, (int)getpid());
    run_variant(&v, train_and_save, &went_on);
    run_variant(&v, load_saved, &resumed);
    snprintf(command, sizeof command, "rm -rf '%s'", saves);
    assert_int_equal(system(command), 0);
    assert_int_equal(went_on.status, DSC_OK);
    assert_int_equal(resumed.status, DSC_OK);
    assert_true(same(&went_on, &resumed));
}

static dsc_status give_a_batch(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    static int32_t tokens[2 * LONG];
    const void *const batch[2] = { tokens, tokens };
    return dsc_engine_forward(engine, batch, NULL, err);
}

static void short_samples_are_refused_where_a_model_cannot_be_truncated(void **state)
{
    run_result out;
    variant v = { 1, 0, 1, LONG, ALWAYS_SHORT, "", "", false };
    run_variant(&v, give_a_batch, &out);
    assert_int_equal(out.status, DSC_ERR_STATE);
    assert_non_null(strstr(out.error.message, "data source"));
    v.own = ", \"cuda_graphs\": true";
    run_variant(&v, NULL, &out);
    assert_int_equal(out.status, DSC_ERR_UNSUPPORTED);
    assert_string_equal(out.error.where, "curriculum_learning");
    v.own = "";
    v.head = CURRICULUM("fixed_linear", "{\"total_curriculum_step\": 3, \"difficulty_step\": 0}");
    run_variant(&v, NULL, &out);
    assert_int_equal(out.status, DSC_ERR_UNSUPPORTED);
    assert_non_null(strstr(out.error.message, "difficulty_step"));
}

int main(void)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s", tmp != NULL ? tmp : "/tmp");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cut_samples_are_short_ones),
        cmocka_unit_test(the_bits_are_the_same_everywhere),
        cmocka_unit_test(a_resumed_run_goes_on_where_it_was),
        cmocka_unit_test(short_samples_are_refused_where_a_model_cannot_be_truncated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
