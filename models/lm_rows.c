/* lm_rows.c - rows of a micro-batch in the modules of a language model. SPDX-License-Identifier: Apache-2.0 */
#include "models/lm.h"

dsc_status dsc_lm_rows(const dsc_lm_config *config, int64_t batch, int64_t *rows, dsc_error *err)
{
    if (batch < 1 || batch > DSC_LM_ROWS_MAX / config->sequence)
        return DSC_FAIL(err, DSC_ERR_STATE, "", "a micro-batch of %lld samples of %lld tokens is not a possible size",
                        (long long)batch, (long long)config->sequence);
    *rows = batch * config->sequence;
    return DSC_OK;
}

dsc_status dsc_lm_head_rows(const dsc_lm_config *config, int64_t batch, int64_t *rows, dsc_error *err)
{
    DSC_TRY(dsc_lm_rows(config, batch, rows, err));
    if (config->masked || config->classes > 0)
        *rows = batch * config->predictions;
    return DSC_OK;
}
