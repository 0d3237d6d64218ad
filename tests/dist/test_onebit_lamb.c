/* test_onebit_lamb.c - 1-bit LAMB: comparison with DeepSpeed's formula in double, equal bits on all ranks and for any
 * schedule, the bytes on the wire, and a resume from a checkpoint.
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
#include "tests/support/run_expect.h"
#include "tests/support/signs_formula.h"
#include "tests/support/toy_run.h"

/* ---- beside the formula, on gradients that a program gives ---- */

#define FREEZE 30
#define BETA1 0.9
#define EPS 1e-6

/* Differences between the cases below. */
typedef struct terms {
    double lr, beta2, decay, least, most, coeff_beta, factor_min, factor_max, threshold;
} terms;
static const terms *now;
static struct { int32_t at_most, at_least, up, down, between; } seen; /* how factors came about, over all ranks */

static double bounded(double x, double least, double most) { return x > most ? most : x < least ? least : x; }

/* The norm of the direction, without what weights decay by or with it. */
static double direction_norm(const signs_formula *f, int64_t first, int64_t end, double decay)
{
    double squares = 0;
    for (int64_t i = first; i < end; i++) {
        const double u = f->m[i] / (sqrt(f->v[i]) + EPS) + decay * f->p[i];
        squares += u * u;
    }
    return sqrt(squares);
}

static double warm_coeff(signs_formula *f, int32_t t, int64_t first, int64_t end)
{
    double squares = 0;
    const double along = direction_norm(f, first, end, now->decay);
    for (int64_t i = first; i < end; i++)
        squares += f->p[i] * f->p[i];
    if (squares == 0 || along == 0)
        return 1;
    const double coeff = bounded(sqrt(squares) / along, now->least, now->most);
    if (coeff != 1)
        f->coeff[t] = now->coeff_beta * f->coeff[t] + (1 - now->coeff_beta) * coeff;
    return coeff;
}

static double frozen_coeff(signs_formula *f, int32_t t, int64_t first, int64_t end)
{
    double factor = 0;
    const double bare = direction_norm(f, first, end, 0), along = direction_norm(f, first, end, now->decay);
    for (int64_t i = first; i < end; i++)
        factor = fmax(factor, (sqrt(f->v[i]) + EPS) / (sqrt(f->fresh[i]) + EPS));
    if (now->decay > 0 && bare < along)
        factor = factor * (bare / along) + 1 - bare / along;
    seen.at_most += factor > now->factor_max;
    seen.at_least += factor < now->factor_min;
    factor = bounded(factor, now->factor_min, now->factor_max);
    const double low = f->factor[t] * (1 - now->threshold), high = f->factor[t] * (1 + now->threshold);
    seen.up += factor > high;
    seen.down += factor < low;
    seen.between += factor > low && factor < high && factor > now->factor_min && factor < now->factor_max;
    f->factor[t] = bounded(factor, low, high);
    return f->coeff[t] * f->factor[t];
}

static void take_moments(signs_formula *f, int64_t update, double grads[SIGNS_RANKS][SIGNS_ELEMENTS])
{
    static double mine[SIGNS_RANKS][SIGNS_ELEMENTS], last[SIGNS_ELEMENTS];
    memcpy(last, f->m, sizeof last);
    for (int64_t i = 0; i < SIGNS_ELEMENTS; i++) {
        double g = signs_mean(grads, f->world, i);
        g = update > FREEZE && f->v[i] == 0 ? 0 : g;
        f->m[i] = BETA1 * f->m[i] + (1 - BETA1) * g;
        for (int32_t r = 0; r < f->world; r++)
            mine[r][i] = BETA1 * last[i] + (1 - BETA1) * grads[r][i];
    }
    if (update > FREEZE && f->world > 1)
        signs_exchange(f, mine, f->m);
    for (int64_t i = 0; i < SIGNS_ELEMENTS; i++) {
        const double g = (f->m[i] - BETA1 * last[i]) / (1 - BETA1);
        f->fresh[i] = now->beta2 * f->fresh[i] + (1 - now->beta2) * g * g;
        if (update <= FREEZE)
            f->v[i] = f->fresh[i];
    }
}

static void reference_step(signs_formula *f, int64_t update, double grads[SIGNS_RANKS][SIGNS_ELEMENTS])
{
    take_moments(f, update, grads);
    for (int32_t t = 0; t < SIGNS_TENSORS; t++) {
        int64_t first;
        const int64_t end = signs_tensor(t, &first) + first;
        if (update == 1)
            f->factor[t] = 1;
        const double coeff = update <= FREEZE ? warm_coeff(f, t, first, end) : frozen_coeff(f, t, first, end);
        for (int64_t i = first; i < end; i++)
            f->p[i] -= now->lr * coeff * (f->m[i] / (sqrt(f->v[i]) + EPS) + now->decay * f->p[i]);
    }
    for (int32_t r = 0; r < f->world; r++)
        memcpy(f->at[r], f->p, sizeof f->p);
}

/* Defaults; and bounds that are met, with weights that do not decay. */
static void the_formula(void **state)
{
    static const terms cases[] = {
        { 0.002, 0.99, 0.1, 0.01, 10, 0.9, 0.5, 4, 0.1 },
        { 0.01, 0.9, 0, 0.05, 0.2, 0.8, 0.9, 1.4, 0.03 },
        { 0.005, 0.95, 1, 0.01, 10, 0.9, 0.01, 100, 0.9 },
    };
    for (size_t k = 0; k < DSC_COUNT(cases); k++) {
        char optimizer[512];
        now = &cases[k];
        snprintf(optimizer, sizeof optimizer,
                 "{\"type\": \"OneBitLamb\", \"params\": {\"lr\": %g, \"betas\": [0.9, %g], \"eps\": 1e-6,"
                 " \"weight_decay\": %g, \"min_coeff\": %g, \"max_coeff\": %g, \"coeff_beta\": %g, \"factor_min\": %g,"
                 " \"factor_max\": %g, \"factor_threshold\": %g, \"freeze_step\": 30}}", now->lr, now->beta2,
                 now->decay, now->least, now->most, now->coeff_beta, now->factor_min, now->factor_max, now->threshold);
        signs_beside_formula(optimizer, FREEZE, reference_step);
        print_message("# factors: %d at most, %d at least, %d went up or %d down as far as they may, %d neither\n",
                      seen.at_most, seen.at_least, seen.up, seen.down, seen.between);
    }
    assert_true(seen.at_most > 0 && seen.at_least > 0 && seen.up > 0 && seen.down > 0 && seen.between > 0);
}

/* ---- a model's training ---- */

#define STEPS 4
#define AFTER 3 /* freeze_step */

typedef struct variant {
    int32_t world, accumulation;
    const char *type, *params, *precision, *more, *own; /* members, each preceded by a comma */
} variant;
#define LAMB { 2, 2, "OneBitLamb", ", \"freeze_step\": 3", "", "", "" }
#define BF16 ", \"bf16\": {\"enabled\": true}"

static void run(const variant *v, const run_options *more, run_result *out)
{
    char config[1024];
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": %d, \"optimizer\": {\"type\":"
             " \"%s\", \"params\": {\"lr\": 0.01, \"betas\": [0.9, 0.9], \"weight_decay\": 0.1%s}},"
             " \"gradient_clipping\": 0.5%s%s, \"dsc\": {\"threads\": 1%s}}", (int)v->accumulation, v->type, v->params,
             v->precision, v->more, v->own);
    toy_run(v->world, config, more, out);
    if (out->status != DSC_OK)
        fail_msg("%s: %s", out->error.where, out->error.message);
}

/* Parameters and all three moments, one rank's beside the next; what tensors have is compared by the run. */
static unsigned char *copies[RUN_RANKS_MAX];
static size_t copy_bytes;

static dsc_status copy_states(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    const dsc_zero *zero = dsc_probe_zero(engine);
    const dsc_probe_memory param = dsc_probe_params(zero), moment = dsc_probe_moments(zero);
    const size_t bytes = (size_t)(param.bytes + moment.bytes);
    DSC_TRY(dsc_probe_settle(engine, err));
    if (rank == 0) /* as many on each */
        copy_bytes = bytes;
    copies[rank] = malloc(bytes);
    if (copies[rank] == NULL)
        return DSC_FAIL(err, DSC_ERR_NOMEM, "", "no memory for a copy");
    memcpy(copies[rank], param.ptr, (size_t)param.bytes);
    memcpy(copies[rank] + param.bytes, moment.ptr, (size_t)moment.bytes);
    return DSC_OK;
}

static void ranks_agree(void **state)
{
    static const char *const precisions[] = { "", BF16, ", \"fp16\": {\"enabled\": true, \"initial_scale_power\": 6}" };
    for (size_t p = 0; p < DSC_COUNT(precisions); p++)
        for (int32_t world = 1; world <= 3; world++) {
            variant v = LAMB;
            run_result first, other;
            v.world = world;
            v.precision = precisions[p];
            run(&v, &(run_options){ .steps = 3 * STEPS, .after = copy_states }, &first);
            assert_true(first.tracked_peak <= first.planned + first.planned / 100);
            assert_int_equal(first.alloc_calls_at_end, first.alloc_calls_after_first);
            for (int32_t r = world; r-- > 0;) {
                assert_memory_equal(copies[0], copies[r], copy_bytes);
                free(copies[r]);
            }
            v.more = ", \"zero_optimization\": {\"stage\": 0, \"overlap_comm\": true}";
            v.own = ", \"reproducible\": \"plan\"";
            run(&v, &(run_options){ .steps = 3 * STEPS, .caps_mask = 1u << 31 }, &other);
            run_expect_same(&first, &other);
        }
}

/* Until the variance is frozen it is Lamb without bias corrections, bit by bit; then it is not. */
static void warm_up_is_lamb(void **state)
{
    variant v = LAMB, l = LAMB;
    run_result onebit, lamb;
    l.type = "Lamb";
    l.params = ", \"bias_correction\": false";
    run(&v, &(run_options){ .steps = AFTER + 1 }, &onebit);
    run(&l, &(run_options){ .steps = AFTER + 1 }, &lamb);
    assert_memory_equal(onebit.loss, lamb.loss, (AFTER + 1) * sizeof(double)); /* before each update */
    assert_memory_equal(onebit.norm, lamb.norm, AFTER * sizeof(double));
    run(&v, &(run_options){ .steps = AFTER + 2 }, &onebit);
    run(&l, &(run_options){ .steps = AFTER + 2 }, &lamb);
    assert_true(onebit.loss[AFTER + 1] != lamb.loss[AFTER + 1]);
    /* freeze_step 0: one update measures the variance. */
    v.params = ", \"freeze_step\": 0";
    run(&v, &(run_options){ .steps = STEPS }, &onebit);
    v.params = ", \"freeze_step\": 1";
    run(&v, &(run_options){ .steps = STEPS }, &lamb);
    run_expect_same(&onebit, &lamb);
}

static int64_t wire_bytes(const char *type, const char *params, int64_t before)
{
    variant v = LAMB;
    run_result r;
    v.world = 3;
    v.type = type;
    v.params = params;
    run(&v, &(run_options){ .steps = 1, .before = run_steps, .user = &before }, &r);
    return r.wire_bytes;
}

/* Norms of tensors go beside sums, as Lamb's; beside signs, which take what 1-bit Adam's do, nothing does. */
static void bytes_on_the_wire(void **state)
{
    const int64_t sums = wire_bytes("Lamb", "", 2), adam = wire_bytes("AdamW", "", 2);
    const int64_t signs = wire_bytes("OneBitAdam", ", \"freeze_step\": 1", 3);
    assert_int_equal(wire_bytes("OneBitLamb", ", \"freeze_step\": 3", 2), sums);
    assert_int_equal(wire_bytes("OneBitLamb", ", \"freeze_step\": 3", 3), signs);
    print_message("# 3 ranks: %lld bytes for sums and %lld for norms, %lld for signs\n", (long long)adam,
                  (long long)(sums - adam), (long long)signs);
}

/* ---- updates that are left out ---- */

/* A loss scale that is too large at first: those updates change nothing, and the run comes to what it comes to. */
static void updates_are_left_out(void **state)
{
    static const char *const powers[] = { "6", "40" };
    run_result r[2];
    for (int k = 0; k < 2; k++) {
        variant v = LAMB;
        char precision[160];
        snprintf(precision, sizeof precision, ", \"fp16\": {\"enabled\": true, \"initial_scale_power\": %s, "
                 "\"hysteresis\": 1}", powers[k]);
        v.precision = precision;
        v.params = ", \"freeze_step\": 2";
        run(&v, &(run_options){ .steps = 40 }, &r[k]);
        for (int64_t s = 0; s < 40; s++)
            assert_true(isfinite(r[k].loss[s]));
    }
    assert_true(isfinite(r[0].norm[0]) && !isfinite(r[1].norm[0]));
    assert_true(r[1].loss[39] < r[1].loss[0]);
}

/* ---- checkpoints and faults ---- */

/* Saved before the variance stays, as it does so, and later. */
static void runs_go_on(void **state)
{
    for (int64_t steps = AFTER - 1; steps <= AFTER + 4; steps += steps == AFTER ? 4 : 1) {
        char dir[600];
        variant v = LAMB;
        run_result saved, rest;
        snprintf(dir, sizeof dir, "%s/ckpt", toy_run_folder);
        run_trip t = { steps, dir };
        v.accumulation = 3;
        v.precision = steps == AFTER ? "" : BF16;
        run(&v, &(run_options){ .steps = 2 * STEPS, .before = run_steps_and_save, .user = &t }, &saved);
        run(&v, &(run_options){ .steps = 2 * STEPS, .before = run_load, .user = dir }, &rest);
        run_expect_same(&saved, &rest);
        v.world = 3;
        v.accumulation = 2;
        run(&v, &(run_options){ .steps = 2 * STEPS, .before = run_load, .user = dir }, &rest);
        assert_true(fabs(rest.loss[0] - saved.loss[0]) < 1e-6 * saved.loss[0]);
        assert_true(isfinite(rest.loss[2 * STEPS - 1]) && rest.loss[2 * STEPS - 1] != saved.loss[2 * STEPS - 1]);
        cw_remove(dir);
    }
}

/* Frozen earlier than the run that saved would have been, or thawed: a fresh variance begins when signs do. */
static bool expect_frozen;

static dsc_status check_fresh(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    const dsc_zero *zero = dsc_probe_zero(engine);
    const bool frozen = expect_frozen;
    int64_t other = 0;
    DSC_TRY(dsc_probe_settle(engine, err));
    const dsc_layout *layout = dsc_probe_layout(engine);
    for (int32_t t = 0; t < layout->tensor_count; t++) {
        const dsc_layout_tensor *tensor = &layout->tensor[t];
        const float *variance = dsc_probe_moment(zero, tensor->group, 1);
        const float *fresh = dsc_probe_moment(zero, tensor->group, 2);
        if (!tensor->spec->trainable)
            continue;
        const float *own = dsc_zero_tensor_state(zero, t);
        if (!(own[0] > 0) || (own[1] == 0) == frozen)
            return DSC_FAIL(err, DSC_ERR_INTERNAL, tensor->spec->name, "%g, %g", (double)own[0], (double)own[1]);
        for (int64_t i = tensor->offset; i < tensor->offset + tensor->count && frozen; i++) {
            const float v = variance[i], f = fresh[i];
            if ((v == 0) != (f == 0) || f < 0.89f * v) /* one update keeps a beta2 of it */
                return DSC_FAIL(err, DSC_ERR_INTERNAL, tensor->spec->name, "element %d: %g, %g", (int)i, (double)v,
                                (double)f);
            other += v != f;
        }
    }
    return frozen && other == 0 ? DSC_FAIL(err, DSC_ERR_INTERNAL, "", "it never moved") : DSC_OK;
}

static void freezing_at_another_time(void **state)
{
    char dir[600];
    variant late = LAMB, early = LAMB;
    run_result r;
    snprintf(dir, sizeof dir, "%s/ckpt", toy_run_folder);
    run_trip t = { 2 * STEPS, dir };
    late.params = ", \"freeze_step\": 100";
    run(&late, &(run_options){ .steps = 1, .before = run_steps_and_save, .user = &t }, &r);
    expect_frozen = true;
    run(&early, &(run_options){ .steps = 1, .before = run_load, .after = check_fresh, .user = dir }, &r);
    cw_remove(dir);
    run(&early, &(run_options){ .steps = 1, .before = run_steps_and_save, .user = &t }, &r);
    expect_frozen = false;
    run(&late, &(run_options){ .steps = 1, .before = run_load, .after = check_fresh, .user = dir }, &r);
    cw_remove(dir);
}

/* The second update freezes; the save is among what may fail. */
static void faults_end_in_errors(void **state)
{
    toy_run_with_faults("{\"train_micro_batch_size_per_gpu\": 2, \"optimizer\": {\"type\": \"OneBitLamb\","
                        " \"params\": {\"freeze_step\": 1, \"weight_decay\": 0.1}},"
                        " \"dsc\": {\"threads\": 1, \"comm_timeout_s\": 20}}", 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_formula),
        cmocka_unit_test(ranks_agree),
        cmocka_unit_test(warm_up_is_lamb),
        cmocka_unit_test(bytes_on_the_wire),
        cmocka_unit_test(updates_are_left_out),
        cmocka_unit_test(runs_go_on),
        cmocka_unit_test(freezing_at_another_time),
        cmocka_unit_test(faults_end_in_errors),
    };
    return cmocka_run_group_tests(tests, toy_run_open, toy_run_close);
}
