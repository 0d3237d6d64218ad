/* infer.c - see infer.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/generate/infer.h"

#include <string.h>

#include "base/bf16.h"
#include "engine/data/masking.h"
#include "engine/internal.h"
#include "engine/machine.h"
#include "kernels/device.h"
#include "kernels/kernels.h"
#include "kernels/needs.h"

#define PART_TOKENS 64     /* a long part: one tile of the attention's queries */
#define PART_WORTH 8       /* fewer new tokens go one by one: a long part costs about as much as so many */
#define SHORT_TEXT 64      /* tokens of the shorter length of a model with labels */
#define LOAD_ELEMENTS (1 << 18) /* elements of a parameter per read */
#define PIECE_ALIGN 256

enum { LONG, SINGLE, PART_KINDS };

struct dsc_infer {
    dsc_infer_options o;
    dsc_device *device;
    dsc_stream *stream;
    dsc_model *loaded;            /* its weights' files */
    dsc_model *model[PART_KINDS]; /* for parts of `tokens` tokens */
    int64_t tokens[PART_KINDS];
    int64_t capacity; /* the longest text now; 0: not started */
    bool keeps_state; /* a module keeps a state behind the last token: parts follow one another */
    dsc_buf weights, cache, buffers, staging;
    const void **param;  /* [sum of the modules' params], whole parameters */
    const float **buffer;  /* [sum of the modules' buffers], NULL: of a kind without values */
    int32_t *first_buffer; /* [module_count] */
    int32_t *first;      /* [module_count] a module's first one */
    int64_t *cache_at;   /* [module_count] bytes into the cache */
    /* In `buffers`, for a long part: */
    void *out[2], *saved, *rebuilt, *scratch;
    float *logits;
    int32_t *ids; /* with labels [3 T + 1]: tokens, places, segments and the place that is seen */
    /* In `staging`: */
    float *block, *host_logits;
    uint16_t *block_bf16;
    int32_t *host_ids, *text; /* a part's; those in the cache */
    int64_t kept;             /* tokens in the cache */
};

static int64_t elements_of(const dsc_param_spec *spec)
{
    int64_t count = 1;
    for (int32_t i = 0; i < spec->dim_count; i++)
        count *= spec->dim[i];
    return count;
}

static int64_t logits_bytes(const dsc_infer *infer)
{
    return 4 * (infer->o.labels ? infer->loaded->labels.count : infer->loaded->vocab_size);
}

/* A picture and its class, which is not read. */
static int64_t picture_bytes(const dsc_infer *infer) { return dsc_batch_tensor_bytes(infer->loaded, 1, 0) + 4; }

static int64_t ids_bytes(const dsc_infer *infer)
{
    if (infer->o.pictures)
        return picture_bytes(infer);
    return 4 * (infer->o.labels ? 3 * infer->tokens[LONG] + 1 : infer->tokens[LONG]);
}

static int64_t element_bytes(const dsc_infer *infer)
{
    return (int64_t)dsc_dtype_bytes(infer->o.dtype);
}

static int64_t param_bytes(const dsc_infer *infer, const dsc_param_spec *spec)
{
    return spec->shared_module >= 0 ? 0 : dsc_align_up(elements_of(spec) * element_bytes(infer), PIECE_ALIGN);
}

/* ---- Weights ---- */

static dsc_status read_block(const dsc_infer *infer, int32_t m, int32_t p, int64_t first, int64_t count, float *to,
                             dsc_error *err)
{
    const dsc_model *model = infer->loaded;
    bool found = false;
    if (model->load_param != NULL)
        DSC_TRY(model->load_param(model, m, p, first, count, to, &found, err));
    if (!found)
        return DSC_FAIL(err, DSC_ERR_INPUT, infer->o.model,
                        "\"%s\" has no weights here; give a Hugging Face folder with *.safetensors, such as DIR/"
                        "step-N of train --save DIR", model->modules[m].params[p].name);
    return DSC_OK;
}

static dsc_status load_param(dsc_infer *infer, int32_t m, int32_t p, char *to, dsc_error *err)
{
    const int64_t count = elements_of(&infer->loaded->modules[m].params[p]);
    for (int64_t first = 0; first < count; first += LOAD_ELEMENTS) {
        const int64_t some = dsc_min_i64(LOAD_ELEMENTS, count - first);
        const void *from = infer->block;
        DSC_TRY(read_block(infer, m, p, first, some, infer->block, err));
        if (infer->o.dtype == DSC_BF16) {
            for (int64_t i = 0; i < some; i++)
                infer->block_bf16[i] = dsc_bf16_from_f32(infer->block[i]);
            from = infer->block_bf16;
        }
        DSC_TRY(dsc_copy(infer->stream, to + first * element_bytes(infer), from, some * element_bytes(infer), err));
        DSC_TRY(dsc_stream_sync(infer->stream, err));
    }
    return DSC_OK;
}

static int64_t buffer_bytes(const dsc_buffer_spec *spec)
{
    return spec->kind == DSC_BUFFER_AVERAGE ? dsc_align_up(4 * spec->count, PIECE_ALIGN) : 0;
}

/* Whole in the block, which a buffer of a batch norm fits into. */
static dsc_status load_buffer(dsc_infer *infer, int32_t m, int32_t b, char *to, dsc_error *err)
{
    const dsc_model *model = infer->loaded;
    const dsc_buffer_spec *spec = &model->modules[m].buffers[b];
    bool found = false;
    if (spec->count > LOAD_ELEMENTS)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, infer->o.model, "buffer \"%s\" has %lld numbers; at most %d",
                        spec->name, (long long)spec->count, LOAD_ELEMENTS);
    if (model->load_buffer != NULL)
        DSC_TRY(model->load_buffer(model, m, b, infer->block, &found, err));
    if (!found)
        return DSC_FAIL(err, DSC_ERR_INPUT, infer->o.model, "buffer \"%s\" is not here; give a folder that train saved",
                        spec->name);
    DSC_TRY(dsc_copy(infer->stream, to, infer->block, 4 * spec->count, err));
    return dsc_stream_sync(infer->stream, err);
}

static dsc_status load_buffers(dsc_infer *infer, char *to, dsc_error *err)
{
    const dsc_model *model = infer->loaded;
    for (int32_t m = 0, next = 0; m < model->module_count; m++) {
        infer->first_buffer[m] = next;
        for (int32_t b = 0; b < model->modules[m].buffer_count; b++, next++) {
            const dsc_buffer_spec *spec = &model->modules[m].buffers[b];
            if (spec->kind != DSC_BUFFER_AVERAGE)
                continue;
            infer->buffer[next] = (const float *)(const void *)to;
            DSC_TRY(load_buffer(infer, m, b, to, err));
            to += buffer_bytes(spec);
        }
    }
    return DSC_OK;
}

static dsc_status load_weights(dsc_infer *infer, dsc_error *err)
{
    const dsc_model *model = infer->loaded;
    char *to = infer->weights.ptr;
    for (int32_t m = 0, next = 0; m < model->module_count; m++) {
        infer->first[m] = next;
        for (int32_t p = 0; p < model->modules[m].param_count; p++, next++) {
            const dsc_param_spec *spec = &model->modules[m].params[p];
            if (spec->shared_module >= 0) {
                infer->param[next] = infer->param[infer->first[spec->shared_module] + spec->shared_param];
                continue;
            }
            infer->param[next] = to;
            DSC_TRY(load_param(infer, m, p, to, err));
            to += param_bytes(infer, spec);
        }
    }
    return load_buffers(infer, to, err);
}

/* ---- The plan ---- */

static dsc_status prepare(void *user, const dsc_gemm_args *shape, dsc_error *err)
{
    return dsc_gemm_prepare(user, shape, err);
}

/* The next `bytes` of a buffer; counts when it is not there yet. */
static void *piece(const dsc_buf *buf, int64_t *end, int64_t bytes)
{
    const int64_t at = *end;
    *end += dsc_align_up(bytes, PIECE_ALIGN);
    return buf->ptr != NULL ? (char *)buf->ptr + at : NULL;
}

static int64_t lay_out(dsc_infer *infer, const dsc_module_plan *most)
{
    int64_t end = 0;
    for (int i = 0; i < 2; i++)
        infer->out[i] = piece(&infer->buffers, &end, most->out_elements * element_bytes(infer));
    infer->saved = piece(&infer->buffers, &end, most->saved_bytes);
    infer->rebuilt = piece(&infer->buffers, &end, most->rebuilt_bytes);
    infer->scratch = piece(&infer->buffers, &end, most->forward_scratch_bytes);
    infer->logits = piece(&infer->buffers, &end, logits_bytes(infer));
    infer->ids = piece(&infer->buffers, &end, ids_bytes(infer));
    return end;
}

static int64_t lay_out_staging(dsc_infer *infer)
{
    int64_t end = 0;
    infer->block = piece(&infer->staging, &end, LOAD_ELEMENTS * 4);
    infer->block_bf16 = piece(&infer->staging, &end, infer->o.dtype == DSC_BF16 ? LOAD_ELEMENTS * 2 : 0);
    infer->host_logits = piece(&infer->staging, &end, logits_bytes(infer));
    infer->host_ids = piece(&infer->staging, &end, ids_bytes(infer));
    infer->text = piece(&infer->staging, &end, infer->capacity * 4);
    return end;
}

/* Options that the model is opened with. */
static dsc_model_options options_of(const dsc_infer *infer)
{
    dsc_model_options options = DSC_MODEL_OPTIONS_INIT;
    options.labels.wanted = infer->o.vectors;
    options.labels.kind = infer->o.vectors ? DSC_LABELS_RANKED : DSC_LABELS_NONE;
    return options;
}

/* The model for parts of one length; adds what its modules need to *most, and tells where they keep what. */
static dsc_status describe(dsc_infer *infer, int kind, dsc_module_plan *most, dsc_error *err)
{
    dsc_model_options options = options_of(infer);
    const dsc_plan_sink sink = { .gemm = prepare, .user = infer->device };
    options.seq_length = infer->o.pictures ? 0 : infer->tokens[kind];
    options.cache_tokens = infer->o.labels ? 0 : infer->capacity;
    options.want_weights = false;
    DSC_TRY(dsc_model_open(&infer->model[kind], infer->o.model, &options, err));
    most->cache_bytes = 0;
    for (int32_t m = 0; m < infer->model[kind]->module_count; m++) {
        const dsc_module *module = &infer->model[kind]->modules[m];
        dsc_module_plan plan;
        DSC_TRY(module->plan(module, 1, infer->o.dtype, &sink, &plan, err));
        most->out_elements = dsc_max_i64(most->out_elements, plan.out_elements);
        most->saved_bytes = dsc_max_i64(most->saved_bytes, plan.saved_bytes);
        most->rebuilt_bytes = dsc_max_i64(most->rebuilt_bytes, plan.rebuilt_bytes);
        most->forward_scratch_bytes = dsc_max_i64(most->forward_scratch_bytes, plan.forward_scratch_bytes);
        infer->keeps_state |= plan.keeps_state;
        infer->cache_at[m] = most->cache_bytes;
        most->cache_bytes += dsc_align_up(plan.cache_bytes, PIECE_ALIGN);
    }
    return DSC_OK;
}

static dsc_status check_fit(const dsc_infer *infer, const dsc_infer_plan *plan, dsc_error *err)
{
    const double mb = 1e6;
    const int64_t on_device = plan->weights + plan->cache + plan->buffers;
    int64_t host = plan->staging, free_bytes = dsc_machine_available_bytes(1);
    dsc_device_props props;
    dsc_device_props_get(infer->device, &props);
    const bool gpu = !infer->device->ops->host_visible;
    if (!gpu)
        host += on_device;
    const bool on_gpu = gpu && on_device > props.free_bytes;
    if (host <= free_bytes && !on_gpu)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_NOFIT, "memory",
                    "the model needs %.0f MB (weights %.0f MB, keys and values of %lld tokens %.0f MB, buffers "
                    "%.0f MB) but %.0f MB are free; use fewer --max-new-tokens, --dtype bf16 or a smaller model",
                    (double)(on_gpu ? on_device : host) / mb, (double)plan->weights / mb, (long long)infer->capacity,
                    (double)plan->cache / mb, (double)(plan->buffers + plan->staging) / mb,
                    (double)(on_gpu ? props.free_bytes : free_bytes) / mb);
}

enum { NEEDS = 4 };
/* `plan` is NULL for close. */
static void list_needs(dsc_infer *infer, const dsc_infer_plan *plan, dsc_need out[NEEDS])
{
    const dsc_infer_plan none = { 0 }, *p = plan != NULL ? plan : &none;
    out[0] = (dsc_need) { &infer->weights, DSC_TAG_PARAM, DSC_TIER_DEVICE, p->weights, DSC_NEED_DEVICE };
    out[1] = (dsc_need) { &infer->cache, DSC_TAG_ACTIVATION, DSC_TIER_DEVICE, p->cache, DSC_NEED_DEVICE };
    out[2] = (dsc_need) { &infer->buffers, DSC_TAG_SCRATCH, DSC_TIER_DEVICE, p->buffers, DSC_NEED_DEVICE };
    out[3] = (dsc_need) { &infer->staging, DSC_TAG_IO, DSC_TIER_PINNED, p->staging, DSC_NEED_DEVICE };
}

static dsc_status open_needs(dsc_infer *infer, const dsc_infer_plan *plan, dsc_error *err)
{
    dsc_needs needs = { .alloc = infer->o.alloc, .device = infer->device };
    dsc_need list[NEEDS];
    DSC_ASSERT(infer->weights.ptr == NULL);
    list_needs(infer, plan, list);
    DSC_TRY(dsc_needs_plan_and_open(&needs, list, NEEDS, err));
    dsc_needs_check(&needs);
    return DSC_OK;
}

dsc_status dsc_infer_start(dsc_infer *infer, int64_t tokens, dsc_infer_plan *plan, dsc_error *err)
{
    const dsc_model *model = infer->loaded;
    dsc_module_plan most = { 0 };
    dsc_infer_plan unused;
    int64_t params = 0, buffers = 0;
    if (plan == NULL)
        plan = &unused;
    DSC_ASSERT(infer->capacity == 0);
    if (tokens < 1 || (tokens > dsc_infer_positions(infer) && !infer->o.labels))
        return DSC_FAIL(err, DSC_ERR_INPUT, infer->o.model, "a text of %lld tokens; the model takes 1 to %lld",
                        (long long)tokens, (long long)dsc_infer_positions(infer));
    infer->tokens[LONG] = infer->o.labels ? tokens : dsc_min_i64(PART_TOKENS, dsc_infer_positions(infer));
    infer->tokens[SINGLE] = infer->o.labels ? dsc_min_i64(SHORT_TEXT, tokens) : 1;
    infer->capacity = dsc_max_i64(tokens, infer->tokens[LONG]);
    *plan = (dsc_infer_plan){ 0 };
    for (int32_t m = 0; m < model->module_count; m++) {
        params += model->modules[m].param_count;
        buffers += model->modules[m].buffer_count;
        for (int32_t b = 0; b < model->modules[m].buffer_count; b++)
            plan->weights += buffer_bytes(&model->modules[m].buffers[b]);
        for (int32_t p = 0; p < model->modules[m].param_count; p++)
            plan->weights += param_bytes(infer, &model->modules[m].params[p]);
    }
    DSC_TRY(dsc_alloc_zeroed(infer->o.alloc, DSC_TAG_CONTROL, params, sizeof *infer->param, &infer->param, err));
    DSC_TRY(dsc_alloc_zeroed(infer->o.alloc, DSC_TAG_CONTROL, model->module_count, sizeof *infer->first,
                             &infer->first, err));
    DSC_TRY(dsc_alloc_zeroed(infer->o.alloc, DSC_TAG_CONTROL, model->module_count, sizeof *infer->first_buffer,
                             &infer->first_buffer, err));
    DSC_TRY(dsc_alloc_zeroed(infer->o.alloc, DSC_TAG_CONTROL, buffers, sizeof *infer->buffer, &infer->buffer, err));
    DSC_TRY(dsc_alloc_zeroed(infer->o.alloc, DSC_TAG_CONTROL, model->module_count, sizeof *infer->cache_at,
                             &infer->cache_at, err));
    for (int kind = 0; kind < PART_KINDS; kind++)
        DSC_TRY(describe(infer, kind, &most, err));
    plan->cache = most.cache_bytes;
    plan->buffers = lay_out(infer, &most);
    plan->staging = lay_out_staging(infer);
    DSC_TRY(check_fit(infer, plan, err));
    DSC_TRY(open_needs(infer, plan, err));
    (void)lay_out(infer, &most);
    (void)lay_out_staging(infer);
    return load_weights(infer, err);
}

/* ---- Opening ---- */

static dsc_status find_device(const dsc_infer *infer, const dsc_device_ops **ops, dsc_error *err)
{
    int32_t count = 0;
    *ops = &dsc_device_cpu;
    if (strcmp(infer->o.device, "cpu") == 0)
        return DSC_OK;
    if (strcmp(infer->o.device, "auto") != 0)
        return dsc_device_find(infer->o.device, ops, &count, err);
    if (dsc_device_find("cuda", ops, &count, NULL) != DSC_OK)
        *ops = &dsc_device_cpu;
    return DSC_OK;
}

/* A model for what the caller wants. */
static dsc_status check_kind(const dsc_infer *infer, dsc_error *err)
{
    if (infer->o.vectors)
        return DSC_OK;
    if (infer->o.labels && infer->loaded->labels.kind == DSC_LABELS_NONE)
        return DSC_FAIL(err, DSC_ERR_INPUT, infer->o.model,
                        "the model has no head for labels (not a class *ForSequenceClassification); train one with "
                        "dsc.labels");
    if (infer->o.pictures)
        return DSC_OK;
    if (infer->o.labels && (strcmp(infer->loaded->batch[0].name, "tokens") != 0 || infer->loaded->labels.names == NULL))
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, infer->o.model, "the model classifies neither texts nor pictures");
    if (infer->o.labels && infer->loaded->labels.tokens > 0)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, infer->o.model,
                        "the model has a label for each token; dsc classify prints labels of whole texts");
    if (infer->o.labels)
        return DSC_OK;
    if (dsc_model_predictions(infer->loaded) > 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, infer->o.model,
                        "this is a masked language model (as BERT is): it predicts "
                        "masked tokens from both sides, and does not continue a text");
    if (infer->loaded->vocab_size <= 0 || infer->loaded->text_positions <= 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, infer->o.model,
                        "the model cannot generate text (not a causal language model)");
    return DSC_OK;
}

static dsc_status open_parts(dsc_infer *infer, dsc_error *err)
{
    const dsc_model_options options = options_of(infer);
    const dsc_device_options device = { .alloc = infer->o.alloc, .threads = infer->o.threads, .caps = dsc_cpu_caps() };
    const dsc_device_ops *ops = NULL;
    float one = 0;
    DSC_TRY(dsc_model_open(&infer->loaded, infer->o.model, &options, err));
    DSC_TRY(dsc_model_check(infer->loaded, err));
    DSC_TRY(check_kind(infer, err));
    DSC_TRY(read_block(infer, 0, 0, 0, 1, &one, err));
    DSC_TRY(find_device(infer, &ops, err));
    DSC_TRY(dsc_device_open(ops, &infer->device, &device, err));
    return dsc_stream_open(infer->device, DSC_STREAM_COMPUTE, "compute", &infer->stream, err);
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
    if (infer->stream != NULL)
        dsc_stream_close(&infer->stream);
    if (infer->device != NULL) {
        const dsc_needs needs = { .alloc = infer->o.alloc, .device = infer->device };
        dsc_need list[NEEDS];
        list_needs(infer, NULL, list);
        dsc_needs_close(&needs, list, NEEDS);
        dsc_device_close(&infer->device);
    }
    void *const control[] = { infer->cache_at, infer->first, (void *)infer->param, infer->first_buffer,
                              (void *)infer->buffer };
    for (size_t i = 0; i < DSC_COUNT(control); i++)
        dsc_alloc_free(infer->o.alloc, control[i]);
    for (int kind = 0; kind < PART_KINDS; kind++)
        dsc_model_close(&infer->model[kind]);
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
    return infer->o.labels ? infer->loaded->seq_length : infer->loaded->text_positions;
}

const dsc_labels *dsc_infer_labels(const dsc_infer *infer) { return &infer->loaded->labels; }

/* ---- A text ---- */

/* One part, whose first token is the text's `past`; the logits of its row `row`, -1: none are wanted. */
static dsc_status run_part(dsc_infer *infer, int kind, int64_t past, int64_t row, dsc_error *err)
{
    const dsc_model *model = infer->model[kind];
    const int64_t tokens = infer->tokens[kind], words = infer->o.labels ? 3 * tokens + 1 : tokens;
    const int64_t next = infer->o.labels ? tokens : 0; /* tensors of labels follow the tokens */
    const void *const pictures[2] = { infer->ids, infer->ids + picture_bytes(infer) / 4 - 1 };
    const void *const texts[5] = { infer->ids, infer->ids, infer->ids + next, infer->ids + 3 * next,
                                   infer->ids + 2 * next };
    const int32_t last = model->module_count - 1;
    const int64_t bytes = infer->o.pictures ? picture_bytes(infer) : words * 4;
    DSC_TRY(dsc_copy(infer->stream, infer->ids, infer->host_ids, bytes, err));
    for (int32_t m = 0; m < last + (row >= 0); m++) {
        dsc_module_ctx ctx = {
            .struct_bytes = (uint32_t)sizeof ctx,
            .stream = infer->stream,
            .dtype = infer->o.dtype,
            .batch = 1,
            .param = infer->param + infer->first[m],
            .batch_data = infer->o.pictures ? pictures : texts,
            .in = m > 0 ? infer->out[(m - 1) % 2] : NULL,
            .out = m < last ? infer->out[m % 2] : NULL,
            .saved = infer->saved,
            .scratch = infer->scratch,
            .loss_scale = 1.0f,
            .logits = m == last ? infer->logits : NULL,
            .logits_row = row,
            .past = past,
            .cache = infer->o.labels ? NULL : (char *)infer->cache.ptr + infer->cache_at[m],
            .rebuilt = infer->rebuilt,
            .buffer = model->modules[m].buffer_count > 0 ? infer->buffer + infer->first_buffer[m] : NULL,
        };
        DSC_TRY(model->modules[m].forward(&model->modules[m], &ctx, err));
    }
    if (row >= 0)
        DSC_TRY(dsc_copy(infer->stream, infer->host_logits, infer->logits, logits_bytes(infer), err));
    return dsc_stream_sync(infer->stream, err);
}

/* The next part of a text with `done` tokens in the cache; *done <- tokens after the part. The last long part ends with
 * the text, so it may start earlier and compute some tokens again. For a text shorter than a part, the rest of the part
 * is padding; no token attends to padding, and later tokens overwrite it. A state has seen no token twice, and no
 * padding: there a long part is whole. */
static dsc_status next_part(dsc_infer *infer, const int32_t *tokens, int64_t count, int64_t *done, dsc_error *err)
{
    const int64_t worth = infer->keeps_state ? infer->tokens[LONG] : PART_WORTH;
    const int kind = count - *done >= worth ? LONG : SINGLE;
    const int64_t size = infer->tokens[kind];
    const int64_t first = dsc_min_i64(*done, dsc_max_i64(0, count - size)), end = dsc_min_i64(count, first + size);
    memset(infer->host_ids, 0, (size_t)size * sizeof *infer->host_ids);
    memcpy(infer->host_ids, tokens + first, (size_t)(end - first) * sizeof *tokens);
    *done = end;
    return run_part(infer, kind, first, end == count ? end - 1 - first : -1, err);
}

static int64_t common_tokens(const dsc_infer *infer, const int32_t *tokens, int64_t count)
{
    int64_t same = 0;
    while (same < infer->kept && same < count && infer->text[same] == tokens[same])
        same++;
    return same;
}

static dsc_status check_tokens(const dsc_infer *infer, const int32_t *tokens, int64_t count, dsc_error *err)
{
    for (int64_t i = 0; i < count; i++)
        if (tokens[i] < 0 || tokens[i] >= dsc_infer_vocab(infer))
            return DSC_FAIL(err, DSC_ERR_INPUT, infer->o.model, "token %d at %lld is outside the vocabulary of %lld",
                            (int)tokens[i], (long long)i, (long long)dsc_infer_vocab(infer));
    return DSC_OK;
}

dsc_status dsc_infer_logits(dsc_infer *infer, const int32_t *tokens, int64_t count, const float **logits,
                            dsc_error *err)
{
    if (count < 1 || count > dsc_min_i64(infer->capacity, dsc_infer_positions(infer)))
        return DSC_FAIL(err, DSC_ERR_INPUT, infer->o.model, "a text of %lld tokens; there is room for 1 to %lld",
                        (long long)count, (long long)dsc_min_i64(infer->capacity, dsc_infer_positions(infer)));
    DSC_TRY(check_tokens(infer, tokens, count, err));
    int64_t done = dsc_min_i64(common_tokens(infer, tokens, count), count - 1);
    if (infer->keeps_state && done < infer->kept)
        done = 0; /* the state has seen tokens that this text does not have */
    infer->kept = 0;
    while (done < count)
        DSC_TRY(next_part(infer, tokens, count, &done, err));
    memcpy(infer->text, tokens, (size_t)count * sizeof *tokens);
    infer->kept = count;
    *logits = infer->host_logits;
    return DSC_OK;
}

/* Padding behind the text is a document of its own, as in the batches of training. */
dsc_status dsc_infer_scores(dsc_infer *infer, const int32_t *tokens, const int32_t *segments, int64_t count,
                            const float **scores, dsc_error *err)
{
    const int kind = count <= infer->tokens[SINGLE] ? SINGLE : LONG;
    const int64_t length = infer->tokens[kind];
    int32_t *const words = infer->host_ids;
    DSC_ASSERT(infer->o.labels);
    if (count < 1 || count > length)
        return DSC_FAIL(err, DSC_ERR_INPUT, infer->o.model, "a text of %lld tokens; there is room for 1 to %lld",
                        (long long)count, (long long)length);
    DSC_TRY(check_tokens(infer, tokens, count, err));
    for (int64_t i = 0; i < length; i++) {
        words[i] = i < count ? tokens[i] : 0;
        words[length + i] = (int32_t)(i < count ? i : i - count);
        words[2 * length + i] = i < count && segments[i] != 0;
    }
    words[3 * length] = infer->loaded->labels.last ? (int32_t)count - 1 : 0;
    DSC_TRY(run_part(infer, kind, 0, 0, err));
    *scores = infer->host_logits;
    return DSC_OK;
}

const dsc_model *dsc_infer_model(const dsc_infer *infer) { return infer->loaded; }

dsc_status dsc_infer_picture(dsc_infer *infer, const float *pixels, const float **scores, dsc_error *err)
{
    const int64_t bytes = picture_bytes(infer);
    DSC_ASSERT(infer->o.pictures);
    DSC_ASSERT(infer->capacity > 0);
    memcpy(infer->host_ids, pixels, (size_t)bytes - 4);
    infer->host_ids[bytes / 4 - 1] = 0;
    DSC_TRY(run_part(infer, LONG, 0, 0, err));
    *scores = infer->host_logits;
    return DSC_OK;
}
