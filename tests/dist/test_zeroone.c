/* test_zeroone.c - 0/1 Adam. Checked are the phase of each update, the formula in double, and equal bits on all
 * synchronized ranks. Further the bytes on the wire, and a save of ranks that are not synchronized.
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

/* ---- the policy, as counters ---- */

typedef struct policy {
    int64_t freeze, variance_scaler, local_scaler, local_most;
    int64_t apart, since, moves;             /* of the variance */
    int64_t apart_ranks, since_ranks, steps; /* of ranks */
} policy;

static policy begin_policy(int64_t freeze, int64_t variance_scaler, int64_t local_scaler, int64_t local_most)
{
    return (policy){ freeze, variance_scaler, local_scaler, local_most, 1, 0, 0, 1, 0, 0 };
}

static dsc_onebit_phase next_turn(policy *p, int64_t update)
{
    if (update <= p->freeze) {
        if (++p->since < p->apart)
            return DSC_PHASE_GRADIENTS;
        p->since = 0;
        if (++p->moves == p->variance_scaler) {
            p->moves = 0;
            p->apart *= 2;
        }
        return DSC_PHASE_SUMS;
    }
    const bool longer = ++p->steps == p->local_scaler && p->apart_ranks < p->local_most;
    const bool meet = ++p->since_ranks == p->apart_ranks || longer;
    if (longer) {
        p->steps = 0;
        p->apart_ranks = 2 * p->apart_ranks < p->local_most ? 2 * p->apart_ranks : p->local_most;
    }
    p->since_ranks = meet ? 0 : p->since_ranks;
    return meet ? DSC_PHASE_SYNCHRONIZE : DSC_PHASE_LOCAL;
}

static void turns(void **state)
{
    static const int64_t of[][4] = { { 500, 16, 64, 16 }, { 1, 1, 1, 1 },    { 200, 1, 3, 1000000000000 },
                                     { 77, 3, 10, 6 },    { 1000, 5, 7, 5 }, { 1500, 2000, 1, 3 } };
    for (size_t k = 0; k < DSC_COUNT(of); k++) {
        policy p = begin_policy(of[k][0], of[k][1], of[k][2], of[k][3]);
        const dsc_onebit_policy signs = { .kind = DSC_ONEBIT_ZEROONE,
                                          .freeze = of[k][0],
                                          .variance_scaler = of[k][1],
                                          .local_scaler = of[k][2],
                                          .local_most = of[k][3] };
        for (int64_t u = 1; u <= 3000; u++)
            assert_int_equal(dsc_onebit_phase_of(&signs, u), next_turn(&p, u));
        assert_int_not_equal(dsc_onebit_phase_of(&signs, INT64_C(1) << 50), DSC_PHASE_SUMS);
    }
    const dsc_onebit_policy adam = { .kind = DSC_ONEBIT_ADAM, .freeze = 3 }, none = { .kind = DSC_ONEBIT_NEVER };
    assert_int_equal(dsc_onebit_phase_of(&adam, 3), DSC_PHASE_SUMS);
    assert_int_equal(dsc_onebit_phase_of(&adam, 4), DSC_PHASE_MOMENTUM);
    assert_int_equal(dsc_onebit_phase_of(&none, 4), DSC_PHASE_SUMS);
}

/* ---- beside the formula ---- */

#define FREEZE 40
#define LR 0.002
#define BETA1 0.9
#define BETA2 0.99
#define EPS 1e-6
#define DECAY 0.1
#define KEPT (1 - LR * DECAY)

static policy now; /* policy of the formula's run */

/* All ranks take the same step, along gradients that all have. */
static void step_together(signs_formula *f, const double *grad, bool moves)
{
    for (int64_t i = 0; i < SIGNS_ELEMENTS; i++) {
        const double g = !moves && f->v[i] == 0 ? 0 : grad[i];
        f->m[i] = BETA1 * f->m[i] + (1 - BETA1) * g;
        if (moves)
            f->v[i] = BETA2 * f->v[i] + (1 - BETA2) * g * g;
        f->p[i] = KEPT * f->p[i] - LR * f->m[i] / (sqrt(f->v[i]) + EPS);
    }
    for (int32_t r = 0; r < f->world; r++)
        memcpy(f->at[r], f->p, sizeof f->p);
}

static void start_local_phase(signs_formula *f)
{
    f->decays = 1;
    f->rates = 0;
    memset(f->local_update, 0, sizeof f->local_update);
    for (int32_t r = 0; r < f->world; r++)
        memcpy(f->moment[r], f->m, sizeof f->m);
}

static void step_apart(signs_formula *f, bool first, bool meet, double grads[SIGNS_RANKS][SIGNS_ELEMENTS])
{
    static double mean[SIGNS_ELEMENTS];
    if (first)
        start_local_phase(f);
    f->decays *= KEPT;
    f->rates += LR;
    for (int32_t r = 0; r < f->world; r++)
        for (int64_t i = 0; i < SIGNS_ELEMENTS; i++) {
            double *m = &f->moment[r][i], *local_update = &f->local_update[r][i];
            *m = f->v[i] == 0 ? 0 : BETA1 * *m + (1 - BETA1) * grads[r][i];
            *local_update = KEPT * *local_update - LR * *m;
            f->at[r][i] = f->decays * f->p[i] + *local_update / (sqrt(f->v[i]) + EPS);
        }
    if (!meet)
        return;
    signs_exchange(f, f->local_update, mean);
    for (int64_t i = 0; i < SIGNS_ELEMENTS; i++) {
        f->p[i] = f->decays * f->p[i] + mean[i] / (sqrt(f->v[i]) + EPS);
        f->m[i] = -mean[i] / f->rates;
    }
    for (int32_t r = 0; r < f->world; r++)
        memcpy(f->at[r], f->p, sizeof f->p);
}

static void reference_step(signs_formula *f, int64_t update, double grads[SIGNS_RANKS][SIGNS_ELEMENTS])
{
    static double grad[SIGNS_ELEMENTS];
    if (update == 1)
        now = begin_policy(FREEZE, 4, 20, 6);
    const bool first = now.since_ranks == 0;
    const dsc_onebit_phase turn = next_turn(&now, update);
    for (int64_t i = 0; i < SIGNS_ELEMENTS; i++)
        grad[i] = signs_mean(grads, f->world, i);
    if (update == FREEZE + 1)
        signs_forget(f);
    if (f->world > 1 && turn == DSC_PHASE_GRADIENTS)
        signs_exchange(f, grads, grad);
    if (f->world > 1 && update > FREEZE)
        step_apart(f, first, turn == DSC_PHASE_SYNCHRONIZE, grads);
    else
        step_together(f, grad, turn == DSC_PHASE_SUMS);
}

static void the_formula(void **state)
{
    signs_beside_formula("{\"type\": \"ZeroOneAdam\", \"params\": {\"lr\": 0.002, \"betas\": [0.9, 0.99],"
                         " \"eps\": 1e-6, \"weight_decay\": 0.1, \"var_freeze_step\": 40, \"var_update_scaler\": 4,"
                         " \"local_step_scaler\": 20, \"local_step_clipper\": 6}}", FREEZE, reference_step);
}

/* ---- a model's training ---- */

/* Updates 1, 2 and 4 move the variance, 3 and 5 exchange signs of gradients; ranks meet at 6, 7, 9, 13, 17, ... */
#define PARAMS                                                                      \
    ", \"var_freeze_step\": 5, \"var_update_scaler\": 2, \"local_step_scaler\": 2," \
    " \"local_step_clipper\": 4"
#define BF16 ", \"bf16\": {\"enabled\": true}"

typedef struct variant {
    int32_t world, accumulation;
    const char *type, *params, *more; /* members, each preceded by a comma */
} variant;

static void run(const variant *v, const run_options *more, run_result *out)
{
    char config[1024];
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": %d, \"optimizer\": {\"type\":"
             " \"%s\", \"params\": {\"lr\": 0.003, \"betas\": [0.9, 0.9], \"weight_decay\": 0.1%s}},"
             " \"gradient_clipping\": 0.5%s, \"dsc\": {\"threads\": 1, \"param_groups\": [{\"params\": \"*.bias\","
             " \"weight_decay\": 0, \"lr_scale\": 0.5}]}}", (int)v->accumulation, v->type, v->params, v->more);
    toy_run(v->world, config, more, out);
    if (out->status != DSC_OK)
        fail_msg("%s: %s", out->error.where, out->error.message);
    assert_true(out->tracked_peak <= out->planned + out->planned / 100);
    assert_true(out->tracked_peak >= out->planned - out->planned / 100);
    assert_int_equal(out->alloc_calls_at_end, out->alloc_calls_after_first);
}

static dsc_status settle(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    DSC_TRY(dsc_probe_settle(engine, err));
    return dsc_zero_settle_signs(dsc_probe_zero(engine), 0.9, err);
}

/* A rank's parameters and masters, moments, errors, local updates, and the weights before the local phase. */
typedef struct copy {
    float *moments, *errors, *local_update, *shared, *weights;
} copy;
static struct { copy before, after; } of_rank[RUN_RANKS_MAX];
static dsc_layout_group groups[64];
static int32_t group_count;
static dsc_probe_onebit kept;

/* Weights and shared ones are cut by group: of trainable groups, one after the other. */
static float *whole(dsc_engine *engine, bool shared)
{
    const dsc_layout *layout = dsc_probe_layout(engine);
    const dsc_zero *zero = dsc_probe_zero(engine);
    const bool apart = dsc_probe_onebit_get(zero).has_local_steps;
    float *to = calloc((size_t)dsc_probe_grad_bytes(zero), 1), *at = to;
    for (int32_t g = 0; g < layout->group_count; g++)
        if (layout->group[g].trainable) {
            memcpy(at, shared && apart ? dsc_probe_shared_weights(zero, g) : dsc_probe_master(zero, g),
                   (size_t)layout->group[g].padded * sizeof *at);
            at += layout->group[g].padded;
        }
    return to;
}

static float *copy_of(dsc_probe_memory memory)
{
    return memcpy(malloc((size_t)memory.bytes), memory.ptr, (size_t)memory.bytes);
}

static copy take(dsc_engine *engine)
{
    const dsc_zero *zero = dsc_probe_zero(engine);
    return (copy) { copy_of(dsc_probe_moments(zero)), copy_of(dsc_probe_sign_errors(zero)),
                    copy_of(dsc_probe_local_updates(zero)), whole(engine, true), whole(engine, false) };
}

static void drop(copy *c)
{
    free(c->moments);
    free(c->errors);
    free(c->local_update);
    free(c->shared);
    free(c->weights);
}

static dsc_status take_and_settle(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    DSC_TRY(dsc_probe_settle(engine, err));
    of_rank[rank].before = take(engine);
    if (rank == 0) {
        kept = dsc_probe_onebit_get(dsc_probe_zero(engine));
        group_count = dsc_probe_layout(engine)->group_count;
        memcpy(groups, dsc_probe_layout(engine)->group, (size_t)group_count * sizeof groups[0]);
    }
    DSC_TRY(settle(engine, rank, user, err));
    of_rank[rank].after = take(engine);
    return DSC_OK;
}

/* Element i of a group whose weights, and whose errors, begin there. */
static void check_element(int32_t world, const dsc_layout_group *group, int64_t begin, int64_t error_at, int64_t i)
{
    const copy *first = &of_rank[0].before;
    const int64_t moment_at = 2 * begin + i, at = begin + i;
    const double v = (double)first->moments[moment_at + group->padded], d = sqrt(v) + 1e-8;
    double left = (double)of_rank[i / group->slice].before.errors[error_at + group->padded + i % group->slice];
    double size = fabs(left); /* size of a term of the fp32 sum */
    for (int32_t r = 0; r < world; r++) {
        const double error = (double)of_rank[r].before.errors[error_at + i];
        const double local_update = kept.has_local_steps ? (double)of_rank[r].before.local_update[at] : 0;
        left += (error + local_update) / world;
        size += fabs(error) + fabs(local_update);
    }
    left = v == 0 ? 0 : left;
    for (int32_t r = 0; r < world; r++) {
        const copy *b = &of_rank[r].before, *a = &of_rank[r].after;
        const double m = (double)a->moments[moment_at], w = (double)a->weights[at];
        assert_true(a->weights[at] == of_rank[0].after.weights[at]);
        assert_true(a->moments[moment_at] == of_rank[0].after.moments[moment_at]);
        if (kept.error_phase == DSC_PHASE_GRADIENTS) {
            const double expected = (double)b->moments[moment_at] + left * (1 - 0.9) / 0.9;
            assert_true(fabs(m - expected) <= 1e-6 * (fabs(expected) + size));
            assert_true(a->weights[at] == b->weights[at]);
            continue;
        }
        bool some = false; /* classes of weights: with and without decay, and of biases */
        for (int32_t c = 0; c < 4 && !some; c++) {
            const double decays = kept.has_local_steps ? kept.decays[c] : 1, from = decays * (double)b->shared[at];
            const double to = from + left / d, per_rate = kept.has_local_steps ? -1 / kept.rates[c] : 0;
            const double moment = kept.has_local_steps ? left * per_rate : (double)b->moments[moment_at];
            some = fabs(w - to) <= 1e-6 * (fabs(from) + size / d) && fabs(m - moment) <= 1e-6 * size * fabs(per_rate);
        }
        if (!some)
            fail_msg("rank %d, element %d: weight %.9g, momentum %.9g", (int)r, (int)at, w, m);
    }
}

/* Nothing is lost: what signs left out, and what ranks have local_update, is in the momentum or in the weights. */
static void a_save_settles(void **state)
{
    static const struct {
        int64_t steps;
        bool apart;
        dsc_onebit_phase of;
    } cases[] = {
        { 4, false, DSC_PHASE_GRADIENTS },   { 5, false, DSC_PHASE_GRADIENTS },   { 9, false, DSC_PHASE_SYNCHRONIZE },
        { 10, true, DSC_PHASE_SYNCHRONIZE }, { 14, true, DSC_PHASE_SYNCHRONIZE },
    };
    for (size_t k = 0; k < 2 * DSC_COUNT(cases); k++) {
        run_result r;
        const variant v = { 3, 2, "ZeroOneAdam", PARAMS, k % 2 == 0 ? "" : BF16 };
        run(&v, &(run_options){ .steps = cases[k / 2].steps, .after = take_and_settle }, &r);
        assert_int_equal(kept.has_local_steps, cases[k / 2].apart);
        assert_int_equal(kept.error_phase, cases[k / 2].of);
        int64_t begin = 0, error_at = 0;
        for (int32_t g = 0; g < group_count; g++) {
            if (!groups[g].trainable)
                continue;
            for (int64_t i = 0; i < groups[g].padded; i++)
                check_element(v.world, &groups[g], begin, error_at, i);
            begin += groups[g].padded;
            error_at += groups[g].padded + groups[g].slice;
        }
        for (int32_t rank = 0; rank < v.world; rank++) {
            for (int64_t i = 0; i < error_at; i++)
                assert_true(of_rank[rank].after.errors[i] == 0);
            drop(&of_rank[rank].before);
            drop(&of_rank[rank].after);
        }
    }
}

/* All ranks' parameters, momentum and variance. */
static unsigned char *states[RUN_RANKS_MAX];
static size_t state_bytes;

static dsc_status take_states(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    const dsc_zero *zero = dsc_probe_zero(engine);
    const dsc_probe_memory param = dsc_probe_params(zero), moment = dsc_probe_moments(zero);
    DSC_TRY(dsc_probe_settle(engine, err));
    states[rank] = malloc((size_t)(param.bytes + moment.bytes));
    memcpy(states[rank], param.ptr, (size_t)param.bytes);
    memcpy(states[rank] + param.bytes, moment.ptr, (size_t)moment.bytes);
    if (rank == 0)
        state_bytes = (size_t)(param.bytes + moment.bytes); /* equal on all ranks */
    return DSC_OK;
}

static void ranks_agree_when_they_meet(void **state)
{
    static const char *const precisions[] = { "", BF16, ", \"fp16\": {\"enabled\": true, \"initial_scale_power\": 6}" };
    for (size_t p = 0; p < DSC_COUNT(precisions); p++)
        for (int32_t world = 2; world <= 3; world++)
            for (int64_t steps = 12; steps <= 13; steps++) {
                variant v = { world, 2, "ZeroOneAdam", PARAMS, precisions[p] };
                char more[256];
                run_result first, other;
                run(&v, &(run_options){ .steps = steps, .after = take_states }, &first);
                for (int32_t r = 1; r < world; r++) {
                    assert_int_equal(memcmp(states[0], states[r], state_bytes) == 0, steps == 13);
                    free(states[r]);
                }
                free(states[0]);
                snprintf(more, sizeof more, "%s, \"zero_optimization\": {\"stage\": 0, \"overlap_comm\": true}",
                         precisions[p]);
                v.more = more;
                run(&v, &(run_options){ .steps = steps, .caps_mask = 1u << 31 }, &other);
                run_expect_same(&first, &other);
            }
}

/* While the variance moves in every update it is Adam without bias correction, bit by bit. */
static void begins_as_adam(void **state)
{
    run_result zeroone, adam;
    run(&(variant){ 2, 2, "ZeroOneAdam", PARAMS, "" }, &(run_options){ .steps = 2 }, &zeroone);
    run(&(variant){ 2, 2, "AdamW", ", \"bias_correction\": false", "" }, &(run_options){ .steps = 2 }, &adam);
    run_expect_same(&zeroone, &adam);
}

/* Beside 1-bit Adam's: a rank's way, and in fp32 the weights that it began at. */
static void memory_is_planned(void **state)
{
    for (int bf16 = 0; bf16 < 2; bf16++) {
        run_result zeroone, onebit;
        const char *more = bf16 != 0 ? BF16 : "";
        run(&(variant){ 3, 2, "ZeroOneAdam", PARAMS, more }, &(run_options){ .steps = 10 }, &zeroone);
        run(&(variant){ 3, 2, "OneBitAdam", ", \"freeze_step\": 1", more }, &(run_options){ .steps = 10 }, &onebit);
        const int64_t ways = zeroone.state_bytes[3] / 2 * (bf16 != 0 ? 1 : 2);
        assert_true(llabs(zeroone.planned - onebit.planned - ways) < 256); /* their configs' texts */
        assert_true(llabs(zeroone.tracked_peak - onebit.tracked_peak - ways) < 256);
    }
}

static int64_t wire_bytes_of(const char *type, const char *params, int64_t update)
{
    run_result r;
    int64_t before = update - 1;
    const variant v = { 3, 2, type, params, "" };
    run(&v, &(run_options){ .steps = 1, .before = before > 0 ? run_steps : NULL, .user = &before }, &r);
    return r.wire_bytes;
}

/* Signs take what 1-bit Adam's do, whatever they are of; a step of a rank's own takes none. Losses and norms go
 * beside. */
static void bytes_on_the_wire(void **state)
{
    const int64_t sums = wire_bytes_of("AdamW", "", 2), signs = wire_bytes_of("OneBitAdam", ", \"freeze_step\": 1", 3);
    assert_true(signs < sums / 8);
    assert_int_equal(wire_bytes_of("ZeroOneAdam", PARAMS, 2), sums);
    assert_int_equal(wire_bytes_of("ZeroOneAdam", PARAMS, 3), signs);
    assert_int_equal(wire_bytes_of("ZeroOneAdam", PARAMS, 9), signs);
    const int64_t alone = wire_bytes_of("ZeroOneAdam", PARAMS, 10);
    print_message("# 3 ranks: %lld bytes for sums, %lld for signs, %lld for neither\n", (long long)sums,
                  (long long)signs, (long long)alone);
    assert_true(alone < 4096 && alone < signs / 2);
}

/* ---- checkpoints and faults ---- */

/* Saved while the variance moves, while ranks are apart, and when they have met. */
static void runs_go_on(void **state)
{
    for (int64_t steps = 4; steps <= 15; steps += steps == 4 ? 6 : 5) {
        char dir[600];
        variant v = { 2, 3, "ZeroOneAdam", PARAMS, steps == 10 ? "" : BF16 };
        run_result saved, rest;
        snprintf(dir, sizeof dir, "%s/ckpt", toy_run_folder);
        run_trip t = { steps, dir };
        run(&v, &(run_options){ .steps = 12, .before = run_steps_and_save, .user = &t }, &saved);
        run(&v, &(run_options){ .steps = 12, .before = run_load, .user = dir }, &rest);
        run_expect_same(&saved, &rest);
        v.world = 3;
        v.accumulation = 2;
        run(&v, &(run_options){ .steps = 12, .before = run_load, .user = dir }, &rest);
        assert_true(fabs(rest.loss[0] - saved.loss[0]) < 1e-6 * saved.loss[0]);
        assert_true(isfinite(rest.loss[11]) && rest.loss[11] != saved.loss[11]);
        cw_remove(dir);
    }
}

/* A save of ranks that are apart is among what may fail. */
static void faults_end_in_errors(void **state)
{
    toy_run_with_faults("{\"train_micro_batch_size_per_gpu\": 2, \"optimizer\": {\"type\": \"ZeroOneAdam\","
                        " \"params\": {\"var_freeze_step\": 2, \"var_update_scaler\": 1, \"local_step_scaler\": 1}},"
                        " \"dsc\": {\"threads\": 1, \"comm_timeout_s\": 20}}", 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(turns),
        cmocka_unit_test(the_formula),
        cmocka_unit_test(a_save_settles),
        cmocka_unit_test(ranks_agree_when_they_meet),
        cmocka_unit_test(begins_as_adam),
        cmocka_unit_test(memory_is_planned),
        cmocka_unit_test(bytes_on_the_wire),
        cmocka_unit_test(runs_go_on),
        cmocka_unit_test(faults_end_in_errors),
    };
    return cmocka_run_group_tests(tests, toy_run_open, toy_run_close);
}
