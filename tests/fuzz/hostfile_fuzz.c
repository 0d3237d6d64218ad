/* hostfile_fuzz.c - any bytes as a hostfile, as a -H list and as a filter: no crash, and what is accepted is sound.
 *
 * The first byte chooses the parser, so that one corpus serves the three. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/hosts/hostfile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Every accepted name passes its own check again and is found; every host has slots. */
static void check_pool(const dsc_host_pool *pool)
{
    DSC_ASSERT(pool->count > 0);
    for (int64_t i = 0; i < pool->count; i++) {
        const dsc_host *host = &pool->host[i];
        char again[DSC_HOST_NAME_BYTES];
        const char *why = NULL;
        size_t at = 0;
        DSC_ASSERT(host->slot_count > 0);
        DSC_ASSERT(host->name[0] != '-');
        DSC_ASSERT(strpbrk(host->name, " \t\r\n;&|`$()<>'\"\\/") == NULL);
        DSC_ASSERT(dsc_host_name_scan(host->name, strlen(host->name), again, &why, &at));
        DSC_ASSERT(strcmp(again, host->name) == 0);
        DSC_ASSERT(dsc_host_pool_find(pool, host->name) == i);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_alloc *alloc = NULL;
    dsc_host_pool pool = DSC_HOST_POOL_INIT;
    if (bytes == 0 || dsc_alloc_open(&alloc, &err) != DSC_OK)
        return 0;
    /* Exactly sized, so that a sanitizer sees a byte read too far. */
    char *text = malloc(bytes);
    memcpy(text, data + 1, bytes - 1);
    text[bytes - 1] = 0;
    dsc_status status = DSC_OK;
    if (data[0] == 'L') {
        status = dsc_hostlist_parse(alloc, "-H", text, &pool, &err);
    } else if (data[0] == 'I' || data[0] == 'E') {
        status = dsc_hostlist_parse(alloc, "-H", "worker-0:4,me@b:2,[::1]:3,10.0.0.1:1024", &pool, &err);
        DSC_ASSERT(status == DSC_OK);
        status = dsc_host_pool_filter(&pool, "--include", text, data[0] == 'E', &err);
    } else {
        char *exact = realloc(text, bytes - 1 > 0 ? bytes - 1 : 1);
        text = exact != NULL ? exact : text;
        status = dsc_hostfile_parse(alloc, "hosts", text, (int64_t)bytes - 1, &pool, &err);
    }
    DSC_ASSERT(status == DSC_OK || (status == DSC_ERR_INPUT && err.message[0] != 0));
    if (status == DSC_OK)
        check_pool(&pool);
    dsc_host_pool_close(&pool);
    dsc_alloc_close(&alloc);
    free(text);
    return 0;
}
