/* plugin.h - finds the libraries in lib/dsc: the parts of an installation that need a library which not every machine
 * has. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_BASE_PLUGIN_H
#define DSC_BASE_PLUGIN_H

#include "base/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Loads `file` from DSC_PLUGIN_DIR when that is set, else from dsc/ beside this library, ../lib/dsc/ beside the program
 * or, for plugins of plugins, beside this library. It stays in the process. NULL: not there, *reason is ""; or it does
 * not load, and *reason says why. */
void *dsc_plugin_open(const char *file, char *reason, size_t reason_bytes);

/* Source of a table whose first members are uint32_t version and table_bytes, and char build[32]: the version of dsc it
 * was built with. */
typedef struct dsc_plugin {
    const char *key;     /* config key that requests it: the position of errors */
    const char *value;   /* "\"mpi\": " when the key asks by a choice; NULL: any */
    const char *file;    /* in lib/dsc */
    const char *package; /* package that it is built from */
    const char *instead; /* the other remedy: "remove the key" */
    const char *symbol;  /* a function without arguments, which gives the table */
    uint32_t version;
    size_t table_bytes;
} dsc_plugin;
/* DSC_ERR_UNSUPPORTED and the way out when it is not there, does not load or is of another build. */
DSC_MUST_USE dsc_status dsc_plugin_table(const dsc_plugin *plugin, const void **table, dsc_error *err);

/* dlsym gives an object pointer for what is a function. NULL: RTLD_DEFAULT. False: not there. */
bool dsc_plugin_find(void *plugin, const char *name, void *out_function);

#ifdef __cplusplus
}
#endif
#endif
