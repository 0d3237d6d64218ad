/* spike_watch.c - see spike_watch.h. SPDX-License-Identifier: Apache-2.0 */
#include "engine/schedule/spike_watch.h"

#include <math.h>

/* `ratio` 0: this number is not watched. */
static bool is_above(const dsc_spikes_section *config, const dsc_spike_mean *before, double ratio, double value,
                     double *z)
{
    const double distance = value - before->mean, deviation = sqrt(before->variance);
    *z = deviation > 0 ? distance / deviation : distance > 0 ? (double)INFINITY : 0;
    return ratio > 0 && before->count >= config->window && value > ratio * before->mean && *z > config->z_score;
}

bool dsc_spike_seen(const dsc_spikes_section *config, const dsc_spike_watch *watch, double loss, double norm,
                    dsc_spike *out)
{
    *out = (dsc_spike) { .value = loss, .mean = watch->loss.mean };
    if (is_above(config, &watch->loss, config->loss_ratio, loss, &out->z))
        return true;
    *out = (dsc_spike) { .of_norm = true, .value = norm, .mean = watch->norm.mean };
    return is_above(config, &watch->norm, config->norm_ratio, norm, &out->z);
}

static void add(int64_t window, double value, dsc_spike_mean *to)
{
    to->count = dsc_min_i64(to->count + 1, window);
    const double share = 1.0 / (double)to->count, distance = value - to->mean, moved = share * distance;
    to->mean += moved;
    to->variance = (1 - share) * (to->variance + distance * moved);
}

void dsc_spike_note(const dsc_spikes_section *config, double loss, double norm, dsc_spike_watch *watch)
{
    DSC_ASSERT(isfinite(loss) && isfinite(norm));
    add(config->window, loss, &watch->loss);
    add(config->window, norm, &watch->norm);
}
