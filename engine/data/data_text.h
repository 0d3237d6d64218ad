/* data_text.h - texts as token files: tokenized before the first step of the first run that reads them, then kept.
 *
 * A kept file lies in `folder` as NAME-HASH.bin with NAME-HASH.idx (Megatron's pair), or as NAME-HASH.samples for
 * instruction data. The hash covers all that determines the ids: the text's path, size and times of change, the
 * tokenizer.json's bytes and the field. Without a tokenizer, the bytes of a compressed text are kept as NAME-HASH.txt.
 * For instruction data it also covers the files of templates and the settings. One rank makes it, with all threads of
 * its host's ranks; others that want it wait. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_DATA_DATA_TEXT_H
#define DSC_ENGINE_DATA_DATA_TEXT_H

#include <dsc/log.h>
#include <dsc/text.h>

#include "base/io.h"
#include "engine/data/sft/sft.h"

/* Facts that the texts of one list share. Zeroed: nothing is known. */
typedef struct dsc_data_text_shared {
    bool hashed;
    uint8_t digest[32];       /* of the tokenizer.json */
    dsc_tokenizer *tokenizer; /* NULL: not open */
} dsc_data_text_shared;
DSC_MUST_USE dsc_status dsc_data_text_tokenizer(dsc_data_text_shared *shared, const char *path, dsc_error *err);
void dsc_data_text_shared_close(dsc_data_text_shared *shared);

typedef struct dsc_data_text {
    dsc_data_text_shared *shared;
    const dsc_io *io;
    const dsc_log *log; /* gets a line for slow work; NULL: none */
    const char *tokenizer; /* a tokenizer.json or its folder; "": a byte is a token */
    const char *field;     /* member or column with the text of a document; NULL: not given */
    const char *folder;    /* cache of token files; "": $XDG_CACHE_HOME/dsc or ~/.cache/dsc */
    int32_t threads;
    const dsc_sft_section *examples; /* the text is instruction data; NULL: one of documents */
    int64_t sequence;                /* tokens of a sample of examples */
} dsc_data_text;

/* The token file of a text: a path that dsc_token_file_open takes. Without a tokenizer it is the text itself, or what a
 * compressed one contains. DSC_ERR_INPUT: a damaged text, a tokenizer that
 * cannot be used, no folder to keep it in. */
DSC_MUST_USE dsc_status dsc_data_text_tokens(const dsc_data_text *text, const char *path, char *out, size_t out_bytes,
                                             dsc_error *err);

#endif
