/* encoder.h - state of a thread that encodes and decodes. Only engine/text/ includes this header.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_TEXT_ENCODER_H
#define DSC_ENGINE_TEXT_ENCODER_H

#include "engine/text/tokenizer_internal.h"

/* Strings one after another: the i-th ends at ends[i]. */
typedef struct tok_strings {
    dsc_text text;
    dsc_ids ends;
} tok_strings;

struct dsc_encoder {
    const dsc_tokenizer *tokenizer;
    dsc_bpe_work *work;
    dsc_unigram_work unigram;
    dsc_ids ids;
    dsc_text mapped, unmapped; /* of_byte_chars: a word behind ByteLevel, and a piece of it as bytes again */
    dsc_text repaired, normal[TOK_NORMAL_BUFFERS], prefixed[TOK_STEPS_MAX];
    tok_strings decoded[2];
};

#endif
