/* config_case.h - one config at a time, read from a text: what the tests of configs share.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TESTS_UNIT_CONFIG_CASE_H
#define DSC_TESTS_UNIT_CONFIG_CASE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/base.h"
#include "engine/config/table.h"

static dsc_alloc *alloc;
static dsc_config config;
static dsc_error err;

static inline int setup(void **state)
{
    (void)state;
    return dsc_alloc_open(&alloc, NULL);
}

static inline int teardown(void **state)
{
    (void)state;
    dsc_alloc_close(&alloc); /* asserts that nothing leaked */
    return 0;
}

static inline dsc_status parse_with(const char *text, const dsc_config_override *overrides, int count, bool strict,
                                    int64_t world_size)
{
    const dsc_config_facts facts = { world_size, 0, 0, NULL };
    const dsc_error no_error = DSC_ERROR_INIT;
    err = no_error;
    const dsc_status status =
        dsc_config_parse(alloc, "t.json", text, (int64_t)strlen(text), overrides, count, strict, &config, &err);
    return status == DSC_OK ? dsc_config_resolve(&config, &facts, &err) : status;
}

static inline dsc_status parse(const char *text) { return parse_with(text, NULL, 0, false, 1); }

static inline void parse_ok(const char *text)
{
    if (parse(text) != DSC_OK)
        fail_msg("%s\n  was refused: %s: %s", text, err.where, err.message);
}

/* As who runs the config reads it: what is not built fails too. A reader of the config only sees a warning. */
static inline dsc_status parse_to_run(const char *text)
{
    const dsc_status status = parse(text);
    if (status != DSC_OK)
        return status;
    if (dsc_config_built(&config, &err) != DSC_OK)
        assert_true(config.warning_count > 0);
    return err.status;
}

/* A whole config around a fragment of top-level members. */
static inline const char *around(const char *fragment)
{
    static char text[8192];
    snprintf(text, sizeof text, "{\"train_batch_size\":8,\n%s}", fragment);
    return text;
}

static inline bool warned(const char *part)
{
    for (int i = 0; i < config.warning_count; i++)
        if (strstr(config.warnings[i], part) != NULL)
            return true;
    return false;
}

static inline bool noted(const char *part)
{
    for (int i = 0; i < config.note_count; i++)
        if (strstr(config.notes[i], part) != NULL)
            return true;
    return false;
}

/* A note that is printed as a warning. */
static inline bool noted_as_warning(const char *part)
{
    for (int i = 0; i < config.note_count; i++)
        if (strstr(config.notes[i], part) != NULL)
            return (config.note_warns >> i & 1) != 0;
    return false;
}

#endif
