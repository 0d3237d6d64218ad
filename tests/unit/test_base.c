/* test_base.c - errors as values, text made safe to print, the log and the clocks.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <dsc/log.h>

#include "base/base.h"
#include "base/bf16.h"
#include "base/clock.h"
#include "base/formats/utf8.h"

static void exit_codes_are_the_contract(void **state)
{
    (void)state;
    assert_int_equal(dsc_status_exit_code(DSC_OK), 0);
    assert_int_equal(dsc_status_exit_code(DSC_ERR_IO), 1);
    assert_int_equal(dsc_status_exit_code(DSC_ERR_CONFIG), 2);
    assert_int_equal(dsc_status_exit_code(DSC_ERR_INPUT), 2);
    assert_int_equal(dsc_status_exit_code(DSC_ERR_UNSUPPORTED), 2);
    assert_int_equal(dsc_status_exit_code(DSC_ERR_NOMEM), 3);
    assert_int_equal(dsc_status_exit_code(DSC_ERR_NOFIT), 3);
    assert_int_equal(dsc_status_exit_code(DSC_ERR_PEER), 4);
    assert_int_equal(dsc_status_exit_code(DSC_ERR_STUCK), 5);
    assert_int_equal(dsc_status_exit_code((dsc_status)999), 1);
    assert_string_equal(dsc_status_text(DSC_ERR_NOFIT), "the plan does not fit");
    assert_string_equal(dsc_status_text((dsc_status)999), "unknown status");
}

static dsc_status third(dsc_error *err)
{
    return DSC_FAIL(err, DSC_ERR_INPUT, "file:1:2", "bad %d", 7);
}

static dsc_status second(dsc_error *err)
{
    DSC_TRY(third(err));
    return DSC_OK;
}

static dsc_status first(dsc_error *err, int *released)
{
    dsc_status status = DSC_OK;
    DSC_TRY_OUT(second(err));
out:
    *released = 1;
    return status;
}

static void failures_are_forwarded(void **state)
{
    (void)state;
    dsc_error err = DSC_ERROR_INIT;
    int released = 0;
    char text[64];
    assert_int_equal(first(&err, &released), DSC_ERR_INPUT);
    assert_int_equal(released, 1);
    assert_int_equal(err.status, DSC_ERR_INPUT);
    assert_int_equal(err.rank, -1);
    assert_string_equal(dsc_error_format(&err, text, sizeof text), "file:1:2: bad 7");
    assert_string_equal(dsc_error_format(&err, text, 9), "file:1:2");
    assert_int_equal(first(NULL, &released), DSC_ERR_INPUT);
    /* A message may be wrapped into a longer one of the same object. */
    DSC_FAIL(&err, DSC_ERR_IO, err.where, "while loading: %s", err.message);
    assert_string_equal(dsc_error_format(&err, text, sizeof text), "file:1:2: while loading: bad 7");
    DSC_FAIL(&err, DSC_ERR_IO, NULL, "%s", "");
    assert_string_equal(dsc_error_format(&err, text, sizeof text), "a file operation failed");
    DSC_FAIL(&err, DSC_ERR_IO, "key", "%s", "");
    assert_string_equal(dsc_error_format(&err, text, sizeof text), "key");
}

static void a_long_place_keeps_its_end(void **state)
{
    (void)state;
    char path[1000];
    memset(path, 'x', sizeof path);
    strcpy(path + sizeof path - 12, "/file:77:13");
    dsc_error err = DSC_ERROR_INIT;
    DSC_FAIL(&err, DSC_ERR_CONFIG, path, "%s", path);
    assert_int_equal(strlen(err.where), sizeof err.where - 1);
    assert_memory_equal(err.where, "...", 3);
    assert_string_equal(err.where + strlen(err.where) - 11, "/file:77:13");
    assert_int_equal(strlen(err.message), sizeof err.message - 1);
    /* The longest that fits is left alone. */
    path[255] = 0;
    DSC_FAIL(&err, DSC_ERR_CONFIG, path, "short");
    assert_string_equal(err.where, path);
}

static void text_is_made_printable(void **state)
{
    (void)state;
    static const struct { const char *from, *to; } cases[] = {
        { "plain", "plain" },
        { "", "" },
        { "a\x1b[2Jb\n\t\x7f", "a?[2Jb???" },
        { "\xc2\x9b" "31m", "??31m" },            /* U+009B: the one-character form of ESC [ */
        { "\xc2\xa0\xc3\xa4\xe2\x82\xac", "\xc2\xa0\xc3\xa4\xe2\x82\xac" },
        { "cut\xe2\x82", "cut" },
        { "cut\xf0\x9f\x98", "cut" },
        { "cut\xc3", "cut" },
        { "whole\xf0\x9f\x98\x80", "whole\xf0\x9f\x98\x80" },
        { "turns\xe2\x80\xae hides\xe2\x80\x8b", "turns??? hides???" },
        { "\xe2\x80\xa8\xef\xbb\xbf\xd8\x9c\xe2\x81\xa6", "???????????" },
        { "\xe2\x80\x99 \xc2\xa0", "\xe2\x80\x99 \xc2\xa0" }, /* a quotation mark and a blank are seen */
        { "\x80", "\x80" },                       /* not UTF-8 at all: nothing to complete */
    };
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        char text[32];
        snprintf(text, sizeof text, "%s", cases[i].from);
        dsc_text_printable(text);
        assert_string_equal(text, cases[i].to);
    }
}

typedef struct log_seen {
    int count;
    dsc_log_level level;
    char text[2000];
} log_seen;

static void remember(void *user, dsc_log_level level, const char *text)
{
    log_seen *seen = user;
    seen->count++;
    seen->level = level;
    snprintf(seen->text, sizeof seen->text, "%s", text);
}

static void log_hands_lines_over(void **state)
{
    (void)state;
    log_seen seen = { 0 };
    const dsc_log log = { remember, &seen };
    dsc_log_printf(&log, DSC_LOG_WARNING, "key %s\nstep %d", "lr", 3);
    assert_int_equal(seen.count, 1);
    assert_int_equal(seen.level, DSC_LOG_WARNING);
    assert_string_equal(seen.text, "key lr?step 3"); /* one line stays one line */
    dsc_log_printf(&log, DSC_LOG_INFO, "%2000s", "x");
    assert_int_equal(strlen(seen.text), 1023);
    dsc_log_printf(NULL, DSC_LOG_INFO, "nobody");
    dsc_log_printf(&(dsc_log){ NULL, &seen }, DSC_LOG_INFO, "nobody");
    assert_int_equal(seen.count, 2);
}

static void clocks_advance(void **state)
{
    (void)state;
    const int64_t start = dsc_clock_ns();
    dsc_clock_sleep_ns(20000000);
    assert_true(dsc_clock_ns() - start >= 20000000);
    dsc_clock_sleep_ns(0);
    dsc_clock_sleep_ns(-5);
    assert_true(dsc_clock_wall_ns() > INT64_C(1600000000) * 1000000000); /* after 2020 */
}

static void arithmetic(void **state)
{
    (void)state;
    assert_int_equal(dsc_div_ceil(0, 4), 0);
    assert_int_equal(dsc_div_ceil(9, 4), 3);
    assert_int_equal(dsc_align_up(65, 64), 128);
    int64_t out = -1;
    assert_false(dsc_mul_i64(INT64_MAX, 2, &out));
    assert_false(dsc_add_i64(INT64_MAX, 1, &out));
    assert_int_equal(out, -1);
    assert_true(dsc_mul_i64(3, 5, &out) && out == 15);
}

/* Every bf16 survives the trip; rounding is to nearest even; NaN stays NaN. */
static void bf16_is_exact(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        const float x = dsc_f32_from_bf16((uint16_t)h);
        const bool nan = (h & 0x7fff) > 0x7f80;
        assert_int_equal(dsc_bf16_from_f32(x), nan ? h | 0x40 : h);
        if ((h & 0x7f80) == 0x7f80)
            continue;
        uint32_t bits = h << 16;
        float y;
        static const struct { uint32_t add; int up_even, up_odd; } steps[] = {
            { 0x7fff, 0, 0 }, { 0x8000, 0, 1 }, { 0x8001, 1, 1 }, { 0xffff, 1, 1 },
        };
        for (size_t i = 0; i < DSC_COUNT(steps); i++) {
            const uint32_t moved = bits + steps[i].add;
            memcpy(&y, &moved, 4);
            assert_int_equal(dsc_bf16_from_f32(y), h + (uint32_t)((h & 1) != 0 ? steps[i].up_odd : steps[i].up_even));
        }
    }
}

/* All code points, and the count of what is valid among all strings of three bytes and the edges of four. */
static void utf8_is_strict(void **state)
{
    (void)state;
    char c[4];
    for (uint32_t code = 0; code <= 0x10ffff; code++) {
        if (code >= 0xd800 && code <= 0xdfff)
            continue;
        const int bytes = dsc_utf8_encode(code, c);
        if (bytes != (code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4) ||
            dsc_utf8_char_bytes(c, c + bytes) != bytes || (bytes > 1 && dsc_utf8_char_bytes(c, c + bytes - 1) != 0))
            fail_msg("U+%04X", code);
    }
    assert_int_equal(dsc_utf8_char_bytes(c, c), 0);
    int64_t valid[5] = { 0 };
    for (uint32_t x = 0; x < 1 << 24; x++) {
        memcpy(c, (const char[]){ (char)(x >> 16), (char)(x >> 8), (char)x }, 3);
        valid[dsc_utf8_char_bytes(c, c + 3)]++;
    }
    assert_int_equal(valid[1], 128 << 16);
    assert_int_equal(valid[2], (0x800 - 0x80) << 8);
    assert_int_equal(valid[3], 0x10000 - 0x800 - 0x800);
    assert_int_equal(valid[4], 0);
    for (uint32_t x = 0; x < 16 << 12; x++) {
        static const char edge[] = { 0x7f, (char)0x80, (char)0xbf, (char)0xc0 };
        memcpy(c, (const char[]){ (char)(0xf0 | x >> 12), (char)(x >> 4), edge[x >> 2 & 3], edge[x & 3] }, 4);
        valid[4] += dsc_utf8_char_bytes(c, c + 4) == 4;
    }
    assert_int_equal(valid[4], (48 + 3 * 64 + 16) * 4); /* F0 90.., F1 to F3 80.., F4 80..8F, then two edges each */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exit_codes_are_the_contract),
        cmocka_unit_test(failures_are_forwarded),
        cmocka_unit_test(a_long_place_keeps_its_end),
        cmocka_unit_test(text_is_made_printable),
        cmocka_unit_test(log_hands_lines_over),
        cmocka_unit_test(clocks_advance),
        cmocka_unit_test(arithmetic),
        cmocka_unit_test(bf16_is_exact),
        cmocka_unit_test(utf8_is_strict),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
