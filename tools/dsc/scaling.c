/* scaling.c - see scaling.h. SPDX-License-Identifier: Apache-2.0 */
#include "tools/dsc/scaling.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/io.h"
#include "tools/dsc/trial.h"

static dsc_status no_memory(dsc_error *err)
{
    return DSC_FAIL(err, DSC_ERR_NOMEM, "the table", "out of host memory: no table");
}

dsc_status scaling_read_ranks(const char *flag, const char *text, int64_t most, const char *example, scaling_ranks *out,
                              dsc_error *err)
{
    int64_t before = 0;
    out->count = 0;
    for (const char *at = text; out->count < SCALING_ROWS_MAX;) {
        char *end;
        const long long ranks = strtoll(at, &end, 10);
        if (end == at || ranks <= before || ranks > most || (*end != ',' && *end != 0))
            break;
        out->value[out->count++] = before = ranks;
        if (*end == 0)
            return DSC_OK;
        at = end + 1;
    }
    return DSC_FAIL(err, DSC_ERR_INPUT, flag,
                    "\"%.60s\" is not a list of ranks; expected at most %d rising numbers up to %lld, such as %s", text,
                    SCALING_ROWS_MAX, (long long)most, example);
}

bool scaling_share_batch(const scaling_batch *batch, bool strong, int64_t ranks, int64_t *micro_batch,
                         int64_t *accumulation, char *why, size_t why_bytes)
{
    *micro_batch = batch->micro_batch;
    *accumulation = batch->accumulation;
    if (!strong || trial_share_batch(batch->batch, ranks, batch->micro_batch, micro_batch, accumulation))
        return true;
    *accumulation = 0;
    snprintf(why, why_bytes, "a batch of %lld has no equal parts for %lld ranks", (long long)batch->batch,
             (long long)ranks);
    return false;
}

dsc_status scaling_add_row(cJSON *rows, const scaling_member *member, size_t count, const char *failed, dsc_error *err)
{
    cJSON *item = cJSON_CreateObject();
    if (item == NULL || !cJSON_AddItemToArray(rows, item))
        return no_memory(err);
    for (size_t i = 0; i < count; i++) {
        const cJSON *made = isfinite(member[i].value) ? cJSON_AddNumberToObject(item, member[i].name, member[i].value)
                                                      : cJSON_AddNullToObject(item, member[i].name);
        if (made == NULL)
            return no_memory(err);
    }
    return failed == NULL || cJSON_AddStringToObject(item, "failed", failed) != NULL ? DSC_OK : no_memory(err);
}

dsc_status scaling_open_table(bool strong, cJSON **root, cJSON **rows, dsc_error *err)
{
    *root = cJSON_CreateObject();
    *rows = *root != NULL && cJSON_AddStringToObject(*root, "scaling", strong ? "strong" : "weak") != NULL
                ? cJSON_AddArrayToObject(*root, "rows")
                : NULL;
    if (*rows != NULL)
        return DSC_OK;
    cJSON_Delete(*root);
    *root = NULL;
    return no_memory(err);
}

dsc_status scaling_write_table(const cJSON *root, bool print, const char *path, dsc_error *err)
{
    char *text = cJSON_Print(root);
    if (text == NULL)
        return no_memory(err);
    if (print)
        printf("%s\n", text);
    const dsc_status status =
        path != NULL ? dsc_io_write_all_atomic(NULL, path, text, (int64_t)strlen(text), err) : DSC_OK;
    cJSON_free(text);
    return status;
}
