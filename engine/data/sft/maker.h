/* maker.h - one object of a data file, or a side of it, as an example: rendered, encoded, and its counted tokens
 * marked. A thread has a maker of its own. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_DATA_SFT_MAKER_H
#define DSC_ENGINE_DATA_SFT_MAKER_H

#include "engine/data/sft/examples.h"
#include "engine/data/sft/render.h"
#include "engine/text/token_ends.h"

typedef struct dsc_sft_maker {
    const dsc_sft_options *o; /* NULL: closed */
    const dsc_chat_folder *folder;
    dsc_sft_render render;
    dsc_sft_row row;
    dsc_encoder *encoder;
    dsc_token_map *map;
    dsc_ids ids, counted;
    dsc_text text; /* text of a row without messages */
    int64_t *ends, end_room;
    int32_t end_id;   /* -1: none */
    int64_t in_parts; /* examples that were encoded in parts, of all rows */
} dsc_sft_maker;

/* A maker without memory; options and folder are borrowed until close. */
void dsc_sft_maker_clear(const dsc_sft_options *options, const dsc_chat_folder *folder, dsc_sft_maker *out);
DSC_MUST_USE dsc_status dsc_sft_maker_open(dsc_sft_maker *maker, dsc_error *err); /* closed also after a failure */
void dsc_sft_maker_close(dsc_sft_maker *maker);
/* *out is borrowed until the next call; its line is the caller's. DSC_ERR_INPUT with `where`. */
DSC_MUST_USE dsc_status dsc_sft_make(dsc_sft_maker *maker, dsc_sft_format format, dsc_sft_side side, const char *where,
                                     const cJSON *object, dsc_sft_example *out, dsc_error *err);

#endif
