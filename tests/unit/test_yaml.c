/* test_yaml.c - YAML as data: what it means, where it stands, and all of YAML that is no data refused with its place.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/formats/yaml.h"
#include "tests/support/sanitizer.h"

static dsc_alloc *alloc;
static dsc_error error;

static int setup(void **state)
{
    (void)state;
    return dsc_alloc_open(&alloc, NULL);
}

static int teardown(void **state)
{
    (void)state;
    dsc_alloc_close(&alloc); /* asserts that nothing leaked */
    return 0;
}

static dsc_json *open_bytes(const char *text, size_t bytes)
{
    const dsc_json_limits limits = DSC_JSON_LIMITS_CONFIG;
    dsc_json *json = NULL;
    error = (dsc_error)DSC_ERROR_INIT;
    char *copy = malloc(bytes + 1); /* exact, so that the address sanitizer sees a read past the end */
    assert_non_null(copy);
    memcpy(copy, text, bytes);
    char *exact = realloc(copy, bytes == 0 ? 1 : bytes);
    const dsc_status status = dsc_yaml_open(alloc, "f.yaml", exact, (int64_t)bytes, &limits, &json, &error);
    free(exact);
    assert_int_equal(status == DSC_OK, json != NULL);
    return json;
}

/* The text means what this JSON says. */
static void means(const char *yaml, const char *json)
{
    dsc_json *read = open_bytes(yaml, strlen(yaml));
    if (read == NULL)
        fail_msg("%s\nrefused: %s: %s", yaml, error.where, error.message);
    char *printed = cJSON_PrintUnformatted(dsc_json_root(read));
    assert_non_null(printed);
    assert_string_equal(printed, json);
    cJSON_free(printed);
    dsc_json_close(&read);
}

static void refuse_bytes(const char *yaml, size_t bytes, const char *where, const char *message)
{
    char full[64];
    snprintf(full, sizeof full, "f.yaml:%s", where);
    assert_null(open_bytes(yaml, bytes));
    if (error.status != DSC_ERR_CONFIG || strcmp(error.where, full) != 0 || strstr(error.message, message) == NULL)
        fail_msg("%.80s\nsaid %s: %s\nexpected %s: %s", yaml, error.where, error.message, full, message);
}

static void refuse(const char *yaml, const char *where, const char *message)
{
    refuse_bytes(yaml, strlen(yaml), where, message);
}

static void data(void **state)
{
    (void)state;
    means("a: 1\nb:\n  c: [1, 2.5, x]\n  d: {e: null}\n", "{\"a\":1,\"b\":{\"c\":[1,2.5,\"x\"],\"d\":{\"e\":null}}}");
    means("- 5e8\n- 1e-4\n- -3\n- .5\n- +2\n- 5.\n- 1E+2\n", "[500000000,0.0001,-3,0.5,2,5,100]");
    means("[true, True, TRUE, false, False, FALSE]", "[true,true,true,false,false,false]");
    means("[null, Null, NULL, ~, ]", "[null,null,null,null]");
    means("a:\nb: ''\n", "{\"a\":null,\"b\":\"\"}");
    means("[yes, no, on, off, y, 0x10, 0o7, 1_000, 12:30, 1e, e5, '1', \"true\", 1.2.3, -]",
          "[\"yes\",\"no\",\"on\",\"off\",\"y\",\"0x10\",\"0o7\",\"1_000\",\"12:30\",\"1e\",\"e5\",\"1\","
          "\"true\",\"1.2.3\",\"-\"]");
    means("a: |\n  two\n  lines\nb: >\n  one\n  line\n", "{\"a\":\"two\\nlines\\n\",\"b\":\"one line\\n\"}");
    means("# a comment\n---\na: 1 # another\r\n...\n", "{\"a\":1}");
    means("1: x\ntrue: y\n'c d': z\n", "{\"1\":\"x\",\"true\":\"y\",\"c d\":\"z\"}");
    means("{\"a\": [1, {\"b\": \"\\u00e9\"}]}", "{\"a\":[1,{\"b\":\"\xc3\xa9\"}]}");
    means("a: {}\nb: []\n", "{\"a\":{},\"b\":[]}");
    means("0", "0");
}

static void places(void **state)
{
    (void)state;
    char where[64];
    static const char text[] = "a: 1\nb:\n    - x\n    - \xc3\xa9: [2, 3]\n";
    dsc_json *json = open_bytes(text, strlen(text));
    assert_non_null(json);
    const cJSON *list = cJSON_GetObjectItem(dsc_json_root(json), "b");
    assert_string_equal(dsc_json_where(json, list->child, where, sizeof where), "f.yaml:3:7");
    const cJSON *three = list->child->next->child->child->next;
    assert_string_equal(dsc_json_where(json, three, where, sizeof where), "f.yaml:4:14");
    dsc_json_close(&json);
}

static void yaml_features_beyond_plain_data_are_refused(void **state)
{
    (void)state;
    refuse("a: &x 1\nb: *x\n", "1:4", "anchors (&name) and aliases");
    refuse("a: &x [1]\n", "1:4", "anchors");
    refuse("a: &x {b: 1}\n", "1:4", "anchors");
    refuse("&x a: 1\n", "1:1", "anchors");
    refuse("a: 1\nb: *x\n", "2:4", "aliases");
    refuse("*x : 1\n", "1:1", "aliases");
    refuse("a: !!python/object/apply:os.system ['id']\n", "1:4", "tags");
    refuse("a: !!str 1\n", "1:4", "tags");
    refuse("a: !x {b: 1}\n", "1:4", "tags");
    refuse("!!str a: 1\n", "1:1", "tags");
    refuse("<<: {a: 1}\n", "1:1", "merge keys");
    refuse("a: 1\n---\nb: 2\n", "2:1", "second document");
    refuse("? [a]\n: 1\n", "1:3", "expected a key");
    refuse("? {a: 1}\n: 1\n", "1:3", "expected a key");
    refuse("a: 1\nb: 2\na: 3\n", "3:1", "duplicate key \"a\" (first at line 1)");
    refuse("a: {b: 1, \"\\x62\": 2}\n", "1:11", "duplicate key \"b\"");
    refuse("a: .nan\n", "1:4", "not a number");
    refuse("a: -.inf\n", "1:4", "not a number");
    refuse("a: 1e999\n", "1:4", "outside the range");
    refuse("a: 1e-999\n", "1:4", "outside the range");
    refuse("a: 010\n", "1:4", "octal");
    refuse("a: \"b\\0c\"\n", "1:4", "NUL");
    refuse("\"a\\0b\": 1\n", "1:1", "control character in a key");
    refuse("\"a\\tb\": 1\n", "1:1", "control character in a key");
    refuse("", "1:1", "is empty");
    refuse("# nothing\n", "1:1", "is empty");
    refuse("\xef\xbb\xbf" "a: 1\n", "1:1", "byte order mark");
    refuse("a: \xe9\n", "1:4", "not valid UTF-8");
    refuse("a: 1\nb: \x1b[31m\n", "2:4", "byte 0x1b");
    refuse_bytes("a: 1\n\0", 6, "2:1", "byte 0x00");
    refuse("a: [1, 2\n", "2:1", "not YAML");
    refuse("a: b: c\n", "1:5", "not YAML");
    refuse("a: 1\n\tb: 2\n", "2:1", "not YAML");
    refuse("a: 'b\n", "2:1", "not YAML");
    refuse("%YAML 3.0\n---\na: 1\n", "1:1", "not YAML");
    refuse("a: 11111111111111111111111111111111111111111111111111111111111111111\n", "1:4", "at most 63");
}

/* A pattern `count` times after the head. */
static void refuse_many(const char *head, const char *pattern, int count, const char *message)
{
    const size_t each = strlen(pattern), start = strlen(head);
    char *text = malloc(start + each * (size_t)count + 1);
    assert_non_null(text);
    memcpy(text, head, start + 1);
    for (int i = 0; i < count; i++)
        memcpy(text + start + each * (size_t)i, pattern, each);
    const int64_t begin = dsc_clock_ns();
    assert_null(open_bytes(text, start + each * (size_t)count));
    const double seconds = (double)(dsc_clock_ns() - begin) * 1e-9;
    free(text);
    if (strstr(error.message, message) == NULL || seconds > 2.0 * test_patience())
        fail_msg("\"%s\" %d times took %.2f s: %s: %s", pattern, count, seconds, error.where, error.message);
}

static void limits(void **state)
{
    (void)state;
    char nested[80] = "";
    memset(nested, '[', 32);
    memset(nested + 32, ']', 32);
    means(nested, nested);
    memset(nested, '[', 33);
    memset(nested + 33, ']', 33);
    refuse(nested, "1:33", "nested deeper than 32");
    refuse_many("", "[", 900000, "nested deeper than 32");
    refuse_many("", "{a: ", 200000, "nested deeper than 32");
    refuse_many("", "- ", 400000, "nested deeper than 32");
    refuse_many("", "? ", 400000, "expected a key");
    refuse_many("[", "1,", 400000, "more than 10000 values");
    refuse_many("", "- 1\n", 200000, "more than 10000 values");
    refuse_many("", "x", 1000001, "more than the 1000000 allowed");
    refuse_many("a: &x [*x]\nb: ", "*x ", 100000, "anchors");
    refuse_many("a: \"", "\\", 900000, "");
    refuse_many("a: '", "''", 400000, "");
    refuse_many("", "\"a\": ", 150000, "");
    refuse_many("", "!", 900000, "");
    refuse_many("%TAG ! ", "x", 900000, "");
    refuse_many("a: ", "{", 900000, "expected a key");
}

static void allocations_fail(void **state)
{
    (void)state;
    static const char text[] = "a: [1, {b: two}]\nc: {d: e, f: 5e8}\n";
    const dsc_json_limits most = DSC_JSON_LIMITS_CONFIG;
    int failures = 0;
    for (bool failed = true; failed; failures += failed) {
        dsc_json *json = NULL;
        char *printed = NULL;
        int64_t bytes;
        dsc_alloc_stats stats;
        dsc_alloc_stats_get(alloc, &stats);
        dsc_alloc_fail_at(alloc, stats.call_count + failures + 1, false);
        dsc_status status = dsc_yaml_open(alloc, "f.yaml", text, (int64_t)strlen(text), &most, &json, &error);
        if (status == DSC_OK)
            status = dsc_yaml_to_json(alloc, "f.yaml", text, (int64_t)strlen(text), &most, &printed, &bytes, &error);
        dsc_alloc_fail_at(alloc, 0, false);
        dsc_alloc_free(alloc, printed);
        dsc_json_close(&json);
        failed = status != DSC_OK;
        if (failed)
            assert_int_equal(status, DSC_ERR_NOMEM);
    }
    assert_true(failures > 8);
}

static void becomes_json(void **state)
{
    (void)state;
    const dsc_json_limits most = DSC_JSON_LIMITS_CONFIG;
    static const char text[] = "optimizer:\n  params: {lr: 1.5e-4}\n";
    char *json = NULL;
    int64_t bytes = 0;
    const int64_t length = (int64_t)strlen(text);
    assert_int_equal(dsc_yaml_to_json(alloc, "f.yaml", text, length, &most, &json, &bytes, &error), DSC_OK);
    assert_int_equal(bytes, strlen(json));
    assert_non_null(strstr(json, "\"lr\":\t0.00015"));
    dsc_alloc_free(alloc, json);
    assert_true(dsc_yaml_is_name("a/b.yaml"));
    assert_true(dsc_yaml_is_name("B.YML"));
    assert_false(dsc_yaml_is_name("yaml"));
    assert_false(dsc_yaml_is_name("a.yaml.json"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(data),
        cmocka_unit_test(places),
        cmocka_unit_test(yaml_features_beyond_plain_data_are_refused),
        cmocka_unit_test(limits), cmocka_unit_test(allocations_fail), cmocka_unit_test(becomes_json),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
