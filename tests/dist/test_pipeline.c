/* test_pipeline.c - stages of modules on ranks of their own: losses, norms and states have the bits of one rank,
 * whatever the grid, the stage of ZeRO and the schedule. Memory is the planned one. Messages that are missing or wrong
 * are seen, and what several stages do not do is refused. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "tests/support/probe.h"
#include "tests/support/tiny_gpt.h"
#include "tests/support/tiny_models.h"
#include "tests/support/tiny_run.h"

#define PARTS 4 /* micro-batches of a step over all ranks */

typedef struct grid {
    int32_t pipeline, data;
} grid;
static const grid grids[] = { { 2, 1 }, { 1, 2 }, { 2, 2 }, { 4, 1 } };

/* "dsc" members of a run over so many stages, with others behind them. */
static const char *own_of(int32_t pipeline, const char *more)
{
    static char text[256];
    snprintf(text, sizeof text, ", \"reproducible\": \"world_size\", \"grid\": {\"pipeline\": %d}%s", (int)pipeline,
             more);
    return text;
}

static void run_grid(const dsc_model *model, const grid *g, int32_t stage, bool bf16, dsc_recompute recompute,
                     const char *more, const run_options *base, run_result *out)
{
    const tiny_variant v = { "cpu", g->pipeline * g->data, stage,     PARTS / g->data,
                             bf16,  stage % 2 == 1,        recompute, own_of(g->pipeline, more) };
    tiny_run(model, &v, base, out);
}

static void expect_bits_of_one_rank(const dsc_model *model, bool bf16)
{
    const grid one = { 1, 1 };
    run_result first, other;
    run_grid(model, &one, 0, bf16, DSC_RECOMPUTE_NONE, "", &(run_options) { 0 }, &first);
    for (size_t i = 0; i < DSC_COUNT(grids); i++)
        for (int32_t stage = 0; stage <= 3; stage++) {
            const run_options base = { .after = run_memory_is_planned };
            run_grid(model, &grids[i], stage, bf16, (dsc_recompute)((stage + i) % 3), "", &base, &other);
            run_expect_same(&first, &other);
            assert_int_equal(other.alloc_calls_after_first, other.alloc_calls_at_end);
        }
}

static void a_tied_model_has_the_bits_of_one_rank(void **state)
{
    dsc_model *model = tiny_gpt_open(&(tiny_gpt) { 61, 16, 4, 4 });
    expect_bits_of_one_rank(model, true);
    dsc_model_close(&model);
}

/* Four modules on up to four stages: each of them is a stage once. */
static void an_untied_model_has_the_bits_of_one_rank(void **state)
{
    dsc_model *model = tiny_model_open(tiny_models[1].config, NULL);
    expect_bits_of_one_rank(model, false);
    dsc_model_close(&model);
}

static void every_family_has_the_bits_of_one_rank(void **state)
{
    for (size_t i = 0; i < DSC_COUNT(tiny_models); i++) {
        dsc_model *model = tiny_model_open(tiny_models[i].config, tiny_models[i].lora);
        const grid one = { 1, 1 }, *g = &grids[i % 2 == 0 ? 2 : 3];
        run_result first, other;
        run_grid(model, &one, 0, true, DSC_RECOMPUTE_NONE, "", &(run_options) { 0 }, &first);
        run_grid(model, g, (int32_t)i % 4, true, (dsc_recompute)(i % 3), "",
                 &(run_options) { .after = run_memory_is_planned }, &other);
        run_expect_same(&first, &other);
        dsc_model_close(&model);
    }
}

static void cuts_and_schedules_change_no_bit(void **state)
{
    static const char *const ways[] = { ", \"partition\": \"uniform\"", ", \"partition\": \"parameters\"",
                                        ", \"schedule\": \"gpipe\"", ", \"data\": 2" };
    dsc_model *model = tiny_gpt_open(&(tiny_gpt) { 61, 16, 4, 4 });
    const grid one = { 1, 1 };
    run_result first, other;
    run_grid(model, &one, 0, true, DSC_RECOMPUTE_NONE, "", &(run_options) { 0 }, &first);
    for (size_t i = 0; i < DSC_COUNT(ways); i++) {
        char own[256];
        snprintf(own, sizeof own, ", \"reproducible\": \"world_size\", \"grid\": {\"pipeline\": 2%s}", ways[i]);
        const tiny_variant v = { "cpu", 4, 3, PARTS / 2, true, false, DSC_RECOMPUTE_NONE, own };
        tiny_run(model, &v, &(run_options) { .after = run_memory_is_planned }, &other);
        run_expect_same(&first, &other);
    }
    dsc_model_close(&model);
}

/* Micro-batches that pass a module together, up to all of a step: breadth-first. */
static void groups_change_no_bit(void **state)
{
    dsc_model *model = tiny_gpt_open(&(tiny_gpt) { 61, 16, 4, 4 });
    const grid one = { 1, 1 };
    run_result first, other;
    run_grid(model, &one, 0, true, DSC_RECOMPUTE_NONE, "", &(run_options) { 0 }, &first);
    for (size_t i = 0; i < DSC_COUNT(grids); i++)
        for (int32_t stage = i % 2 == 0; stage <= 3; stage += 2)
            for (int together = 2; together <= PARTS; together *= 2) {
                char more[64];
                snprintf(more, sizeof more, ", \"micro_batches_together\": %d", together);
                run_grid(model, &grids[i], stage, true, (dsc_recompute)(stage % 3), more,
                         &(run_options) { .after = run_memory_is_planned }, &other);
                run_expect_same(&first, &other);
            }
    dsc_model_close(&model);
}

/* The last of four stages is the loss module alone, whose gradients of a group come before the first is taken. */
static void a_loss_module_alone_is_a_stage(void **state)
{
    for (size_t i = 0; i < 2; i++) { /* tied, untied */
        dsc_model *model = tiny_model_open(tiny_models[i].config, NULL);
        const grid one = { 1, 1 };
        run_result first, other;
        run_grid(model, &one, 0, true, DSC_RECOMPUTE_NONE, "", &(run_options) { 0 }, &first);
        for (int32_t stage = 0; stage <= 3; stage += 3) {
            run_grid(model, &grids[3], stage, true, DSC_RECOMPUTE_NONE, ", \"micro_batches_together\": 4",
                     &(run_options) { .after = run_memory_is_planned }, &other);
            run_expect_same(&first, &other);
        }
        dsc_model_close(&model);
    }
}

/* With ZeRO 3 a group gathers its modules once in forward and once in backward. */
static void groups_gather_less(void **state)
{
    dsc_model *model = tiny_gpt_open(&(tiny_gpt) { 61, 16, 4, 4 });
    run_result each, together;
    run_grid(model, &grids[2], 3, true, DSC_RECOMPUTE_NONE, "", &(run_options) { 0 }, &each);
    run_grid(model, &grids[2], 3, true, DSC_RECOMPUTE_NONE, ", \"micro_batches_together\": 2", &(run_options) { 0 },
             &together);
    run_expect_same(&each, &together);
    assert_true(together.wire_bytes < each.wire_bytes);
    dsc_model_close(&model);
}

static void masked_targets_are_counted_once(void **state)
{
    dsc_model *model = tiny_gpt_open(&(tiny_gpt) { 61, 16, 4, 2 });
    const grid one = { 1, 1 };
    run_result first, other;
    const run_options base = { .data = tiny_gpt_masked_data(model, 1 << 20) };
    run_grid(model, &one, 0, true, DSC_RECOMPUTE_NONE, "", &base, &first);
    for (size_t i = 0; i < DSC_COUNT(grids); i++) {
        run_grid(model, &grids[i], 2, true, DSC_RECOMPUTE_NONE, "", &base, &other);
        run_expect_same(&first, &other);
    }
    dsc_model_close(&model);
}

/* A frozen table has no gradient to send; its copy never changes. */
static void frozen_tables_are_not_sent(void **state)
{
    static const char frozen[] = ", \"freeze\": [\"transformer.wte.weight\"]";
    dsc_model *model = tiny_gpt_open(&(tiny_gpt) { 61, 16, 4, 2 });
    const grid one = { 1, 1 };
    run_result first, other;
    run_grid(model, &one, 0, true, DSC_RECOMPUTE_NONE, frozen, &(run_options) { 0 }, &first);
    for (int32_t stage = 0; stage <= 3; stage += 3) {
        run_grid(model, &grids[2], stage, true, DSC_RECOMPUTE_NONE, frozen, &(run_options) { 0 }, &other);
        run_expect_same(&first, &other);
    }
    dsc_model_close(&model);
}

/* ---- without gradients ---- */

typedef struct seen {
    dsc_data_source data;
    double loss[16];
    int32_t token[16][8];
} seen;

static dsc_status look(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    static const int32_t prompt[] = { 3, 1, 4, 1, 5 };
    seen *out = user;
    DSC_TRY(dsc_engine_evaluate(engine, &out->data, 9, &out->loss[rank], err));
    DSC_TRY(dsc_engine_generate(engine, prompt, 5, 8, 0.7, 3, out->token[rank], err));
    return dsc_engine_train_batch(engine, NULL, err); /* the next step goes on from there */
}

static void evaluation_and_text_are_those_of_one_rank(void **state)
{
    dsc_model *model = tiny_gpt_open(&(tiny_gpt) { 61, 16, 4, 4 });
    const grid one = { 1, 1 };
    seen first = { .data = tiny_gpt_data(model, 37) }, other = first;
    run_result a, b;
    run_grid(model, &one, 0, true, DSC_RECOMPUTE_NONE, "", &(run_options) { .after = look, .user = &first }, &a);
    for (size_t i = 0; i < DSC_COUNT(grids); i++) {
        run_grid(model, &grids[i], 3, true, DSC_RECOMPUTE_NONE, "", &(run_options) { .after = look, .user = &other },
                 &b);
        run_expect_same(&a, &b);
        for (int32_t r = 0; r < grids[i].pipeline * grids[i].data; r++) {
            assert_memory_equal(&first.loss[0], &other.loss[r], sizeof(double));
            assert_memory_equal(first.token[0], other.token[r], sizeof first.token[0]);
        }
    }
    dsc_model_close(&model);
}

/* ---- checkpoints ---- */

static void checkpoints_load_at_any_grid(void **state)
{
    dsc_model *model = tiny_gpt_open(&(tiny_gpt) { 61, 16, 4, 4 });
    const grid one = { 1, 1 }, from[] = { { 2, 2 }, { 4, 1 }, { 1, 1 } }, to[] = { { 1, 1 }, { 2, 2 }, { 4, 1 } };
    run_result whole, saved, loaded;
    run_grid(model, &one, 1, true, DSC_RECOMPUTE_NONE, "", &(run_options) { .steps = 6 }, &whole);
    for (size_t i = 0; i < DSC_COUNT(from); i++) {
        char dir[] = "/tmp/dsc-pipeline-XXXXXX", command[64];
        assert_non_null(mkdtemp(dir));
        run_grid(model, &from[i], (int32_t)i + 1, true, DSC_RECOMPUTE_NONE, "",
                 &(run_options) { .steps = 3, .after = run_save, .user = dir }, &saved);
        for (size_t k = 0; k < DSC_COUNT(to); k++) {
            run_grid(model, &to[k], (int32_t)k + 1, true, DSC_RECOMPUTE_NONE, "",
                     &(run_options) { .steps = 3, .before = run_load, .user = dir }, &loaded);
            assert_string_equal(loaded.hash, whole.hash);
            assert_memory_equal(loaded.loss, whole.loss + 3, 3 * sizeof(double));
        }
        snprintf(command, sizeof command, "rm -r %s", dir);
        assert_int_equal(system(command), 0);
    }
    dsc_model_close(&model);
}

/* A save that is written while training goes on has the states of its start. */
static dsc_status save_beside(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    DSC_TRY(dsc_engine_save_start(engine, user, err));
    DSC_TRY(dsc_engine_train_batch(engine, NULL, err));
    DSC_TRY(dsc_engine_train_batch(engine, NULL, err));
    return dsc_engine_save_wait(engine, NULL, err);
}

static void saves_beside_training_are_whole(void **state)
{
    static const char async[] = ", \"save_async\": true, \"save\": \"/nowhere\"";
    dsc_model *model = tiny_gpt_open(&(tiny_gpt) { 61, 16, 4, 4 });
    const grid one = { 1, 1 };
    char dir[] = "/tmp/dsc-pipeline-XXXXXX", command[64];
    run_result whole, saved, loaded;
    assert_non_null(mkdtemp(dir));
    run_grid(model, &one, 1, true, DSC_RECOMPUTE_NONE, "", &(run_options) { .steps = 6 }, &whole);
    run_grid(model, &grids[2], 2, true, DSC_RECOMPUTE_NONE, async,
             &(run_options) { .steps = 3, .after = save_beside, .user = dir }, &saved);
    run_grid(model, &one, 0, true, DSC_RECOMPUTE_NONE, "",
             &(run_options) { .steps = 3, .before = run_load, .user = dir }, &loaded);
    assert_string_equal(loaded.hash, whole.hash);
    snprintf(command, sizeof command, "rm -r %s", dir);
    assert_int_equal(system(command), 0);
    dsc_model_close(&model);
}

/* ---- overflows ---- */

typedef struct log_text {
    char text[4096];
} log_text;
static void keep_log(void *user, dsc_log_level level, const char *text)
{
    log_text *log = user;
    if (strstr(text, "skipped") != NULL)
        snprintf(log->text + strlen(log->text), sizeof log->text - strlen(log->text), "%s\n", text);
}

/* All stages skip the same steps; the first gradient that is not finite is named, whichever stage has it. */
static void overflows_skip_the_same_steps(void **state)
{
    dsc_model *model = tiny_gpt_open(&(tiny_gpt) { 61, 16, 4, 4 });
    run_result first, other;
    log_text said[2] = { { "" }, { "" } };
    for (int pipelined = 0; pipelined < 2; pipelined++) {
        char config[512];
        snprintf(
            config, sizeof config,
            "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": %d, \"gradient_clipping\": 1,"
            " \"fp16\": {\"enabled\": true, \"initial_scale_power\": 24, \"hysteresis\": 1},"
            " \"dsc\": {\"threads\": 1%s}}",
            pipelined != 0 ? 2 : 4, own_of(1 + pipelined, ""));
        const run_options options = { .steps = 12, .log = { keep_log, &said[pipelined] } };
        run_model(model, tiny_gpt_data(model, 1 << 20), pipelined != 0 ? 4 : 1, config, &options,
                  pipelined != 0 ? &other : &first);
    }
    run_expect_same(&first, &other);
    assert_non_null(strstr(said[0].text, "the gradient of "));
    for (int i = 0; i < 2; i++) /* ranks are numbered otherwise */
        for (char *at = said[i].text; (at = strstr(at, "of rank ")) != NULL;)
            memset(at, '.', 9);
    assert_string_equal(said[0].text, said[1].text);
    dsc_model_close(&model);
}

/* ---- planted faults ---- */

static dsc_stage_op *find_op(dsc_engine *engine, dsc_stage_work work, int64_t micro_batch)
{
    int64_t *count;
    dsc_stage_op *op = dsc_probe_stage_ops(engine, &count);
    for (int64_t i = 0; i < *count; i++)
        if (op[i].work == work && op[i].micro_batch == micro_batch)
            return &op[i];
    return NULL;
}

static void drop_op(dsc_engine *engine, dsc_stage_work work, int64_t micro_batch)
{
    int64_t *count;
    dsc_stage_op *all = dsc_probe_stage_ops(engine, &count), *op = find_op(engine, work, micro_batch);
    memmove(op, op + 1, (size_t)(all + --*count - op) * sizeof *op);
}

static dsc_status plant(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    const int fault = *(const int *)user;
    if (rank == 0 && fault == 0) /* an output is not sent */
        drop_op(engine, DSC_STAGE_SEND_OUTPUT, 1);
    if (rank == 1 && fault == 1) /* nor the last gradient */
        drop_op(engine, DSC_STAGE_SEND_GRADIENT, PARTS - 1);
    if (rank == 0 && fault == 2) { /* another micro-batch than the next stage expects */
        dsc_stage_op *first = find_op(engine, DSC_STAGE_SEND_OUTPUT, 0);
        find_op(engine, DSC_STAGE_SEND_OUTPUT, 1)->micro_batch = 0;
        first->micro_batch = 1;
    }
    if (rank == 1 && fault == 3) /* gradients of a tied table are not sent */
        drop_op(engine, DSC_STAGE_SEND_TIED, 2);
    return DSC_OK;
}

static void missing_and_wrong_messages_are_seen(void **state)
{
    static const char *const texts[] = { "stage 1 (rank 1) waits for the input of micro-batch 1 of step 1 from stage 0",
                                         "stage 0, data rank 0 (rank 0)", "stage 0 has sent the input of micro-batch 1",
                                         "tied gradients" };
    dsc_model *model = tiny_gpt_open(&(tiny_gpt) { 61, 16, 4, 2 });
    for (int fault = 0; fault < 4; fault++) {
        char config[512];
        run_result r;
        snprintf(config, sizeof config,
                 "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": %d, \"dsc\": "
                 "{\"threads\": 1, \"comm_timeout_s\": 1, \"grid\": {\"pipeline\": 2}}}",
                 PARTS);
        const run_options options = { .steps = 2, .before = plant, .user = &fault };
        run_model(model, tiny_gpt_data(model, 1 << 20), 2, config, &options, &r);
        assert_int_not_equal(r.status, DSC_OK);
        bool named = false;
        for (int32_t rank = 0; rank < 2; rank++)
            named = named || strstr(r.ranks[rank].message, texts[fault]) != NULL;
        if (!named)
            print_error("fault %d: \"%s\"; \"%s\"\n", fault, r.ranks[0].message, r.ranks[1].message);
        assert_true(named);
    }
    dsc_model_close(&model);
}

/* The n-th collective of rank 3 fails in the midst of a step: its peers name the rank and its places on the axes. */
static void a_lost_rank_is_named_with_its_places(void **state)
{
    static const char config[] = "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": 2, \"dsc\": "
                                 "{\"threads\": 1, \"comm_timeout_s\": 20, \"grid\": {\"pipeline\": 2}}}";
    dsc_model *model = tiny_gpt_open(&(tiny_gpt) { 61, 16, 4, 2 });
    const run_options options = { .world = 4,
                                  .steps = 20,
                                  .model = model,
                                  .config = config,
                                  .fault_rank = 3,
                                  .data = tiny_gpt_data(model, 1 << 20),
                                  .fail_comm_at = 30 };
    run_result r;
    run_world(&options, &r);
    assert_int_not_equal(r.status, DSC_OK);
    for (int32_t rank = 0; rank < 3; rank++) {
        if (strstr(r.ranks[rank].message, "lost stage 1, data rank 1") == NULL)
            print_error("rank %d: \"%s\"\n", (int)rank, r.ranks[rank].message);
        assert_non_null(strstr(r.ranks[rank].message, "lost stage 1, data rank 1"));
        assert_int_equal(r.ranks[rank].rank, 3);
    }
    dsc_model_close(&model);
}

/* ---- what is refused ---- */

static void expect_refused(const dsc_model *model, int32_t world, const char *members, const char *own,
                           const char *expected)
{
    char config[1024];
    run_result r;
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": 2%s, \"dsc\": {\"threads\": 1, \"comm_timeout_s\": 20%s}}", members,
             own);
    run_model(model, tiny_gpt_data(model, 1 << 20), world, config, &(run_options) { .steps = 1 }, &r);
    if (r.status == DSC_OK || strstr(r.error.message, expected) == NULL)
        print_error("%s: \"%s\" instead of \"%s\"\n", config, r.error.message, expected);
    assert_int_not_equal(r.status, DSC_OK);
    assert_non_null(strstr(r.error.message, expected));
}

static void sizes_and_features_that_do_not_work_are_refused(void **state)
{
    static const char two[] = ", \"grid\": {\"pipeline\": 2}";
    static const struct {
        int32_t world;
        const char *members, *own, *expected;
    } rows[] = {
        { 3, "", two, "2 stages do not divide 3 ranks; sizes that work: 1, 3 stages, or 2, 4, 6, ... ranks" },
        { 4, "", ", \"grid\": {\"pipeline\": 2, \"data\": 4}", "4 ranks in 2 stages are 2 for the data" },
        { 5, "", ", \"grid\": {\"pipeline\": 5}", "use at most 4 stages" },
        { 2, "", ", \"grid\": {\"pipeline\": 2, \"tensor\": 2}", "dsc.grid.tensor" },
        { 2, ", \"pipeline\": {\"stages\": 2, \"partition\": \"type:block\"}", "", "best, uniform and parameters" },
        { 2,
          ", \"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"/tmp\"}}",
          two, "zero_optimization.offload_param and a table that two of them share" },
        { 2, ", \"zero_optimization\": {\"stage\": 3, \"zero_quantized_weights\": true}", two,
          "zero_quantized_weights" },
        { 2, ", \"zero_optimization\": {\"stage\": 2}", ", \"early_update\": true, \"grid\": {\"pipeline\": 2}",
          "dsc.early_update" },
        { 4, ", \"zero_optimization\": {\"stage\": 3, \"mics_shard_size\": 1}", two, "mics_shard_size" },
        { 4, ", \"zero_optimization\": {\"stage\": 3, \"zero_hpz_partition_size\": 2}", two, "hpz_partition_size" },
    };
    dsc_model *model = tiny_gpt_open(&(tiny_gpt) { 61, 16, 4, 2 });
    for (size_t i = 0; i < DSC_COUNT(rows); i++)
        expect_refused(model, rows[i].world, rows[i].members, rows[i].own, rows[i].expected);
    dsc_model_close(&model);
}

static dsc_status forward(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    return dsc_engine_forward(engine, NULL, NULL, err);
}

static void a_stage_has_no_pass_of_its_own(void **state)
{
    dsc_model *model = tiny_gpt_open(&(tiny_gpt) { 61, 16, 4, 2 });
    run_result r;
    run_model(model, tiny_gpt_data(model, 1 << 20), 2,
              "{\"train_micro_batch_size_per_gpu\": 2, \"dsc\": {\"threads\": 1, \"grid\": {\"pipeline\": 2}}}",
              &(run_options) { .steps = 1, .before = forward }, &r);
    assert_int_equal(r.status, DSC_ERR_STATE);
    assert_non_null(strstr(r.error.message, "call train_batch"));
    dsc_model_close(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_tied_model_has_the_bits_of_one_rank),
        cmocka_unit_test(an_untied_model_has_the_bits_of_one_rank),
        cmocka_unit_test(every_family_has_the_bits_of_one_rank),
        cmocka_unit_test(cuts_and_schedules_change_no_bit),
        cmocka_unit_test(groups_change_no_bit),
        cmocka_unit_test(a_loss_module_alone_is_a_stage),
        cmocka_unit_test(groups_gather_less),
        cmocka_unit_test(masked_targets_are_counted_once),
        cmocka_unit_test(frozen_tables_are_not_sent),
        cmocka_unit_test(evaluation_and_text_are_those_of_one_rank),
        cmocka_unit_test(checkpoints_load_at_any_grid),
        cmocka_unit_test(saves_beside_training_are_whole),
        cmocka_unit_test(overflows_skip_the_same_steps),
        cmocka_unit_test(missing_and_wrong_messages_are_seen),
        cmocka_unit_test(a_lost_rank_is_named_with_its_places),
        cmocka_unit_test(sizes_and_features_that_do_not_work_are_refused),
        cmocka_unit_test(a_stage_has_no_pass_of_its_own),
    };
    return cmocka_run_group_tests_name("pipeline", tests, NULL, NULL);
}
