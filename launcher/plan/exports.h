/* exports.h - which of the user's variables the ranks on other hosts get.
 *
 * An allow-list of prefixes (exports.c), then ~/.deepspeed_env and ./.deepspeed_env (another name: DS_ENV_FILE), then
 * --export NAME[=VALUE]; later entries win. Variables that the launcher sets for the
 * ranks cannot be given.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_LAUNCHER_PLAN_EXPORTS_H
#define DSC_LAUNCHER_PLAN_EXPORTS_H

#include "base/alloc.h"
#include "launcher/plan/options.h"

typedef struct dsc_exports {
    dsc_alloc *alloc;
    char **entry; /* "NAME=VALUE", no name twice, NULL-terminated; owned */
    int64_t count, capacity;
} dsc_exports;

/* *out is zeroed; the caller closes it, also after an error. files: also the allow-list and the files; else --export
 * alone, for ranks that inherit everything. */
DSC_MUST_USE dsc_status dsc_exports_open(dsc_alloc *alloc, const dsc_launcher_options *opt, bool files,
                                         dsc_exports *out, dsc_error *err);
/* "NAME=VALUE", in place of an earlier one of that name. Copied. */
DSC_MUST_USE dsc_status dsc_exports_set(dsc_exports *exports, const char *entry, dsc_error *err);
void dsc_exports_close(dsc_exports *exports);

/* `base` (an environ) with the entries of `more` (may be NULL) in place of its own; one block of pointers, freed with
 * dsc_alloc_free, whose texts are borrowed from both. */
DSC_MUST_USE dsc_status dsc_environ_with(dsc_alloc *alloc, char *const *base, char *const *more, char ***out,
                                         dsc_error *err);
/* `base` without the variables that are in `hidden`: for processes that carry them to others but need none. */
DSC_MUST_USE dsc_status dsc_environ_without(dsc_alloc *alloc, char *const *base, char *const *hidden, char ***out,
                                            dsc_error *err);

#endif
