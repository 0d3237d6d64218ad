/* modelrun.c - see modelrun.h. SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/modelrun.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bf16.h"
#include "base/hash.h"

#define ZONE_BYTES 512
#define ZONE_BYTE 0xA5
#define MODULES_MAX 64
#define PARAMS_MAX 48 /* of one module, with adapters */
#define BUFFERS_MAX 2 /* of one module */
#define BATCH_MAX 3

/* Exactly `bytes` usable ones, 256-byte aligned, between two zones. */
typedef struct guarded {
    unsigned char *ptr;
    int64_t bytes;
} guarded;

/* In front of the real stream: sees every launch. */
typedef struct watching_stream {
    dsc_stream base;
    dsc_stream *inner;
    modelrun_gemms *launched;
    double *flops;
} watching_stream;

struct modelrun {
    const dsc_model *model;
    modelrun_options options;
    dsc_alloc *alloc;
    dsc_device *device;
    dsc_stream *stream;
    watching_stream watcher;
    dsc_device_ops watching_ops;
    dsc_module_plan plan[MODULES_MAX];
    guarded param[MODULES_MAX][PARAMS_MAX], grad[MODULES_MAX][PARAMS_MAX];
    guarded params[MODULES_MAX], grads[MODULES_MAX]; /* with `together` the memory of those */
    guarded buffer[MODULES_MAX][BUFFERS_MAX];
    guarded out[MODULES_MAX], saved[MODULES_MAX], rebuilt[MODULES_MAX], repeated[MODULES_MAX],
        forward_scratch[MODULES_MAX], backward_scratch[MODULES_MAX];
    guarded d[2];
    guarded losses, batch[BATCH_MAX];
    modelrun_gemms planned, launched;
    double flops;
};

static void must(dsc_status status, const dsc_error *err)
{
    char text[800];
    if (status != DSC_OK)
        fprintf(stderr, "modelrun: %s\n", dsc_error_format(err, text, sizeof text));
    DSC_ASSERT(status == DSC_OK);
}

/* ---- Buffers ----------------------------------------------------------------------------------------------------- */

static void poison(guarded *g)
{
    memset(g->ptr, 0xff, (size_t)g->bytes); /* a NaN in fp32 and in bf16 */
}

static guarded guard(int64_t bytes)
{
    guarded g = { NULL, bytes };
    unsigned char *memory = aligned_alloc(256, (size_t)dsc_align_up(bytes + 2 * ZONE_BYTES, 256));
    DSC_ASSERT(memory != NULL);
    g.ptr = memory + ZONE_BYTES;
    memset(memory, ZONE_BYTE, ZONE_BYTES);
    memset(g.ptr + bytes, ZONE_BYTE, ZONE_BYTES);
    poison(&g);
    return g;
}

static void check_zones(const guarded *g)
{
    if (g->ptr == NULL)
        return;
    for (int i = 0; i < ZONE_BYTES; i++) {
        DSC_ASSERT(g->ptr[-1 - i] == ZONE_BYTE);
        DSC_ASSERT(g->ptr[g->bytes + i] == ZONE_BYTE);
    }
}

static void release(guarded *g)
{
    check_zones(g);
    if (g->ptr != NULL)
        free(g->ptr - ZONE_BYTES);
    *g = (guarded){ NULL, 0 };
}

static uint64_t hash_of(const guarded *g)
{
    return g->ptr == NULL ? 0 : dsc_xxh3_128(g->ptr, (size_t)g->bytes, 0).low;
}

/* ---- Launches ---------------------------------------------------------------------------------------------------- */

static void add_shape(modelrun_gemms *to, const dsc_gemm_args *args)
{
    dsc_gemm_args shape;
    memset(&shape, 0, sizeof shape); /* padding too: shapes are compared as bytes */
    shape.m = args->m, shape.n = args->n, shape.k = args->k;
    shape.lda = args->lda, shape.ldb = args->ldb, shape.ldc = args->ldc;
    shape.a_transposed = args->a_transposed, shape.b_transposed = args->b_transposed;
    shape.accumulate = args->accumulate, shape.epilogue = args->epilogue;
    shape.ab_dtype = args->ab_dtype, shape.c_dtype = args->c_dtype;
    shape.sums_of = args->sums_of;
    shape.activation = args->activation;
    for (int i = 0; i < to->count; i++)
        if (memcmp(&to->shape[i], &shape, sizeof shape) == 0)
            return;
    DSC_ASSERT(to->count < MODELRUN_GEMMS_MAX);
    to->shape[to->count++] = shape;
}

static dsc_status watch_launch(dsc_stream *stream, dsc_kernel kernel, const void *args, int64_t args_bytes,
                               dsc_error *err)
{
    watching_stream *watcher = (watching_stream *)stream;
    if (kernel == DSC_KERNEL_GROUPED_GEMM) {
        const dsc_grouped_gemm_args *grouped = args;
        *watcher->flops += 2.0 * (double)grouped->rows * (double)grouped->in * (double)grouped->out;
    }
    if (kernel == DSC_KERNEL_GEMM) {
        const dsc_gemm_args *gemm = args;
        add_shape(watcher->launched, gemm);
        *watcher->flops += 2.0 * (double)gemm->m * (double)gemm->n * (double)gemm->k;
    }
    return dsc_launch(watcher->inner, kernel, args, args_bytes, err);
}

static dsc_status take_shape(void *user, const dsc_gemm_args *shape, dsc_error *err)
{
    modelrun *run = user;
    add_shape(&run->planned, shape);
    return dsc_gemm_prepare(run->device, shape, err);
}

/* ---- Opening ----------------------------------------------------------------------------------------------------- */

int64_t modelrun_elements(const dsc_param_spec *spec)
{
    int64_t n = 1;
    for (int32_t i = 0; i < spec->dim_count; i++)
        n *= spec->dim[i];
    return n;
}

static void open_params(modelrun *run, int32_t m)
{
    const dsc_module *module = &run->model->modules[m];
    const int64_t element = (int64_t)dsc_dtype_bytes(run->options.dtype);
    for (int32_t p = 0; p < module->param_count; p++) {
        const int64_t elements = modelrun_elements(&module->params[p]);
        if (module->params[p].shared_module < 0)
            run->param[m][p] = guard(elements * element);
        run->grad[m][p] = guard(elements * 4);
    }
}

enum { TENSOR_ALIGN = 128 }; /* elements, as of a flat group */

/* Trained ones before frozen ones, and among either those that are laid late behind the others. */
static void open_params_together(modelrun *run, int32_t m)
{
    const dsc_module *module = &run->model->modules[m];
    const int64_t element = (int64_t)dsc_dtype_bytes(run->options.dtype);
    int64_t at[PARAMS_MAX], end = 0;
    for (int turn = 0; turn < 4; turn++)
        for (int32_t p = 0; p < module->param_count; p++)
            if (module->params[p].trainable == (turn < 2) && module->params[p].laid_late == (turn % 2 == 1)) {
                at[p] = dsc_align_up(end, TENSOR_ALIGN);
                end = at[p] + modelrun_elements(&module->params[p]);
            }
    run->params[m] = guard(end * element);
    run->grads[m] = guard(end * 4);
    for (int32_t p = 0; p < module->param_count; p++) {
        const int64_t elements = modelrun_elements(&module->params[p]);
        if (module->params[p].shared_module < 0)
            run->param[m][p] = (guarded) { run->params[m].ptr + at[p] * element, elements * element };
        run->grad[m][p] = (guarded) { run->grads[m].ptr + at[p] * 4, elements * 4 };
    }
}

static void close_params(modelrun *run, int32_t m)
{
    release(&run->params[m]);
    release(&run->grads[m]);
    for (int32_t p = 0; p < run->model->modules[m].param_count && !run->options.together; p++) {
        release(&run->param[m][p]);
        release(&run->grad[m][p]);
    }
}

static void open_module(modelrun *run, int32_t m)
{
    const dsc_module *module = &run->model->modules[m];
    const int64_t element = (int64_t)dsc_dtype_bytes(run->options.dtype);
    const dsc_plan_sink sink = { .gemm = take_shape,
                                 .user = run,
                                 .chunk_bytes = run->options.chunk_bytes,
                                 .joins_input_gradients = run->options.joins_input_gradients,
                                 .tensor_align = TENSOR_ALIGN };
    dsc_module_plan *plan = &run->plan[m];
    dsc_error err = DSC_ERROR_INIT;
    must(module->plan(module, run->options.batch, run->options.dtype, &sink, plan, &err), &err);
    run->out[m] = guard(plan->out_elements * element);
    run->saved[m] = guard(plan->saved_bytes);
    run->rebuilt[m] = guard(plan->rebuilt_bytes);
    run->repeated[m] = guard(plan->repeated_bytes);
    run->forward_scratch[m] = guard(plan->forward_scratch_bytes);
    run->backward_scratch[m] = guard(plan->backward_scratch_bytes);
    for (int i = 0; i < 2; i++) {
        if (run->d[i].bytes >= plan->out_elements * element)
            continue;
        release(&run->d[i]);
        run->d[i] = guard(plan->out_elements * element);
    }
    DSC_ASSERT(module->param_count <= PARAMS_MAX);
    DSC_ASSERT(module->buffer_count <= BUFFERS_MAX);
    for (int32_t b = 0; b < module->buffer_count; b++)
        run->buffer[m][b] = guard(module->buffers[b].count * 4);
    if (run->options.together)
        open_params_together(run, m);
    else
        open_params(run, m);
}

/* Bytes of one sample. */
static int64_t batch_bytes(const dsc_batch_spec *spec)
{
    int64_t bytes = (int64_t)dsc_dtype_bytes(spec->dtype);
    for (int32_t i = 0; i < spec->dim_count; i++)
        bytes *= spec->dim[i];
    return bytes;
}

modelrun *modelrun_open(const dsc_model *model, const modelrun_options *options)
{
    dsc_error err = DSC_ERROR_INIT;
    modelrun *run = calloc(1, sizeof *run);
    DSC_ASSERT(run != NULL);
    run->model = model;
    run->options = *options;
    must(dsc_alloc_open(&run->alloc, &err), &err);
    const dsc_device_options device = { .alloc = run->alloc, .threads = options->threads, .caps = options->caps };
    must(dsc_device_open(&dsc_device_cpu, &run->device, &device, &err), &err);
    must(dsc_stream_open(run->device, DSC_STREAM_COMPUTE, "compute", &run->stream, &err), &err);
    run->watching_ops = dsc_device_cpu;
    run->watching_ops.launch = watch_launch;
    run->watcher = (watching_stream) { { &run->watching_ops, 0 }, run->stream, &run->launched, &run->flops };
    DSC_ASSERT(model->module_count <= MODULES_MAX);
    for (int32_t m = 0; m < model->module_count; m++)
        open_module(run, m);
    const int64_t items = options->batch * model->losses_per_sample;
    run->losses = guard(items * 4);
    DSC_ASSERT(model->batch_count <= BATCH_MAX);
    for (int32_t i = 0; i < model->batch_count; i++)
        run->batch[i] = guard(options->batch * batch_bytes(&model->batch[i]));
    return run;
}

void modelrun_close(modelrun *run)
{
    for (int32_t m = 0; m < run->model->module_count; m++) {
        release(&run->out[m]);
        release(&run->saved[m]);
        release(&run->rebuilt[m]);
        release(&run->repeated[m]);
        release(&run->forward_scratch[m]);
        release(&run->backward_scratch[m]);
        for (int32_t b = 0; b < BUFFERS_MAX; b++)
            release(&run->buffer[m][b]);
        close_params(run, m);
    }
    release(&run->d[0]);
    release(&run->d[1]);
    release(&run->losses);
    for (int i = 0; i < BATCH_MAX; i++)
        release(&run->batch[i]);
    dsc_stream_close(&run->stream);
    dsc_device_close(&run->device);
    dsc_alloc_close(&run->alloc);
    free(run);
}

void modelrun_set_param(modelrun *run, int32_t module, int32_t param, const float *values)
{
    const guarded *to = &run->param[module][param];
    const int64_t count = modelrun_elements(&run->model->modules[module].params[param]);
    DSC_ASSERT(to->ptr != NULL);
    for (int64_t i = 0; i < count; i++) {
        const uint16_t half = dsc_bf16_from_f32(values[i]);
        if (run->options.dtype == DSC_F32)
            memcpy(to->ptr + 4 * i, &values[i], 4);
        else
            memcpy(to->ptr + 2 * i, &half, 2);
    }
}

void modelrun_set_buffer(modelrun *run, int32_t module, int32_t buffer, const float *values)
{
    memcpy(run->buffer[module][buffer].ptr, values, (size_t)run->buffer[module][buffer].bytes);
}

void modelrun_set_tokens(modelrun *run, const void *tokens, const int32_t *targets)
{
    memcpy(run->batch[0].ptr, tokens, (size_t)run->batch[0].bytes);
    memcpy(run->batch[1].ptr, targets, (size_t)run->batch[1].bytes);
}

void modelrun_set_predicted(modelrun *run, const int32_t *places)
{
    memcpy(run->batch[2].ptr, places, (size_t)run->batch[2].bytes);
}

void modelrun_set_reference(modelrun *run, const double *reference)
{
    memcpy(run->batch[2].ptr, reference, (size_t)run->batch[2].bytes);
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

typedef struct call {
    dsc_module_ctx ctx;
    const void *param[PARAMS_MAX];
    float *grad[PARAMS_MAX];
    const float *buffer[BUFFERS_MAX];
    const void *batch[BATCH_MAX];
} call;

static uint64_t hash_inputs(const modelrun *run, int32_t m)
{
    uint64_t hash = m > 0 ? hash_of(&run->out[m - 1]) : 0;
    for (int32_t i = 0; i < run->model->module_count; i++)
        for (int32_t p = 0; p < run->model->modules[i].param_count; p++)
            hash = hash * 31 + hash_of(&run->param[i][p]);
    for (int32_t b = 0; b < BUFFERS_MAX; b++)
        hash = hash * 31 + hash_of(&run->buffer[m][b]);
    for (int i = 0; i < BATCH_MAX; i++)
        hash = hash * 31 + hash_of(&run->batch[i]);
    return hash;
}

static void fill_call(modelrun *run, int32_t m, bool backward, call *c)
{
    const dsc_module *module = &run->model->modules[m];
    const bool loss = (module->flags & DSC_MODULE_LOSS) != 0;
    const bool no_params = backward && (module->flags & DSC_MODULE_BACKWARD_WITHOUT_PARAMS) != 0;
    memset(c, 0, sizeof *c);
    for (int32_t p = 0; p < module->param_count; p++) {
        const dsc_param_spec *spec = &module->params[p];
        const guarded *own = &run->param[m][p];
        const guarded *value = spec->shared_module < 0 ? own : &run->param[spec->shared_module][spec->shared_param];
        c->param[p] = no_params ? NULL : value->ptr;
        c->grad[p] = spec->trainable ? (float *)(void *)run->grad[m][p].ptr : NULL;
    }
    for (int32_t b = 0; b < BUFFERS_MAX; b++)
        c->buffer[b] = (const float *)(const void *)run->buffer[m][b].ptr;
    for (int i = 0; i < BATCH_MAX; i++)
        c->batch[i] = run->batch[i].ptr;
    c->ctx = (dsc_module_ctx) { .struct_bytes = sizeof c->ctx,
                                .training = true,
                                .stream = &run->watcher.base,
                                .dtype = run->options.dtype,
                                .batch = run->options.batch,
                                .param = c->param,
                                .grad = c->grad,
                                .batch_data = c->batch,
                                .buffer = module->buffer_count > 0 ? c->buffer : NULL,
                                .in = m > 0 ? run->out[m - 1].ptr : NULL,
                                .out = loss ? NULL : run->out[m].ptr,
                                .saved = run->saved[m].ptr,
                                .rebuilt = run->rebuilt[m].ptr,
                                .loss_scale = run->options.loss_scale,
                                .chunk_bytes = run->options.chunk_bytes,
                                .joins_input_gradients = run->options.joins_input_gradients,
                                .losses = loss ? (float *)(void *)run->losses.ptr : NULL };
}

static void poison_grads(modelrun *run, int32_t m)
{
    for (int32_t p = 0; p < run->model->modules[m].param_count; p++)
        poison(&run->grad[m][p]);
}

static void check_module(const modelrun *run, int32_t m)
{
    check_zones(&run->out[m]);
    check_zones(&run->saved[m]);
    check_zones(&run->rebuilt[m]);
    check_zones(&run->repeated[m]);
    check_zones(&run->forward_scratch[m]);
    check_zones(&run->backward_scratch[m]);
    check_zones(&run->d[0]);
    check_zones(&run->d[1]);
    check_zones(&run->losses);
    check_zones(&run->grads[m]);
    for (int32_t p = 0; p < run->model->modules[m].param_count && !run->options.together; p++)
        check_zones(&run->grad[m][p]);
}

/* `d` is where a loss module puts d_in. */
static void forward(modelrun *run, int32_t m, bool save, void *d, float *logits, int64_t row)
{
    const dsc_module *module = &run->model->modules[m];
    dsc_error err = DSC_ERROR_INIT;
    call c;
    fill_call(run, m, false, &c);
    c.ctx.save = save;
    c.ctx.repeated = save && run->options.keep && run->plan[m].repeated_bytes > 0 ? run->repeated[m].ptr : NULL;
    c.ctx.scratch = run->forward_scratch[m].ptr;
    c.ctx.d_in = d;
    c.ctx.logits = logits;
    c.ctx.logits_row = row;
    if (!save || (module->flags & DSC_MODULE_LOSS) == 0)
        c.ctx.grad = NULL;
    else
        poison_grads(run, m);
    poison(&run->out[m]);
    poison(&run->saved[m]);
    poison(&run->rebuilt[m]);
    poison(&run->repeated[m]);
    poison(&run->forward_scratch[m]);
    const uint64_t before = hash_inputs(run, m);
    must(module->forward(module, &c.ctx, &err), &err);
    DSC_ASSERT(hash_inputs(run, m) == before);
    check_module(run, m);
}

static void rebuild(modelrun *run, int32_t m)
{
    const dsc_module *module = &run->model->modules[m];
    dsc_error err = DSC_ERROR_INIT;
    call c;
    if (run->plan[m].rebuilt_bytes == 0)
        return;
    fill_call(run, m, false, &c);
    c.ctx.save = true;
    c.ctx.scratch = run->forward_scratch[m].ptr;
    c.ctx.grad = NULL;
    poison(&run->out[m]);
    poison(&run->rebuilt[m]);
    poison(&run->forward_scratch[m]);
    const uint64_t before = hash_inputs(run, m) * 31 + hash_of(&run->saved[m]);
    must(module->rebuild(module, &c.ctx, &err), &err);
    DSC_ASSERT(hash_inputs(run, m) * 31 + hash_of(&run->saved[m]) == before);
    check_module(run, m);
}

static void backward(modelrun *run, int32_t m, void *d_out, void *d_in)
{
    const dsc_module *module = &run->model->modules[m];
    dsc_error err = DSC_ERROR_INIT;
    call c;
    fill_call(run, m, true, &c);
    c.ctx.scratch = run->backward_scratch[m].ptr;
    c.ctx.repeated = run->options.keep && run->plan[m].repeated_bytes > 0 ? run->repeated[m].ptr : NULL;
    c.ctx.d_out = d_out;
    c.ctx.d_in = m > 0 ? d_in : NULL;
    poison_grads(run, m);
    poison(&run->backward_scratch[m]);
    const uint64_t before = hash_inputs(run, m);
    must(module->backward(module, &c.ctx, &err), &err);
    DSC_ASSERT(hash_inputs(run, m) == before);
    check_module(run, m);
}

static double mean_loss(const modelrun *run)
{
    const int64_t count = run->losses.bytes / 4;
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += (double)modelrun_losses(run)[i];
    return sum / (double)count;
}

double modelrun_step(modelrun *run)
{
    const int32_t last = run->model->module_count - 1;
    guarded *d_out = &run->d[0], *d_in = run->options.in_place ? d_out : &run->d[1];
    for (int32_t m = 0; m < last; m++)
        forward(run, m, !run->options.recompute, NULL, NULL, 0);
    poison(d_out);
    poison(&run->losses);
    forward(run, last, true, d_out->ptr, NULL, 0);
    for (int32_t m = last - 1; m >= 0; m--) {
        if (run->options.recompute && run->plan[m].saved_bytes > 0)
            forward(run, m, true, NULL, NULL, 0);
        else if (run->options.rebuild)
            rebuild(run, m);
        if (d_in != d_out)
            poison(d_in);
        backward(run, m, d_out->ptr, d_in->ptr);
        guarded *swap = d_out;
        d_out = d_in;
        d_in = swap;
    }
    return mean_loss(run);
}

double modelrun_evaluate(modelrun *run)
{
    poison(&run->losses);
    for (int32_t m = 0; m < run->model->module_count; m++)
        forward(run, m, false, NULL, NULL, 0);
    return mean_loss(run);
}

void modelrun_logits(modelrun *run, int64_t row, float *logits)
{
    const int32_t last = run->model->module_count - 1;
    guarded values = guard(run->model->vocab_size * 4);
    const uint64_t losses = hash_of(&run->losses);
    for (int32_t m = 0; m <= last; m++)
        forward(run, m, false, NULL, m == last ? (float *)(void *)values.ptr : NULL, row);
    DSC_ASSERT(hash_of(&run->losses) == losses);
    memcpy(logits, values.ptr, (size_t)values.bytes);
    release(&values);
}

const float *modelrun_losses(const modelrun *run)
{
    return (const float *)(const void *)run->losses.ptr;
}

const float *modelrun_grad(const modelrun *run, int32_t module, int32_t param)
{
    return (const float *)(const void *)run->grad[module][param].ptr;
}

const modelrun_gemms *modelrun_planned(const modelrun *run)
{
    return &run->planned;
}

const modelrun_gemms *modelrun_launched(const modelrun *run)
{
    return &run->launched;
}

double modelrun_launched_flops(const modelrun *run)
{
    return run->flops;
}
