/* config_json.c - a resolved config as members of a JSON object, and the names of its choices.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "tools/dsc/config_tool.h"

const char *dsc_config_tool_offload(dsc_offload offload)
{
    static const char *const names[] = { "none", "cpu", "nvme" };
    return names[offload];
}

const char *dsc_config_tool_precision(const dsc_config *config)
{
    return dsc_dtype_text(dsc_config_compute_dtype(config));
}

static void print_count(const char *name, int64_t value, bool left_to_run)
{
    printf(",\"%s\":", name);
    if (value == DSC_AUTO_I64 || left_to_run)
        printf("\"auto\"");
    else
        printf("%lld", (long long)value);
}

static void print_lines(const char *name, const char (*lines)[DSC_CONFIG_LINE], int count)
{
    printf(",\"%s\":[", name);
    for (int i = 0; i < count; i++) {
        if (i > 0)
            putchar(',');
        dsc_tool_json_text(lines[i]);
    }
    putchar(']');
}

static void print_name(const char *name, const char *text)
{
    printf(",\"%s\":", name);
    if (*text == 0)
        printf("null");
    else
        dsc_tool_json_text(text);
}

void dsc_config_tool_json(const dsc_config *config)
{
    char number[32];
    const bool batch_auto = (config->auto_mask & DSC_CONFIG_AUTO_BATCH) != 0;
    printf("\"zero_stage\":%d,\"offload_optimizer\":\"%s\",\"offload_param\":\"%s\",\"precision\":\"%s\"",
           config->zero.stage, dsc_config_tool_offload(config->zero.optimizer_named),
           dsc_config_tool_offload(config->zero.param_named),
           config->auto_mask & DSC_CONFIG_AUTO_PRECISION ? "auto" : dsc_config_tool_precision(config));
    print_count("train_batch_size", config->train_batch_size, batch_auto);
    print_count("train_micro_batch_size_per_gpu", config->train_micro_batch_size_per_gpu, batch_auto);
    print_count("gradient_accumulation_steps", config->gradient_accumulation_steps,
                batch_auto && config->unresolved.gradient_accumulation_steps == DSC_AUTO_I64);
    print_name("optimizer", config->optimizer.type);
    print_name("scheduler", config->schedule.type);
    printf(",\"gradient_clipping\":%s", config->auto_mask & DSC_CONFIG_AUTO_CLIPPING
                                            ? "\"auto\""
                                            : dsc_tool_double(config->gradient_clipping, number));
    print_lines("warnings", config->warnings, config->warning_count);
    print_lines("notes", config->notes, config->note_count);
}
