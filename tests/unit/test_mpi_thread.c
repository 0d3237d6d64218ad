/* test_mpi_thread.c - the one thread that calls MPI. It alone runs the orders of many threads, in order; a poll reports
 * their end. A waiter returns at once after that, or at its time limit. SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/clock.h"
#include "comm/transports/mpi_thread.h"

#define MS INT64_C(1000000)
enum { POSTERS = 4, ORDERS = 300 };

typedef struct errand {
    dsc_mpi_order order;
    int poster, number, looks; /* to come before it is done */
    struct errand *next;
} errand;

/* Written by that thread alone. */
static struct world {
    dsc_mpi_thread thread;
    errand *busy;
    int latest[POSTERS], runs;
    bool elsewhere, disorder;
} *w;

static bool look(void)
{
    errand **at = &w->busy;
    w->elsewhere = w->elsewhere || !pthread_equal(pthread_self(), w->thread.id);
    while (*at != NULL) {
        errand *e = *at;
        if (--e->looks > 0) {
            at = &e->next;
            continue;
        }
        *at = e->next;
        dsc_mpi_done(&e->order);
    }
    return w->busy != NULL;
}

static void run(dsc_mpi_order *order)
{
    errand *e = (errand *)order;
    w->elsewhere = w->elsewhere || !pthread_equal(pthread_self(), w->thread.id);
    w->disorder = w->disorder || e->number != w->latest[e->poster] + 1;
    w->latest[e->poster] = e->number;
    w->runs++;
    if (e->looks == 0) {
        dsc_mpi_done(order);
        return;
    }
    e->next = w->busy;
    w->busy = e;
}

static void leave(dsc_mpi_order *order)
{
    w->thread.leave = true;
    dsc_mpi_done(order);
}

static void begin(bool callers)
{
    w = calloc(1, sizeof *w);
    assert_non_null(w);
    assert_int_equal(dsc_mpi_thread_start(&w->thread, callers, look), 0);
}

static void end(void)
{
    dsc_mpi_order order = { .run = leave };
    assert_true(dsc_mpi_post(&w->thread, &order));
    assert_true(dsc_mpi_wait(&w->thread, &order, 5000 * MS));
    if (!w->thread.callers)
        pthread_join(w->thread.id, NULL);
    assert_false(w->elsewhere);
    assert_false(w->disorder);
    free(w);
}

/* Two orders at a time; now and then a pause in which the thread goes to sleep. */
static void *post_many(void *arg)
{
    const int poster = *(const int *)arg;
    for (int i = 1; i <= ORDERS; i += 2) {
        errand two[2] = { { .order.run = run, .poster = poster, .number = i, .looks = i % 5 },
                          { .order.run = run, .poster = poster, .number = i + 1, .looks = i % 3 * 200 } };
        if (i % 60 == 1)
            dsc_clock_sleep_ns(MS / 2);
        for (int k = 0; k < 2; k++)
            if (!dsc_mpi_post(&w->thread, &two[k].order))
                return NULL;
        for (int k = 0; k < 2; k++)
            if (!dsc_mpi_wait(&w->thread, &two[k].order, 20000 * MS))
                abort(); /* the order is on this stack */
    }
    return arg;
}

static void test_orders_of_many(void **state)
{
    static const int number[POSTERS] = { 0, 1, 2, 3 };
    pthread_t posters[POSTERS];
    begin(false);
    assert_false(pthread_equal(w->thread.id, pthread_self()));
    for (int i = 0; i < POSTERS; i++)
        assert_int_equal(pthread_create(&posters[i], NULL, post_many, (void *)(uintptr_t)&number[i]), 0);
    for (int i = 0; i < POSTERS; i++) {
        void *all = NULL;
        pthread_join(posters[i], &all);
        assert_non_null(all);
    }
    assert_int_equal(w->runs, POSTERS * ORDERS);
    end();
}

static void test_a_wait_ends(void **state)
{
    errand e = { .order.run = run, .number = 1, .looks = 2000000000 };
    begin(false);
    assert_true(dsc_mpi_post(&w->thread, &e.order));
    const int64_t start_ns = dsc_clock_ns();
    assert_false(dsc_mpi_wait(&w->thread, &e.order, 20 * MS));
    assert_true(dsc_clock_ns() - start_ns >= 20 * MS);
    assert_true(dsc_clock_ns() - start_ns < 5000 * MS);
    end(); /* before `e` goes */
}

static void *post_elsewhere(void *arg) { return dsc_mpi_post(&w->thread, arg) ? arg : NULL; }

static void test_the_thread_that_posts_all(void **state)
{
    int poster = 0;
    pthread_t other;
    void *taken = &poster;
    errand late = { .order.run = run, .number = ORDERS + 1, .looks = 2000000000 };
    begin(true);
    assert_non_null(post_many(&poster));
    assert_int_equal(w->runs, ORDERS);
    assert_int_equal(pthread_create(&other, NULL, post_elsewhere, &late.order), 0);
    pthread_join(other, &taken);
    assert_null(taken);
    assert_int_equal(w->runs, ORDERS);
    assert_true(dsc_mpi_post(&w->thread, &late.order));
    const int64_t start_ns = dsc_clock_ns();
    assert_false(dsc_mpi_wait(&w->thread, &late.order, 20 * MS));
    assert_true(dsc_clock_ns() - start_ns >= 20 * MS);
    end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_orders_of_many),
        cmocka_unit_test(test_a_wait_ends),
        cmocka_unit_test(test_the_thread_that_posts_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
