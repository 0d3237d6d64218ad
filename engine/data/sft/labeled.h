/* labeled.h - a row with a label, or several: one text or two, as the tokens of a sample, and the label's words.
 *
 * Texts get the form of the tokenizer, and are cut to a sample by its rule "longest_first". A label is a class by its
 * number or its name, a number, or a list. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_DATA_SFT_LABELED_H
#define DSC_ENGINE_DATA_SFT_LABELED_H

#include "engine/data/sft/maker.h"

/* As dsc_sft_make. */
DSC_MUST_USE dsc_status dsc_sft_make_labeled(dsc_sft_maker *maker, const char *where, const cJSON *object,
                                             dsc_sft_example *out, dsc_error *err);
/* "sentence1, sentence2, label": the columns that a row of these has. Returns out. */
const char *dsc_sft_label_columns(const dsc_sft_section *section, const cJSON *row, char *out, size_t out_bytes);
/* The number of a JSON value, or of a table's cell; false: it is none. */
bool dsc_sft_label_number(const cJSON *value, double *out);
/* Appends the tokenizer's form with a text or two to the maker's ids, and the types of tokens to `counted`. Texts are
 * cut to what a sample has room for. */
DSC_MUST_USE dsc_status dsc_sft_join_texts(dsc_sft_maker *maker, const char *where, const dsc_ids text[2], bool pair,
                                           bool *truncated, dsc_error *err);

#endif
