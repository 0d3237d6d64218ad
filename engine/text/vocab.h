/* vocab.h - the tokens of a tokenizer.json: those of its model and the added ones. Only engine/text/ includes it.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_TEXT_VOCAB_H
#define DSC_ENGINE_TEXT_VOCAB_H

#include "engine/text/buffer.h"

#define DSC_VOCAB_MAX (1 << 24)

typedef struct dsc_token {
    const char *text; /* as in the file; NULL: no token has this id */
    int32_t bytes;
    bool special; /* an added token that decoding may leave out */
    bool normalized; /* an added one that a text has as the normalizer leaves it: so does what ids give back */
} dsc_token;

typedef struct dsc_vocab {
    dsc_token *token; /* [size] */
    int64_t size;     /* the largest id + 1 */
    dsc_names by_text;
} dsc_vocab;

#endif
