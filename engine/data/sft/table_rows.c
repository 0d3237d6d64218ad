/* table_rows.c - see table_rows.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/data/sft/table_rows.h"

#include "engine/data/sft/json_out.h"

void dsc_table_rows_open(dsc_alloc *alloc, char delimiter, dsc_table_rows *out)
{
    out->delimiter = delimiter;
    out->columns = 0;
    out->names = out->cell = out->json = (dsc_text) { .alloc = alloc };
}

void dsc_table_rows_close(dsc_table_rows *table)
{
    if (table->json.alloc == NULL)
        return;
    dsc_text_free(&table->names);
    dsc_text_free(&table->cell);
    dsc_text_free(&table->json);
}

static dsc_status take_name(void *user, int32_t cell, const char *text, int64_t bytes, dsc_error *err)
{
    dsc_table_rows *table = user;
    if (bytes > 0) /* pandas writes an index without a name */
        DSC_TRY(dsc_json_out_text(&table->names, text, bytes, err));
    table->name_end[cell] = table->names.bytes;
    return DSC_OK;
}

dsc_status dsc_table_rows_header(dsc_table_rows *table, const char *where, const char *text, const dsc_table_row *row,
                                 dsc_error *err)
{
    if (row->cells > DSC_TABLE_COLUMNS_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, where, "a header of %d columns; expected at most %d", (int)row->cells,
                        DSC_TABLE_COLUMNS_MAX);
    table->columns = row->cells;
    table->names.bytes = 0;
    return dsc_table_cells(text, row->bytes, table->delimiter, &table->cell, take_name, table, err);
}

static dsc_status take_cell(void *user, int32_t cell, const char *text, int64_t bytes, dsc_error *err)
{
    dsc_table_rows *table = user;
    const int64_t begin = cell > 0 ? table->name_end[cell - 1] : 0, end = table->name_end[cell];
    DSC_ASSERT(cell < table->columns);
    if (begin == end)
        return DSC_OK;
    DSC_TRY(dsc_json_out_raw(&table->json, table->json.bytes > 1 ? "," : "", err));
    DSC_TRY(dsc_text_add(&table->json, table->names.ptr + begin, end - begin, err));
    DSC_TRY(dsc_json_out_raw(&table->json, ":", err));
    return dsc_json_out_text(&table->json, text, bytes, err);
}

dsc_status dsc_table_rows_read(dsc_table_rows *table, const char *where, const char *text, const dsc_table_row *row,
                               dsc_error *err)
{
    if (row->open_quote)
        return DSC_FAIL(err, DSC_ERR_INPUT, where, "a cell in quotes without its end; is the file whole?");
    if (row->cells != table->columns)
        return DSC_FAIL(err, DSC_ERR_INPUT, where, "a row of %d cells; the header has %d", (int)row->cells,
                        (int)table->columns);
    table->json.bytes = 0;
    DSC_TRY(dsc_json_out_raw(&table->json, "{", err));
    DSC_TRY(dsc_table_cells(text, row->bytes, table->delimiter, &table->cell, take_cell, table, err));
    return dsc_json_out_raw(&table->json, "}", err);
}
