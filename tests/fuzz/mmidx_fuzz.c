/* mmidx_fuzz.c - any bytes as Megatron's index: no crash, and what is taken counts what it says.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/data/token_index.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* Every one is found by its first token, unless those before it have none. */
static void look_for_documents(dsc_token_index *index)
{
    int64_t last = 0;
    DSC_ASSERT(index->token_count >= 0 && index->token_bytes >= 1 && index->token_bytes <= 4);
    for (int64_t d = 0; d <= index->documents && d < 20; d++) {
        int64_t start = -1, found = -1;
        DSC_ASSERT(dsc_token_index_start(NULL, index, d, &start, NULL) == DSC_OK);
        DSC_ASSERT(start >= last && start <= index->token_count);
        DSC_ASSERT(dsc_token_index_find(NULL, index, start, &found, NULL) == DSC_OK);
        DSC_ASSERT(found == d || (found < d && start == last));
        last = start;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    dsc_error err = DSC_ERROR_INIT;
    char path[64];
    dsc_token_index index;
    const int fd = memfd_create("mmidx_fuzz", MFD_CLOEXEC);
    if (fd < 0)
        return 0;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (write(fd, data, bytes) == (ssize_t)bytes) {
        const dsc_status status = dsc_token_index_open(NULL, path, &index, &err);
        DSC_ASSERT(status == DSC_OK || status == DSC_ERR_INPUT || status == DSC_ERR_UNSUPPORTED);
        DSC_ASSERT(status == DSC_OK || err.message[0] != 0);
        if (status == DSC_OK)
            look_for_documents(&index);
        dsc_token_index_close(NULL, &index);
    }
    close(fd);
    return 0;
}
