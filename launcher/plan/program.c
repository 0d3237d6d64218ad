/* program.c - see program.h. SPDX-License-Identifier: Apache-2.0 */
#include "launcher/plan/program.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_program(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

static dsc_status check_path(const char *path, dsc_error *err)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "no such program: %s", strerror(errno));
    if (!S_ISREG(st.st_mode))
        return DSC_FAIL(err, DSC_ERR_INPUT, path, "is not a file that can be executed");
    if (access(path, X_OK) != 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, path,
                        "is not executable; chmod +x it, or start its interpreter, for example python3 %.60s", path);
    return DSC_OK;
}

void dsc_program_path(char *out, size_t out_bytes)
{
    const ssize_t n = readlink("/proc/self/exe", out, out_bytes - 1);
    out[n > 0 ? n : 0] = 0;
}

/* The folder of this very file, so that a build tree and an installation work without PATH. */
static void own_folder(char *out, size_t out_bytes)
{
    dsc_program_path(out, out_bytes);
    char *slash = strrchr(out, '/');
    if (slash != NULL)
        *slash = 0;
}

dsc_status dsc_program_find(const char *name, char *out, size_t out_bytes, dsc_error *err)
{
    char folder[2048];
    if (strchr(name, '/') != NULL) {
        if ((size_t)snprintf(out, out_bytes, "%s", name) >= out_bytes)
            return DSC_FAIL(err, DSC_ERR_INPUT, "PROGRAM", "its path is too long");
        return check_path(out, err);
    }
    own_folder(folder, sizeof folder);
    if ((size_t)snprintf(out, out_bytes, "%s/%s", folder, name) < out_bytes && is_program(out))
        return DSC_OK;
    const char *path = getenv("PATH");
    for (const char *at = path; at != NULL; at = *at == ':' ? at + 1 : NULL) {
        const size_t bytes = strcspn(at, ":");
        const int n = snprintf(out, out_bytes, "%.*s%s%s", (int)bytes, at, bytes > 0 ? "/" : "./", name);
        if (n > 0 && (size_t)n < out_bytes && is_program(out))
            return DSC_OK;
        at += bytes;
    }
    if (access(name, F_OK) == 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, "PROGRAM",
                        "\"%.100s\" is neither beside dsc-launch nor in PATH; for the file here write ./%.100s", name,
                        name);
    return DSC_FAIL(err, DSC_ERR_INPUT, "PROGRAM", "\"%.100s\" is neither in %.200s nor in PATH", name, folder);
}
