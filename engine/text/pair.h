/* pair.h - the form in which a tokenizer joins two texts: "[CLS] A [SEP] B [SEP]", and the types of their tokens.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_TEXT_PAIR_H
#define DSC_ENGINE_TEXT_PAIR_H

#include <dsc/text.h>

/* A special token, or the place of a text. */
typedef struct dsc_pair_piece {
    int32_t id;   /* token, or one of the numbers below */
    int32_t type; /* token type of the piece: 0 or 1 */
} dsc_pair_piece;
enum { DSC_PAIR_FIRST = -1, DSC_PAIR_SECOND = -2 };

/* The pieces of one text (pair false) or two, borrowed from the tokenizer; 0: its file has no form for two texts. */
int32_t dsc_tokenizer_pieces(const dsc_tokenizer *tokenizer, bool pair, const dsc_pair_piece **pieces);

/* Cuts two texts of *first and *second tokens to `most` in all as the tokenizers package does with "longest_first". A
 * single text is `*second` 0. */
void dsc_pair_cut(int64_t most, int64_t *first, int64_t *second);

#endif
