/* config_model.c - the model that the config names, with the adapters that it asks for.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/internal.h"
#include "engine/model.h"

dsc_status dsc_engine_open_config_model(const dsc_engine *engine, int64_t seq_length, bool want_weights,
                                        dsc_model **out, dsc_error *err)
{
    const dsc_ext_config *own = &engine->config.own;
    const char *targets[DSC_CONFIG_TEXTS_MAX], *save[DSC_CONFIG_TEXTS_MAX];
    dsc_lora_options lora = DSC_LORA_OPTIONS_INIT;
    dsc_model_options options = DSC_MODEL_OPTIONS_INIT;
    options.seq_length = seq_length;
    options.vocab_multiple = own->vocab_multiple;
    options.want_weights = want_weights;
    options.complete_weights = engine->config.unresolved.strict;
    options.documents = own->document_end >= 0 || dsc_engine_packs_examples(engine);
    options.mask_share = own->mlm.probability;
    for (int i = 0; i < own->lora.target_count; i++)
        targets[i] = own->lora.targets[i];
    for (int i = 0; i < own->lora.save_count; i++)
        save[i] = own->lora.save[i];
    lora.rank = own->lora.rank;
    lora.alpha = own->lora.alpha;
    lora.rank_stabilized = own->lora.rank_stabilized;
    lora.targets = targets;
    lora.target_count = own->lora.target_count;
    lora.modules_to_save = save;
    lora.modules_to_save_count = own->lora.save_count;
    lora.adapter = own->lora.adapter[0] != 0 ? own->lora.adapter : NULL;
    options.lora = own->lora.enabled ? &lora : NULL;
    return dsc_model_open(out, own->model, &options, err);
}
