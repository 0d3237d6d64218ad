/* gpu_cards.c - GPUs by name and memory sizes as people write them, for `dsc plan`.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tools/dsc/gpu_cards.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/base.h"

#define GIB 1073741824.0

/* MiB as nvidia-smi shows them as the card's total. A name without its size means the card that comes in one only. */
static const struct { const char *name; int64_t mib; } cards[] = {
    { "A10", 23028 },          { "A100-40GB", 40960 },    { "A100-80GB", 81920 },   { "A30", 24576 },
    { "A40", 46068 },          { "A6000", 49140 },        { "A800-80GB", 81920 },   { "B200", 183359 },
    { "GH200-96GB", 97871 },   { "H100", 81559 },         { "H100-80GB", 81559 },   { "H100-NVL", 95830 },
    { "H20", 97871 },          { "H200", 143771 },        { "H800", 81559 },        { "L4", 23034 },
    { "L40", 46068 },          { "L40S", 46068 },         { "RTX-3090", 24576 },    { "RTX-4090", 24564 },
    { "RTX-5090", 32607 },     { "RTX-6000-Ada", 49140 },
};

/* Memory that the driver, CUDA's context and its modules take of a card before the first byte of a plan. On cards of 40
 * to 141 GB the first two are about 1 GiB by published reports; not measured here. */
#define OWN_BYTES ((int64_t)(1.5 * GIB))

/* Case, blanks, dashes and underscores do not count, nor do the words that nvidia-smi puts around. */
static void plain_name(const char *name, char *out, size_t out_bytes)
{
    static const char *const words[] = { "nvidia", "geforce", "sxm4", "sxm5", "sxm", "pcie", "hbm2e", "hbm3e", "hbm3" };
    size_t used = 0;
    while (*name != 0 && used + 1 < out_bytes) {
        bool skipped = false;
        for (size_t i = 0; i < DSC_COUNT(words) && !skipped; i++)
            if (strncasecmp(name, words[i], strlen(words[i])) == 0) {
                name += strlen(words[i]);
                skipped = true;
            }
        if (skipped)
            continue;
        if (isalnum((unsigned char)*name))
            out[used++] = (char)tolower((unsigned char)*name);
        name++;
    }
    out[used] = 0;
}

bool dsc_gpu_card_is(const char *name, const char *card)
{
    char wanted[64], known[64];
    plain_name(name, wanted, sizeof wanted);
    plain_name(card, known, sizeof known);
    const size_t length = strlen(known);
    if (strncmp(wanted, known, length) != 0)
        return false;
    const size_t digits = strspn(wanted + length, "0123456789");
    return wanted[length] == 0 || (digits > 0 && strcmp(wanted + length + digits, "gb") == 0);
}

bool dsc_gpu_card_bytes(const char *name, int64_t *bytes)
{
    char wanted[64], known[64];
    plain_name(name, wanted, sizeof wanted);
    for (size_t i = 0; i < DSC_COUNT(cards); i++) {
        plain_name(cards[i].name, known, sizeof known);
        if (strcmp(wanted, known) == 0) {
            *bytes = (cards[i].mib << 20) - OWN_BYTES;
            return true;
        }
    }
    return false;
}

void dsc_gpu_card_names(char *out, size_t out_bytes)
{
    size_t used = 0;
    out[0] = 0;
    for (size_t i = 0; i < DSC_COUNT(cards) && used < out_bytes; i++)
        used += (size_t)snprintf(out + used, out_bytes - used, "%s%s", i > 0 ? ", " : "", cards[i].name);
}

bool dsc_gpu_memory_bytes(const char *text, int64_t *bytes)
{
    static const struct { const char *unit; double bytes; } units[] = {
        { "", GIB }, { "g", GIB }, { "gb", 1e9 }, { "gib", GIB }, { "m", GIB / 1024 }, { "mb", 1e6 },
        { "mib", GIB / 1024 }, { "t", GIB * 1024 }, { "tb", 1e12 }, { "tib", GIB * 1024 },
    };
    char *end = NULL;
    if (!isdigit((unsigned char)*text))
        return false;
    const double value = strtod(text, &end);
    while (*end == ' ')
        end++;
    for (size_t i = 0; i < DSC_COUNT(units); i++) {
        if (strcasecmp(end, units[i].unit) != 0)
            continue;
        const double all = value * units[i].bytes;
        if (!(all > (double)OWN_BYTES) || !(all < 1e15))
            return false;
        *bytes = (int64_t)all - OWN_BYTES;
        return true;
    }
    return false;
}
