/* jsonl_fuzz.c - any bytes as a *.jsonl: no crash, the same ids from one thread and from two.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/text/tokenize.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

/* A sum of ids with their places. */
typedef struct taken {
    uint64_t count, sum;
} taken;

static dsc_status take(void *user, const dsc_token_batch *batch, dsc_error *err)
{
    taken *t = user;
    for (int64_t i = 0; i < batch->count; i++)
        t->sum += ++t->count * (uint64_t)(batch->ids[i] + 1);
    for (int64_t i = 0; i < batch->end_count; i++)
        DSC_ASSERT(batch->ends[i] <= batch->count);
    return DSC_OK;
}

static dsc_status run(dsc_alloc *alloc, const dsc_tokenizer *tokenizer, const char *path, int32_t threads, taken *out)
{
    dsc_error err = DSC_ERROR_INIT;
    const dsc_tokenize_options options = { .alloc = alloc, .tokenizer = tokenizer, .paths = &path, .path_count = 1,
                                           .field = "text", .begin = -1, .separator = 9, .threads = threads,
                                           .take = take, .user = out };
    const dsc_status status = dsc_tokenize(&options, &err);
    DSC_ASSERT(status == DSC_OK || (status == DSC_ERR_INPUT && err.message[0] != 0));
    return status;
}

/* What every input needs is made once: most of an execution would go into it. */
static struct {
    dsc_tokenizer *tokenizer;
    int fd; /* memory that the input is written to; `path` names it */
    char folder[32], path[64];
} common = { .folder = "/tmp/jsonl_fuzz-XXXXXX" };

static void tidy_up(void)
{
    unlink(common.path);
    rmdir(common.folder);
    close(common.fd);
    dsc_tokenizer_close(&common.tokenizer);
}

static bool open_common(void)
{
    char target[64];
    if (common.tokenizer != NULL)
        return true;
    common.fd = memfd_create("jsonl_fuzz", MFD_CLOEXEC);
    if (common.fd < 0 || mkdtemp(common.folder) == NULL)
        return false;
    snprintf(target, sizeof target, "/proc/self/fd/%d", common.fd);
    snprintf(common.path, sizeof common.path, "%s/x.jsonl", common.folder);
    DSC_ASSERT(dsc_tokenizer_open(&common.tokenizer, "tests/fuzz/corpus/tokenizer/byte_level.json", NULL) == DSC_OK);
    atexit(tidy_up);
    return symlink(target, common.path) == 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    dsc_alloc *alloc = NULL;
    taken one = { 0 }, two = { 0 };
    DSC_ASSERT(open_common());
    DSC_ASSERT(ftruncate(common.fd, 0) == 0);
    DSC_ASSERT(pwrite(common.fd, data, bytes, 0) == (ssize_t)bytes);
    DSC_ASSERT(dsc_alloc_open(&alloc, NULL) == DSC_OK);
    const dsc_status status = run(alloc, common.tokenizer, common.path, 1, &one);
    DSC_ASSERT(run(alloc, common.tokenizer, common.path, 2, &two) == status);
    DSC_ASSERT(one.count == two.count);
    DSC_ASSERT(one.sum == two.sum);
    dsc_alloc_close(&alloc);
    return 0;
}
