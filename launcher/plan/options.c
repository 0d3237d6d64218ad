/* options.c - the table of flags, and the checks of flags that concern each other.
 *
 * As in argparse a text that looks like a flag is not taken as a value. SPDX-License-Identifier: Apache-2.0 */
#include "launcher/plan/options.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/hosts/hostfile.h"
#include "base/world_channel.h"

/* ssh gets the digits as they are. */
static dsc_status set_ssh_port(void *out, const dsc_flag *flag, const char *value, dsc_error *err)
{
    int64_t port;
    DSC_TRY(dsc_flag_set_integer(flag, value, &port, err));
    ((dsc_launcher_options *)out)->ssh_port_text = value[0] == '+' ? value + 1 : value;
    return DSC_OK;
}

static const char *const transports[] = { "auto", "shm", "tcp", "hier", "gloo", "mpi", "nccl", NULL };
static const char *const level_names[] = { "debug", "info", "warning", "error", "critical", NULL };
static const dsc_launcher_level levels[] = { DSC_LAUNCHER_DEBUG, DSC_LAUNCHER_INFO, DSC_LAUNCHER_WARNING,
                                             DSC_LAUNCHER_ERROR, DSC_LAUNCHER_ERROR };

#define AT(field) offsetof(dsc_launcher_options, field)
#define SWITCH(name, field, text) { name, NULL, NULL, DSC_FLAG_BOOL, AT(field), .help = text }
#define TEXT(name, alias, value, field, text) { name, alias, value, DSC_FLAG_TEXT, AT(field), .help = text }
#define NUMBER(name, field, value, least, most, text) \
    { name, NULL, value, DSC_FLAG_INT32, AT(field), .min = least, .max = most, .help = text }
/* -1 is "all", as in DeepSpeed. */
#define COUNT(name, alias, value, field, least, most, text, more) \
    { name, alias, value, DSC_FLAG_INT32, AT(field), .min = least, .max = most, .minus_one = true, .help = text, \
      .above = more }
#define MORE_HOSTS "for more ranks, name more hosts with -H or --hostfile"
#define LATER(name, value, instead) \
    { name, NULL, value, DSC_FLAG_REFUSED, .help = "not built yet in this version: " instead }

#define DEFAULT_ELASTIC_TIMEOUT_S 600
#define MIN_NP "--min_np N lets ranks leave and join (docs/elastic.md)"

static dsc_status set_node_count(void *options, const dsc_flag *flag, const char *value, dsc_error *err)
{
    dsc_launcher_options *out = options;
    char *end = NULL;
    const size_t digits = strspn(value, "0123456789");
    const char *most = value[digits] == ':' ? value + digits + 1 : value;
    const long count = strcmp(value, "-1") == 0 ? -1 : strtol(most, &end, 10); /* -1 is "all", as in DeepSpeed */
    const long least = most == value ? 0 : strtol(value, NULL, 10);
    const bool sound = count == -1 || (digits > 0 && digits <= 5 && *end == 0 && strlen(most) <= 5 &&
                                       strspn(most, "0123456789") == strlen(most) && count >= 1 && count <= 16384);
    if (!sound || (most != value && (least < 1 || least > count)))
        return DSC_FAIL(err, DSC_ERR_INPUT, flag->name, "\"%.60s\": expected a number of hosts, 1 to 16384, or MIN:MAX",
                        value);
    out->node_count = (int32_t)count;
    out->least_nodes = (int32_t)least;
    return DSC_OK;
}

/* Names are as DeepSpeed spells them. The order is that of the help page. */
static const dsc_flag rows[] = {
    COUNT("--num_gpus", "--num_accelerators", "N", slots_per_node, 1, DSC_HOST_SLOTS_MAX,
          "ranks on each host, slots 0..N-1; CPU ranks where there is no GPU", MORE_HOSTS),
    { "--nproc_per_node", NULL, "N", DSC_FLAG_INT32, AT(slots_per_node), .min = 1, .max = DSC_HOST_SLOTS_MAX,
      .help = "as --num_gpus", .above = MORE_HOSTS },
    NUMBER("-np", rank_count, "N", 1, 65536, "ranks in all, as in horovodrun"),
    TEXT("-H", NULL, "HOSTS", hosts, "name:slots[,name:slots...], or a hostfile"),
    TEXT("--hostfile", NULL, "FILE", hostfile, "lines \"name slots=N\"; /job/hostfile is used where it exists"),
    { "--include", "-i", "SPEC", DSC_FLAG_TEXT, AT(include), .allow_empty = true, /* "" is DeepSpeed's own default */
      .help = "only these: host[:slot,slot-slot][@host...]" },
    { "--exclude", "-e", "SPEC", DSC_FLAG_TEXT, AT(exclude), .allow_empty = true, .help = "all but these" },
    { "--num_nodes", "--nnodes", "N|MIN:MAX", DSC_FLAG_CALL, .set = set_node_count,
      .help = "only the first N hosts; MIN:MAX: ranks leave and join, as in torchrun" },
    SWITCH("--oversubscribe", oversubscribe, "let --num_gpus exceed the slots of a host"),
    TEXT("--master_addr", NULL, "ADDR", master_addr, "rendezvous address (127.0.0.1 on one host)"),
    NUMBER("--master_port", master_port, "PORT", 1, 65535, "rendezvous port (29500; in a Slurm job one by its number)"),
    { "--comm", NULL, "NAME", DSC_FLAG_CHOICE, AT(comm), .choices = transports,
      .help = "transport of all ranks: auto, shm, tcp, hier, gloo, mpi or nccl" },
    { "--export", "-x", "NAME[=VALUE]", DSC_FLAG_LIST, AT(exports),
      .help = "a variable for all ranks, besides NCCL_*, OMP_*, ... and .deepspeed_env" },
    { "--ssh_port", NULL, "PORT", DSC_FLAG_CALL, .set = set_ssh_port, .min = 1, .max = 65535,
      .help = "port of the other hosts' sshd" },
    { "--ssh_option", NULL, "NAME=VALUE", DSC_FLAG_LIST, AT(ssh_options),
      .help = "for ssh -o; may be given several times" },
    TEXT("--launcher", NULL, "NAME", launcher,
         "ssh, pdsh (ssh with PDSH_SSH_ARGS), openmpi, mpich, impi, mvapich or slurm"),
    TEXT("--launcher_args", NULL, "ARGS", launcher_args, "for mpirun, srun or sbatch, or flags of pdsh"),
    SWITCH("--sbatch", sbatch, "with --launcher slurm: print the batch script that starts this, for sbatch"),
    SWITCH("--force_multi", force_multi, "an agent also for one host that is this one"),
    SWITCH("--bind_cores_to_rank", bind_cores, "divide the physical cores among the ranks"),
    TEXT("--bind_core_list", NULL, "LIST", core_list, "the cores to divide, for example 0-3,8"),
    TEXT("--enable_each_rank_log", NULL, "DIR", rank_log_dir,
         "output of every rank to DIR/<time>_rank<R>.log; rank 0 is shown too"),
    NUMBER("--grace_seconds", grace_s, "S", 0, 86400, "time for ranks to end after Ctrl-C or SIGTERM; default: 10"),
    NUMBER("--stuck_seconds", stuck_s, "S", 1, 31536000,
           "longest wait in a collective; default: dsc.comm_timeout_s + 1"),
    NUMBER("--max_restarts", restart_limit, "N", 0, 1000,
           "start the ranks again when one fails, at most N times; default: 0"),
    { "--min_np", "--min_num_proc", "N", DSC_FLAG_INT32, AT(least_ranks), .min = 1, .max = DSC_WORLD_RANKS_MAX,
      .help = "ranks leave and join: the job goes on while N are left, and lost ones are replaced" },
    { "--max_np", "--max_num_proc", "N", DSC_FLAG_INT32, AT(most_ranks), .min = 1, .max = DSC_WORLD_RANKS_MAX,
      .help = "beside --min_np: most ranks; -np of them are started at first" },
    NUMBER("--elastic_timeout", elastic_timeout_s, "S", 0, 86400,
           "beside --min_np: how long fewer than N ranks wait for others; default: 600"),
    { "--reset_limit", NULL, "N", DSC_FLAG_INT32, AT(reset_limit), .min = 0, .max = 1000000,
      .help = "beside --min_np: at most N processes replace lost ones; default: any number" },
    TEXT("--host_discovery_script", NULL, "FILE", discovery_script,
         "beside --min_np: a program that prints the hosts that may be used now, name:slots a line"),
    TEXT("--chaos", NULL, "SPEC", chaos_text, "beside --min_np, for tests: faults such as seed=7,kill=30,late=500"),
    SWITCH("--save_pid", save_pid, "write the launcher's pid to /tmp/<pid>.deepspeed while it runs"),
    { "--log_level", NULL, "LEVEL", DSC_FLAG_CHOICE, AT(log_level_text), .choices = level_names,
      .help = "debug, info (default), warning, error or critical" },
    { "--quiet", "-q", NULL, DSC_FLAG_BOOL, AT(quiet), .help = "as --log_level error" },
    SWITCH("--dry_run", dry_run, "print hosts, ranks and environment as JSON and stop"),
    SWITCH("--no_python", no_python, "accepted: PROGRAM is always started itself"),
    SWITCH("--no_local_rank", no_local_rank, "accepted: no argument is ever added"),
    SWITCH("--module", module, "accepted with a warning: write python3 -m NAME as PROGRAM"),
    SWITCH("--no_ssh", no_ssh, "start this host's ranks only; the same command with --node_rank N runs on each"),
    SWITCH("--no_ssh_check", no_ssh_check, "accepted: all hosts are tried at once anyway"),
    COUNT("--node_rank", NULL, "R", node_rank, 0, 16383, "number of this host among those of the job, with --no_ssh",
          NULL),
    SWITCH("--standalone", standalone, "accepted: one host needs no flag"),
    { "--version", NULL, NULL, DSC_FLAG_BOOL, AT(version), .ends = true, .help = "print the version" },
    LATER("--venv_script", "FILE", "source the script in the shell before dsc-launch"),
    LATER("--autotuning", "MODE", "dsc tune --config FILE does it; leave it out"),
    LATER("--elastic_training", NULL, MIN_NP),
    LATER("--min_elastic_nodes", "N", MIN_NP),
    LATER("--max_elastic_nodes", "N", MIN_NP),
    LATER("--blacklist_cooldown_range", "LOW", MIN_NP),
};
static const dsc_positional program[] = {
    { "PROGRAM", "a file, or without a slash a name that is looked for beside dsc-launch, then in PATH; all arguments "
      "after it belong to it", "program", AT(program), 0, 1 },
};
static const dsc_flag_command page = {
    .name = "dsc-launch",
    .description = "Starts one process per GPU (or CPU rank) and ends them all when one dies. Without --num_gpus, -np "
                   "and hosts: one rank for each GPU, or one CPU rank. '-' equals '_' inside a flag.",
    .usage = "[flags] PROGRAM [ARGS]",
    .flags = rows, .flag_count = DSC_COUNT(rows), .positionals = program, .positional_count = 1,
    .ends_at_program = true, .strict_values = true,
    .notes = "examples:\n"
             "  dsc-launch --num_gpus=4 train --config ds_config.json      four ranks on this host\n"
             "  dsc-launch -np 4 -H localhost:4 train --config ds_config.json\n"
             "  dsc-launch --hostfile hosts --include node1:0,2 train ...\n"
             "  dsc-launch --launcher slurm train ...                      inside salloc or sbatch\n"
             "  dsc-launch --num_gpus=4 --dry-run                          what would be started, as JSON\n"
             "\n"
             "Each rank gets RANK LOCAL_RANK WORLD_SIZE LOCAL_SIZE LOCAL_WORLD_SIZE CROSS_RANK CROSS_SIZE MASTER_ADDR "
             "MASTER_PORT CUDA_VISIBLE_DEVICES, and OMP_NUM_THREADS unless it is set.",
    .exit_codes = "0 all ranks are done; else that of the first rank that failed of itself (128 + signal when killed); "
                  "130 and 143 after Ctrl-C and SIGTERM; 2 when the command, a hostfile or PROGRAM is wrong; 4 when "
                  "the supervisor was lost",
};

static void set_level(dsc_launcher_options *out)
{
    out->log_level = out->quiet ? DSC_LAUNCHER_ERROR : DSC_LAUNCHER_INFO;
    for (size_t i = 0; i < DSC_COUNT(levels) && out->log_level_text != NULL && !out->quiet; i++)
        if (strcmp(out->log_level_text, level_names[i]) == 0)
            out->log_level = levels[i];
}

/* Options that only our own agents implement. */
static dsc_status check_other_launcher(const dsc_launcher_options *out, dsc_error *err)
{
    const struct {
        bool given;
        const char *flag, *instead;
    } ours[] = {
        { out->rank_log_dir != NULL && strcmp(out->rank_log_dir, "None") != 0, "--enable_each_rank_log",
          "srun --output=DIR/%t.log, mpirun --output-filename DIR" },
        { out->least_ranks > 0, "--min_np", "sbatch --requeue, or start it again with train --load auto" },
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

static dsc_status check_comm(const dsc_launcher_options *out, dsc_error *err)
{
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

/* --min_np and its flags. Slots are those of the most ranks, of which some may be empty. */
static dsc_status check_elastic(dsc_launcher_options *out, dsc_error *err)
{
    if (out->least_nodes > 0) { /* torchrun's */
        if (out->slots_per_node < 1)
            return DSC_FAIL(err, DSC_ERR_INPUT, "--nnodes", "MIN:MAX needs --nproc_per_node, the ranks of each host");
        if (out->least_ranks > 0)
            return DSC_FAIL(err, DSC_ERR_INPUT, "--nnodes", "MIN:MAX cannot be used together with --min_np");
        out->least_ranks = out->least_nodes * out->slots_per_node;
    }
    const char *beside = out->most_ranks > 0             ? "--max_np"
                         : out->reset_limit >= 0         ? "--reset_limit"
                         : out->elastic_timeout_s >= 0   ? "--elastic_timeout"
                         : out->chaos_text != NULL       ? "--chaos"
                         : out->discovery_script != NULL ? "--host_discovery_script"
                                                         : NULL;
    if (out->chaos_text != NULL)
        DSC_TRY(dsc_chaos_parse(out->chaos_text, &out->chaos, err));
    if (out->least_ranks == 0 && beside != NULL)
        return DSC_FAIL(err, DSC_ERR_INPUT, beside, "needs --min_np, the fewest ranks that a job goes on with");
    if (out->least_ranks > 0 && out->no_ssh)
        return DSC_FAIL(err, DSC_ERR_INPUT, "--min_np",
                        "cannot be used together with --no_ssh: one launcher decides "
                        "which ranks belong to the job");
    if (out->least_ranks == 0)
        return DSC_OK;
    if (out->elastic_timeout_s < 0)
        out->elastic_timeout_s = DEFAULT_ELASTIC_TIMEOUT_S;
    if (out->most_ranks == 0)
        out->most_ranks = out->rank_count > 0 ? out->rank_count : 0;
    else if (out->most_ranks < out->least_ranks || out->most_ranks < out->rank_count ||
             (out->rank_count > 0 && out->rank_count < out->least_ranks))
        return DSC_FAIL(err, DSC_ERR_INPUT, "--max_np", "%d; expected --min_np <= -np <= --max_np",
                        (int)out->most_ranks);
    if (out->slots_per_node >= 0 || out->most_ranks == 0)
        return DSC_OK;
    const bool named = out->hosts != NULL || out->hostfile != NULL; /* slots beyond the most ranks are spare */
    out->first_ranks = (int32_t)dsc_max_i64(out->rank_count, 0);
    out->rank_count = named ? -1 : out->most_ranks;
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
    DSC_TRY(check_elastic(out, err));
    if (out->node_rank > 0 && !out->no_ssh)
        return DSC_FAIL(err, DSC_ERR_INPUT, "--node_rank",
                        "%d is for --no_ssh, where you start each host yourself; leave it out", out->node_rank);
    return DSC_OK;
}

dsc_status dsc_launcher_options_parse(int argc, char **argv, dsc_launcher_options *out, dsc_error *err)
{
    bool help;
    *out = (dsc_launcher_options) { .node_count = -1,
                                    .slots_per_node = -1,
                                    .rank_count = -1,
                                    .node_rank = -1,
                                    .grace_s = 10,
                                    .elastic_timeout_s = -1,
                                    .reset_limit = -1 };
    out->exports = (dsc_flag_list){ out->export_texts, 0, DSC_LAUNCHER_LIST_MAX };
    out->ssh_options = (dsc_flag_list){ out->ssh_option_texts, 0, DSC_LAUNCHER_LIST_MAX };
    DSC_TRY(dsc_flags_parse(&page, argc, argv, out, &help, err));
    if (help || out->version) {
        out->action = help ? DSC_LAUNCHER_HELP : DSC_LAUNCHER_VERSION;
        return DSC_OK;
    }
    if (out->program.argc > 0 && out->program.argv[0][0] == 0)
        return DSC_FAIL(err, DSC_ERR_INPUT, "PROGRAM", "its name is empty; expected a file or a name such as train");
    set_level(out);
    DSC_TRY(set_launcher(out, err));
    DSC_TRY(check_comm(out, err));
    DSC_TRY(check_ssh_options(out, err));
    return check_together(out, err);
}

void dsc_launcher_usage(FILE *to)
{
    char text[12288];
    const size_t bytes = dsc_flags_help(&page, text, sizeof text);
    DSC_ASSERT(bytes < sizeof text);
    fputs(text, to);
}
