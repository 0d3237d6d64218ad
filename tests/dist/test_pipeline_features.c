/* test_pipeline_features.c - features beside stages of a pipeline: each one has the bits of one stage on the same
 * data ranks, whatever the stage of ZeRO. Memory is the planned one, and a checkpoint loads at one stage.
 * SPDX-License-Identifier: Apache-2.0 */
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
#include "tests/support/tiny_gpt.h"
#include "tests/support/tiny_models.h"
#include "tests/support/tiny_run.h"

enum { PARTS = 4, MICRO_BATCH = 2 }; /* micro-batches of a step over all ranks of a stage, and their samples */

typedef struct grid {
    int32_t pipeline, data;
} grid;
static const grid grids[] = { { 2, 1 }, { 2, 2 }, { 4, 1 } };

/* A run's optimizer, and members of the config, of "dsc" and of "zero_optimization", from a comma on or empty. */
typedef struct feature {
    const char *optimizer, *members, *own, *zero;
} feature;

#define ADAMW "{\"type\": \"AdamW\", \"params\": {\"lr\": 0.003, \"weight_decay\": 0.1}}"

static void run(const dsc_model *model, const feature *f, grid g, int32_t stage, const run_options *base,
                run_result *out)
{
    char config[2048];
    run_options options = *base;
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": %d, \"gradient_accumulation_steps\": %d, \"optimizer\": %s,"
             " \"bf16\": {\"enabled\": true}, \"zero_optimization\": {\"stage\": %d, \"overlap_comm\": %s%s}%s,"
             " \"dsc\": {\"threads\": 1, \"device\": \"cpu\", \"comm_timeout_s\": 60, \"grid\": {\"pipeline\": %d}%s}}",
             MICRO_BATCH, PARTS / (int)g.data, f->optimizer, (int)stage, stage % 2 == 1 ? "true" : "false", f->zero,
             f->members, (int)g.pipeline, f->own);
    options.steps = options.steps != 0 ? options.steps : TINY_STEPS;
    run_model(model, tiny_gpt_data(model, 1 << 20), g.pipeline * g.data, config, &options, out);
    if (out->status != DSC_OK)
        fail_msg("%s: %s: %s", config, out->error.where, out->error.message);
}

/* Stages of ZeRO from `first` to `last`. */
static void expect_bits_of_one_stage(const dsc_model *model, const feature *f, int32_t first, int32_t last)
{
    for (size_t i = 0; i < DSC_COUNT(grids); i++) {
        const grid one = { 1, grids[i].data };
        run_result whole, staged;
        run(model, f, one, first, &(run_options) { 0 }, &whole);
        for (int32_t stage = first; stage <= last; stage++) {
            run(model, f, grids[i], stage, &(run_options) { .after = run_memory_is_planned }, &staged);
            run_expect_same(&whole, &staged);
            assert_int_equal(staged.alloc_calls_after_first, staged.alloc_calls_at_end);
        }
    }
}

/* A save by `from` continues at `to`. */
static void save_and_go_on(const dsc_model *model, const feature *f, int32_t stage, grid from, grid to,
                           run_result *first, run_result *second)
{
    char dir[] = "/tmp/dsc-pipeline-XXXXXX", command[64];
    assert_non_null(mkdtemp(dir));
    run(model, f, from, stage, &(run_options) { .steps = 3, .after = run_save, .user = dir }, first);
    run(model, f, to, stage, &(run_options) { .steps = 2, .before = run_load, .user = dir }, second);
    snprintf(command, sizeof command, "rm -r %s", dir);
    assert_int_equal(system(command), 0);
}

/* A save by stages continues at one stage, and the other way round, as one at one stage does. */
static void expect_saves_of_one_stage(const dsc_model *model, const feature *f, int32_t stage)
{
    const grid whole = { 1, 2 }, staged = { 2, 2 };
    run_result first, second, other[2];
    save_and_go_on(model, f, stage, whole, whole, &first, &second);
    for (int way = 0; way < 2; way++) {
        save_and_go_on(model, f, stage, way == 0 ? staged : whole, way == 0 ? whole : staged, &other[0], &other[1]);
        run_expect_same(&first, &other[0]);
        run_expect_same(&second, &other[1]);
    }
}

/* ---- optimizers ---- */

static void optimizers_have_the_bits_of_one_stage(void **state)
{
    static const struct {
        const char *text;
        int32_t last; /* stage of ZeRO */
    } rows[] = {
        { "{\"type\": \"Muon\", \"params\": {\"lr\": 0.003}}", 3 },
        { "{\"type\": \"Adafactor\", \"params\": {\"lr\": 0.003}}", 3 },
        { "{\"type\": \"LAMB\", \"params\": {\"lr\": 0.003}}", 3 },
        { "{\"type\": \"OneBitAdam\", \"params\": {\"lr\": 0.003, \"freeze_step\": 1}}", 0 },
        { "{\"type\": \"ZeroOneAdam\", \"params\": {\"lr\": 0.003, \"var_freeze_step\": 1}}", 0 },
        { "{\"type\": \"OneBitLamb\", \"params\": {\"lr\": 0.003, \"freeze_step\": 1}}", 0 },
    };
    dsc_model *model = tiny_model_open(tiny_models[0].config, NULL);
    for (size_t i = 0; i < DSC_COUNT(rows); i++) {
        const feature f = { rows[i].text, "", "", "" };
        expect_bits_of_one_stage(model, &f, 0, rows[i].last);
        expect_saves_of_one_stage(model, &f, rows[i].last);
    }
    dsc_model_close(&model);
}

/* The names of a group may all be in one stage. */
static void groups_of_parameters_are_of_all_stages(void **state)
{
    static const char groups[] = ", \"param_groups\": [{\"params\": [\"model.layers.0.*\"], \"lr_scale\": 0.1},"
                                 " {\"params\": [\"*norm*\"], \"weight_decay\": 0.5}]";
    dsc_model *model = tiny_model_open(tiny_models[0].config, NULL);
    expect_bits_of_one_stage(model, &(feature) { ADAMW, "", groups, "" }, 1, 3);
    dsc_model_close(&model);
}

/* ---- frozen weights ---- */

/* Frozen: all of the first of four stages, and of the last one; all but the last one. Adapters are in blocks alone. */
static void stages_without_trained_parameters(void **state)
{
    static const char *const frozen[] = { ", \"freeze\": [\"*embed*\", \"model.norm*\", \"lm_head*\"]",
                                          ", \"freeze\": [\"*embed*\", \"model.layers.*\"]" };
    dsc_model *model = tiny_model_open(tiny_models[1].config, NULL);
    for (size_t i = 0; i < DSC_COUNT(frozen); i++) {
        const feature f = { ADAMW, "", frozen[i], "" };
        expect_bits_of_one_stage(model, &f, 0, 3);
        expect_saves_of_one_stage(model, &f, 3);
    }
    dsc_model_close(&model);
    model = tiny_model_open(tiny_models[0].config, &tiny_lora);
    expect_bits_of_one_stage(model, &(feature) { ADAMW, "", "", "" }, 0, 3);
    expect_saves_of_one_stage(model, &(feature) { ADAMW, "", "", "" }, 2);
    dsc_model_close(&model);
}

/* ---- averages of weights ---- */

typedef struct evaluated {
    dsc_data_source data;
    double loss[8];
} evaluated;

/* Evaluates the averages and goes on from the weights. */
static dsc_status evaluate_and_go_on(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    evaluated *out = user;
    DSC_TRY(dsc_engine_evaluate(engine, &out->data, 0, &out->loss[rank], err));
    return dsc_engine_train_batch(engine, NULL, err);
}

static void averages_are_those_of_one_stage(void **state)
{
    static const feature f = { ADAMW, "", ", \"ema\": {\"decay\": 0.5}", "" };
    dsc_model *model = tiny_model_open(tiny_models[0].config, NULL);
    expect_bits_of_one_stage(model, &f, 0, 3);
    expect_saves_of_one_stage(model, &f, 2);
    for (size_t i = 0; i < DSC_COUNT(grids); i++) {
        const grid one = { 1, grids[i].data };
        evaluated whole = { .data = tiny_gpt_data(model, 9) }, staged = whole;
        run_result a, b;
        run(model, &f, one, 1, &(run_options) { .after = evaluate_and_go_on, .user = &whole }, &a);
        run(model, &f, grids[i], 3, &(run_options) { .after = evaluate_and_go_on, .user = &staged }, &b);
        run_expect_same(&a, &b);
        for (int32_t r = 0; r < grids[i].pipeline * grids[i].data; r++)
            assert_memory_equal(&whole.loss[0], &staged.loss[r], sizeof(double));
    }
    dsc_model_close(&model);
}

/* ---- states in host memory and files, packed transfers ---- */

static void offloaded_states_have_the_bits_of_one_stage(void **state)
{
    static const char *const rows[] = {
        ", \"offload_optimizer\": {\"device\": \"cpu\"}",
        ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}",
        ", \"offload_param\": {\"device\": \"cpu\"}",
        (", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}, \"offload_param\": {\"device\":"
         " \"nvme\", \"nvme_path\": \"%s\", \"max_in_cpu\": 0}, \"stage3_param_persistence_threshold\": 0"),
    };
    char dir[] = "/tmp/dsc-pipeline-XXXXXX";
    dsc_model *models[] = { tiny_model_open(tiny_models[1].config, NULL),
                            tiny_model_open(tiny_models[0].config, NULL) };
    assert_non_null(mkdtemp(dir));
    for (size_t i = 0; i < DSC_COUNT(rows); i++)
        for (size_t m = 0; m < (i < 3 ? 2 : 1); m++) { /* a tied table is not in files */
            char zero[512];
            snprintf(zero, sizeof zero, rows[i], dir, dir);
            const feature f = { ADAMW, "", m == 0 ? "" : ", \"micro_batches_together\": 2", zero };
            if (i < 2)
                expect_bits_of_one_stage(models[m], &f, 1, 2);
            else
                expect_bits_of_one_stage(models[m], &f, 3, 3);
            expect_saves_of_one_stage(models[m], &f, i < 2 ? 2 : 3);
        }
    for (size_t m = 0; m < DSC_COUNT(models); m++)
        dsc_model_close(&models[m]);
    assert_int_equal(rmdir(dir), 0);
}

/* Transfers of the data ranks of a stage. */
static void packed_transfers_have_the_bits_of_one_stage(void **state)
{
    static const struct {
        const char *own, *zero;
        int32_t first, last;
    } rows[] = {
        { ", \"gradient_compression\": \"int8\"", "", 0, 2 },
        { "", ", \"zero_quantized_gradients\": true", 2, 3 },
    };
    dsc_model *model = tiny_model_open(tiny_models[0].config, NULL);
    for (size_t i = 0; i < DSC_COUNT(rows); i++) {
        const feature f = { ADAMW, "", rows[i].own, rows[i].zero };
        expect_bits_of_one_stage(model, &f, rows[i].first, rows[i].last);
        expect_saves_of_one_stage(model, &f, rows[i].last);
    }
    dsc_model_close(&model);
}

/* ---- saves of nodes, traces ---- */

static void parts_of_nodes_are_saved(void **state)
{
    static const feature f = { ADAMW, ", \"checkpoint\": {\"use_node_local_storage\": true}", "", "" };
    dsc_model *model = tiny_model_open(tiny_models[0].config, NULL);
    expect_saves_of_one_stage(model, &f, 2);
    dsc_model_close(&model);
}

/* Modules of all stages are in the trace, under the ranks that have them. */
static void a_trace_has_all_stages(void **state)
{
    char path[] = "/tmp/dsc-pipeline-XXXXXX", own[128], text[1 << 16], *line;
    dsc_model *model = tiny_model_open(tiny_models[0].config, NULL);
    run_result out;
    bool forward[2] = { false, false }, backward[2] = { false, false };
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    snprintf(own, sizeof own, ", \"trace\": \"%s\"", path);
    run(model, &(feature) { ADAMW, "", own, "" }, (grid) { 2, 1 }, 1, &(run_options) { 0 }, &out);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while ((line = fgets(text, sizeof text, file)) != NULL)
        for (int rank = 0; rank < 2; rank++) {
            char pid[24];
            snprintf(pid, sizeof pid, "\"pid\":%d,", rank);
            const bool own_line = strstr(line, pid) != NULL;
            forward[rank] |= own_line && strstr(line, rank == 0 ? "embedding forward" : "head forward") != NULL;
            backward[rank] |= own_line && strstr(line, rank == 0 ? "embedding backward" : "h.1 backward") != NULL;
        }
    fclose(file);
    remove(path);
    assert_true(forward[0] && forward[1] && backward[0] && backward[1]);
    dsc_model_close(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(optimizers_have_the_bits_of_one_stage),
        cmocka_unit_test(groups_of_parameters_are_of_all_stages),
        cmocka_unit_test(stages_without_trained_parameters),
        cmocka_unit_test(averages_are_those_of_one_stage),
        cmocka_unit_test(offloaded_states_have_the_bits_of_one_stage),
        cmocka_unit_test(packed_transfers_have_the_bits_of_one_stage),
        cmocka_unit_test(parts_of_nodes_are_saved),
        cmocka_unit_test(a_trace_has_all_stages),
    };
    return cmocka_run_group_tests_name("features beside stages", tests, NULL, NULL);
}
