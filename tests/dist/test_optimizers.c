/* test_optimizers.c - every optimizer has equal bits at every stage, world size, placement and precision, and takes the
 * memory of its recipe. A run resumes from a checkpoint without a difference; the checkpoint of another optimizer is
 * refused. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/support/ckpt_world.h"
#include "tests/support/probe.h"
#include "tests/support/toy_run.h"

#define STEPS 4

typedef struct optimizer {
    const char *json; /* the section */
    int32_t moments;  /* states of an element beside its master */
    int32_t hidden;   /* and of a hidden matrix's */
} optimizer;

static const optimizer optimizers[] = {
    { "{\"type\": \"SGD\", \"params\": {\"lr\": 0.05, \"weight_decay\": 0.1}}", 0, 0 },
    { "{\"type\": \"SGD\", \"params\": {\"lr\": 0.05, \"momentum\": 0.9, \"dampening\": 0.25}}", 1, 1 },
    { "{\"type\": \"SGD\", \"params\": {\"lr\": 0.05, \"momentum\": 0.9, \"nesterov\": true,"
      " \"weight_decay\": 0.1}}", 1, 1 },
    { "{\"type\": \"Adagrad\", \"params\": {\"lr\": 0.02, \"lr_decay\": 0.1, \"weight_decay\": 0.01}}", 1, 1 },
    { "{\"type\": \"Lion\", \"params\": {\"lr\": 0.003, \"betas\": [0.9, 0.99], \"weight_decay\": 0.1}}", 1, 1 },
    { "{\"type\": \"AdamW\", \"params\": {\"lr\": 0.01, \"weight_decay\": 0.1}}", 2, 2 },
    { "{\"type\": \"Lamb\", \"params\": {\"lr\": 0.01, \"weight_decay\": 0.1, \"max_coeff\": 5}}", 2, 2 },
    { "{\"type\": \"Adafactor\", \"params\": {\"lr\": 0.02, \"weight_decay\": 0.1}}", 1, 0 },
    { "{\"type\": \"Adafactor\", \"params\": {\"lr\": 0.02, \"weight_decay\": 0.1, \"beta1\": 0.9, \"eps\": [1e-30, "
      "0.01],"
      " \"relative_step\": false}}",
      2, 1 },
    { "{\"type\": \"RMSprop\", \"params\": {\"lr\": 0.003, \"weight_decay\": 0.01}}", 1, 1 },
    { "{\"type\": \"RMSprop\", \"params\": {\"lr\": 0.003, \"alpha\": 0.9, \"momentum\": 0.9,"
      " \"centered\": true}}", 3, 3 },
    { "{\"type\": \"LARS\", \"params\": {\"lr\": 5, \"weight_decay\": 0.01, \"nesterov\": true}}", 1, 1 },
    { "{\"type\": \"Muon\", \"params\": {\"muon_lr\": 0.02, \"adam_lr\": 0.01, \"weight_decay\": 0.1}}", 2, 1 },
};

#define NVME ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"%s}"
typedef struct variant {
    const char *optimizer;
    int32_t world, stage, leaves; /* leaves of a step over all ranks */
    bool bf16, nvme;
    const char *ratio; /* a member of offload_optimizer, preceded by a comma */
    const char *own;   /* members of "dsc", each preceded by a comma */
} variant;

#define GROUPS                                                                                              \
    ", \"param_groups\": [{\"params\": [\"*.bias\", \"nothing.*\"], \"weight_decay\": 0, \"lr_scale\": 0.5}," \
    " {\"params\": [\"block.1.*\"], \"lr\": 0.02}]"

static void write_config(const variant *v, char *config, size_t room)
{
    char zero[1024] = "";
    if (v->nvme)
        snprintf(zero, sizeof zero, NVME, toy_run_folder, v->ratio != NULL ? v->ratio : "");
    snprintf(config, room,
             "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": %d, \"optimizer\": %s,"
             " \"gradient_clipping\": 0.5, \"bf16\": {\"enabled\": %s},"
             " \"zero_optimization\": {\"stage\": %d, \"sub_group_size\": 2048,"
             " \"stage3_param_persistence_threshold\": 0%s},"
             " \"dsc\": {\"threads\": 1, \"reproducible\": \"world_size\"%s}}",
             (int)(v->leaves / v->world), v->optimizer, v->bf16 ? "true" : "false", (int)v->stage, zero,
             v->own != NULL ? v->own : "");
}

static void run_variant(const variant *v, const run_options *more, run_result *out)
{
    char config[4096];
    write_config(v, config, sizeof config);
    toy_run(v->world, config, more, out);
}

static void run_plain(const variant *v, run_result *out)
{
    run_variant(v, &(run_options){ .steps = STEPS }, out);
}

static void expect_same(const run_result *a, const run_result *b, const variant *v)
{
    const bool same = b->status == DSC_OK && memcmp(a->loss, b->loss, STEPS * sizeof(double)) == 0 &&
                      memcmp(a->norm, b->norm, STEPS * sizeof(double)) == 0 && strcmp(a->hash, b->hash) == 0;
    if (!same)
        print_error("%s, stage %d, %d ranks, %s%s: %s: %s\n", v->optimizer, (int)v->stage, (int)v->world,
                    v->bf16 ? "bf16" : "fp32", v->nvme ? ", nvme" : "", b->error.where, b->error.message);
    assert_true(same);
}

/* Nothing else than what is planned, but for a few numbers that ranks agree on. */
static void expect_wire(const run_result *r, const variant *v)
{
    if (r->wire_bytes < r->wire_planned || r->wire_bytes > r->wire_planned + 4096)
        fail_msg("%s, stage %d, %d ranks: %lld bytes came in a step, %lld planned", v->optimizer, (int)v->stage,
                 (int)v->world, (long long)r->wire_bytes, (long long)r->wire_planned);
}

static void the_same_bits_everywhere(void **state)
{
    for (size_t o = 0; o < DSC_COUNT(optimizers); o++)
        for (int low = 0; low < 3; low++) { /* fp32, bf16, bf16 with moments in bf16 */
            run_result first, other;
            const char *own = low == 2 ? ", \"moments\": \"bf16\"" : NULL;
            variant v = { optimizers[o].json, 1, 0, 6, low > 0, false, NULL, own };
            if (low == 2 && optimizers[o].moments == 0)
                continue;
            run_plain(&v, &first);
            assert_int_equal(first.status, DSC_OK);
            assert_true(first.loss[STEPS - 1] != first.loss[0]);
            for (v.stage = 0; v.stage <= 3; v.stage++) {
                v.world = v.stage % 2 == 0 ? 3 : 2;
                run_plain(&v, &other);
                expect_same(&first, &other, &v);
                expect_wire(&other, &v);
                const int64_t each = low == 2 ? 2 : 4; /* a master has 4; in fp32 the parameters are the masters */
                if (low > 0 && optimizers[o].hidden == optimizers[o].moments)
                    assert_int_equal(other.state_bytes[3], optimizers[o].moments * other.state_bytes[2] / 4 * each);
                if (low > 0 && optimizers[o].hidden < optimizers[o].moments) {
                    assert_true(other.state_bytes[3] > optimizers[o].hidden * other.state_bytes[2] / 4 * each);
                    assert_true(other.state_bytes[3] < optimizers[o].moments * other.state_bytes[2] / 4 * each);
                }
                assert_true(other.tracked_peak <= other.planned + other.planned / 100);
            }
            v.nvme = true;
            for (v.stage = 1; v.stage <= 3; v.stage += 2) {
                v.world = v.stage;
                v.ratio = v.stage == 3 ? ", \"ratio\": 0.5" : NULL;
                run_plain(&v, &other);
                expect_same(&first, &other, &v);
                assert_true(other.tracked_peak <= other.planned + other.planned / 100);
            }
        }
}

/* Planned alone, without anything opened, as `dsc plan` does. */
static int64_t planned_alone(const char *config, int32_t world)
{
    dsc_engine *engine = NULL;
    dsc_error err = DSC_ERROR_INIT;
    dsc_engine_stats stats = DSC_ENGINE_STATS_INIT;
    dsc_engine_options options = DSC_ENGINE_OPTIONS_INIT;
    options.flags = DSC_ENGINE_PLAN_ONLY;
    options.config_text = config;
    options.model = toy_run_model;
    options.plan_world_size = world;
    assert_int_equal(dsc_engine_open(&engine, &options, &err), DSC_OK);
    dsc_engine_stats_get(engine, &stats);
    dsc_engine_close(&engine);
    return stats.planned_bytes;
}

/* The plan also contains an optimizer's working buffers: nearly all memory of a run is planned. */
static void plans_have_all_that_runs_take(void **state)
{
    int64_t tables = 0;
    for (size_t o = 0; o < DSC_COUNT(optimizers); o++) {
        run_result r;
        char config[4096];
        const variant v = { optimizers[o].json, 1, 1, 6, true, false, NULL, NULL };
        run_plain(&v, &r);
        assert_int_equal(r.status, DSC_OK);
        write_config(&v, config, sizeof config);
        const int64_t planned = planned_alone(config, v.world);
        if (o == 0) /* SGD needs nothing: what small tables of any run take */
            tables = r.planned - planned;
        if (planned < r.planned - r.planned / 64 || llabs(r.planned - planned - tables) > 4096)
            fail_msg("%s: %lld bytes planned, %lld taken", v.optimizer, (long long)planned, (long long)r.planned);
    }
}

/* Rates and decays by name: the classes of a group change inside its tiles and slices. */
static void groups_have_the_same_bits(void **state)
{
    for (size_t o = 2; o < DSC_COUNT(optimizers); o++) {
        run_result none, first, other;
        variant v = { optimizers[o].json, 1, 0, 6, o % 2 == 0, false, NULL, NULL };
        run_plain(&v, &none);
        v.own = GROUPS;
        run_plain(&v, &first);
        assert_int_equal(first.status, DSC_OK);
        assert_string_not_equal(first.hash, none.hash);
        for (v.stage = 1; v.stage <= 3; v.stage++) {
            v.world = v.stage == 2 ? 3 : 2;
            v.nvme = v.stage == 3;
            run_plain(&v, &other);
            expect_same(&first, &other, &v);
        }
    }
}

static void refused(const char *own, const char *word)
{
    run_result r;
    const variant v = { optimizers[5].json, 2, 1, 6, false, false, NULL, own };
    run_plain(&v, &r);
    assert_int_equal(r.status, DSC_ERR_CONFIG);
    if (strstr(r.error.message, word) == NULL)
        fail_msg("%s: \"%s\" is not in: %s", own, word, r.error.message);
}

#define BIASES_DECAY "\"param_groups\": [{\"params\": [\"*.bias\"], \"weight_decay\": 0.5}]"

/* The decay that a group gives to vectors stays. The toy model's vectors have none otherwise.
 * tests/cli/vision_shapes.py compares a model whose vectors decay. */
static void a_group_may_decay_vectors(void **state)
{
    run_result both, by_group, none;
    variant v = { optimizers[5].json, 2, 1, 6, false, false, NULL, ", \"decay_vectors\": false, " BIASES_DECAY };
    run_plain(&v, &both);
    v.own = ", " BIASES_DECAY;
    run_plain(&v, &by_group);
    expect_same(&both, &by_group, &v);
    v.own = ", \"decay_vectors\": false";
    run_plain(&v, &none);
    assert_string_not_equal(both.hash, none.hash);
}

static void groups_that_make_no_sense(void **state)
{
    refused(", \"param_groups\": [{\"params\": \"*.biass\", \"lr\": 1}]", "gets no parameter");
    refused(", \"param_groups\": [{\"params\": \"*\"}, {\"params\": \"*.bias\", \"weight_decay\": 0}]",
            "group 2 (\"*.bias\")");
    refused(", \"param_groups\": [{\"params\": \"*.scale\"}]", "gets no parameter"); /* frozen */
    refused(", \"param_groups\": [{\"weight_decay\": 0}]", "names its parameters");
    refused(", \"param_groups\": [{\"params\": []}]", "names its parameters");
    refused(", \"param_groups\": [{\"params\": [3]}]", "a name or a list of names");
    refused(", \"param_groups\": [\"*.bias\"]", "a group is an object");
    refused(", \"param_groups\": [{\"params\": \"*\", \"lr\": 1, \"lr_scale\": 1}]", "keep one");
    refused(", \"param_groups\": [{\"params\": \"*\", \"lr\": -1}]", "from 0 to 1e9");
    refused(", \"param_groups\": [{\"params\": \"*\", \"weight_decay\": \"x\"}]", "from 0 to 1e9");
    refused(", \"param_groups\": [{\"params\": \"*\", \"betas\": [0, 0]}]", "is not a member of a group");
}

/* ---- checkpoints ---- */

/* Beside training, where the config asks for it. */
static dsc_status save(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    if (!dsc_probe_has_snapshot(engine))
        return dsc_engine_save(engine, user, err);
    DSC_TRY(dsc_engine_save_start(engine, user, err));
    return dsc_engine_save_wait(engine, NULL, err);
}

static dsc_status load(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    return dsc_engine_load(engine, user, err);
}

static void runs_go_on(void **state)
{
    for (size_t o = 0; o < DSC_COUNT(optimizers); o++) {
        run_result whole, half, rest;
        char dir[600];
        snprintf(dir, sizeof dir, "%s/ckpt", toy_run_folder);
        variant v = { optimizers[o].json, 2, 1, 6, o % 2 == 0, false, NULL, NULL };
        run_variant(&v, &(run_options){ .steps = 2 * STEPS }, &whole);
        assert_int_equal(whole.status, DSC_OK);
        v.own = o % 3 == 1 ? ", \"save_async\": true" : NULL;
        run_variant(&v, &(run_options) { .steps = STEPS, .after = save, .user = dir }, &half);
        v.own = NULL;
        assert_int_equal(half.status, DSC_OK);
        v.world = 3;
        v.stage = 3;
        v.nvme = true;
        run_variant(&v, &(run_options){ .steps = STEPS, .before = load, .user = dir }, &rest);
        assert_int_equal(rest.status, DSC_OK);
        assert_memory_equal(rest.loss, whole.loss + STEPS, STEPS * sizeof(double));
        assert_string_equal(rest.hash, whole.hash);
        v.optimizer = optimizers[o == 0 ? 1 : 0].json;
        run_variant(&v, &(run_options){ .steps = STEPS, .before = load, .user = dir }, &rest);
        assert_int_equal(rest.status, DSC_ERR_INPUT);
        assert_non_null(strstr(rest.error.message, "begin from the weights"));
        cw_remove(dir);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_same_bits_everywhere),
        cmocka_unit_test(plans_have_all_that_runs_take),
        cmocka_unit_test(groups_have_the_same_bits),
        cmocka_unit_test(a_group_may_decay_vectors),
        cmocka_unit_test(groups_that_make_no_sense),
        cmocka_unit_test(runs_go_on),
    };
    return cmocka_run_group_tests(tests, toy_run_open, toy_run_close);
}
