/* nccl_config.c - settings of NCCL's communicators, as far as the installed version has them.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "comm/transports/nccl_internal.h"

#define SIZE_2_18 (offsetof(dsc_nccl_config, traffic_class) + sizeof(int)) /* with the padding at its end */
#define SIZE_2_27 (offsetof(dsc_nccl_config, nvls_ctas) + sizeof(int))

_Static_assert(SIZE_2_18 == 48 && SIZE_2_27 == 72 && sizeof(dsc_nccl_config) == 80, "sizes of NCCL's headers");

static void leave_out(char *text, size_t bytes, const char *key)
{
    snprintf(text + strlen(text), bytes - strlen(text), "%s%s", text[0] == 0 ? "" : ", ", key);
}

void dsc_nccl_grant(dsc_nccl_transport *t, const dsc_comm_options *options)
{
    char missing[96] = "";
    dsc_nccl_wishes *w = &t->wishes;
    *w = options->nccl;
    if (w->policy == DSC_NCCL_POLICY_ZERO && t->api.all_to_all == NULL) {
        leave_out(missing, sizeof missing, "cta_policy \"zero\" (2.28)");
        w->policy = DSC_NCCL_POLICY_DEFAULT;
    }
    if (w->policy == DSC_NCCL_POLICY_EFFICIENCY && t->api.version < DSC_NCCL_VERSION_POLICY) {
        leave_out(missing, sizeof missing, "cta_policy \"efficiency\" (2.27)");
        w->policy = DSC_NCCL_POLICY_DEFAULT;
    }
    w->symmetric = w->symmetric || w->policy == DSC_NCCL_POLICY_ZERO;
    if (w->symmetric && (t->api.window_open == NULL || t->api.window_close == NULL || t->api.mem_alloc == NULL ||
                         t->api.mem_free == NULL)) {
        leave_out(missing, sizeof missing, "symmetric_windows (2.27)");
        w->symmetric = false;
    }
    if (missing[0] != 0 && t->rank == 0)
        dsc_log_printf(options->log, DSC_LOG_WARNING,
                       "NCCL %d.%d does not have all of dsc.nccl, and exchanges go on without %s; install a newer one",
                       t->api.version / 10000, t->api.version / 100 % 100, missing);
}

void dsc_nccl_config_fill(const dsc_nccl_transport *t, dsc_nccl_config *out)
{
    const dsc_nccl_wishes *w = &t->wishes;
    const int version = t->api.version;
    *out = (dsc_nccl_config) {
        .size = version < DSC_NCCL_VERSION_POLICY ? SIZE_2_18
                : version < DSC_NCCL_VERSION_COPY ? SIZE_2_27
                                                  : sizeof *out,
        .magic = 0xcafebeefu,
        .version = version < DSC_NCCL_VERSION_POLICY ? DSC_NCCL_VERSION_LEAST
                   : version < DSC_NCCL_VERSION_COPY ? DSC_NCCL_VERSION_POLICY
                                                     : DSC_NCCL_VERSION_COPY,
        .blocking = w->blocking ? 1 : 0,
        .cga_cluster_size = INT_MIN,
        .min_ctas = w->min_ctas > 0 ? w->min_ctas : INT_MIN,
        .max_ctas = w->max_ctas > 0 ? w->max_ctas : INT_MIN,
        .net_name = w->network != NULL && w->network[0] != 0 ? w->network : NULL,
        .split_share = INT_MIN,
        .traffic_class = INT_MIN,
        .collnet_enable = INT_MIN,
        .cta_policy = w->policy != DSC_NCCL_POLICY_DEFAULT ? (int)w->policy : INT_MIN,
        .shrink_share = INT_MIN,
        .nvls_ctas = INT_MIN,
        .channels_per_net_peer = INT_MIN,
        .nvlink_centric_sched = INT_MIN,
    };
}
