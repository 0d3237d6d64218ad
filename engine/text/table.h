/* table.h - rows of CSV and TSV (RFC 4180): cells in quotes may hold delimiters, line ends and doubled quotes.
 *
 * A quote inside of a cell that does not begin with one is a plain character, as Python's csv reads it.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_TEXT_TABLE_H
#define DSC_ENGINE_TEXT_TABLE_H

#include "engine/text/buffer.h"

typedef struct dsc_table_row {
    int64_t bytes;      /* size of the row with its line end */
    int64_t lines;      /* that it takes */
    int32_t cells;
    int32_t column;     /* index of the cell whose text is `field`; -1: none */
    bool whole;         /* false: the text ends before the row does */
    bool open_quote;    /* and inside of a quoted cell */
} dsc_table_row;

/* The row at the text's beginning. field: NULL to look for none. */
void dsc_table_read(const char *text, int64_t bytes, char delimiter, const char *field, dsc_table_row *out);
/* The text of one cell of the row at the text's beginning, with its quotes resolved, into *out (emptied before).
 * *found = false: the row has fewer cells. */
DSC_MUST_USE dsc_status dsc_table_cell(const char *text, int64_t bytes, char delimiter, int32_t column, dsc_text *out,
                                       bool *found, dsc_error *err);

/* Calls `take` for each cell of the row at the text's beginning, with its quotes resolved; `cell` is scratch. */
DSC_MUST_USE dsc_status dsc_table_cells(const char *text, int64_t bytes, char delimiter, dsc_text *cell,
                                        dsc_status (*take)(void *user, int32_t index, const char *text, int64_t bytes,
                                                           dsc_error *err),
                                        void *user, dsc_error *err);

/* Finds the ends of rows in a text that grows. Zeroed with the delimiter: at the beginning of a row. */
typedef struct dsc_table_scan {
    char delimiter;
    bool in_quotes, after_quote, in_cell;
} dsc_table_scan;
/* Bytes up to the end of the last whole row, counted from text[0]; -1: none ends here. Continues at the next call. */
int64_t dsc_table_scan_rows(dsc_table_scan *scan, const char *text, int64_t bytes);

#endif
