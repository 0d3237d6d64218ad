/* tool.c - flags, numbers and the one error line of `dsc`. SPDX-License-Identifier: Apache-2.0 */
#include "tools/dsc/tool.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/formats/json.h"
#include "base/io.h"
#include "base/strings.h"

int dsc_tool_fail(const dsc_error *err)
{
    char text[sizeof err->where + sizeof err->message + 4];
    fprintf(stderr, "dsc: error: %s\n", dsc_error_format(err, text, sizeof text));
    return dsc_status_exit_code(err->status);
}

int dsc_tool_usage(const char *where, const char *fmt, ...)
{
    dsc_error err = DSC_ERROR_INIT;
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    (void)DSC_FAIL(&err, DSC_ERR_INPUT, where, "%s", text);
    return dsc_tool_fail(&err);
}

int dsc_tool_end(void)
{
    dsc_error err = DSC_ERROR_INIT;
    if (fflush(stdout) == 0 && !ferror(stdout))
        return 0;
    (void)DSC_FAIL(&err, DSC_ERR_IO, "stdout", "%s", strerror(errno));
    return dsc_tool_fail(&err);
}

int dsc_tool_parse(const dsc_flag_command *command, int argc, char **argv, void *out)
{
    char page[8192];
    dsc_error err = DSC_ERROR_INIT;
    bool help = false;
    if (dsc_flags_parse(command, argc, argv, out, &help, &err) != DSC_OK)
        return dsc_tool_fail(&err);
    if (!help)
        return -1;
    (void)dsc_flags_help(command, page, sizeof page);
    fputs(page, stdout);
    return dsc_tool_end();
}

static const char *verb_name(const void *user, int32_t i)
{
    return strrchr(((const dsc_tool_verb *)user)[i].page->name, ' ') + 1;
}

/* "ls, verify or hash" */
static void join_verbs(const dsc_tool_verb *verbs, int32_t count, char *out, size_t out_bytes)
{
    size_t used = 0;
    out[0] = 0;
    for (int32_t i = 0; i < count && used < out_bytes; i++)
        used += (size_t)snprintf(out + used, out_bytes - used, "%s%s", i == 0 ? "" : i + 1 == count ? " or " : ", ",
                                 verb_name(verbs, i));
}

static int print_verbs(const char *command, const char *description, const dsc_tool_verb *verbs, int32_t count)
{
    printf("usage: %s SUBCOMMAND [ARGUMENTS]\n\n%s\n\n", command, description);
    for (int32_t i = 0; i < count; i++)
        printf("  %-10s %s\n", verb_name(verbs, i), verbs[i].page->description);
    printf("\n\"%s SUBCOMMAND --help\" explains the flags and exit codes of each.\n", command);
    return dsc_tool_end();
}

int dsc_tool_run_verb(const char *command, const char *description, const dsc_tool_verb *verbs, int32_t count, int argc,
                      char **argv)
{
    char names[256];
    join_verbs(verbs, count, names, sizeof names);
    if (argc < 2)
        return dsc_tool_usage(command, "%s is missing; \"%s --help\" explains", names, command);
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
        return print_verbs(command, description, verbs, count);
    for (int32_t i = 0; i < count; i++)
        if (strcmp(argv[1], verb_name(verbs, i)) == 0)
            return verbs[i].run(argc - 1, argv + 1);
    const char *best = dsc_string_nearest(argv[1], verb_name, verbs, count, 2);
    if (best != NULL)
        return dsc_tool_usage(argv[1], "unknown subcommand; did you mean \"%s %s\"?", command, best);
    return dsc_tool_usage(argv[1], "unknown subcommand; expected %s", names);
}

dsc_status dsc_tool_beside(const char *program, char *out, size_t out_bytes, dsc_error *err)
{
    char self[4096];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = 0;
    char *slash = strrchr(self, '/');
    if (slash == NULL)
        return DSC_FAIL(err, DSC_ERR_IO, program, "the folder of this program is unknown: %s", strerror(errno));
    *slash = 0;
    DSC_TRY(dsc_path_join(out, out_bytes, self, program, err));
    return access(out, X_OK) == 0 ? DSC_OK : DSC_FAIL(err, DSC_ERR_IO, out, "is not there: %s", strerror(errno));
}

dsc_status dsc_tool_lines(dsc_alloc *alloc, const char *path, int64_t bytes_max, dsc_tool_line_fn line, void *user,
                          dsc_error *err)
{
    char *text = NULL;
    int64_t bytes, number = 1;
    DSC_TRY(dsc_io_read_all(NULL, alloc, path, bytes_max, &text, &bytes, err));
    dsc_status status = DSC_OK;
    const char *end;
    for (const char *at = text; status == DSC_OK && at < text + bytes; at = end + 1, number++) {
        char where[1100];
        end = memchr(at, '\n', (size_t)(text + bytes - at));
        if (end == NULL)
            break;
        snprintf(where, sizeof where, "%s:%lld", path, (long long)number);
        if (end > at)
            status = line(user, where, at, end - at, err);
    }
    dsc_alloc_free(alloc, text);
    return status;
}

void dsc_tool_json_text(const char *text)
{
    char small[2048];
    const size_t need = dsc_json_quote(small, sizeof small, text);
    if (need < sizeof small) {
        fputs(small, stdout);
        return;
    }
    char *large = malloc(need + 1);
    if (large == NULL) {
        fputs("null", stdout);
        return;
    }
    (void)dsc_json_quote(large, need + 1, text);
    fputs(large, stdout);
    free(large);
}

const char *dsc_tool_double(double value, char out[32])
{
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(out, 32, "%.*g", digits, value);
        if (strtod(out, NULL) == value)
            break;
    }
    return out;
}
