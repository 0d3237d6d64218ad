/* token_streams.c - see token_streams.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/data/token_streams.h"

#include <stdio.h>
#include <string.h>

enum { LEFT_OUT = -1 };

/* ---- Open files ---- */

static void pause(const dsc_io *io, dsc_token_part *part)
{
    if (part->packed)
        dsc_sample_file_close(io, &part->samples);
    else
        dsc_token_file_pause(io, &part->file);
    part->open = false;
}

dsc_status dsc_token_streams_use(dsc_token_streams *s, int32_t number, dsc_error *err)
{
    dsc_token_part *part = &s->part[number];
    if (part->open)
        return DSC_OK;
    if (s->open_count == DSC_DATA_FILES_OPEN) {
        pause(s->io, &s->part[s->opened[s->oldest]]);
        s->opened[s->oldest] = number;
        s->oldest = (s->oldest + 1) % DSC_DATA_FILES_OPEN;
    } else {
        s->opened[s->open_count++] = number;
    }
    part->open = true; /* close ends what a failure leaves open */
    return part->packed ? dsc_sample_file_resume(s->io, &part->samples, err)
                        : dsc_token_file_resume(s->io, &part->file, err);
}

dsc_status dsc_token_streams_find(dsc_token_streams *s, const dsc_token_stream *stream, int64_t token,
                                  dsc_token_part **out, dsc_error *err)
{
    int32_t low = stream->first, high = stream->first + stream->count - 1;
    DSC_ASSERT(token >= 0 && token < stream->token_count);
    while (low < high) {
        const int32_t middle = low + (high - low + 1) / 2;
        if (s->part[middle].start <= token)
            low = middle;
        else
            high = middle - 1;
    }
    *out = &s->part[low];
    return dsc_token_streams_use(s, low, err);
}

/* ---- Opening ---- */

static int64_t tokens_of(const dsc_token_part *part)
{
    const dsc_sample_summary *summary = &part->samples.summary;
    return part->packed ? summary->samples * summary->sequence : part->file.token_count;
}

static dsc_status check_samples(const dsc_data_options *o, const dsc_sample_summary *summary, const char *name,
                                dsc_error *err)
{
    if (o->masking.predictions > 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, name,
                        "instruction data for a masked language model; give text, or a model "
                        "that predicts the next token");
    if (dsc_label_words(&o->labels) != summary->label_words)
        return DSC_FAIL(err, DSC_ERR_INPUT, name,
                        "has %lld words of labels for each sample, and the model has %lld; "
                        "give the data itself",
                        (long long)summary->label_words, (long long)dsc_label_words(&o->labels));
    if (dsc_label_kind_pairs(o->labels.kind) != (summary->texts > 0))
        return DSC_FAIL(err, DSC_ERR_INPUT, name, "has samples %s, and the model %s; give the data itself",
                        summary->texts > 0 ? "whose texts are compared" : "with labels",
                        summary->texts > 0 ? "has another head" : "compares texts");
    if (summary->texts > 2 && o->labels.kind != DSC_LABELS_RANKED)
        return DSC_FAIL(err, DSC_ERR_INPUT, name,
                        "has rows of %lld texts, and the loss compares pairs with a score; give the data itself",
                        (long long)summary->texts);
    if (o->pairs && summary->pairs == 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, name,
                        "has no preference pairs; with dsc.dpo expected rows with chosen and rejected: give such data, "
                        "or remove dsc.dpo");
    if (!o->pairs && summary->pairs > 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, name,
                        "has preference pairs (chosen and rejected); add the section dsc.dpo, which trains on them");
    if (summary->sequence != o->sequence)
        return DSC_FAIL(err, DSC_ERR_INPUT, name,
                        "has samples of %lld tokens, and the run has %lld; set dsc.seq_length, "
                        "or give the data itself",
                        (long long)summary->sequence, (long long)o->sequence);
    if (summary->largest_id >= o->vocab_size)
        return DSC_FAIL(err, DSC_ERR_INPUT, name,
                        "token %lld of the tokenizer is outside the model's vocabulary of %lld; "
                        "the tokenizer is that of another model, or has added tokens: dsc.grow_vocab adds rows",
                        (long long)summary->largest_id, (long long)o->vocab_size);
    return DSC_OK;
}

static dsc_status open_file(const dsc_data_options *o, int32_t i, dsc_token_part *part, dsc_error *err)
{
    if (!part->packed && o->pairs)
        return DSC_FAIL(err, DSC_ERR_INPUT, dsc_data_name(o, i),
                        "has no preference pairs; with dsc.dpo expected JSON objects with chosen and rejected: give "
                        "such data, or remove dsc.dpo");
    if (!part->packed && dsc_label_kind_pairs(o->labels.kind))
        return DSC_FAIL(err, DSC_ERR_INPUT, dsc_data_name(o, i),
                        "has no rows of texts; with dsc.embedding expected JSON objects or a table with an anchor and "
                        "a positive each");
    if (!part->packed && o->labels.kind != DSC_LABELS_NONE)
        return DSC_FAIL(err, DSC_ERR_INPUT, dsc_data_name(o, i),
                        "has no rows with labels, and the model classifies texts; give JSON objects or a table with a "
                        "text and a label each");
    if (!part->packed)
        return dsc_token_file_open(o->io, o->paths[i], &part->file, err);
    DSC_TRY(dsc_sample_file_open(o->io, o->paths[i], &part->samples, err));
    return check_samples(o, &part->samples.summary, dsc_data_name(o, i), err);
}

static dsc_status open_part(dsc_token_streams *s, const dsc_data_options *o, int32_t i, dsc_error *err)
{
    dsc_token_part *part = &s->part[s->part_count++]; /* from here on close ends it */
    const char *const name = dsc_data_name(o, i);
    part->weight = o->weights != NULL ? o->weights[i] : 1;
    part->packed = dsc_sample_path(o->paths[i]);
    DSC_TRY(open_file(o, i, part, err));
    pause(o->io, part);
    if (strcmp(name, o->paths[i]) == 0)
        return DSC_OK;
    const int64_t bytes = (int64_t)strlen(name) + 1;
    DSC_TRY(dsc_alloc_zeroed(o->alloc, DSC_TAG_CONTROL, bytes, 1, &part->name, err));
    memcpy(part->name, name, (size_t)bytes);
    part->file.name = part->name;
    return DSC_OK;
}

static void note_short(dsc_token_streams *s, int kind, int64_t *count, const char **first, const char *name)
{
    if ((*count)++ > 0)
        return;
    snprintf(s->first_name[kind], sizeof s->first_name[kind], "%s", name);
    *first = s->first_name[kind];
}

/* The stream of the short files of a weight, -1: none yet. */
static int32_t find_joined(const dsc_token_streams *s, double weight)
{
    for (int32_t i = 0; i < s->stream_count; i++)
        if (s->stream[i].joined && s->stream[i].weight == weight)
            return i;
    return -1;
}

static void assign(dsc_token_streams *s, int32_t i, int64_t tokens_least)
{
    dsc_token_part *part = &s->part[i];
    const int64_t tokens = tokens_of(part);
    const bool is_short = !part->packed && tokens < tokens_least;
    part->stream = is_short ? find_joined(s, part->weight) : -1;
    if (part->stream < 0) {
        part->stream = s->stream_count++;
        s->stream[part->stream] =
            (dsc_token_stream) { .number = i, .weight = part->weight, .joined = is_short, .packed = part->packed };
    }
    dsc_token_stream *stream = &s->stream[part->stream];
    part->start = stream->token_count;
    stream->token_count += tokens;
    stream->count++;
}

/* Parts without a stream leave the list; the others are ordered by stream. */
static dsc_status order_parts(dsc_token_streams *s, dsc_error *err)
{
    dsc_token_part *ordered = NULL;
    int32_t *next = NULL, kept = 0;
    DSC_TRY(dsc_alloc_zeroed(s->alloc, DSC_TAG_CONTROL, s->part_count, sizeof *ordered, &ordered, err));
    const dsc_status status = dsc_alloc_zeroed(s->alloc, DSC_TAG_CONTROL, s->stream_count, sizeof *next, &next, err);
    if (status != DSC_OK) {
        dsc_alloc_free(s->alloc, ordered);
        return status;
    }
    for (int32_t i = 0; i < s->stream_count; i++) {
        s->stream[i].first = next[i] = kept;
        kept += s->stream[i].count;
    }
    for (int32_t i = 0; i < s->part_count; i++) {
        if (s->part[i].stream == LEFT_OUT)
            dsc_alloc_free(s->alloc, s->part[i].name);
        else
            ordered[next[s->part[i].stream]++] = s->part[i];
    }
    dsc_alloc_free(s->alloc, next);
    dsc_alloc_free(s->alloc, s->part);
    s->part = ordered;
    s->part_count = kept;
    return DSC_OK;
}

/* Joined streams that have no sample are left out, with their files. */
static void leave_out(dsc_token_streams *s, int64_t tokens_least)
{
    int32_t kept = 0, renamed;
    for (int32_t i = 0; i < s->stream_count; i++) {
        renamed = s->stream[i].joined && s->stream[i].token_count < tokens_least ? LEFT_OUT : kept;
        for (int32_t p = 0; renamed != i && p < s->part_count; p++)
            if (s->part[p].stream == i)
                s->part[p].stream = renamed;
        if (renamed != LEFT_OUT)
            s->stream[kept++] = s->stream[i];
    }
    s->stream_count = kept;
}

static dsc_status make_streams(dsc_token_streams *s, const dsc_data_options *o, dsc_error *err)
{
    const int64_t least = o->sequence + 1;
    dsc_data_short *facts = &s->short_files;
    for (int32_t i = 0; i < s->part_count; i++)
        if (tokens_of(&s->part[i]) > 0)
            assign(s, i, least);
        else
            s->part[i].stream = LEFT_OUT;
    leave_out(s, least);
    for (int32_t i = 0; i < s->part_count; i++) {
        const dsc_token_part *part = &s->part[i];
        const char *const name = dsc_data_name(o, i);
        if (tokens_of(part) == 0)
            note_short(s, 0, &facts->empty, &facts->first_empty, name);
        else if (part->stream == LEFT_OUT)
            note_short(s, 1, &facts->left_out, &facts->first_left_out, name);
        else if (s->stream[part->stream].count > 1)
            note_short(s, 2, &facts->joined, &facts->first_joined, name);
    }
    if (s->stream_count == 0 && s->part_count == 1)
        return DSC_FAIL(err, DSC_ERR_INPUT, dsc_data_name(o, 0),
                        "%lld tokens are fewer than one sample of %lld and its target; give more text or a "
                        "smaller --seq-len",
                        (long long)s->part[0].file.token_count, (long long)o->sequence);
    if (s->stream_count == 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, dsc_data_name(o, 0),
                        "this file and the %d others have fewer tokens than one sample of %lld and its target; give "
                        "more text or a smaller --seq-len",
                        (int)s->part_count - 1, (long long)o->sequence);
    return order_parts(s, err);
}

dsc_status dsc_token_streams_open(const dsc_data_options *o, dsc_token_streams *out, dsc_error *err)
{
    *out = (dsc_token_streams) { .alloc = o->alloc, .io = o->io };
    DSC_TRY(dsc_alloc_zeroed(o->alloc, DSC_TAG_CONTROL, o->path_count, sizeof *out->part, &out->part, err));
    DSC_TRY(dsc_alloc_zeroed(o->alloc, DSC_TAG_CONTROL, o->path_count, sizeof *out->stream, &out->stream, err));
    for (int32_t i = 0; i < o->path_count; i++) {
        out->part[i].file = (dsc_token_file)DSC_TOKEN_FILE_INIT;
        out->part[i].samples = (dsc_sample_file)DSC_SAMPLE_FILE_INIT;
    }
    for (int32_t i = 0; i < o->path_count; i++)
        DSC_TRY(open_part(out, o, i, err));
    DSC_TRY(make_streams(out, o, err));
    for (int32_t i = 0; i < out->part_count && i < DSC_DATA_FILES_OPEN; i++)
        DSC_TRY(dsc_token_streams_use(out, i, err));
    return DSC_OK;
}

void dsc_token_streams_close(dsc_token_streams *s)
{
    for (int32_t i = 0; i < s->part_count; i++) {
        dsc_token_file_close(s->io, &s->part[i].file);
        dsc_sample_file_close(s->io, &s->part[i].samples);
        dsc_alloc_free(s->alloc, s->part[i].name);
    }
    dsc_alloc_free(s->alloc, s->part);
    dsc_alloc_free(s->alloc, s->stream);
    s->part = NULL;
    s->stream = NULL;
    s->part_count = s->stream_count = 0;
}
