/* unigram.h - Unigram: the split of a text into pieces with the largest sum of scores (T5, XLM-R, ALBERT, DeBERTa-v3).
 *
 * A character that no piece covers alone has the worst piece's score less 10. Such characters in a row become one
 * unknown token, or the tokens of their bytes. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_TEXT_UNIGRAM_H
#define DSC_ENGINE_TEXT_UNIGRAM_H

#include "engine/text/tree.h"

/* Bytes of a piece: steps that a byte of text may take. Published pieces have up to about 50. */
#define DSC_UNIGRAM_PIECE_MAX 1024

typedef struct dsc_unigram {
    dsc_tree pieces; /* the vocabulary without added tokens; of equal pieces the last */
    double *score;   /* [pieces], by id */
    double unknown_score;
    int32_t unk;     /* -1: none */
    bool byte_fallback;
    int32_t byte_id[256]; /* byte_fallback: of <0xXX>; -1: none */
} dsc_unigram;

/* The best split that ends behind a byte: its last piece begins at `from`. */
typedef struct dsc_unigram_node {
    double score;
    int32_t id, from; /* from -1: nothing ends here */
} dsc_unigram_node;

/* State of one encoding thread. Zeroed but for alloc: empty. */
typedef struct dsc_unigram_work {
    dsc_alloc *alloc;
    dsc_unigram_node *node;
    int64_t capacity;
} dsc_unigram_work;
void dsc_unigram_work_free(dsc_unigram_work *work);

/* Appends the ids of a text, which is valid UTF-8 and not empty. DSC_ERR_INPUT: an unknown character, and the model has
 * no token for it. At most DSC_UNIGRAM_PIECE_MAX steps a byte. */
dsc_status dsc_unigram_encode(const dsc_unigram *model, dsc_unigram_work *work, const char *text, int64_t bytes,
                              dsc_ids *out, dsc_error *err);

#endif
