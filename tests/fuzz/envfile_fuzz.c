/* envfile_fuzz.c - any bytes as a file of variables: no crash, and what is accepted is NAME=VALUE in one line.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/hosts/envfile.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static dsc_status check_entry(void *user, const char *entry, size_t name_bytes, const char *where, dsc_error *err)
{
    DSC_ASSERT(name_bytes > 0 && dsc_env_name_bytes(entry) == name_bytes && entry[name_bytes] == '=');
    const char *value = entry + name_bytes + 1;
    DSC_ASSERT(value[0] != ' ' && (value[0] == 0 || value[strlen(value) - 1] != ' '));
    for (; *value != 0; value++)
        DSC_ASSERT((unsigned char)*value >= 0x20 || *value == '\t');
    DSC_ASSERT(strncmp(where, "env:", 4) == 0);
    return DSC_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_alloc *alloc = NULL;
    if (dsc_alloc_open(&alloc, &err) != DSC_OK)
        return 0;
    char *exact = malloc(bytes > 0 ? bytes : 1); /* a sanitizer sees a byte read too far */
    if (bytes > 0)
        memcpy(exact, data, bytes);
    const dsc_status status = dsc_envfile_parse(alloc, "env", exact, (int64_t)bytes, check_entry, NULL, &err);
    DSC_ASSERT(status == DSC_OK || (status == DSC_ERR_INPUT && err.message[0] != 0));
    free(exact);
    dsc_alloc_close(&alloc);
    return 0;
}
