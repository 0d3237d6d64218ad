/* safetensors_fuzz.c - any bytes as a *.safetensors file: no crash, and what opens keeps the reader's promises.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/formats/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check_tensors(const dsc_safetensors *st, int64_t file_bytes)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < dsc_safetensors_count(st); i++) {
        const dsc_safetensors_entry *entry = dsc_safetensors_at(st, i);
        dsc_error err = DSC_ERROR_INIT;
        float x[16];
        DSC_ASSERT(entry->offset >= 8);
        DSC_ASSERT(entry->bytes >= 0);
        DSC_ASSERT(entry->offset + entry->bytes <= file_bytes);
        DSC_ASSERT(dsc_safetensors_find(st, entry->name) == entry);
        sum += entry->bytes;
        const int64_t n = dsc_min_i64(entry->count, 16);
        const dsc_status status = dsc_safetensors_read_f32(st, entry, entry->count - n, n, x, &err);
        DSC_ASSERT(status == DSC_OK || status == DSC_ERR_UNSUPPORTED);
    }
    DSC_ASSERT(sum <= file_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_alloc *alloc = NULL;
    const int fd = memfd_create("safetensors_fuzz", MFD_CLOEXEC);
    if (fd < 0 || dsc_alloc_open(&alloc, &err) != DSC_OK)
        return 0;
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    dsc_safetensors *st = NULL;
    if (write(fd, data, bytes) == (ssize_t)bytes) {
        const dsc_status status = dsc_safetensors_open(&st, NULL, alloc, path, &err);
        DSC_ASSERT(status == DSC_OK || (status == DSC_ERR_INPUT && err.message[0] != 0));
        if (status == DSC_OK)
            check_tensors(st, (int64_t)bytes);
    }
    dsc_safetensors_close(&st);
    dsc_alloc_close(&alloc);
    close(fd);
    return 0;
}
