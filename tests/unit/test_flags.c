/* test_flags.c - edit distance and quoting, the parser that reads by a table, and its help page.
 * SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/base.h"
#include "base/flags.h"
#include "base/strings.h"

typedef struct inner {
    int64_t steps;
} inner;

typedef struct options {
    inner shared;
    bool version;
    int32_t hosts, port;
    dsc_flag_program program;
    bool json;
    int64_t ranks;
    double rate;
    const char *model, *device, *prompt, *file;
    dsc_flag_list sets, rest;
    char called[64];
} options;

static dsc_status add_call(void *out, const dsc_flag *flag, const char *value, dsc_error *err)
{
    options *o = out;
    if (strcmp(value, "bad") == 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, flag->name, "refused");
    snprintf(o->called + strlen(o->called), sizeof o->called - strlen(o->called), "%s=%s ", flag->key, value);
    return DSC_OK;
}

#define AT(field) offsetof(options, field)
static const char *const devices[] = { "auto", "cpu", "cuda", NULL };
static const dsc_flag rows[] = {
    { "--json", NULL, NULL, DSC_FLAG_BOOL, AT(json), .help = "print JSON" },
    { "--world-size", "-n", "N", DSC_FLAG_INTEGER, AT(ranks), .help = "number of ranks", .min = 1, .max = 64 },
    { "--rate", NULL, "X", DSC_FLAG_NUMBER, AT(rate), .help = "a rate", .low = 0, .high = 1 },
    { "--model", NULL, "NAME", DSC_FLAG_TEXT, AT(model), .help = "the model", .required = true },
    { "--prompt", NULL, "TEXT", DSC_FLAG_TEXT, AT(prompt), .help = "a text", .allow_empty = true },
    { "--device", NULL, "NAME", DSC_FLAG_CHOICE, AT(device), .help = "the device", .choices = devices },
    { "--set", NULL, "KEY=VALUE", DSC_FLAG_LIST, AT(sets), .help = "a value of the config" },
    { "--data", NULL, "PATH", DSC_FLAG_CALL, 0, .help = "data", .set = add_call, .key = "data", .greedy = true },
    { "--weak", NULL, NULL, DSC_FLAG_SWITCH, 0, .help = "weak scaling", .set = add_call, .key = "weak" },
    { "--old-name", NULL, "X", DSC_FLAG_CALL, 0, .help = NULL, .set = add_call, .key = "old" },
};
static const dsc_flag shared_rows[] = {
    { "--steps", NULL, "N", DSC_FLAG_INTEGER, offsetof(inner, steps), .help = "number of steps", .min = 1, .max = 100 },
};
static const dsc_positional files[] = {
    { "FILE", "the file to read", "file", AT(file), 1, 1 },
};
static const dsc_positional many[] = {
    { "FILE", "the first file", "file", AT(file), 1, 1 },
    { "MORE", "more files", "file", AT(rest), 1, 0 },
};
static const dsc_flag_command command = {
    .name = "dsc try", .description = "Tries a table.", .flags = rows, .flag_count = DSC_COUNT(rows),
    .positionals = files, .positional_count = 1, .shared = { shared_rows, 1, AT(shared) },
};
static const dsc_flag_command several = { .name = "dsc many", .description = "Reads many files.", .positionals = many,
                                          .positional_count = 2 };

/* A launcher: flags end at the program. */
static const dsc_flag launch_rows[] = {
    { "--num_hosts", "--nnodes", "N", DSC_FLAG_INT32, AT(hosts), .help = "number of hosts", .min = 1, .max = 8,
      .minus_one = true },
    { "--port", NULL, "PORT", DSC_FLAG_INT32, AT(port), .help = "port", .min = 1, .max = 65535 },
    { "--model", NULL, "NAME", DSC_FLAG_TEXT, AT(model), .help = "the model" },
    { "--json", "-j", NULL, DSC_FLAG_BOOL, AT(json), .help = "print JSON" },
    { "--version", NULL, NULL, DSC_FLAG_BOOL, AT(version), .help = "print the version", .ends = true },
    { "--venv_script", NULL, "FILE", DSC_FLAG_REFUSED, 0, .help = "not built yet: source the script before" },
};
static const dsc_positional program[] = {
    { "PROGRAM", "the program and its arguments", "program", AT(program), 0, 1 },
};
static const dsc_flag_command launch = {
    .name = "launch", .description = "Starts a program.", .usage = "[flags] PROGRAM [ARGS]", .flags = launch_rows,
    .flag_count = DSC_COUNT(launch_rows),
    .positionals = program, .positional_count = 1, .ends_at_program = true, .strict_values = true,
    .notes = "examples:\n  launch    -j train",
};

static dsc_status parse(const dsc_flag_command *c, const char *const *argv, options *o, bool *help, dsc_error *err)
{
    static const char *texts[2][3];
    int argc = 0;
    while (argv[argc] != NULL)
        argc++;
    *o = (options){ .sets = { texts[0], 0, 3 }, .rest = { texts[1], 0, 3 } };
    *err = (dsc_error)DSC_ERROR_INIT;
    return dsc_flags_parse(c, argc, (char **)(uintptr_t)argv, o, help, err);
}
#define ARGS(...) ((const char *[]){ "x", __VA_ARGS__, NULL })
#define PARSE(...) parse(&command, ARGS(__VA_ARGS__), &o, &help, &err)

static void test_distance(void **state)
{
    static const struct { const char *a, *b; int limit, distance; } cases[] = {
        { "stage", "stage", 3, 0 },   { "stage", "stages", 3, 1 }, { "stgae", "stage", 3, 1 },
        { "kitten", "sitting", 3, 3 }, { "kitten", "sitting", 2, 3 }, { "", "abc", 3, 3 }, { "a", "abcdef", 3, 4 },
    };
    for (size_t i = 0; i < DSC_COUNT(cases); i++)
        assert_int_equal(dsc_string_distance(cases[i].a, cases[i].b, cases[i].limit), cases[i].distance);
    char longest[DSC_STRING_BYTES_MAX + 2];
    memset(longest, 'a', sizeof longest - 1);
    longest[sizeof longest - 1] = 0;
    assert_int_equal(dsc_string_distance(longest, longest, 5), 6);
}

static const char *name_of(const void *user, int32_t i) { return ((const char *const *)user)[i]; }

static void test_nearest(void **state)
{
    static const char *const names[] = { "plan", NULL, "plot", "plat" };
    assert_string_equal(dsc_string_nearest("plan", name_of, names, 4, 2), "plan");
    assert_string_equal(dsc_string_nearest("plt", name_of, names, 4, 2), "plot"); /* the first of two */
    assert_null(dsc_string_nearest("doctor", name_of, names, 4, 2));
}

static void test_quote(void **state)
{
    char out[12];
    assert_string_equal(dsc_string_quote(out, sizeof out, "ab"), "\"ab\"");
    assert_string_equal(dsc_string_quote(out, sizeof out, "a\"b\\"), "\"a\\\"b\\\\\"");
    assert_string_equal(dsc_string_quote(out, sizeof out, "abcdefghijkl"), "\"abcdef...\"");
    assert_string_equal(dsc_string_quote(out, 8, ""), "\"\"");
}

static void test_values(void **state)
{
    options o;
    dsc_error err;
    bool help;
    assert_int_equal(PARSE("--json", "--world_size=8", "--rate", "0.5", "--model", "gpt", "f", "--device", "cpu",
                           "--set", "a=1", "--set=b=2", "--steps", "7", "--prompt", "", "--weak"), DSC_OK);
    assert_true(o.json && !help && o.ranks == 8 && o.rate == 0.5 && o.shared.steps == 7 && o.sets.count == 2);
    assert_string_equal(o.model, "gpt");
    assert_string_equal(o.file, "f");
    assert_string_equal(o.sets.text[1], "b=2");
    assert_string_equal(o.prompt, "");
    assert_string_equal(o.called, "weak= ");
    assert_int_equal(PARSE("--model=m", "-n", "3", "-n", "4", "-", "--data", "a", "b", "--json"), DSC_OK);
    assert_true(o.ranks == 4 && o.json); /* the last of two flags counts */
    assert_string_equal(o.file, "-");
    assert_string_equal(o.called, "data=a data=b ");
    assert_int_equal(PARSE("f", "--model", "m", "--data=a", "--old_name", "y"), DSC_OK);
    assert_string_equal(o.called, "data=a old=y ");
    assert_int_equal(PARSE("--help", "--nonsense"), DSC_OK);
    assert_true(help);
    assert_int_equal(parse(&several, ARGS("a", "b", "c"), &o, &help, &err), DSC_OK);
    assert_true(o.rest.count == 2 && strcmp(o.file, "a") == 0 && strcmp(o.rest.text[1], "c") == 0);
}

static void test_refused(void **state)
{
    static const struct { const char *args[6], *where, *message;
    } cases[] = {
        { { "--world-sise", "3" }, "--world-sise", "unknown flag; did you mean --world-size? \"dsc try --help\"" },
        { { "--world_sise=3" }, "--world_sise", "did you mean --world-size?" },
        { { "--old-nam=3" }, "--old-nam", "unknown flag; \"dsc try --help\" explains all flags" },
        { { "--zzzzzzz" }, "--zzzzzzz", "unknown flag; \"dsc try --help\" explains all flags" },
        { { "--zen" }, "--zen", "unknown flag; \"dsc try --help\" explains all flags" }, /* two letters from --set */
        { { "--" }, "--", "unknown flag; \"dsc try --help\" explains all flags" },
        { { "--hlep" }, "--hlep", "did you mean --help?" },
        { { "-x" }, "-x", "unknown flag" },
        { { "--json=yes" }, "--json", "takes no value, but \"yes\" was given" },
        { { "--world-size" }, "--world-size", "needs a value: N" },
        { { "--world-size", "0" }, "--world-size", "\"0\" is too small; expected 1 to 64" },
        { { "--world-size", "65" }, "--world-size", "\"65\" is more than the limit of 64; give a smaller number" },
        { { "--world-size", " 1" }, "--world-size", "not a whole number" },
        { { "--world_size", "\t1" }, "--world_size", "not a whole number" }, /* the place is as typed */
        { { "-n", "0" }, "-n", "\"0\" is too small; expected 1 to 64" },
        { { "--world-size", "1x" }, "--world-size", "\"1x\" is not a whole number; expected 1 to 64" },
        { { "--world-size", "99999999999999999999" }, "--world-size", "is more than the limit of 64" },
        { { "--world-size=-99999999999999999999" }, "--world-size", "too small" },
        { { "--rate", "1.5" }, "--rate", "\"1.5\" is too large; expected 0 to 1" },
        { { "--rate", "1e999" }, "--rate", "\"1e999\" is too large" },
        { { "--rate=-0.5" }, "--rate", "\"-0.5\" is too small; expected 0 to 1" },
        { { "--rate", "nan" }, "--rate", "not a number" },
        { { "--rate", "" }, "--rate", "not a number" },
        { { "--device", "tpu" }, "--device", "\"tpu\" is unknown; expected auto, cpu or cuda" },
        { { "--model", "" }, "--model", "the value is empty; expected NAME" },
        { { "--data", "bad" }, "--data", "refused" },
        { { "f" }, "dsc try", "--model NAME is missing" },
        { { "--model", "m" }, "dsc try", "FILE is missing" },
        { { "--model", "m", "" }, "dsc try", "FILE is missing" },
        { { "a", "b" }, "b", "one file at a time" },
    };
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        options o;
        dsc_error err;
        bool help;
        const char *argv[8] = { "x" };
        for (size_t a = 0; a < 6 && cases[i].args[a] != NULL; a++)
            argv[a + 1] = cases[i].args[a];
        assert_int_equal(parse(&command, argv, &o, &help, &err), DSC_ERR_INPUT);
        assert_string_equal(err.where, cases[i].where);
        if (strstr(err.message, cases[i].message) == NULL)
            fail_msg("%s: \"%s\" lacks \"%s\"", err.where, err.message, cases[i].message);
    }
    options o;
    dsc_error err;
    bool help;
    assert_int_equal(PARSE("--set=1", "--set=2", "--set=3", "--set=4"), DSC_ERR_INPUT);
    assert_non_null(strstr(err.message, "more than 3 of them"));
    assert_int_equal(parse(&several, ARGS("a"), &o, &help, &err), DSC_ERR_INPUT);
    assert_non_null(strstr(err.message, "MORE is missing"));
    assert_int_equal(parse(&several, ARGS("a", "b", "c", "d", "e"), &o, &help, &err), DSC_ERR_INPUT);
    assert_string_equal(err.where, "e");
}

#define LAUNCH(...) parse(&launch, ARGS(__VA_ARGS__), &o, &help, &err)

static void test_flags_end_at_the_program(void **state)
{
    options o;
    dsc_error err;
    bool help;
    assert_int_equal(LAUNCH("--num-hosts", "-1", "-j", "train", "--json", "--help"), DSC_OK);
    assert_true(o.hosts == -1 && o.json && !help && o.program.argc == 3);
    assert_string_equal(o.program.argv[0], "train");
    assert_string_equal(o.program.argv[2], "--help");
    assert_null(o.program.argv[3]);
    assert_int_equal(LAUNCH("--port=7", "--", "--odd"), DSC_OK);
    assert_true(o.port == 7 && o.program.argc == 1);
    assert_string_equal(o.program.argv[0], "--odd");
    assert_int_equal(LAUNCH("--json", "-"), DSC_OK);
    assert_string_equal(o.program.argv[0], "-");
    assert_int_equal(LAUNCH("--json", "", "x"), DSC_OK);
    assert_int_equal(o.program.argc, 2);
    assert_int_equal(LAUNCH("--nnodes", "3"), DSC_OK);
    assert_true(o.hosts == 3 && o.program.argc == 0 && o.program.argv[0] == NULL);
    assert_int_equal(LAUNCH("--version", "--nonsense", "train"), DSC_OK);
    assert_true(o.version && !help && o.program.argc == 0);
    assert_int_equal(LAUNCH("--model", "-n 3 --x", "train"), DSC_OK); /* a text with a blank is not a flag */
    assert_string_equal(o.model, "-n 3 --x");
    assert_int_equal(LAUNCH("--model=--json", "train"), DSC_OK);
    assert_string_equal(o.model, "--json");
}

static void test_launch_refused(void **state)
{
    static const struct { const char *args[3], *where, *message; dsc_status status;
    } cases[] = {
        { { "--num-hosst" },
          "--num-hosst",
          "unknown flag; did you mean --num_hosts? \"launch --help\" explains all; "
          "arguments of PROGRAM come after it",
          DSC_ERR_INPUT },
        { { "--zzzzzzzz" }, "--zzzzzzzz", "explains all flags; arguments of PROGRAM come after it", DSC_ERR_INPUT },
        { { "--model", "--json" }, "--model", "needs a value: NAME", DSC_ERR_INPUT },
        { { "--num_hosts", "-2" }, "--num_hosts", "needs a value: N", DSC_ERR_INPUT },
        { { "--num_hosts=-2" }, "--num_hosts", "\"-2\" is too small; expected 1 to 8", DSC_ERR_INPUT },
        { { "--num-hosts", "9" }, "--num-hosts", "\"9\" is more than the limit of 8; give", DSC_ERR_INPUT },
        { { "--nnodes=x" }, "--nnodes", "\"x\" is not a whole number", DSC_ERR_INPUT },
        { { "--port", "-1" }, "--port", "needs a value: PORT", DSC_ERR_INPUT },
        { { "--port=-1" }, "--port", "\"-1\" is too small; expected 1 to 65535", DSC_ERR_INPUT },
        { { "-j=1" }, "-j", "takes no value", DSC_ERR_INPUT },
        { { "--venv_script" }, "--venv_script", "not built yet: source the script before", DSC_ERR_UNSUPPORTED },
        { { "--venv-script=x" }, "--venv-script", "not built yet: source", DSC_ERR_UNSUPPORTED },
    };
    for (size_t i = 0; i < DSC_COUNT(cases); i++) {
        options o;
        dsc_error err;
        bool help;
        const char *argv[5] = { "x" };
        for (size_t a = 0; a < 3 && cases[i].args[a] != NULL; a++)
            argv[a + 1] = cases[i].args[a];
        assert_int_equal(parse(&launch, argv, &o, &help, &err), cases[i].status);
        assert_string_equal(err.where, cases[i].where);
        if (strstr(err.message, cases[i].message) == NULL)
            fail_msg("%s: \"%s\" lacks \"%s\"", err.where, err.message, cases[i].message);
    }
}

static void test_launch_page(void **state)
{
    char text[4096];
    const size_t bytes = dsc_flags_help(&launch, text, sizeof text);
    assert_int_equal(bytes, strlen(text));
    assert_memory_equal(text, "usage: launch [flags] PROGRAM [ARGS]\n\nStarts a program.\n", 56);
    assert_non_null(strstr(text, "\n  --num_hosts, --nnodes N     number of hosts (1 to 8)\n"));
    assert_non_null(strstr(text, "\n  --venv_script FILE          not built yet: source the script before\n"));
    assert_non_null(strstr(text, "\nexamples:\n  launch    -j train\n\nexit codes: 0 done"));
}

static void test_page(void **state)
{
    char text[4096], small[16];
    const size_t bytes = dsc_flags_help(&command, text, sizeof text);
    assert_int_equal(bytes, strlen(text));
    assert_memory_equal(text, "usage: dsc try FILE [--json]", 28);
    assert_non_null(strstr(text, "Tries a table."));
    assert_non_null(strstr(text, "\n  --world-size, -n N          number of ranks (1 to 64)\n"));
    assert_non_null(strstr(text, "\n  FILE                        the file to read\n"));
    assert_non_null(strstr(text, "\n  --steps N                   number of steps (1 to 100)\n"));
    assert_non_null(strstr(text, "\nexit codes: 0 done; 1 failed; 2 wrong command line or input\n"));
    assert_null(strstr(text, "--old-name"));
    assert_null(strstr(text, " \n"));
    for (char *line = strtok(text, "\n"); line != NULL; line = strtok(NULL, "\n"))
        assert_true(strlen(line) <= 100);
    assert_int_equal(dsc_flags_help(&command, small, sizeof small), bytes);
    assert_string_equal(small, "usage: dsc try ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_distance), cmocka_unit_test(test_nearest), cmocka_unit_test(test_quote),
        cmocka_unit_test(test_values),   cmocka_unit_test(test_refused), cmocka_unit_test(test_page),
        cmocka_unit_test(test_flags_end_at_the_program), cmocka_unit_test(test_launch_refused),
        cmocka_unit_test(test_launch_page),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
