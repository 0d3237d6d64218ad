/* image_list_fuzz.c - any bytes as a tar shard and as a CSV list of pictures: no crash, and members that lie in the
 * file. SPDX-License-Identifier: Apache-2.0 */
#include "engine/data/images/list.h"
#include "tests/fuzz/fuzz_folder.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static fuzz_folder shard, csv;

static void close_folders(void)
{
    fuzz_folder_close(&shard);
    fuzz_folder_close(&csv);
}

static void run(const fuzz_folder *folder, const uint8_t *data, size_t bytes)
{
    dsc_alloc *alloc = NULL;
    dsc_error err = DSC_ERROR_INIT;
    DSC_ASSERT(dsc_alloc_open(&alloc, NULL) == DSC_OK);
    dsc_image_list list = { .alloc = alloc };
    fuzz_folder_set(folder, data, bytes);
    dsc_status status = dsc_image_list_add(&list, folder->input, &err);
    DSC_ASSERT(status != DSC_OK || list.count > 0);
    for (int64_t i = 0; i < list.count; i++) {
        const dsc_image_item *item = &list.item[i];
        DSC_ASSERT(item->offset == -1 || (item->bytes >= 0 && item->offset + item->bytes <= (int64_t)bytes));
    }
    if (status == DSC_OK)
        status = dsc_image_list_number(&list, NULL, 10, &err);
    for (int64_t i = 0; i < list.count && status == DSC_OK; i++)
        DSC_ASSERT(list.item[i].label >= 0 && list.item[i].label < 10);
    DSC_ASSERT(status == DSC_OK || (status == DSC_ERR_INPUT && err.message[0] != 0));
    dsc_image_list_free(&list);
    dsc_alloc_close(&alloc);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (shard.input[0] == 0) {
        fuzz_folder_open(&shard, "x.tar");
        fuzz_folder_open(&csv, "x.csv");
        atexit(close_folders);
    }
    run(&shard, data, bytes);
    run(&csv, data, bytes);
    return 0;
}
