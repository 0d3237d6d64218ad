/* exports.c - see exports.h. SPDX-License-Identifier: Apache-2.0 */
#include "launcher/plan/exports.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hosts/envfile.h"
#include "base/io.h"

/* DeepSpeed's own four, and those of the libraries that ranks here may use. */
static const char *const prefixes[] = { "MLFLOW", "PYTHON", "MV2", "UCX", "NCCL", "OMP_", "GOMP_", "KMP_", "MKL_",
                                        "DNNL_", "ONEDNN_", "CUDA_", "GLOO_", "FI_", "DSC_", "MALLOC_" };

static size_t name_bytes_of(const char *entry) { return strcspn(entry, "="); }

static bool same_name(const char *a, const char *b)
{
    const size_t bytes = name_bytes_of(a);
    return name_bytes_of(b) == bytes && memcmp(a, b, bytes) == 0;
}

dsc_status dsc_exports_set(dsc_exports *exports, const char *entry, dsc_error *err)
{
    char *copy = NULL, **grown = NULL;
    DSC_TRY(dsc_alloc_strdup(exports->alloc, DSC_TAG_CONTROL, entry, &copy, err));
    for (int64_t i = 0; i < exports->count; i++)
        if (same_name(exports->entry[i], entry)) {
            dsc_alloc_free(exports->alloc, exports->entry[i]);
            exports->entry[i] = copy;
            return DSC_OK;
        }
    if (exports->count + 1 >= exports->capacity) {
        const int64_t capacity = dsc_max_i64(64, 2 * exports->capacity);
        const dsc_status status =
            dsc_alloc_zeroed(exports->alloc, DSC_TAG_CONTROL, capacity, (int64_t)sizeof *grown, &grown, err);
        if (status != DSC_OK) {
            dsc_alloc_free(exports->alloc, copy);
            return status;
        }
        if (exports->count > 0)
            memcpy(grown, exports->entry, (size_t)exports->count * sizeof *grown);
        dsc_alloc_free(exports->alloc, exports->entry);
        exports->entry = grown;
        exports->capacity = capacity;
    }
    exports->entry[exports->count++] = copy;
    exports->entry[exports->count] = NULL;
    return DSC_OK;
}

static bool is_allowed(const char *entry)
{
    const size_t bytes = name_bytes_of(entry);
    const bool held_back = getenv("AISC_JOB_NAME") != NULL && /* as DeepSpeed: chosen for the user's machine only */
                           (strncmp(entry, "NCCL_IB_HCA=", 12) == 0 || strncmp(entry, "UCX_NET_DEVICES=", 16) == 0);
    if (strncmp(entry, "CUDA_HOME=", 10) == 0 || strncmp(entry, "CUDA_PATH=", 10) == 0)
        return false; /* where it is, is each host's */
    if (bytes == 0 || entry[bytes] != '=' || held_back || dsc_env_is_launchers(entry, bytes))
        return false;
    for (size_t i = 0; i < DSC_COUNT(prefixes); i++)
        if (strncmp(entry, prefixes[i], strlen(prefixes[i])) == 0)
            return true;
    return false;
}

static dsc_status add_of_file(void *user, const char *entry, size_t name_bytes, const char *where, dsc_error *err)
{
    return dsc_exports_set(user, entry, err);
}

static dsc_status add_files(dsc_exports *exports, dsc_error *err)
{
    const char *name = getenv("DS_ENV_FILE");
    const char *home = getenv("HOME");
    char path[4096];
    const bool own_name = name != NULL && name[0] != 0;
    if (own_name && strchr(name, '/') != NULL)
        return dsc_envfile_read(exports->alloc, name, add_of_file, exports, err);
    if (!own_name)
        name = ".deepspeed_env";
    if (home != NULL && (size_t)snprintf(path, sizeof path, "%s/%s", home, name) < sizeof path &&
        dsc_io_kind(path) != DSC_PATH_MISSING)
        DSC_TRY(dsc_envfile_read(exports->alloc, path, add_of_file, exports, err));
    return dsc_io_kind(name) == DSC_PATH_MISSING ? DSC_OK
                                                 : dsc_envfile_read(exports->alloc, name, add_of_file, exports, err);
}

/* NAME=VALUE, or NAME with the value that it has here. */
static dsc_status add_flag(dsc_exports *exports, const char *text, dsc_error *err)
{
    extern char **environ;
    const size_t bytes = dsc_env_name_bytes(text);
    if (bytes == 0 || (text[bytes] != '=' && text[bytes] != 0))
        return DSC_FAIL(err, DSC_ERR_INPUT, "--export", "\"%.60s\": expected NAME or NAME=VALUE", text);
    if (dsc_env_is_launchers(text, bytes))
        return DSC_FAIL(err, DSC_ERR_INPUT, "--export", "%.*s is set for each rank by dsc-launch; leave it out",
                        (int)bytes, text);
    if (text[bytes] == '=')
        return dsc_exports_set(exports, text, err);
    for (char **entry = environ; *entry != NULL; entry++)
        if (same_name(*entry, text) && (*entry)[bytes] == '=')
            return dsc_exports_set(exports, *entry, err);
    return DSC_FAIL(err, DSC_ERR_INPUT, "--export", "%.60s is not set here; write --export %.60s=VALUE", text, text);
}

dsc_status dsc_exports_open(dsc_alloc *alloc, const dsc_launcher_options *opt, bool files, dsc_exports *out,
                            dsc_error *err)
{
    extern char **environ;
    *out = (dsc_exports){ .alloc = alloc };
    for (char **entry = environ; files && *entry != NULL; entry++)
        if (is_allowed(*entry))
            DSC_TRY(dsc_exports_set(out, *entry, err));
    if (files)
        DSC_TRY(add_files(out, err));
    for (int i = 0; i < opt->exports.count; i++)
        DSC_TRY(add_flag(out, opt->exports.text[i], err));
    if (opt->comm == NULL)
        return DSC_OK;
    char comm[64]; /* a name of the list in options.c */
    snprintf(comm, sizeof comm, "DSC_COMM=%s", opt->comm);
    return dsc_exports_set(out, comm, err);
}

void dsc_exports_close(dsc_exports *exports)
{
    for (int64_t i = 0; i < exports->count; i++)
        dsc_alloc_free(exports->alloc, exports->entry[i]);
    if (exports->alloc != NULL)
        dsc_alloc_free(exports->alloc, exports->entry);
    *exports = (dsc_exports){ .alloc = NULL };
}

static bool is_among(const char *entry, char *const *list)
{
    for (; list != NULL && *list != NULL; list++)
        if (same_name(entry, *list))
            return true;
    return false;
}

static int64_t count_of(char *const *list)
{
    int64_t count = 0;
    while (list != NULL && list[count] != NULL)
        count++;
    return count;
}

static dsc_status filtered(dsc_alloc *alloc, char *const *base, char *const *names, char *const *more, char ***out,
                           dsc_error *err)
{
    char **list = NULL;
    int64_t used = 0;
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, count_of(base) + count_of(more) + 1, (int64_t)sizeof *list, &list,
                             err));
    for (; *base != NULL; base++)
        if (!is_among(*base, names))
            list[used++] = *base;
    for (; more != NULL && *more != NULL; more++)
        list[used++] = *more;
    *out = list;
    return DSC_OK;
}

dsc_status dsc_environ_with(dsc_alloc *alloc, char *const *base, char *const *more, char ***out, dsc_error *err)
{
    return filtered(alloc, base, more, more, out, err);
}

dsc_status dsc_environ_without(dsc_alloc *alloc, char *const *base, char *const *hidden, char ***out, dsc_error *err)
{
    return filtered(alloc, base, hidden, NULL, out, err);
}
