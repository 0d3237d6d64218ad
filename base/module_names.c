/* module_names.c - see module_names.h. SPDX-License-Identifier: Apache-2.0 */
#include "base/module_names.h"

#include <stdio.h>
#include <string.h>

#include "base/base.h"

dsc_module_match dsc_module_around(const char *param, const char *module)
{
    const size_t bytes = strlen(module);
    dsc_module_match best = DSC_MODULE_OTHER;
    for (const char *end = strchr(param, '.'); end != NULL && bytes > 0; end = strchr(end + 1, '.')) {
        const char *const start = end - bytes;
        if ((size_t)(end - param) < bytes || strncmp(start, module, bytes) != 0)
            continue;
        if (start == param || start[-1] == '.')
            return DSC_MODULE_WHOLE;
        best = DSC_MODULE_PARTLY;
    }
    return best;
}

#define VIT_LAYERS "vit.encoder.layer."

bool dsc_module_is_vit(const char *name)
{
    static const char *const layers[] = { VIT_LAYERS, "dinov2.encoder.layer.", "dinov2_with_registers.encoder.layer." };
    bool is = false;
    for (size_t i = 0; i < DSC_COUNT(layers); i++)
        is |= strncmp(name, layers[i], strlen(layers[i])) == 0;
    return is;
}

void dsc_module_vit_in_peft(const char *name, char *out, size_t bytes)
{
    /* The attention's output is before the MLP's, whose name is the end of it. */
    static const char *const parts[][2] = {
        { VIT_LAYERS, "vit.layers." },
        { "attention.attention.query", "attention.q_proj" },
        { "attention.attention.key", "attention.k_proj" },
        { "attention.attention.value", "attention.v_proj" },
        { "attention.output.dense", "attention.o_proj" },
        { "intermediate.dense", "mlp.fc1" },
        { "output.dense", "mlp.fc2" },
        { "mlp.weights_out", "mlp.down_proj" },
    };
    static const char *const last[][2] = { { "query", "q_proj" }, { "key", "k_proj" }, { "value", "v_proj" } };
    char rest[512];
    snprintf(out, bytes, "%s", name);
    for (size_t i = 0; i < DSC_COUNT(last); i++)
        if (strcmp(name, last[i][0]) == 0)
            snprintf(out, bytes, "%s", last[i][1]);
    for (size_t i = 0; i < DSC_COUNT(parts); i++) {
        char *const at = strstr(out, parts[i][0]);
        if (at == NULL)
            continue;
        snprintf(rest, sizeof rest, "%s", at + strlen(parts[i][0]));
        snprintf(at, bytes - (size_t)(at - out), "%s%s", parts[i][1], rest);
    }
}
