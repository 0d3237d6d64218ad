/* test_micro_batch_groups.c - groups of micro-batches that pass a module before the next module runs. The bits are
 * those of single micro-batches, for every placement and number of ranks; fewer bytes move, and forward alone is
 * refused.
 *
 * The toy model's projection is tied to its loss module, so that leaves of the latter wait for those of the former.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "kernels/scalar.h"
#include "tests/support/probe.h"
#include "tests/support/run_expect.h"
#include "tests/support/toy_model.h"

#define STEPS 3
#define GAS 6

static char folder[512];
static dsc_model *toy;

typedef struct variant {
    int32_t world, stage, accumulation, together;
    const char *zero; /* members of zero_optimization, each preceded by a comma; %s is a folder */
    const char *own;  /* of "dsc", likewise */
    const char *more; /* members before all others, each followed by a comma */
    const char *optimizer; /* NULL: AdamW */
    dsc_model *model;      /* NULL: toy */
} variant;

/* ---- no leaf is made where another one still waits ---- */

/* Elements of the slice of `other`, which is a whole group, up to the end of the slot of `part`. */
static int64_t needed_of(const dsc_layout *layout, const dsc_probe_grad_part *other, const dsc_probe_grad_part *part)
{
    const int64_t from = other->slot_offset, at = part->slot_offset;
    if (from < 0 || at < 0)
        return 0;
    const int64_t bytes = layout->group[other->group].padded * 4;
    const int64_t end = dsc_min_i64(from + bytes, at + layout->group[part->group].padded * 4);
    return dsc_max_i64(from, at) < end ? (end - from) / 4 : 0;
}

/* Runs are reduced one after the other, and the parts of a run in step. A part waits for the last part of the last run
 * whose memory it shares, until all of that run is reduced. */
static bool waits_for_enough(const dsc_layout *layout, const dsc_zero *zero, int32_t index)
{
    const dsc_probe_grad_part part = dsc_probe_grad_part_get(zero, index);
    const int32_t count = dsc_probe_grad_part_count(zero);
    int32_t awaited_run = -1; /* its last part */
    int64_t end = 0;
    for (int32_t back = 1; back <= count; back++) {
        const int32_t at = (index + count - back) % count;
        const dsc_probe_grad_part other = dsc_probe_grad_part_get(zero, at);
        const int64_t needed = needed_of(layout, &other, &part);
        if (awaited_run < 0 && other.slot == part.after) {
            awaited_run = other.last_of_run;
            end = dsc_probe_grad_part_mark_end(zero, at, part.after_mark);
        }
        if (needed > 0 && awaited_run < 0)
            return false;
        if (needed > end && other.last_of_run == awaited_run)
            return false;
    }
    return true;
}

static dsc_status check_grad_parts(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    const dsc_layout *layout = dsc_probe_layout(engine);
    const dsc_zero *zero = dsc_probe_zero(engine);
    const int32_t count = dsc_probe_grad_part_count(zero);
    for (int32_t i = 0; i < count && layout->world_size == 1 && dsc_probe_counter_levels(zero) == 0; i++) {
        const dsc_probe_grad_part part = dsc_probe_grad_part_get(zero, i);
        if (!waits_for_enough(layout, zero, i))
            return DSC_FAIL(err, DSC_ERR_INTERNAL, "grad parts",
                            "part %d of %d, of module %d and micro-batch %d, is written "
                            "while another part still waits there",
                            (int)i, (int)count, (int)part.module, (int)part.micro_batch);
    }
    return DSC_OK;
}

static void run_variant(const variant *v, run_result *out)
{
    char config[4096], zero[2048];
    snprintf(zero, sizeof zero, v->zero, folder, folder);
    snprintf(config, sizeof config,
             "{%s\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": %d,"
             " \"optimizer\": {\"type\": \"%s\", \"params\": {\"lr\": 0.01, \"weight_decay\": 0.1}},"
             " \"gradient_clipping\": 0.5, \"zero_optimization\": {\"stage\": %d, \"sub_group_size\": 2048,"
             " \"stage3_param_persistence_threshold\": 0%s},"
             " \"dsc\": {\"threads\": 1, \"micro_batches_together\": %d%s}}",
             v->more, (int)v->accumulation, v->optimizer != NULL ? v->optimizer : "AdamW", (int)v->stage, zero,
             (int)v->together, v->own);
    dsc_model *model = v->model != NULL ? v->model : toy;
    const run_options options = { .world = v->world,
                                  .steps = STEPS,
                                  .model = model,
                                  .config = config,
                                  .data = toy_data(model, 1 << 20),
                                  .after = check_grad_parts,
                                  .fault_rank = -1 };
    run_world(&options, out);
}

static void expect_same(const run_result *a, const run_result *b, const variant *v)
{
    const bool same = b->status == DSC_OK && memcmp(a->loss, b->loss, STEPS * sizeof(double)) == 0 &&
                      memcmp(a->norm, b->norm, STEPS * sizeof(double)) == 0 && strcmp(a->hash, b->hash) == 0;
    if (!same)
        print_error("stage %d, %d ranks, %d together%s%s: %s: %s\n", (int)v->stage, (int)v->world, (int)v->together,
                    v->zero, v->own, b->error.where, b->error.message);
    assert_true(same);
    run_expect_planned(b);
}

#define OPTIMIZER_NVME ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}"
#define PARAM_NVME ", \"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}"
static const struct {
    int32_t stage;
    const char *zero;
} places[] = {
    { 0, "" },
    { 1, "" },
    { 2, ", \"overlap_comm\": true" },
    { 3, "" },
    { 3, ", \"overlap_comm\": true" },
    { 1, OPTIMIZER_NVME },
    { 3, PARAM_NVME },
    { 3, OPTIMIZER_NVME PARAM_NVME },
};

/* `v` in every place with 2, 3 and all of the step's together, beside one after the other at its stage. */
static void expect_same_together(variant v)
{
    static const int32_t counts[] = { 2, 3, 256 };
    run_result first, other;
    v.accumulation = v.accumulation > 0 ? v.accumulation : GAS;
    v.together = 1;
    v.zero = "";
    run_variant(&v, &first);
    assert_int_equal(first.status, DSC_OK);
    assert_true(first.loss[STEPS - 1] != first.loss[0]);
    for (size_t p = 0; p < DSC_COUNT(places); p++)
        for (size_t i = 0; i < DSC_COUNT(counts); i++) {
            v.stage = places[p].stage;
            v.zero = places[p].zero;
            v.together = counts[i];
            run_variant(&v, &other);
            expect_same(&first, &other, &v);
        }
}

static void any_number_together_gives_the_same_bits(void **state)
{
    static const char *const precisions[] = { "", "\"bf16\": {\"enabled\": true},",
                                              "\"fp16\": {\"enabled\": true, \"initial_scale_power\": 8}," };
    for (int32_t world = 1; world <= 3; world++)
        for (size_t i = 0; i < DSC_COUNT(precisions); i++)
            expect_same_together((variant) { .world = world, .own = "", .more = precisions[i] });
}

/* Each of them has more than one sum, or something that waits from forward to backward. */
static void with_whatever_waits_between(void **state)
{
    static const char *const own[] = { ", \"recompute\": \"full\"", ", \"reproducible\": \"world_size\"",
                                       ", \"gradients\": \"bf16\"", ", \"gradient_compression\": \"int8\"" };
    for (size_t i = 0; i < DSC_COUNT(own); i++)
        expect_same_together((variant) { .world = 2, .own = own[i], .more = "\"bf16\": {\"enabled\": true}," });
}

/* ---- a first module with two trained groups ---- */

static dsc_module bare_input; /* toy's */

static dsc_status biased_forward(const dsc_module *m, dsc_module_ctx *ctx, dsc_error *err)
{
    DSC_TRY(bare_input.forward(m, ctx, err));
    const int64_t width = m->params[1].dim[0];
    for (int64_t i = 0; i < ctx->batch * width; i++)
        dsc_put(ctx->out, i, ctx->dtype,
                dsc_get(ctx->out, i, ctx->dtype) + dsc_get(ctx->param[1], i % width, ctx->dtype));
    return DSC_OK;
}

static dsc_status biased_backward(const dsc_module *m, dsc_module_ctx *ctx, dsc_error *err)
{
    DSC_TRY(bare_input.backward(m, ctx, err));
    const int64_t width = m->params[1].dim[0];
    for (int64_t j = 0; j < width; j++) {
        ctx->grad[1][j] = 0;
        for (int64_t b = 0; b < ctx->batch; b++)
            ctx->grad[1][j] += dsc_get(ctx->d_out, b * width + j, ctx->dtype);
    }
    return DSC_OK;
}

/* As BERT's: the table is tied, the norm behind it is not; Adafactor has matrices and vectors in groups of their own.
 * The largest parts wait, and small ones fit into the memory beside them. */
static void beside_leaves_that_wait(void **state)
{
    static const int32_t counts[] = { 5, 7 };
    dsc_model *large = toy_model_open(80, 61, 3, false), biased = *large;
    dsc_module modules[5];
    dsc_param_spec params[2] = { large->modules[0].params[0], large->modules[1].params[1] };
    memcpy(modules, large->modules, sizeof modules);
    assert_int_equal(large->module_count, 5);
    bare_input = modules[0];
    params[1].name = "input.bias";
    modules[0].param_count = 2;
    modules[0].params = params;
    modules[0].forward = biased_forward;
    modules[0].backward = biased_backward;
    biased.modules = modules;
    for (int32_t world = 1; world <= 2; world++)
        for (size_t i = 0; i < DSC_COUNT(counts); i++)
            expect_same_together((variant) { .world = world,
                                             .accumulation = counts[i],
                                             .own = "",
                                             .more = "",
                                             .optimizer = "Adafactor",
                                             .model = &biased });
    toy_model_close(large);
}

/* Parameters come once in a pass over the modules, and a sum need not leave memory between micro-batches that run
 * together: with all of them the files of a step without accumulation. */
static void less_is_moved(void **state)
{
    variant v = {
        .world = 1, .stage = 3, .zero = OPTIMIZER_NVME PARAM_NVME, .own = "", .more = "\"bf16\": {\"enabled\": true},"
    };
    run_result one, apart, pairs, all, once;
    v.accumulation = v.together = 1;
    run_variant(&v, &one);
    v.accumulation = GAS;
    run_variant(&v, &apart);
    v.together = 2;
    run_variant(&v, &pairs);
    v.together = GAS;
    run_variant(&v, &all);
    assert_int_equal(all.pass_reads_planned, one.pass_reads_planned);
    assert_in_range(pairs.pass_reads_planned, all.pass_reads_planned + 1, apart.pass_reads_planned / 2 - 1);

    v = (variant) { .world = 2, .stage = 3, .accumulation = GAS, .together = 1, .zero = "", .own = "", .more = "" };
    run_variant(&v, &apart);
    v.together = GAS;
    run_variant(&v, &all);
    v.accumulation = v.together = 1;
    run_variant(&v, &once);
    const int64_t leaves = once.wire_planned - (apart.wire_planned - all.wire_planned) / (GAS - 1);
    assert_true(apart.wire_planned > all.wire_planned);
    assert_int_equal(all.wire_planned, once.wire_planned + (GAS - 1) * leaves); /* and the windows once */
}

/* A group that does not fit is an error that names the setting. */
static void fewer_take_less(void **state)
{
    for (int together = 1; together <= 2; together++) {
        dsc_engine *engine = NULL;
        dsc_engine_options options = DSC_ENGINE_OPTIONS_INIT;
        dsc_error err = DSC_ERROR_INIT;
        char config[256];
        snprintf(config, sizeof config,
                 "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": 4,"
                 " \"optimizer\": {\"type\": \"SGD\"}, \"dsc\": {\"micro_batches_together\": %d}}",
                 together);
        options.config_text = config;
        options.model = toy;
        options.flags = DSC_ENGINE_PLAN_ONLY;
        assert_int_equal(dsc_engine_open(&engine, &options, &err), DSC_OK);
        dsc_probe_set_host_free_bytes(engine, 1);
        assert_int_equal(dsc_probe_check_fit(engine, &err), DSC_ERR_NOFIT);
        assert_int_equal(strstr(err.message, "fewer dsc.micro_batches_together, ") != NULL, together > 1);
        dsc_engine_close(&engine);
    }
}

typedef struct counted_data {
    dsc_data_source source;
    atomic_long samples; /* that were filled */
} counted_data;

static dsc_status count_fill(void *user, int64_t first_sample, int64_t count, void *const *batch_data, dsc_error *err)
{
    counted_data *data = user;
    DSC_TRY(data->source.fill(data->source.user, first_sample, count, batch_data, err));
    atomic_fetch_add(&data->samples, count);
    return DSC_OK;
}

/* While micro-batches of a pass are in use. */
static void the_next_pass_is_read(void **state)
{
    dsc_engine *engine = NULL;
    dsc_engine_options options = DSC_ENGINE_OPTIONS_INIT;
    dsc_error err = DSC_ERROR_INIT;
    counted_data data = { .source = toy_data(toy, 1 << 20) };
    options.config_text = "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": 12,"
                          " \"optimizer\": {\"type\": \"SGD\"}, \"dsc\": {\"micro_batches_together\": 12}}";
    options.model = toy;
    options.data = (dsc_data_source) { .fill = count_fill, .user = &data, .sample_count = 1 << 20 };
    assert_int_equal(dsc_engine_open(&engine, &options, &err), DSC_OK);
    assert_int_equal(dsc_engine_train_batch(engine, NULL, &err), DSC_OK);
    const int64_t most = dsc_clock_ns() + INT64_C(20000000000);
    while (atomic_load(&data.samples) < 24 && dsc_clock_ns() < most)
        dsc_clock_sleep_ns(1000000);
    assert_int_equal(atomic_load(&data.samples), 24);
    dsc_engine_close(&engine);
}

/* A program that calls forward for each micro-batch decides the order itself; a line reports that. */
static void forward_takes_one_micro_batch(void **state)
{
    dsc_engine *engine = NULL;
    dsc_engine_options options = DSC_ENGINE_OPTIONS_INIT;
    dsc_error err = DSC_ERROR_INIT;
    options.config_text = "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": 4,"
                          " \"optimizer\": {\"type\": \"SGD\"}, \"dsc\": {\"micro_batches_together\": 3}}";
    options.model = toy;
    options.data = toy_data(toy, 1 << 20);
    assert_int_equal(dsc_engine_open(&engine, &options, &err), DSC_OK);
    assert_int_equal(dsc_engine_forward(engine, NULL, NULL, &err), DSC_ERR_STATE);
    assert_string_equal(err.where, "dsc.micro_batches_together");
    assert_non_null(strstr(err.message, "and 2 run together; call train_batch")); /* of 4 at most 3 */
    assert_int_equal(dsc_engine_train_batch(engine, NULL, &err), DSC_OK);         /* nothing has begun */
    dsc_engine_close(&engine);
}

int main(void)
{
    snprintf(folder, sizeof folder, "%s/dsc-together-XXXXXX", getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp");
    if (mkdtemp(folder) == NULL)
        return 1;
    toy = toy_model_open(5, 61, 3, true);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_together_gives_the_same_bits),
        cmocka_unit_test(with_whatever_waits_between),
        cmocka_unit_test(beside_leaves_that_wait),
        cmocka_unit_test(less_is_moved),
        cmocka_unit_test(fewer_take_less),
        cmocka_unit_test(the_next_pass_is_read),
        cmocka_unit_test(forward_takes_one_micro_batch),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    toy_model_close(toy);
    return rmdir(folder) != 0 ? 1 : failed;
}
