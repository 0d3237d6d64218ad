/* slurm.c - the hosts of a Slurm allocation, from its variables. SPDX-License-Identifier: Apache-2.0 */
#include "launcher/slurm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char list_name[] = "SLURM_JOB_NODELIST";

static dsc_status add_host(dsc_host_pool *pool, const char *text, int32_t slots, dsc_error *err)
{
    dsc_host host;
    const char *why = NULL;
    size_t at = 0;
    if (!dsc_host_name_scan(text, strlen(text), host.name, &why, &at))
        return DSC_FAIL(err, DSC_ERR_INPUT, list_name, "\"%.60s\" is not a host: %s", text, why);
    if (dsc_host_pool_find(pool, host.name) >= 0 || pool->count == DSC_HOST_COUNT_MAX)
        return DSC_FAIL(err, DSC_ERR_INPUT, list_name, "names \"%.60s\" twice, or more than %d hosts", text,
                        DSC_HOST_COUNT_MAX);
    dsc_host_set_slots(&host, slots);
    return dsc_host_pool_add(pool, &host, err);
}

/* Digits at *at, at most nine; -1: none. */
static long read_number(const char **at, size_t *digits)
{
    *digits = strspn(*at, "0123456789");
    if (*digits == 0 || *digits > 9)
        return -1;
    const long number = strtol(*at, NULL, 10);
    *at += *digits;
    return number;
}

static dsc_status fail_list(const char *list, dsc_error *err)
{
    return DSC_FAIL(err, DSC_ERR_INPUT, list_name, "\"%.100s\": expected names such as gpu[03-07,9],login; "
                    "name the hosts with --hostfile", list);
}

/* "[03-07,9]" behind a prefix. */
static dsc_status add_numbered(dsc_host_pool *pool, const char *list, const char *prefix, size_t prefix_bytes,
                               const char **at, int32_t slots, dsc_error *err)
{
    do {
        size_t digits = 0, last_digits = 0;
        (*at)++;
        const long first = read_number(at, &digits);
        long last = first;
        if (first >= 0 && **at == '-') {
            (*at)++;
            last = read_number(at, &last_digits);
        }
        if (first < 0 || last < first || last - first >= DSC_HOST_COUNT_MAX)
            return fail_list(list, err);
        for (long n = first; n <= last; n++) {
            char name[DSC_HOST_NAME_BYTES];
            const int bytes = snprintf(name, sizeof name, "%.*s%0*ld", (int)prefix_bytes, prefix, (int)digits, n);
            if ((size_t)bytes >= sizeof name)
                return fail_list(list, err);
            DSC_TRY(add_host(pool, name, slots, err));
        }
    } while (**at == ',');
    if (**at != ']')
        return fail_list(list, err);
    (*at)++;
    return DSC_OK;
}

static dsc_status add_list(dsc_host_pool *pool, const char *list, int32_t slots, dsc_error *err)
{
    for (const char *at = list;; at++) {
        const char *prefix = at;
        const size_t bytes = strcspn(at, "[,");
        at += bytes;
        if (bytes >= DSC_HOST_NAME_BYTES)
            return fail_list(list, err);
        if (*at == '[') {
            DSC_TRY(add_numbered(pool, list, prefix, bytes, &at, slots, err));
        } else {
            char name[DSC_HOST_NAME_BYTES];
            snprintf(name, sizeof name, "%.*s", (int)bytes, prefix);
            DSC_TRY(add_host(pool, name, slots, err));
        }
        if (*at == 0)
            return DSC_OK;
        if (*at != ',') /* a second list in one name: some systems number in two dimensions */
            return fail_list(list, err);
    }
}

dsc_status dsc_slurm_pool(dsc_alloc *alloc, dsc_host_pool *out, dsc_error *err)
{
    const char *list = getenv(list_name), *tasks = getenv("SLURM_TASKS_PER_NODE");
    const long each = tasks != NULL ? strtol(tasks, NULL, 10) : 1; /* "4(x2),3": the first host's */
    out->alloc = alloc;
    return add_list(out, list, (int32_t)(each > 0 && each <= DSC_HOST_SLOTS_MAX ? each : 1), err);
}

bool dsc_slurm_is_inside(void)
{
    const char *list = getenv(list_name);
    return list != NULL && list[0] != 0;
}
