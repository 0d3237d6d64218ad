/* test_text.c - tokenizers: golden ids of each style, what is refused, patterns, UTF-8, normal forms, long words.
 *
 * The golden files and their ids come from tests/golden/make_tokenizers.py, which is the `tokenizers` package's work;
 * tests/cli/test_tokenizers.sh holds us against the package itself. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>
#include <dsc/text.h>
#include <utf8proc.h>

#include "base/clock.h"
#include "base/formats/utf8.h"
#include "base/io.h"
#include "engine/text/regex.h"
#include "engine/text/unicode.h"
#include "tests/support/sanitizer.h"

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
    dsc_alloc_close(&alloc); /* asserts that nothing is left */
    return 0;
}

static char *read_golden(const char *name, int64_t *bytes)
{
    char path[128];
    char *text = NULL;
    snprintf(path, sizeof path, "tests/golden/%s", name);
    assert_int_equal(dsc_io_read_all(NULL, alloc, path, 1 << 20, &text, bytes, &error), DSC_OK);
    return text;
}

/* A tokenizer of a text that no file holds. */
static dsc_status open_text(const char *json, dsc_tokenizer **out)
{
    char path[64];
    const int fd = memfd_create("tokenizer", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, json, strlen(json)), (ssize_t)strlen(json));
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    error = (dsc_error)DSC_ERROR_INIT;
    const dsc_status status = dsc_tokenizer_open(out, path, &error);
    close(fd);
    return status;
}

/* ---- Golden ids ---- */

static void check_style(const char *style, const char *text, int64_t bytes, const char *line)
{
    char path[128];
    dsc_tokenizer *tokenizer = NULL;
    dsc_encoder *encoder = NULL;
    const int32_t *ids = NULL;
    const char *back = NULL;
    int64_t count = 0, back_bytes = 0;
    char *at = NULL;
    snprintf(path, sizeof path, "tests/golden/tokenizer_%s.json", style);
    assert_int_equal(dsc_tokenizer_open(&tokenizer, path, &error), DSC_OK);
    assert_int_equal(dsc_encoder_open(&encoder, tokenizer, &error), DSC_OK);
    assert_int_equal(dsc_encode(encoder, text, bytes, DSC_ENCODE_SPECIAL, &ids, &count, &error), DSC_OK);
    assert_int_equal(count, strtoll(line, &at, 10));
    for (int64_t i = 0; i < count; i++)
        if (strtoll(at, &at, 10) != ids[i])
            fail_msg("%s: id %lld of %lld differs", style, (long long)i, (long long)count);
    int32_t *copy = malloc((size_t)count * sizeof *copy);
    assert_non_null(copy);
    memcpy(copy, ids, (size_t)count * sizeof *copy);
    assert_int_equal(dsc_decode(encoder, copy, count, true, &back, &back_bytes, &error), DSC_OK);
    free(copy);
    if (strcmp(style, "bert") == 0) { /* the decoded text is in small letters and without accents */
        int64_t golden_bytes = 0;
        char *golden = read_golden("tokenizer_bert.txt", &golden_bytes);
        assert_int_equal(back_bytes, golden_bytes);
        assert_memory_equal(back, golden, (size_t)golden_bytes);
        dsc_alloc_free(alloc, golden);
    } else if (strcmp(style, "qwen") != 0) { /* the decoded text is in normal form */
        assert_int_equal(back_bytes, bytes);
        assert_memory_equal(back, text, (size_t)bytes);
    }
    dsc_encoder_close(&encoder);
    dsc_tokenizer_close(&tokenizer);
}

static void test_golden(void **state)
{
    (void)state;
    int64_t bytes = 0, list_bytes = 0;
    char *text = read_golden("tokenizer_text.txt", &bytes), *list = read_golden("tokenizer_ids.txt", &list_bytes);
    int styles = 0;
    char *rest = NULL;
    for (char *line = strtok_r(list, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest), styles++) {
        char *blank = strchr(line, ' ');
        *blank = 0;
        check_style(line, text, bytes, blank + 1);
    }
    assert_int_equal(styles, 6);
    dsc_alloc_free(alloc, text);
    dsc_alloc_free(alloc, list);
}

/* ---- What is refused, and how it is said ---- */

#define BASE(parts, model) "{\"added_tokens\":[]," parts "\"model\":{\"type\":\"BPE\"," model "}}"
#define PIECES(parts, model) "{" parts "\"model\":{\"type\":\"WordPiece\",\"vocab\":{\"u\":0,\"a\":1}," model "}}"
#define WORDS "\"continuing_subword_prefix\":\"##\",\"max_input_chars_per_word\":100"
#define UNIGRAM(more, vocab) "{" more "\"model\":{\"type\":\"Unigram\",\"vocab\":" vocab "}}"
#define CHARSMAP(base64) \
    BASE("\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"" base64 "\"},", MODEL)
#define MODEL "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":[\"a b\"]"

static void test_refused(void **state)
{
    (void)state;
    static const struct { const char *json, *says; dsc_status status; } cases[] = {
        { "{}", "no \"model\"", DSC_ERR_INPUT },
        { "[1]", "no \"model\"", DSC_ERR_INPUT },
        { BASE("", MODEL) "x", "", DSC_ERR_INPUT },
        { "{\"model\":{\"type\":\"WordPiece\"}}", "vocab", DSC_ERR_INPUT },
        { PIECES("", "\"unk_token\":\"u\",\"continuing_subword_prefix\":\"##\""), "max_input_chars_per_word",
          DSC_ERR_INPUT },
        { PIECES("", "\"unk_token\":\"v\"," WORDS), "\"unk_token\" is not in", DSC_ERR_INPUT },
        { PIECES("", WORDS), "\"unk_token\" must be", DSC_ERR_INPUT },
        { PIECES("", "\"unk_token\":\"u\",\"end_of_word_suffix\":\"w\"," WORDS), "end_of_word_suffix",
          DSC_ERR_UNSUPPORTED },
        { PIECES("\"pre_tokenizer\":{\"type\":\"ByteLevel\"},", "\"unk_token\":\"u\"," WORDS), "behind ByteLevel",
          DSC_ERR_UNSUPPORTED },
        { "{\"model\":{\"type\":\"WordLevel\"}}", "a WordLevel model is not built", DSC_ERR_UNSUPPORTED },
        { "{\"model\":{\"type\":\"Unigram\"}}", "\"vocab\" must be an array", DSC_ERR_INPUT },
        { UNIGRAM("", "[]"), "\"vocab\" must be an array", DSC_ERR_INPUT },
        { UNIGRAM("", "[[\"a\"]]"), "a piece must be", DSC_ERR_INPUT },
        { UNIGRAM("", "[[\"a\",-1,2]]"), "a piece must be", DSC_ERR_INPUT },
        { UNIGRAM("", "[[\"a\",1e999]]"), "range of a double", DSC_ERR_INPUT },
        { UNIGRAM("", "[[\"a\",-1]],\"unk_id\":1"), "\"unk_id\" must be a whole number from 0 to 0", DSC_ERR_INPUT },
        { UNIGRAM("\"pre_tokenizer\":{\"type\":\"ByteLevel\"},", "[[\"a\",-1]]"), "Unigram behind ByteLevel",
          DSC_ERR_UNSUPPORTED },
        { BASE("\"normalizer\":{\"type\":\"ByteLevel\"},", MODEL), "normalizer \"ByteLevel\"", DSC_ERR_UNSUPPORTED },
        { BASE("\"normalizer\":{\"type\":\"Precompiled\"},", MODEL), "must be a string", DSC_ERR_INPUT },
        { CHARSMAP("AAA"), "not base64", DSC_ERR_INPUT },
        { CHARSMAP("A=AA"), "not base64", DSC_ERR_INPUT },
        { CHARSMAP(""), "0 bytes with a tree of 0", DSC_ERR_INPUT },
        { CHARSMAP("CAAAAAAA"), "6 bytes with a tree of 8", DSC_ERR_INPUT },
        { CHARSMAP("BAAAAAAAAAD/"), "not UTF-8", DSC_ERR_INPUT },
        { BASE("\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"},", MODEL), "UnicodeScripts", DSC_ERR_UNSUPPORTED },
        { BASE("\"post_processor\":{\"type\":\"Strange\"},", MODEL), "Strange", DSC_ERR_UNSUPPORTED },
        { BASE("\"decoder\":{\"type\":\"CTC\"},", MODEL), "decoder \"CTC\"", DSC_ERR_UNSUPPORTED },
        { BASE("\"truncation\":{\"max_length\":5},", MODEL), "truncation", DSC_ERR_UNSUPPORTED },
        { BASE("\"padding\":{},", MODEL), "padding", DSC_ERR_UNSUPPORTED },
        { BASE("\"extra\":1,", MODEL), "\"extra\"", DSC_ERR_UNSUPPORTED },
        { BASE("\"\":1,", MODEL), "\"\" is not known here", DSC_ERR_UNSUPPORTED },
        { BASE("\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"odd\":1},", MODEL), "\"odd\"", DSC_ERR_UNSUPPORTED },
        { BASE("", MODEL ",\"dropout\":0.1"), "dropout", DSC_ERR_UNSUPPORTED },
        { BASE("", MODEL ",\"end_of_word_suffix\":\"123456789012345678901234567890123\""), "end_of_word_suffix",
          DSC_ERR_UNSUPPORTED },
        { BASE("\"pre_tokenizer\":{\"type\":\"ByteLevel\"},", MODEL ",\"end_of_word_suffix\":\" \""),
          "stands for no byte", DSC_ERR_UNSUPPORTED },
        { BASE("\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"ByteLevel\"},"
               "{\"type\":\"ByteLevel\"}]},", MODEL), "ByteLevel followed by", DSC_ERR_UNSUPPORTED },
        { BASE("", "\"vocab\":{},\"merges\":[]"), "vocab", DSC_ERR_INPUT },
        { BASE("", "\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]"), "id 0", DSC_ERR_INPUT },
        { BASE("", "\"vocab\":{\"a\":-1},\"merges\":[]"), "whole number", DSC_ERR_INPUT },
        { BASE("", "\"vocab\":{\"a\":1e9},\"merges\":[]"), "whole number", DSC_ERR_INPUT },
        { BASE("", "\"vocab\":{\"a\":0.5},\"merges\":[]"), "whole number", DSC_ERR_INPUT },
        { BASE("", "\"vocab\":{\"a\":0.0},\"merges\":[]"), "whole number", DSC_ERR_INPUT },
        { BASE("", "\"vocab\":{\"a\":0e0},\"merges\":[]"), "whole number", DSC_ERR_INPUT },
        { BASE("", "\"vocab\":{\"a\":0,\"a\":1},\"merges\":[]"), "duplicate", DSC_ERR_INPUT },
        { BASE("", "\"vocab\":{\"a\":0},\"merges\":[\"a b\"]"), "\"b\" is not in the vocabulary", DSC_ERR_INPUT },
        { BASE("", "\"vocab\":{\"a\":0},\"merges\":[\"a a\"]"), "\"aa\" is not in the vocabulary", DSC_ERR_INPUT },
        { BASE("", "\"vocab\":{\"a\":0},\"merges\":[\"a\"]"), "one blank", DSC_ERR_INPUT },
        { BASE("", "\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]"), "array of two", DSC_ERR_INPUT },
        { BASE("", MODEL ",\"unk_token\":\"<u>\""), "unk_token", DSC_ERR_INPUT },
        { BASE("", "\"vocab\":{\"a\":{\"a\":0}},\"merges\":[]"), "has an object for its id", DSC_ERR_INPUT },
        { "{\"added_tokens\":[{\"id\":1,\"content\":\"a\"}],\"model\":{" MODEL "}}", "has the id 1 here and 0",
          DSC_ERR_INPUT },
        { "{\"added_tokens\":[{\"id\":9,\"content\":\"<x>\"}],\"model\":{" MODEL "}}",
          "has the id 9 here; the tokenizers package", DSC_ERR_INPUT },
        { "{\"version\":\"2.0\",\"model\":{" MODEL "}}", "\"version\"", DSC_ERR_UNSUPPORTED },
        { BASE("\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a+)+b\"},\"behavior\":\"Isolated\"},",
               MODEL), "a repeated group", DSC_ERR_UNSUPPORTED },
        { BASE("\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a*\"},\"behavior\":\"Isolated\"},",
               MODEL), "matches nothing", DSC_ERR_UNSUPPORTED },
    };
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        dsc_tokenizer *tokenizer = NULL;
        const dsc_status status = open_text(cases[i].json, &tokenizer);
        if (status != cases[i].status || strstr(error.message, cases[i].says) == NULL || tokenizer != NULL)
            fail_msg("%s\n gives %d \"%s\", expected %d with \"%s\"", cases[i].json, status, error.message,
                     cases[i].status, cases[i].says);
        assert_int_not_equal(error.where[0], 0);
    }
}

/* ---- Small cases, with what the package (0.23.3) makes of them ---- */

#define ADDED(id, text, more) "{\"id\":" id ",\"content\":\"" text "\",\"normalized\":false" more "}"
#define SMALL(added, parts)                                                                                       \
    "{\"added_tokens\":[" added "]," parts "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\" \":2,\"ab\":3," \
    "\"\xe2\x96\x81\":4,\"\xe2\x96\x81" "a\":5,\"THE\":6,\"\\n\":7},\"merges\":[\"a b\",\"\xe2\x96\x81 a\"]}}"
#define METASPACE                                                                                                 \
    "\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"\xe2\x96\x81\",\"prepend_scheme\":\"first\","         \
    "\"split\":false},"

static void test_small(void **state)
{
    (void)state;
    static const struct { const char *json, *text; int32_t ids[8]; int64_t count; const char *back; } cases[] = {
        /* Blanks that strip both sides, found again inside what the one before has taken; and their right alone. */
        { SMALL(ADDED("8", "  ", ",\"lstrip\":true,\"rstrip\":true"), ""), "a     b  a", { 0, 8, 1, 8, 0 }, 5,
          "a    b    a" },
        { SMALL(ADDED("8", "  ", ",\"rstrip\":true"), ""), "a     b  a", { 0, 8, 8, 1, 8, 0 }, 6, "a       b    a" },
        /* A special token that is normalised has another name, which is not special. */
        { SMALL("{\"id\":6,\"content\":\"THE\",\"normalized\":true,\"special\":true}",
                "\"normalizer\":{\"type\":\"Lowercase\"},"), "a THE b the", { 0, 2, 6, 2, 1, 2, 6 }, 7,
          "a   the   b   the" },
        /* Nothing is put before a text whose beginning the normalizer dropped. */
        { SMALL("", "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"b\"},\"content\":\"\"}," METASPACE),
          "ba a", { 0, 5 }, 2, "a \xe2\x96\x81" "a" },
        { SMALL("", METASPACE), "a a", { 5, 5 }, 2, "\xe2\x96\x81" "a \xe2\x96\x81" "a" },
    };
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        dsc_tokenizer *tokenizer = NULL;
        dsc_encoder *encoder = NULL;
        const int32_t *ids = NULL;
        const char *back = NULL;
        int64_t count = 0, bytes = 0;
        if (open_text(cases[i].json, &tokenizer) != DSC_OK)
            fail_msg("%s: %s", error.where, error.message);
        assert_int_equal(dsc_encoder_open(&encoder, tokenizer, &error), DSC_OK);
        assert_int_equal(dsc_encode(encoder, cases[i].text, (int64_t)strlen(cases[i].text), 0, &ids, &count, &error),
                         DSC_OK);
        assert_int_equal(count, cases[i].count);
        assert_memory_equal(ids, cases[i].ids, (size_t)count * sizeof *ids);
        assert_int_equal(dsc_decode(encoder, cases[i].ids, count, true, &back, &bytes, &error), DSC_OK);
        assert_string_equal(back, cases[i].back);
        dsc_encoder_close(&encoder);
        dsc_tokenizer_close(&tokenizer);
    }
}

/* ByteLevel puts a space before each word, so that a text cut between words would lack one. */
static void test_no_cut(void **state)
{
    (void)state;
    static const char head[] = "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":["
                               "{\"type\":\"WhitespaceSplit\"},"
                               "{\"type\":\"ByteLevel\",\"use_regex\":false,\"add_prefix_space\":";
    static const char tail[] = "}]},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}";
    for (int prefix = 0; prefix < 2; prefix++) {
        char json[512];
        dsc_tokenizer *tokenizer = NULL;
        snprintf(json, sizeof json, "%s%s%s", head, prefix == 1 ? "true" : "false", tail);
        assert_int_equal(open_text(json, &tokenizer), DSC_OK);
        assert_int_equal(dsc_tokenizer_cut(tokenizer, "a\na", 3), prefix == 1 ? 0 : 2);
        dsc_tokenizer_close(&tokenizer);
    }
}

/* ---- Patterns ---- */

/* The matches of a pattern, each in brackets. */
static const char *matches(const char *pattern, const char *text, char *out, size_t out_bytes)
{
    dsc_regex *regex = NULL;
    bool found = true;
    size_t used = 0;
    assert_int_equal(dsc_regex_open(alloc, pattern, "test", &regex, &error), DSC_OK);
    dsc_regex_search search = dsc_regex_start(text, (int64_t)strlen(text));
    out[0] = 0;
    for (;;) {
        const char *start, *end;
        assert_int_equal(dsc_regex_next(regex, &search, &start, &end, &found, &error), DSC_OK);
        if (!found)
            break;
        used += (size_t)snprintf(out + used, out_bytes - used, "[%.*s]", (int)(end - start), start);
    }
    dsc_regex_close(&regex);
    return out;
}

static void test_patterns(void **state)
{
    (void)state;
    static const struct { const char *pattern, *text, *found; } cases[] = {
        { "a|ab", "abab", "[a][a]" }, /* the first alternative that matches, not the longest */
        { "ab?c|a", "abcacab", "[abc][ac][a]" },
        { "(?:ab|a)c", "abcac", "[abc][ac]" }, /* back into the group */
        { "(?:ab|a)?b", "abb ab b", "[abb][ab][b]" },
        { "a+ab", "aaab", "[aaab]" },
        { "a++ab", "aaab", "" },
        { "\\p{N}{1,3}", "1234567", "[123][456][7]" },
        { "\\p{N}{2}", "12345", "[12][34]" },
        { "a{2,}", "aaaba", "[aaa]" },
        { "\\s+(?!\\S)|\\s+", "a   b ", "[  ][ ][ ]" },
        { "x(?=y)", "xyxz", "[x]" },
        { "(?i:'s|'t)", "'S's'T\xc5\xbf'\xc5\xbf", "['S]['s]['T]['\xc5\xbf]" },
        { "[^\\r\\n\\p{L}\\p{N}]?\\p{L}+", "\na ab.c", "[a][ ab][.c]" },
        { "[a-c\\-\\]]+", "abc-]d", "[abc-]]" },
        { "[^\\S\\n]+", "a \t\n b", "[ \t][ ]" },
        { "\\P{L}+", "ab12 c", "[12 ]" },
        { ".", "a\n\xc3\xa9", "[a][\xc3\xa9]" },
        { "\\w+", "a\xc2\xbd_\xe2\x80\x8d" "b", "[a\xc2\xbd_][b]" }, /* a fraction is of a word, a joiner is not */
        { "[\\w]+", "a\xc2\xbd_\xc2\xb3" "b", "[a][_][b]" },           /* in brackets neither is */
        { "[^\\w]+", "a\xc2\xb3_!", "[\xc2\xb3][!]" },
        { " ?[^(\\s|[.,!])]+", "a(b |c.d ef", "[a][b][c][d][ ef]" },     /* a class in a class */
        { "[a-z&&[^aeiou]x]+", "abcexyz", "[bc][xyz]" },                /* the right of && is one class */
        { "[^a-z&&[^aeiou]]+", "abce1x", "[a][e1]" },                   /* all of it is negated */
        { "[[ab][^a-y]0-9&&\\w]+", "abcz5!", "[ab][z5]" },
        { "\\s+$", "a  \n b  ", "[  ][  ]" }, /* at the end of a line or of the text */
        { "a$", "a\nab\na", "[a][a]" },
        { "\\p{N}{1,3}+", "12345 6", "[12345][6]" }, /* as Oniguruma has it: repeated again, not possessive */
        { "[\\p{Han}]+|[\\p{L}&&[^\\p{Han}]]+", "ab\xe6\x9d\xb1" "c",
          "[ab][\xe6\x9d\xb1][c]" },
    };
    char out[256];
    for (size_t i = 0; i < DSC_COUNT(cases); i++)
        assert_string_equal(matches(cases[i].pattern, cases[i].text, out, sizeof out), cases[i].found);
    static const char *const refused[] = { "(a", "a)", "[a", "a**", "a*?", "^a", "$", "(?<=a)b", "(?P<n>a)", "\\bx",
                                           "\\P{Han}", "[[:alpha:]]", "[a&&]", "[a-[b]]", "a{2}+", "a||b",
                                           "(a)*", "[b-a]", "x{3,2}", "\\", "",
                                           "\\p{", "(?i:\xc3\xa9)" };
    for (size_t i = 0; i < DSC_COUNT(refused); i++) {
        dsc_regex *regex = NULL;
        if (dsc_regex_open(alloc, refused[i], "test", &regex, &error) != DSC_ERR_UNSUPPORTED)
            fail_msg("the pattern %s is not refused", refused[i]);
    }
}

/* Alternatives that try all lengths of four parts: more steps than any text may take. */
static void test_pattern_budget(void **state)
{
    (void)state;
    enum { LETTERS = 20000 };
    static char text[LETTERS];
    dsc_regex *regex = NULL;
    const char *start, *end;
    bool found;
    memset(text, 'a', sizeof text);
    assert_int_equal(dsc_regex_open(alloc, "a+a+a+a+b", "test", &regex, &error), DSC_OK);
    dsc_regex_search search = dsc_regex_start(text, sizeof text);
    assert_int_equal(dsc_regex_next(regex, &search, &start, &end, &found, &error), DSC_ERR_INPUT);
    dsc_regex_close(&regex);
}

/* ---- UTF-8 and normal forms ---- */

static void test_repair(void **state)
{
    (void)state;
    static const struct { const char *from, *to; } cases[] = {
        { "abc", "abc" },
        { "a\xff\xfe" "b", "a\xef\xbf\xbd\xef\xbf\xbd" "b" },
        { "\xe2\x82", "\xef\xbf\xbd" },
        { "\xe2\x82" "a", "\xef\xbf\xbd" "a" },
        { "\xf0\x9f\x99", "\xef\xbf\xbd" },
        { "\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" },
        { "\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd" },
        { "\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd" },
        { "12345678\xc3\xa9\x80", "12345678\xc3\xa9\xef\xbf\xbd" },
    };
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        dsc_text out = { .alloc = alloc };
        assert_int_equal(dsc_utf8_repair(cases[i].from, (int64_t)strlen(cases[i].from), &out, &error), DSC_OK);
        assert_int_equal(out.bytes, strlen(cases[i].to));
        assert_memory_equal(out.ptr, cases[i].to, (size_t)out.bytes);
        dsc_text_free(&out);
    }
}

/* Every character, alone and between others, as utf8proc normalises it whole. */
static void test_normal_forms(void **state)
{
    (void)state;
    static const utf8proc_option_t options[] = {
        UTF8PROC_STABLE | UTF8PROC_COMPOSE, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE,
        UTF8PROC_STABLE | UTF8PROC_COMPOSE | UTF8PROC_COMPAT, UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT
    };
    static char text[1 << 16];
    for (uint32_t first = 1; first < 0x20000; first += 1024) {
        int64_t bytes = 0;
        for (uint32_t code = first; code < first + 1024; code++) {
            if (code >= 0xd800 && code <= 0xdfff)
                continue;
            for (int i = 0; i < 3; i++) { /* a mark behind it, and itself behind a letter that marks join */
                static const uint32_t around[3] = { 'e', 0, 0x301 };
                bytes += dsc_utf8_encode(i == 1 ? code : around[i], text + bytes);
            }
        }
        for (int form = 0; form < 4; form++) {
            dsc_text out = { .alloc = alloc };
            utf8proc_uint8_t *whole = NULL;
            const utf8proc_ssize_t length =
                utf8proc_map((const utf8proc_uint8_t *)text, bytes, &whole, options[form]);
            assert_int_equal(dsc_text_normalize(text, bytes, (dsc_normal_form)form, &out, &error), DSC_OK);
            assert_int_equal(out.bytes, length);
            assert_memory_equal(out.ptr, whole, (size_t)length);
            if (dsc_text_is_normal(text, bytes, (dsc_normal_form)form))
                assert_memory_equal(text, whole, (size_t)length);
            free(whole);
            dsc_text_free(&out);
        }
    }
}

/* ---- Time ---- */

/* A word of one letter, whose pairs all merge: twice the bytes must not take four times the time. */
static void test_long_word(void **state)
{
    (void)state;
    enum { BYTES = 1 << 20 };
    dsc_tokenizer *tokenizer = NULL;
    dsc_encoder *encoder = NULL;
    const int32_t *ids;
    int64_t count;
    char *word = malloc(BYTES);
    assert_non_null(word);
    memset(word, 'a', BYTES);
    assert_int_equal(open_text(BASE("", "\"vocab\":{\"a\":0,\"aa\":1,\"aaaa\":2},\"merges\":[\"a a\",\"aa aa\"]"),
                               &tokenizer), DSC_OK);
    assert_int_equal(dsc_encoder_open(&encoder, tokenizer, &error), DSC_OK);
    const int64_t start = dsc_clock_ns();
    assert_int_equal(dsc_encode(encoder, word, BYTES - 1, 0, &ids, &count, &error), DSC_OK);
    /* A quadratic merge takes minutes. */
    assert_true((double)(dsc_clock_ns() - start) * 1e-9 < 10 * test_patience());
    assert_int_equal(count, BYTES / 4 - 1 + 2); /* fours, and the last three as two and one */
    assert_int_equal(ids[count - 1], 0);
    assert_int_equal(ids[count - 2], 1);
    dsc_encoder_close(&encoder);
    dsc_tokenizer_close(&tokenizer);
    free(word);
}

/* Pieces of a hostile vocabulary that a long word nearly begins with, again behind each of its letters. */
static void test_long_pieces(void **state)
{
    (void)state;
    enum { LETTERS = 1022, WORDS_IN_TEXT = 200 };
    static char json[3 * LETTERS + 512], text[WORDS_IN_TEXT * (LETTERS + 1)];
    static const char head[] = "{\"pre_tokenizer\":{\"type\":\"WhitespaceSplit\"},\"model\":{\"type\":\"WordPiece\","
                               "\"unk_token\":\"a\",\"continuing_subword_prefix\":\"##\","
                               "\"max_input_chars_per_word\":9999,\"vocab\":{\"a\":0,\"##a\":1,\"##";
    dsc_tokenizer *tokenizer = NULL;
    dsc_encoder *encoder = NULL;
    const int32_t *ids;
    int64_t count;
    size_t used = sizeof head - 1;
    memcpy(json, head, used);
    memset(json + used, 'a', LETTERS - 1);
    memcpy(json + used + LETTERS - 1, "b\":2}}}", sizeof "b\":2}}}");
    memset(text, 'a', sizeof text);
    for (size_t i = LETTERS; i < sizeof text; i += LETTERS + 1)
        text[i] = ' ';
    const int64_t start = dsc_clock_ns();
    assert_int_equal(open_text(json, &tokenizer), DSC_OK);
    assert_int_equal(dsc_encoder_open(&encoder, tokenizer, &error), DSC_OK);
    assert_int_equal(dsc_encode(encoder, text, sizeof text, 0, &ids, &count, &error), DSC_OK);
    assert_true((double)(dsc_clock_ns() - start) * 1e-9 < 20 * test_patience());
    assert_int_equal(count, WORDS_IN_TEXT * LETTERS);
    dsc_encoder_close(&encoder);
    dsc_tokenizer_close(&tokenizer);
    /* A longer piece would take more steps a byte than any text may. */
    memmove(json + used + LETTERS + 8, json + used + LETTERS - 1, sizeof "b\":2}}}");
    memset(json + used, 'a', LETTERS + 8);
    assert_int_equal(open_text(json, &tokenizer), DSC_ERR_UNSUPPORTED);
    assert_non_null(strstr(error.message, "within 1024 bytes"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_golden, open_alloc, close_alloc),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_small),
        cmocka_unit_test(test_no_cut),
        cmocka_unit_test_setup_teardown(test_patterns, open_alloc, close_alloc),
        cmocka_unit_test_setup_teardown(test_pattern_budget, open_alloc, close_alloc),
        cmocka_unit_test_setup_teardown(test_repair, open_alloc, close_alloc),
        cmocka_unit_test_setup_teardown(test_normal_forms, open_alloc, close_alloc),
        cmocka_unit_test(test_long_word),
        cmocka_unit_test(test_long_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
