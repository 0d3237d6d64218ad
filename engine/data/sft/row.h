/* row.h - one object of a data file as messages, texts or tokens. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_DATA_SFT_ROW_H
#define DSC_ENGINE_DATA_SFT_ROW_H

#include <cjson/cJSON.h>

#include "engine/data/sft/sft.h"

/* A message as JSON, in dsc_sft_row.json. The content is a JSON string or list inside of it; begin = end: none. */
typedef struct dsc_sft_message {
    int64_t begin, end, content_begin, content_end;
    bool counts;
    char other; /* a character that the content neither begins nor ends with */
} dsc_sft_message;

/* Buffers are reused by the next row. Zeroed but for the allocators: empty. */
typedef struct dsc_sft_row {
    dsc_sft_format format;
    bool conversation;          /* else texts, or tokens */
    bool keeps_parts;           /* set by the caller: contents in parts stay lists, for a template that reads them */
    dsc_text json;              /* all messages, one after the other */
    dsc_sft_message *message;   /* [message_count] */
    int64_t message_count, message_room;
    dsc_text tools;             /* JSON of the list of tools; empty: none */
    dsc_text prompt, completion; /* texts; only the completion counts */
    dsc_ids ids, counted;       /* tokens; 1: counted */
} dsc_sft_row;
void dsc_sft_row_open(dsc_alloc *alloc, dsc_sft_row *out);
void dsc_sft_row_close(dsc_sft_row *row);

/* The format by the columns of a row. DSC_ERR_INPUT: no known format; the message lists the columns. */
DSC_MUST_USE dsc_status dsc_sft_find_format(const dsc_sft_section *section, const char *where, const cJSON *row,
                                            dsc_sft_format *out, dsc_error *err);
/* `templated`: prompts of alpaca become messages, else the text of Stanford's Alpaca. DSC_ERR_INPUT with `where`:
 * a column is missing or has another type; an unknown role; content that is not text. */
DSC_MUST_USE dsc_status dsc_sft_row_read(const dsc_sft_section *section, dsc_sft_format format, bool templated,
                                         const char *where, const cJSON *row, dsc_sft_row *out, dsc_error *err);
/* One side of a row of preferences. Without a prompt it is what both sides begin with: whole messages, or characters of
 * texts less a blank at their end. Errors as above. */
DSC_MUST_USE dsc_status dsc_sft_row_read_side(const dsc_sft_section *section, dsc_sft_side side, const char *where,
                                              const cJSON *row, dsc_sft_row *out, dsc_error *err);
/* A conversation made in memory: first without messages, then one more for each call. Answers count. `role` is system,
 * user or assistant; the text is `bytes` of valid UTF-8. */
void dsc_sft_row_begin(dsc_sft_row *row);
DSC_MUST_USE dsc_status dsc_sft_row_add(dsc_sft_row *row, const char *role, const char *text, int64_t bytes,
                                        dsc_error *err);

#endif
