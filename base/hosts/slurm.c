/* slurm.c - see slurm.h. SPDX-License-Identifier: Apache-2.0 */
#include "base/hosts/slurm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct reader {
    const char *where, *list;
    dsc_slurm_host_fn fn;
    void *user;
} reader;

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

static dsc_status fail_list(const reader *r, dsc_error *err)
{
    return DSC_FAIL(err, DSC_ERR_INPUT, r->where, "\"%.100s\": expected names such as gpu[03-07,9],login; "
                    "name the hosts with --hostfile", r->list);
}

static dsc_status give(const reader *r, const char *text, dsc_error *err)
{
    char name[DSC_HOST_NAME_BYTES];
    const char *why = NULL;
    size_t at = 0;
    if (!dsc_host_name_scan(text, strlen(text), name, &why, &at))
        return DSC_FAIL(err, DSC_ERR_INPUT, r->where, "\"%.60s\" is not a host: %s", text, why);
    return r->fn(r->user, name, err);
}

/* "[03-07,9]" behind a prefix. */
static dsc_status give_numbered(const reader *r, const char *prefix, size_t prefix_bytes, const char **at,
                                dsc_error *err)
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
            return fail_list(r, err);
        for (long n = first; n <= last; n++) {
            char name[DSC_HOST_NAME_BYTES];
            const int bytes = snprintf(name, sizeof name, "%.*s%0*ld", (int)prefix_bytes, prefix, (int)digits, n);
            if ((size_t)bytes >= sizeof name)
                return fail_list(r, err);
            DSC_TRY(give(r, name, err));
        }
    } while (**at == ',');
    if (**at != ']')
        return fail_list(r, err);
    (*at)++;
    return DSC_OK;
}

dsc_status dsc_slurm_hosts(const char *where, const char *list, dsc_slurm_host_fn fn, void *user, dsc_error *err)
{
    const reader r = { where, list, fn, user };
    for (const char *at = list;; at++) {
        const char *prefix = at;
        const size_t bytes = strcspn(at, "[,");
        at += bytes;
        if (bytes >= DSC_HOST_NAME_BYTES)
            return fail_list(&r, err);
        if (*at == '[') {
            DSC_TRY(give_numbered(&r, prefix, bytes, &at, err));
        } else {
            char name[DSC_HOST_NAME_BYTES];
            snprintf(name, sizeof name, "%.*s", (int)bytes, prefix);
            DSC_TRY(give(&r, name, err));
        }
        if (*at == 0)
            return DSC_OK;
        if (*at != ',') /* a second list in one name: some systems number in two dimensions */
            return fail_list(&r, err);
    }
}

int32_t dsc_slurm_tasks(const char *list, int32_t node)
{
    for (const char *at = list; node >= 0; at++) {
        size_t digits = 0;
        const long tasks = read_number(&at, &digits);
        long nodes = 1;
        if (tasks <= 0)
            return -1;
        if (strncmp(at, "(x", 2) == 0) {
            at += 2;
            nodes = read_number(&at, &digits);
            if (nodes <= 0 || *at++ != ')')
                return -1;
        }
        if (node < nodes)
            return (int32_t)tasks;
        if (*at != ',')
            return -1;
        node -= (int32_t)nodes;
    }
    return -1;
}

/* Below 32768, where Linux begins to give ports to whoever asks for any. */
int32_t dsc_slurm_port(const char *job_id)
{
    const char *at = job_id;
    size_t digits = 0;
    const long id = read_number(&at, &digits);
    return 29500 + (id > 0 && *at == 0 ? (int32_t)(id % 3000) : 0);
}
