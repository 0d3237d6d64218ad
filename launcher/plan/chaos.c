/* chaos.c - see chaos.h. SPDX-License-Identifier: Apache-2.0 */
#include "launcher/plan/chaos.h"

#include <stdlib.h>
#include <string.h>

#define NUMBER_MAX 1000000 /* seconds, milliseconds or seeds */

typedef struct chaos_item {
    const char *name;
    double unit; /* factor from the text to the value */
    int64_t *value;
} chaos_item;

static dsc_status refuse(const char *text, const char *item, dsc_error *err)
{
    return DSC_FAIL(err, DSC_ERR_INPUT, "--chaos",
                    "\"%.60s\": \"%.40s\" is not one of seed=N, kill=S, stop=S, leave=S, "
                    "cut=S, late=MS and disk=MS, with numbers above 0",
                    text, item);
}

/* A positive decimal number up to the next comma. */
static bool read_number(const char *text, double *out, const char **end)
{
    char *after = NULL;
    const size_t length = strcspn(text, ",");
    if (length == 0 || strspn(text, "0123456789.") < length)
        return false;
    *out = strtod(text, &after);
    *end = text + length;
    return after == *end && *out > 0 && *out <= NUMBER_MAX;
}

dsc_status dsc_chaos_parse(const char *text, dsc_chaos_spec *out, dsc_error *err)
{
    *out = (dsc_chaos_spec) { .given = true, .seed = 1 };
    const chaos_item items[] = { { "seed=", 1, &out->seed },
                                 { "kill=", 1000, &out->every_ms[DSC_CHAOS_KILL] },
                                 { "stop=", 1000, &out->every_ms[DSC_CHAOS_STOP] },
                                 { "leave=", 1000, &out->every_ms[DSC_CHAOS_LEAVE] },
                                 { "cut=", 1000, &out->every_ms[DSC_CHAOS_CUT] },
                                 { "late=", 1, &out->late_ms },
                                 { "disk=", 1, &out->disk_ms } };
    for (const char *at = text;;) {
        const char *end = NULL;
        double number = 0;
        size_t i = 0;
        while (i < DSC_COUNT(items) && strncmp(at, items[i].name, strlen(items[i].name)) != 0)
            i++;
        if (i == DSC_COUNT(items) || !read_number(at + strlen(items[i].name), &number, &end))
            return refuse(text, at, err);
        *items[i].value = dsc_max_i64(1, (int64_t)(number * items[i].unit));
        if (*end == 0)
            return DSC_OK;
        at = end + 1;
    }
}
