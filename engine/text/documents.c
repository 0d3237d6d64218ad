/* documents.c - see documents.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/text/documents.h"

#include <stdio.h>
#include <string.h>

#include "base/formats/json.h"
#include "engine/text/unicode.h"

#define HEADER_BYTES_MAX 65536
#define NAMES_SHOWN 160 /* bytes of members or columns in a message */

/* ---- The form of a file ---- */

/* Column names of a header, for messages. */
static void list_columns(const char *header, int64_t bytes, char delimiter, dsc_text *cell, char *out, size_t out_bytes)
{
    bool found = true;
    size_t used = 0;
    out[0] = 0;
    for (int32_t i = 0; used + 48 < out_bytes; i++) {
        if (dsc_table_cell(header, bytes, delimiter, i, cell, &found, NULL) != DSC_OK || !found)
            break;
        used += (size_t)snprintf(out + used, out_bytes - used, "%s%.*s", i > 0 ? ", " : "",
                                 (int)dsc_min_i64(cell->bytes, 40), cell->ptr);
    }
}

static dsc_status read_header(dsc_documents *d, dsc_text *text, const char *path, dsc_error *err)
{
    dsc_table_row header;
    char columns[NAMES_SHOWN];
    dsc_text cell = { .alloc = text->alloc };
    dsc_table_read(text->ptr, text->bytes, d->content.delimiter, d->field, &header);
    d->start += header.bytes;
    d->first_line += header.lines;
    d->column = header.column;
    d->cells = header.cells;
    if (header.column >= 0 && d->named)
        return DSC_OK;
    list_columns(text->ptr, header.bytes, d->content.delimiter, &cell, columns, sizeof columns);
    dsc_text_free(&cell);
    if (!d->named)
        return DSC_FAIL(err, DSC_ERR_INPUT, path,
                        "a table with the columns %s: name the one with the text "
                        "(--field, dsc.data_field)",
                        columns);
    return DSC_FAIL(err, DSC_ERR_INPUT, path, "a table without a column \"%.60s\"; its columns are %s: name the one "
                    "with the text (--field, dsc.data_field)", d->field, columns);
}

static dsc_status open_table(const dsc_io *io, dsc_alloc *alloc, const char *path, dsc_documents *d, dsc_error *err)
{
    dsc_source source = DSC_SOURCE_INIT;
    dsc_text text = { .alloc = alloc };
    dsc_status status = dsc_source_open(io, path, &source, err);
    if (status == DSC_OK)
        status = dsc_source_skip(&source, d->start, err);
    if (status == DSC_OK)
        status = dsc_text_reserve(&text, HEADER_BYTES_MAX + 1, err);
    if (status == DSC_OK)
        status = dsc_source_read(&source, text.ptr, HEADER_BYTES_MAX, &text.bytes, err);
    if (status == DSC_OK)
        status = read_header(d, &text, path, err);
    (void)dsc_source_close(&source, NULL);
    dsc_text_free(&text);
    return status;
}

dsc_status dsc_documents_open(const dsc_io *io, dsc_alloc *alloc, const char *path, const char *field,
                              dsc_documents *out, dsc_error *err)
{
    *out = (dsc_documents) { .field = field != NULL ? field : DSC_DOCUMENTS_FIELD,
                             .named = field != NULL,
                             .first_line = 1 };
    DSC_TRY(dsc_content_detect(io, path, out->field, &out->content, err));
    DSC_TRY(dsc_content_refuse(&out->content, path, err));
    out->start = out->content.start;
    return out->content.kind == DSC_CONTENT_TABLE ? open_table(io, alloc, path, out, err) : DSC_OK;
}

/* ---- Cuts ---- */

/* Ends of the list's objects: depth 0 is inside of the list, before which the bracket is depth 1. */
static void scan_list(dsc_document_cut *cut, const char *text, int64_t bytes)
{
    for (int64_t i = cut->scanned; i < bytes; i++) {
        const char c = text[i];
        if (cut->in_string) {
            cut->in_string = cut->escaped || c != '"';
            cut->escaped = !cut->escaped && c == '\\';
            continue;
        }
        cut->in_string = c == '"';
        cut->depth += (c == '{' || c == '[') - (c == '}' || c == ']');
        if (c == '}' && cut->depth == 1)
            cut->end = i + 1;
    }
}

int64_t dsc_documents_find_cut(const dsc_documents *d, dsc_document_cut *cut, const char *text, int64_t bytes)
{
    DSC_ASSERT(cut->scanned <= bytes);
    const char *const fresh = text + cut->scanned;
    if (d->content.kind == DSC_CONTENT_JSON_LIST) {
        scan_list(cut, text, bytes);
    } else if (d->content.kind == DSC_CONTENT_TABLE) {
        cut->table.delimiter = d->content.delimiter;
        const int64_t end = dsc_table_scan_rows(&cut->table, fresh, bytes - cut->scanned);
        cut->end = end > 0 ? cut->scanned + end : cut->end;
    } else {
        const char *const line = memrchr(fresh, '\n', (size_t)(bytes - cut->scanned));
        cut->end = line != NULL ? line - text + 1 : cut->end;
    }
    cut->scanned = bytes;
    return cut->end;
}

void dsc_documents_drop(dsc_document_cut *cut, int64_t bytes)
{
    DSC_ASSERT(bytes <= cut->scanned);
    cut->scanned -= bytes;
    cut->end = 0;
}

/* ---- Documents of a part ---- */

typedef struct reading {
    const dsc_documents *d;
    dsc_alloc *alloc;
    const dsc_document_part *part;
    dsc_status (*take)(void *user, const char *text, int64_t bytes, dsc_error *err);
    void *user;
    int64_t at, line;
    char name[300];
} reading;

static const char *name_line(reading *r)
{
    snprintf(r->name, sizeof r->name, "%.200s, line %lld", r->part->path, (long long)r->line);
    return r->name;
}

static bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

static void skip_blanks(reading *r)
{
    for (; r->at < r->part->bytes && is_blank(r->part->text[r->at]); r->at++)
        r->line += r->part->text[r->at] == '\n';
}

static void list_members(const cJSON *object, char *out, size_t out_bytes)
{
    size_t used = 0;
    out[0] = 0;
    for (const cJSON *each = cJSON_IsObject(object) ? object->child : NULL; each != NULL; each = each->next)
        if (used + 48 < out_bytes)
            used += (size_t)snprintf(out + used, out_bytes - used, "%s%.40s", used > 0 ? ", " : "", each->string);
}

static dsc_status take_object(reading *r, const char *text, int64_t bytes, dsc_error *err)
{
    const dsc_json_limits limits = { DSC_DOCUMENT_BYTES_MAX, 64, 1000000 };
    dsc_json *json = NULL;
    char members[NAMES_SHOWN];
    DSC_TRY(dsc_json_open(r->alloc, name_line(r), text, bytes, DSC_JSON_DATA, &limits, &json, err));
    const cJSON *root = dsc_json_root(json);
    const cJSON *value = cJSON_IsObject(root) ? cJSON_GetObjectItemCaseSensitive(root, r->d->field) : NULL;
    dsc_status status = DSC_OK;
    if (cJSON_IsString(value)) {
        status = r->take(r->user, value->valuestring, (int64_t)strlen(value->valuestring), err);
    } else {
        list_members(root, members, sizeof members);
        status = DSC_FAIL(err, DSC_ERR_INPUT, r->name, "expected an object with a string \"%.60s\" (--field, "
                          "dsc.data_field)%s%s", r->d->field, members[0] != 0 ? "; its members are " : "", members);
    }
    dsc_json_close(&json);
    return status;
}

static dsc_status each_line(reading *r, dsc_error *err)
{
    const dsc_document_part *p = r->part;
    for (; r->at < p->bytes; r->line++) {
        const char *start = p->text + r->at, *end = memchr(start, '\n', (size_t)(p->bytes - r->at));
        const int64_t line_bytes = end != NULL ? end - start : p->bytes - r->at;
        int64_t bytes = line_bytes;
        while (bytes > 0 && is_blank(start[bytes - 1]))
            bytes--;
        if (bytes > 0 && start[0] == '{' && (bytes == 1 || start[bytes - 1] == ','))
            return DSC_FAIL(err, DSC_ERR_INPUT, name_line(r), "an object over several lines; expected one object on "
                            "each line, or one list of objects");
        if (bytes > 0)
            DSC_TRY(take_object(r, start, bytes, err));
        r->at += line_bytes + 1;
    }
    return DSC_OK;
}

/* Bytes of the object at `at`; 0: it does not end. */
static int64_t object_bytes(const reading *r)
{
    dsc_document_cut cut = { .depth = 1 };
    for (int64_t i = r->at; i < r->part->bytes && cut.end == 0; i++) {
        cut.scanned = 0;
        scan_list(&cut, r->part->text + i, 1);
        if (cut.end > 0)
            return i + 1 - r->at;
    }
    return 0;
}

static dsc_status expect(reading *r, char c, const char *what, dsc_error *err)
{
    skip_blanks(r);
    if (r->at == r->part->bytes || r->part->text[r->at] != c)
        return DSC_FAIL(err, DSC_ERR_INPUT, name_line(r), "expected %s of a JSON list%s", what,
                        r->at == r->part->bytes ? "; is the file whole?" : "");
    r->at++;
    return DSC_OK;
}

/* A part begins behind an object and ends with one, but for the brackets of the file's list. */
static dsc_status each_element(reading *r, dsc_error *err)
{
    const dsc_document_part *p = r->part;
    bool first = p->first;
    if (p->first)
        DSC_TRY(expect(r, '[', "the beginning", err));
    for (skip_blanks(r); r->at < p->bytes && p->text[r->at] != ']'; skip_blanks(r)) {
        if (!first)
            DSC_TRY(expect(r, ',', "a comma or the end", err));
        first = false;
        skip_blanks(r);
        if (r->at == p->bytes || p->text[r->at] != '{')
            return DSC_FAIL(err, DSC_ERR_INPUT, name_line(r), "expected an object in the JSON list");
        const int64_t bytes = object_bytes(r);
        if (bytes == 0)
            return DSC_FAIL(err, DSC_ERR_INPUT, name_line(r), "an object without its end; is the file whole?");
        DSC_TRY(take_object(r, p->text + r->at, bytes, err));
        for (const int64_t end = r->at + bytes; r->at < end; r->at++)
            r->line += p->text[r->at] == '\n';
    }
    if (!p->last)
        return DSC_OK;
    DSC_TRY(expect(r, ']', "the end", err));
    skip_blanks(r);
    return r->at == p->bytes ? DSC_OK : DSC_FAIL(err, DSC_ERR_INPUT, name_line(r), "text behind the end of the list");
}

static dsc_status take_row(reading *r, const dsc_table_row *row, dsc_text *cell, dsc_error *err)
{
    bool found = false;
    const char *const text = r->part->text + r->at;
    DSC_TRY(dsc_table_cell(text, row->bytes, r->d->content.delimiter, r->d->column, cell, &found, err));
    if (text[0] == '\n' || (row->bytes == 2 && text[0] == '\r')) /* an empty line */
        return DSC_OK;
    if (row->open_quote)
        return DSC_FAIL(err, DSC_ERR_INPUT, name_line(r), "a cell in quotes without its end; is the file whole?");
    if (row->cells != r->d->cells)
        return DSC_FAIL(err, DSC_ERR_INPUT, name_line(r), "a row of %d cells; the header has %d", (int)row->cells,
                        (int)r->d->cells);
    DSC_ASSERT(found);
    return r->take(r->user, cell->ptr, cell->bytes, err);
}

static dsc_status each_row(reading *r, dsc_error *err)
{
    dsc_text cell = { .alloc = r->alloc };
    dsc_table_row row;
    dsc_status status = DSC_OK;
    while (status == DSC_OK && r->at < r->part->bytes) {
        dsc_table_read(r->part->text + r->at, r->part->bytes - r->at, r->d->content.delimiter, NULL, &row);
        status = take_row(r, &row, &cell, err);
        r->at += row.bytes;
        r->line += row.lines;
    }
    dsc_text_free(&cell);
    return status;
}

dsc_status dsc_documents_each(const dsc_documents *d, dsc_alloc *alloc, const dsc_document_part *part,
                              dsc_status (*take)(void *user, const char *text, int64_t bytes, dsc_error *err),
                              void *user, dsc_error *err)
{
    reading r = { .d = d, .alloc = alloc, .part = part, .take = take, .user = user, .line = part->first_line };
    DSC_ASSERT(d->content.kind == DSC_CONTENT_JSON_LINES || d->content.kind == DSC_CONTENT_JSON_LIST ||
               d->content.kind == DSC_CONTENT_TABLE);
    return d->content.kind == DSC_CONTENT_JSON_LINES  ? each_line(&r, err)
           : d->content.kind == DSC_CONTENT_JSON_LIST ? each_element(&r, err)
                                                      : each_row(&r, err);
}
