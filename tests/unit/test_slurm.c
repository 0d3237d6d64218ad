/* test_slurm.c - Slurm's short lists of hosts and tasks, good and hostile. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/hosts/slurm.h"

static dsc_status join(void *user, const char *name, dsc_error *err)
{
    char *all = user;
    snprintf(all + strlen(all), 256 - strlen(all), "%s ", name);
    return DSC_OK;
}

static dsc_status refuse(void *user, const char *name, dsc_error *err)
{
    return DSC_FAIL(err, DSC_ERR_NOMEM, "here", "%s", name);
}

static void test_hosts(void **state)
{
    static const char *const cases[][2] = {
        { "n1", "n1 " },
        { "n[1-3]", "n1 n2 n3 " },
        { "gpu[08-10,3],x", "gpu08 gpu09 gpu10 gpu3 x " },
        { "a[0-0],b[7]", "a0 b7 " },
    };
    static const char *const bad[] = { "",     "a[",    "a[1", "a[1-", "a[2-1]", "a[1]b", ",",
                                       "a;b",  "a,,b",  "-a",  "a[1-9999999999]", "a[1-999999]", "a[01-2][3]", "a b" };
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        char all[256] = "";
        assert_int_equal(dsc_slurm_hosts("V", cases[i][0], join, all, NULL), DSC_OK);
        assert_string_equal(all, cases[i][1]);
    }
    for (size_t i = 0; i < DSC_COUNT(bad); i++) {
        char all[256] = "";
        dsc_error err = DSC_ERROR_INIT;
        if (dsc_slurm_hosts("V", bad[i], join, all, &err) != DSC_ERR_INPUT || strcmp(err.where, "V") != 0)
            fail_msg("\"%s\" is taken as %s", bad[i], all);
    }
    dsc_error err = DSC_ERROR_INIT;
    assert_int_equal(dsc_slurm_hosts("V", "a[1-3]", refuse, NULL, &err), DSC_ERR_NOMEM);
    assert_string_equal(err.message, "a1");
}

static void test_tasks(void **state)
{
    static const struct { const char *list; int32_t node, tasks; } cases[] = {
        { "4", 0, 4 },         { "4", 1, -1 },       { "4(x2),3", 1, 4 },  { "4(x2),3", 2, 3 },  { "4(x2),3", 3, -1 },
        { "3,1", 0, 3 },       { "3,1", 1, 1 },      { "3,1", -1, -1 },    { "", 0, -1 },        { "0", 0, -1 },
        { "x", 0, -1 },        { "4(x", 0, -1 },     { "4(x2", 0, -1 },    { "4(x0)", 0, -1 },   { "4;3", 1, -1 },
        { "-1", 0, -1 },       { "9999999999", 0, -1 }, { "2(x999999999),1", INT32_MAX, -1 },
    };
    for (size_t i = 0; i < DSC_COUNT(cases); i++)
        if (dsc_slurm_tasks(cases[i].list, cases[i].node) != cases[i].tasks)
            fail_msg("\"%s\" node %d: %d", cases[i].list, cases[i].node,
                     dsc_slurm_tasks(cases[i].list, cases[i].node));
}

static void test_port(void **state)
{
    assert_int_equal(dsc_slurm_port("7"), 29507);
    assert_int_equal(dsc_slurm_port("3007"), 29507);
    assert_int_equal(dsc_slurm_port("12x"), 29500);
    assert_int_equal(dsc_slurm_port(""), 29500);
    assert_true(dsc_slurm_port("999999999") < 32768); /* Linux hands out ports from here on */
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_hosts), cmocka_unit_test(test_tasks),
                                        cmocka_unit_test(test_port) };
    cmocka_set_message_output(CM_OUTPUT_TAP);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
