/* rope_frequencies.c - frequencies of rotary positions for rope_test.py. A request is a line "BYTES HEAD POSITIONS
 * LAYERS" and the bytes of a config.json; LAYERS 1 asks for those of full and of sliding attention. The answer to a
 * refusal is a line "STATUS TEXT". Else "0" comes, and a line "SCALE SHORT FREQUENCY..." for each kind of layers.
 * LongRoPE's long frequencies follow the short ones. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "models/rope.h"

static void print_rope(const dsc_rope *rope)
{
    printf("%.9g %lld", (double)rope->scale, (long long)dsc_rope_short_positions(rope));
    for (int32_t i = 0; i < rope->pairs; i++)
        printf(" %.9g", (double)rope->frequency[i]);
    for (int32_t i = 0; i < rope->pairs && rope->kind == DSC_ROPE_LONG; i++)
        printf(" %.9g", (double)rope->long_frequency[i]);
    printf("\n");
}

int main(void)
{
    static const dsc_rope_layer layers[] = {
        { .name = "full_attention", .theta = "rope_theta", .theta_default = 1e6, .scaled = true },
        { .name = "sliding_attention", .theta = "rope_local_base_freq", .theta_default = 1e4 },
    };
    static dsc_rope rope[2];
    static const dsc_json_limits limits = DSC_JSON_LIMITS_CONFIG;
    static char text[65536], warnings[256];
    dsc_alloc *alloc = NULL;
    dsc_error err = DSC_ERROR_INIT;
    long bytes, head, positions, by_layers;
    if (dsc_alloc_open(&alloc, &err) != DSC_OK)
        return 1;
    while (scanf("%ld %ld %ld %ld", &bytes, &head, &positions, &by_layers) == 4 && getchar() == '\n') {
        dsc_json *json = NULL;
        if (bytes < 0 || bytes > (long)sizeof text || fread(text, 1, (size_t)bytes, stdin) != (size_t)bytes)
            return 1;
        dsc_status status = dsc_json_open(alloc, "config.json", text, bytes, DSC_JSON_STRICT, &limits, &json, &err);
        if (status == DSC_OK) {
            const dsc_rope_keys keys = { .theta = "rope_theta",
                                         .partial = "partial_rotary_factor",
                                         .partial_default = 1,
                                         .positions = positions,
                                         .head_size = head };
            dsc_hf_config reader = { .json = json,
                                     .object = dsc_json_root(json),
                                     .err = &err,
                                     .warnings = warnings,
                                     .warnings_bytes = sizeof warnings };
            status = by_layers != 0 ? dsc_rope_read_layers(&reader, &keys, layers, 2, rope)
                                    : dsc_rope_read(&reader, &keys, rope);
        }
        if (status != DSC_OK) {
            char why[1024];
            dsc_error_format(&err, why, sizeof why);
            printf("%d %s\n", (int)status, why);
        } else {
            printf("0\n");
            for (int i = 0; i < (by_layers != 0 ? 2 : 1); i++)
                print_rope(&rope[i]);
        }
        fflush(stdout);
        dsc_json_close(&json);
    }
    dsc_alloc_close(&alloc);
    return 0;
}
