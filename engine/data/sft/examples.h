/* examples.h - a data file as examples: tokens, and which of them count in the loss.
 *
 * A conversation is rendered and encoded as one text, without the tokens that the tokenizer puts around texts: the
 * template writes its own. Other texts get these tokens, and the end token behind them. A token counts if a byte of it
 * lies in a part that counts. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_DATA_SFT_EXAMPLES_H
#define DSC_ENGINE_DATA_SFT_EXAMPLES_H

#include <dsc/text.h>

#include "engine/data/sft/records.h"
#include "engine/data/sft/sft.h"

typedef struct dsc_sft_options {
    dsc_alloc *alloc;
    const dsc_io *io;
    const char *path;               /* JSON objects */
    const char *tokenizer_path;     /* tokenizer.json or its folder, which may hold the chat template */
    const dsc_tokenizer *tokenizer; /* opened from tokenizer_path; borrowed until close */
    const dsc_sft_section *section; /* borrowed until close */
    int64_t now_s;                  /* for templates that print the date */
    int32_t threads;                /* that render and encode; the examples do not depend on them */
    int64_t sequence;               /* with labels: tokens at which the texts of a row are cut */
} dsc_sft_options;

typedef struct dsc_sft_example {
    const char *text; /* text of the tokens, without those around it and the end token; NULL: tokens alone, or
                       * several threads */
    int64_t text_bytes;
    const int32_t *ids;
    const int32_t *counted; /* [count] 1: the token counts */
    int64_t count, counted_count;
    int64_t line;           /* line number in the file, from 1 */
    dsc_sft_side side;      /* a rejected one follows its chosen one at once */
    /* With labels `counted` has the types of tokens, and label_words words follow the ids. */
    int64_t label_words;
    bool truncated;
    int64_t texts; /* of a row whose texts are compared: label_words are those of texts.h; else 0 */
} dsc_sft_example;

typedef struct dsc_sft_counts {
    int64_t examples, tokens, counted_tokens; /* both examples of a pair */
    int64_t replaced; /* answers that were found by a replacement (render.h) */
    int64_t in_parts; /* examples that were encoded in parts (token_ends.h) */
} dsc_sft_counts;

typedef struct dsc_sft_reader dsc_sft_reader;
DSC_MUST_USE dsc_status dsc_sft_reader_open(const dsc_sft_options *options, dsc_sft_reader **out, dsc_error *err);
void dsc_sft_reader_close(dsc_sft_reader **reader); /* safe on NULL */
/* *found = false behind the last example. *out is borrowed until the next call. DSC_ERR_INPUT: "FILE, line N". */
DSC_MUST_USE dsc_status dsc_sft_reader_next(dsc_sft_reader *reader, bool *found, dsc_sft_example *out, dsc_error *err);
dsc_sft_counts dsc_sft_reader_counts(const dsc_sft_reader *reader);
/* "format messages, template FOLDER/tokenizer_config.json"; known behind the first example. Returns out. */
const char *dsc_sft_reader_describe(const dsc_sft_reader *reader, char *out, size_t out_bytes);
/* The end token is not known, so answers without a template have none. */
bool dsc_sft_reader_lacks_end(const dsc_sft_reader *reader);

#endif
