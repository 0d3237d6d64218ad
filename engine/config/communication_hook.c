/* communication_hook.c - the section "dsc.communication_hook". SPDX-License-Identifier: Apache-2.0 */
#include "engine/config/internal.h"

dsc_status dsc_config_fill_hook(dsc_config_parse_state *s)
{
    static const int of_powersgd[] = { DSC_ID_HOOK_RANK, DSC_ID_HOOK_START, DSC_ID_HOOK_RATE };
    dsc_hook_section *hook = &s->config->own.hook;
    hook->kind = (dsc_hook_kind)dsc_config_choice_or(s, DSC_ID_HOOK_TYPE, DSC_HOOK_NONE);
    if (hook->kind == DSC_HOOK_FP16 || hook->kind == DSC_HOOK_BF16)
        s->config->communication_dtype = hook->kind == DSC_HOOK_FP16 ? DSC_F16 : DSC_BF16;
    for (size_t i = 0; i < DSC_COUNT(of_powersgd) && hook->kind != DSC_HOOK_POWERSGD; i++) {
        const int id = of_powersgd[i];
        if (dsc_config_has(s, id) && !dsc_value_is_default(&dsc_config_keys[id], s->given[id]))
            DSC_TRY(dsc_config_warn(s, id, "no effect without dsc.communication_hook.type powersgd"));
    }
    return DSC_OK;
}
