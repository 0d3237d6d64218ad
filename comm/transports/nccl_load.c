/* nccl_load.c - finds NCCL at run time. SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "comm/transports/nccl_api.h"

typedef struct symbol {
    const char *name;
    size_t offset; /* offset of the member in dsc_nccl_api */
    int least;     /* the first version that has it; 0: all that are taken */
} symbol;

#define NEWER(member, symbol, arguments, least) { #symbol, offsetof(dsc_nccl_api, member), least },
static const symbol newer[] = { DSC_NCCL_NEWER_FUNCTIONS(NEWER) };
#undef NEWER
#define SYMBOL(member, symbol, arguments) { #symbol, offsetof(dsc_nccl_api, member), 0 },
static const symbol symbols[] = {
    DSC_NCCL_FUNCTIONS(SYMBOL)
#undef SYMBOL
    { "ncclGetErrorString", offsetof(dsc_nccl_api, error_text), 0 },
    { "ncclGetLastError", offsetof(dsc_nccl_api, last_error), 0 },
};

/* NULL: all were found; else the first that is missing. */
static const char *resolve(void *library, dsc_nccl_api *out)
{
    for (size_t i = 0; i < DSC_COUNT(symbols); i++) {
        void *found = dlsym(library, symbols[i].name);
        if (found == NULL)
            return symbols[i].name;
        memcpy((char *)out + symbols[i].offset, &found, sizeof found);
    }
    return NULL;
}

/* A function of a later version may be there under its name and not work yet. */
static void resolve_newer(void *library, dsc_nccl_api *out)
{
    for (size_t i = 0; i < DSC_COUNT(newer); i++) {
        void *found = out->version >= newer[i].least ? dlsym(library, newer[i].name) : NULL;
        memcpy((char *)out + newer[i].offset, &found, sizeof found);
    }
}

static dsc_status missing(dsc_error *err)
{
    const char *why = dlerror();
    return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "dsc.comm",
                    "several GPUs need NCCL %d.%d or newer, and libnccl.so.2 does not load: %.200s; install it "
                    "(libnccl2, or nvidia-nccl-cu13 from PyPI with its folder in LD_LIBRARY_PATH)",
                    DSC_NCCL_VERSION_LEAST / 10000, DSC_NCCL_VERSION_LEAST / 100 % 100,
                    why != NULL ? why : "no reason given");
}

dsc_status dsc_nccl_load(dsc_nccl_api *out, dsc_error *err)
{
    *out = (dsc_nccl_api){ .version = 0 };
    void *library = RTLD_DEFAULT;
    if (dlsym(RTLD_DEFAULT, "ncclGetVersion") == NULL) {
        library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
        if (library == NULL)
            return missing(err);
    }
    const char *absent = resolve(library, out);
    if (absent == NULL && out->get_version(&out->version) != DSC_NCCL_SUCCESS)
        absent = "version number";
    if (absent == NULL && out->version >= DSC_NCCL_VERSION_LEAST) {
        resolve_newer(library, out);
        return DSC_OK;
    }
    return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, "dsc.comm",
                    "libnccl.so.2 is %s%s; several GPUs need NCCL %d.%d or newer: install a newer one",
                    absent != NULL ? "without " : "too old", absent != NULL ? absent : "",
                    DSC_NCCL_VERSION_LEAST / 10000, DSC_NCCL_VERSION_LEAST / 100 % 100);
}
