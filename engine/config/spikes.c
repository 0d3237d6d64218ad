/* spikes.c - the section "dsc.spikes". SPDX-License-Identifier: Apache-2.0 */
#include "engine/config/internal.h"

/* The oldest checkpoint that is kept is at least (keep_last - 1) * save_every steps old. */
static dsc_status check_rewind(dsc_config_parse_state *s)
{
    const dsc_ext_config *own = &s->config->own;
    if (own->save[0] == 0 || own->save_every == 0)
        return dsc_config_fail(s, DSC_ID_SPIKES_POLICY, DSC_ERR_CONFIG,
                               "rewind goes back to a checkpoint, and the run saves none on its way; set dsc.save and "
                               "dsc.save_every");
    const int64_t saves = dsc_div_ceil(own->spikes.rewind_steps, own->save_every); /* that span the steps */
    if (own->keep_last > 0 && own->keep_last - 1 < saves)
        return dsc_config_fail(s, DSC_ID_SPIKES_POLICY, DSC_ERR_CONFIG,
                               "rewind needs a checkpoint that is %lld steps old, and dsc.keep_last keeps %lld of "
                               "every %lld steps; keep more, or set a smaller dsc.spikes.rewind_steps",
                               (long long)own->spikes.rewind_steps, (long long)own->keep_last,
                               (long long)own->save_every);
    return DSC_OK;
}

dsc_status dsc_config_fill_spikes(dsc_config_parse_state *s)
{
    dsc_spikes_section *spikes = &s->config->own.spikes;
    for (int id = 0; id < DSC_KEY_COUNT; id++)
        spikes->enabled = spikes->enabled ||
                          ((id == DSC_ID_SPIKES || dsc_config_key_is_in(id, "dsc.spikes")) && s->given[id] != NULL);
    spikes->policy = (dsc_spike_policy)dsc_config_choice_or(s, DSC_ID_SPIKES_POLICY, DSC_SPIKES_WARN);
    return spikes->enabled && spikes->policy == DSC_SPIKES_REWIND ? check_rewind(s) : DSC_OK;
}
