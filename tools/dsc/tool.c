/* tool.c - flags, numbers and the one error line of `dsc`. SPDX-License-Identifier: Apache-2.0 */
#include "tools/dsc/tool.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/formats/json.h"
#include "base/io.h"

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

bool dsc_tool_number(const char *flag, const char *text, int64_t least, int64_t most, int64_t *out)
{
    char *end;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    if (end == text || *end != 0 || errno != 0 || text[0] == ' ' || value < least || value > most) {
        (void)dsc_tool_usage(flag, "\"%s\" is not a whole number from %lld to %lld", text, (long long)least,
                             (long long)most);
        return false;
    }
    *out = value;
    return true;
}

const char *dsc_tool_flag(const char *name, int argc, char **argv, int *i)
{
    const size_t length = strlen(name);
    if (strncmp(argv[*i], name, length) != 0)
        return NULL;
    if (argv[*i][length] == '=')
        return argv[*i] + length + 1;
    if (argv[*i][length] != 0)
        return NULL;
    return *i + 1 < argc ? argv[++*i] : "";
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
