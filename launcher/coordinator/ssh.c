/* ssh.c - see ssh.h. SPDX-License-Identifier: Apache-2.0 */
#include "launcher/coordinator/ssh.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "launcher/plan/pdsh.h"
#include "launcher/plan/program.h"

/* The quotes are for the login shell there, which may be any; what is in them is for sh. */
static const char remote_command[] =
    "exec /bin/sh -c 'IFS= read -r p; [ -x \"$p\" ] || p=dsc-launch; exec \"$p\" --agent'";

/* No question can be answered, no window opened; what the user's own configuration does for logins is not for us. */
static const char *const own_options[] = { "BatchMode=yes", "ConnectTimeout=10", "ConnectionAttempts=1",
                                           "ClearAllForwardings=yes", "RemoteCommand=none", "LogLevel=ERROR",
                                           "EscapeChar=none" };

dsc_status dsc_ssh_command(dsc_alloc *alloc, const dsc_launcher_options *opt, const char *host, char ***argv,
                           dsc_error *err)
{
    struct { /* one allocation, which is argv */
        const char *list[16 + 2 * DSC_COUNT(own_options) + 2 * DSC_LAUNCHER_LIST_MAX + DSC_PDSH_ARGS_MAX];
        dsc_pdsh_args pdsh;
    } *command = NULL;
    int used = 0;
    DSC_ASSERT(host[0] != '-' && host[0] != 0);
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, 1, (int64_t)sizeof *command, &command, err));
    const dsc_status status = dsc_pdsh_read(opt, host, &command->pdsh, err);
    if (status != DSC_OK) {
        dsc_alloc_free(alloc, command);
        return status;
    }
    const char **list = command->list;
    list[used++] = "ssh";
    list[used++] = "-T";
    list[used++] = "-x";
    for (int i = 0; i < opt->ssh_options.count; i++) {
        list[used++] = "-o";
        list[used++] = opt->ssh_options.text[i];
    }
    for (int i = 0; i < command->pdsh.count; i++)
        list[used++] = command->pdsh.arg[i];
    for (size_t i = 0; i < DSC_COUNT(own_options); i++) {
        list[used++] = "-o";
        list[used++] = own_options[i];
    }
    if (opt->ssh_port_text != NULL) {
        list[used++] = "-p";
        list[used++] = opt->ssh_port_text;
    }
    list[used++] = "--";
    list[used++] = host;
    list[used++] = remote_command;
    DSC_ASSERT((size_t)used < DSC_COUNT(command->list));
    memcpy(argv, &list, sizeof list); /* execve's type; nobody writes to them */
    return DSC_OK;
}

void dsc_ssh_first_line(char *out, size_t out_bytes)
{
    dsc_program_path(out, out_bytes - 1);
    if (strchr(out, '\n') != NULL)
        out[0] = 0; /* PATH decides */
    strcat(out, "\n");
}

dsc_status dsc_ssh_check(dsc_error *err)
{
    char file[4200];
    const char *path = getenv("PATH");
    for (const char *at = path; at != NULL; at = *at == ':' ? at + 1 : NULL) {
        const size_t bytes = strcspn(at, ":");
        snprintf(file, sizeof file, "%.*s/ssh", (int)dsc_min_i64((int64_t)bytes, 4096), at);
        if (access(file, X_OK) == 0)
            return DSC_OK;
        at += bytes;
    }
    return DSC_FAIL(err, DSC_ERR_INPUT, "ssh", "is not in PATH, and starts the other hosts; apt-get install "
                    "openssh-client, or start each host yourself with --no_ssh --node_rank N");
}

/* The last line that is not empty, without control bytes. */
static const char *last_line(char *said)
{
    size_t end = strlen(said);
    while (end > 0 && (said[end - 1] == '\n' || said[end - 1] == '\r' || said[end - 1] == ' '))
        end--;
    said[end] = 0;
    char *newline = strrchr(said, '\n');
    char *line = newline != NULL ? newline + 1 : said;
    dsc_text_printable(line);
    return line;
}

/* "ssh -p 2222 host" as the user would write it himself. */
static const char *by_hand(const dsc_launcher_options *opt, const char *program, const char *host, char out[420])
{
    const bool port = opt->ssh_port_text != NULL;
    snprintf(out, 420, "%s%s%s %s", program, port ? " -p " : "", port ? opt->ssh_port_text : "", host);
    return out;
}

static void fail_login(const dsc_launcher_options *opt, const char *host, char *said, dsc_error *err)
{
    char hand[420], where[256];
    snprintf(where, sizeof where, "host %.240s", host);
    if (strstr(said, "REMOTE HOST IDENTIFICATION HAS CHANGED") != NULL)
        DSC_FAIL(err, DSC_ERR_PEER, where, "its host key is not the one that is known here; if that is right: "
                 "ssh-keygen -R %s, then %s true", host, by_hand(opt, "ssh", host, hand));
    else if (strstr(said, "Host key verification failed") != NULL)
        DSC_FAIL(err, DSC_ERR_PEER, where, "its host key is not known here; run %s true once and accept it",
                 by_hand(opt, "ssh", host, hand));
    else if (strstr(said, "Permission denied") != NULL || strstr(said, "Too many authentication failures") != NULL)
        DSC_FAIL(err, DSC_ERR_PEER, where, "ssh cannot log in without a password; run: %s",
                 by_hand(opt, "ssh-copy-id", host, hand));
    else if (strstr(said, "Could not resolve hostname") != NULL)
        DSC_FAIL(err, DSC_ERR_PEER, where, "there is no such host name; correct it in the list of hosts, or add it to "
                 "/etc/hosts or DNS");
    else if (strstr(said, "Connection refused") != NULL || strstr(said, "No route to host") != NULL ||
             strstr(said, "timed out") != NULL || strstr(said, "unreachable") != NULL)
        DSC_FAIL(err, DSC_ERR_PEER, where, "cannot be reached (%.200s); is it up, does sshd run there, is the port "
                 "right (--ssh_port)?", last_line(said));
    else
        DSC_FAIL(err, DSC_ERR_PEER, where, "ssh failed: %.200s; try: %s true", last_line(said),
                 by_hand(opt, "ssh", host, hand));
}

void dsc_ssh_diagnose(const dsc_launcher_options *opt, const char *host, int code, char *said, dsc_error *err)
{
    char where[256], path[1024];
    snprintf(where, sizeof where, "host %.240s", host);
    if (code == 255) {
        fail_login(opt, host, said, err);
    } else if (code == 127 || code == 126) {
        dsc_program_path(path, sizeof path);
        DSC_FAIL(err, DSC_ERR_PEER, where, "dsc-launch %s there: neither at %.200s nor in PATH; install dsc "
                 DSC_VERSION_TEXT " there, at best in the same folder", code == 127 ? "is not" : "cannot be executed",
                 path);
    } else if (code < 0) {
        DSC_FAIL(err, DSC_ERR_PEER, where, "did not answer in time%s%.200s", said[0] != 0 ? "; it said: " : "",
                 last_line(said));
    } else {
        DSC_FAIL(err, DSC_ERR_PEER, where, "its agent ended with code %d%s%.200s", code,
                 said[0] != 0 ? "; it said: " : "", last_line(said));
    }
}
