/* offload_space.c - check that the files of offloaded states fit the folders of nvme_path.
 *
 * The check reserves no space: each file reserves space at open, before the first step. A plan that does not fit must
 * be refused before memory is allocated, with all numbers in one line. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <sys/stat.h>

#include "engine/internal.h"
#include "engine/memory.h"

#define LEFT_FREE (INT64_C(64) << 20) /* swap leaves so much in every folder: others write there too */
#define FOLDERS_MAX (2 * DSC_NVME_PATHS_MAX)
#define GB 1e9

typedef struct folder_need {
    const char *path;
    dev_t device;
    int64_t bytes; /* sum over all ranks of this host */
} folder_need;

/* A file system counts once, however many of its folders are named. */
static dsc_status add_folder(folder_need *needs, int *count, const char *path, int64_t bytes, dsc_error *err)
{
    struct stat info;
    if (stat(path, &info) != 0 || !S_ISDIR(info.st_mode))
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "is not a folder: nvme_path names a folder on a fast local disk");
    for (int i = 0; i < *count; i++)
        if (needs[i].device == info.st_dev) {
            needs[i].bytes += bytes;
            return DSC_OK;
        }
    DSC_ASSERT(*count < FOLDERS_MAX);
    needs[(*count)++] = (folder_need){ path, info.st_dev, bytes };
    return DSC_OK;
}

static dsc_status add_folders(folder_need *needs, int *count, const dsc_nvme_config *nvme, int64_t bytes,
                              dsc_error *err)
{
    for (int i = 0; bytes > 0 && i < nvme->path_count; i++)
        DSC_TRY(add_folder(needs, count, nvme->path[i], bytes / nvme->path_count, err));
    return DSC_OK;
}

static dsc_status refuse(const dsc_engine *engine, const folder_need *need, int64_t free_bytes, dsc_error *err)
{
    const dsc_plan *plan = &engine->plan;
    const int32_t ranks = engine->place.local_size;
    const double all = (double)ranks;
    return DSC_FAIL(err, DSC_ERR_NOFIT, need->path,
                    "stage %d + nvme needs %.1f GB of memory and %.1f GB of files for %d rank%s on this host, %.1f GB "
                    "of them under this nvme_path, which has %.1f GB free; name a larger one, or a list of folders on "
                    "several disks, use more hosts, or a smaller model", engine->config.zero.stage,
                    all * (double)plan->total_bytes / GB, all * (double)plan->tier_bytes[DSC_TIER_NVME] / GB,
                    (int)ranks, ranks == 1 ? "" : "s", (double)need->bytes / GB, (double)free_bytes / GB);
}

dsc_status dsc_engine_check_files(const dsc_engine *engine, dsc_error *err)
{
    const dsc_plan *plan = &engine->plan;
    const dsc_zero_config *zero = &engine->config.zero;
    const int64_t ranks = engine->place.local_size;
    const int64_t params = plan->bytes[DSC_TAG_PARAM][DSC_TIER_NVME];
    const int64_t states = plan->tier_bytes[DSC_TIER_NVME] - params;
    folder_need needs[FOLDERS_MAX];
    int count = 0;
    DSC_TRY(add_folders(needs, &count, &zero->nvme_optimizer, states * ranks, err));
    DSC_TRY(add_folders(needs, &count, &zero->nvme_param, params * ranks, err));
    for (int i = 0; i < count; i++) {
        int64_t free_bytes;
        DSC_TRY(dsc_io_free_bytes(needs[i].path, &free_bytes, err));
        if (needs[i].bytes > free_bytes - LEFT_FREE)
            return refuse(engine, &needs[i], free_bytes, err);
    }
    return DSC_OK;
}
