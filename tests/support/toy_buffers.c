/* toy_buffers.c - see toy_buffers.h. SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/toy_buffers.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"
#include "tests/support/ckpt_world.h"
#include "tests/support/probe.h"
#include "tests/support/toy_model.h"

enum { FEATURES = TOY_BUFFERS_FEATURES, WIDE = TOY_BUFFERS_WIDE, MICRO = TOY_BUFFERS_MICRO, BLOCKS = 2, WIDTH = 4 };

#define AVERAGE(text, elements, factor)                                                                                \
    {                                                                                                                  \
        .name = text, .kind = DSC_BUFFER_AVERAGE, .count = elements, .init = 0.25, .momentum = factor                  \
    }
#define OF_BLOCK(n, ...)                                                                                               \
    {                                                                                                                  \
        AVERAGE("block." n ".mean", FEATURES, 0.1), AVERAGE("block." n ".wide", WIDE, 1.0 / 3),                        \
            { .name = "block." n ".steps", .kind = DSC_BUFFER_STEPS, .count = 1, .init = 7 },                          \
        {                                                                                                              \
            .name = "block." n ".kept", .kind = DSC_BUFFER_AVERAGE, .count = 3, .init = -2, __VA_ARGS__                \
        }                                                                                                              \
    }
static const dsc_buffer_spec of_blocks[BLOCKS][4] = { OF_BLOCK("0", .momentum = 0.5, .frozen = true),
                                                      OF_BLOCK("1", .momentum = 0) };
static const dsc_buffer_spec of_loss[1] = { AVERAGE("loss.mean", FEATURES, 0.7) };

static dsc_model *toy, model;
static dsc_module modules[BLOCKS + 2];
static dsc_status (*toy_forward[2])(const dsc_module *module, dsc_module_ctx *ctx, dsc_error *err);
static dsc_status (*toy_backward)(const dsc_module *module, dsc_module_ctx *ctx, dsc_error *err);
static atomic_llong given, spoilt;
static _Atomic float seen;

/* ---- the model ---- */

/* Element i of the statistic of a buffer, of a micro-batch's features. */
static float statistic_of(const dsc_buffer_spec *spec, const float *x, int64_t i)
{
    float sum = 0;
    if (spec->count == WIDE)
        return x[i % FEATURES] * (float)(i + 1);
    for (int64_t b = 0; b < MICRO; b++)
        sum += x[b * FEATURES + i];
    return sum / MICRO;
}

/* Values are there in every pass of a module with buffers. */
static void check_values(const dsc_module *module, const dsc_module_ctx *ctx)
{
    CW_CHECK((ctx->buffer != NULL) == (module->buffer_count > 0));
    for (int32_t b = 0; b < module->buffer_count; b++) {
        CW_CHECK((ctx->buffer[b] != NULL) == (module->buffers[b].kind == DSC_BUFFER_AVERAGE));
        CW_CHECK((uintptr_t)ctx->buffer[b] % 256 == 0);
        CW_CHECK(module->buffers[b].count != 3 || ctx->buffer[b][2] == -2);
    }
}

static dsc_status forward(const dsc_module *module, dsc_module_ctx *ctx, dsc_error *err)
{
    const float *x = ctx->batch_data[0];
    check_values(module, ctx);
    CW_CHECK(ctx->statistic == NULL || ctx->training);
    if (!ctx->training && strcmp(module->name, "block.0") == 0)
        atomic_store(&seen, ctx->buffer[0][0]);
    for (int32_t b = 0; b < module->buffer_count && ctx->statistic != NULL; b++) {
        const dsc_buffer_spec *spec = &module->buffers[b];
        CW_CHECK(ctx->constant[b] == spec->frozen);
        CW_CHECK((ctx->statistic[b] != NULL) ==
                 (spec->kind == DSC_BUFFER_AVERAGE && spec->count != 3 && !ctx->constant[b]));
        for (int64_t i = 0; ctx->statistic[b] != NULL && i < spec->count; i++)
            ctx->statistic[b][i] = statistic_of(spec, x, i);
        if (ctx->statistic[b] != NULL && (int64_t)ctx->rng_sample == atomic_load(&spoilt) && spec->count == WIDE)
            ctx->statistic[b][WIDE - 1] = NAN;
    }
    atomic_fetch_add(&given, ctx->statistic != NULL);
    return toy_forward[(module->flags & DSC_MODULE_LOSS) != 0](module, ctx, err);
}

static dsc_status backward(const dsc_module *module, dsc_module_ctx *ctx, dsc_error *err)
{
    check_values(module, ctx);
    CW_CHECK(ctx->statistic == NULL);
    float unwanted[3][WIDTH * WIDTH], *grad[3]; /* the toy writes all gradients, also of frozen parameters */
    for (int32_t p = 0; p < 3; p++)
        grad[p] = ctx->grad[p] != NULL ? ctx->grad[p] : unwanted[p];
    dsc_module_ctx own = *ctx;
    own.grad = grad;
    return toy_backward(module, &own, err);
}

dsc_model *toy_buffers_open(void)
{
    toy = toy_model_open(FEATURES, WIDTH, BLOCKS, false);
    model = *toy;
    memcpy(modules, toy->modules, sizeof modules);
    toy_forward[0] = modules[1].forward;
    toy_forward[1] = modules[BLOCKS + 1].forward;
    toy_backward = modules[1].backward;
    for (int32_t r = 0; r < BLOCKS; r++) {
        dsc_module *const block = &modules[1 + r];
        block->forward = forward;
        block->backward = backward;
        block->buffers = of_blocks[r];
        block->buffer_count = DSC_COUNT(of_blocks[r]);
    }
    modules[BLOCKS + 1].forward = forward;
    modules[BLOCKS + 1].buffers = of_loss;
    modules[BLOCKS + 1].buffer_count = DSC_COUNT(of_loss);
    model.modules = modules;
    toy_buffers_spoil(-1);
    return &model;
}

void toy_buffers_close(void) { toy_model_close(toy); }

dsc_data_source toy_buffers_data(void) { return toy_data(toy, 1 << 20); }

void toy_buffers_spoil(int64_t sample) { atomic_store(&spoilt, sample); }

int64_t toy_buffers_statistics(void) { return atomic_exchange(&given, 0); }

float toy_buffers_seen(void) { return atomic_load(&seen); }

/* ---- what is expected ---- */

static const dsc_buffer_spec *find(const char *name)
{
    for (int32_t m = 0; m < model.module_count; m++)
        for (int32_t b = 0; b < modules[m].buffer_count; b++)
            if (strcmp(modules[m].buffers[b].name, name) == 0)
                return &modules[m].buffers[b];
    abort();
}

/* One micro-batch after another, each rounding apart. */
static void fold(const dsc_buffer_spec *spec, int64_t first_sample, float *value)
{
    float x[MICRO * FEATURES], y[MICRO * FEATURES];
    void *const data[2] = { x, y };
    const dsc_data_source source = toy_buffers_data();
    CW_CHECK(source.fill(source.user, first_sample, MICRO, data, NULL) == DSC_OK);
    for (int64_t i = 0; i < spec->count; i++) {
        volatile float difference = statistic_of(spec, x, i) - value[i];
        volatile float change = (float)spec->momentum * difference;
        value[i] += change;
    }
}

int64_t toy_buffers_expected(const char *name, int64_t steps, void *out)
{
    const dsc_buffer_spec *spec = find(name);
    if (spec->kind == DSC_BUFFER_STEPS) {
        *(int64_t *)out = 7 + steps * TOY_BUFFERS_BATCH / MICRO;
        return (int64_t)sizeof(int64_t);
    }
    float *const value = out;
    for (int64_t i = 0; i < spec->count; i++)
        value[i] = (float)spec->init;
    for (int64_t s = 0; s < steps * TOY_BUFFERS_BATCH && spec->count != 3; s += MICRO)
        fold(spec, s, value);
    return spec->count * (int64_t)sizeof *value;
}

dsc_status toy_buffers_expect(dsc_engine *engine, int32_t rank, void *user, dsc_error *err)
{
    double wanted[TOY_BUFFERS_WIDE], there[TOY_BUFFERS_WIDE];
    for (int32_t m = 0; m < model.module_count; m++)
        for (int32_t b = 0; b < modules[m].buffer_count; b++) {
            const char *name = modules[m].buffers[b].name;
            const int64_t bytes = toy_buffers_expected(name, *(const int64_t *)user, wanted);
            DSC_TRY(dsc_probe_buffer(engine, name, there, err));
            if (memcmp(wanted, there, (size_t)bytes) != 0)
                return DSC_FAIL(err, DSC_ERR_INTERNAL, name, "is not what a loop folds, on rank %d", (int)rank);
        }
    return DSC_OK;
}
