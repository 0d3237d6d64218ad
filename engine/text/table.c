/* table.c - see table.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/text/table.h"

#include <string.h>

typedef enum cell_event { CELL_CHARACTER, CELL_QUOTE, CELL_END, ROW_END } cell_event;

/* The meaning of one byte: part of a cell's text, part of its quotes, or an end. */
static cell_event step(dsc_table_scan *s, char c)
{
    if (s->in_quotes && c == '"') {
        s->in_quotes = false;
        s->after_quote = true;
        return CELL_QUOTE;
    }
    if (s->in_quotes)
        return CELL_CHARACTER;
    if (s->after_quote && c == '"') { /* a doubled quote is one character */
        s->in_quotes = true;
        s->after_quote = false;
        return CELL_CHARACTER;
    }
    s->after_quote = false;
    if (c == s->delimiter || c == '\n') {
        s->in_cell = false;
        return c == '\n' ? ROW_END : CELL_END;
    }
    if (!s->in_cell && c == '"') {
        s->in_cell = s->in_quotes = true;
        return CELL_QUOTE;
    }
    s->in_cell = true;
    return CELL_CHARACTER;
}

/* A carriage return before the line end belongs to it. */
static bool is_line_end(const char *text, int64_t bytes, int64_t at)
{
    return text[at] == '\r' && at + 1 < bytes && text[at + 1] == '\n';
}

void dsc_table_read(const char *text, int64_t bytes, char delimiter, const char *field, dsc_table_row *out)
{
    dsc_table_scan scan = { .delimiter = delimiter };
    const int64_t length = field != NULL ? (int64_t)strlen(field) : 0;
    int64_t matched = 0, characters = 0;
    *out = (dsc_table_row){ .column = -1 };
    for (int64_t i = 0; i < bytes && !out->whole; i++) {
        const bool drop = !scan.in_quotes && is_line_end(text, bytes, i);
        const cell_event event = drop ? CELL_QUOTE : step(&scan, text[i]);
        out->bytes = i + 1;
        out->lines += text[i] == '\n';
        if (event == CELL_CHARACTER) {
            matched += matched == characters && characters < length && text[i] == field[characters];
            characters++;
        }
        if (event != CELL_END && event != ROW_END)
            continue;
        if (field != NULL && out->column < 0 && characters == length && matched == length)
            out->column = out->cells;
        out->cells++;
        matched = characters = 0;
        out->whole = event == ROW_END;
    }
    if (out->whole || out->bytes == 0)
        return;
    out->open_quote = scan.in_quotes;
    if (field != NULL && out->column < 0 && characters == length && matched == length) /* the last line has no end */
        out->column = out->cells;
    out->cells++;
}

dsc_status dsc_table_cell(const char *text, int64_t bytes, char delimiter, int32_t column, dsc_text *out, bool *found,
                          dsc_error *err)
{
    dsc_table_scan scan = { .delimiter = delimiter };
    int32_t cell = 0;
    out->bytes = 0;
    *found = false;
    DSC_TRY(dsc_text_reserve(out, bytes + 1, err));
    for (int64_t i = 0; i < bytes; i++) {
        if (!scan.in_quotes && is_line_end(text, bytes, i))
            continue;
        const cell_event event = step(&scan, text[i]);
        *found |= cell == column;
        if (event == CELL_CHARACTER && cell == column)
            out->ptr[out->bytes++] = text[i];
        if (event == ROW_END)
            break;
        cell += event == CELL_END;
    }
    *found |= cell == column; /* an empty last cell */
    return DSC_OK;
}

dsc_status dsc_table_cells(const char *text, int64_t bytes, char delimiter, dsc_text *cell,
                           dsc_status (*take)(void *user, int32_t index, const char *text, int64_t bytes,
                                              dsc_error *err),
                           void *user, dsc_error *err)
{
    dsc_table_scan scan = { .delimiter = delimiter };
    int32_t index = 0;
    DSC_TRY(dsc_text_reserve(cell, bytes + 1, err));
    cell->bytes = 0;
    for (int64_t i = 0; i < bytes; i++) {
        if (!scan.in_quotes && is_line_end(text, bytes, i))
            continue;
        const cell_event event = step(&scan, text[i]);
        if (event == CELL_CHARACTER)
            cell->ptr[cell->bytes++] = text[i];
        if (event == ROW_END)
            break;
        if (event != CELL_END)
            continue;
        DSC_TRY(take(user, index++, cell->ptr, cell->bytes, err));
        cell->bytes = 0;
    }
    return take(user, index, cell->ptr, cell->bytes, err);
}

int64_t dsc_table_scan_rows(dsc_table_scan *scan, const char *text, int64_t bytes)
{
    int64_t end = -1;
    for (int64_t i = 0; i < bytes; i++)
        if (step(scan, text[i]) == ROW_END)
            end = i + 1;
    return end;
}
