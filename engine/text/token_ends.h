/* token_ends.h - end position of each token of an encoded text in that text.
 *
 * Tokens spell the text, except for a space that the tokenizer puts before it and blanks that an added token strips.
 * Tokenizers that change characters (another Unicode form, lower case, unknown characters) have texts that their tokens
 * do not spell; the caller then encodes such a text in parts. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_TEXT_TOKEN_ENDS_H
#define DSC_ENGINE_TEXT_TOKEN_ENDS_H

#include <dsc/text.h>

#include "engine/text/buffer.h"

typedef struct dsc_token_map dsc_token_map;
/* The spelling of every token. The tokenizer is borrowed until close. */
DSC_MUST_USE dsc_status dsc_token_map_open(dsc_alloc *alloc, const dsc_tokenizer *tokenizer, dsc_token_map **out,
                                           dsc_error *err);
void dsc_token_map_close(dsc_token_map **map); /* safe on NULL */
/* ends[i] <- the bytes of the text up to the end of token i; equal to the end before for a token of no byte. The ids
 * are those of the whole text without the post-processor's. False: the tokens do not spell the text. */
bool dsc_token_map_ends(const dsc_token_map *map, const char *text, int64_t bytes, const int32_t *ids, int64_t count,
                        int64_t *ends);
bool dsc_token_map_is_blank(const dsc_token_map *map, int32_t id);   /* blanks and line ends alone */
bool dsc_token_map_is_special(const dsc_token_map *map, int32_t id); /* an added token that is special */

/* How many ids DSC_ENCODE_SPECIAL puts before and behind a text. */
void dsc_tokenizer_around(const dsc_tokenizer *tokenizer, int64_t *before, int64_t *after);

#endif
