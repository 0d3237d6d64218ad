/* test_hostfile.c - hostfiles, -H lists and filters: what passes, what is refused, and where the error points.
 *
 * The accepted forms and the results of filters are the tables of DeepSpeed's own behaviour, except the ones marked
 * "stricter". SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hosts/hostfile.h"

static dsc_alloc *alloc;

static int setup(void **state)
{
    (void)state;
    dsc_error err = DSC_ERROR_INIT;
    return dsc_alloc_open(&alloc, &err);
}

static int teardown(void **state)
{
    (void)state;
    dsc_alloc_close(&alloc); /* asserts that nothing leaked */
    return 0;
}

/* "a:[0,1] b:[3]" */
static const char *pool_text(const dsc_host_pool *pool, char *out, size_t out_bytes)
{
    size_t n = 0;
    out[0] = 0;
    for (int64_t i = 0; i < pool->count; i++) {
        const dsc_host *host = &pool->host[i];
        const char *sep = "";
        int32_t seen = 0;
        n += (size_t)snprintf(out + n, out_bytes - n, "%s%s:[", i > 0 ? " " : "", host->name);
        for (int32_t slot = 0; slot < DSC_HOST_SLOTS_MAX; slot++)
            if (dsc_host_has_slot(host, slot)) {
                n += (size_t)snprintf(out + n, out_bytes - n, "%s%d", sep, slot);
                sep = ",";
                seen++;
            }
        n += (size_t)snprintf(out + n, out_bytes - n, "]");
        assert_int_equal(seen, host->slot_count);
        assert_int_equal(dsc_host_pool_find(pool, host->name), i);
    }
    return out;
}

typedef struct parse_case {
    const char *text;
    const char *pool;    /* NULL: refused */
    const char *where;   /* of the error */
    const char *message; /* a part of it */
} parse_case;

static void check_hostfile(const parse_case *c, int64_t bytes)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_host_pool pool = DSC_HOST_POOL_INIT;
    char text[16384];
    const dsc_status status = dsc_hostfile_parse(alloc, "hosts", c->text, bytes, &pool, &err);
    if (c->pool != NULL) {
        if (status != DSC_OK)
            print_error("refused: %s: %s\n", err.where, err.message);
        assert_int_equal(status, DSC_OK);
        assert_string_equal(pool_text(&pool, text, sizeof text), c->pool);
    } else {
        if (status == DSC_OK)
            print_error("accepted: %s\n", c->text);
        assert_int_equal(status, DSC_ERR_INPUT);
        assert_string_equal(err.where, c->where);
        if (strstr(err.message, c->message) == NULL)
            fail_msg("\"%s\" is not in \"%s\"", c->message, err.message);
    }
    dsc_host_pool_close(&pool);
}

static void hostfile_accepts(void **state)
{
    (void)state;
    static const parse_case cases[] = {
        { "worker-0 slots=4", "worker-0:[0,1,2,3]", NULL, NULL },
        { "  worker-0   slots=2  \n", "worker-0:[0,1]", NULL, NULL },
        { "\tworker-0\t\tslots=2\t\n", "worker-0:[0,1]", NULL, NULL },
        { "a slots=1\r\nb slots=2\r\n", "a:[0] b:[0,1]", NULL, NULL },
        { "a slots=1\r", "a:[0]", NULL, NULL },
        { "b slots=1\na slots=1\n", "b:[0] a:[0]", NULL, NULL },
        { "# first\n\n   \n  # second \xff\x01\na slots=1", "a:[0]", NULL, NULL },
        { "a slots=4 max_slots=8", "a:[0,1,2,3]", NULL, NULL },
        { "a slots=2 max-slots=2 # note", "a:[0,1]", NULL, NULL },
        { "a slots=2 # slots=8", "a:[0,1]", NULL, NULL },
        { "a slots=2# note", "a:[0,1]", NULL, NULL },
        { "a slots=02", "a:[0,1]", NULL, NULL },
        { "user@a slots=1\na slots=1", "user@a:[0] a:[0]", NULL, NULL },
        { "node_1.example.org. slots=1", "node_1.example.org.:[0]", NULL, NULL },
        { "10.0.0.7 slots=1\n127.0.0.1 slots=1", "10.0.0.7:[0] 127.0.0.1:[0]", NULL, NULL },
        { "fe80:0:0::1%eth0 slots=1", "fe80::1%eth0:[0]", NULL, NULL },
        { "[2001:DB8::0:1] slots=1\nme@[::1] slots=1", "2001:db8::1:[0] me@::1:[0]", NULL, NULL },
        { "7 slots=1", "7:[0]", NULL, NULL },
    };
    for (size_t i = 0; i < DSC_COUNT(cases); i++)
        check_hostfile(&cases[i], (int64_t)strlen(cases[i].text));
}

static void hostfile_refuses(void **state)
{
    (void)state;
    static const parse_case cases[] = {
        { "", NULL, "hosts", "names no host" },
        { "# only\n\n", NULL, "hosts", "names no host" },
        { "a", NULL, "hosts:1:2", "expected slots=N" },
        { "a # slots=2", NULL, "hosts:1:3", "expected slots=N" },
        { "a:2", NULL, "hosts:1:2", "slots=N in a hostfile" },
        { "a slots = 2", NULL, "hosts:1:3", "without blanks" },
        { "a slots= 2", NULL, "hosts:1:9", "whole number" },
        { "a slots=-2", NULL, "hosts:1:9", "whole number" },
        { "a SLOTS=2", NULL, "hosts:1:3", "lower case" },
        { "a 2", NULL, "hosts:1:3", "expected slots=N" },
        { "this is bad slots=1", NULL, "hosts:1:6", "expected slots=N" },
        { "ok slots=1\na slots=1\na slots=1\n", NULL, "hosts:3:1", "named twice" },
        /* stricter */
        { "a slots=2.5", NULL, "hosts:1:10", "whole number" },
        { "a slots=4gpus", NULL, "hosts:1:10", "whole number" },
        { "ok slots=1\n  a slots=0", NULL, "hosts:2:5", "no rank" },
        { "a slots=1025", NULL, "hosts:1:3", "1 to 1024" },
        { "a slots=99999999999999999999999999", NULL, "hosts:1:3", "1 to 1024" },
        { "a slots=2 b slots=2", NULL, "hosts:1:11", "nothing but" },
        { "a slots=2 slots=4", NULL, "hosts:1:11", "nothing but" },
        { "a slots=2 max_slots=1", NULL, "hosts:1:11", "below slots" },
        { "a slots=2 max_slots=x", NULL, "hosts:1:21", "whole number" },
        { "a slots=2 max_slots=4 max_slots=4", NULL, "hosts:1:23", "nothing but" },
        { "A slots=1\na. slots=1", NULL, "hosts:2:1", "named twice" },
        { "::1 slots=1\n[0:0::1] slots=1", NULL, "hosts:2:1", "named twice" },
        { "-oProxyCommand=reboot slots=1", NULL, "hosts:1:1", "cannot start with '-'" },
        { "u@-x slots=1", NULL, "hosts:1:3", "cannot start with '-'" },
        { "-u@x slots=1", NULL, "hosts:1:1", "cannot start with '-'" },
        { "a@b@c slots=1", NULL, "hosts:1:4", "letters, digits" },
        { "@b slots=1", NULL, "hosts:1:1", "missing" },
        { "b@ slots=1", NULL, "hosts:1:3", "missing" },
        { "a;reboot slots=1", NULL, "hosts:1:2", "letters, digits" },
        { "0.0.0.0 slots=1", NULL, "hosts:1:1", "everybody" },
        { "255.255.255.255 slots=1", NULL, "hosts:1:1", "everybody" },
        { ":: slots=1", NULL, "hosts:1:1", "everybody" },
        { "[ff02::1] slots=1", NULL, "hosts:1:2", "everybody" },
        { "$(reboot) slots=1", NULL, "hosts:1:1", "letters, digits" },
        { "`id` slots=1", NULL, "hosts:1:1", "letters, digits" },
        { "a/b slots=1", NULL, "hosts:1:2", "letters, digits" },
        { "a\x1b[31m slots=1", NULL, "hosts:1:2", "a?[31m" },
        { "a\vb slots=1", NULL, "hosts:1:2", "letters, digits" },
        { "w\xc3\xb6rker slots=1", NULL, "hosts:1:2", "letters, digits" },
        { "a\xc2\xa0slots=1", NULL, "hosts:1:2", "letters, digits" },
        { "\xef\xbb\xbf" "a slots=1", NULL, "hosts:1:1", "byte order mark" },
        { "a slots=1\rb slots=1\r", NULL, "hosts:1:10", "carriage return" },
        { "# note\rb slots=1\n", NULL, "hosts:1:7", "carriage return" },
        { "a..b slots=1", NULL, "hosts:1:3", "dot" },
        { ".a slots=1", NULL, "hosts:1:1", "dot" },
        { "a.-b slots=1", NULL, "hosts:1:3", "cannot start" },
        { "10.0.0.256 slots=1", NULL, "hosts:1:1", "IPv4" },
        { "10.0.1 slots=1", NULL, "hosts:1:1", "IPv4" },
        { "fe80::g slots=1", NULL, "hosts:1:1", "IPv6" },
        { "[::1 slots=1", NULL, "hosts:1:5", "]" },
        { "[] slots=1", NULL, "hosts:1:2", "IPv6" },
        { "fe80::1% slots=1", NULL, "hosts:1:9", "missing" },
        { "fe80::1%-e slots=1", NULL, "hosts:1:9", "cannot start" },
    };
    for (size_t i = 0; i < DSC_COUNT(cases); i++)
        check_hostfile(&cases[i], (int64_t)strlen(cases[i].text));
    static const char nul[] = "a slots=1\nb\0c slots=1\n";
    const parse_case c = { nul, NULL, "hosts:2:2", "NUL" };
    check_hostfile(&c, sizeof nul - 1);
}

/* Lines, names and counts at and beyond the limits. */
static void hostfile_sizes(void **state)
{
    (void)state;
    dsc_error err = DSC_ERROR_INIT;
    dsc_host_pool pool = DSC_HOST_POOL_INIT;
    const size_t mega = 1000000;
    char *text = calloc(1, DSC_HOSTFILE_BYTES_MAX + 2);
    memset(text, 'x', mega);
    text[0] = '#';
    strcpy(text + mega, "\na slots=1\n");
    assert_int_equal(dsc_hostfile_parse(alloc, "hosts", text, (int64_t)strlen(text), &pool, &err), DSC_OK);
    dsc_host_pool_close(&pool);
    text[0] = 'x';
    assert_int_equal(dsc_hostfile_parse(alloc, "hosts", text, (int64_t)strlen(text), &pool, &err), DSC_ERR_INPUT);
    assert_string_equal(err.where, "hosts:1:254");
    dsc_host_pool_close(&pool);

    for (int length = 63; length <= 64; length++) { /* one label */
        snprintf(text, 200, "%.*s slots=1", length,
                 "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
        assert_int_equal(dsc_hostfile_parse(alloc, "hosts", text, (int64_t)strlen(text), &pool, &err),
                         length == 63 ? DSC_OK : DSC_ERR_INPUT);
        dsc_host_pool_close(&pool);
    }
    assert_int_equal(dsc_hostfile_parse(alloc, "hosts", text, DSC_HOSTFILE_BYTES_MAX + 1, &pool, &err), DSC_ERR_INPUT);
    dsc_host_pool_close(&pool);

    size_t n = 0;
    for (int i = 0; i <= DSC_HOST_COUNT_MAX; i++)
        n += (size_t)snprintf(text + n, 64, "node%d slots=1\n", i);
    assert_int_equal(dsc_hostfile_parse(alloc, "hosts", text, (int64_t)n, &pool, &err), DSC_ERR_INPUT);
    assert_string_equal(err.where, "hosts:16385:1");
    assert_int_equal(pool.count, DSC_HOST_COUNT_MAX);
    assert_int_equal(dsc_host_pool_find(&pool, "NODE12345"), 12345);
    assert_int_equal(dsc_host_pool_find(&pool, "node99999"), -1);
    dsc_host_pool_close(&pool);
    free(text);
}

static void long_file_name_keeps_the_place(void **state)
{
    (void)state;
    char name[600];
    memset(name, 'd', sizeof name - 1);
    name[sizeof name - 1] = 0;
    dsc_error err = DSC_ERROR_INIT;
    dsc_host_pool pool = DSC_HOST_POOL_INIT;
    assert_int_equal(dsc_hostfile_parse(alloc, name, "\na b", 4, &pool, &err), DSC_ERR_INPUT);
    assert_string_equal(err.where + strlen(err.where) - 5, "d:2:3");
    dsc_host_pool_close(&pool);
}

static void lists(void **state)
{
    (void)state;
    static const parse_case cases[] = {
        { "localhost:4,host2:4", "localhost:[0,1,2,3] host2:[0,1,2,3]", NULL, NULL },
        { "a:1", "a:[0]", NULL, NULL },
        { "me@a:2,[::1]:1", "me@a:[0,1] ::1:[0]", NULL, NULL },
        { "a", NULL, "-H:2", "expected :N" },
        { "a:", NULL, "-H:3", "whole number" },
        { "a:x", NULL, "-H:3", "whole number" },
        { "a:2x", NULL, "-H:4", "whole number" },
        { "a:0", NULL, "-H:3", "1 to 1024" },
        { "a:2000", NULL, "-H:3", "1 to 1024" },
        { "a:1,", NULL, "-H:5", "missing" },
        { ",a:1", NULL, "-H:1", "missing" },
        { "", NULL, "-H:1", "missing" },
        { "a:1, b:1", NULL, "-H:5", "letters" },
        { "a:1,a:1", NULL, "-H:5", "named twice" },
        { "::1:4", NULL, "-H:1", "missing" },
        { "-x:4", NULL, "-H:1", "start with" },
    };
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        dsc_error err = DSC_ERROR_INIT;
        dsc_host_pool pool = DSC_HOST_POOL_INIT;
        char text[256];
        const dsc_status status = dsc_hostlist_parse(alloc, "-H", cases[i].text, &pool, &err);
        assert_int_equal(status, cases[i].pool != NULL ? DSC_OK : DSC_ERR_INPUT);
        if (status == DSC_OK)
            assert_string_equal(pool_text(&pool, text, sizeof text), cases[i].pool);
        else {
            assert_string_equal(err.where, cases[i].where);
            assert_non_null(strstr(err.message, cases[i].message));
        }
        dsc_host_pool_close(&pool);
    }
    static const char *const yes[] = { "a:1", "localhost:4,host2:4", "[::1]:2", "a:99999" };
    static const char *const no[] = { "hosts", "a:1,b", "./a:1", "a:", ":1", "", "a:1,", "a:x", "/tmp/hosts:4" };
    for (size_t i = 0; i < DSC_COUNT(yes); i++)
        assert_true(dsc_hostlist_looks_like_one(yes[i]));
    for (size_t i = 0; i < DSC_COUNT(no); i++)
        assert_false(dsc_hostlist_looks_like_one(no[i]));
}

typedef struct filter_case {
    bool exclude;
    const char *text;
    const char *pool; /* NULL: refused at column `column` */
    int column;       /* 0: where is the flag alone */
} filter_case;

static void check_filter(const char *hosts, const filter_case *c)
{
    dsc_error err = DSC_ERROR_INIT;
    dsc_host_pool pool = DSC_HOST_POOL_INIT;
    char before[512], after[512], where[64];
    assert_int_equal(dsc_hostlist_parse(alloc, "-H", hosts, &pool, &err), DSC_OK);
    pool_text(&pool, before, sizeof before);
    const dsc_status status = dsc_host_pool_filter(&pool, "--include", c->text, c->exclude, &err);
    pool_text(&pool, after, sizeof after);
    if ((status == DSC_OK) != (c->pool != NULL))
        print_error("filter \"%s\": %s: %s\n", c->text, err.where, err.message);
    assert_int_equal(status, c->pool != NULL ? DSC_OK : DSC_ERR_INPUT);
    assert_string_equal(after, c->pool != NULL ? c->pool : before);
    if (c->pool == NULL) {
        snprintf(where, sizeof where, c->column > 0 ? "--include:%d" : "--include", c->column);
        assert_string_equal(err.where, where);
    }
    dsc_host_pool_close(&pool);
}

static void filters(void **state)
{
    (void)state;
    static const filter_case cases[] = {
        { false, "worker-0@worker-1:0,2", "worker-0:[0,1,2,3] worker-1:[0,2]", 0 },
        { false, "worker-1@worker-0", "worker-0:[0,1,2,3] worker-1:[0,1,2,3]", 0 },
        { false, "worker-1:3,1,1", "worker-1:[1,3]", 0 },
        { false, "worker-0:1@worker-0:0,1", "worker-0:[0,1]", 0 },
        { false, "worker-0:1@worker-0", "worker-0:[1]", 0 },
        { false, "worker-0@worker-0:1", "worker-0:[0,1,2,3]", 0 },
        { false, "worker-0: 1 ,\t2 @worker-1", "worker-0:[1,2] worker-1:[0,1,2,3]", 0 },
        { true, "worker-1:0", "worker-0:[0,1,2,3] worker-1:[1,2,3]", 0 },
        { true, "worker-0:0,1@worker-1:3", "worker-0:[2,3] worker-1:[0,1,2]", 0 },
        { true, "worker-0", "worker-1:[0,1,2,3]", 0 },
        { true, "worker-0:1@worker-0", "worker-1:[0,1,2,3]", 0 },
        { true, "worker-0:0,1,2,3", "worker-1:[0,1,2,3]", 0 },
        { true, "worker-0@worker-1", NULL, 0 },
        { false, "worker-2", NULL, 1 },
        { false, "worker-0@worker-2:1", NULL, 10 },
        { false, "worker-0:4", NULL, 10 },
        { false, "worker-0:", NULL, 10 },
        { false, "worker-0:a", NULL, 10 },
        { false, "worker-0:1,", NULL, 12 },
        { false, "worker-0:1 2", NULL, 12 },
        { false, "worker-0@", NULL, 10 },
        { false, "@worker-0", NULL, 1 },
        { false, "worker-0, worker-1", NULL, 9 },
        { false, " worker-0", NULL, 1 },
        { false, "worker-0:-1", NULL, 10 },
        { false, "worker-0:99999999999999999999", NULL, 10 },
        /* beyond DeepSpeed */
        { false, "worker-0:0-2", "worker-0:[0,1,2]", 0 },
        { true, "worker-0:1-1,3", "worker-0:[0,2] worker-1:[0,1,2,3]", 0 },
        { false, "worker-0:2-1", NULL, 13 },
        { false, "worker-0:1-", NULL, 12 },
        { false, "worker-0:2-9", NULL, 10 },
        { false, "worker-0:0-99999999999", NULL, 10 },
        { false, "WORKER-1:0", "worker-1:[0]", 0 },
    };
    for (size_t i = 0; i < DSC_COUNT(cases); i++)
        check_filter("worker-0:4,worker-1:4", &cases[i]);
    static const filter_case names[] = {
        { false, "me@a:1@b", "me@a:[1] b:[0,1]", 0 },
        { false, "b@me@a", "me@a:[0,1] b:[0,1]", 0 },
        { false, "[::1]:0@me@[fe80::2]", "::1:[0] me@fe80::2:[0,1]", 0 },
        { false, "[0::1]", "::1:[0,1]", 0 },
        { false, "you@a", NULL, 1 },
        { false, "::1", NULL, 1 },
    };
    for (size_t i = 0; i < DSC_COUNT(names); i++)
        check_filter("me@a:2,b:2,[::1]:2,me@[fe80::2]:2", &names[i]);
}

static void keep_takes_from_the_front(void **state)
{
    (void)state;
    static const struct {
        int64_t hosts, ranks;
        const char *pool;
    } cases[] = {
        { 3, 100, "a:[0,1,2,3] b:[0,1] c:[0,1]" }, { 1, 100, "a:[0,1,2,3]" }, { 3, 5, "a:[0,1,2,3] b:[0]" },
        { 3, 4, "a:[0,1,2,3]" },                   { 3, 1, "a:[0]" },         { 2, 6, "a:[0,1,2,3] b:[0,1]" },
    };
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        dsc_error err = DSC_ERROR_INIT;
        dsc_host_pool pool = DSC_HOST_POOL_INIT;
        char text[256];
        assert_int_equal(dsc_hostlist_parse(alloc, "-H", "a:4,b:2,c:2", &pool, &err), DSC_OK);
        dsc_host_pool_keep(&pool, cases[i].hosts, cases[i].ranks);
        assert_string_equal(pool_text(&pool, text, sizeof text), cases[i].pool);
        dsc_host_pool_close(&pool);
    }
}

/* The n-th allocation fails, for every n, in parsing and in filtering: a status, nothing leaked, and it works after. */
static void allocation_failures(void **state)
{
    (void)state;
    char text[2000];
    size_t used = 0;
    for (int i = 0; i < 100; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "n%d slots=2\n", i);
    int failures = 0;
    for (int64_t n = 1;; n++) {
        dsc_error err = DSC_ERROR_INIT;
        dsc_host_pool pool = DSC_HOST_POOL_INIT;
        dsc_alloc_stats stats;
        dsc_alloc_stats_get(alloc, &stats);
        dsc_alloc_fail_at(alloc, stats.call_count + n, false);
        dsc_status status = dsc_hostfile_parse(alloc, "hosts", text, (int64_t)used, &pool, &err);
        if (status == DSC_OK)
            status = dsc_host_pool_filter(&pool, "--include", "n7@n9:1", false, &err);
        dsc_alloc_fail_at(alloc, 0, false);
        dsc_host_pool_close(&pool);
        if (status == DSC_OK)
            break;
        assert_int_equal(status, DSC_ERR_NOMEM);
        failures++;
    }
    assert_true(failures >= 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hostfile_accepts),  cmocka_unit_test(hostfile_refuses),
        cmocka_unit_test(hostfile_sizes),    cmocka_unit_test(long_file_name_keeps_the_place),
        cmocka_unit_test(lists),             cmocka_unit_test(filters),
        cmocka_unit_test(keep_takes_from_the_front), cmocka_unit_test(allocation_failures),
    };
    return cmocka_run_group_tests_name("hostfile", tests, setup, teardown);
}
