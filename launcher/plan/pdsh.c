/* pdsh.c - see pdsh.h. SPDX-License-Identifier: Apache-2.0 */
#include "launcher/plan/pdsh.h"

#include <ctype.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

/* Options of ssh, of OpenSSH 9: those that take a value, those that are alone, and those after which no agent runs or
 * nobody hears it. */
static const char ssh_valued[] = "BbcDEeFIiJLlmopPRS", ssh_alone[] = "1246AaCgKkMqTvXxYy", ssh_ending[] = "fGNnOQstVWw";

static const char blanks[] = " \t\n";

typedef struct target {
    const char *user, *host;
    size_t user_bytes;
} target;

static target target_of(const char *host)
{
    const char *at = strrchr(host, '@');
    if (at != NULL)
        return (target){ host, at + 1, (size_t)(at - host) };
    const struct passwd *entry = getpwuid(geteuid());
    const char *user = entry != NULL ? entry->pw_name : "root";
    return (target){ user, host, strlen(user) };
}

static bool put(dsc_pdsh_args *out, const char *text, size_t bytes)
{
    if (bytes >= sizeof out->text - out->used)
        return false;
    memcpy(out->text + out->used, text, bytes);
    out->used += bytes;
    return true;
}

/* One argument, with the values of %u, %h and %%. */
static dsc_status add_arg(const char *where, const char *arg, size_t bytes, const target *to, dsc_pdsh_args *out,
                           dsc_error *err)
{
    const char *begin = out->text + out->used;
    bool fits = out->count < DSC_PDSH_ARGS_MAX;
    for (size_t i = 0; i < bytes && fits; i++) {
        if (arg[i] != '%') {
            fits = put(out, arg + i, 1);
            continue;
        }
        const char which = i + 1 < bytes ? arg[++i] : 0;
        if (which == 'u')
            fits = put(out, to->user, to->user_bytes);
        else if (which == 'h')
            fits = put(out, to->host, strlen(to->host));
        else if (which == '%')
            fits = put(out, "%", 1);
        else
            return DSC_FAIL(err, DSC_ERR_INPUT, where, "\"%.*s\": only %%u, %%h and %%%% stand for something",
                            (int)dsc_min_i64((int64_t)bytes, 60), arg);
    }
    if (!fits || !put(out, "", 1))
        return DSC_FAIL(err, DSC_ERR_INPUT, where, "more than %d arguments or %d bytes for ssh", DSC_PDSH_ARGS_MAX,
                        DSC_PDSH_TEXT_BYTES);
    out->arg[out->count++] = begin;
    return DSC_OK;
}

/* "-4i": true in *wants_value when the value of its last letter is the next argument. */
static dsc_status check_option(const char *where, const char *arg, size_t bytes, bool *wants_value, dsc_error *err)
{
    const int shown = (int)dsc_min_i64((int64_t)bytes, 60);
    *wants_value = false;
    if (bytes < 2 || arg[0] != '-')
        return DSC_FAIL(err, DSC_ERR_INPUT, where, "\"%.*s\" is not an option of ssh (the host is added here)", shown,
                        arg);
    for (size_t i = 1; i < bytes; i++) {
        if (strchr(ssh_valued, arg[i]) != NULL) {
            *wants_value = i + 1 == bytes;
            return DSC_OK;
        }
        if (strchr(ssh_ending, arg[i]) != NULL)
            return DSC_FAIL(err, DSC_ERR_INPUT, where, "\"%.*s\": with -%c ssh gives an agent no input or does not "
                            "start it; take it out", shown, arg, arg[i]);
        if (strchr(ssh_alone, arg[i]) == NULL)
            return DSC_FAIL(err, DSC_ERR_INPUT, where, "\"%.*s\" is not an option of ssh", shown, arg);
    }
    return DSC_OK;
}

static bool is_destination(const char *arg, size_t bytes)
{
    return (bytes == 2 && strncmp(arg, "%h", 2) == 0) || (bytes == 5 && strncmp(arg, "%u@%h", 5) == 0);
}

/* Words for ssh, as pdsh cuts them: at blanks, quotes mean nothing. */
static dsc_status add_ssh_args(const char *where, const char *at, const target *to, dsc_pdsh_args *out, dsc_error *err)
{
    bool is_value = false;
    for (at += strspn(at, blanks); *at != 0; at += strspn(at, blanks)) {
        const size_t bytes = strcspn(at, blanks);
        if (is_value)
            is_value = false;
        else if (is_destination(at, bytes)) {
            at += bytes;
            continue;
        } else {
            DSC_TRY(check_option(where, at, bytes, &is_value, err));
        }
        DSC_TRY(add_arg(where, at, bytes, to, out, err));
        at += bytes;
    }
    if (is_value)
        return DSC_FAIL(err, DSC_ERR_INPUT, where, "its last option lacks a value");
    return DSC_OK;
}

static bool is_number(const char *text, size_t bytes)
{
    size_t digits = 0;
    while (digits < bytes && isdigit((unsigned char)text[digits]))
        digits++;
    return bytes > 0 && digits == bytes && bytes < 10;
}

static dsc_status add_pdsh_flag(char letter, const char *value, size_t bytes, dsc_pdsh_args *out, dsc_error *err)
{
    const target literal = { "", "", 0 };
    char option[64];
    if ((letter == 'f' || letter == 't') && !is_number(value, bytes))
        return DSC_FAIL(err, DSC_ERR_INPUT, "--launcher_args", "-%c wants a number", letter);
    if (letter == 'R' && (bytes != 3 || strncmp(value, "ssh", 3) != 0))
        return DSC_FAIL(err, DSC_ERR_INPUT, "--launcher_args", "-R %.*s: hosts are reached by ssh only",
                        (int)dsc_min_i64((int64_t)bytes, 40), value);
    if (letter == 't') {
        snprintf(option, sizeof option, "-oConnectTimeout=%.*s", (int)bytes, value);
        return add_arg("--launcher_args", option, strlen(option), &literal, out, err);
    }
    if (letter != 'l')
        return DSC_OK; /* all hosts are started at once */
    DSC_TRY(add_arg("--launcher_args", "-l", 2, &literal, out, err));
    return add_arg("--launcher_args", value, bytes, &literal, out, err);
}

/* Flags of pdsh itself: those that mean something here, and those about its output, which is ours. */
static dsc_status add_pdsh_flags(const char *at, dsc_pdsh_args *out, dsc_error *err)
{
    for (at += strspn(at, blanks); *at != 0; at += strspn(at, blanks)) {
        const size_t bytes = strcspn(at, blanks);
        const char letter = bytes >= 2 && at[0] == '-' ? at[1] : 0;
        if (letter != 0 && bytes == 2 && strchr("SNbd", letter) != NULL) {
            at += bytes;
            continue;
        }
        if (letter == 0 || strchr("lRft", letter) == NULL)
            return DSC_FAIL(err, DSC_ERR_INPUT, "--launcher_args", "\"%.*s\": of pdsh's flags -l USER, -t SECONDS, "
                            "-f N, -R ssh, -S, -N, -b and -d are known here; hosts are for --hostfile, --include and "
                            "--exclude, options of ssh for --ssh_option or PDSH_SSH_ARGS_APPEND",
                            (int)dsc_min_i64((int64_t)bytes, 60), at);
        const char *value = at + 2;
        size_t value_bytes = bytes - 2;
        if (value_bytes == 0) {
            value += strspn(value, blanks);
            value_bytes = strcspn(value, blanks);
        }
        if (value_bytes == 0)
            return DSC_FAIL(err, DSC_ERR_INPUT, "--launcher_args", "-%c lacks its value", letter);
        DSC_TRY(add_pdsh_flag(letter, value, value_bytes, out, err));
        at = value + value_bytes;
    }
    return DSC_OK;
}

dsc_status dsc_pdsh_read(const dsc_launcher_options *opt, const char *host, dsc_pdsh_args *out, dsc_error *err)
{
    static const char *const variables[] = { "PDSH_SSH_ARGS_APPEND", "PDSH_SSH_ARGS" }; /* pdsh puts the second last */
    const bool named = opt->launcher != NULL && strcasecmp(opt->launcher, "pdsh") == 0;
    const target to = target_of(host);
    out->count = 0;
    out->used = 0;
    if (named && opt->launcher_args != NULL)
        DSC_TRY(add_pdsh_flags(opt->launcher_args, out, err));
    for (size_t i = 0; i < DSC_COUNT(variables) && (named || opt->launcher == NULL); i++) {
        const char *text = getenv(variables[i]);
        if (text != NULL)
            DSC_TRY(add_ssh_args(variables[i], text, &to, out, err));
    }
    return DSC_OK;
}
