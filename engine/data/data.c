/* data.c - samples of token files in the order that the contract fixes. SPDX-License-Identifier: Apache-2.0 */
#include "engine/data/data.h"

#include <math.h>
#include <string.h>

#include "base/hash.h"
#include "base/rng.h"
#include "engine/data/token_streams.h"

#define CHECK_BLOCK_BYTES (1 << 19)

/* A stream's samples among all of them. */
typedef struct data_stream {
    int64_t local_count;                /* samples that it holds */
    int64_t sample_count, first_sample; /* samples per epoch, by the weight */
    int64_t first_stored;               /* its first one among those of all streams, each once */
} data_stream;

struct dsc_data {
    dsc_data_options options;
    dsc_token_streams streams;
    data_stream *samples; /* [streams.stream_count] */
    int64_t sample_count, token_count;
    int64_t unit;    /* samples that stay together */
    int32_t *window; /* [sequence + 1, or label words] */
    int32_t *order;  /* [sequence], of masking */
    int64_t stored_count;
    const dsc_data_reference *references; /* [stored_count] of pairs; NULL: not known yet */
};

/* Samples of a pair, or of a row whose texts are compared, which all files have alike. */
static dsc_status find_unit(dsc_data *data, dsc_error *err)
{
    const dsc_token_streams *streams = &data->streams;
    data->unit = data->options.pairs ? 2 : 1;
    if (!dsc_label_kind_pairs(data->options.labels.kind))
        return DSC_OK;
    data->unit = streams->part[streams->stream[0].first].samples.summary.texts;
    for (int32_t i = 0; i < streams->stream_count; i++) {
        const int64_t texts = streams->part[streams->stream[i].first].samples.summary.texts;
        if (texts != data->unit)
            return DSC_FAIL(err, DSC_ERR_INPUT, dsc_data_name(&data->options, streams->stream[i].number),
                            "has rows of %lld texts, and another file of %lld; files of one list need as many texts in "
                            "each row",
                            (long long)texts, (long long)data->unit);
    }
    DSC_ASSERT(data->unit >= 2);
    return DSC_OK;
}

static dsc_status count_samples(dsc_data *data, int32_t i, dsc_error *err)
{
    const dsc_token_stream *stream = &data->streams.stream[i];
    data_stream *samples = &data->samples[i];
    samples->first_sample = data->sample_count;
    samples->local_count = stream->packed ? data->streams.part[stream->first].samples.summary.samples
                                          : (stream->token_count - 1) / data->options.sequence;
    const double share = stream->weight * (double)samples->local_count;
    if (share < 1 || share > 1e15)
        return DSC_FAIL(err, DSC_ERR_INPUT, dsc_data_name(&data->options, stream->number),
                        "weight %g of %lld samples gives an invalid number of samples", stream->weight,
                        (long long)samples->local_count);
    samples->sample_count = stream->weight == 1 ? samples->local_count : (int64_t)share;
    if (data->unit > 1) /* whole ones */
        samples->sample_count = dsc_max_i64(data->unit, samples->sample_count / data->unit * data->unit);
    samples->first_stored = data->stored_count;
    data->stored_count += samples->local_count;
    data->sample_count += samples->sample_count;
    data->token_count += stream->token_count;
    return DSC_OK;
}

static dsc_status open_files(dsc_data *data, dsc_error *err)
{
    const dsc_data_options *o = &data->options;
    DSC_TRY(dsc_token_streams_open(o, &data->streams, err));
    DSC_TRY(dsc_alloc_zeroed(o->alloc, DSC_TAG_CONTROL, data->streams.stream_count, sizeof *data->samples,
                             &data->samples, err));
    DSC_TRY(dsc_alloc_zeroed(o->alloc, DSC_TAG_CONTROL, o->sequence + dsc_max_i64(1, dsc_label_words(&o->labels)),
                             sizeof *data->window, &data->window, err));
    DSC_TRY(dsc_alloc_zeroed(o->alloc, DSC_TAG_CONTROL, o->sequence, sizeof *data->order, &data->order, err));
    DSC_TRY(find_unit(data, err));
    for (int32_t i = 0; i < data->streams.stream_count; i++)
        DSC_TRY(count_samples(data, i, err));
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
    data->options.paths = data->options.names = NULL; /* borrowed until return only, as are the weights */
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
    dsc_token_streams_close(&data->streams);
    dsc_alloc_free(data->options.alloc, data->order);
    dsc_alloc_free(data->options.alloc, data->window);
    dsc_alloc_free(data->options.alloc, data->samples);
    dsc_alloc_free(data->options.alloc, data);
    *data_ptr = NULL;
}

dsc_status dsc_data_scan(dsc_data *data, dsc_data_buffer buffer, int64_t *bytes, dsc_error *err)
{
    const dsc_data_options *o = &data->options;
    for (int32_t i = 0; i < data->streams.part_count; i++) {
        if (data->streams.part[i].packed || *bytes <= 0) /* opening compares the largest id of packed samples */
            continue;
        DSC_TRY(dsc_token_streams_use(&data->streams, i, err));
        DSC_TRY(dsc_token_file_scan(o->io, &data->streams.part[i].file, o->vocab_size, buffer, bytes, err));
    }
    return DSC_OK;
}

dsc_data_short dsc_data_short_files(const dsc_data *data) { return data->streams.short_files; }

int64_t dsc_data_unit(const dsc_data *data) { return data->unit; }
int64_t dsc_data_sample_count(const dsc_data *data) { return data->sample_count; }
int64_t dsc_data_token_count(const dsc_data *data) { return data->token_count; }

bool dsc_data_masks_targets(const dsc_data *data)
{
    for (int32_t i = 0; i < data->streams.stream_count; i++)
        if (data->streams.stream[i].packed)
            return true;
    return false;
}

static int32_t stream_of_sample(const dsc_data *data, int64_t sample)
{
    int32_t low = 0, high = data->streams.stream_count - 1;
    while (low < high) {
        const int32_t middle = low + (high - low + 1) / 2;
        if (data->samples[middle].first_sample <= sample)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* Position of each window token in its document, for a part's tokens [first, first + count) that are the window's from
 * `at` on. A document ends at its end token, by the file's index, or with a file. */
static dsc_status find_places(dsc_data *data, dsc_token_part *part, int64_t first, int64_t at, int64_t count,
                              int32_t *places, dsc_error *err)
{
    const dsc_io *io = data->options.io;
    dsc_token_file *file = &part->file;
    int64_t document = 0, border = INT64_MAX; /* the next document of the index, and where it begins */
    int32_t place = 0;
    if (file->kind == DSC_TOKENS_MMIDX) {
        DSC_TRY(dsc_token_index_find(io, &file->index, first + 1, &document, err));
        DSC_TRY(dsc_token_index_start(io, &file->index, document, &border, err));
    }
    for (int64_t i = 0; i < dsc_min_i64(count, data->options.sequence - at); i++) {
        place = first + i == border ? 0 : place;
        places[at + i] = place;
        place = data->window[at + i] == data->options.document_end ? 0 : place + 1;
        while (border <= first + i && document < file->index.documents)
            DSC_TRY(dsc_token_index_start(io, &file->index, ++document, &border, err));
    }
    return DSC_OK;
}

/* Tokens [first, first + sequence] of a stream into the window, and their places unless NULL; ids are checked. */
static dsc_status read_window(dsc_data *data, const dsc_token_stream *stream, int64_t first, int32_t *places,
                              dsc_error *err)
{
    const int64_t window = data->options.sequence + 1, vocab_size = data->options.vocab_size;
    for (int64_t at = 0, count = 0; at < window; at += count) {
        dsc_token_part *part = NULL;
        DSC_TRY(dsc_token_streams_find(&data->streams, stream, first + at, &part, err));
        const int64_t inside = first + at - part->start;
        count = dsc_min_i64(window - at, part->file.token_count - inside);
        DSC_TRY(dsc_token_file_read(data->options.io, &part->file, inside, count, data->window + at, err));
        for (int64_t i = 0; i < count; i++)
            if (data->window[at + i] < 0 || data->window[at + i] >= vocab_size)
                return dsc_token_file_refuse(&part->file, vocab_size, data->window[at + i], inside + i, err);
        if (places != NULL)
            DSC_TRY(find_places(data, part, inside, at, count, places, err));
    }
    return DSC_OK;
}

/* Place of sample `at` of `count` in a permutation of the units. */
static int64_t permuted(const dsc_data *data, uint64_t stream, int64_t count, int64_t at)
{
    const int64_t unit = data->unit;
    const uint64_t units = (uint64_t)(count / unit), which = (uint64_t)(at / unit);
    return (int64_t)dsc_rng_permute(data->options.seed, stream, units, which) * unit + at % unit;
}

/* Which of its own samples a stream's `at`-th of an epoch is. */
static int64_t own_sample(const dsc_data *data, int32_t i, uint32_t epoch, int64_t at)
{
    const data_stream *samples = &data->samples[i];
    const int64_t inside = at % samples->local_count;
    const bool part = at / samples->local_count == samples->sample_count / samples->local_count;
    if (!part || !data->options.shuffle)
        return inside;
    const uint64_t stream = dsc_rng_stream(DSC_RNG_PART + (uint32_t)data->streams.stream[i].number, epoch);
    return permuted(data, stream, samples->local_count, inside);
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

/* The window's text and labels become sample k of a batch. */
static void make_labeled(const dsc_data *data, int64_t k, void *const *batch_data)
{
    const dsc_labels *labels = &data->options.labels;
    const int64_t sequence = data->options.sequence, at = k * sequence, words = dsc_label_words(labels);
    int32_t *const segments = labels->segments ? (int32_t *)batch_data[4] + at : NULL;
    const int32_t last = dsc_sample_unpack_text((const uint32_t *)data->window, sequence, (int32_t *)batch_data[0] + at,
                                                (int32_t *)batch_data[2] + at, segments);
    memcpy((int32_t *)batch_data[1] + k * words, data->window + sequence, (size_t)words * sizeof(int32_t));
    for (int64_t i = 0; i < labels->tokens; i++)
        ((int32_t *)batch_data[3])[at + i] = (int32_t)i;
    if (labels->tokens == 0)
        ((int32_t *)batch_data[3])[k] = labels->last ? last : 0;
}

/* Copies a sample of examples to sample k of a batch. */
static dsc_status fill_packed(dsc_data *data, const dsc_token_stream *stream, int64_t sample, int64_t k,
                              void *const *batch_data, dsc_error *err)
{
    const int64_t sequence = data->options.sequence, at = k * sequence;
    uint32_t *const words = (uint32_t *)data->window;
    DSC_TRY(dsc_token_streams_use(&data->streams, stream->first, err));
    DSC_TRY(dsc_sample_file_read(data->options.io, &data->streams.part[stream->first].samples, sample, words, err));
    if (data->options.labels.kind != DSC_LABELS_NONE) {
        make_labeled(data, k, batch_data);
        return DSC_OK;
    }
    dsc_sample_unpack(words, sequence, (int32_t *)batch_data[0] + at, (int32_t *)batch_data[1] + at,
                      data->options.documents ? (int32_t *)batch_data[2] + at : NULL);
    return DSC_OK;
}

uint64_t dsc_data_hash(const dsc_data *data, const int32_t *tokens, const int32_t *targets)
{
    const size_t bytes = (size_t)data->options.sequence * sizeof(int32_t);
    return dsc_xxh3_128(targets, bytes, dsc_xxh3_128(tokens, bytes, 0).low).low;
}

/* The reference of sample k of a batch, which is sample `own` of stream i. */
static dsc_status refer(const dsc_data *data, int32_t i, int64_t own, int64_t k, void *const *batch_data,
                        dsc_error *err)
{
    const int64_t at = k * data->options.sequence;
    const dsc_token_part *part = &data->streams.part[data->streams.stream[i].first];
    const char *const name = part->name != NULL ? part->name : part->samples.file.path;
    if (data->references == NULL)
        return DSC_FAIL(err, DSC_ERR_STATE, name, "the reference's log-probabilities are not known yet");
    const dsc_data_reference *reference = &data->references[data->samples[i].first_stored + own];
    if (reference->hash != dsc_data_hash(data, (int32_t *)batch_data[0] + at, (int32_t *)batch_data[1] + at))
        return DSC_FAIL(err, DSC_ERR_INPUT, name,
                        "pair %lld is not the one that the run's reference has seen; data must stay as it was when "
                        "the run began: give that data, or begin a new run",
                        (long long)(own / 2));
    ((double *)batch_data[2])[k] = reference->log_probability;
    return DSC_OK;
}

static dsc_status fill_stored(void *user, int64_t first_sample, int64_t count, void *const *batch_data, dsc_error *err)
{
    dsc_data *data = user;
    int32_t i = 0;
    for (int64_t k = 0; k < count; k++) {
        const int64_t sample = (first_sample + k) % data->stored_count;
        while (sample < data->samples[i].first_stored ||
               sample >= data->samples[i].first_stored + data->samples[i].local_count)
            i = (i + 1) % data->streams.stream_count;
        DSC_TRY(
            fill_packed(data, &data->streams.stream[i], sample - data->samples[i].first_stored, k, batch_data, err));
        ((double *)batch_data[2])[k] = 0;
    }
    return DSC_OK;
}

int64_t dsc_data_stored_count(const dsc_data *data) { return data->stored_count; }

dsc_data_source dsc_data_stored_source(dsc_data *data)
{
    DSC_ASSERT(data->options.pairs);
    return (dsc_data_source) { .fill = fill_stored, .user = data, .sample_count = data->stored_count };
}

void dsc_data_set_references(dsc_data *data, const dsc_data_reference *references)
{
    DSC_ASSERT(data->options.pairs);
    data->references = references;
}

/* A sample of the run: its stream, its number there and in its epoch. */
typedef struct located {
    int32_t stream;
    int64_t own, sample;
    uint32_t epoch;
} located;

static located locate(const dsc_data *data, int64_t g)
{
    const int64_t n = data->sample_count;
    located at = { .epoch = (uint32_t)(g / n), .sample = g % n };
    if (data->options.shuffle)
        at.sample = permuted(data, dsc_rng_stream(DSC_RNG_SHUFFLE, at.epoch), n, at.sample);
    at.stream = stream_of_sample(data, at.sample);
    at.own = own_sample(data, at.stream, at.epoch, at.sample - data->samples[at.stream].first_sample);
    return at;
}

dsc_data_place dsc_data_place_of(const dsc_data *data, int64_t sample)
{
    const located at = locate(data, sample);
    const dsc_token_stream *stream = &data->streams.stream[at.stream];
    const int64_t first = stream->packed ? at.own : at.own * data->options.sequence;
    const dsc_token_part *part = &data->streams.part[stream->first];
    for (int32_t i = 1; i < stream->count && part[1].start <= first && !stream->packed; i++)
        part++;
    const char *path = part->packed ? part->samples.file.path : part->file.file.path;
    return (dsc_data_place) { .file = part->name != NULL ? part->name : path,
                              .first = stream->packed ? first : first - part->start,
                              .last = stream->packed ? first : first - part->start + data->options.sequence - 1,
                              .packed = stream->packed };
}

static dsc_status fill(void *user, int64_t first_sample, int64_t count, void *const *batch_data, dsc_error *err)
{
    dsc_data *data = user;
    const int64_t sequence = data->options.sequence;
    for (int64_t k = 0; k < count; k++) {
        const located at = locate(data, first_sample + k);
        const int32_t i = at.stream;
        const int64_t own = at.own;
        const dsc_token_stream *stream = &data->streams.stream[i];
        if (stream->packed) {
            DSC_TRY(fill_packed(data, stream, own, k, batch_data, err));
            if (data->options.pairs)
                DSC_TRY(refer(data, i, own, k, batch_data, err));
            continue;
        }
        int32_t *const places = data->options.documents && data->options.masking.predictions == 0
                                    ? (int32_t *)batch_data[2] + k * sequence
                                    : NULL;
        DSC_TRY(read_window(data, stream, own * sequence, places, err));
        make_sample(data, (dsc_mask_key) { data->options.seed, (uint64_t)at.sample, at.epoch }, k, batch_data);
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

static dsc_status check_below(const dsc_batch_spec *spec, int64_t samples, const int32_t *numbers, int64_t most,
                              bool masked, dsc_error *err)
{
    for (int64_t i = 0; i < samples * spec->dim[0]; i++)
        if ((numbers[i] < 0 || numbers[i] >= most) && !(masked && is_masked(numbers[i])))
            return DSC_FAIL(err, DSC_ERR_INPUT, spec->name, "%d at position %lld of the batch; expected 0 to %lld",
                            (int)numbers[i], (long long)i, (long long)most - 1);
    return DSC_OK;
}

static dsc_status check_finite(const dsc_batch_spec *spec, int64_t samples, const float *numbers, dsc_error *err)
{
    for (int64_t i = 0; i < samples * spec->dim[0]; i++)
        if (!isfinite(numbers[i]))
            return DSC_FAIL(err, DSC_ERR_INPUT, spec->name, "%g at position %lld of the batch; expected finite numbers",
                            (double)numbers[i], (long long)i);
    return DSC_OK;
}

/* The places of texts in their rows: each row begins with 0, and its other texts follow in order. */
static dsc_status check_texts(const dsc_batch_spec *spec, int64_t samples, const float *targets, dsc_error *err)
{
    for (int64_t i = 0; i < samples; i++)
        if (targets[2 * i] != 0 && (i == 0 || targets[2 * i] != targets[2 * i - 2] + 1))
            return DSC_FAIL(err, DSC_ERR_INPUT, spec->name,
                            "place %g of sample %lld; expected 0, or one more than that of the sample before it",
                            (double)targets[2 * i], (long long)i);
    return DSC_OK;
}

/* Losses of scores compare two texts; rows without a score have one that is not a number. */
static dsc_status check_scores(const dsc_batch_spec *spec, int64_t samples, const float *targets, dsc_error *err)
{
    for (int64_t i = 0; i < samples; i++)
        if (targets[2 * i] > 1 || !isfinite(targets[2 * i + 1]))
            return DSC_FAIL(err, DSC_ERR_INPUT, spec->name,
                            "place %g and score %g of sample %lld; the loss needs rows of 2 texts with a finite score: "
                            "give the data itself, or set dsc.embedding.loss to multiple_negatives",
                            (double)targets[2 * i], (double)targets[2 * i + 1], (long long)i);
    return DSC_OK;
}

/* The batch of a model with labels, but for its tokens and positions. */
static dsc_status check_labels(const dsc_model *model, int64_t samples, const void *const *batch_data, dsc_error *err)
{
    const dsc_batch_spec *spec = model->batch;
    if (dsc_label_kind_pairs(model->labels.kind))
        DSC_TRY(check_texts(&spec[1], samples, batch_data[1], err));
    if (model->labels.kind > DSC_LABELS_RANKED)
        DSC_TRY(check_scores(&spec[1], samples, batch_data[1], err));
    else if (!dsc_label_kind_pairs(model->labels.kind))
        DSC_TRY(model->labels.kind == DSC_LABELS_CLASS
                    ? check_below(&spec[1], samples, batch_data[1], model->labels.count, model->labels.tokens > 0, err)
                    : check_finite(&spec[1], samples, batch_data[1], err));
    if (model->batch_count == 2) /* samples that are not texts */
        return DSC_OK;
    DSC_TRY(check_below(&spec[3], samples, batch_data[3], model->seq_length, false, err));
    return model->labels.segments ? check_below(&spec[4], samples, batch_data[4], 2, false, err) : DSC_OK;
}

dsc_status dsc_batch_check(const dsc_model *model, int64_t samples, const void *const *batch_data, dsc_error *err)
{
    const int32_t targets = dsc_batch_targets(model);
    const bool labels = model->labels.kind != DSC_LABELS_NONE;
    if (model->vocab_size <= 0)
        return DSC_OK;
    if (labels)
        DSC_TRY(check_labels(model, samples, batch_data, err));
    for (int32_t i = 0; i < model->batch_count; i++) {
        const dsc_batch_spec *spec = &model->batch[i];
        if (spec->dtype != DSC_I32 || (labels && i != 0 && i != 2))
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
