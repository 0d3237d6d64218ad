/* data.c - samples of token files in the order that the contract fixes. SPDX-License-Identifier: Apache-2.0 */
#include "engine/data/data.h"

#include <string.h>

#include "base/rng.h"
#include "engine/data/sft/sample_file.h"

#define CHECK_BLOCK_BYTES (1 << 19)

/* One of the data's files, and its samples among all of them. */
typedef struct data_file {
    dsc_token_file tokens;
    dsc_sample_file samples; /* instead of tokens, if packed */
    bool packed;
    int64_t local_count;                /* samples that it holds */
    int64_t sample_count, first_sample; /* samples per epoch, by the weight */
} data_file;

struct dsc_data {
    dsc_data_options options;
    data_file *file;
    int32_t file_count;
    int64_t sample_count, token_count;
    int32_t *window; /* [sequence + 1] */
    int32_t *order;  /* [sequence], of masking */
};

static dsc_status open_samples(dsc_data *data, data_file *file, const char *path, dsc_error *err)
{
    const dsc_data_options *o = &data->options;
    const dsc_sample_summary *summary = &file->samples.summary;
    file->packed = true;
    DSC_TRY(dsc_sample_file_open(o->io, path, &file->samples, err));
    if (o->masking.predictions > 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, path,
                        "instruction data for a masked language model; give text, or a model "
                        "that predicts the next token");
    if (summary->sequence != o->sequence)
        return DSC_FAIL(err, DSC_ERR_INPUT, path,
                        "has samples of %lld tokens, and the run has %lld; set dsc.seq_length, "
                        "or give the data itself",
                        (long long)summary->sequence, (long long)o->sequence);
    if (summary->largest_id >= o->vocab_size)
        return DSC_FAIL(err, DSC_ERR_INPUT, path,
                        "token %lld of the tokenizer is outside the model's vocabulary of %lld; "
                        "the tokenizer is that of another model",
                        (long long)summary->largest_id, (long long)o->vocab_size);
    file->local_count = summary->samples;
    data->token_count += summary->samples * summary->sequence;
    return DSC_OK;
}

static dsc_status open_tokens(dsc_data *data, data_file *file, const char *path, dsc_error *err)
{
    DSC_TRY(dsc_token_file_open(data->options.io, path, &file->tokens, err));
    if (file->tokens.token_count < data->options.sequence + 1)
        return DSC_FAIL(err, DSC_ERR_INPUT, path,
                        "%lld tokens are fewer than one sample of %lld and its target; give more text or a "
                        "smaller --seq-len",
                        (long long)file->tokens.token_count, (long long)data->options.sequence);
    file->local_count = (file->tokens.token_count - 1) / data->options.sequence;
    data->token_count += file->tokens.token_count;
    return DSC_OK;
}

static dsc_status open_one(dsc_data *data, const char *path, double weight, dsc_error *err)
{
    data_file *file = &data->file[data->file_count++]; /* from here on close ends it */
    file->tokens = (dsc_token_file)DSC_TOKEN_FILE_INIT;
    file->samples = (dsc_sample_file)DSC_SAMPLE_FILE_INIT;
    DSC_TRY(dsc_sample_path(path) ? open_samples(data, file, path, err) : open_tokens(data, file, path, err));
    file->first_sample = data->sample_count;
    const double share = weight * (double)file->local_count;
    if (share < 1 || share > 1e15)
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "weight %g of %lld samples gives an invalid number of samples",
                        weight, (long long)file->local_count);
    file->sample_count = weight == 1 ? file->local_count : (int64_t)share;
    data->sample_count += file->sample_count;
    return DSC_OK;
}

static dsc_status open_files(dsc_data *data, dsc_error *err)
{
    const dsc_data_options *o = &data->options;
    DSC_TRY(dsc_alloc_zeroed(o->alloc, DSC_TAG_CONTROL, o->path_count, sizeof *data->file, &data->file, err));
    DSC_TRY(dsc_alloc_zeroed(o->alloc, DSC_TAG_CONTROL, o->sequence + 1, sizeof *data->window, &data->window, err));
    DSC_TRY(dsc_alloc_zeroed(o->alloc, DSC_TAG_CONTROL, o->sequence, sizeof *data->order, &data->order, err));
    for (int32_t i = 0; i < o->path_count; i++)
        DSC_TRY(open_one(data, o->paths[i], o->weights != NULL ? o->weights[i] : 1, err));
    return DSC_OK;
}

dsc_status dsc_data_open(const dsc_data_options *options, dsc_data **out, dsc_error *err)
{
    *out = NULL;
    if (options->sequence < 1 || options->path_count < 1)
        return DSC_FAIL(err, DSC_ERR_INPUT, "data",
                        "token files need a model with a sequence length and at least one path");
    dsc_data *data = NULL;
    DSC_TRY(dsc_alloc_zeroed(options->alloc, DSC_TAG_CONTROL, 1, sizeof *data, &data, err));
    data->options = *options;
    const dsc_status status = open_files(data, err);
    data->options.paths = NULL; /* borrowed until return only, as are the weights */
    data->options.weights = NULL;
    if (status != DSC_OK)
        dsc_data_close(&data);
    *out = data;
    return status;
}

void dsc_data_close(dsc_data **data_ptr)
{
    dsc_data *data = *data_ptr;
    if (data == NULL)
        return;
    for (int32_t i = 0; i < data->file_count; i++) {
        dsc_token_file_close(data->options.io, &data->file[i].tokens);
        dsc_sample_file_close(data->options.io, &data->file[i].samples);
    }
    dsc_alloc_free(data->options.alloc, data->order);
    dsc_alloc_free(data->options.alloc, data->window);
    dsc_alloc_free(data->options.alloc, data->file);
    dsc_alloc_free(data->options.alloc, data);
    *data_ptr = NULL;
}

dsc_status dsc_data_scan(dsc_data *data, dsc_data_buffer buffer, int64_t *bytes, dsc_error *err)
{
    const dsc_data_options *o = &data->options;
    for (int32_t i = 0; i < data->file_count; i++)
        if (!data->file[i].packed)
            DSC_TRY(dsc_token_file_scan(o->io, &data->file[i].tokens, o->vocab_size, buffer, bytes, err));
    return DSC_OK;
}

int64_t dsc_data_sample_count(const dsc_data *data) { return data->sample_count; }
int64_t dsc_data_token_count(const dsc_data *data) { return data->token_count; }

bool dsc_data_masks_targets(const dsc_data *data)
{
    for (int32_t i = 0; i < data->file_count; i++)
        if (data->file[i].packed)
            return true;
    return false;
}


static data_file *file_of_sample(dsc_data *data, int64_t sample)
{
    int32_t low = 0, high = data->file_count - 1;
    while (low < high) {
        const int32_t middle = low + (high - low + 1) / 2;
        if (data->file[middle].first_sample <= sample)
            low = middle;
        else
            high = middle - 1;
    }
    return &data->file[low];
}

/* Tokens [first, first + sequence] of a file into the window; ids are checked. */
static dsc_status read_window(dsc_data *data, dsc_token_file *file, int64_t first, dsc_error *err)
{
    const int64_t sequence = data->options.sequence, vocab_size = data->options.vocab_size;
    DSC_TRY(dsc_token_file_read(data->options.io, file, first, sequence + 1, data->window, err));
    for (int64_t i = 0; i <= sequence; i++)
        if (data->window[i] < 0 || data->window[i] >= vocab_size)
            return dsc_token_file_refuse(file, vocab_size, data->window[i], first + i, err);
    return DSC_OK;
}

/* Position of each window token in its document. A document ends at its end token or by the file's index. */
static dsc_status find_places(dsc_data *data, dsc_token_file *file, int64_t first, int32_t *places, dsc_error *err)
{
    const dsc_io *io = data->options.io;
    const bool indexed = file->kind == DSC_TOKENS_MMIDX;
    int64_t document = 0, border = INT64_MAX; /* the next document of the index, and where it begins */
    int32_t place = 0;
    if (indexed) {
        DSC_TRY(dsc_token_index_find(io, &file->index, first + 1, &document, err));
        DSC_TRY(dsc_token_index_start(io, &file->index, document, &border, err));
    }
    for (int64_t i = 0; i < data->options.sequence; i++) {
        place = first + i == border ? 0 : place;
        places[i] = place;
        place = data->window[i] == data->options.document_end ? 0 : place + 1;
        while (border <= first + i && document < file->index.documents)
            DSC_TRY(dsc_token_index_start(io, &file->index, ++document, &border, err));
    }
    return DSC_OK;
}

/* Which of its own samples a file's `at`-th of an epoch is. */
static int64_t own_sample(const dsc_data *data, const data_file *file, uint32_t epoch, int64_t at)
{
    const int64_t inside = at % file->local_count;
    const bool part = at / file->local_count == file->sample_count / file->local_count;
    if (!part || !data->options.shuffle)
        return inside;
    const uint64_t stream = dsc_rng_stream(DSC_RNG_PART + (uint32_t)(file - data->file), epoch);
    return (int64_t)dsc_rng_permute(data->options.seed, stream, (uint64_t)file->local_count, (uint64_t)inside);
}

/* Copies the window to sample k of a batch. */
static void make_sample(dsc_data *data, dsc_mask_key key, int64_t k, void *const *batch_data)
{
    const int64_t sequence = data->options.sequence, predictions = data->options.masking.predictions;
    const size_t bytes = (size_t)sequence * sizeof(int32_t);
    int32_t *const tokens = (int32_t *)batch_data[0] + k * sequence;
    memcpy(tokens, data->window, bytes);
    if (predictions > 0) {
        const dsc_mask_sample sample = { .tokens = tokens, .targets = (int32_t *)batch_data[1] + k * predictions,
                                         .predicted = (int32_t *)batch_data[2] + k * predictions, .order = data->order,
                                         .sequence = sequence, .vocab = data->options.vocab_size };
        dsc_mask(&data->options.masking, key, &sample);
        return;
    }
    memcpy((int32_t *)batch_data[1] + k * sequence, data->window + 1, bytes);
}

/* Copies a sample of examples to sample k of a batch. */
static dsc_status fill_packed(dsc_data *data, data_file *file, int64_t sample, int64_t k, void *const *batch_data,
                              dsc_error *err)
{
    const int64_t sequence = data->options.sequence, at = k * sequence;
    uint32_t *const words = (uint32_t *)data->window;
    DSC_TRY(dsc_sample_file_read(data->options.io, &file->samples, sample, words, err));
    dsc_sample_unpack(words, sequence, (int32_t *)batch_data[0] + at, (int32_t *)batch_data[1] + at,
                      data->options.documents ? (int32_t *)batch_data[2] + at : NULL);
    return DSC_OK;
}

static dsc_status fill(void *user, int64_t first_sample, int64_t count, void *const *batch_data, dsc_error *err)
{
    dsc_data *data = user;
    const int64_t n = data->sample_count, sequence = data->options.sequence;
    for (int64_t k = 0; k < count; k++) {
        const int64_t g = first_sample + k;
        const uint32_t epoch = (uint32_t)(g / n);
        int64_t sample = g % n;
        if (data->options.shuffle)
            sample = (int64_t)dsc_rng_permute(data->options.seed, dsc_rng_stream(DSC_RNG_SHUFFLE, epoch), (uint64_t)n,
                                              (uint64_t)sample);
        data_file *file = file_of_sample(data, sample);
        const int64_t own = own_sample(data, file, epoch, sample - file->first_sample), first = own * sequence;
        if (file->packed) {
            DSC_TRY(fill_packed(data, file, own, k, batch_data, err));
            continue;
        }
        DSC_TRY(read_window(data, &file->tokens, first, err));
        make_sample(data, (dsc_mask_key){ data->options.seed, (uint64_t)sample, epoch }, k, batch_data);
        if (data->options.documents && data->options.masking.predictions == 0)
            DSC_TRY(find_places(data, &file->tokens, first, (int32_t *)batch_data[2] + k * sequence, err));
    }
    return DSC_OK;
}

dsc_data_source dsc_data_as_source(dsc_data *data)
{
    return (dsc_data_source){ .fill = fill, .user = data, .sample_count = data->sample_count };
}

static dsc_status check_file(const dsc_io *io, dsc_alloc *alloc, dsc_token_file *file, int64_t vocab_size,
                             dsc_error *err)
{
    int64_t all = INT64_MAX;
    dsc_data_buffer buffer = { .bytes = CHECK_BLOCK_BYTES };
    if (file->token_count < 2)
        return DSC_FAIL(err, DSC_ERR_INPUT, file->file.path,
                        "%lld tokens; the shortest sample has one and its target", (long long)file->token_count);
    if (vocab_size == 0)
        return DSC_OK;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_IO, buffer.bytes, 1, &buffer.ptr, err));
    const dsc_status status = dsc_token_file_scan(io, file, vocab_size, buffer, &all, err);
    dsc_alloc_free(alloc, buffer.ptr);
    return status;
}

dsc_status dsc_data_check(const dsc_io *io, dsc_alloc *alloc, const char *path, dsc_token_kind kind, int64_t vocab_size,
                          int64_t *token_count, dsc_error *err)
{
    dsc_token_file file;
    dsc_status status = dsc_token_file_open_as(io, path, kind, &file, err);
    if (status == DSC_OK)
        status = check_file(io, alloc, &file, vocab_size, err);
    *token_count = file.token_count;
    dsc_token_file_close(io, &file);
    return status;
}

/* Kernels count on these. */
static dsc_status check_predicted(const dsc_model *model, const dsc_batch_spec *spec, int64_t samples,
                                  const int32_t *places, dsc_error *err)
{
    for (int64_t i = 0; i < samples * spec->dim[0]; i++)
        if (places[i] < 0 || places[i] >= model->seq_length || (i % spec->dim[0] != 0 && places[i] <= places[i - 1]))
            return DSC_FAIL(err, DSC_ERR_INPUT, spec->name,
                            "place %d at position %lld of the batch; expected those of a sample of %lld tokens, each "
                            "above the one before it", (int)places[i], (long long)i, (long long)model->seq_length);
    return DSC_OK;
}

static dsc_status check_places(const dsc_batch_spec *spec, int64_t samples, const int32_t *places, dsc_error *err)
{
    for (int64_t i = 0; i < samples * spec->dim[0]; i++)
        if (places[i] != 0 && (i % spec->dim[0] == 0 || places[i] != places[i - 1] + 1))
            return DSC_FAIL(err, DSC_ERR_INPUT, spec->name,
                            "place %d at position %lld of the batch; expected 0, or one more than the place before in "
                            "its sample", (int)places[i], (long long)i);
    return DSC_OK;
}

int64_t dsc_batch_tensor_bytes(const dsc_model *model, int64_t samples, int32_t i)
{
    int64_t elements = samples;
    for (int32_t d = 0; d < model->batch[i].dim_count; d++)
        elements *= model->batch[i].dim[d];
    return elements * (int64_t)dsc_dtype_bytes(model->batch[i].dtype);
}

int32_t dsc_batch_targets(const dsc_model *model)
{
    const dsc_module *last = model->module_count > 0 ? &model->modules[model->module_count - 1] : NULL;
    for (int32_t i = 0; i < model->batch_count && last != NULL; i++)
        if ((last->flags & DSC_MODULE_MASKS_TARGETS) != 0 && strcmp(model->batch[i].name, DSC_BATCH_TARGETS) == 0)
            return i;
    return -1;
}

/* PyTorch's ignore_index, which labels of transformers have. */
#define IGNORE_INDEX (-100)

static bool is_masked(int32_t target) { return target == -1 || target == IGNORE_INDEX; }

static dsc_status check_ids(const dsc_model *model, const dsc_batch_spec *spec, int64_t samples, const int32_t *ids,
                            bool masked, dsc_error *err)
{
    int64_t count = samples;
    for (int32_t d = 0; d < spec->dim_count; d++)
        count *= spec->dim[d];
    for (int64_t k = 0; k < count; k++)
        if ((ids[k] < 0 || ids[k] >= model->vocab_size) && !(masked && is_masked(ids[k])))
            return DSC_FAIL(err, DSC_ERR_INPUT, spec->name,
                            "id %d at position %lld of the batch is outside the model's vocabulary of %lld%s",
                            (int)ids[k], (long long)k, (long long)model->vocab_size,
                            masked ? "; a masked target is -1 or -100" : "");
    return DSC_OK;
}

dsc_status dsc_batch_check(const dsc_model *model, int64_t samples, const void *const *batch_data, dsc_error *err)
{
    const int32_t targets = dsc_batch_targets(model);
    if (model->vocab_size <= 0)
        return DSC_OK;
    for (int32_t i = 0; i < model->batch_count; i++) {
        const dsc_batch_spec *spec = &model->batch[i];
        if (spec->dtype != DSC_I32)
            continue;
        if (strcmp(spec->name, DSC_BATCH_POSITIONS) == 0)
            DSC_TRY(check_places(spec, samples, batch_data[i], err));
        else if (strcmp(spec->name, DSC_BATCH_PREDICTED) == 0)
            DSC_TRY(check_predicted(model, spec, samples, batch_data[i], err));
        else
            DSC_TRY(check_ids(model, spec, samples, batch_data[i], i == targets, err));
    }
    return DSC_OK;
}

int64_t dsc_batch_counted(const dsc_model *model, int64_t count, const void *const *batch_data)
{
    const int32_t tensor = dsc_batch_targets(model);
    const int32_t *targets = tensor >= 0 ? batch_data[tensor] : NULL;
    int64_t counted = 0;
    for (int64_t i = 0; i < count && targets != NULL; i++)
        counted += targets[i] >= 0;
    return targets != NULL ? counted : count;
}
