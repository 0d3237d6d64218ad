/* charsmap.h - SentencePiece's compiled normalizer ("Precompiled"): what short byte strings are replaced by.
 *
 * Format (sentencepiece, builder.cc): u32 bytes of the tree, the tree, then replacements that end with a NUL. The tree
 * is a double array of darts-clone: a unit has a label in bits 0-7, a leaf flag in bit 8 and an offset in bits 9-31.
 * A leaf unit holds a position in the replacements. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_TEXT_CHARSMAP_H
#define DSC_ENGINE_TEXT_CHARSMAP_H

#include "engine/text/buffer.h"

/* Bytes that may replace a character; published maps have up to 33. */
#define DSC_CHARSMAP_BYTES_MAX 1024

typedef struct dsc_charsmap dsc_charsmap;

/* `base64`: the file's text. DSC_ERR_INPUT: not such a map. Owned. */
DSC_MUST_USE dsc_status dsc_charsmap_open(dsc_alloc *alloc, const char *base64, const char *where, dsc_charsmap **out,
                                          dsc_error *err);
void dsc_charsmap_close(dsc_charsmap **map); /* safe on NULL */

/* Parts of a valid text from left to right, as the tokenizers package makes them. A grapheme cluster of less than six
 * bytes that begins with an entry is one part, and its replacement is that entry's. All other parts are characters. */
typedef struct dsc_charsmap_walk {
    const dsc_charsmap *map;
    const char *at, *end, *cluster_end;
} dsc_charsmap_walk;
typedef struct dsc_charsmap_part {
    const char *from, *to;
    int64_t from_bytes, to_bytes; /* from_bytes 0: behind the last part */
    bool replaced;
} dsc_charsmap_part;
dsc_charsmap_walk dsc_charsmap_start(const dsc_charsmap *map, const char *text, int64_t bytes);
/* DSC_ERR_INPUT: the map points outside of itself. */
DSC_MUST_USE dsc_status dsc_charsmap_next(dsc_charsmap_walk *walk, dsc_charsmap_part *part, dsc_error *err);

/* Appends the text with its replacements. */
dsc_status dsc_charsmap_apply(const dsc_charsmap *map, const char *text, int64_t bytes, dsc_text *out, dsc_error *err);

#endif
