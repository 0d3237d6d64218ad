/* jsonl_fuzz.c - any bytes as JSON, as a table or as text, also compressed: no crash, the same ids from one thread and
 * from two. SPDX-License-Identifier: Apache-2.0 */
#include "engine/text/tokenize.h"
#include "tests/fuzz/fuzz_folder.h"

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

static dsc_tokenizer *tokenizer;
static fuzz_folder folder;

static dsc_status run(dsc_alloc *alloc, int32_t threads, taken *out)
{
    dsc_error err = DSC_ERROR_INIT;
    const char *path = folder.input;
    const dsc_tokenize_options options = { .alloc = alloc, .tokenizer = tokenizer, .paths = &path, .path_count = 1,
                                           .field = "text", .begin = -1, .separator = 9, .threads = threads,
                                           .take = take, .user = out };
    const dsc_status status = dsc_tokenize(&options, &err);
    const bool refused =
        status == DSC_ERR_INPUT || status == DSC_ERR_UNSUPPORTED; /* UNSUPPORTED: zstd is not installed */
    DSC_ASSERT(status == DSC_OK || (refused && err.message[0] != 0));
    return status;
}

static void tidy_up(void)
{
    fuzz_folder_close(&folder);
    dsc_tokenizer_close(&tokenizer);
}

static void open_common(void)
{
    if (tokenizer != NULL)
        return;
    fuzz_folder_open(&folder, "x");
    DSC_ASSERT(dsc_tokenizer_open(&tokenizer, "tests/fuzz/corpus/tokenizer/byte_level.json", NULL) == DSC_OK);
    atexit(tidy_up);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    dsc_alloc *alloc = NULL;
    taken one = { 0 }, two = { 0 };
    open_common();
    fuzz_folder_set(&folder, data, bytes);
    DSC_ASSERT(dsc_alloc_open(&alloc, NULL) == DSC_OK);
    const dsc_status status = run(alloc, 1, &one);
    DSC_ASSERT(run(alloc, 2, &two) == status);
    DSC_ASSERT(one.count == two.count);
    DSC_ASSERT(one.sum == two.sum);
    dsc_alloc_close(&alloc);
    return 0;
}
