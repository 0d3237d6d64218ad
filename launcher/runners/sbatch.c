/* sbatch.c - see sbatch.h. Slurm chooses the hosts, so the script names numbers only; inside the job dsc-launch reads
 * what Slurm gave. SPDX-License-Identifier: Apache-2.0 */
#include "launcher/runners/sbatch.h"

#include <string.h>
#include <unistd.h>

/* One word of a shell, whatever its bytes are. */
static void put_word(const char *text, FILE *to)
{
    fputs(" '", to);
    for (; *text != 0; text++)
        if (*text == '\'')
            fputs("'\\''", to);
        else
            fputc(*text, to);
    fputc('\'', to);
}

static void put_flag(const char *flag, const char *value, FILE *to)
{
    fprintf(to, " %s", flag);
    put_word(value, to);
}

static dsc_status check(const dsc_launcher_options *opt, dsc_error *err)
{
    const char *args = opt->launcher_args;
    if (opt->hosts != NULL || opt->hostfile != NULL || opt->include != NULL || opt->exclude != NULL)
        return DSC_FAIL(err, DSC_ERR_INPUT, "--sbatch", "Slurm chooses the hosts of a batch job; leave them out, or "
                        "name them by --launcher_args \"--nodelist=...\"");
    if (args == NULL)
        return DSC_OK;
    for (const char *at = args; *at != 0; at++)
        if ((unsigned char)*at < ' ')
            return DSC_FAIL(err, DSC_ERR_INPUT, "--launcher_args", "a control byte at %zu; expected flags of sbatch on "
                            "one line", (size_t)(at - args) + 1);
    if (args[strspn(args, " ")] != '-')
        return DSC_FAIL(err, DSC_ERR_INPUT, "--launcher_args", "\"%.60s\": expected flags of sbatch, for example "
                        "--time=2:00:00 --gpus-per-node=8", args);
    return DSC_OK;
}

dsc_status dsc_sbatch_write(const dsc_launcher_options *opt, const char *program, FILE *to, dsc_error *err)
{
    char self[4096];
    DSC_TRY(check(opt, err));
    const ssize_t bytes = readlink("/proc/self/exe", self, sizeof self - 1);
    if (bytes <= 0)
        return DSC_FAIL(err, DSC_ERR_IO, "/proc/self/exe", "does not say where dsc-launch is");
    self[bytes] = 0;
    fputs("#!/bin/sh\n#SBATCH --job-name=dsc\n#SBATCH --output=dsc-%j.out\n", to);
    fputs("#SBATCH --signal=TERM@60\n", to); /* a minute for the last checkpoint before the time is up */
    if (opt->node_count > 0)
        fprintf(to, "#SBATCH --nodes=%d\n", opt->node_count);
    if (opt->slots_per_node > 0)
        fprintf(to, "#SBATCH --ntasks-per-node=%d\n", opt->slots_per_node);
    if (opt->rank_count > 0)
        fprintf(to, "#SBATCH --ntasks=%d\n", opt->rank_count);
    if (opt->launcher_args != NULL)
        fprintf(to, "#SBATCH %s\n", opt->launcher_args);
    fputs("exec", to);
    put_word(self, to);
    fputs(" --launcher slurm", to);
    if (opt->master_port > 0)
        fprintf(to, " --master_port %d", opt->master_port);
    if (opt->comm != NULL)
        put_flag("--comm", opt->comm, to);
    for (int i = 0; i < opt->exports.count; i++)
        put_flag("--export", opt->exports.text[i], to);
    fputs(" --", to);
    put_word(program, to);
    for (int i = 1; i < opt->program.argc; i++)
        put_word(opt->program.argv[i], to);
    fputc('\n', to);
    return DSC_OK;
}
