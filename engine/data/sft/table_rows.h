/* table_rows.h - rows of CSV and TSV as JSON objects: a member for each column of the header, whose value is a text.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_DATA_SFT_TABLE_ROWS_H
#define DSC_ENGINE_DATA_SFT_TABLE_ROWS_H

#include "engine/text/table.h"

#define DSC_TABLE_COLUMNS_MAX 1000

/* Zeroed but for the delimiter and the texts' allocators: no header is read. */
typedef struct dsc_table_rows {
    char delimiter;
    dsc_text names; /* JSON strings of the columns, one after the other; a column without a name has none */
    int64_t name_end[DSC_TABLE_COLUMNS_MAX];
    int32_t columns;
    dsc_text cell, json;
} dsc_table_rows;
void dsc_table_rows_open(dsc_alloc *alloc, char delimiter, dsc_table_rows *out);
void dsc_table_rows_close(dsc_table_rows *table);
/* The header is the row at the text's beginning. DSC_ERR_INPUT with `where`: too many columns. */
DSC_MUST_USE dsc_status dsc_table_rows_header(dsc_table_rows *table, const char *where, const char *text,
                                              const dsc_table_row *row, dsc_error *err);
/* table->json <- the row. DSC_ERR_INPUT with `where`: more or fewer cells than the header has, an open quote. */
DSC_MUST_USE dsc_status dsc_table_rows_read(dsc_table_rows *table, const char *where, const char *text,
                                            const dsc_table_row *row, dsc_error *err);

#endif
