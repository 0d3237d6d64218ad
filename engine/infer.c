/* infer.c - see infer.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/infer.h"

#include <string.h>

#include "base/bf16.h"
#include "kernels/device.h"
#include "kernels/kernels.h"

#define TOKENS_LEAST 32
#define LOAD_BLOCK 4096 /* elements, on the stack */
#define PIECE_ALIGN 256

struct dsc_infer {
    dsc_infer_options o;
    dsc_device *device;
    dsc_stream *stream;
    dsc_model *loaded; /* for the model's longest text; its weights' files */
    dsc_model *model;  /* for `tokens` tokens */
    int64_t tokens;
    dsc_buf weights, buffers;
    const void **param;  /* [sum of the modules' params], whole parameters */
    int32_t *first;      /* [module_count] a module's first one */
    /* In `buffers`, for one text of `tokens` tokens: */
    void *out[2], *saved, *scratch;
    float *losses, *logits;
    int32_t *ids;
};

static int64_t elements_of(const dsc_param_spec *spec)
{
    int64_t count = 1;
    for (int32_t i = 0; i < spec->dim_count; i++)
        count *= spec->dim[i];
    return count;
}

static int64_t element_bytes(const dsc_infer *infer)
{
    return (int64_t)dsc_dtype_bytes(infer->o.dtype);
}

/* ---- Weights ---- */

static dsc_status load_param(dsc_infer *infer, int32_t m, int32_t p, void *to, dsc_error *err)
{
    const dsc_model *model = infer->loaded;
    const int64_t count = elements_of(&model->modules[m].params[p]);
    float block[LOAD_BLOCK];
    for (int64_t first = 0; first < count; first += (int64_t)DSC_COUNT(block)) {
        const int64_t some = dsc_min_i64((int64_t)DSC_COUNT(block), count - first);
        bool found = false;
        float *const at = infer->o.dtype == DSC_F32 ? (float *)to + first : block;
        if (model->load_param != NULL)
            DSC_TRY(model->load_param(model, m, p, first, some, at, &found, err));
        if (!found)
            return DSC_FAIL(err, DSC_ERR_INPUT, infer->o.model,
                            "\"%s\" has no weights here; give a Hugging Face folder with *.safetensors, such as DIR/"
                            "step-N of train --save DIR", model->modules[m].params[p].name);
        for (int64_t i = 0; i < some && infer->o.dtype == DSC_BF16; i++)
            ((uint16_t *)to)[first + i] = dsc_bf16_from_f32(block[i]);
    }
    return DSC_OK;
}

static dsc_status load_weights(dsc_infer *infer, dsc_error *err)
{
    const dsc_model *model = infer->loaded;
    int64_t bytes = 0, at = 0, params = 0;
    for (int32_t m = 0; m < model->module_count; m++) {
        for (int32_t p = 0; p < model->modules[m].param_count; p++)
            if (model->modules[m].params[p].shared_module < 0)
                bytes += dsc_align_up(elements_of(&model->modules[m].params[p]) * element_bytes(infer), PIECE_ALIGN);
        params += model->modules[m].param_count;
    }
    DSC_TRY(dsc_buf_open(infer->o.alloc, DSC_TAG_PARAM, DSC_TIER_HOST, bytes, &infer->weights, err));
    DSC_TRY(dsc_alloc_zeroed(infer->o.alloc, DSC_TAG_CONTROL, params, sizeof *infer->param, &infer->param, err));
    DSC_TRY(dsc_alloc_zeroed(infer->o.alloc, DSC_TAG_CONTROL, model->module_count, sizeof *infer->first,
                             &infer->first, err));
    for (int32_t m = 0, next = 0; m < model->module_count; m++) {
        infer->first[m] = next;
        for (int32_t p = 0; p < model->modules[m].param_count; p++, next++) {
            const dsc_param_spec *spec = &model->modules[m].params[p];
            if (spec->shared_module >= 0) {
                infer->param[next] = infer->param[infer->first[spec->shared_module] + spec->shared_param];
                continue;
            }
            void *to = (char *)infer->weights.ptr + at;
            infer->param[next] = to;
            at += dsc_align_up(elements_of(spec) * element_bytes(infer), PIECE_ALIGN);
            DSC_TRY(load_param(infer, m, p, to, err));
        }
    }
    return DSC_OK;
}

/* ---- Buffers for a number of tokens ---- */

static dsc_status prepare(void *user, const dsc_gemm_args *shape, dsc_error *err)
{
    return dsc_gemm_prepare(user, shape, err);
}

/* The next `bytes` of the buffers; counts when there are none yet. */
static void *piece(const dsc_infer *infer, int64_t *end, int64_t bytes)
{
    const int64_t at = *end;
    *end += dsc_align_up(bytes, PIECE_ALIGN);
    return infer->buffers.ptr != NULL ? (char *)infer->buffers.ptr + at : NULL;
}

static int64_t lay_out(dsc_infer *infer, const dsc_module_plan *most)
{
    int64_t end = 0;
    for (int i = 0; i < 2; i++)
        infer->out[i] = piece(infer, &end, most->out_elements * element_bytes(infer));
    infer->saved = piece(infer, &end, most->saved_bytes);
    infer->scratch = piece(infer, &end, most->forward_scratch_bytes);
    infer->losses = piece(infer, &end, infer->tokens * 4);
    infer->logits = piece(infer, &end, infer->model->vocab_size * 4);
    infer->ids = piece(infer, &end, infer->tokens * 4);
    return end;
}

static dsc_status describe(dsc_infer *infer, int64_t tokens, dsc_error *err)
{
    dsc_model_options options = DSC_MODEL_OPTIONS_INIT;
    const dsc_plan_sink sink = { prepare, infer->device };
    dsc_module_plan most = { 0 };
    options.seq_length = tokens;
    options.want_weights = false;
    dsc_model_close(&infer->model);
    dsc_buf_close(&infer->buffers);
    infer->tokens = 0;
    DSC_TRY(dsc_model_open(&infer->model, infer->o.model, &options, err));
    for (int32_t m = 0; m < infer->model->module_count; m++) {
        const dsc_module *module = &infer->model->modules[m];
        dsc_module_plan plan;
        DSC_TRY(module->plan(module, 1, infer->o.dtype, &sink, &plan, err));
        most.out_elements = dsc_max_i64(most.out_elements, plan.out_elements);
        most.saved_bytes = dsc_max_i64(most.saved_bytes, plan.saved_bytes);
        most.forward_scratch_bytes = dsc_max_i64(most.forward_scratch_bytes, plan.forward_scratch_bytes);
    }
    infer->tokens = tokens;
    const int64_t bytes = lay_out(infer, &most);
    DSC_TRY(dsc_buf_open(infer->o.alloc, DSC_TAG_ACTIVATION, DSC_TIER_HOST, bytes, &infer->buffers, err));
    (void)lay_out(infer, &most);
    return DSC_OK;
}

/* ---- Opening ---- */

static dsc_status open_parts(dsc_infer *infer, dsc_error *err)
{
    const dsc_model_options options = DSC_MODEL_OPTIONS_INIT;
    const dsc_device_options device = { .alloc = infer->o.alloc, .threads = infer->o.threads, .caps = dsc_cpu_caps() };
    DSC_TRY(dsc_model_open(&infer->loaded, infer->o.model, &options, err));
    DSC_TRY(dsc_model_check(infer->loaded, err));
    if (infer->loaded->vocab_size <= 0 || infer->loaded->losses_per_sample != infer->loaded->seq_length)
        return DSC_FAIL(err, DSC_ERR_INPUT, infer->o.model, "this is no language model");
    DSC_TRY(dsc_device_open(&dsc_device_cpu, &infer->device, &device, err));
    DSC_TRY(dsc_stream_open(infer->device, DSC_STREAM_COMPUTE, "compute", &infer->stream, err));
    return load_weights(infer, err);
}

dsc_status dsc_infer_open(const dsc_infer_options *options, dsc_infer **out, dsc_error *err)
{
    dsc_infer *infer = NULL;
    *out = NULL;
    DSC_TRY(dsc_alloc_zeroed(options->alloc, DSC_TAG_CONTROL, 1, sizeof *infer, &infer, err));
    infer->o = *options;
    const dsc_status status = open_parts(infer, err);
    if (status != DSC_OK)
        dsc_infer_close(&infer);
    *out = infer;
    return status;
}

void dsc_infer_close(dsc_infer **infer_ptr)
{
    dsc_infer *infer = *infer_ptr;
    if (infer == NULL)
        return;
    dsc_buf_close(&infer->buffers);
    dsc_buf_close(&infer->weights);
    dsc_alloc_free(infer->o.alloc, infer->first);
    dsc_alloc_free(infer->o.alloc, (void *)infer->param);
    if (infer->stream != NULL)
        dsc_stream_close(&infer->stream);
    if (infer->device != NULL)
        dsc_device_close(&infer->device);
    dsc_model_close(&infer->model);
    dsc_model_close(&infer->loaded);
    dsc_alloc_free(infer->o.alloc, infer);
    *infer_ptr = NULL;
}

int64_t dsc_infer_vocab(const dsc_infer *infer)
{
    return infer->loaded->vocab_size;
}

int64_t dsc_infer_positions(const dsc_infer *infer)
{
    return infer->loaded->seq_length;
}

dsc_status dsc_infer_logits(dsc_infer *infer, const int32_t *tokens, int64_t count, const float **logits,
                            dsc_error *err)
{
    const int64_t positions = dsc_infer_positions(infer);
    if (count < 1 || count > positions)
        return DSC_FAIL(err, DSC_ERR_INPUT, infer->o.model, "a text of %lld tokens; the model takes 1 to %lld",
                        (long long)count, (long long)positions);
    for (int64_t i = 0; i < count; i++)
        if (tokens[i] < 0 || tokens[i] >= infer->loaded->vocab_size)
            return DSC_FAIL(err, DSC_ERR_INPUT, infer->o.model, "token %d at %lld is outside the vocabulary of %lld",
                            (int)tokens[i], (long long)i, (long long)infer->loaded->vocab_size);
    int64_t room = dsc_max_i64(infer->tokens, TOKENS_LEAST);
    while (room < count)
        room *= 2;
    if (room != infer->tokens && infer->tokens < dsc_min_i64(room, positions))
        DSC_TRY(describe(infer, dsc_min_i64(room, positions), err));
    memset(infer->ids, 0, (size_t)infer->tokens * sizeof *infer->ids); /* what follows the last is never looked at */
    memcpy(infer->ids, tokens, (size_t)count * sizeof *infer->ids);
    const void *const batch[2] = { infer->ids, infer->ids };
    const int32_t last = infer->model->module_count - 1;
    for (int32_t m = 0; m <= last; m++) {
        dsc_module_ctx ctx = {
            .struct_bytes = (uint32_t)sizeof ctx,
            .stream = infer->stream,
            .dtype = infer->o.dtype,
            .batch = 1,
            .param = infer->param + infer->first[m],
            .batch_data = batch,
            .in = m > 0 ? infer->out[(m - 1) % 2] : NULL,
            .out = m < last ? infer->out[m % 2] : NULL,
            .saved = infer->saved,
            .scratch = infer->scratch,
            .loss_scale = 1.0f,
            .losses = m == last ? infer->losses : NULL,
            .logits = m == last ? infer->logits : NULL,
            .logits_row = count - 1,
        };
        DSC_TRY(infer->model->modules[m].forward(&infer->model->modules[m], &ctx, err));
    }
    DSC_TRY(dsc_stream_sync(infer->stream, err));
    *logits = infer->logits;
    return DSC_OK;
}
