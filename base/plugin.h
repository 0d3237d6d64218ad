/* plugin.h - finds the libraries in lib/dsc: the parts of an installation that need a library which not every machine
 * has. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_BASE_PLUGIN_H
#define DSC_BASE_PLUGIN_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Loads `file` from DSC_PLUGIN_DIR when that is set, else from dsc/ beside this library or ../lib/dsc/ beside the
 * program. It stays in the process. NULL: not there, *reason is ""; or it does not load, and *reason says why. */
void *dsc_plugin_open(const char *file, char *reason, size_t reason_bytes);

/* dlsym gives an object pointer for what is a function. NULL: RTLD_DEFAULT. False: not there. */
bool dsc_plugin_find(void *plugin, const char *name, void *out_function);

#ifdef __cplusplus
}
#endif
#endif
