/* test_envfile.c - files of variables: what passes, what is refused, and where the error points.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hosts/envfile.h"

typedef struct found {
    char text[512];
} found;

static dsc_status note(void *user, const char *entry, size_t name_bytes, const char *where, dsc_error *err)
{
    found *f = user;
    snprintf(f->text + strlen(f->text), sizeof f->text - strlen(f->text), "%s|%zu@%s;", entry, name_bytes,
             strrchr(where, ':') - 1);
    return DSC_OK;
}

typedef struct file_case {
    const char *text;
    const char *found;   /* NULL: refused */
    const char *where;   /* of the error */
    const char *message; /* a part of it */
} file_case;

static const file_case cases[] = {
    { "", "", NULL, NULL },
    { "A=1", "A=1|1@1:1;", NULL, NULL },
    { "A=1\nBC_2=x=y\n", "A=1|1@1:1;BC_2=x=y|4@2:1;", NULL, NULL },
    { "# note\r\n\r\n\t A \t=\tb  c \t\r\n", "A=b  c|1@3:1;", NULL, NULL },
    { "A=\n", "A=|1@1:1;", NULL, NULL },
    { "A=\"q\" 'r' $X `y` \\z # no comment\n", "A=\"q\" 'r' $X `y` \\z # no comment|1@1:1;", NULL, NULL },
    { "A=\xc3\xa9\n", "A=\xc3\xa9|1@1:1;", NULL, NULL },
    { "A=1\nA", NULL, "env:2:1", "no '='" },
    { "=1", NULL, "env:1:1", "not a variable's name" },
    { "  1A=1", NULL, "env:1:3", "\"1A\" is not a variable's name" },
    { "A B=1", NULL, "env:1:1", "not a variable's name" },
    { "A-B=1", NULL, "env:1:1", "not a variable's name" },
    { "\xc3\x84=1", NULL, "env:1:1", "not a variable's name" },
    { "export A=1", NULL, "env:1:1", "without \"export\"" },
    { "A=1\x1b[2J", NULL, "env:1:4", "control byte (0x1b)" },
    { "# \x07\n", NULL, "env:1:3", "control byte (0x07)" },
    { "A=1\rB=2\n", NULL, "env:1:4", "control byte (0x0d)" },
    { "A=\x7f", NULL, "env:1:3", "control byte (0x7f)" },
    { "\xef\xbb\xbf" "A=1", NULL, "env:1:1", "byte order mark" },
};

static void accepts_and_refuses(void **state)
{
    dsc_alloc *alloc = NULL;
    assert_int_equal(dsc_alloc_open(&alloc, NULL), DSC_OK);
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        const file_case *c = &cases[i];
        found f = { "" };
        dsc_error err = DSC_ERROR_INIT;
        const dsc_status status =
            dsc_envfile_parse(alloc, "env", c->text, (int64_t)strlen(c->text), note, &f, &err);
        print_message("# %zu: %s\n", i, status == DSC_OK ? "accepted" : err.message);
        assert_int_equal(status, c->found != NULL ? DSC_OK : DSC_ERR_INPUT);
        if (c->found != NULL) {
            assert_string_equal(f.text, c->found);
            continue;
        }
        assert_string_equal(err.where, c->where);
        assert_non_null(strstr(err.message, c->message));
    }
    dsc_error err = DSC_ERROR_INIT;
    assert_int_equal(dsc_envfile_parse(alloc, "env", "A=1\0B=2", 7, NULL, NULL, &err), DSC_ERR_INPUT);
    assert_string_equal(err.where, "env:1:4");
    assert_int_equal(dsc_envfile_read(alloc, "/no/such/file", NULL, NULL, &err), DSC_ERR_INPUT);
    dsc_alloc_close(&alloc);
}

/* A variable that names a folder of code needs a file that only the user can write. No file may set a variable that
 * runs code by itself. */
static void variables_that_run_code_are_refused(void **state)
{
    static const struct { const char *text; mode_t mode; const char *said; } rows[] = {
        { "A=1\nPATH=/opt/bin:/usr/bin\nLD_LIBRARY_PATH=/opt/lib\nPYTHONPATH=/x\n", 0644, NULL },
        { "A=1\nPATH=/opt/bin\n", 0664, ":2:1 PATH says where code is" },
        { "LD_LIBRARY_PATH=/x\n", 0646, ":1:1 LD_LIBRARY_PATH says where code is" },
        { "LD_PRELOAD=/x.so\n", 0600, ":1:1 a file may not set LD_PRELOAD" },
        { "BASH_ENV=/x\n", 0600, ":1:1 a file may not set BASH_ENV" },
        { "DSC_PLUGIN_DIR=/x\n", 0600, ":1:1 a file may not set DSC_PLUGIN_DIR" },
        { "RANK=1\n", 0600, ":1:1 dsc-launch sets RANK for each rank" },
        { "RANKS=1\nLDX=2\n", 0666, NULL },
    };
    dsc_alloc *alloc = NULL;
    char path[] = "/tmp/envfile-test-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(dsc_alloc_open(&alloc, NULL), DSC_OK);
    for (size_t i = 0; i < DSC_COUNT(rows); i++) {
        dsc_error err = DSC_ERROR_INIT;
        char said[sizeof err.where + sizeof err.message + 2];
        assert_int_equal(ftruncate(fd, 0), 0);
        assert_int_equal(pwrite(fd, rows[i].text, strlen(rows[i].text), 0), (ssize_t)strlen(rows[i].text));
        assert_int_equal(fchmod(fd, rows[i].mode), 0);
        const dsc_status status = dsc_envfile_read(alloc, path, NULL, NULL, &err);
        snprintf(said, sizeof said, "%s %s", err.where, err.message);
        if ((status == DSC_OK) != (rows[i].said == NULL) || (status != DSC_OK && strstr(said, rows[i].said) == NULL))
            fail_msg("%s: %s", rows[i].text, said);
    }
    close(fd);
    unlink(path);
    dsc_alloc_close(&alloc);
}

int main(void)
{
    const struct CMUnitTest all[] = { cmocka_unit_test(accepts_and_refuses),
                                      cmocka_unit_test(variables_that_run_code_are_refused) };
    return cmocka_run_group_tests_name("envfile", all, NULL, NULL);
}
