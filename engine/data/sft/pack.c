/* pack.c - see pack.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/data/sft/pack.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An example of the window, and its place. */
typedef struct packed_example {
    int64_t first, count; /* words */
    int64_t index;        /* in the window */
    int64_t next;         /* the next example of its sample, by rank in the sorted window; -1: none */
} packed_example;

typedef struct bin {
    int64_t space;       /* tokens that are left */
    int64_t first, last; /* examples, by rank */
} bin;

struct dsc_sft_pack {
    dsc_sft_pack_options o;
    uint32_t *window; /* [window_room] words of the examples */
    int64_t window_room, used;
    packed_example *example; /* [DSC_PACK_WINDOW_EXAMPLES] */
    bin *bin;                /* as many */
    int64_t example_count;
    int64_t pair_tokens, pair_counted; /* of the chosen example that waits for its rejected one */
    uint32_t *words;                   /* [T] */
    dsc_sample_summary summary;
};

dsc_status dsc_sft_pack_open(const dsc_sft_pack_options *options, dsc_sft_pack **out, dsc_error *err)
{
    dsc_sft_pack *p = NULL;
    dsc_status status;
    *out = NULL;
    DSC_ASSERT(options->sequence >= 1);
    DSC_TRY(dsc_alloc_zeroed(options->alloc, DSC_TAG_DATA, 1, sizeof *p, &p, err));
    p->o = *options;
    p->window_room = dsc_max_i64(DSC_PACK_WINDOW_TOKENS, 2 * options->sequence);
    const int64_t examples = DSC_PACK_WINDOW_EXAMPLES;
    DSC_TRY_OUT(dsc_alloc_zeroed(options->alloc, DSC_TAG_DATA, p->window_room, sizeof *p->window, &p->window, err));
    DSC_TRY_OUT(dsc_alloc_zeroed(options->alloc, DSC_TAG_DATA, examples, sizeof *p->example, &p->example, err));
    DSC_TRY_OUT(dsc_alloc_zeroed(options->alloc, DSC_TAG_DATA, examples, sizeof *p->bin, &p->bin, err));
    DSC_TRY_OUT(dsc_alloc_zeroed(options->alloc, DSC_TAG_DATA, options->sequence + options->label_words,
                                 sizeof *p->words, &p->words, err));
    *out = p;
    return DSC_OK;
out:
    dsc_sft_pack_close(&p);
    return status;
}

void dsc_sft_pack_close(dsc_sft_pack **pack)
{
    dsc_sft_pack *p = *pack;
    if (p == NULL)
        return;
    dsc_alloc_free(p->o.alloc, p->words);
    dsc_alloc_free(p->o.alloc, p->bin);
    dsc_alloc_free(p->o.alloc, p->example);
    dsc_alloc_free(p->o.alloc, p->window);
    dsc_alloc_free(p->o.alloc, p);
    *pack = NULL;
}

const dsc_sample_summary *dsc_sft_pack_summary(const dsc_sft_pack *p) { return &p->summary; }

/* ---- The window ---- */

static int longer_first(const void *a, const void *b)
{
    const packed_example *left = a, *right = b;
    if (left->count != right->count)
        return left->count > right->count ? -1 : 1;
    return left->index < right->index ? -1 : 1;
}

/* First fit; returns the number of samples. */
static int64_t fit(dsc_sft_pack *p)
{
    int64_t bins = 0;
    for (int64_t i = 0; i < p->example_count; i++) {
        packed_example *e = &p->example[i];
        int64_t at = 0;
        while (at < bins && p->bin[at].space < e->count)
            at++;
        e->next = -1;
        if (at == bins)
            p->bin[bins++] = (bin) { .space = p->o.sequence, .first = i, .last = i };
        else
            p->example[p->bin[at].last].next = i;
        p->bin[at].last = i;
        p->bin[at].space -= e->count;
    }
    return bins;
}

static dsc_status give(dsc_sft_pack *p, const bin *b, dsc_error *err)
{
    int64_t at = 0;
    for (int64_t i = b->first; i >= 0; i = p->example[i].next) {
        const packed_example *e = &p->example[i];
        memcpy(p->words + at, p->window + e->first, (size_t)e->count * sizeof *p->words);
        at += e->count;
    }
    DSC_ASSERT(at == p->o.sequence - b->space);
    for (int64_t i = at; i < p->o.sequence; i++)
        p->words[i] = i == at ? DSC_SAMPLE_BEGINS : 0;
    p->summary.samples++;
    return p->o.take(p->o.user, p->words, err);
}

dsc_status dsc_sft_pack_end(dsc_sft_pack *p, dsc_error *err)
{
    qsort(p->example, (size_t)p->example_count, sizeof *p->example, longer_first);
    const int64_t bins = fit(p);
    for (int64_t i = 0; i < bins; i++)
        DSC_TRY(give(p, &p->bin[i], err));
    p->example_count = p->used = 0;
    return DSC_OK;
}

/* The first token of an example has no token before it that could predict it. */
static int64_t counted_targets(const dsc_sft_example *example, int64_t count)
{
    int64_t counted = 0;
    for (int64_t i = 1; i < count; i++)
        counted += example->counted[i] != 0;
    return counted;
}

/* The first `count` tokens of an example, into the window. */
static void keep(dsc_sft_pack *p, const dsc_sft_example *example, int64_t count)
{
    p->example[p->example_count] = (packed_example) { .first = p->used, .count = count, .index = p->example_count };
    for (int64_t i = 0; i < count; i++) {
        const int32_t id = example->ids[i];
        DSC_ASSERT(id >= 0 && (uint32_t)id < DSC_SAMPLE_ID);
        p->window[p->used++] =
            (uint32_t)id | (example->counted[i] != 0 ? DSC_SAMPLE_COUNTED : 0) | (i == 0 ? DSC_SAMPLE_BEGINS : 0);
        p->summary.largest_id = dsc_max_i64(p->summary.largest_id, id);
    }
    p->example_count++;
}

static void count_kept(dsc_sft_pack *p, int64_t tokens, int64_t counted, bool truncated)
{
    p->summary.examples++;
    p->summary.tokens += tokens;
    p->summary.counted += counted;
    p->summary.truncated += truncated;
}

/* The two kept examples as a sample each, in their order. */
static dsc_status give_pair(dsc_sft_pack *p, dsc_error *err)
{
    DSC_ASSERT(p->example_count == 2);
    for (int64_t i = 0; i < 2; i++) {
        const bin alone = { .space = p->o.sequence - p->example[i].count, .first = i, .last = i };
        p->example[i].next = -1;
        DSC_TRY(give(p, &alone, err));
    }
    p->summary.pairs++;
    p->example_count = p->used = 0;
    return DSC_OK;
}

/* The chosen example waits in the window for the rejected one. A pair needs counted tokens on both sides. */
static dsc_status add_side(dsc_sft_pack *p, const dsc_sft_example *example, dsc_error *err)
{
    const int64_t sequence = p->o.sequence, count = dsc_min_i64(example->count, sequence);
    const int64_t counted = counted_targets(example, count);
    if (example->side == DSC_SFT_CHOSEN) {
        p->example_count = p->used = 0;
        p->pair_tokens = example->count;
        p->pair_counted = counted;
        keep(p, example, count);
        return DSC_OK;
    }
    DSC_ASSERT(p->example_count == 1);
    const bool is_long = p->pair_tokens > sequence || example->count > sequence;
    if ((is_long && p->o.drop_long) || counted == 0 || p->pair_counted == 0) {
        *(is_long && p->o.drop_long ? &p->summary.dropped : &p->summary.uncounted) += 1;
        p->example_count = p->used = 0;
        return DSC_OK;
    }
    count_kept(p, dsc_min_i64(p->pair_tokens, sequence) + count, p->pair_counted + counted, is_long);
    keep(p, example, count);
    return give_pair(p, err);
}

/* A sample's words: `count` tokens of an example from `first` on, then padding. */
static void set_words(dsc_sft_pack *p, const dsc_sft_example *example, int64_t first, int64_t count)
{
    DSC_ASSERT(count >= 1 && count <= p->o.sequence);
    for (int64_t i = 0; i < p->o.sequence; i++) {
        const bool padding = i >= count;
        const uint32_t id = padding ? 0 : (uint32_t)example->ids[first + i];
        const bool second = !padding && example->counted[first + i] != 0;
        DSC_ASSERT(id < DSC_SAMPLE_ID);
        p->words[i] = id | (second ? DSC_SAMPLE_COUNTED : 0) | (i == 0 || i == count ? DSC_SAMPLE_BEGINS : 0);
        p->summary.largest_id = dsc_max_i64(p->summary.largest_id, id);
    }
}

/* A row whose texts are compared: a sample for each text, with its place and the row's score. */
static dsc_status give_texts(dsc_sft_pack *p, const dsc_sft_example *example, dsc_error *err)
{
    const int32_t *const lengths = example->ids + example->count;
    int64_t first = 0;
    DSC_ASSERT(p->o.label_words == 2);
    DSC_ASSERT(example->label_words == example->texts + 1);
    if (p->summary.texts > 0 && p->summary.texts != example->texts)
        return DSC_FAIL(err, DSC_ERR_INPUT, "",
                        "line %lld has %lld texts, and the lines before it have %lld; each row of a file needs as many "
                        "texts",
                        (long long)example->line, (long long)example->texts, (long long)p->summary.texts);
    p->summary.texts = example->texts;
    for (int64_t i = 0; i < example->texts; i++) {
        const float place = (float)i;
        set_words(p, example, first, lengths[i]);
        memcpy(p->words + p->o.sequence, &place, sizeof place);
        memcpy(p->words + p->o.sequence + 1, &lengths[example->texts], sizeof *lengths);
        first += lengths[i];
        p->summary.samples++;
        DSC_TRY(p->o.take(p->o.user, p->words, err));
    }
    DSC_ASSERT(first == example->count);
    count_kept(p, example->count, 0, example->truncated);
    return DSC_OK;
}

/* A text or two with their labels, which the maker has cut: a sample. */
static dsc_status give_labeled(dsc_sft_pack *p, const dsc_sft_example *example, dsc_error *err)
{
    DSC_ASSERT(example->label_words == p->o.label_words);
    set_words(p, example, 0, example->count);
    memcpy(p->words + p->o.sequence, example->ids + example->count, (size_t)example->label_words * sizeof *p->words);
    count_kept(p, example->count, 0, example->truncated);
    p->summary.samples++;
    return p->o.take(p->o.user, p->words, err);
}

dsc_status dsc_sft_pack_add(dsc_sft_pack *p, const dsc_sft_example *example, dsc_error *err)
{
    const int64_t sequence = p->o.sequence, count = dsc_min_i64(example->count, sequence);
    const int64_t counted = counted_targets(example, count);
    if (example->side != DSC_SFT_ONLY)
        return add_side(p, example, err);
    if (example->texts > 0)
        return give_texts(p, example, err);
    if (example->label_words > 0)
        return give_labeled(p, example, err);
    if (example->count > sequence && p->o.drop_long) {
        p->summary.dropped++;
        return DSC_OK;
    }
    if (counted == 0) {
        p->summary.uncounted++;
        return DSC_OK;
    }
    if (p->example_count == DSC_PACK_WINDOW_EXAMPLES || p->used + count > p->window_room)
        DSC_TRY(dsc_sft_pack_end(p, err));
    count_kept(p, count, counted, example->count > sequence);
    keep(p, example, count);
    return p->o.packing ? DSC_OK : dsc_sft_pack_end(p, err);
}

/* ---- Files ---- */

/* A failure that names no file is that of a row. */
static dsc_status name_row(const dsc_sft_options *data, dsc_status status, dsc_error *err)
{
    if (status != DSC_OK && err != NULL && err->where[0] == 0)
        snprintf(err->where, sizeof err->where, "%s", data->path);
    return status;
}

static dsc_status pack_all(const dsc_sft_options *data, dsc_sft_reader *reader, dsc_sft_pack *p,
                           dsc_sample_summary *summary, dsc_error *err)
{
    dsc_sft_example example;
    bool found = true;
    for (;;) {
        DSC_TRY(dsc_sft_reader_next(reader, &found, &example, err));
        if (!found)
            break;
        DSC_TRY(name_row(data, dsc_sft_pack_add(p, &example, err), err));
    }
    DSC_TRY(dsc_sft_pack_end(p, err));
    const dsc_sft_counts counts = dsc_sft_reader_counts(reader);
    dsc_sample_summary all = p->summary;
    all.sequence = p->o.sequence;
    all.label_words = p->o.label_words;
    all.replaced = counts.replaced;
    all.in_parts = counts.in_parts;
    dsc_sft_reader_describe(reader, all.description, sizeof all.description);
    if (all.samples == 0 && counts.examples == 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, data->path,
                        "no examples; expected a list of objects, or an object on each "
                        "line");
    if (all.samples == 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, data->path,
                        "none of its %lld examples is left: %lld have more than %lld "
                        "tokens, %lld have no counted token; set a larger dsc.seq_length, or dsc.sft.train_on",
                        (long long)counts.examples, (long long)all.dropped, (long long)all.sequence,
                        (long long)all.uncounted);
    if (summary != NULL)
        *summary = all;
    return DSC_OK;
}

dsc_status dsc_sft_pack_file(const dsc_sft_options *data, const dsc_sft_pack_options *options,
                             dsc_sample_summary *summary, dsc_error *err)
{
    dsc_sft_reader *reader = NULL;
    dsc_sft_pack *p = NULL;
    dsc_status status = dsc_sft_reader_open(data, &reader, err);
    if (status == DSC_OK)
        status = dsc_sft_pack_open(options, &p, err);
    if (status == DSC_OK)
        status = pack_all(data, reader, p, summary, err);
    dsc_sft_pack_close(&p);
    dsc_sft_reader_close(&reader);
    return status;
}

static dsc_status write_sample(void *user, const uint32_t *words, dsc_error *err)
{
    return dsc_sample_writer_add(user, words, err);
}

dsc_status dsc_sft_pack_write(const dsc_sft_options *data, int64_t sequence, const char *path, dsc_error *err)
{
    dsc_sample_writer writer;
    dsc_sample_summary summary;
    const dsc_sft_pack_options options = { .alloc = data->alloc,
                                           .sequence = sequence,
                                           .label_words = dsc_label_words(&data->section->labels),
                                           .packing = data->section->packing,
                                           .drop_long = data->section->drop_long,
                                           .take = write_sample,
                                           .user = &writer };
    dsc_status status = dsc_sample_writer_open(data->io, path, sequence, options.label_words, &writer, err);
    if (status == DSC_OK)
        status = dsc_sft_pack_file(data, &options, &summary, err);
    if (status == DSC_OK)
        status = dsc_sample_writer_commit(&writer, &summary, err);
    dsc_sample_writer_close(&writer);
    return status;
}

/* Appends ", COUNT WHAT" where there are some. */
static size_t add_count(char *out, size_t out_bytes, size_t used, int64_t count, const char *what)
{
    if (count == 0 || used >= out_bytes)
        return used;
    return used + (size_t)snprintf(out + used, out_bytes - used, ", %lld %s", (long long)count, what);
}

const char *dsc_sample_summary_text(const dsc_sample_summary *s, char *out, size_t out_bytes)
{
    size_t used = 0;
    if (s->texts > 0) {
        used =
            (size_t)snprintf(out, out_bytes, "%lld rows of %lld texts, samples of %lld tokens, %lld tokens",
                             (long long)s->examples, (long long)s->texts, (long long)s->sequence, (long long)s->tokens);
        (void)add_count(out, out_bytes, used, s->truncated, "rows truncated");
        return out;
    }
    if (s->label_words > 0) {
        used = (size_t)snprintf(out, out_bytes, "%lld examples, samples of %lld tokens, %lld tokens",
                                (long long)s->examples, (long long)s->sequence, (long long)s->tokens);
        (void)add_count(out, out_bytes, used, s->truncated, "examples truncated");
        return out;
    }
    used = (size_t)snprintf(out, out_bytes,
                            "%lld %s in %lld samples of %lld tokens, %lld tokens, %lld "
                            "counted",
                            (long long)s->examples, s->pairs > 0 ? "pairs" : "examples", (long long)s->samples,
                            (long long)s->sequence, (long long)s->tokens, (long long)s->counted);
    used = add_count(out, out_bytes, used, s->truncated, "examples truncated");
    used = add_count(out, out_bytes, used, s->dropped, "over-long examples dropped");
    used = add_count(out, out_bytes, used, s->uncounted, "examples without a counted token left out");
    used = add_count(out, out_bytes, used, s->replaced, "answers found by their content alone");
    (void)add_count(out, out_bytes, used, s->in_parts, "examples encoded in parts");
    return out;
}
