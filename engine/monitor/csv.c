/* csv.c - a CSV file for each tag, as DeepSpeed's csv_monitor names and heads them: "Train/Samples/lr" is the column lr
 * of Train_Samples_lr.csv. A run that resumes appends. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "engine/monitor/monitor.h"

typedef struct column {
    const char *tag;
    dsc_file file;
    int64_t bytes;
} column;

typedef struct csv {
    dsc_monitor monitor;
    column columns[DSC_MONITOR_SCALARS_MAX];
    int count;
} csv;

static dsc_status append(csv *c, column *to, const char *text, dsc_error *err)
{
    const int64_t bytes = (int64_t)strlen(text);
    DSC_TRY(dsc_io_write(c->monitor.io, &to->file, text, bytes, to->bytes, err));
    to->bytes += bytes;
    return DSC_OK;
}

static dsc_status open_column(csv *c, const char *tag, column *out, dsc_error *err)
{
    char name[DSC_MONITOR_TAG_BYTES + 8], path[4096], head[DSC_MONITOR_TAG_BYTES + 8];
    const char *last = strrchr(tag, '/');
    *out = (column){ .tag = tag, .file = DSC_FILE_INIT };
    snprintf(name, sizeof name, "%s.csv", tag);
    for (char *slash = name; (slash = strchr(slash, '/')) != NULL;)
        *slash = '_';
    DSC_TRY(dsc_path_join(path, sizeof path, c->monitor.folder, name, err));
    const bool there = dsc_io_kind(path) != DSC_PATH_MISSING;
    DSC_TRY(dsc_io_open(c->monitor.io, path, there ? DSC_IO_READ_WRITE : DSC_IO_CREATE, &out->file, err));
    c->count++; /* from here on close closes it */
    DSC_TRY(dsc_io_size(c->monitor.io, &out->file, &out->bytes, err));
    snprintf(head, sizeof head, "step,%s\n", last != NULL ? last + 1 : tag);
    return out->bytes == 0 ? append(c, out, head, err) : DSC_OK;
}

static dsc_status find_column(csv *c, const char *tag, column **out, dsc_error *err)
{
    for (int i = 0; i < c->count; i++)
        if (strcmp(c->columns[i].tag, tag) == 0) {
            *out = &c->columns[i];
            return DSC_OK;
        }
    if (c->count == DSC_MONITOR_SCALARS_MAX)
        return DSC_FAIL(err, DSC_ERR_STATE, c->monitor.folder, "more than %d tags", DSC_MONITOR_SCALARS_MAX);
    *out = &c->columns[c->count];
    return open_column(c, tag, *out, err);
}

static dsc_status write_csv(dsc_monitor *monitor, int64_t samples, const dsc_scalar *scalars, int count, dsc_error *err)
{
    csv *c = (csv *)monitor;
    for (int i = 0; i < count; i++) {
        char row[64];
        column *to = NULL;
        DSC_TRY(find_column(c, scalars[i].tag, &to, err));
        snprintf(row, sizeof row, "%lld,%.17g\n", (long long)samples, scalars[i].value);
        DSC_TRY(append(c, to, row, err));
    }
    return DSC_OK;
}

static void close_csv(dsc_monitor *monitor)
{
    csv *c = (csv *)monitor;
    for (int i = 0; i < c->count; i++)
        (void)dsc_io_close(monitor->io, &c->columns[i].file, NULL);
    dsc_alloc_free(monitor->alloc, monitor);
}

dsc_status dsc_monitor_csv(dsc_alloc *alloc, dsc_monitor **out, dsc_error *err)
{
    static const dsc_monitor_ops ops = { .name = "csv_monitor", .write = write_csv, .close = close_csv };
    csv *c = NULL;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, 1, sizeof *c, &c, err));
    c->monitor.ops = &ops;
    *out = &c->monitor;
    return DSC_OK;
}
