/* content.h - kind of a data file, by its first bytes: text, JSON, a table, or a format that is refused by name.
 *
 * The name decides only among forms of text: *.json, *.csv and their relatives are never plain text. Everything else
 * follows from the content, so that a renamed or unnamed file is read as what it is. A gzip or zstd file counts
 * as the text in it, under its name without .gz or .zst.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_TEXT_CONTENT_H
#define DSC_ENGINE_TEXT_CONTENT_H

#include "engine/text/source.h"

typedef enum dsc_content_kind {
    DSC_CONTENT_EMPTY,      /* no bytes, or only blanks */
    DSC_CONTENT_TEXT,
    DSC_CONTENT_JSON_LINES, /* an object on each line */
    DSC_CONTENT_JSON_LIST,  /* one list of objects */
    DSC_CONTENT_TABLE,      /* CSV or TSV with a header */
    DSC_CONTENT_OTHER       /* a binary format, or text in another encoding */
} dsc_content_kind;

typedef struct dsc_content {
    dsc_content_kind kind;
    char delimiter;       /* TABLE */
    int64_t start;        /* bytes before the content: the mark that Windows writes; 0 for TEXT */
    const char *format;   /* OTHER: "Parquet" */
    const char *remedy;   /* OTHER: a command, in which %1$s is the file and %2$s its name without the last ending */
    bool packed;          /* the content is that of a gzip or zstd stream */
    int64_t byte;         /* OTHER: position of the byte that is not text; -1: the format has a mark of its own */
} dsc_content;

/* `field` names the column or member with the text: a table without a name that says so needs it in its header. An
 * error is one of reading. */
DSC_MUST_USE dsc_status dsc_content_detect(const dsc_io *io, const char *path, const char *field, dsc_content *out,
                                           dsc_error *err);
/* OTHER: DSC_ERR_INPUT with the format and the command that converts the file; else DSC_OK. */
DSC_MUST_USE dsc_status dsc_content_refuse(const dsc_content *content, const char *path, dsc_error *err);
/* Whether bytes begin with the mark of a binary format, which *out names. ids: not with one that ids may be. */
bool dsc_content_has_mark(const void *bytes, int64_t count, bool ids, dsc_content *out);
/* Text that is not UTF-8 from `byte` on: DSC_ERR_INPUT with the commands that convert it. */
DSC_MUST_USE dsc_status dsc_content_refuse_encoding(const char *path, int64_t byte, dsc_error *err);

#endif
