/* test_machine.c - how much of a core the ranks of a host leave each other. SPDX-License-Identifier: Apache-2.0 */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/machine.h"

/* The cores of the host, all of which this process may use; skips where a container or taskset withholds some. */
static int32_t all_cores(void)
{
    const int32_t cores = dsc_machine_cores();
    if (cores != (int32_t)sysconf(_SC_NPROCESSORS_ONLN))
        skip();
    return cores;
}

static void test_ranks_share_the_cores(void **state)
{
    (void)state;
    const int32_t cores = all_cores();
    assert_float_equal(dsc_machine_share(cores, 1), 1, 0);
    assert_float_equal(dsc_machine_share(1, cores), 1, 0);
    assert_float_equal(dsc_machine_share(cores, 2), 0.5, 0);
    assert_float_equal(dsc_machine_share(1, 4 * cores), 0.25, 0);
}

static void test_bound_ranks_have_their_own(void **state)
{
    (void)state;
    cpu_set_t before, one;
    if (all_cores() < 2)
        skip();
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    CPU_ZERO(&one);
    for (int cpu = 0; CPU_COUNT(&one) == 0; cpu++)
        if (CPU_ISSET(cpu, &before))
            CPU_SET(cpu, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    const double alone = dsc_machine_share(1, 64), two = dsc_machine_share(2, 64);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    assert_float_equal(alone, 1, 0);
    assert_float_equal(two, 0.5, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_ranks_share_the_cores),
                                        cmocka_unit_test(test_bound_ranks_have_their_own) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
