/* records.c - see records.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/data/sft/records.h"

#include <stdio.h>
#include <string.h>

#include "engine/data/sft/table_rows.h"
#include "engine/text/content.h"
#include "engine/text/source.h"

#define READ_BYTES (INT64_C(1) << 20)
#define DEPTH_MAX 64
#define MEMBERS_MAX 4000000

typedef enum dsc_records_form { FORM_LINES, FORM_LIST, FORM_TABLE } dsc_records_form;

struct dsc_records {
    dsc_alloc *alloc;
    dsc_source source;
    dsc_text buffer;
    int64_t at;        /* first byte of the buffer that no record has used */
    int64_t line;      /* number of the line at buffer[at], from 1 */
    int64_t record_line;
    dsc_records_form form;
    bool began, ended;
    dsc_table_rows table;
    const char *text; /* the record, in the buffer */
    int64_t bytes;
    dsc_json *json;    /* the record */
    char where[400];
};

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

/* ---- Reading ---- */

/* More bytes behind those of the buffer; used ones leave it. *more = false: the file has ended. */
static dsc_status read_more(dsc_records *r, bool *more, dsc_error *err)
{
    int64_t got = 0;
    *more = !r->source.ended;
    if (r->source.ended)
        return DSC_OK;
    if (r->at > 0) {
        memmove(r->buffer.ptr, r->buffer.ptr + r->at, (size_t)(r->buffer.bytes - r->at));
        r->buffer.bytes -= r->at;
        r->at = 0;
    }
    if (r->buffer.bytes > DSC_RECORD_BYTES_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, r->where, "an object of more than %lld MiB; expected an example of a "
                        "conversation: split it, or remove it", (long long)(DSC_RECORD_BYTES_MAX >> 20));
    DSC_TRY(dsc_text_reserve(&r->buffer, READ_BYTES + 1, err));
    DSC_TRY(dsc_source_read(&r->source, r->buffer.ptr + r->buffer.bytes, READ_BYTES, &got, err));
    r->buffer.bytes += got;
    return DSC_OK;
}

static void set_where(dsc_records *r)
{
    r->record_line = r->line;
    dsc_records_name(r->source.file.path, r->line, r->where, sizeof r->where);
}

/* Counts the lines of buffer[at, at + bytes) and moves behind it. */
static void move_on(dsc_records *r, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i++)
        r->line += r->buffer.ptr[r->at + i] == '\n';
    r->at += bytes;
}

/* *c <- the next byte that is not blank, 0: none. */
static dsc_status skip_blanks(dsc_records *r, char *c, dsc_error *err)
{
    bool more = true;
    for (;;) {
        while (r->at < r->buffer.bytes && is_blank(r->buffer.ptr[r->at]))
            move_on(r, 1);
        *c = r->at < r->buffer.bytes ? r->buffer.ptr[r->at] : 0;
        if (r->at < r->buffer.bytes || !more)
            return DSC_OK;
        DSC_TRY(read_more(r, &more, err));
    }
}

/* The object at `at` is the record; the position moves behind it. */
static dsc_status take(dsc_records *r, int64_t bytes, dsc_error *err)
{
    if (bytes > DSC_RECORD_BYTES_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, r->where, "an object of more than %lld MiB; expected an example of a "
                        "conversation: split it, or remove it", (long long)(DSC_RECORD_BYTES_MAX >> 20));
    r->text = r->buffer.ptr + r->at;
    r->bytes = bytes;
    move_on(r, bytes);
    return DSC_OK;
}

/* ---- An object on each line ---- */

static dsc_status next_line(dsc_records *r, bool *found, dsc_error *err)
{
    bool more = true;
    char c;
    DSC_TRY(skip_blanks(r, &c, err));
    set_where(r);
    *found = c != 0;
    if (!*found)
        return r->at < r->buffer.bytes ? DSC_FAIL(err, DSC_ERR_INPUT, r->where, "a zero byte; expected JSON objects")
                                       : DSC_OK;
    for (int64_t from = 0;;) {
        const int64_t rest = r->buffer.bytes - r->at;
        const char *const end = memchr(r->buffer.ptr + r->at + from, '\n', (size_t)(rest - from));
        if (end != NULL || !more)
            from = end != NULL ? end - (r->buffer.ptr + r->at) : rest;
        if (end == NULL && more) {
            from = rest;
            DSC_TRY(read_more(r, &more, err));
            continue;
        }
        while (from > 1 && is_blank(r->buffer.ptr[r->at + from - 1]))
            from--;
        if (from == 1 && c == '{')
            return DSC_FAIL(err, DSC_ERR_INPUT, r->where, "an object over several lines; expected one list of objects, "
                            "[{...}, {...}], or one object on each line");
        return take(r, from, err);
    }
}

/* ---- A list ---- */

/* Bytes of the object that begins at `at`; strings are skipped, the parser checks the rest. */
static dsc_status object_bytes(dsc_records *r, int64_t *out, dsc_error *err)
{
    int64_t depth = 0, i = 0;
    bool more = true, in_string = false;
    for (;; i++) {
        if (r->at + i == r->buffer.bytes) {
            DSC_TRY(read_more(r, &more, err));
            if (!more)
                return DSC_FAIL(err, DSC_ERR_INPUT, r->where, "the file ends inside of this object; expected its end "
                                "and that of the list: is the file whole?");
        }
        const char c = r->buffer.ptr[r->at + i];
        if (in_string && c == '\\')
            i++; /* the escaped character may not have been read yet */
        else if (c == '"')
            in_string = !in_string;
        else if (!in_string && (c == '{' || c == '['))
            depth++;
        else if (!in_string && (c == '}' || c == ']') && --depth == 0)
            break;
        if (r->at + i >= r->buffer.bytes) {
            DSC_TRY(read_more(r, &more, err));
            if (!more)
                return DSC_FAIL(err, DSC_ERR_INPUT, r->where, "the file ends inside of a string; is it whole?");
        }
    }
    *out = i + 1;
    return DSC_OK;
}

/* Behind the list there is nothing else. */
static dsc_status end_list(dsc_records *r, dsc_error *err)
{
    char c;
    move_on(r, 1);
    DSC_TRY(skip_blanks(r, &c, err));
    r->ended = true;
    if (r->at == r->buffer.bytes)
        return DSC_OK;
    set_where(r);
    return DSC_FAIL(err, DSC_ERR_INPUT, r->where, "text behind the end of the list; expected one list in a file");
}

static dsc_status next_element(dsc_records *r, bool *found, dsc_error *err)
{
    const bool first = !r->began;
    int64_t bytes = 0;
    char c;
    *found = false;
    if (r->ended)
        return DSC_OK;
    DSC_TRY(skip_blanks(r, &c, err));
    if (first)
        move_on(r, 1); /* '[' */
    r->began = true;
    if (first)
        DSC_TRY(skip_blanks(r, &c, err));
    if (c == ']')
        return end_list(r, err);
    set_where(r);
    if (!first && c != ',')
        return DSC_FAIL(err, DSC_ERR_INPUT, r->where, "expected a comma and the next object, or the end of the list");
    if (!first) {
        move_on(r, 1);
        DSC_TRY(skip_blanks(r, &c, err));
        set_where(r);
    }
    if (c != '{')
        return DSC_FAIL(err, DSC_ERR_INPUT, r->where, "expected an object in the list; write {...} for each example");
    DSC_TRY(object_bytes(r, &bytes, err));
    *found = true;
    return take(r, bytes, err);
}

/* ---- A table ---- */

/* The row at `at`, read to its end. False: there is none. */
static dsc_status find_row(dsc_records *r, bool *found, dsc_table_row *row, dsc_error *err)
{
    bool more = true;
    set_where(r);
    for (;;) {
        dsc_table_read(r->buffer.ptr + r->at, r->buffer.bytes - r->at, r->table.delimiter, NULL, row);
        *found = row->bytes > 0;
        if (row->whole || !more)
            return DSC_OK;
        /* Twice as much each time: a long row is not read again and again. */
        for (const int64_t want = 2 * (r->buffer.bytes - r->at); more && r->buffer.bytes - r->at <= want;)
            DSC_TRY(read_more(r, &more, err));
    }
}

/* The delimiter that gives the header the most cells. */
static void find_delimiter(dsc_records *r)
{
    static const char delimiters[] = { ',', '\t', ';' };
    dsc_table_row row;
    int32_t most = 1;
    for (size_t i = 0; i < DSC_COUNT(delimiters); i++) {
        dsc_table_read(r->buffer.ptr + r->at, r->buffer.bytes - r->at, delimiters[i], NULL, &row);
        if (row.cells > most) {
            r->table.delimiter = delimiters[i];
            most = row.cells;
        }
    }
}

static bool is_empty_line(const char *text, const dsc_table_row *row)
{
    return text[0] == '\n' || (row->bytes == 2 && text[0] == '\r');
}

static dsc_status next_row(dsc_records *r, bool *found, dsc_error *err)
{
    dsc_table_row row;
    if (!r->began) {
        find_delimiter(r);
        DSC_TRY(find_row(r, found, &row, err));
        if (*found)
            DSC_TRY(dsc_table_rows_header(&r->table, r->where, r->buffer.ptr + r->at, &row, err));
        r->began = true;
        move_on(r, row.bytes);
    }
    for (;;) {
        DSC_TRY(find_row(r, found, &row, err));
        const char *const text = r->buffer.ptr + r->at;
        if (!*found)
            return DSC_OK;
        if (!is_empty_line(text, &row)) {
            DSC_TRY(dsc_table_rows_read(&r->table, r->where, text, &row, err));
            r->text = r->table.json.ptr;
            r->bytes = r->table.json.bytes;
            move_on(r, row.bytes);
            return DSC_OK;
        }
        move_on(r, row.bytes);
    }
}

static dsc_status open_file(const dsc_io *io, dsc_alloc *alloc, const char *path, dsc_records *r, dsc_error *err)
{
    bool more;
    *r = (dsc_records) { .alloc = alloc, .source = DSC_SOURCE_INIT, .buffer = { .alloc = alloc }, .line = 1 };
    DSC_TRY(dsc_source_open(io, path, &r->source, err));
    DSC_TRY(read_more(r, &more, err));
    if (r->buffer.bytes >= 3 && memcmp(r->buffer.ptr, "\xef\xbb\xbf", 3) == 0) /* Windows writes this mark */
        r->at = 3;
    set_where(r);
    return DSC_OK;
}

static void close_file(dsc_records *r)
{
    dsc_json_close(&r->json);
    dsc_table_rows_close(&r->table);
    (void)dsc_source_close(&r->source, NULL);
    dsc_text_free(&r->buffer);
}

/* ---- Interface ---- */

/* A table is known by its name, lists and lines by their first byte. Binary formats are refused with a command. */
static dsc_status open_form(const dsc_io *io, dsc_alloc *alloc, const char *path, dsc_records *r, dsc_error *err)
{
    dsc_content content;
    char c = 0;
    DSC_TRY(open_file(io, alloc, path, r, err));
    DSC_TRY(dsc_content_detect(io, path, "text", &content, err));
    if (content.kind == DSC_CONTENT_OTHER && content.byte < 0)
        return dsc_content_refuse(&content, path, err);
    if (content.kind == DSC_CONTENT_TABLE) {
        r->form = FORM_TABLE;
        dsc_table_rows_open(alloc, content.delimiter, &r->table);
        return DSC_OK;
    }
    DSC_TRY(skip_blanks(r, &c, err));
    r->form = c == '[' ? FORM_LIST : FORM_LINES;
    /* JSON that is not UTF-8 is refused with the line. */
    return c == '[' || c == '{' ? DSC_OK : dsc_content_refuse(&content, path, err);
}

dsc_status dsc_records_open(const dsc_io *io, dsc_alloc *alloc, const char *path, dsc_records **out, dsc_error *err)
{
    dsc_records *r = NULL;
    *out = NULL;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_DATA, 1, sizeof *r, &r, err));
    const dsc_status status = open_form(io, alloc, path, r, err);
    if (status != DSC_OK)
        dsc_records_close(&r);
    *out = r;
    return status;
}

void dsc_records_close(dsc_records **records)
{
    if (*records == NULL)
        return;
    dsc_alloc *alloc = (*records)->alloc;
    close_file(*records);
    dsc_alloc_free(alloc, *records);
    *records = NULL;
}

dsc_status dsc_records_next_text(dsc_records *r, const char **text, int64_t *bytes, dsc_error *err)
{
    bool found = false;
    *text = NULL;
    DSC_TRY(r->form == FORM_TABLE  ? next_row(r, &found, err)
            : r->form == FORM_LIST ? next_element(r, &found, err)
                                   : next_line(r, &found, err));
    if (found) {
        *text = r->text;
        *bytes = r->bytes;
    }
    return DSC_OK;
}

void dsc_records_name(const char *path, int64_t line, char *out, size_t out_bytes)
{
    snprintf(out, out_bytes, "%.300s, line %lld", path, (long long)line);
}

dsc_status dsc_records_parse(dsc_alloc *alloc, const char *where, const char *text, int64_t bytes, dsc_json **out,
                             dsc_error *err)
{
    const dsc_json_limits limits = { DSC_RECORD_BYTES_MAX, DEPTH_MAX, MEMBERS_MAX };
    DSC_TRY(dsc_json_open(alloc, where, text, bytes, DSC_JSON_DATA, &limits, out, err));
    if (cJSON_IsObject(dsc_json_root(*out)))
        return DSC_OK;
    dsc_json_close(out);
    return DSC_FAIL(err, DSC_ERR_INPUT, where,
                    "expected an object such as {\"messages\": [...]}; write one for each "
                    "example");
}

dsc_status dsc_records_next(dsc_records *r, const cJSON **row, dsc_error *err)
{
    const char *text = NULL;
    int64_t bytes = 0;
    *row = NULL;
    dsc_json_close(&r->json);
    DSC_TRY(dsc_records_next_text(r, &text, &bytes, err));
    if (text == NULL)
        return DSC_OK;
    DSC_TRY(dsc_records_parse(r->alloc, r->where, text, bytes, &r->json, err));
    *row = dsc_json_root(r->json);
    return DSC_OK;
}

const char *dsc_records_where(const dsc_records *r) { return r->where; }
int64_t dsc_records_line(const dsc_records *r) { return r->record_line; }
int64_t dsc_records_read_bytes(const dsc_records *r)
{
    const int64_t rest = !dsc_source_is_packed(&r->source) ? r->buffer.bytes - r->at : 0;
    return dsc_source_position(&r->source) - rest;
}

int64_t dsc_records_file_bytes(const dsc_records *r) { return r->source.file_bytes; }
