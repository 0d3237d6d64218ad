/* test_spikes.c - loss spikes, steps that are computed twice, and ranks whose hardware is faulty.
 *
 * A sample with large features makes a spike. Modules of this file flip a bit of one rank's gradient or parameter in a
 * given step. A spike must be found alike on every rank and at every world size, and named by its sample. A flipped bit
 * must name its rank, and sound runs must keep their bits. SPDX-License-Identifier: Apache-2.0 */
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
#include "tests/support/run_expect.h"
#include "tests/support/toy_model.h"

enum { BATCH = 8, SPIKE_STEP = 9, STEPS = 12 };
#define SPIKE_SAMPLE ((SPIKE_STEP - 1) * BATCH + 5)
#define WATCH "\"window\": 4, \"z_score\": 3, \"loss_ratio\": 2, \"norm_ratio\": 2"

static dsc_model *model;
static char *dir;

/* ---- data: one sample is far from the others; a run may take later ones from a step on ---- */

typedef struct spiked_data {
    dsc_data_source inner;
    bool spikes;
    int64_t shift_from, shift; /* samples from the first one on are taken so much later */
} spiked_data;

static dsc_status fill(void *user, int64_t first, int64_t count, void *const *batch, dsc_error *err)
{
    const spiked_data *d = user;
    if (d->shift > 0 && first >= d->shift_from)
        first += d->shift;
    DSC_TRY(d->inner.fill(d->inner.user, first, count, batch, err));
    const int64_t width = model->batch[0].dim[0];
    for (int64_t k = 0; k < count; k++)
        for (int64_t i = 0; i < width && d->spikes && first + k == SPIKE_SAMPLE; i++)
            ((float *)batch[1])[k * width + i] *= 40;
    return DSC_OK;
}

/* ---- faults: a module of this file flips a bit ---- */

typedef struct fault {
    int32_t rank;
    int64_t step;
    int32_t pass; /* number in the step, from 0; -1: every one */
    bool in_param;
    int32_t bit; /* number of the flipped bit */
} fault;

static fault planted; /* rank -1: none */
static dsc_status (*whole_backward)(const dsc_module *module, dsc_module_ctx *ctx, dsc_error *err);
static _Thread_local int32_t this_rank, passes;
static _Thread_local int64_t last_step;

static dsc_status flip_backward(const dsc_module *module, dsc_module_ctx *ctx, dsc_error *err)
{
    DSC_TRY(whole_backward(module, ctx, err));
    passes = (int64_t)ctx->rng_step == last_step ? passes + 1 : 0;
    last_step = (int64_t)ctx->rng_step;
    if (planted.rank != this_rank || planted.step != last_step || planted.in_param ||
        (planted.pass >= 0 && planted.pass != passes))
        return DSC_OK;
    uint32_t word;
    memcpy(&word, &ctx->grad[0][3], sizeof word);
    word ^= 1u << planted.bit;
    memcpy(&ctx->grad[0][3], &word, sizeof word);
    return DSC_OK;
}

/* The parameter stays flipped for the passes that follow, as of memory that lost a bit: the step before flips it. */
static dsc_status flip_param(dsc_engine *engine, int32_t group)
{
    dsc_zero_slice slice;
    dsc_zero *zero = dsc_probe_zero(engine);
    int64_t count = 1;
    void *ptr;
    dsc_error err = DSC_ERROR_INIT;
    dsc_zero_slice_get(zero, group, &slice);
    DSC_TRY(dsc_probe_settle(engine, &err));
    CW_OK(dsc_zero_view(zero, group, DSC_PLANE_PARAM, 0, &count, false, &ptr, &err), &err);
    ((unsigned char *)ptr)[1] ^= 1;
    return DSC_OK;
}

/* ---- runs ---- */

typedef struct seen {
    char lines[4096];
    int64_t spikes, skipped, steps; /* results of rank 0 */
    double loss[64];
} seen;

typedef struct job {
    seen *seen;
    int64_t until;
    char *save; /* NULL: none */
    int64_t save_every;
    char *load;
} job;

static void keep_line(void *user, dsc_log_level level, const char *text)
{
    seen *to = user;
    const size_t used = strlen(to->lines);
    if (level == DSC_LOG_WARNING)
        snprintf(to->lines + used, sizeof to->lines - used, "%s\n", text);
}

static dsc_status step(dsc_engine *engine, const job *j, int32_t rank, int64_t *at, dsc_error *err)
{
    dsc_step_result result = DSC_STEP_RESULT_INIT;
    dsc_engine_stats stats = DSC_ENGINE_STATS_INIT;
    if (planted.in_param && planted.rank == rank && planted.step == *at + 1)
        DSC_TRY(flip_param(engine, 1));
    DSC_TRY(dsc_engine_train_batch(engine, &result, err));
    if (rank == 0) {
        j->seen->spikes += result.spike;
        j->seen->skipped += result.skipped;
        j->seen->loss[j->seen->steps++ % 64] = result.loss;
    }
    if (result.rewind)
        return dsc_engine_rewind(engine, j->save, NULL, err);
    dsc_engine_stats_get(engine, &stats);
    *at = stats.step;
    if (j->save_every > 0 && stats.step % j->save_every == 0)
        DSC_TRY(dsc_engine_save(engine, j->save, err));
    return DSC_OK;
}

/* All steps but the last one, which run_world makes. */
static dsc_status before(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    const job *j = user;
    dsc_engine_stats stats = DSC_ENGINE_STATS_INIT;
    this_rank = rank;
    last_step = passes = 0;
    if (j->load != NULL)
        DSC_TRY(dsc_engine_load(engine, j->load, err));
    dsc_engine_stats_get(engine, &stats);
    for (int64_t at = stats.step; at < j->until - 1; dsc_engine_stats_get(engine, &stats), at = stats.step)
        DSC_TRY(step(engine, j, rank, &at, err));
    return DSC_OK;
}

typedef struct variant {
    int32_t world, stage;
    const char *own, *more; /* members of "dsc" and of the config, each preceded by a comma */
} variant;

static void run(const variant *v, spiked_data *data, job *j, run_result *out)
{
    char config[2048];
    memset(j->seen, 0, sizeof *j->seen);
    data->inner = toy_data(model, 1 << 20);
    snprintf(config, sizeof config,
             "{\"train_batch_size\": %d, \"train_micro_batch_size_per_gpu\": 1,"
             " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.003}}, \"gradient_clipping\": 1.0,"
             " \"zero_optimization\": {\"stage\": %d}%s,"
             " \"dsc\": {\"threads\": 1, \"reproducible\": \"world_size\"%s}}",
             BATCH, (int)v->stage, v->more != NULL ? v->more : "", v->own != NULL ? v->own : "");
    const run_options options = { .world = v->world,
                                  .steps = 1,
                                  .model = model,
                                  .data = { fill, data, 1 << 20 },
                                  .config = config,
                                  .before = before,
                                  .user = j,
                                  .log = { keep_line, j->seen },
                                  .fault_rank = -1 };
    run_world(&options, out);
}

static void run_good(const variant *v, spiked_data *data, job *j, run_result *out)
{
    run(v, data, j, out);
    if (out->status != DSC_OK)
        print_error("%d ranks, stage %d: %s: %s\n", (int)v->world, (int)v->stage, out->error.where,
                    out->error.message);
    assert_int_equal(out->status, DSC_OK);
}

static void expect_text(const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        print_error("\"%s\" is not in: %s\n", part, text);
    assert_non_null(strstr(text, part));
}

/* ---- spikes ---- */

static void test_warnings_name_the_sample_and_change_no_bit(void **state)
{
    static seen of_plain, of_warned;
    spiked_data data = { .spikes = true };
    for (int32_t world = 1; world <= 4; world *= 2)
        for (int32_t stage = 0; stage <= 3; stage++) {
            run_result plain, warned;
            job j = { .seen = &of_plain, .until = STEPS };
            run_good(&(variant) { .world = world, .stage = stage }, &data, &j, &plain);
            j.seen = &of_warned;
            run_good(&(variant) { .world = world, .stage = stage, .own = ", \"spikes\": {" WATCH "}" }, &data, &j,
                     &warned);
            assert_string_equal(plain.hash, warned.hash);
            assert_memory_equal(of_plain.loss, of_warned.loss, sizeof of_plain.loss);
            assert_int_equal(of_warned.spikes, 1);
            assert_int_equal(of_warned.skipped, 0);
            char text[64];
            snprintf(text, sizeof text, "step %d is a spike: loss", SPIKE_STEP);
            expect_text(of_warned.lines, text);
            snprintf(text, sizeof text, "the largest losses: %d (loss", SPIKE_SAMPLE);
            expect_text(of_warned.lines, text);
        }
}

static void test_data_without_a_spike_has_none(void **state)
{
    static seen of_run;
    spiked_data data = { .spikes = false };
    run_result r;
    job j = { .seen = &of_run, .until = 20 };
    run_good(&(variant) { .world = 2, .stage = 2, .own = ", \"spikes\": {" WATCH "}" }, &data, &j, &r);
    assert_int_equal(of_run.spikes, 0);
    assert_string_equal(of_run.lines, "");
}

static void test_skipped_spikes_have_equal_bits_at_every_world_size(void **state)
{
    static seen of_run;
    spiked_data data = { .spikes = true };
    run_result first = { .steps = 0 }, r;
    for (int32_t world = 1; world <= 4; world *= 2)
        for (int32_t stage = 0; stage <= 3; stage += 3) {
            job j = { .seen = &of_run, .until = STEPS };
            run_good(&(variant) { .world = world,
                                  .stage = stage,
                                  .own = ", \"spikes\": {\"policy\": \"skip\", " WATCH "}" },
                     &data, &j, &r);
            assert_int_equal(of_run.skipped, 1);
            expect_text(of_run.lines, "no update");
            if (first.steps == 0)
                first = r;
            assert_string_equal(first.hash, r.hash);
        }
}

/* A run that goes back from step 9 to step 6 and leaves out three batches is one that went on from step 6 with later
 * samples. Resumed from a later checkpoint, it goes on with these samples too. */
static void test_rewinds_leave_out_batches(void **state)
{
    static seen of_run;
    char save[600], other[600], second[600];
    const char *own = ", \"save\": \"x\", \"save_every\": 3, \"spikes\": {\"policy\": \"rewind\", \"rewind_steps\": 2, "
                      "\"skip_batches\": 2, " WATCH "}";
    snprintf(save, sizeof save, "%s/run", dir);
    snprintf(other, sizeof other, "%s/run/step-6", dir);
    snprintf(second, sizeof second, "%s/run/step-12", dir);
    for (int32_t world = 1; world <= 2; world++) {
        run_result rewound, expected, resumed;
        spiked_data data = { .spikes = true };
        job j = { .seen = &of_run, .until = 14, .save = save, .save_every = 3 };
        run_good(&(variant) { .world = world, .stage = 2, .own = own }, &data, &j, &rewound);
        expect_text(of_run.lines, "goes back from step 9 to step 6, and leaves out batches 7 to 9");
        assert_int_equal(of_run.spikes, 1);
        spiked_data shifted = { .shift_from = 6 * BATCH, .shift = 3 * BATCH };
        job from = { .seen = &of_run, .until = 14, .load = other };
        run_good(&(variant) { .world = world, .stage = 2 }, &shifted, &from, &expected);
        assert_string_equal(rewound.hash, expected.hash);
        from = (job) { .seen = &of_run, .until = 14, .load = second };
        run_good(&(variant) { .world = 3 - world, .stage = 1, .own = own }, &data, &from, &resumed);
        assert_string_equal(rewound.hash, resumed.hash);
        cw_remove(save);
    }
}

static void test_a_rewind_without_an_old_checkpoint_goes_on(void **state)
{
    static seen of_run;
    char save[600];
    run_result r;
    spiked_data data = { .spikes = true };
    snprintf(save, sizeof save, "%s/none", dir);
    job j = { .seen = &of_run, .until = STEPS, .save = save };
    run_good(&(variant) { .world = 2,
                          .stage = 0,
                          .own = ", \"save\": \"x\", \"save_every\": 50, \"spikes\": {\"policy\": \"rewind\", " WATCH
                                 "}" },
             &data, &j, &r);
    expect_text(of_run.lines, "no checkpoint is 100 steps older");
    assert_int_equal(of_run.skipped, 1);
}

/* ---- hardware ---- */

static void expect_rank(const run_result *r, int32_t rank, const char *part)
{
    char text[32];
    snprintf(text, sizeof text, "rank %d", (int)rank);
    if (r->status != DSC_ERR_DEVICE)
        print_error("status %d: %s: %s\n", (int)r->status, r->error.where, r->error.message);
    assert_int_equal(r->status, DSC_ERR_DEVICE);
    assert_memory_equal(r->error.where, text, strlen(text));
    expect_text(r->error.message, part);
}

/* Every bit of an element counts, in the first or in the second computation. */
static void test_a_flipped_gradient_names_its_rank(void **state)
{
    static seen of_run;
    static const int32_t bits[] = { 0, 12, 30, 31 };
    spiked_data data = { .spikes = false };
    for (int32_t rank = 0; rank < 3; rank++)
        for (size_t b = 0; b < DSC_COUNT(bits); b++) {
            run_result r;
            job j = { .seen = &of_run, .until = 6 };
            planted = (fault) { .rank = rank, .step = 4, .pass = (int32_t)(b % 2) * 2, .bit = bits[b] };
            run(&(variant) { .world = 4, .stage = (int32_t)b, .own = ", \"check_gradients\": 2" }, &data, &j, &r);
            expect_rank(&r, rank, "step 4 was computed twice");
            expect_text(r.error.message, "block.1");
        }
    planted.rank = -1;
}

/* A bit of the exponent is a spike, whatever the interval. */
static void test_a_spike_of_hardware_names_its_rank(void **state)
{
    static seen of_run;
    spiked_data data = { .spikes = false };
    run_result r;
    job j = { .seen = &of_run, .until = 8 };
    planted = (fault) { .rank = 1, .step = 7, .pass = 0, .bit = 30 };
    run(&(variant) { .world = 2, .stage = 1, .own = ", \"spikes\": {" WATCH "}" }, &data, &j, &r);
    planted.rank = -1;
    expect_rank(&r, 1, "its hardware is faulty");
}

static void test_a_flipped_parameter_names_its_rank(void **state)
{
    static seen of_run;
    spiked_data data = { .spikes = false };
    for (int32_t stage = 0; stage <= 2; stage++)
        for (int32_t rank = 0; rank < 4; rank += 3) {
            run_result r;
            job j = { .seen = &of_run, .until = 8 };
            planted = (fault) { .rank = rank, .step = 6, .in_param = true };
            run(&(variant) { .world = 4,
                             .stage = stage,
                             .own = ", \"check_replicas\": 3",
                             .more = stage == 1 ? ", \"bf16\": {\"enabled\": true}" : NULL },
                &data, &j, &r);
            expect_rank(&r, rank, "other bits than those of most ranks");
        }
    planted.rank = -1;
}

static void test_sound_runs_pass_all_checks(void **state)
{
    static seen of_run;
    static const char *const precisions[] = { "", ", \"bf16\": {\"enabled\": true}" };
    spiked_data data = { .spikes = false };
    for (int32_t stage = 0; stage <= 3; stage++)
        for (int p = 0; p < 2; p++) {
            run_result plain, checked;
            job j = { .seen = &of_run, .until = 7 };
            const variant v = { .world = 4, .stage = stage, .more = precisions[p] };
            variant with = v;
            run_good(&v, &data, &j, &plain);
            with.own = ", \"check_replicas\": 1";
            run_good(&with, &data, &j, &checked);
            assert_string_equal(plain.hash, checked.hash);
            run_expect_planned(&checked);
            with.own = ", \"check_gradients\": 1"; /* sends everything twice */
            run_good(&with, &data, &j, &checked);
            assert_string_equal(plain.hash, checked.hash);
            assert_int_equal(checked.alloc_calls_after_first, checked.alloc_calls_at_end);
        }
}

static int open_all(void **state)
{
    model = toy_model_open(5, 61, 3, true);
    dsc_module *block = (dsc_module *)(uintptr_t)&model->modules[2];
    whole_backward = block->backward;
    block->backward = flip_backward;
    dir = cw_tmp_open();
    planted.rank = -1;
    return 0;
}

static int close_all(void **state)
{
    toy_model_close(model);
    cw_tmp_close(dir);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_warnings_name_the_sample_and_change_no_bit),
        cmocka_unit_test(test_data_without_a_spike_has_none),
        cmocka_unit_test(test_skipped_spikes_have_equal_bits_at_every_world_size),
        cmocka_unit_test(test_rewinds_leave_out_batches),
        cmocka_unit_test(test_a_rewind_without_an_old_checkpoint_goes_on),
        cmocka_unit_test(test_a_flipped_gradient_names_its_rank),
        cmocka_unit_test(test_a_spike_of_hardware_names_its_rank),
        cmocka_unit_test(test_a_flipped_parameter_names_its_rank),
        cmocka_unit_test(test_sound_runs_pass_all_checks),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
