/* test_json.c - texts that the strict scan accepts or refuses, the position of its errors, and the cost of hostile
 * texts. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/formats/json_scan.h"

static dsc_alloc *alloc;
static dsc_error error;

static int open_alloc(void **state)
{
    (void)state;
    return dsc_alloc_open(&alloc, NULL) == DSC_OK ? 0 : -1;
}

static int close_alloc(void **state)
{
    (void)state;
    dsc_alloc_stats stats;
    dsc_alloc_stats_get(alloc, &stats);
    if (stats.live_count != 0)
        return -1; /* a leak, or the rest of a test that failed */
    dsc_alloc_close(&alloc);
    return 0;
}

static dsc_json *open_bytes(const char *text, int64_t bytes, dsc_json_dialect dialect)
{
    const dsc_json_limits limits = DSC_JSON_LIMITS_CONFIG;
    dsc_json *json = NULL;
    error = (dsc_error)DSC_ERROR_INIT;
    /* An exact copy, so that the address sanitizer sees a read past the end. */
    char *copy = malloc((size_t)bytes + (bytes == 0));
    if (copy == NULL)
        return NULL;
    memcpy(copy, text, (size_t)bytes);
    const dsc_status status = dsc_json_open(alloc, "f", copy, bytes, dialect, &limits, &json, &error);
    free(copy);
    assert_int_equal(status == DSC_OK, json != NULL);
    if (status != DSC_OK)
        assert_int_equal(status, dialect == DSC_JSON_CONFIG ? DSC_ERR_CONFIG : DSC_ERR_INPUT);
    return json;
}

static void accept(const char *text, dsc_json_dialect dialect)
{
    dsc_json *json = open_bytes(text, (int64_t)strlen(text), dialect);
    if (json == NULL)
        fail_msg("refused: %s: %s: %s", text, error.where, error.message);
    dsc_json_close(&json);
}

/* `where` is "line:column"; `part` must stand in the message. */
static void refuse_bytes(const char *text, int64_t bytes, dsc_json_dialect dialect, const char *where, const char *part)
{
    dsc_json *json = open_bytes(text, bytes, dialect);
    if (json != NULL) {
        dsc_json_close(&json);
        fail_msg("accepted: %s", text);
    }
    if (strcmp(error.where + 2, where) != 0 || strstr(error.message, part) == NULL)
        fail_msg("%s: said \"%s: %s\", expected f:%s and \"%s\"", text, error.where, error.message, where, part);
}

static void refuse(const char *text, const char *where, const char *part)
{
    refuse_bytes(text, (int64_t)strlen(text), DSC_JSON_STRICT, where, part);
    refuse_bytes(text, (int64_t)strlen(text), DSC_JSON_CONFIG, where, part);
}

static void refuse_strict(const char *text, const char *where, const char *part)
{
    refuse_bytes(text, (int64_t)strlen(text), DSC_JSON_STRICT, where, part);
    accept(text, DSC_JSON_CONFIG);
}

static void takes_json(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "0", "-0", "1", "-1.5e+3", "1E5", "0.1", "0e0", "1e-307", "5e-324", "1.7976931348623157e308",
        "9007199254740992", "-9007199254740992", "true", "false", "null", "\"\"", "[]", "{}", " \t\r\n[ ] ",
        "[1,2 , 3]", "[[],{},[[]]]",
        "{\"a\":{\"a\":[{\"a\":1},{\"a\":2}]},\"b\":1}", "\"\\u00e4\\n\\\\ \\/ \\\" \\b\\f\\r\\t\"",
        "\"\xf0\x9f\x98\x80\"",
        "\"\\ud83d\\ude00\"", "\"\\uFFFF \xef\xbf\xbf \xed\x9f\xbf \xee\x80\x80 \xf4\x8f\xbf\xbf\"", "\"\x7f\"",
        "{\"\":0}", "{\"a\":1,\"A\":2,\"a \":3,\"aa\":4}",
        "0.000000000000000000000000000000000000000000000000000000000001",
    };
    for (size_t i = 0; i < DSC_COUNT(texts); i++) {
        accept(texts[i], DSC_JSON_STRICT);
        accept(texts[i], DSC_JSON_CONFIG);
    }
}

static void configs_take_comments_and_trailing_commas(void **state)
{
    (void)state;
    refuse_strict("[1,]", "1:3", "a comma before ']'");
    refuse_strict("{\"a\":1 ,\n}", "1:8", "a comma before '}'");
    refuse_strict("// x\n1", "1:1", "comments");
    refuse_strict("# x\n1", "1:1", "comments");
    refuse_strict("1 /* x */", "1:3", "comments");
    refuse_strict("1 //", "1:3", "comments");
    refuse_strict("[1, // \"a\n2 /* , */ , # }\n /**/ 3 /***/ , /* \n */ ]#", "1:5", "comments");
    refuse("[1,,]", "1:4", "expected a value, found ','");
    refuse("[,]", "1:2", "expected a value, found ','");
    refuse("{,}", "1:2", "expected a key");
    refuse("{\"a\":1,,}", "1:8", "expected a key");
    refuse_bytes("1 /* x", 6, DSC_JSON_CONFIG, "1:3", "never closed");
    refuse_bytes("1 /*/", 5, DSC_JSON_CONFIG, "1:3", "never closed");
    refuse_bytes("/", 1, DSC_JSON_CONFIG, "1:1", "found '/'");
    refuse_bytes("// \xff\n1", 6, DSC_JSON_CONFIG, "1:4", "UTF-8");
    refuse_bytes("# \0\n1", 5, DSC_JSON_CONFIG, "1:3", "NUL");
    /* Comment signs inside strings are text. */
    dsc_json *json = open_bytes("{\"a\":\"// # /* */,\",}", 20, DSC_JSON_CONFIG);
    assert_non_null(json);
    assert_string_equal(dsc_json_root(json)->child->valuestring, "// # /* */,");
    dsc_json_close(&json);
}

/* Forms that real configs have and Hjson accepts. */
static void reads_lines_without_commas(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "{\"a\": [1, {\"b\": False}]\n\"c\": True}",
        "{\"a\": [1, {\"b\": False}]// no comma\n\n  \"c\": True, # one too many\n}",
        "{\"a\": [1, {\"b\": False\n}]/* a\nb */\"c\": True\n}",
    };
    for (size_t i = 0; i < DSC_COUNT(texts); i++) {
        char where[32];
        dsc_json *json = open_bytes(texts[i], (int64_t)strlen(texts[i]), DSC_JSON_CONFIG);
        assert_non_null(json);
        const cJSON *first = dsc_json_root(json)->child, *second = first->next;
        assert_true(cJSON_IsFalse(first->child->next->child));
        assert_string_equal(second->string, "c");
        assert_true(cJSON_IsTrue(second));
        assert_null(second->next);
        assert_int_equal(dsc_json_where(json, second, where, sizeof where)[2], i == 0 ? '2' : '3');
        dsc_json_close(&json);
        assert_null(open_bytes(texts[i], (int64_t)strlen(texts[i]), DSC_JSON_STRICT));
    }
    refuse_bytes("{\"a\":1 \"b\":2}", 13, DSC_JSON_CONFIG, "1:8", "expected ',' or '}', found a string");
    refuse_bytes("[\"a\"\n\"b\"]", 9, DSC_JSON_CONFIG, "2:1", "expected ',' or ']'");
    refuse_bytes("{\"a\":1\n", 7, DSC_JSON_CONFIG, "2:1", "found the end of the text");
    refuse_bytes("{\"a\":1\nb", 9, DSC_JSON_CONFIG, "2:1", "found 'b'");
    refuse_bytes("{\"a\":1\n\"a\":2}", 14, DSC_JSON_CONFIG, "2:1", "duplicate key");
    refuse_bytes("[Tru]", 5, DSC_JSON_CONFIG, "1:2", "expected a value");
    refuse_bytes("[None]", 6, DSC_JSON_CONFIG, "1:2", "expected null");
}

static void refuses_bad_structure(void **state)
{
    (void)state;
    refuse("", "1:1", "is empty");
    refuse(" \n ", "1:1", "is empty");
    refuse("\xef\xbb\xbf{}", "1:1", "byte order mark");
    refuse("\xff\xfe{", "1:1", "UTF-16");
    refuse("\xfe\xff", "1:1", "UTF-16");
    refuse("{} {}", "1:4", "expected the end of the text");
    refuse("1 2", "1:3", "expected the end");
    refuse("[1 2]", "1:4", "expected ',' or ']', found '2'");
    refuse("[1", "1:3", "found the end of the text");
    refuse("[", "1:2", "found the end of the text");
    refuse("[1}", "1:3", "expected ',' or ']', found '}'");
    refuse("]", "1:1", "expected a value, found ']'");
    refuse("{\"a\" 1}", "1:6", "expected ':'");
    refuse("{\"a\":}", "1:6", "expected a value, found '}'");
    refuse("{\"a\":1 \"b\":2}", "1:8", "expected ',' or '}', found a string");
    refuse("{a:1}", "1:2", "expected a key in double quotes, found 'a'");
    refuse("{1:1}", "1:2", "expected a key");
    refuse("{'a':1}", "1:2", "expected a key");
    refuse("['a']", "1:2", "double quotes");
    refuse("{\n  \"a\": [1,\n\t2 x]}", "3:4", "expected ',' or ']', found 'x'");
    refuse("[\xc3\xa4]", "1:2", "found '\xc3\xa4'");
    refuse("[\x01]", "1:2", "byte 0x01");
    refuse("\f1", "1:1", "byte 0x0c"); /* not JSON's white space, though cJSON takes it */
    refuse("truex", "1:5", "expected the end");
    refuse("[tru]", "1:2", "expected a value, found 't'");
}

static void refuses_other_languages_words(void **state)
{
    (void)state;
    refuse_bytes("[True]", 6, DSC_JSON_STRICT, "1:2", "expected true");
    refuse_bytes("[False]", 7, DSC_JSON_STRICT, "1:2", "expected false");
    refuse("[None]", "1:2", "expected null");
    refuse("[NaN]", "1:2", "expected a number");
    refuse("[-Infinity]", "1:2", "expected a number");
    refuse("[Infinity]", "1:2", "expected a number");
}

static void refuses_bad_numbers(void **state)
{
    (void)state;
    refuse("+1", "1:1", "expected a value");
    refuse("01", "1:1", "must not start with 0");
    refuse("-01", "1:1", "must not start with 0");
    refuse(".5", "1:1", "expected a value");
    refuse("1.", "1:1", "after the point");
    refuse("-", "1:1", "after the minus");
    refuse("-a", "1:1", "after the minus");
    refuse("1e", "1:1", "exponent");
    refuse("1e+", "1:1", "exponent");
    refuse("0x10", "1:2", "expected the end");
    refuse("1_000", "1:2", "expected the end");
    refuse("[1e309]", "1:2", "outside the range");
    refuse("[-1e309]", "1:2", "outside the range");
    refuse("[1e-400]", "1:2", "outside the range"); /* would silently be 0 */
    refuse("1e99999999999999999999", "1:1", "outside the range");
    refuse("0.0000000000000000000000000000000000000000000000000000000000000001", "1:1", "66 characters");
    refuse_strict("9007199254740993", "1:1", "above 2^53");
    refuse_strict("-9007199254740993", "1:1", "above 2^53");
    refuse_strict("123456789012345678901234567890", "1:1", "above 2^53");
    accept("0e-400", DSC_JSON_STRICT);
    accept("9007199254740993.0", DSC_JSON_STRICT); /* a fraction part, so not an integer */
}

/* The number's own text decides, which cJSON does not keep. */
static void knows_integers(void **state)
{
    static const struct { const char *text; bool is; int64_t value; } cases[] = {
        { "0", true, 0 },     { "16", true, 16 },     { "9007199254740992", true, INT64_C(9007199254740992) },
        { "16.0", false, 0 }, { "1.6e1", false, 0 },  { "16e0", false, 0 },
        { "-0", false, 0 },   { "-1", false, 0 },     { "0.5", false, 0 },
        { "\"16\"", false, 0 }, { "true", false, 0 }, { "[16]", false, 0 },
    };
    (void)state;
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        int64_t value = 0;
        dsc_json *json = open_bytes(cases[i].text, (int64_t)strlen(cases[i].text), DSC_JSON_STRICT);
        assert_non_null(json);
        assert_int_equal(dsc_json_integer(dsc_json_root(json), 0, DSC_JSON_INTEGER_MAX, &value), cases[i].is);
        assert_int_equal(value, cases[i].value);
        dsc_json_close(&json);
    }
    int64_t value = 0;
    assert_false(dsc_json_integer(NULL, 0, 1, &value));
    dsc_json *json = open_bytes("[-1, 5]", 7, DSC_JSON_STRICT);
    assert_non_null(json);
    assert_true(dsc_json_integer(dsc_json_root(json)->child, -1, 4, &value));
    assert_int_equal(value, -1);
    assert_false(dsc_json_integer(dsc_json_root(json)->child->next, -1, 4, &value));
    dsc_json_close(&json);
}

/* `a` and `b` as members of one document. */
static void expect_equal(const char *a, const char *b, bool equal)
{
    char text[400];
    const int bytes = snprintf(text, sizeof text, "[%s,%s]", a, b);
    dsc_json *json = open_bytes(text, bytes, DSC_JSON_STRICT);
    assert_non_null(json);
    const cJSON *first = dsc_json_root(json)->child;
    if (dsc_json_equal(first, first->next) != equal || dsc_json_equal(first->next, first) != equal)
        fail_msg("%s and %s", a, b);
    dsc_json_close(&json);
}

static void values_are_equal_in_any_order_of_members(void **state)
{
    static const struct {
        const char *a, *b;
        bool equal;
    } cases[] = {
        { "1", "1.0", true },
        { "1", "true", false },
        { "true", "true", true },
        { "true", "false", false },
        { "null", "null", true },
        { "\"a\"", "\"a\"", true },
        { "\"a\"", "\"A\"", false },
        { "[]", "{}", false },
        { "[1,2]", "[1,2]", true },
        { "[1,2]", "[2,1]", false },
        { "[1]", "[1,2]", false },
        { "{\"a\":1,\"b\":[2],\"c\":{}}", "{\"c\":{},\"b\":[2],\"a\":1}", true },
        { "{\"a\":1,\"b\":2}", "{\"a\":1,\"b\":3}", false },
        { "{\"a\":1}", "{\"a\":1,\"b\":2}", false },
        { "{\"a\":1,\"b\":2}", "{\"a\":1,\"c\":2}", false },
    };
    (void)state;
    for (size_t i = 0; i < DSC_COUNT(cases); i++)
        expect_equal(cases[i].a, cases[i].b, cases[i].equal);
    assert_false(dsc_json_equal(NULL, NULL));
}

static void refuses_bad_strings(void **state)
{
    (void)state;
    refuse("\"a", "1:1", "never closed");
    refuse("\"a\\", "1:3", "unknown escape");
    refuse("\"a\nb\"", "1:3", "the line ends inside a string");
    refuse("\"a\tb\"", "1:3", "control character");
    refuse_bytes("\"a\0b\"", 5, DSC_JSON_STRICT, "1:3", "control character");
    refuse("\"\\x41\"", "1:2", "unknown escape");
    refuse("\"\\u12g4\"", "1:6", "four hexadecimal digits");
    refuse("\"\\u12", "1:6", "four hexadecimal digits");
    refuse("\"\\u0000\"", "1:2", "NUL");
    refuse("\"\\ud800\"", "1:2", "without the second half");
    refuse("\"\\ud800\\n\"", "1:2", "without the second half");
    refuse("\"\\ud800\\u0041\"", "1:2", "followed by");
    refuse("\"\\udc00\\ud800\"", "1:2", "without the first half");
    refuse("{\"a\\n\":1}", "1:4", "control character in a key");
    refuse("{\"\x7f\":1}", "1:3", "control character in a key");
    refuse("{\"\\u001b[2J\":1}", "1:3", "control character in a key");
}

static void refuses_invalid_utf8(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "\x80", "\xc0\x80", "\xc1\xbf", "\xc3", "\xc3(", "\xe0\x80\x80", "\xe0\x9f\xbf", "\xe2\x82", "\xed\xa0\x80",
        "\xed\xbf\xbf", "\xf0\x80\x80\x80", "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\xfe",
        "\xf0\x9f\x98",
    };
    for (size_t i = 0; i < DSC_COUNT(bad); i++) {
        char text[32];
        snprintf(text, sizeof text, "[\"\xc3\xa4%s\"]", bad[i]);
        refuse(text, "1:4", "not valid UTF-8");
        snprintf(text, sizeof text, "\"%s", bad[i]); /* at the very end of the text */
        refuse(text, "1:2", "not valid UTF-8");
    }
    refuse("\xff", "1:1", "byte 0xff");
}

static void refuses_duplicates(void **state)
{
    (void)state;
    refuse("{\"stage\":1,\n\n \"stage\":2}", "3:2", "duplicate key \"stage\" (first at line 1)");
    refuse("{\"a\":1,\"\\u0061\":2}", "1:8", "duplicate key \"a\"");
    refuse("{\"\":1,\"\":2}", "1:7", "duplicate key \"\"");
    refuse("[{\"x\":{\"a\":1,\"b\":{},\"a\":2}}]", "1:21", "duplicate key \"a\"");
    refuse("{\"b\":1,\"a\":1,\n\"b\":2,\"a\":3,\"b\":4}", "2:1", "duplicate key \"b\" (first at line 1)");
    refuse("{\"\\ud83d\\ude00\":1,\n\"\xf0\x9f\x98\x80\":2}", "2:1", "duplicate key");
    refuse("{\"a\":{\"b\":1},\"a\":{\"c\":1}}", "1:14", "duplicate key \"a\"");
    /* A long key is shown up to a whole character. */
    char text[500], shown[200];
    char *end = shown + sprintf(shown, "duplicate key \"x");
    for (int i = 0; i < 63; i++)
        end += sprintf(end, "\xc3\xa4");
    strcpy(end, "...\" (first");
    char key[200] = "x";
    for (int i = 0; i < 70; i++)
        strcat(key, "\xc3\xa4");
    sprintf(text, "{\"%s\":1,\n\"%s\":1}", key, key);
    refuse(text, "2:1", shown);
}

static void values_know_their_place(void **state)
{
    (void)state;
    const char *text = "/* \xc3\xa4 */ {\"k\xc3\xa4\": [1, \"\xe2\x82\xac\", true],\r\n"
                       "  \"o\": {\"x\": null, // c\n"
                       "\t\"y\": -2.5e1}, \"z\": []}";
    dsc_json *json = open_bytes(text, (int64_t)strlen(text), DSC_JSON_CONFIG);
    assert_non_null(json);
    const cJSON *root = dsc_json_root(json);
    const cJSON *k = cJSON_GetObjectItemCaseSensitive(root, "k\xc3\xa4");
    const cJSON *o = cJSON_GetObjectItemCaseSensitive(root, "o");
    const struct { const cJSON *item; const char *where; } cases[] = {
        { root, "f:1:9" },
        { k, "f:1:16" },
        { cJSON_GetArrayItem(k, 0), "f:1:17" },
        { cJSON_GetArrayItem(k, 1), "f:1:20" },
        { cJSON_GetArrayItem(k, 2), "f:1:25" },
        { o, "f:2:8" },
        { cJSON_GetObjectItemCaseSensitive(o, "x"), "f:2:14" },
        { cJSON_GetObjectItemCaseSensitive(o, "y"), "f:3:7" },
        { cJSON_GetObjectItemCaseSensitive(root, "z"), "f:3:21" },
        { NULL, "f" },
        { (const cJSON *)text, "f" },
    };
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        char where[64];
        assert_string_equal(dsc_json_where(json, cases[i].item, where, sizeof where), cases[i].where);
    }
    assert_true(cJSON_GetObjectItemCaseSensitive(o, "y")->valuedouble == -25.0);
    assert_string_equal(cJSON_GetArrayItem(k, 1)->valuestring, "\xe2\x82\xac");
    dsc_json_close(&json);
    dsc_json_close(&json);
}

static dsc_status open_limited(const char *text, int64_t bytes, dsc_json_limits limits)
{
    dsc_json *json = NULL;
    error = (dsc_error)DSC_ERROR_INIT;
    const dsc_status status = dsc_json_open(alloc, "f", text, bytes, DSC_JSON_STRICT, &limits, &json, &error);
    dsc_json_close(&json);
    return status;
}

static void limits_hold_exactly(void **state)
{
    (void)state;
    assert_int_equal(open_limited("[[[1]]]", 7, (dsc_json_limits){ 7, 3, 4 }), DSC_OK);
    assert_int_equal(open_limited("[[[1]]]", 7, (dsc_json_limits){ 6, 3, 4 }), DSC_ERR_INPUT);
    assert_non_null(strstr(error.message, "7 bytes are more than the 6"));
    assert_int_equal(open_limited("[[[1]]]", 7, (dsc_json_limits){ 7, 2, 4 }), DSC_ERR_INPUT);
    assert_string_equal(error.where, "f:1:3");
    assert_non_null(strstr(error.message, "deeper than 2"));
    assert_int_equal(open_limited("[[[1]]]", 7, (dsc_json_limits){ 7, 3, 3 }), DSC_ERR_INPUT);
    assert_string_equal(error.where, "f:1:4");
    assert_non_null(strstr(error.message, "more than 3 values"));
    assert_int_equal(open_limited("1", 1, (dsc_json_limits){ 1, 0, 1 }), DSC_OK);
    assert_int_equal(open_limited("[]", 2, (dsc_json_limits){ 2, 0, 1 }), DSC_ERR_INPUT);
}

/* The deepest that any caller may allow must fit the stack and cJSON. */
static void deep_texts_do_not_overflow(void **state)
{
    (void)state;
    char text[2 * 1000000];
    memset(text, '[', 512);
    memset(text + 512, ']', 512);
    assert_int_equal(open_limited(text, 1024, (dsc_json_limits){ 1024, 512, 10000 }), DSC_OK);
    memset(text, '[', sizeof text);
    assert_int_equal(open_limited(text, sizeof text, (dsc_json_limits){ sizeof text, 512, 10000 }), DSC_ERR_INPUT);
    assert_string_equal(error.where, "f:1:513");
}

/* Members of one object; `make_key` writes the key of member i. Returns seconds that opening took. */
static double time_object(int64_t count, int (*make_key)(char *out, int64_t i), dsc_status want)
{
    const int64_t room = count * 600 + 16;
    char *text = malloc((size_t)room);
    if (text == NULL)
        return 1e9;
    int64_t used = 0;
    text[used++] = '{';
    for (int64_t i = 0; i < count; i++) {
        text[used++] = '"';
        used += make_key(text + used, i);
        used += sprintf(text + used, "\":0%s", i + 1 < count ? "," : "}");
    }
    const int64_t start = dsc_clock_ns();
    const dsc_status status = open_limited(text, used, (dsc_json_limits){ room, 4, count + 1 });
    const double seconds = (double)(dsc_clock_ns() - start) * 1e-9;
    free(text);
    if (status != want)
        fail_msg("%s: %s", error.where, error.message);
    return seconds;
}

static int key_ascending(char *out, int64_t i) { return sprintf(out, "%07d", (int)i); }
static int key_descending(char *out, int64_t i) { return sprintf(out, "%07d", (int)(9999999 - i)); }
static int key_mixed(char *out, int64_t i) { return sprintf(out, "%x", (unsigned)i * 2654435761u); }
static int key_last_repeats(char *out, int64_t i) { return sprintf(out, "k%d", (int)(i == 299999 ? 0 : i)); }
static int key_long_prefix(char *out, int64_t i) { return sprintf(out, "%0512d", (int)i); }

/* Comparing each key with each would be 4.5e10 comparisons here: minutes. */
static void many_members_are_not_quadratic(void **state)
{
    (void)state;
    const double limit_s = 20; /* sanitizers on a loaded machine; 0.1 s is usual */
    assert_true(time_object(300000, key_ascending, DSC_OK) < limit_s);
    assert_true(time_object(300000, key_descending, DSC_OK) < limit_s);
    assert_true(time_object(300000, key_mixed, DSC_OK) < limit_s);
    assert_true(time_object(300000, key_last_repeats, DSC_ERR_INPUT) < limit_s);
    assert_non_null(strstr(error.message, "duplicate key \"k0\""));
    assert_true(time_object(10000, key_long_prefix, DSC_OK) < limit_s);
}

/* The worst an attacker can do to the hash: the sort alone must keep it n log n. */
static void equal_hashes_are_not_quadratic(void **state)
{
    (void)state;
    enum { COUNT = 100000, BYTES = 8 };
    char *text = malloc(COUNT * BYTES + 1);
    dsc_json_key *keys = calloc(COUNT, sizeof *keys);
    assert_non_null(text);
    assert_non_null(keys);
    for (int order = 0; order < 3; order++) {
        for (uint32_t i = 0; i < COUNT; i++) {
            const uint32_t name = order == 0 ? i : order == 1 ? COUNT - i : (uint32_t)((uint64_t)i * 48271 % COUNT);
            sprintf(text + BYTES * i, "%08u", name);
            keys[i] = (dsc_json_key){ .start = BYTES * i, .bytes = BYTES, .at = i };
        }
        const int64_t start = dsc_clock_ns();
        const dsc_json_key *original = NULL;
        assert_null(dsc_json_find_repeat(text, keys, COUNT, &original));
        assert_true(dsc_clock_ns() - start < INT64_C(10000000000)); /* quadratic: 5e9 comparisons */
        for (uint32_t i = 0; i < COUNT; i++)
            keys[i] = (dsc_json_key){ .start = BYTES * i, .bytes = BYTES, .at = i };
        memcpy(text + BYTES * 70000, text + BYTES * 20000, BYTES);
        memcpy(text + BYTES * 60000, text + BYTES * 30000, BYTES);
        const dsc_json_key *repeat = dsc_json_find_repeat(text, keys, COUNT, &original);
        assert_non_null(repeat);
        assert_int_equal(repeat->at, 60000);
        assert_int_equal(original->at, 30000);
    }
    free(text);
    free(keys);
}

/* A long file name must not push the position out of the error. */
static void a_long_name_leaves_the_position(void **state)
{
    (void)state;
    char name[600];
    memset(name, 'd', sizeof name);
    strcpy(name + sizeof name - 9, "/ds.json");
    const dsc_json_limits limits = DSC_JSON_LIMITS_CONFIG;
    dsc_json *json = NULL;
    assert_int_equal(dsc_json_open(alloc, name, "[\n1 2]", 6, DSC_JSON_CONFIG, &limits, &json, &error), DSC_ERR_CONFIG);
    assert_null(json);
    assert_string_equal(error.where + strlen(error.where) - 12, "/ds.json:2:3");
}

/* The n-th allocation fails, for every n: always NOMEM, never a leak (the teardown asserts that). */
static void every_allocation_may_fail(void **state)
{
    (void)state;
    char text[4000];
    int used = sprintf(text, "{\"list\":[");
    for (int i = 0; i < 200; i++)
        used += sprintf(text + used, "{\"k%d\":%d},", i % 7, i);
    used += sprintf(text + used, "0],\"a key with some length, so that its text grows more than once, or twice\":[]}");
    const dsc_json_limits limits = DSC_JSON_LIMITS_CONFIG;
    for (int persistent = 0; persistent < 2; persistent++) {
        int64_t failures = 0;
        for (int64_t n = 1;; n++) {
            dsc_alloc_stats stats;
            dsc_alloc_stats_get(alloc, &stats);
            dsc_alloc_fail_at(alloc, stats.call_count + n, persistent);
            dsc_json *json = NULL;
            error = (dsc_error)DSC_ERROR_INIT;
            const dsc_status status = dsc_json_open(alloc, "f", text, used, DSC_JSON_CONFIG, &limits, &json, &error);
            dsc_alloc_fail_at(alloc, 0, false);
            assert_int_equal(status == DSC_OK, json != NULL);
            if (status == DSC_OK) {
                dsc_json_close(&json);
                break;
            }
            assert_int_equal(status, DSC_ERR_NOMEM);
            assert_int_equal(error.status, DSC_ERR_NOMEM);
            dsc_alloc_stats_get(alloc, &stats);
            assert_int_equal(stats.live_count, 0);
            failures++;
        }
        assert_in_range(failures, 8, 100);
    }
}

/* Where the point is a comma, "1.5" must stay 1.5 and "1e999" stay refused. */
static void locale_does_not_matter(void **state)
{
    (void)state;
    static const char *const names[] = { "de_DE.UTF-8", "de_DE.utf8", "de_DE", "fr_FR.UTF-8", "fr_FR" };
    const char *set = NULL;
    for (size_t i = 0; i < DSC_COUNT(names) && set == NULL; i++)
        set = setlocale(LC_ALL, names[i]);
    dsc_json *json = open_bytes("[1.5,1e-5]", 10, DSC_JSON_STRICT);
    assert_non_null(json);
    assert_true(cJSON_GetArrayItem(dsc_json_root(json), 0)->valuedouble == 1.5);
    dsc_json_close(&json);
    refuse("[1.5e999]", "1:2", "outside the range");
    setlocale(LC_ALL, "C");
}

static void quoting(void **state)
{
    (void)state;
    static const struct { const char *from, *to; } cases[] = {
        { "", "\"\"" },
        { "plain \xc3\xa4", "\"plain \xc3\xa4\"" },
        { "a\"b\\c", "\"a\\\"b\\\\c\"" },
        { "\n\x1f\x7f", "\"\\u000a\\u001f\\u007f\"" },
        { "\xff" "a\xed\xa0\x80", "\"\\ufffda\\ufffd\\ufffd\\ufffd\"" },
    };
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        char out[64];
        assert_int_equal(dsc_json_quote(out, sizeof out, cases[i].from), strlen(cases[i].to));
        assert_string_equal(out, cases[i].to);
        assert_int_equal(dsc_json_quote(NULL, 0, cases[i].from), strlen(cases[i].to));
        dsc_json *json = open_bytes(out, (int64_t)strlen(out), DSC_JSON_STRICT); /* our own output is valid input */
        assert_non_null(json);
        dsc_json_close(&json);
        for (size_t room = 1; room < sizeof out; room++) {
            memset(out, 'x', sizeof out);
            dsc_json_quote(out, room, cases[i].from);
            assert_true(strlen(out) < room);
            assert_memory_equal(out, cases[i].to, strlen(out));
        }
    }
    char out[64];
    dsc_json_quote(out, 6, "ab\n");
    assert_string_equal(out, "\"ab"); /* no half escape */
}

/* DSC_BENCH=1: a tokenizer-sized and a config-sized text. */
static void bench(void)
{
    if (open_alloc(NULL) != 0)
        return;
    for (int i = 0; i < 3; i++)
        printf("# 1,000,000 members: %.3f s, 10,000: %.4f s\n", time_object(1000000, key_mixed, DSC_OK),
               time_object(10000, key_mixed, DSC_OK));
    dsc_alloc_close(&alloc);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, open_alloc, close_alloc)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(takes_json),
        TEST(configs_take_comments_and_trailing_commas),
        TEST(reads_lines_without_commas),
        TEST(refuses_bad_structure),
        TEST(refuses_other_languages_words),
        TEST(refuses_bad_numbers),
        TEST(knows_integers),
        TEST(values_are_equal_in_any_order_of_members),
        TEST(refuses_bad_strings),
        TEST(refuses_invalid_utf8),
        TEST(refuses_duplicates),
        TEST(values_know_their_place),
        TEST(limits_hold_exactly),
        TEST(deep_texts_do_not_overflow),
        TEST(many_members_are_not_quadratic),
        TEST(equal_hashes_are_not_quadratic),
        TEST(a_long_name_leaves_the_position),
        TEST(every_allocation_may_fail),
        TEST(locale_does_not_matter),
        TEST(quoting),
    };
    if (getenv("DSC_BENCH") != NULL)
        bench();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
