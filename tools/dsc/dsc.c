/* dsc.c - the multi-tool: `dsc COMMAND ...`. A command is one row here and one file beside this one.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/io.h"
#include "base/strings.h"
#include "tools/dsc/tool.h"

static const dsc_command commands[] = {
    { "config", "config check|explain|lr|convert FILE ...", "check, explain or convert a ds_config.json",
      dsc_cmd_config },
    { "check", "check --kind KIND FILE", "validate one input file", dsc_cmd_check },
    { "classify", "classify --model DIR FILE", "class and probability of each text of a file", dsc_cmd_classify },
    { "embed", "embed --model DIR FILE|-", "a vector of each text of a file", dsc_cmd_embed },
    { "doctor", "doctor [--hostfile FILE]", "devices and libraries of this machine or of all hosts", dsc_cmd_doctor },
    { "model", "model show MODEL", "modules and ops of a model: shapes, bytes, FLOPs, fused and kept values",
      dsc_cmd_model },
    { "plan", "plan --config FILE --model NAME", "bytes per tag, tier and rank; --time, --compare", dsc_cmd_plan },
    { "plot", "plot RUN.jsonl...", "curves of train's logs as a picture", dsc_cmd_plot },
    { "ckpt", "ckpt ls|verify|hash|diff|prune|export|merge DIR", "list, check, compare, thin out, export checkpoints",
      dsc_cmd_ckpt },
    { "io", "io bench DIR", "how fast files in DIR are read and written, the best aio section", dsc_cmd_io },
    { "comm", "comm bench [--ranks N]", "how fast ranks of this host exchange data", dsc_cmd_comm },
    { "data", "data tokenize FILE... -o OUT.bin", "texts to token files and back; data render FILE: what counts",
      dsc_cmd_data },
    { "generate", "generate --model DIR --prompt TEXT", "a model continues a text", dsc_cmd_generate },
    { "scale", "scale --config FILE [--ranks 1,2,4]", "speed by number of ranks: short runs, a table, a picture",
      dsc_cmd_scale },
    { "simulate", "simulate --config FILE --gpu CARD", "simulated speed on up to 1,024 GPUs, slow ranks, failures",
      dsc_cmd_simulate },
    { "tune", "tune --config FILE [--ranks N]", "a faster config by short runs; --batch 64..1024", dsc_cmd_tune },
};

static int help(void)
{
    printf("usage: dsc COMMAND [ARGUMENTS]\n\n");
    for (size_t i = 0; i < DSC_COUNT(commands); i++)
        printf("  dsc %-34s %s\n", commands[i].usage, commands[i].summary);
    printf("\n  dsc COMMAND --help explains a command and its flags; dsc --version prints the version.\n");
    return dsc_tool_end();
}

static const char *command_name(const void *user, int32_t i)
{
    (void)user;
    return commands[i].name;
}

static int unknown(const char *name)
{
    const char *best = dsc_string_nearest(name, command_name, NULL, (int32_t)DSC_COUNT(commands), 2);
    if (best != NULL)
        return dsc_tool_usage(name, "unknown command; did you mean \"dsc %s\"? \"dsc --help\" lists them", best);
    return dsc_tool_usage(name, "unknown command; \"dsc --help\" lists them");
}

int main(int argc, char **argv)
{
    dsc_open_standard_files();
    if (argc < 2)
        return dsc_tool_usage("", "no command; \"dsc --help\" lists them");
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0)
        return help();
    if (strcmp(argv[1], "--version") == 0) {
        printf("dsc %s\n", DSC_VERSION_TEXT);
        return dsc_tool_end();
    }
    for (size_t i = 0; i < DSC_COUNT(commands); i++)
        if (strcmp(argv[1], commands[i].name) == 0)
            return commands[i].run(argc - 1, argv + 1);
    return unknown(argv[1]);
}
