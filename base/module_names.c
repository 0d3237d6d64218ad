/* module_names.c - see module_names.h. SPDX-License-Identifier: Apache-2.0 */
#include "base/module_names.h"

#include <string.h>

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
