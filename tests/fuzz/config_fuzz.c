/* config_fuzz.c - any bytes as a ds_config.json: no crash, no leak, and what is accepted is sound.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "engine/schedule/schedule.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check_lines(const char (*lines)[DSC_CONFIG_LINE], int count)
{
    for (int i = 0; i < count; i++) {
        DSC_ASSERT(memchr(lines[i], 0, DSC_CONFIG_LINE) != NULL);
        for (const unsigned char *c = (const unsigned char *)lines[i]; *c != 0; c++)
            DSC_ASSERT(*c >= 0x20 && *c != 0x7f);
    }
}

/* Properties that the engine relies on. */
static void check(const dsc_config *config)
{
    DSC_ASSERT(config->train_batch_size > 0 && config->train_micro_batch_size_per_gpu > 0);
    DSC_ASSERT(config->train_batch_size ==
               config->train_micro_batch_size_per_gpu * config->gradient_accumulation_steps * 2);
    DSC_ASSERT(config->zero.stage >= 0 && config->zero.stage <= 3);
    DSC_ASSERT(config->zero.reduce_bucket_size >= 0); /* 0: the smallest possible number */
    DSC_ASSERT(config->zero.sub_group_size > 0);
    DSC_ASSERT(config->gradient_clipping >= 0 && config->optimizer.lr >= 0 && config->optimizer.eps >= 0);
    DSC_ASSERT(config->optimizer.beta1 >= 0 && config->optimizer.beta1 < 1);
    DSC_ASSERT(config->own.data.count >= 0 && config->own.data.count <= DSC_DATA_PATHS_MAX);
    DSC_ASSERT(config->own.vocab_multiple > 0 && config->own.steps >= 0 && config->own.comm_timeout_s > 0);
    for (int64_t step = 1; step < 50; step += 7)
        DSC_ASSERT(!isnan(dsc_schedule_lr(config, step)) && !isnan(dsc_schedule_beta1(config, step)));
    check_lines(config->warnings, config->warning_count);
    check_lines(config->notes, config->note_count);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static dsc_config config;
    const dsc_config_facts facts = { 2, 64, 100, "cpu" };
    dsc_error err = DSC_ERROR_INIT;
    dsc_alloc *alloc = NULL;
    if (dsc_alloc_open(&alloc, &err) != DSC_OK)
        return 0;
    dsc_status status =
        dsc_config_parse(alloc, "fuzz.json", (const char *)data, (int64_t)bytes, NULL, 0, false, &config, &err);
    if (status == DSC_OK)
        status = dsc_config_resolve(&config, &facts, &err);
    if (status == DSC_OK)
        check(&config);
    else
        DSC_ASSERT(err.message[0] != 0 && dsc_status_exit_code(status) >= 2);
    dsc_alloc_close(&alloc);
    return 0;
}
