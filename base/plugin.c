/* plugin.c - see plugin.h. SPDX-License-Identifier: Apache-2.0 */
#include "base/plugin.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATH_BYTES 4096

/* The folder of the file that this code is in: libdsc.so, or the program that linked it. */
static bool own_folder(char *out, size_t out_bytes)
{
    Dl_info info;
    static const char anchor = 0;
    if (dladdr(&anchor, &info) != 0 && info.dli_fname != NULL && info.dli_fname[0] == '/')
        snprintf(out, out_bytes, "%s", info.dli_fname);
    else {
        const ssize_t bytes = readlink("/proc/self/exe", out, out_bytes - 1);
        out[bytes > 0 ? bytes : 0] = 0;
    }
    char *slash = strrchr(out, '/');
    if (slash == NULL)
        return false;
    *slash = 0;
    return true;
}

void *dsc_plugin_open(const char *file, char *reason, size_t reason_bytes)
{
    static const char *const folders[] = { "/dsc/", "/../lib/dsc/", "/" };
    char folder[PATH_BYTES - 128], path[PATH_BYTES];
    const char *given = getenv("DSC_PLUGIN_DIR");
    const size_t count = given != NULL ? 1 : DSC_COUNT(folders);
    reason[0] = 0;
    if (given == NULL && !own_folder(folder, sizeof folder))
        return NULL;
    for (size_t i = 0; i < count; i++) {
        if ((size_t)snprintf(path, sizeof path, "%s%s%s", given != NULL ? given : folder,
                             given != NULL ? "/" : folders[i], file) >= sizeof path ||
            access(path, F_OK) != 0)
            continue;
        void *plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        const char *why = plugin == NULL ? dlerror() : NULL;
        if (plugin != NULL)
            return plugin;
        snprintf(reason, reason_bytes, "%.300s", why != NULL ? why : path);
    }
    return NULL;
}

bool dsc_plugin_find(void *plugin, const char *name, void *out_function)
{
    void *found = dlsym(plugin != NULL ? plugin : RTLD_DEFAULT, name);
    memcpy(out_function, &found, sizeof found);
    return found != NULL;
}

dsc_status dsc_plugin_table(const dsc_plugin *plugin, const void **table, dsc_error *err)
{
    struct { uint32_t version, table_bytes; char build[32]; } head = { 0 };
    char reason[320];
    const void *(*get)(void) = NULL;
    void *library = dsc_plugin_open(plugin->file, reason, sizeof reason);
    const char *value = plugin->value != NULL ? plugin->value : "";
    if (library == NULL && reason[0] != 0)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, plugin->key, "%s%s; install what it needs (%s), or %s", value, reason,
                        plugin->package, plugin->instead);
    if (library == NULL)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, plugin->key, "%sthis installation has no %s; install %s and build "
                        "again, or %s", value, plugin->file, plugin->package, plugin->instead);
    const void *found = dsc_plugin_find(library, plugin->symbol, &get) ? get() : NULL;
    if (found != NULL)
        memcpy(&head, found, 2 * sizeof(uint32_t));
    if (head.version == plugin->version && head.table_bytes == plugin->table_bytes)
        memcpy(&head, found, sizeof head);
    if (head.table_bytes != plugin->table_bytes || strncmp(head.build, DSC_VERSION_TEXT, sizeof head.build) != 0)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, plugin->key, "%s%s is of another version of dsc; install both from "
                        "one build", value, plugin->file);
    *table = found;
    return DSC_OK;
}
