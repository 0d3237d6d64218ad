/* test_config_table.c - every row of the table of keys, and texts that mean harm.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/config_case.h"

#include <stdlib.h>

#include "base/clock.h"
#include "tests/support/sanitizer.h"

/* ---- the table itself ---- */

/* {"a":{"b":{"c":VALUE}}} around the row's path, with any name for a star. */
static void text_of_row(const dsc_config_key *key, const char *value, char *out, size_t out_bytes)
{
    size_t depth = 0, used = (size_t)snprintf(out, out_bytes, "{\"train_batch_size\":8,");
    const char *segment = key->path;
    for (;; depth++) {
        const size_t length = strcspn(segment, ".");
        used += (size_t)snprintf(out + used, out_bytes - used, "%s\"%.*s\":", depth > 0 ? "{" : "",
                                 *segment == '*' ? 1 : (int)length, *segment == '*' ? "x" : segment);
        if (segment[length] == 0)
            break;
        segment += length + 1;
    }
    used += (size_t)snprintf(out + used, out_bytes - used, "%s", value);
    for (; depth > 0; depth--)
        used += (size_t)snprintf(out + used, out_bytes - used, "}");
    snprintf(out + used, out_bytes - used, "}");
}

/* Keys whose default means something only beside others. */
static bool stands_alone(const dsc_config_key *key)
{
    return strncmp(key->path, "scheduler.", 10) != 0 && strncmp(key->path, "optimizer.", 10) != 0 &&
           strncmp(key->path, "sparse_attention", 16) != 0 && strncmp(key->path, "weight_quantization", 19) != 0 &&
           strncmp(key->path, "zero_optimization.zenflow", 25) != 0 &&
           strncmp(key->path, "zero_optimization.leaf_module", 29) != 0 && strcmp(key->path, "train_batch_size") != 0;
}

static void every_row(void **state)
{
    (void)state;
    char text[1024];
    int flipped = 0;
    for (int id = 0; id < DSC_KEY_COUNT; id++) {
        const dsc_config_key *key = &dsc_config_keys[id];
        assert_int_equal(dsc_config_key_find(key->path), id); /* no row twice, none hidden by a star */
        assert_true(key->tier >= 'A' && key->tier <= 'C');
        if (key->state == DSC_KEY_RENAMED)
            assert_true(dsc_config_key_find(key->here) >= 0);
        if (key->state == DSC_KEY_IGNORED || key->state == DSC_KEY_REFUSED || key->state == DSC_KEY_MAPPED)
            assert_true(*key->here != 0); /* the replacement, or why the key has no effect */
        if (!stands_alone(key))
            continue;
        if (*key->default_json != 0) { /* a default asks for nothing */
            text_of_row(key, key->default_json, text, sizeof text);
            if (parse_with(text, NULL, 0, true, 1) != DSC_OK)
                fail_msg("%s\n  was refused: %s", text, err.message);
        }
        text_of_row(key, "null", text, sizeof text);
        parse_ok(text);
        if (key->type != DSC_KEY_BOOL || *key->default_json == 0)
            continue;
        text_of_row(key, strcmp(key->default_json, "true") == 0 ? "false" : "true", text, sizeof text);
        if (key->state == DSC_KEY_REFUSED || key->state == DSC_KEY_WRONG) {
            /* Masters in fp16 are wrong without ZeRO, in DeepSpeed too. */
            const bool wrong = key->state == DSC_KEY_WRONG || id == DSC_ID_FP16_MASTERS;
            assert_int_equal(parse_to_run(text), wrong ? DSC_ERR_CONFIG : DSC_ERR_UNSUPPORTED);
            assert_non_null(strstr(err.message, key->path));
            flipped++;
        } else if (key->state == DSC_KEY_IGNORED && id != DSC_ID_COMPUTE_GRAD_NORM) {
            parse_ok(text);
            assert_true(warned(key->path));
            flipped++;
        }
        text_of_row(key, "\"neither\"", text, sizeof text);
        assert_int_equal(parse(text), DSC_ERR_CONFIG);
        assert_non_null(strstr(err.message, key->path));
    }
    assert_true(flipped > 60);
}

/* ---- hostile texts ---- */

static void many_wrong_keys_are_quick(void **state)
{
    (void)state;
    const int count = 9000;
    const size_t room = (size_t)count * 80 + 100;
    char *text = malloc(room);
    assert_non_null(text);
    size_t used = (size_t)snprintf(text, room, "{\"train_batch_size\":1");
    for (int i = 0; i < count; i++)
        used += (size_t)snprintf(text + used, room - used, ",\"zero_optimizatiom_of_something_with_a_long_name_%d\":%d",
                                 i, i);
    snprintf(text + used, room - used, "}");
    const int64_t start = dsc_clock_ns();
    parse_ok(text);
    const double seconds = (double)(dsc_clock_ns() - start) * 1e-9;
    free(text);
    assert_int_equal(config.warning_count, DSC_WARNINGS_MAX);
    assert_true(warned("and more warnings"));
    if (seconds > 2.0 * test_patience())
        fail_msg("9000 unknown keys took %.2f s", seconds);
}

/* Warnings and errors go to terminals and into JSON. */
static void lines_are_printable(void **state)
{
    (void)state;
    assert_int_equal(parse(around("\"optimizer\":{\"type\":\"\\u001b[31mAdam\"}")), DSC_ERR_CONFIG);
    assert_null(strchr(err.message, 0x1b));
    parse_ok(around("\"vocabulary_size\":\"7\",\"scheduler\":{\"type\":\"WarmupLR\",\"params\":{\"warmup_type\":"
                    "\"\xE2\x82\xAC\"}}"));
    assert_true(warned("\"\xE2\x82\xAC\" is not log or linear"));
    assert_int_equal(parse(around("\"scheduler\":{\"type\":\"WarmupLR\",\"params\":{\"warmup_type\":\"\\u001b\"}}")),
                     DSC_ERR_CONFIG);
    assert_null(strchr(err.message, 0x1b));
}

static void scan_errors_reach_the_caller(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "{\"train_batch_size\":1,\"train_batch_size\":2}",
        "{\"a\":\"\xFF\"}",
        "{\"train_batch_size\":NaN}",
        "{\"train_batch_size\":1",
        "\xEF\xBB\xBF{}",
        "{\"train_batch_size\":1}{}",
        "{train_batch_size:1}",
        "{'a':1}",
    };
    for (size_t i = 0; i < DSC_COUNT(texts); i++) {
        assert_int_equal(dsc_status_exit_code(parse(texts[i])), 2);
        assert_int_equal(strncmp(err.where, "t.json", 6), 0);
    }
    char deep[400];
    snprintf(deep, sizeof deep, "{\"x\":%.*s", 200,
             "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[");
    assert_int_equal(dsc_status_exit_code(parse(deep)), 2);
}

static void loads_files(void **state)
{
    (void)state;
    assert_int_equal(dsc_config_load(alloc, "no/such/file.yaml", NULL, 0, false, &config, &err), DSC_ERR_INPUT);
    assert_int_equal(dsc_config_load(alloc, "no/such/file.json", NULL, 0, false, &config, &err), DSC_ERR_INPUT);
    assert_int_equal(dsc_status_exit_code(dsc_config_load(alloc, ".", NULL, 0, false, &config, &err)), 2);
    assert_int_equal(dsc_status_exit_code(dsc_config_load(alloc, "/dev/null", NULL, 0, false, &config, &err)), 2);
    assert_int_equal(dsc_status_exit_code(dsc_config_load(alloc, "/dev/zero", NULL, 0, false, &config, &err)), 2);
}

/* Every allocation fails once, and then all from there on: an error, and nothing leaks (the next test would see it). */
static void allocations_fail(void **state)
{
    (void)state;
    const char *text = "{\"train_batch_size\":8,\"odd\":1,\"zero_optimization\":{\"stage\":3,\"cpu_offload\":true},"
                       "\"dsc\":{\"data\":[\"a\"]}}";
    const dsc_config_override flags[] = { { "dsc.steps", "5", "--steps" }, { "dsc.data", "[\"b\"]", "--data" } };
    for (int persistent = 0; persistent < 2; persistent++) {
        bool failed = true;
        int64_t n = 1;
        for (; failed && n < 1000; n++) {
            dsc_alloc_stats before, after;
            dsc_alloc_stats_get(alloc, &before);
            dsc_alloc_fail_at(alloc, before.call_count + n, persistent != 0);
            const dsc_status status = parse_with(text, flags, 2, false, 1);
            dsc_alloc_fail_at(alloc, 0, false);
            dsc_alloc_stats_get(alloc, &after);
            assert_int_equal(after.live_count, before.live_count);
            failed = status != DSC_OK;
            if (failed)
                assert_int_equal(status, DSC_ERR_NOMEM);
        }
        assert_true(n > 5 && n < 1000);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row),
        cmocka_unit_test(many_wrong_keys_are_quick),
        cmocka_unit_test(lines_are_printable),
        cmocka_unit_test(scan_errors_reach_the_caller),
        cmocka_unit_test(loads_files),
        cmocka_unit_test(allocations_fail),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
