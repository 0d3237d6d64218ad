/* test_config_spikes.c - dsc.spikes and dsc.check_replicas: checkpoints that a rewind needs, and what does not go with
 * them. SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/config_case.h"

#define BEGIN "{\"train_batch_size\":8,\n"
#define REWIND "\"spikes\":{\"policy\":\"rewind\",\"rewind_steps\":20}"
#define LARGEST "9007199254740991"

static dsc_status parse_one(const char *text)
{
    const dsc_status status = parse_with(text, NULL, 0, false, 1);
    return status == DSC_OK ? dsc_config_built(&config, &err) : status;
}

static void rewinds_that_checkpoints_allow(void **state)
{
    static const char *const rows[] = {
        BEGIN "\"dsc\":{" REWIND ",\"save\":\"run\",\"save_every\":10}}",
        BEGIN "\"dsc\":{" REWIND ",\"save\":\"run\",\"save_every\":10,\"keep_last\":3}}",
        BEGIN "\"dsc\":{" REWIND ",\"save\":\"run\",\"save_every\":" LARGEST ",\"keep_last\":" LARGEST "}}",
        BEGIN "\"optimizer\":{\"type\":\"OneBitAdam\"},\"dsc\":{\"check_replicas\":10}}",
    };
    (void)state;
    for (size_t i = 0; i < DSC_COUNT(rows); i++)
        if (parse_one(rows[i]) != DSC_OK)
            fail_msg("%s\n  was refused: %s: %s", rows[i], err.where, err.message);
}

static void rewinds_without_an_old_checkpoint_are_refused(void **state)
{
    static const struct {
        const char *text, *message;
    } rows[] = {
        { BEGIN "\"dsc\":{" REWIND "}}", "the run saves none on its way" },
        { BEGIN "\"dsc\":{" REWIND ",\"save\":\"run\",\"save_every\":10,\"keep_last\":2}}", "20 steps old" },
        { BEGIN "\"dsc\":{" REWIND ",\"save\":\"run\",\"save_every\":19,\"keep_last\":2}}", "20 steps old" },
        { BEGIN "\"optimizer\":{\"type\":\"ZeroOneAdam\"},\"dsc\":{\"check_replicas\":10}}",
          "ranks have other weights between synchronizations" },
    };
    (void)state;
    for (size_t i = 0; i < DSC_COUNT(rows); i++)
        if (parse_one(rows[i].text) == DSC_OK || strstr(err.message, rows[i].message) == NULL)
            fail_msg("%s\n  gave: %s", rows[i].text, err.message);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rewinds_that_checkpoints_allow),
        cmocka_unit_test(rewinds_without_an_old_checkpoint_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
