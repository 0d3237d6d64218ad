/* test_comm_mpi.c - the transport mpi over a slow link (slow_mpi.c): who waits does so while it gets on, and then not.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/support/ranks.h"

#define MS INT64_C(1000000)

static char recv[2000], send[1000];

static void open_comm(dsc_alloc **alloc, dsc_comm **comm)
{
    dsc_comm_options options;
    dsc_error err = DSC_ERROR_INIT;
    const ranks_run run = { .kind = RANKS_MPI, .size = 2, .channel_count = 3, .timeout_ns = 200 * MS };
    assert_int_equal(dsc_alloc_open(alloc, NULL), DSC_OK);
    ranks_options(&run, 0, *alloc, NULL, "", &options);
    if (dsc_comm_open(&options, comm, &err) != DSC_OK)
        fail_msg("%s", err.message);
}

static void test_slow_link(void **state)
{
    dsc_alloc *alloc = NULL;
    dsc_comm *comm = NULL;
    dsc_error err = DSC_ERROR_INIT;
    open_comm(&alloc, &comm);
    const int64_t start_ns = dsc_clock_ns();
    assert_int_equal(dsc_comm_all_gather(comm, 0, recv, send, 1000, DSC_U8, NULL, &err), DSC_OK);
    assert_true(dsc_clock_ns() - start_ns >= 390 * MS); /* twice the timeout */
    assert_int_equal(dsc_comm_all_gather(comm, 1, recv, send, 1000, DSC_U8, NULL, &err), DSC_ERR_STUCK);
    assert_non_null(strstr(err.message, "rank 0 waited 0.2 s in all_gather of 1000 bytes"));
    assert_int_equal(err.rank, 1);
    dsc_comm_close(&comm);
    dsc_alloc_close(&alloc);
}

/* MPI's error about the data is not the reason; the call record, which arrives later, is. */
static void test_data_fails_before_its_note(void **state)
{
    dsc_alloc *alloc = NULL;
    dsc_comm *comm = NULL;
    dsc_error err = DSC_ERROR_INIT;
    open_comm(&alloc, &comm);
    assert_int_equal(dsc_comm_all_gather(comm, 2, recv, send, 1000, DSC_U8, NULL, &err), DSC_ERR_COMM);
    if (strstr(err.message, "rank 0 is in all_gather of 1000 bytes") == NULL ||
        strstr(err.message, "rank 1 in all_gather of 1001 bytes") == NULL)
        fail_msg("%s", err.message);
    dsc_comm_close(&comm);
    dsc_alloc_close(&alloc);
}

int main(void)
{
    char folder[4096];
    const ssize_t bytes = readlink("/proc/self/exe", folder, sizeof folder - 8);
    folder[bytes > 0 ? bytes : 0] = 0;
    char *slash = strrchr(folder, '/');
    if (slash == NULL)
        return 1;
    strcpy(slash, "/slow");
    setenv("DSC_PLUGIN_DIR", folder, 1);
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_slow_link),
                                       cmocka_unit_test(test_data_fails_before_its_note) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
