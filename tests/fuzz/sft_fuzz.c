/* sft_fuzz.c - any bytes as instruction data: no crash, and samples whose targets are tokens of one example.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "engine/data/sft/pack.h"
#include "tests/fuzz/fuzz_folder.h"

#define SEQUENCE 64

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static dsc_tokenizer *tokenizer;
static fuzz_folder folder;

static dsc_status take(void *user, const uint32_t *words, dsc_error *err)
{
    int32_t tokens[SEQUENCE], targets[SEQUENCE], places[SEQUENCE];
    (void)user;
    (void)err;
    dsc_sample_unpack(words, SEQUENCE, tokens, targets, places);
    DSC_ASSERT(places[0] == 0);
    DSC_ASSERT(targets[SEQUENCE - 1] == -1);
    for (int i = 0; i + 1 < SEQUENCE; i++) {
        DSC_ASSERT(targets[i] == -1 || (targets[i] == tokens[i + 1] && places[i + 1] == places[i] + 1));
        DSC_ASSERT(places[i + 1] == 0 || places[i + 1] == places[i] + 1);
    }
    return DSC_OK;
}

static int64_t label_words;

/* A text without an end, and labels that the model takes. */
static dsc_status take_labels(void *user, const uint32_t *words, dsc_error *err)
{
    const dsc_labels *labels = user;
    int32_t tokens[SEQUENCE], places[SEQUENCE], segments[SEQUENCE];
    const int32_t last = dsc_sample_unpack_text(words, SEQUENCE, tokens, places, segments);
    (void)err;
    DSC_ASSERT(last >= 0 && last < SEQUENCE);
    for (int i = 0; i < SEQUENCE; i++)
        DSC_ASSERT(places[i] == (i <= last ? i : i - last - 1) && (segments[i] == 0 || segments[i] == 1));
    for (int64_t i = 0; i < label_words; i++) {
        float number;
        memcpy(&number, &words[SEQUENCE + i], sizeof number);
        DSC_ASSERT(labels->kind == DSC_LABELS_RANKED  ? i == 1 || (number >= 0 && number < DSC_TEXTS_MAX)
                   : labels->kind == DSC_LABELS_CLASS ? words[SEQUENCE + i] < (uint32_t)labels->count
                                                      : number - number == 0);
    }
    return DSC_OK;
}

static void run_labels(dsc_alloc *alloc, dsc_label_kind kind, int64_t count)
{
    static const char *const names[] = { "bad", "good", "1" };
    dsc_labels labels = { .kind = kind, .count = count, .names = names };
    const dsc_sft_section section = { .labels = labels };
    const dsc_sft_options options = { .alloc = alloc,
                                      .path = folder.input,
                                      .tokenizer = tokenizer,
                                      .tokenizer_path = "tests/fuzz/corpus/tokenizer/byte_level.json",
                                      .section = &section,
                                      .sequence = SEQUENCE };
    label_words = dsc_label_words(&labels);
    const dsc_sft_pack_options pack = {
        .alloc = alloc, .sequence = SEQUENCE, .label_words = label_words, .take = take_labels, .user = &labels
    };
    dsc_error err = DSC_ERROR_INIT;
    dsc_sample_summary summary;
    const dsc_status status = dsc_sft_pack_file(&options, &pack, &summary, &err);
    DSC_ASSERT(status == DSC_OK || (status == DSC_ERR_INPUT && err.message[0] != 0));
    const int64_t each = status == DSC_OK && dsc_label_kind_pairs(kind) ? summary.texts : 1;
    DSC_ASSERT(status != DSC_OK || summary.samples == each * summary.examples);
}

static void run(dsc_alloc *alloc, bool packing, bool pairs)
{
    const dsc_sft_section section = { .end_token = packing, .packing = packing, .drop_long = !packing, .pairs = pairs };
    const dsc_sft_options options = { .alloc = alloc, .path = folder.input, .tokenizer = tokenizer,
                                      .tokenizer_path = "tests/fuzz/corpus/tokenizer/byte_level.json",
                                      .section = &section };
    const dsc_sft_pack_options pack = { .alloc = alloc, .sequence = SEQUENCE, .packing = packing,
                                        .drop_long = !packing, .take = take };
    dsc_error err = DSC_ERROR_INIT;
    dsc_sample_summary summary;
    const dsc_status status = dsc_sft_pack_file(&options, &pack, &summary, &err);
    DSC_ASSERT(status == DSC_OK || status == DSC_ERR_UNSUPPORTED || (status == DSC_ERR_INPUT && err.message[0] != 0));
    DSC_ASSERT(status != DSC_OK || summary.counted > 0);
    DSC_ASSERT(status != DSC_OK || !pairs || summary.samples == 2 * summary.pairs);
}

static void tidy_up(void)
{
    fuzz_folder_close(&folder);
    dsc_tokenizer_close(&tokenizer);
}

static void open_common(void)
{
    if (tokenizer != NULL)
        return;
    fuzz_folder_open(&folder, "x.json");
    DSC_ASSERT(dsc_tokenizer_open(&tokenizer, "tests/fuzz/corpus/tokenizer/byte_level.json", NULL) == DSC_OK);
    atexit(tidy_up);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    dsc_alloc *alloc = NULL;
    open_common();
    fuzz_folder_set(&folder, data, bytes);
    DSC_ASSERT(dsc_alloc_open(&alloc, NULL) == DSC_OK);
    run(alloc, true, false);
    run(alloc, false, false);
    run(alloc, false, true);
    run_labels(alloc, DSC_LABELS_CLASS, 3);
    run_labels(alloc, DSC_LABELS_NUMBERS, 1);
    run_labels(alloc, DSC_LABELS_SET, 3);
    run_labels(alloc, DSC_LABELS_RANKED, 32);
    run_labels(alloc, DSC_LABELS_COSINE, 32);
    dsc_alloc_close(&alloc);
    return 0;
}
