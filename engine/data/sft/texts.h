/* texts.h - a row whose texts are compared: an anchor, its positive, and any number of negatives; or a pair with a
 * score.
 *
 * Each text becomes a sample of its own, in the form that the tokenizer gives to a text, cut to a sample's length.
 * Columns are found by the names that data sets of sentence-transformers have, or by dsc.embedding.columns.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_DATA_SFT_TEXTS_H
#define DSC_ENGINE_DATA_SFT_TEXTS_H

#include "engine/data/sft/maker.h"

/* As dsc_sft_make. The ids of all texts follow one another. Then come the words of the row: how many tokens each text
 * has, and the score in fp32, NaN where the row has none. With `unlabeled` a row has one text and no words. */
DSC_MUST_USE dsc_status dsc_sft_make_texts(dsc_sft_maker *maker, const char *where, const cJSON *object,
                                           dsc_sft_example *out, dsc_error *err);
/* "anchor, positive, negative": the columns that a row of these has. Returns out. */
const char *dsc_sft_text_columns(const dsc_sft_section *section, const cJSON *row, char *out, size_t out_bytes);

#endif
