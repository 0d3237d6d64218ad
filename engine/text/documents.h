/* documents.h - documents of a file: one text, the objects of JSON, or the rows of a table.
 *
 * A file of many documents is cut between documents, and each part is read on its own by any thread.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_TEXT_DOCUMENTS_H
#define DSC_ENGINE_TEXT_DOCUMENTS_H

#include "engine/text/content.h"
#include "engine/text/table.h"

/* The member of an object with its text, where none is named. */
#define DSC_DOCUMENTS_FIELD "text"
/* A document that is not cut. */
#define DSC_DOCUMENT_BYTES_MAX (INT64_C(1) << 30)

/* The form of one file. */
typedef struct dsc_documents {
    dsc_content content;
    const char *field;  /* member or column with the text; borrowed */
    bool named;         /* by the user */
    int64_t start;      /* bytes before the first document */
    int64_t first_line; /* line of that byte, from 1 */
    int32_t column, cells; /* TABLE */
} dsc_documents;

/* `field` NULL: DSC_DOCUMENTS_FIELD in JSON, and a table is refused, since any of its columns may be meant.
 * DSC_ERR_INPUT: a binary format, or a table without the column. */
DSC_MUST_USE dsc_status dsc_documents_open(const dsc_io *io, dsc_alloc *alloc, const char *path, const char *field,
                                           dsc_documents *out, dsc_error *err);

/* Position where a growing text may be cut. Zeroed: nothing is read. */
typedef struct dsc_document_cut {
    dsc_table_scan table;
    int64_t depth;
    bool in_string, escaped;
    int64_t scanned, end; /* bytes looked at; of the last whole document */
} dsc_document_cut;
/* Bytes of the whole documents at the beginning of `text`, 0: none is whole. The text is that of the call before and
 * more. Not for TEXT. */
int64_t dsc_documents_find_cut(const dsc_documents *documents, dsc_document_cut *cut, const char *text, int64_t bytes);
/* The first `bytes` of the text are gone. */
void dsc_documents_drop(dsc_document_cut *cut, int64_t bytes);

typedef struct dsc_document_part {
    const char *text;
    int64_t bytes;
    const char *path;
    int64_t first_line;
    bool first, last; /* of its file */
} dsc_document_part;
/* Calls `take` for each document of a part of JSON or of a table. DSC_ERR_INPUT with "FILE, line N": something
 * that is not a document. */
DSC_MUST_USE dsc_status dsc_documents_each(const dsc_documents *documents, dsc_alloc *alloc,
                                           const dsc_document_part *part,
                                           dsc_status (*take)(void *user, const char *text, int64_t bytes,
                                                              dsc_error *err),
                                           void *user, dsc_error *err);

#endif
