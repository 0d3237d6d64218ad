/* strategies.h - the names of `train --strategy`: a preset, and the ZeRO stage that it stands for.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TOOLS_STRATEGIES_H
#define DSC_TOOLS_STRATEGIES_H

/* name, preset below configs/, zero_optimization.stage as JSON */
#define DSC_STRATEGY_MAP(X)                              \
    X("ddp", "ds_config_ddp.json", "1")                  \
    X("fsdp_stage2", "ds_config_fsdp_stage2.json", "2")  \
    X("fsdp_stage3", "ds_config_fsdp_stage3.json", "3")

typedef struct dsc_strategy {
    const char *name, *preset, *stage;
} dsc_strategy;

#define DSC_STRATEGY_ROW(name, preset, stage) { name, preset, stage },
static const dsc_strategy dsc_strategies[] = { DSC_STRATEGY_MAP(DSC_STRATEGY_ROW) };
#undef DSC_STRATEGY_ROW
#define DSC_STRATEGY_COUNT (sizeof dsc_strategies / sizeof dsc_strategies[0])

#endif
