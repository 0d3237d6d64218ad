/* options.c - the table of flags, the parser that reads by it, and the usage text that it writes.
 *
 * '-' and '_' are the same inside a long flag. As in argparse a flag given twice counts as given last, and a value may
 * follow as "--flag value" or "--flag=value". SPDX-License-Identifier: Apache-2.0 */
#include "launcher/options.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef enum flag_kind {
    FLAG_BOOL,   /* takes nothing */
    FLAG_TEXT,   /* takes any text */
    FLAG_NUMBER, /* takes a whole number in [min, max] */
    FLAG_LIST,   /* takes any text, several times */
    FLAG_ALL,    /* takes a whole number in [min, max], or -1 for "all" as in DeepSpeed */
    FLAG_LATER   /* known, refused: `help` says what works instead. A value is not looked at. */
} flag_kind;

typedef struct flag_row {
    const char *name;  /* as DeepSpeed spells it */
    const char *brief; /* second spelling, or "" */
    const char *value; /* for the usage text */
    flag_kind kind;
    size_t offset; /* offset of the field in dsc_launcher_options */
    int32_t min, max;
    const char *help; /* NULL: an alias, not in the usage text */
} flag_row;

#define AT(field) offsetof(dsc_launcher_options, field)

/* The order is that of the usage text. */
static const flag_row rows[] = {
    { "--num_gpus", "--num_accelerators", "N", FLAG_ALL, AT(slots_per_node), 1, 1024,
      "ranks on each host, slots 0..N-1; CPU ranks where there is no GPU" },
    { "--nproc_per_node", "", "N", FLAG_NUMBER, AT(slots_per_node), 1, 1024, NULL },
    { "-np", "", "N", FLAG_NUMBER, AT(rank_count), 1, 65536, "ranks in all, as in horovodrun" },
    { "-H", "", "HOSTS", FLAG_TEXT, AT(hosts), 0, 0, "name:slots[,name:slots...], or a hostfile" },
    { "--hostfile", "", "FILE", FLAG_TEXT, AT(hostfile), 0, 0,
      "lines \"name slots=N\"; /job/hostfile is used where it exists" },
    { "--include", "-i", "SPEC", FLAG_TEXT, AT(include), 0, 0, "only these: host[:slot,slot-slot][@host...]" },
    { "--exclude", "-e", "SPEC", FLAG_TEXT, AT(exclude), 0, 0, "all but these" },
    { "--num_nodes", "--nnodes", "N", FLAG_ALL, AT(node_count), 1, 16384, "only the first N hosts" },
    { "--oversubscribe", "", "", FLAG_BOOL, AT(oversubscribe), 0, 0, "let --num_gpus exceed the slots of a host" },
    { "--master_addr", "", "ADDR", FLAG_TEXT, AT(master_addr), 0, 0, "rendezvous address (127.0.0.1 on one host)" },
    { "--master_port", "", "PORT", FLAG_NUMBER, AT(master_port), 1, 65535,
      "rendezvous port (29500; in a Slurm job one by its number)" },
    { "--comm", "", "NAME", FLAG_TEXT, AT(comm), 0, 0,
      "transport of all ranks: auto, shm, tcp, hier, gloo, mpi or nccl" },
    { "--export", "-x", "NAME[=VALUE]", FLAG_LIST, AT(exports), 0, 0,
      "a variable for all ranks, besides NCCL_*, OMP_*, ... and .deepspeed_env" },
    { "--ssh_port", "", "PORT", FLAG_NUMBER, AT(ssh_port), 1, 65535, "of the other hosts' sshd" },
    { "--ssh_option", "", "NAME=VALUE", FLAG_LIST, AT(ssh_options), 0, 0, "for ssh -o; may be given several times" },
    { "--launcher", "", "NAME", FLAG_TEXT, AT(launcher), 0, 0,
      "ssh, pdsh (ssh with PDSH_SSH_ARGS), openmpi, mpich, impi, mvapich or slurm" },
    { "--launcher_args", "", "ARGS", FLAG_TEXT, AT(launcher_args), 0, 0,
      "for mpirun, srun or sbatch, or flags of pdsh" },
    { "--sbatch", "", "", FLAG_BOOL, AT(sbatch), 0, 0,
      "with --launcher slurm: print the batch script that starts this, for sbatch" },
    { "--force_multi", "", "", FLAG_BOOL, AT(force_multi), 0, 0, "an agent also for one host that is this one" },
    { "--bind_cores_to_rank", "", "", FLAG_BOOL, AT(bind_cores), 0, 0, "divide the physical cores among the ranks" },
    { "--bind_core_list", "", "LIST", FLAG_TEXT, AT(core_list), 0, 0, "the cores to divide, for example 0-3,8" },
    { "--enable_each_rank_log", "", "DIR", FLAG_TEXT, AT(rank_log_dir), 0, 0,
      "output of every rank to DIR/<time>_rank<R>.log; rank 0 is shown too" },
    { "--grace_seconds", "", "S", FLAG_NUMBER, AT(grace_s), 0, 86400,
      "time for ranks to end after Ctrl-C or SIGTERM (10)" },
    { "--stuck_seconds", "", "S", FLAG_NUMBER, AT(stuck_s), 1, 31536000,
      "longest wait in a collective (dsc.comm_timeout_s + 1)" },
    { "--max_restarts", "", "N", FLAG_NUMBER, AT(restart_limit), 0, 1000,
      "start the ranks again when one fails, at most N times (0)" },
    { "--save_pid", "", "", FLAG_BOOL, AT(save_pid), 0, 0,
      "write the launcher's pid to /tmp/<pid>.deepspeed while it runs" },
    { "--log_level", "", "LEVEL", FLAG_TEXT, AT(log_level_text), 0, 0,
      "debug, info, warning, error or critical (info)" },
    { "--quiet", "-q", "", FLAG_BOOL, AT(quiet), 0, 0, "same as --log_level error" },
    { "--dry_run", "", "", FLAG_BOOL, AT(dry_run), 0, 0, "print hosts, ranks and environment as JSON and stop" },
    { "--no_python", "", "", FLAG_BOOL, AT(no_python), 0, 0, "accepted: PROGRAM is always started itself" },
    { "--no_local_rank", "", "", FLAG_BOOL, AT(no_local_rank), 0, 0, "accepted: no argument is ever added" },
    { "--module", "", "", FLAG_BOOL, AT(module), 0, 0, "accepted with a warning: write python3 -m NAME as PROGRAM" },
    { "--no_ssh", "", "", FLAG_BOOL, AT(no_ssh), 0, 0,
      "start this host's ranks only; the same command with --node_rank N runs on each" },
    { "--no_ssh_check", "", "", FLAG_BOOL, AT(no_ssh_check), 0, 0, "accepted: all hosts are tried at once anyway" },
    { "--node_rank", "", "R", FLAG_ALL, AT(node_rank), 0, 16383,
      "number of this host among those of the job, with --no_ssh" },
    { "--standalone", "", "", FLAG_BOOL, AT(standalone), 0, 0, NULL },
    { "--help", "-h", "", FLAG_BOOL, AT(help), 0, 0, "this text" },
    { "--version", "", "", FLAG_BOOL, AT(version), 0, 0, "the version" },

    { "--venv_script", "", "FILE", FLAG_LATER, 0, 0, 0, "source the script in the shell before dsc-launch" },
    { "--autotuning", "", "MODE", FLAG_LATER, 0, 0, 0, "dsc tune --config FILE does it; leave it out" },
    { "--elastic_training", "", "", FLAG_LATER, 0, 0, 0, "a fixed number of ranks; leave it out" },
    { "--min_elastic_nodes", "", "N", FLAG_LATER, 0, 0, 0, "a fixed number of ranks; leave it out" },
    { "--max_elastic_nodes", "", "N", FLAG_LATER, 0, 0, 0, "a fixed number of ranks; leave it out" },
};

static bool same_letter(char a, char b) { return a == b || ((a == '-' || a == '_') && (b == '-' || b == '_')); }

/* Equal when '-' and '_' are the same behind the leading dashes; `bytes` of a. */
static bool same_flag(const char *a, size_t bytes, const char *b)
{
    if (strlen(b) != bytes)
        return false;
    for (size_t i = 0; i < bytes; i++)
        if (i < 2 ? a[i] != b[i] : !same_letter(a[i], b[i]))
            return false;
    return true;
}

static const flag_row *find_row(const char *arg, size_t bytes)
{
    for (size_t i = 0; i < DSC_COUNT(rows); i++)
        if (same_flag(arg, bytes, rows[i].name) || (rows[i].brief[0] != 0 && same_flag(arg, bytes, rows[i].brief)))
            return &rows[i];
    return NULL;
}

/* Changed, missing and added letters between two flags (Levenshtein), for the suggestion only. '-' equals '_'. */
static int distance(const char *a, size_t a_bytes, const char *b)
{
    enum { MAX = 40 };
    int row[MAX + 1];
    const size_t b_bytes = strlen(b);
    if (a_bytes > MAX || b_bytes > MAX)
        return MAX;
    for (size_t j = 0; j <= b_bytes; j++)
        row[j] = (int)j;
    for (size_t i = 1; i <= a_bytes; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= b_bytes; j++) {
            const int changed = diagonal + !same_letter(a[i - 1], b[j - 1]);
            diagonal = row[j];
            const int added = 1 + (row[j] < row[j - 1] ? row[j] : row[j - 1]);
            row[j] = changed < added ? changed : added;
        }
    }
    return row[b_bytes];
}

static dsc_status fail_unknown(const char *arg, size_t bytes, dsc_error *err)
{
    const flag_row *best = NULL;
    int best_distance = 4; /* a flag that differs in more letters is not meant */
    for (size_t i = 0; i < DSC_COUNT(rows); i++) {
        const int d = distance(arg, bytes, rows[i].name);
        if (d < best_distance) {
            best_distance = d;
            best = &rows[i];
        }
    }
    char flag[64];
    snprintf(flag, sizeof flag, "%.*s", (int)(bytes < 60 ? bytes : 60), arg);
    if (best != NULL)
        return DSC_FAIL(err, DSC_ERR_INPUT, flag, "no such flag; did you mean %s? Arguments of PROGRAM come after it",
                        best->name);
    return DSC_FAIL(err, DSC_ERR_INPUT, flag, "no such flag; --help lists them. Arguments of PROGRAM come after it");
}

static dsc_status set_number(const flag_row *row, const char *flag, const char *value, int32_t *field, dsc_error *err)
{
    const bool all = row->kind == FLAG_ALL && strcmp(value, "-1") == 0;
    char *end = NULL;
    errno = 0;
    const long number = strtol(value, &end, 10);
    const bool digits = value[0] >= '0' && value[0] <= '9' && *end == 0;
    if (!all && (!digits || errno != 0 || number < row->min || number > row->max))
        return DSC_FAIL(err, DSC_ERR_INPUT, flag, "\"%.60s\" is not a whole number from %d to %d", value, row->min,
                        row->max);
    *field = all ? -1 : (int32_t)number;
    return DSC_OK;
}

static dsc_status set_value(const flag_row *row, const char *flag, const char *value, dsc_launcher_options *out,
                            dsc_error *err)
{
    void *field = (char *)out + row->offset;
    if (row->kind == FLAG_LIST) {
        dsc_launcher_list *list = field;
        if (list->count == DSC_LAUNCHER_LIST_MAX)
            return DSC_FAIL(err, DSC_ERR_INPUT, flag, "given more than %d times", DSC_LAUNCHER_LIST_MAX);
        list->text[list->count++] = value;
        return DSC_OK;
    }
    if (row->offset == AT(ssh_port))
        out->ssh_port_text = value;
    if (row->kind != FLAG_TEXT)
        return set_number(row, flag, value, field, err);
    if (value[0] == 0 && row->offset != AT(include) && row->offset != AT(exclude)) /* DeepSpeed's own default there */
        return DSC_FAIL(err, DSC_ERR_INPUT, flag, "the value is empty; expected %s", row->value);
    memcpy(field, &value, sizeof value);
    return DSC_OK;
}

/* Handles argv[*at] and the value behind it; leaves *at on the last argument used. */
static dsc_status parse_flag(char **argv, int *at, dsc_launcher_options *out, dsc_error *err)
{
    const char *arg = argv[*at];
    const char *equals = strchr(arg, '=');
    const size_t bytes = equals != NULL ? (size_t)(equals - arg) : strlen(arg);
    const flag_row *row = find_row(arg, bytes);
    char flag[64];
    if (row == NULL)
        return fail_unknown(arg, bytes, err);
    snprintf(flag, sizeof flag, "%.*s", (int)(bytes < 60 ? bytes : 60), arg);
    if (row->kind == FLAG_LATER)
        return DSC_FAIL(err, DSC_ERR_UNSUPPORTED, flag, "not built yet in this version: %s", row->help);
    if (row->kind == FLAG_BOOL) {
        if (equals != NULL)
            return DSC_FAIL(err, DSC_ERR_INPUT, flag, "takes no value, but \"%.60s\" was given", equals + 1);
        *((bool *)((char *)out + row->offset)) = true;
        return DSC_OK;
    }
    const char *value = equals != NULL ? equals + 1 : argv[*at + 1];
    /* As argparse: text that looks like the next flag is not a value, unless it is joined by '='. */
    const bool looks_like_flag = equals == NULL && value != NULL && value[0] == '-' && value[1] != 0 &&
                                 strchr(value, ' ') == NULL && !(row->kind == FLAG_ALL && strcmp(value, "-1") == 0);
    if (value == NULL || looks_like_flag)
        return DSC_FAIL(err, DSC_ERR_INPUT, flag, "expected a value (%s) after it", row->value);
    if (equals == NULL)
        (*at)++;
    return set_value(row, flag, value, out, err);
}

static dsc_status set_level(dsc_launcher_options *out, dsc_error *err)
{
    static const struct {
        const char *name;
        dsc_launcher_level level;
    } levels[] = { { "debug", DSC_LAUNCHER_DEBUG },
                   { "info", DSC_LAUNCHER_INFO },
                   { "warning", DSC_LAUNCHER_WARNING },
                   { "error", DSC_LAUNCHER_ERROR },
                   { "critical", DSC_LAUNCHER_ERROR } };
    out->log_level = out->quiet ? DSC_LAUNCHER_ERROR : DSC_LAUNCHER_INFO;
    if (out->log_level_text == NULL)
        return DSC_OK;
    for (size_t i = 0; i < DSC_COUNT(levels); i++)
        if (strcmp(out->log_level_text, levels[i].name) == 0) {
            if (!out->quiet)
                out->log_level = levels[i].level;
            return DSC_OK;
        }
    return DSC_FAIL(err, DSC_ERR_INPUT, "--log_level", "\"%.60s\"; expected debug, info, warning, error or critical",
                    out->log_level_text);
}

/* Options that only our own agents implement. */
static dsc_status check_other_launcher(const dsc_launcher_options *out, dsc_error *err)
{
    const struct { bool given; const char *flag, *instead; } ours[] = {
        { out->rank_log_dir != NULL && strcmp(out->rank_log_dir, "None") != 0, "--enable_each_rank_log",
          "srun --output=DIR/%t.log, mpirun --output-filename DIR" },
        { out->restart_limit > 0, "--max_restarts", "sbatch --requeue, or start it again with train --load auto" },
        { out->bind_cores, "--bind_cores_to_rank", "srun --cpu-bind, mpirun --bind-to" },
        { out->no_ssh, "--no_ssh", "leave one of the two out" },
    };
    for (size_t i = 0; i < DSC_COUNT(ours); i++)
        if (ours[i].given)
            return DSC_FAIL(err, DSC_ERR_INPUT, ours[i].flag, "is done by dsc-launch's own agents, not by --launcher "
                            "%s; its own (--launcher_args): %s", out->launcher, ours[i].instead);
    return DSC_OK;
}

/* The program that starts the other hosts. */
static dsc_status set_launcher(dsc_launcher_options *out, dsc_error *err)
{
    static const char *const others[] = { "openmpi", "mpich", "impi", "mvapich", "slurm" };
    if (out->sbatch && (out->launcher == NULL || strcasecmp(out->launcher, "slurm") != 0))
        return DSC_FAIL(err, DSC_ERR_INPUT, "--sbatch", "needs --launcher slurm");
    for (size_t i = 0; i < DSC_COUNT(others) && out->launcher != NULL; i++)
        if (strcasecmp(out->launcher, others[i]) == 0)
            return check_other_launcher(out, err);
    const bool pdsh = out->launcher != NULL && strcasecmp(out->launcher, "pdsh") == 0;
    if (out->launcher_args != NULL && !pdsh)
        return DSC_FAIL(err, DSC_ERR_INPUT, "--launcher_args", "is for --launcher pdsh, openmpi, mpich, impi, "
                        "mvapich or slurm; for ssh write --ssh_option NAME=VALUE for each option");
    if (out->launcher == NULL || pdsh || strcasecmp(out->launcher, "ssh") == 0)
        return DSC_OK;
    return DSC_FAIL(err, DSC_ERR_INPUT, "--launcher", "\"%.60s\"; expected ssh, pdsh, openmpi, mpich, impi, mvapich or "
                    "slurm", out->launcher);
}

/* One transport for all ranks. Invalid values are reported here, once, and not by every rank. */
static dsc_status check_comm(const dsc_launcher_options *out, dsc_error *err)
{
    static const char *const names[] = { "auto", "shm", "tcp", "hier", "gloo", "mpi", "nccl" };
    bool known = out->comm == NULL;
    for (size_t i = 0; i < DSC_COUNT(names) && !known; i++)
        known = strcmp(out->comm, names[i]) == 0;
    if (!known)
        return DSC_FAIL(err, DSC_ERR_INPUT, "--comm", "\"%.40s\" is not a transport; expected auto, shm, tcp, hier, "
                        "gloo, mpi or nccl", out->comm);
    if (out->comm != NULL && strcmp(out->comm, "mpi") == 0 &&
        (out->launcher == NULL || strcasecmp(out->launcher, "ssh") == 0 || strcasecmp(out->launcher, "pdsh") == 0))
        return DSC_FAIL(err, DSC_ERR_INPUT, "--comm", "mpi is between ranks that MPI started; add --launcher openmpi");
    return DSC_OK;
}

/* An option of ssh is NAME=VALUE, so that none can be mistaken for a flag or a command of its own. */
static dsc_status check_ssh_options(const dsc_launcher_options *out, dsc_error *err)
{
    for (int i = 0; i < out->ssh_options.count; i++) {
        const char *text = out->ssh_options.text[i];
        const size_t bytes = strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789");
        if (bytes == 0 || text[bytes] != '=')
            return DSC_FAIL(err, DSC_ERR_INPUT, "--ssh_option", "\"%.60s\": expected NAME=VALUE as in ssh_config, for "
                            "example ProxyJump=gate", text);
    }
    return DSC_OK;
}

/* Flags that contradict each other, whatever the hosts are. */
static dsc_status check_together(dsc_launcher_options *out, dsc_error *err)
{
    if (out->include != NULL && out->include[0] == 0)
        out->include = NULL;
    if (out->exclude != NULL && out->exclude[0] == 0)
        out->exclude = NULL;
    if (out->rank_log_dir != NULL && strcmp(out->rank_log_dir, "None") == 0) /* DeepSpeed's default, written out */
        out->rank_log_dir = NULL;
    if (out->include != NULL && out->exclude != NULL)
        return DSC_FAIL(err, DSC_ERR_INPUT, "--include", "cannot be used together with --exclude");
    if ((out->include != NULL || out->exclude != NULL) &&
        (out->node_count >= 0 || out->slots_per_node >= 0 || out->rank_count >= 0))
        return DSC_FAIL(
            err, DSC_ERR_INPUT, out->include != NULL ? "--include" : "--exclude",
            "cannot be used together with --num_nodes, --num_gpus or -np: the filter already says which slots");
    if (out->rank_count >= 0 && out->slots_per_node >= 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, "-np", "counts all ranks, --num_gpus those of each host; give one of them");
    if (out->hosts != NULL && out->hostfile != NULL)
        return DSC_FAIL(err, DSC_ERR_INPUT, "-H", "cannot be used together with --hostfile");
    if (out->module && out->no_python)
        return DSC_FAIL(err, DSC_ERR_INPUT, "--module", "cannot be used together with --no_python");
    if (out->core_list != NULL && !out->bind_cores)
        return DSC_FAIL(err, DSC_ERR_INPUT, "--bind_core_list", "needs --bind_cores_to_rank");
    if (out->node_rank > 0 && !out->no_ssh)
        return DSC_FAIL(err, DSC_ERR_INPUT, "--node_rank",
                        "%d is for --no_ssh, where you start each host yourself; leave it out", out->node_rank);
    return DSC_OK;
}

dsc_status dsc_launcher_options_parse(int argc, char **argv, dsc_launcher_options *out, dsc_error *err)
{
    *out = (dsc_launcher_options){ .node_count = -1, .slots_per_node = -1, .rank_count = -1, .node_rank = -1,
                                   .grace_s = 10 };
    int at = 1;
    for (; at < argc && argv[at][0] == '-' && argv[at][1] != 0; at++) {
        if (strcmp(argv[at], "--") == 0) {
            at++;
            break;
        }
        DSC_TRY(parse_flag(argv, &at, out, err));
        if (out->help || out->version) {
            out->action = out->help ? DSC_LAUNCHER_HELP : DSC_LAUNCHER_VERSION;
            return DSC_OK;
        }
    }
    out->program_argv = argv + at;
    out->program_argc = argc - at;
    if (out->program_argc > 0 && out->program_argv[0][0] == 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, "PROGRAM", "its name is empty");
    DSC_TRY(set_level(out, err));
    DSC_TRY(set_launcher(out, err));
    DSC_TRY(check_comm(out, err));
    DSC_TRY(check_ssh_options(out, err));
    return check_together(out, err);
}

void dsc_launcher_usage(FILE *to)
{
    fprintf(to,
        "dsc-launch " DSC_VERSION_TEXT " - starts one process per GPU (or CPU rank) and ends them all when one dies\n"
        "\n"
        "usage: dsc-launch [flags] PROGRAM [ARGS]\n"
        "\n"
        "  dsc-launch --num_gpus=4 train --config ds_config.json      four ranks on this host\n"
        "  dsc-launch -np 4 -H localhost:4 train --config ds_config.json\n"
        "  dsc-launch --hostfile hosts --include node1:0,2 train ...\n"
        "  dsc-launch --launcher slurm train ...                      inside salloc or sbatch\n"
        "  dsc-launch --num_gpus=4 --dry-run                          what would be started, as JSON\n"
        "\n"
        "PROGRAM without a slash is looked for beside dsc-launch, then in PATH. Everything behind it belongs to it.\n"
        "Without --num_gpus, -np and hosts: one rank for each GPU, or one CPU rank.\n"
        "\n"
        "flags ('-' and '_' are the same inside a flag; a value follows a blank or '='):\n");
    for (size_t i = 0; i < DSC_COUNT(rows); i++) {
        char left[64];
        if (rows[i].help == NULL || rows[i].kind == FLAG_LATER)
            continue;
        snprintf(left, sizeof left, "%s%s%s%s%s", rows[i].name, rows[i].brief[0] != 0 ? ", " : "", rows[i].brief,
                 rows[i].value[0] != 0 ? " " : "", rows[i].value);
        fprintf(to, "  %-34s %s\n", left, rows[i].help);
    }
    fprintf(to, "\nknown, but not built yet in this version:");
    for (size_t i = 0, column = 100; i < DSC_COUNT(rows); i++) {
        if (rows[i].kind != FLAG_LATER)
            continue;
        column += strlen(rows[i].name) + 1;
        if (column > 90)
            column = (size_t)fprintf(to, "\n  %s", rows[i].name);
        else
            fprintf(to, " %s", rows[i].name);
    }
    fprintf(to,
        "\n\n"
        "Each rank gets RANK LOCAL_RANK WORLD_SIZE LOCAL_SIZE LOCAL_WORLD_SIZE CROSS_RANK CROSS_SIZE MASTER_ADDR\n"
        "MASTER_PORT CUDA_VISIBLE_DEVICES, and OMP_NUM_THREADS unless it is set.\n"
        "exit code: that of the first rank that failed of itself (128 + signal when killed); 130 and 143 after\n"
        "Ctrl-C and SIGTERM; 2 when the command, a hostfile or PROGRAM is wrong; 4 when the supervisor was lost.\n");
}
