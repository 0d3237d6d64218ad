/* signs_formula.c - see signs_formula.h. SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/signs_formula.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include <dsc/dsc.h>

static const int64_t lengths[SIGNS_TENSORS] = { 3000, 5, 1, 129, 2048 };

/* A number of -1..1 that depends on all of these alone. */
static double noise(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t x = a * 0x9e3779b97f4a7c15u + b * 0xbf58476d1ce4e5b9u + c * 0x94d049bb133111ebu + 1;
    for (int i = 0; i < 3; i++) {
        x ^= x >> 31;
        x *= 0xd6e8feb86659fd93u;
    }
    return (double)(x >> 11) * 0x1p-52 - 1;
}

/* Element i's gradient on rank r: pulls towards 0, and noise. */
static float gradient(int64_t i, int32_t r, int64_t update, int64_t quiet, double value)
{
    if (i % 97 == 5 && update <= quiet)
        return 0;
    return (float)(0.3 * value + 0.2 * noise((uint64_t)i, (uint64_t)r, (uint64_t)update));
}

static double first_value(int64_t i) { return (double)(float)(0.25 * noise((uint64_t)i, 77, 7)); }

/* ---- the exchange ---- */

/* First element of tensor t: in the group, by layout.h, and among all elements. */
static int64_t place_of(int32_t t, bool in_group)
{
    int64_t at = 0;
    for (int32_t i = 0; i < t; i++)
        at += in_group ? (lengths[i] + 127) / 128 * 128 : lengths[i];
    return at;
}

int64_t signs_tensor(int32_t t, int64_t *first)
{
    *first = place_of(t, false);
    return lengths[t];
}

static int64_t slice_of(int32_t world)
{
    const int64_t elements = place_of(SIGNS_TENSORS - 1, true) + lengths[SIGNS_TENSORS - 1];
    return ((elements + world - 1) / world + 1023) / 1024 * 1024;
}

/* x becomes what that leaves out. */
static void compress(double *x, double *said, int64_t count)
{
    double squares = 0;
    for (int64_t i = 0; i < count; i++)
        squares += x[i] * x[i];
    for (int64_t i = 0; i < count; i++) {
        said[i] = x[i] < 0 ? -sqrt(squares / (double)count) : sqrt(squares / (double)count);
        x[i] -= said[i];
    }
}

double signs_mean(double of[SIGNS_RANKS][SIGNS_ELEMENTS], int32_t world, int64_t i)
{
    double mean = 0;
    for (int32_t r = 0; r < world; r++)
        mean += of[r][i] / world;
    return mean;
}

void signs_exchange(signs_formula *f, double mine[SIGNS_RANKS][SIGNS_ELEMENTS], double to[SIGNS_ELEMENTS])
{
    static double said[SIGNS_ELEMENTS];
    for (int32_t t = 0; t < SIGNS_TENSORS; t++) {
        const int64_t first = place_of(t, false), end = first + lengths[t];
        for (int32_t r = 0; r < f->world; r++) {
            for (int64_t i = first; i < end; i++)
                f->own[r][i] += mine[r][i];
            compress(f->own[r] + first, said + first, lengths[t]);
            for (int64_t i = first; i < end; i++)
                f->sum[i] += said[i] / f->world;
        }
        for (int64_t i = first, next; i < end; i = next) { /* each owner its part */
            const int64_t at = place_of(t, true) + i - first, slice = slice_of(f->world);
            next = first + (at / slice + 1) * slice - place_of(t, true);
            next = next < end ? next : end;
            compress(f->sum + i, to + i, next - i);
        }
    }
    for (int64_t i = 0; i < SIGNS_ELEMENTS; i++)
        to[i] = f->v[i] == 0 ? 0 : to[i];
}

void signs_forget(signs_formula *f)
{
    memset(f->own, 0, sizeof f->own);
    memset(f->sum, 0, sizeof f->sum);
}

/* ---- the ranks ---- */

struct ranks;
typedef struct one_rank {
    struct ranks *all;
    int32_t rank;
    float value[SIGNS_ELEMENTS];
    float after[SIGNS_UPDATES][SIGNS_ELEMENTS];
    dsc_status status;
    dsc_error err;
} one_rank;

typedef struct ranks {
    dsc_world *local;
    const char *config;
    int64_t quiet;
    one_rank rank[SIGNS_RANKS];
} ranks;

static dsc_status train(one_rank *me, dsc_optimizer *optimizer, dsc_error *err)
{
    static _Thread_local float grad[SIGNS_ELEMENTS];
    const float *grads[SIGNS_TENSORS];
    for (int32_t t = 0; t < SIGNS_TENSORS; t++)
        grads[t] = grad + place_of(t, false);
    for (int64_t u = 1; u <= SIGNS_UPDATES; u++) {
        for (int64_t i = 0; i < SIGNS_ELEMENTS; i++)
            grad[i] = gradient(i, me->rank, u, me->all->quiet, (double)me->value[i]);
        DSC_TRY(dsc_optimizer_step(optimizer, grads, NULL, err));
        memcpy(me->after[u - 1], me->value, sizeof me->value);
    }
    return DSC_OK;
}

static void *run_rank(void *argument)
{
    one_rank *me = argument;
    dsc_engine *engine = NULL;
    dsc_optimizer *optimizer = NULL;
    dsc_engine_options options = DSC_ENGINE_OPTIONS_INIT;
    dsc_host_tensor tensors[SIGNS_TENSORS];
    char names[SIGNS_TENSORS][16];
    options.config_text = me->all->config;
    options.flags = DSC_ENGINE_NO_MODEL;
    options.world = me->all->local;
    options.rank = me->rank;
    for (int64_t i = 0; i < SIGNS_ELEMENTS; i++)
        me->value[i] = (float)first_value(i);
    for (int32_t t = 0; t < SIGNS_TENSORS; t++) {
        snprintf(names[t], sizeof names[t], "t%d", (int)t);
        tensors[t] = (dsc_host_tensor){ .name = names[t], .data = me->value + place_of(t, false),
                                         .count = lengths[t] };
    }
    me->status = dsc_engine_open(&engine, &options, &me->err);
    if (me->status == DSC_OK)
        me->status = dsc_optimizer_open(&optimizer, engine, tensors, SIGNS_TENSORS, &me->err);
    if (me->status == DSC_OK)
        me->status = train(me, optimizer, &me->err);
    dsc_optimizer_close(&optimizer);
    dsc_engine_close(&engine);
    return NULL;
}

static ranks *run_ranks(const char *config, int64_t quiet, int32_t world)
{
    pthread_t thread[SIGNS_RANKS];
    ranks *w = calloc(1, sizeof *w);
    assert_non_null(w);
    w->config = config;
    w->quiet = quiet;
    assert_int_equal(dsc_world_open(world, &w->local, NULL), DSC_OK);
    for (int32_t r = 0; r < world; r++) {
        w->rank[r].all = w;
        w->rank[r].rank = r;
        assert_int_equal(pthread_create(&thread[r], NULL, run_rank, &w->rank[r]), 0);
    }
    for (int32_t r = 0; r < world; r++)
        assert_int_equal(pthread_join(thread[r], NULL), 0);
    dsc_world_close(&w->local);
    for (int32_t r = 0; r < world; r++)
        if (w->rank[r].status != DSC_OK)
            fail_msg("%s: %s", w->rank[r].err.where, w->rank[r].err.message);
    return w;
}

static double compare(const signs_formula *f, const ranks *w, int64_t update)
{
    double worst = 0;
    for (int32_t r = 0; r < f->world; r++)
        for (int64_t i = 0; i < SIGNS_ELEMENTS; i++) {
            const double got = (double)w->rank[r].after[update - 1][i], off = fabs(got - f->at[r][i]);
            worst = fmax(worst, off);
            if (!(off <= 1e-6))
                fail_msg("%d ranks, update %d, rank %d, element %d: %.9g, expected %.9g", (int)f->world, (int)update,
                         (int)r, (int)i, got, f->at[r][i]);
            /* Where the formula has the same weights on two ranks, they have the same bits. */
            if (f->at[r][i] == f->at[0][i] && w->rank[r].after[update - 1][i] != w->rank[0].after[update - 1][i])
                fail_msg("%d ranks, update %d, element %d: ranks differ", (int)f->world, (int)update, (int)i);
        }
    return worst;
}

void signs_beside_formula(const char *optimizer, int64_t quiet, signs_step step)
{
    static double grads[SIGNS_RANKS][SIGNS_ELEMENTS];
    char config[1024];
    snprintf(config, sizeof config,
             "{\"train_micro_batch_size_per_gpu\": 1, \"optimizer\": %s, \"dsc\": {\"threads\": 1}}", optimizer);
    for (int32_t world = 1; world <= SIGNS_RANKS; world++) {
        ranks *w = run_ranks(config, quiet, world);
        signs_formula *f = calloc(1, sizeof *f);
        double worst = 0;
        assert_non_null(f);
        f->world = world;
        for (int64_t i = 0; i < SIGNS_ELEMENTS; i++)
            f->p[i] = first_value(i);
        for (int64_t u = 1; u <= SIGNS_UPDATES; u++) {
            for (int32_t r = 0; r < world; r++)
                for (int64_t i = 0; i < SIGNS_ELEMENTS; i++)
                    grads[r][i] = (double)gradient(i, r, u, quiet,
                                                   u > 1 ? (double)w->rank[r].after[u - 2][i] : first_value(i));
            step(f, u, grads);
            worst = fmax(worst, compare(f, w, u));
        }
        print_message("# %d ranks: off by at most %.2g\n", (int)world, worst);
        free(f);
        free(w);
    }
}
