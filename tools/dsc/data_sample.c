/* data_sample.c - `dsc data show --sample N FILE`: a sample of instruction data, token by token; of preferences, a
 * pair. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/formats/json.h"
#include "engine/data/sft/pack.h"
#include "tools/dsc/data_examples.h"

#define COUNTED_COLOUR "\033[32m"
#define OTHER_COLOUR "\033[2m"
#define SEQUENCE_DEFAULT 2048

/* The sample that is looked for. */
typedef struct search {
    int64_t wanted, seen, sequence;
    bool pairs;      /* wanted is the number of a pair */
    uint32_t *words; /* [sequence]; of a pair both samples */
} search;

/* Samples that one number shows. */
static int64_t each_of(const search *s) { return s->pairs ? 2 : 1; }

/* Stops the packing behind the wanted samples. */
static dsc_status take(void *user, const uint32_t *words, dsc_error *err)
{
    search *s = user;
    const int64_t at = s->seen++ - s->wanted * each_of(s);
    if (at < 0)
        return DSC_OK;
    memcpy(s->words + at * s->sequence, words, (size_t)s->sequence * sizeof *words);
    if (at + 1 < each_of(s))
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_CANCELLED, "", "the sample is found");
}

static dsc_status refuse_number(const search *s, const char *path, int64_t samples, dsc_error *err)
{
    return DSC_FAIL(err, DSC_ERR_INPUT, "--sample", "%lld; %s has %lld %s of %lld tokens, from 0 on",
                    (long long)s->wanted, path, (long long)(samples / each_of(s)),
                    s->pairs ? "pairs of samples" : "samples", (long long)s->sequence);
}

static dsc_status find_in_samples(dsc_alloc *alloc, const char *path, search *s, dsc_error *err)
{
    dsc_sample_file file;
    dsc_status status = dsc_sample_file_open(NULL, path, &file, err);
    if (status == DSC_OK) {
        s->sequence = file.summary.sequence;
        s->pairs = file.summary.pairs > 0;
        status = dsc_alloc_zeroed(alloc, DSC_TAG_DATA, 2 * s->sequence, sizeof *s->words, &s->words, err);
    }
    if (status == DSC_OK && s->wanted >= file.summary.samples / each_of(s))
        status = refuse_number(s, path, file.summary.samples, err);
    for (int64_t i = 0; status == DSC_OK && i < each_of(s); i++)
        status = dsc_sample_file_read(NULL, &file, s->wanted * each_of(s) + i, s->words + i * s->sequence, err);
    dsc_sample_file_close(NULL, &file);
    return status;
}

/* By the first row. */
static dsc_status find_pairs(const dsc_sft_options *data, bool *out, dsc_error *err)
{
    dsc_sft_reader *reader = NULL;
    dsc_sft_example example = { .side = DSC_SFT_ONLY };
    bool found = false;
    DSC_TRY(dsc_sft_reader_open(data, &reader, err));
    const dsc_status status = dsc_sft_reader_next(reader, &found, &example, err);
    *out = found && example.side != DSC_SFT_ONLY;
    dsc_sft_reader_close(&reader);
    return status;
}

static dsc_status find_in_examples(const dsc_sft_options *data, search *s, dsc_error *err)
{
    const dsc_sft_pack_options options = { .alloc = data->alloc, .sequence = s->sequence,
                                           .packing = data->section->packing, .drop_long = data->section->drop_long,
                                           .take = take, .user = s };
    DSC_TRY(dsc_alloc_zeroed(data->alloc, DSC_TAG_DATA, 2 * s->sequence, sizeof *s->words, &s->words, err));
    DSC_TRY(find_pairs(data, &s->pairs, err));
    const dsc_status status = dsc_sft_pack_file(data, &options, NULL, err);
    if (status == DSC_ERR_CANCELLED)
        return DSC_OK;
    return status == DSC_OK ? refuse_number(s, data->path, s->seen, err) : status;
}

/* ---- Output ---- */

static dsc_status print_token(dsc_encoder *encoder, uint32_t word, bool counts, bool colours, int64_t place,
                              dsc_error *err)
{
    const int32_t id = (int32_t)(word & DSC_SAMPLE_ID);
    char quoted[600];
    const char *text;
    int64_t bytes;
    DSC_TRY(dsc_decode(encoder, &id, 1, false, &text, &bytes, err));
    dsc_json_quote(quoted, sizeof quoted, text);
    printf("%s%6lld %8d %6s  %s%s\n", !colours ? "" : counts ? COUNTED_COLOUR : OTHER_COLOUR, (long long)place, (int)id,
           counts ? "1" : "0", quoted, colours ? "\033[0m" : "");
    return DSC_OK;
}

/* Words at the end that no example fills: the last one that begins like an example is id 0 and alone. */
static int64_t filled_words(const search *s, const uint32_t *words)
{
    int64_t end = s->sequence;
    while (end > 0 && words[end - 1] == 0)
        end--;
    return end > 0 && words[end - 1] == DSC_SAMPLE_BEGINS ? end - 1 : s->sequence;
}

static dsc_status print_words(const search *s, const uint32_t *words, dsc_encoder *encoder, dsc_error *err)
{
    const bool colours = isatty(STDOUT_FILENO);
    const int64_t filled = filled_words(s, words);
    dsc_status status = DSC_OK;
    int64_t place = 0;
    printf(" place    token counts  text\n");
    for (int64_t i = 0; i < filled && status == DSC_OK; i++, place++) {
        const bool begins = (words[i] & DSC_SAMPLE_BEGINS) != 0;
        if (begins && i > 0)
            printf("\n");
        place = begins ? 0 : place;
        status = print_token(encoder, words[i], !begins && (words[i] & DSC_SAMPLE_COUNTED) != 0, colours, place, err);
    }
    if (status == DSC_OK && filled < s->sequence)
        printf("\n%lld tokens that do not count fill the sample\n", (long long)(s->sequence - filled));
    return status;
}

static dsc_status print_sample(const search *s, const dsc_tokenizer *tokenizer, dsc_error *err)
{
    dsc_encoder *encoder = NULL;
    dsc_status status = dsc_encoder_open(&encoder, tokenizer, err);
    for (int64_t i = 0; status == DSC_OK && i < each_of(s); i++) {
        if (s->pairs)
            printf("%s%s\n", i > 0 ? "\n" : "", dsc_sft_side_text(i == 0 ? DSC_SFT_CHOSEN : DSC_SFT_REJECTED));
        status = print_words(s, s->words + i * s->sequence, encoder, err);
    }
    dsc_encoder_close(&encoder);
    return status;
}

static dsc_status show_found(dsc_alloc *alloc, const dsc_example_settings *settings, search *s, dsc_error *err)
{
    dsc_sft_section section;
    dsc_tokenizer *tokenizer = NULL;
    char path[DSC_CONFIG_TEXT];
    DSC_TRY(dsc_data_read_settings(alloc, settings, &section, path, &s->sequence, err));
    s->sequence = s->sequence > 0 ? s->sequence : SEQUENCE_DEFAULT;
    const bool packed = dsc_sample_path(settings->path);
    dsc_status status = dsc_tokenizer_open(&tokenizer, path, err);
    const dsc_sft_options data = { .alloc = alloc, .path = settings->path, .tokenizer_path = path,
                                   .tokenizer = tokenizer, .section = &section, .now_s = (int64_t)time(NULL) };
    if (status == DSC_OK)
        status = packed ? find_in_samples(alloc, settings->path, s, err) : find_in_examples(&data, s, err);
    if (status == DSC_OK)
        status = print_sample(s, tokenizer, err);
    dsc_tokenizer_close(&tokenizer);
    return status;
}

dsc_status dsc_data_show_sample(dsc_alloc *alloc, const dsc_example_settings *settings, int64_t sample, dsc_error *err)
{
    search s = { .wanted = sample, .sequence = settings->sequence };
    const dsc_status status = show_found(alloc, settings, &s, err);
    dsc_alloc_free(alloc, s.words);
    return status;
}
