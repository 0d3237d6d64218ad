/* test_tool_waits.c - the values that `dsc scale` reads from a timeline: time with a collective and no work, by rank.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tools/dsc/trial.h"

static dsc_status waits_of(const char *text, int64_t after, double *waited_s)
{
    char path[] = "/tmp/dsc-waits-XXXXXX";
    dsc_alloc *alloc = NULL;
    dsc_error err = DSC_ERROR_INIT;
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    close(fd);
    assert_int_equal(dsc_alloc_open(&alloc, &err), DSC_OK);
    const dsc_status status = trial_read_waits(alloc, path, after, waited_s, &err);
    dsc_alloc_close(&alloc);
    unlink(path);
    return status;
}

#define SPAN(cat, ts, dur, pid, step)                                                                                  \
    "{\"name\":\"x\",\"cat\":\"" cat "\",\"ph\":\"X\",\"ts\":" #ts ",\"dur\":" #dur ",\"pid\":" #pid                 \
    ",\"tid\":1,\"args\":{\"step\":" #step ",\"bytes\":8}},\n"

static void test_only_what_is_exposed(void **state)
{
    (void)state;
    double waited_s = 0;
    const char *text = "[\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":0,\"args\":{\"name\":\"rank 0\"}},\n"
                       SPAN("forward", 100, 50, 0, 2) /* covers the first collective's start */
                       SPAN("comm", 120, 60, 0, 2)    /* 150..180 is waited for */
                       SPAN("comm", 170, 30, 0, 2)    /* and 180..200, two at once count once */
                       SPAN("update", 190, 20, 0, 2)  /* but not 190..200 */
                       SPAN("comm", 400, 100, 1, 2)   /* another rank: its own time */
                       SPAN("forward", 420, 30, 1, 2) /* 400..420, 450..500 */
                       SPAN("comm", 0, 90, 0, 1);     /* a step that does not count */
    assert_int_equal(waits_of(text, 1, &waited_s), DSC_OK);
    assert_true(waited_s > (40 + 70) / 2.0 * 1e-6 - 1e-9 && waited_s < (40 + 70) / 2.0 * 1e-6 + 1e-9);
}

static void test_added_to_what_was_there(void **state)
{
    (void)state;
    double waited_s = 1;
    assert_int_equal(waits_of("[\n" SPAN("comm", 5, 1000000, 0, 7), 0, &waited_s), DSC_OK);
    assert_true(waited_s > 1.999999 && waited_s < 2.000001);
    assert_int_equal(waits_of("[\n", 0, &waited_s), DSC_OK);
    assert_true(waited_s > 1.999999 && waited_s < 2.000001);
}

static void test_hostile_lines(void **state)
{
    (void)state;
    double waited_s = 0;
    assert_int_equal(waits_of("{\"cat\":\n", 0, &waited_s), DSC_ERR_INPUT);
    /* no numbers, no rank of ours, negative, endless: left out */
    assert_int_equal(waits_of(SPAN("comm", 0, 5, 100000, 1) SPAN("comm", 0, -5, 0, 1) SPAN("comm", 0, 5, -3, 1)
                              "{\"cat\":\"comm\"},\n{\"cat\":7,\"ts\":0,\"dur\":9,\"pid\":0,\"args\":{\"step\":3}},\n",
                              0, &waited_s), DSC_OK);
    assert_true(waited_s == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_what_is_exposed),
        cmocka_unit_test(test_added_to_what_was_there),
        cmocka_unit_test(test_hostile_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
