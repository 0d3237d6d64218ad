/* records.h - a file of objects, one after the other: a list of JSON objects, one on each line, or the rows of a table.
 *
 * The content decides the form; only *.csv and *.tsv are tables by their names. Memory does not grow with the file: one
 * object is read at a time, and an object has a limit. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_DATA_SFT_RECORDS_H
#define DSC_ENGINE_DATA_SFT_RECORDS_H

#include "base/formats/json.h"
#include "base/io.h"

#define DSC_RECORD_BYTES_MAX (INT64_C(64) << 20)

typedef struct dsc_records dsc_records;
DSC_MUST_USE dsc_status dsc_records_open(const dsc_io *io, dsc_alloc *alloc, const char *path, dsc_records **out,
                                         dsc_error *err);
void dsc_records_close(dsc_records **records); /* safe on NULL */
/* *row <- the next object, borrowed until the next call; NULL behind the last one. DSC_ERR_INPUT with "FILE, line N":
 * no object, invalid JSON, an object above the limit, text behind the list. */
DSC_MUST_USE dsc_status dsc_records_next(dsc_records *records, const cJSON **row, dsc_error *err);
/* The same object as text, not yet parsed; NULL behind the last one. For dsc_records_parse by another thread. */
DSC_MUST_USE dsc_status dsc_records_next_text(dsc_records *records, const char **text, int64_t *bytes, dsc_error *err);
/* *out <- the object of a text. DSC_ERR_INPUT with `where`: invalid JSON, or another value. */
DSC_MUST_USE dsc_status dsc_records_parse(dsc_alloc *alloc, const char *where, const char *text, int64_t bytes,
                                          dsc_json **out, dsc_error *err);
/* "FILE, line N". */
void dsc_records_name(const char *path, int64_t line, char *out, size_t out_bytes);
const char *dsc_records_where(const dsc_records *records); /* "FILE, line N" of the object; borrowed */
int64_t dsc_records_line(const dsc_records *records);
/* Bytes read so far, and of the whole file. */
int64_t dsc_records_read_bytes(const dsc_records *records);
int64_t dsc_records_file_bytes(const dsc_records *records);

#endif
