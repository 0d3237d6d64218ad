/* sft_pack.c - our half of bench_sft_data.py: instruction data to a file of samples. Arguments: MODEL_DIR FILE OUT
 * TOKENS THREADS. Prints the seconds, without those of opening the tokenizer, and what the samples hold.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/data/sft/pack.h"

static dsc_status run(dsc_alloc *alloc, char **argv, dsc_tokenizer *tokenizer, dsc_error *err)
{
    const dsc_sft_section section = DSC_SFT_SECTION_INIT;
    const dsc_sft_options options = { .alloc = alloc,
                                      .path = argv[2],
                                      .tokenizer_path = argv[1],
                                      .tokenizer = tokenizer,
                                      .section = &section,
                                      .threads = atoi(argv[5]) };
    dsc_sample_file file = DSC_SAMPLE_FILE_INIT;
    char text[400];
    const int64_t began = dsc_clock_ns();
    DSC_TRY(dsc_sft_pack_write(&options, atoll(argv[4]), argv[3], err));
    const double seconds = (double)(dsc_clock_ns() - began) * 1e-9;
    DSC_TRY(dsc_sample_file_open(NULL, argv[3], &file, err));
    printf("%.6f %s\n", seconds, dsc_sample_summary_text(&file.summary, text, sizeof text));
    dsc_sample_file_close(NULL, &file);
    return DSC_OK;
}

int main(int argc, char **argv)
{
    dsc_alloc *alloc = NULL;
    dsc_tokenizer *tokenizer = NULL;
    dsc_error err = DSC_ERROR_INIT;
    if (argc != 6 || dsc_alloc_open(&alloc, &err) != DSC_OK)
        return 2;
    dsc_status status = dsc_tokenizer_open(&tokenizer, argv[1], &err);
    if (status == DSC_OK)
        status = run(alloc, argv, tokenizer, &err);
    if (status != DSC_OK)
        fprintf(stderr, "sft_pack: %s: %s\n", err.where, err.message);
    dsc_tokenizer_close(&tokenizer);
    dsc_alloc_close(&alloc);
    return status == DSC_OK ? 0 : 1;
}
