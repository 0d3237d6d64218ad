/* error.c - statuses, their texts and exit codes, and how an error object is filled.
 * SPDX-License-Identifier: Apache-2.0 */
#include <dsc/error.h>

#include <stdio.h>
#include <string.h>

#include "base/base.h"

const char *dsc_status_text(dsc_status status)
{
    switch (status) {
#define DSC_STATUS_CASE(name, number, exit_code, text) \
    case DSC_##name: return text;
        DSC_STATUS_MAP(DSC_STATUS_CASE)
#undef DSC_STATUS_CASE
    }
    return "unknown status";
}

int dsc_status_exit_code(dsc_status status)
{
    switch (status) {
#define DSC_STATUS_CASE(name, number, exit_code, text) \
    case DSC_##name: return exit_code;
        DSC_STATUS_MAP(DSC_STATUS_CASE)
#undef DSC_STATUS_CASE
    }
    return 1;
}

dsc_status dsc_error_set(dsc_error *err, const char *file, int line, dsc_status status, const char *where,
                         const char *fmt, ...)
{
    if (err == NULL)
        return status;
    /* Built in locals first: an argument may point into *err, as when a message is wrapped into a longer one. */
    char message[sizeof err->message];
    char place[sizeof err->where];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    /* The end of a long path matters: the file's name, the line and the column. */
    const size_t where_bytes = where != NULL ? strlen(where) : 0;
    if (where_bytes >= sizeof place)
        snprintf(place, sizeof place, "...%s", where + where_bytes - (sizeof place - 4));
    else
        snprintf(place, sizeof place, "%s", where != NULL ? where : "");
    dsc_text_printable(message);
    dsc_text_printable(place);
    err->status = status;
    err->rank = -1;
    memcpy(err->where, place, sizeof place);
    memcpy(err->message, message, sizeof message);
    err->file = file;
    err->line = line;
    return status;
}

const char *dsc_error_format(const dsc_error *err, char *text, size_t text_bytes)
{
    if (err->where[0] != 0 && err->message[0] != 0)
        snprintf(text, text_bytes, "%s: %s", err->where, err->message);
    else if (err->where[0] != 0 || err->message[0] != 0)
        snprintf(text, text_bytes, "%s%s", err->where, err->message);
    else
        snprintf(text, text_bytes, "%s", dsc_status_text(err->status));
    return text;
}
