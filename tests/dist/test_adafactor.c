/* test_adafactor.c - Adafactor beside its paper's formula in double, as torch.optim has it and as transformers has it,
 * on matrices that slices cut anywhere. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <dsc/dsc.h>

#define RANKS_MAX 3
#define UPDATES 100
#define TENSORS 3
static const int64_t rows[TENSORS] = { 45, 129, 7 }, cols[TENSORS] = { 70, 0, 300 }; /* 0: a vector */
#define ELEMENTS (45 * 70 + 129 + 7 * 300)
#define FACTORS (45 + 70 + 129 + 7 + 300)
#define CLIP 0.75

typedef struct recipe {
    const char *params;
    double lr, weight_decay, eps, eps_weights, decay, beta1, clip;
    bool of_torch;
} recipe;

static const recipe recipes[] = {
    { "\"lr\": 0.02, \"weight_decay\": 0.05, \"beta2_decay\": -0.6, \"eps\": [1e-4, 0.01]", 0.02, 0.05, 1e-4, 0.01,
      -0.6, 0, 1, true },
    { "\"lr\": 0.002, \"relative_step\": false, \"weight_decay\": 0.05, \"clip_threshold\": 0.75", 0.002, 0.05, 1e-30,
      1e-3, -0.8, 0, CLIP, false },
    { "\"lr\": 0.002, \"relative_step\": false, \"beta1\": 0.9, \"clip_threshold\": 0.75", 0.002, 0, 1e-30, 1e-3, -0.8,
      0.9, CLIP, false },
};

static int64_t count_of(int32_t t) { return cols[t] > 0 ? rows[t] * cols[t] : rows[t]; }

static int64_t first_of(int32_t t)
{
    int64_t first = 0;
    while (t-- > 0)
        first += count_of(t);
    return first;
}

/* From -1 to 1. */
static double noise(uint64_t i, uint64_t step)
{
    uint64_t x = (i * 1000 + step + 1) * UINT64_C(0x9e3779b97f4a7c15);
    x ^= x >> 29;
    x *= UINT64_C(0xbf58476d1ce4e5b9);
    return (double)(x >> 11) / 4503599627370496.0 - 1.0;
}

static float first_value(int64_t i) { return (float)(0.3 * noise((uint64_t)i, 0)); }

/* Gradients of many sizes; every seventeenth is 0 at first. */
static float gradient(int64_t i, int64_t update)
{
    return i % 17 == 0 && update < 5 ? 0.0f
                                     : (float)(noise((uint64_t)i, (uint64_t)update) * pow(10.0, -(double)(i % 5)));
}

/* ---- the formula ---- */

typedef struct states {
    double second[FACTORS], first[ELEMENTS], p[ELEMENTS];
} states;

static double rms(const double *x, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += x[i] * x[i];
    return sqrt(sum / (double)count);
}

/* u = g over the root of the second moments, which go on; returns how many numbers they are. */
static int64_t direct(const recipe *r, int32_t t, int64_t update, const float *grad, double *second, double *u)
{
    const double share = pow((double)update, r->decay), added = r->of_torch ? 0 : r->eps;
    const int64_t n = count_of(t), width = cols[t] > 0 ? cols[t] : 1, sums = cols[t] > 0 ? rows[t] + cols[t] : n;
    double mean = 0;
    for (int64_t i = 0; i < sums; i++)
        second[i] *= 1 - share;
    for (int64_t i = 0; i < n; i++) {
        const double q = (double)grad[i] * (double)grad[i] + added;
        second[i / width] += share * q / (double)width;
        if (cols[t] > 0)
            second[rows[t] + i % width] += share * q / (double)rows[t];
    }
    for (int64_t i = 0; i < rows[t]; i++)
        mean += second[i] / (double)rows[t];
    mean = r->of_torch ? fmax(mean, r->eps) : mean;
    for (int64_t i = 0; i < n; i++) {
        const double v = cols[t] > 0 ? second[i / width] * second[rows[t] + i % width] / mean : second[i];
        u[i] = (double)grad[i] / sqrt(r->of_torch ? fmax(v, r->eps * r->eps) : v);
    }
    return sums;
}

static void formula_step(const recipe *r, int64_t update, const float *grad, states *s)
{
    static double u[ELEMENTS];
    double *second = s->second;
    for (int32_t t = 0; t < TENSORS; t++) {
        const int64_t n = count_of(t), first = first_of(t);
        double *p = s->p + first, *m = s->first + first;
        second += direct(r, t, update, grad + first, second, u);
        const double rate =
            (r->of_torch ? fmin(r->lr, 1 / sqrt((double)update)) : r->lr) * fmax(r->eps_weights, rms(p, n));
        const double step = rate / fmax(1, rms(u, n) / r->clip), kept = (r->of_torch ? r->lr : rate) * r->weight_decay;
        for (int64_t i = 0; i < n; i++) {
            m[i] = r->beta1 * m[i] + (1 - r->beta1) * step * u[i];
            p[i] = p[i] * (1 - kept) - m[i];
        }
    }
}

/* ---- ours ---- */

typedef struct rank {
    dsc_world *world;
    const recipe *recipe;
    int32_t index;
    float value[ELEMENTS];
    dsc_status status;
    dsc_error err;
} rank;

static dsc_status train(rank *me, dsc_engine *engine, dsc_error *err)
{
    static _Thread_local float grad[ELEMENTS];
    dsc_optimizer *optimizer = NULL;
    dsc_host_tensor tensors[TENSORS];
    const float *grads[TENSORS];
    static const char *const names[TENSORS] = { "a.weight", "a.bias", "b.weight" };
    for (int32_t t = 0; t < TENSORS; t++) {
        tensors[t] = (dsc_host_tensor) {
            .name = names[t], .data = me->value + first_of(t), .count = count_of(t), .columns = cols[t]
        };
        grads[t] = grad + first_of(t);
    }
    dsc_status status = dsc_optimizer_open(&optimizer, engine, tensors, TENSORS, err);
    for (int64_t update = 1; update <= UPDATES && status == DSC_OK; update++) {
        for (int64_t i = 0; i < ELEMENTS; i++)
            grad[i] = gradient(i, update);
        status = dsc_optimizer_step(optimizer, grads, NULL, err);
    }
    dsc_optimizer_close(&optimizer);
    return status;
}

static void *run(void *argument)
{
    rank *me = argument;
    dsc_engine *engine = NULL;
    dsc_engine_options options = DSC_ENGINE_OPTIONS_INIT;
    char config[512];
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": 1, \"optimizer\": {\"type\": \"Adafactor\","
             " \"params\": {%s}}, \"dsc\": {\"threads\": 1}}",
             me->recipe->params);
    options.config_text = config;
    options.flags = DSC_ENGINE_NO_MODEL;
    options.world = me->world;
    options.rank = me->index;
    for (int64_t i = 0; i < ELEMENTS; i++)
        me->value[i] = first_value(i);
    me->status = dsc_engine_open(&engine, &options, &me->err);
    if (me->status == DSC_OK)
        me->status = train(me, engine, &me->err);
    dsc_engine_close(&engine);
    return NULL;
}

static void compare(const recipe *r, int32_t world)
{
    static rank ranks[RANKS_MAX];
    static states s;
    static float grad[ELEMENTS];
    pthread_t thread[RANKS_MAX];
    dsc_world *local = NULL;
    assert_int_equal(dsc_world_open(world, &local, NULL), DSC_OK);
    for (int32_t i = 0; i < world; i++) {
        ranks[i] = (rank) { .world = local, .recipe = r, .index = i, .err = DSC_ERROR_INIT };
        assert_int_equal(pthread_create(&thread[i], NULL, run, &ranks[i]), 0);
    }
    for (int32_t i = 0; i < world; i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
    dsc_world_close(&local);
    memset(&s, 0, sizeof s);
    for (int64_t i = 0; i < ELEMENTS; i++)
        s.p[i] = (double)first_value(i);
    for (int64_t update = 1; update <= UPDATES; update++) {
        for (int64_t i = 0; i < ELEMENTS; i++)
            grad[i] = gradient(i, update);
        formula_step(r, update, grad, &s);
    }
    double worst = 0, moved = 0;
    for (int32_t i = 0; i < world; i++) {
        if (ranks[i].status != DSC_OK)
            fail_msg("%s: %s", ranks[i].err.where, ranks[i].err.message);
        assert_memory_equal(ranks[i].value, ranks[0].value, sizeof ranks[0].value);
    }
    for (int64_t i = 0; i < ELEMENTS; i++) {
        worst = fmax(worst, fabs((double)ranks[0].value[i] - s.p[i]));
        moved = fmax(moved, fabs(s.p[i] - (double)first_value(i)));
    }
    print_message("# %s, %d ranks: off by at most %.2g, moved by %.2g\n", r->params, (int)world, worst, moved);
    assert_true(worst <= 1e-6);
    assert_true(moved > 0.01);
}

static void the_formula(void **unused)
{
    for (size_t r = 0; r < sizeof recipes / sizeof recipes[0]; r++)
        for (int32_t world = 1; world <= RANKS_MAX; world++)
            compare(&recipes[r], world);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(the_formula) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
