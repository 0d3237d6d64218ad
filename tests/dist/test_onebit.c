/* test_onebit.c - 1-bit Adam. Checked are the paper's formula in double and equal bits on all ranks and for any
 * schedule. Further the bytes on the wire that the paper counts, and a resume from a checkpoint.
 * SPDX-License-Identifier: Apache-2.0 */
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
#include "tests/support/signs_formula.h"
#include "tests/support/toy_run.h"

/* ---- beside the formula, on gradients that a program gives ---- */

#define FREEZE 30
#define LR 0.002
#define BETA1 0.9
#define BETA2 0.99
#define EPS 1e-6
#define DECAY 0.1

static void reference_step(signs_formula *f, int64_t update, double grads[SIGNS_RANKS][SIGNS_ELEMENTS])
{
    static double mine[SIGNS_RANKS][SIGNS_ELEMENTS];
    for (int64_t i = 0; i < SIGNS_ELEMENTS && (update <= FREEZE || f->world == 1); i++) {
        double g = signs_mean(grads, f->world, i);
        g = update > FREEZE && f->v[i] == 0 ? 0 : g;
        f->m[i] = BETA1 * f->m[i] + (1 - BETA1) * g;
        if (update <= FREEZE)
            f->v[i] = BETA2 * f->v[i] + (1 - BETA2) * g * g;
    }
    for (int32_t r = 0; r < f->world; r++)
        for (int64_t i = 0; i < SIGNS_ELEMENTS; i++)
            mine[r][i] = BETA1 * f->m[i] + (1 - BETA1) * grads[r][i];
    if (update > FREEZE && f->world > 1)
        signs_exchange(f, mine, f->m);
    for (int64_t i = 0; i < SIGNS_ELEMENTS; i++)
        f->p[i] -= LR * (f->m[i] / (sqrt(f->v[i]) + EPS) + DECAY * f->p[i]);
    for (int32_t r = 0; r < f->world; r++)
        memcpy(f->at[r], f->p, sizeof f->p);
}

static void the_formula(void **state)
{
    signs_beside_formula("{\"type\": \"OneBitAdam\", \"params\": {\"lr\": 0.002, \"betas\": [0.9, 0.99], \"eps\": 1e-6,"
                         " \"weight_decay\": 0.1, \"freeze_step\": 30}}", FREEZE, reference_step);
}

/* ---- a model's training ---- */

#define STEPS 4
#define AFTER 3 /* freeze_step */

typedef struct variant {
    int32_t world, accumulation;
    const char *type, *params, *precision, *more, *own; /* members, each preceded by a comma */
} variant;
#define ONEBIT { 2, 2, "OneBitAdam", ", \"freeze_step\": 3", "", "", "" }

static void write_config(const variant *v, char *config, size_t room)
{
    snprintf(config, room,
             "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": %d, \"optimizer\": {\"type\":"
             " \"%s\", \"params\": {\"lr\": 0.003, \"betas\": [0.9, 0.9], \"weight_decay\": 0.1%s}},"
             " \"gradient_clipping\": 0.5%s%s,"
             " \"dsc\": {\"threads\": 1%s}}", (int)v->accumulation, v->type, v->params, v->precision, v->more, v->own);
}

static void run_variant(const variant *v, const run_options *more, run_result *out)
{
    char config[1024];
    write_config(v, config, sizeof config);
    toy_run(v->world, config, more, out);
    if (out->status != DSC_OK)
        fail_msg("%s: %s", out->error.where, out->error.message);
    assert_true(out->tracked_peak <= out->planned + out->planned / 100);
    assert_int_equal(out->alloc_calls_at_end, out->alloc_calls_after_first);
}

static bool same(const run_result *a, const run_result *b, int64_t steps)
{
    return memcmp(a->loss, b->loss, (size_t)steps * sizeof(double)) == 0 &&
           memcmp(a->norm, b->norm, (size_t)steps * sizeof(double)) == 0 && strcmp(a->hash, b->hash) == 0;
}

/* All ranks' parameters, momentum and variance, one rank's beside the next. */
static unsigned char *copies[RUN_RANKS_MAX];
static size_t copy_bytes;

static dsc_status copy_states(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    const dsc_zero *zero = dsc_probe_zero(engine);
    const dsc_probe_memory params = dsc_probe_params(zero), moments = dsc_probe_moments(zero);
    size_t bytes = 0;
    DSC_TRY(dsc_probe_settle(engine, err));
    copies[rank] = calloc(1, (size_t)(params.bytes + moments.bytes));
    if (copies[rank] == NULL)
        return DSC_FAIL(err, DSC_ERR_NOMEM, "", "no memory for a copy");
    memcpy(copies[rank], params.ptr, (size_t)params.bytes);
    bytes += (size_t)params.bytes;
    memcpy(copies[rank] + bytes, moments.ptr, (size_t)moments.bytes);
    if (rank == 0) /* as many on each */
        copy_bytes = bytes + (size_t)moments.bytes;
    return DSC_OK;
}

static void ranks_agree(void **state)
{
    static const char *const precisions[] = { "", ", \"bf16\": {\"enabled\": true}",
                                              ", \"fp16\": {\"enabled\": true, \"initial_scale_power\": 6}" };
    for (size_t p = 0; p < DSC_COUNT(precisions); p++)
        for (int32_t world = 2; world <= 3; world++) {
            variant v = ONEBIT;
            run_result first, other;
            v.world = world;
            v.precision = precisions[p];
            run_variant(&v, &(run_options){ .steps = 3 * STEPS, .after = copy_states }, &first);
            for (int32_t r = 0; r < world; r++) {
                assert_memory_equal(copies[0], copies[r], copy_bytes);
                if (r > 0)
                    free(copies[r]);
            }
            free(copies[0]);
            v.more = ", \"zero_optimization\": {\"stage\": 0, \"overlap_comm\": true}";
            v.own = ", \"threads\": 3";
            run_variant(&(variant){ v.world, v.accumulation, v.type, v.params, v.precision, v.more, "" },
                        &(run_options){ .steps = 3 * STEPS, .caps_mask = 1u << 31 }, &other);
            assert_true(same(&first, &other, 3 * STEPS));
        }
}

/* Until the variance is frozen it is Adam without bias correction, bit by bit; then it is not. */
static void warm_up_is_adam(void **state)
{
    variant v = ONEBIT;
    run_result onebit, adam;
    run_variant(&v, &(run_options){ .steps = AFTER }, &onebit);
    variant a = ONEBIT;
    a.type = "AdamW";
    a.params = ", \"bias_correction\": false";
    run_variant(&a, &(run_options){ .steps = AFTER }, &adam);
    assert_true(same(&onebit, &adam, AFTER));
    run_variant(&v, &(run_options){ .steps = AFTER + 1 }, &onebit);
    run_variant(&a, &(run_options){ .steps = AFTER + 1 }, &adam);
    assert_memory_equal(onebit.loss, adam.loss, (AFTER + 1) * sizeof(double));
    assert_string_not_equal(onebit.hash, adam.hash);
    /* freeze_step 0: one update measures the variance. */
    v.params = ", \"freeze_step\": 0";
    run_variant(&v, &(run_options){ .steps = STEPS }, &onebit);
    v.params = ", \"freeze_step\": 1";
    run_variant(&v, &(run_options){ .steps = STEPS }, &adam);
    assert_true(same(&onebit, &adam, STEPS));
}

static int64_t elements, tensors; /* elements of trainable tensors; number of all tensors */

static dsc_status take_layout(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    if (rank == 0) {
        elements = dsc_probe_layout(engine)->trainable_count;
        tensors = dsc_probe_layout(engine)->tensor_count;
    }
    return DSC_OK;
}

/* Every other rank sends one bit per element of this rank's slice, and one per element of its own slice. For N elements
 * that is 2 (W - 1) / W * N / 8 bytes, a 32nd of fp32. Every other rank also sends two scales per tensor. */
static void bytes_on_the_wire(void **state)
{
    for (int32_t world = 2; world <= 4; world++) {
        variant v = ONEBIT;
        run_result warm, late;
        int64_t steps = AFTER;
        v.world = world;
        run_variant(&v, &(run_options){ .steps = 2 }, &warm);
        run_variant(&v, &(run_options){ .steps = STEPS, .before = run_steps, .after = take_layout, .user = &steps },
                    &late);
        const int64_t signs = 2 * (world - 1) * elements / world / 8, scales = 2 * (world - 1) * tensors * 4;
        /* Slices are multiples of 1024 elements, tensors begin at multiples of 128; losses and norms go beside. */
        const int64_t padding = 2 * (world - 1) * (1024 / 8 * toy_run_model->module_count + 128 / 8 * tensors);
        print_message("# %d ranks: %lld bytes a step with signs, %lld before; the formula %lld and scales %lld\n",
                      (int)world, (long long)late.wire_bytes, (long long)warm.wire_bytes, (long long)signs,
                      (long long)scales);
        assert_true(late.wire_bytes >= signs + scales);
        assert_true(late.wire_bytes <= signs + scales + padding + 4096);
    }
}

/* ---- checkpoints ---- */

/* Each rank's moments, compression errors, and moments with these errors applied, one group after the other. */
typedef struct settled {
    float *before, *own, *after;
    bool all_zero; /* nothing is left out any more */
} settled;
static settled of_rank[RUN_RANKS_MAX];
static dsc_layout_group groups[64];
static int32_t group_count;

static float *copy_of(dsc_engine *engine, const void *from, int64_t count)
{
    float *to = malloc((size_t)count * sizeof *to);
    if (to != NULL && dsc_stream_sync(dsc_probe_compute_stream(engine), NULL) == DSC_OK)
        memcpy(to, from, (size_t)count * sizeof *to);
    return to;
}

static dsc_status settle(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    dsc_zero *zero = dsc_probe_zero(engine);
    settled *s = &of_rank[rank];
    const dsc_probe_memory moments = dsc_probe_moments(zero), left = dsc_probe_sign_errors(zero);
    const int64_t count = moments.bytes / 8, errors = left.bytes / 4;
    DSC_TRY(dsc_probe_settle(engine, err));
    s->own = copy_of(engine, left.ptr, errors);
    s->before = copy_of(engine, moments.ptr, 2 * count);
    DSC_TRY(dsc_zero_settle_signs(zero, 0.9, err));
    s->after = copy_of(engine, moments.ptr, 2 * count);
    s->all_zero = true;
    for (int64_t i = 0; i < errors; i++)
        s->all_zero = s->all_zero && ((const float *)left.ptr)[i] == 0;
    if (rank == 0) {
        group_count = dsc_probe_layout(engine)->group_count;
        memcpy(groups, dsc_probe_layout(engine)->group, (size_t)group_count * sizeof groups[0]);
    }
    return s->own != NULL && s->before != NULL && s->after != NULL ? DSC_OK : DSC_FAIL(err, DSC_ERR_NOMEM, "", "none");
}

/* Nothing is lost: beta1 of the new momentum is beta1 of the old one and the mean of what signs left out. */
static void compression_errors_are_saved_in_the_momentum(void **state)
{
    variant v = ONEBIT;
    run_result r;
    int64_t moved = 0;
    v.world = 3;
    run_variant(&v, &(run_options){ .steps = 2 * STEPS, .after = settle }, &r);
    int64_t moments = 0, errors = 0;
    for (int32_t g = 0; g < group_count; g++) {
        const dsc_layout_group *group = &groups[g];
        for (int64_t i = 0; i < (group->trainable ? group->padded : 0); i++) {
            const double old = (double)of_rank[0].before[moments + i];
            const double variance = (double)of_rank[0].before[moments + group->padded + i];
            const settled *owner = &of_rank[i / group->slice];
            double left = (double)owner->own[errors + group->padded + i % group->slice];
            for (int32_t k = 0; k < v.world; k++)
                left += (double)of_rank[k].own[errors + i] / v.world;
            const double expected = variance == 0 ? 0 : old + left / 0.9;
            for (int32_t k = 0; k < v.world; k++) {
                const double got = (double)of_rank[k].after[moments + i];
                if (fabs(got - expected) > 1e-6 * (fabs(old) + fabs(left)))
                    fail_msg("group %d, element %d, rank %d: %g, not %g", (int)g, (int)i, (int)k, got, expected);
            }
            moved += expected != old;
        }
        moments += group->trainable ? 2 * group->padded : 0;
        errors += group->trainable ? group->padded + group->slice : 0;
    }
    assert_true(moved > 1000);
    for (int32_t k = 0; k < v.world; k++) {
        assert_true(of_rank[k].all_zero);
        free(of_rank[k].own);
        free(of_rank[k].before);
        free(of_rank[k].after);
    }
}

static void runs_go_on(void **state)
{
    char dir[600];
    variant v = ONEBIT;
    run_result whole, rest;
    snprintf(dir, sizeof dir, "%s/ckpt", toy_run_folder);
    run_trip trip = { 2 * STEPS, dir };
    v.accumulation = 3;
    v.precision = ", \"bf16\": {\"enabled\": true}";
    run_variant(&v, &(run_options){ .steps = STEPS, .before = run_steps_and_save, .user = &trip }, &whole);
    run_variant(&v, &(run_options){ .steps = STEPS, .before = run_load, .user = dir }, &rest);
    assert_true(same(&whole, &rest, STEPS));
    v.world = 3; /* goes on, with errors of other ranks */
    v.accumulation = 2;
    run_variant(&v, &(run_options){ .steps = STEPS, .before = run_load, .user = dir }, &rest);
    assert_true(fabs(rest.loss[0] - whole.loss[0]) < 1e-6 * whole.loss[0]);
    assert_true(isfinite(rest.loss[STEPS - 1]) && rest.loss[STEPS - 1] != whole.loss[STEPS - 1]);
    cw_remove(dir);
}

/* The second update sends signs. */
static void faults_end_in_errors(void **state)
{
    char config[1024];
    variant v = ONEBIT;
    v.params = ", \"freeze_step\": 1";
    v.own = ", \"comm_timeout_s\": 20";
    write_config(&v, config, sizeof config);
    assert_int_equal(v.world, 2);
    toy_run_with_faults(config, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_formula),
        cmocka_unit_test(ranks_agree),
        cmocka_unit_test(warm_up_is_adam),
        cmocka_unit_test(bytes_on_the_wire),
        cmocka_unit_test(compression_errors_are_saved_in_the_momentum),
        cmocka_unit_test(runs_go_on),
        cmocka_unit_test(faults_end_in_errors),
    };
    return cmocka_run_group_tests(tests, toy_run_open, toy_run_close);
}
