/* scaling.h - the common part of `dsc scale` and `dsc simulate`: the list of ranks, each row's part of the batch, and
 * the table as JSON. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TOOLS_SCALING_H
#define DSC_TOOLS_SCALING_H

#include "base/flags.h"
#include "base/formats/json.h"

enum { SCALING_ROWS_MAX = 16 };

/* Numbers of ranks, rising. */
typedef struct scaling_ranks {
    int64_t value[SCALING_ROWS_MAX];
    int count;
} scaling_ranks;

/* "1,2,4" with numbers up to `most`. `example` is for the message. */
DSC_MUST_USE dsc_status scaling_read_ranks(const char *flag, const char *text, int64_t most, const char *example,
                                           scaling_ranks *out, dsc_error *err);

/* The config's numbers on the first number of ranks. */
typedef struct scaling_batch {
    int64_t micro_batch, accumulation, batch;
} scaling_batch;

/* Weak: each rank keeps its part. Strong: `ranks` share the batch; false: the shares are not equal, and `why` says
 * so. */
bool scaling_share_batch(const scaling_batch *batch, bool strong, int64_t ranks, int64_t *micro_batch,
                         int64_t *accumulation, char *why, size_t why_bytes);

typedef struct scaling_member {
    const char *name;
    double value; /* not finite: null */
} scaling_member;

/* One more object in `rows`; `failed` is NULL or the reason why there is no time. */
DSC_MUST_USE dsc_status scaling_add_row(cJSON *rows, const scaling_member *member, size_t count, const char *failed,
                                        dsc_error *err);

/* {"scaling": "weak", ..., "rows": []}: the caller adds to both and deletes *root. */
DSC_MUST_USE dsc_status scaling_open_table(bool strong, cJSON **root, cJSON **rows, dsc_error *err);

/* Prints the table as JSON if `print`, and writes it to `path` unless that is NULL. */
DSC_MUST_USE dsc_status scaling_write_table(const cJSON *root, bool print, const char *path, dsc_error *err);

#endif
