/* mmidx_fuzz.c - any bytes as Megatron's index: no crash, and what is taken counts what it says.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/token_index.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    dsc_error err = DSC_ERROR_INIT;
    char path[64];
    int64_t token_bytes = 0, token_count = 0;
    const int fd = memfd_create("mmidx_fuzz", MFD_CLOEXEC);
    if (fd < 0)
        return 0;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (write(fd, data, bytes) == (ssize_t)bytes) {
        const dsc_status status = dsc_token_index_read(NULL, path, &token_bytes, &token_count, &err);
        DSC_ASSERT(status == DSC_OK || status == DSC_ERR_INPUT || status == DSC_ERR_UNSUPPORTED);
        DSC_ASSERT(status == DSC_OK || err.message[0] != 0);
        DSC_ASSERT(status != DSC_OK || (token_count >= 0 && token_bytes >= 1 && token_bytes <= 4));
    }
    close(fd);
    return 0;
}
