/* list_csv.c - pictures of a CSV file with the columns path and label (RFC 4180). SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "engine/data/images/list_internal.h"

#define CSV_BYTES_MAX (INT64_C(1) << 30)
enum { FIELDS_MAX = 64, FIELD_BYTES_MAX = 1000 };

typedef struct csv {
    const char *path, *text;
    int64_t bytes, at, line;
    char value[2][FIELD_BYTES_MAX]; /* of the columns that are asked for */
    int64_t value_bytes[2];
    int32_t column[2]; /* of path and label */
} csv;

static dsc_status wrong(const csv *c, const char *what, dsc_error *err)
{
    return DSC_FAIL(err, DSC_ERR_INPUT, c->path, "line %lld: %s", (long long)c->line, what);
}

/* One field from c->at on, without its quotes. *last: a line ends behind it. */
static dsc_status take_field(csv *c, char *out, int64_t *out_bytes, bool *last, dsc_error *err)
{
    const bool quoted = c->at < c->bytes && c->text[c->at] == '"';
    int64_t count = 0;
    c->at += quoted;
    for (; c->at < c->bytes; c->at++) {
        const char b = c->text[c->at];
        if (quoted && b == '"' && c->at + 1 < c->bytes && c->text[c->at + 1] == '"')
            c->at++;
        else if (quoted ? b == '"' : b == ',' || b == '\n')
            break;
        if (b == 0 || count == FIELD_BYTES_MAX - 1)
            return wrong(c, b == 0 ? "a zero byte" : "a field of 1000 bytes or more", err);
        out[count++] = b;
    }
    if (quoted && c->at++ >= c->bytes)
        return wrong(c, "a quoted field without its second quote", err);
    if (!quoted && count > 0 && out[count - 1] == '\r')
        count--;
    if (quoted && c->at < c->bytes && c->text[c->at] == '\r')
        c->at++;
    if (c->at < c->bytes && c->text[c->at] != ',' && c->text[c->at] != '\n')
        return wrong(c, "text after a quoted field; expected a comma", err);
    *last = c->at >= c->bytes || c->text[c->at] == '\n';
    c->at++;
    out[count] = 0;
    *out_bytes = count;
    return DSC_OK;
}

static int32_t column_of(const char *name)
{
    static const char *const paths[] = { "path", "file", "image" }, *const labels[] = { "label", "class" };
    for (size_t i = 0; i < DSC_COUNT(paths); i++)
        if (strcmp(name, paths[i]) == 0)
            return 0;
    for (size_t i = 0; i < DSC_COUNT(labels); i++)
        if (strcmp(name, labels[i]) == 0)
            return 1;
    return -1;
}

static dsc_status take_header(csv *c, dsc_error *err)
{
    char name[FIELD_BYTES_MAX];
    int64_t bytes = 0;
    bool last = false;
    c->column[0] = c->column[1] = -1;
    c->at = c->bytes >= 3 && memcmp(c->text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    c->line = 1;
    for (int32_t i = 0; !last; i++) {
        if (i == FIELDS_MAX)
            return wrong(c, "more than 64 columns", err);
        DSC_TRY(take_field(c, name, &bytes, &last, err));
        const int32_t wanted = column_of(name);
        if (wanted >= 0 && c->column[wanted] >= 0)
            return wrong(c, "two columns for one value; expected one of path and one of label", err);
        if (wanted >= 0)
            c->column[wanted] = i;
    }
    return c->column[0] >= 0 && c->column[1] >= 0
               ? DSC_OK
               : wrong(c, "a CSV file of pictures begins with the names of its columns, path and label", err);
}

/* The next row; false in *found: there is none. */
static dsc_status take_row(csv *c, bool *found, dsc_error *err)
{
    char other[FIELD_BYTES_MAX];
    int64_t bytes = 0;
    bool last = false;
    while (c->at < c->bytes && (c->text[c->at] == '\n' || c->text[c->at] == '\r')) {
        c->line += c->text[c->at] == '\n';
        c->at++;
    }
    c->line++;
    *found = c->at < c->bytes;
    c->value_bytes[0] = c->value_bytes[1] = 0;
    for (int32_t i = 0; *found && !last; i++) {
        const int32_t wanted = i == c->column[0] ? 0 : i == c->column[1] ? 1 : -1;
        DSC_TRY(take_field(c, wanted >= 0 ? c->value[wanted] : other, wanted >= 0 ? &c->value_bytes[wanted] : &bytes,
                           &last, err));
    }
    if (*found && (c->value_bytes[0] == 0 || c->value_bytes[1] == 0))
        return wrong(c, "a row without a path or a label", err);
    return DSC_OK;
}

/* Labels are numbers if all are. */
static dsc_status find_kind(csv *c, dsc_image_labels *out, dsc_error *err)
{
    bool found = true;
    int32_t number = 0;
    *out = DSC_IMAGE_LABELS_NUMBERS;
    DSC_TRY(take_header(c, err));
    for (;;) {
        DSC_TRY(take_row(c, &found, err));
        if (!found)
            return DSC_OK;
        if (!dsc_image_label_number(c->value[1], c->value_bytes[1], &number))
            *out = DSC_IMAGE_LABELS_NAMES;
    }
}

static dsc_status add_rows(dsc_image_list *list, csv *c, int32_t root, dsc_image_labels kind, dsc_error *err)
{
    const int64_t before = list->count;
    bool found = true;
    DSC_TRY(take_header(c, err));
    for (;;) {
        dsc_image_item item = { .offset = -1, .root = root };
        DSC_TRY(take_row(c, &found, err));
        if (!found)
            break;
        if (kind == DSC_IMAGE_LABELS_NAMES)
            DSC_TRY(dsc_image_list_label(list, c->path, c->value[1], c->value_bytes[1], &item.label, err));
        else
            (void)dsc_image_label_number(c->value[1], c->value_bytes[1], &item.label);
        DSC_TRY(dsc_image_list_text(list, c->value[0], c->value_bytes[0], &item.name, err));
        DSC_TRY(dsc_image_list_item(list, &item, err));
    }
    return list->count > before ? DSC_OK : DSC_FAIL(err, DSC_ERR_INPUT, c->path, "the CSV file has no row");
}

dsc_status dsc_image_add_csv(dsc_image_list *list, const char *path, dsc_error *err)
{
    char folder[1024] = ".", *text = NULL;
    const char *slash = strrchr(path, '/');
    dsc_image_labels kind = DSC_IMAGE_LABELS_NONE;
    int32_t root = 0;
    int64_t bytes = 0;
    csv c = { .path = path };
    if (slash != NULL && slash - path >= (int64_t)sizeof folder)
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "the path has more than 1023 bytes");
    if (slash != NULL)
        memcpy(folder, path, (size_t)(slash - path) + 1), folder[slash - path] = 0;
    DSC_TRY(dsc_io_read_all(list->io, list->alloc, path, CSV_BYTES_MAX, &text, &bytes, err));
    c.text = text, c.bytes = bytes;
    dsc_status status = find_kind(&c, &kind, err);
    if (status == DSC_OK)
        status = dsc_image_list_labels(list, path, kind, err);
    if (status == DSC_OK)
        status = dsc_image_list_root(list, folder, &root, err);
    if (status == DSC_OK)
        status = add_rows(list, &c, root, kind, err);
    dsc_alloc_free(list->alloc, text);
    return status;
}
