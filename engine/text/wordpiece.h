/* wordpiece.h - WordPiece: a word is the longest piece that it begins with, and so on behind that one (BERT).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_TEXT_WORDPIECE_H
#define DSC_ENGINE_TEXT_WORDPIECE_H

#include "engine/text/tree.h"

/* A word's bytes or a piece's, the smaller of both: steps that a byte of text may take. */
#define DSC_WORDPIECE_BYTES_MAX 1024

typedef struct dsc_wordpiece {
    dsc_tree pieces;   /* vocabulary without added tokens */
    int32_t inside;    /* the node behind the prefix of pieces inside a word ("##"); -1: there are none */
    int32_t unk;       /* id of a word that has no split into pieces */
    int64_t chars_max; /* characters of a word; a longer word is unknown */
} dsc_wordpiece;

/* Appends the ids of one word, which is valid UTF-8 and not empty. */
dsc_status dsc_wordpiece_encode(const dsc_wordpiece *model, const char *word, int64_t bytes, dsc_ids *out,
                                dsc_error *err);

#endif
