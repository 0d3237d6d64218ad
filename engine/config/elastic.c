/* elastic.c - the "elasticity" section: one batch size that many world sizes divide, and the triad of this world size.
 *
 * The rule is that of DeepSpeed's last releases with this section (its versions 0.1 and 0.2). A candidate is a
 * micro-batch, or the least common multiple of all, times the largest highly composite number within the limit. The
 * candidate that most world sizes divide is chosen. Version 0.2 counts nodes instead of ranks. Releases before August
 * 2026 also took a multiple above the limit; a warning says where the batch differs for that.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/config/internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define VALID_MOST 2048 /* divisors of a number below 2^31: at most 1536 */

/* The smallest numbers with more divisors than all before them. */
static const int64_t highly_composite[] = {
    1,     2,     4,     6,     12,    24,    36,    48,    60,     120,    180,    240,    360,
    720,   840,   1260,  1680,  2520,  5040,  7560,  10080, 15120,  20160,  25200,  27720,  45360,
    50400, 55440, 83160, 110880, 166320, 221760, 277200, 332640, 498960, 554400, 665280, 720720,
};

typedef struct elastic_choice {
    int64_t batch;
    int64_t valid[VALID_MOST]; /* world sizes (version 0.1) or nodes (0.2), ascending */
    int valid_count;
} elastic_choice;

static int64_t candidate_of(int64_t base, int64_t most)
{
    int64_t best = 1;
    if (base >= most)
        return base;
    for (size_t i = 0; i < DSC_COUNT(highly_composite); i++)
        if (highly_composite[i] <= most / base)
            best = highly_composite[i];
    return best * base;
}

/* Whether a batch splits into some micro-batch on so many ranks. */
static bool splits(const dsc_elastic_config *e, int64_t batch, int64_t ranks)
{
    for (int i = 0; i < e->micro_count; i++)
        if (batch % e->micro[i] == 0 && batch / e->micro[i] % ranks == 0)
            return true;
    return false;
}

static void count_valid(const dsc_elastic_config *e, elastic_choice *choice, int64_t least, int64_t most)
{
    choice->valid_count = 0;
    for (int64_t i = 1; i <= choice->batch && i <= most && i * i <= choice->batch; i++) /* small divisors, ascending */
        if (choice->batch % i == 0 && i >= least && splits(e, choice->batch, i))
            choice->valid[choice->valid_count++] = i;
    int64_t root = (int64_t)sqrt((double)choice->batch);
    while (root * root >= choice->batch)
        root--;
    for (int64_t i = root; i >= 1; i--) { /* and their partners above the root */
        const int64_t large = choice->batch / i;
        if (choice->batch % i == 0 && large >= least && large <= most && splits(e, choice->batch, large))
            choice->valid[choice->valid_count++] = large;
    }
    DSC_ASSERT(choice->valid_count <= VALID_MOST);
}

static int64_t gcd(int64_t a, int64_t b) { return b == 0 ? a : gcd(b, a % b); }

/* The least common multiple of the micro-batches; 0: it is above 2147483647. */
static int64_t multiple_of(const dsc_elastic_config *e)
{
    int64_t multiple = 1;
    for (int i = 0; i < e->micro_count; i++) {
        multiple = multiple / gcd(multiple, e->micro[i]) * e->micro[i];
        if (multiple > INT32_MAX)
            return 0;
    }
    return multiple;
}

/* Version 0.1. `most_batch` etc. are the section's, or its parts per node. `multiple`: a further candidate; 0: none. */
static void choose(const dsc_elastic_config *e, int64_t most_batch, int64_t least_gpus, int64_t most_gpus,
                   int64_t multiple, elastic_choice *best)
{
    int64_t smallest = e->micro[0];
    elastic_choice each;
    for (int i = 0; i < e->micro_count; i++)
        smallest = dsc_min_i64(smallest, e->micro[i]);
    if (least_gpus == 0)
        least_gpus = 1;
    if (most_gpus == 0)
        most_gpus = most_batch / smallest;
    best->batch = smallest;
    best->valid_count = 0;
    for (int i = 0; i < e->micro_count + (multiple > 0); i++) {
        each.batch = candidate_of(i < e->micro_count ? e->micro[i] : multiple, most_batch);
        count_valid(e, &each, least_gpus, most_gpus);
        const bool preferred = e->prefer_larger ? each.batch > best->batch : each.batch < best->batch;
        if (each.valid_count > best->valid_count || (each.valid_count == best->valid_count && preferred))
            *best = each;
    }
}

/* The choice; where older releases of DeepSpeed choose a batch above the limit, a line says so. */
static void choose_batch(dsc_config *config, int64_t most, int64_t ranks_per_node, elastic_choice *out)
{
    const dsc_elastic_config *e = &config->unresolved.elastic;
    const int64_t per_node = e->version_2 ? e->gpus_per_node : 1, multiple = multiple_of(e);
    elastic_choice older;
    choose(e, most, e->min_gpus / per_node, e->max_gpus / per_node, multiple <= most ? multiple : 0, out);
    if (multiple <= most)
        return;
    choose(e, most, e->min_gpus / per_node, e->max_gpus / per_node, multiple, &older);
    if (older.batch != out->batch)
        dsc_config_note_default(config,
                                "elasticity: train_batch_size %lld; DeepSpeed before August 2026 takes %lld, the "
                                "multiple of micro_batch_sizes above max_train_batch_size. Set max_train_batch_size to "
                                "%lld for that",
                                (long long)(out->batch * ranks_per_node), (long long)(older.batch * ranks_per_node),
                                (long long)(older.batch * ranks_per_node));
}

/* Version 0.2 where this number of ranks is none of those: the batch fits the ranks instead. In doubles, as DeepSpeed
 * computes it. */
static int64_t batch_for_these(const dsc_elastic_config *e, int64_t world_size, int64_t *ranks)
{
    const double per_node = (double)(e->gpus_per_node / e->model_parallel);
    const double current = (double)world_size / (double)e->gpus_per_node * per_node;
    double best = -1;
    for (int i = 0; i < e->micro_count; i++) {
        const double least = (double)e->micro[i] * current;
        const double batch = floor((double)e->max_batch / least) * least;
        if (best < 0 || (e->prefer_larger ? batch > best : batch < best))
            best = batch;
    }
    *ranks = (int64_t)current;
    return (int64_t)best;
}

/* "1, 2, 4, ..." */
static const char *list_valid(const elastic_choice *choice, int64_t times, char *out, size_t out_bytes)
{
    size_t used = 0;
    snprintf(out, out_bytes, "none");
    for (int i = 0; i < choice->valid_count && used + 32 < out_bytes; i++)
        used += (size_t)snprintf(out + used, out_bytes - used, "%s%lld%s", i > 0 ? ", " : "",
                                 (long long)(choice->valid[i] * times),
                                 used + 64 >= out_bytes && i + 1 < choice->valid_count ? ", ..." : "");
    return out;
}

static bool is_valid(const elastic_choice *choice, int64_t times, int64_t ranks)
{
    for (int i = 0; i < choice->valid_count; i++)
        if (choice->valid[i] * times == ranks)
            return true;
    return false;
}

/* The largest micro-batch that divides a rank's share; 0: none. */
static int64_t micro_of(const dsc_elastic_config *e, int64_t share)
{
    int64_t micro = 0;
    for (int i = 0; i < e->micro_count; i++)
        if (share % e->micro[i] == 0)
            micro = dsc_max_i64(micro, e->micro[i]);
    return micro;
}

dsc_status dsc_config_resolve_elastic(dsc_config *config, int64_t world_size, dsc_error *err)
{
    const dsc_elastic_config *e = &config->unresolved.elastic;
    const int64_t ranks_per_node = e->version_2 ? e->gpus_per_node / e->model_parallel : 1;
    elastic_choice choice;
    char valid[160];
    config->train_batch_size = config->train_micro_batch_size_per_gpu = config->gradient_accumulation_steps =
        DSC_AUTO_I64;
    if (ranks_per_node == 0 || e->gpus_per_node % e->model_parallel != 0)
        return dsc_config_refuse(config, config->unresolved.elastic.place, "elasticity", err,
                                 "num_gpus_per_node %lld is not divisible by model_parallel_size %lld",
                                 (long long)e->gpus_per_node, (long long)e->model_parallel);
    const int64_t most = e->max_batch / ranks_per_node;
    for (int i = 0; i < e->micro_count; i++)
        if (e->micro[i] > most)
            return dsc_config_refuse(config, config->unresolved.elastic.place, "elasticity", err,
                                     "micro_batch_sizes: %lld is above max_train_batch_size %lld%s",
                                     (long long)e->micro[i], (long long)most,
                                     ranks_per_node > 1 ? " per node's rank" : "");
    choose_batch(config, most, ranks_per_node, &choice);
    int64_t batch = choice.batch * ranks_per_node;
    list_valid(&choice, ranks_per_node, valid, sizeof valid);
    if (world_size == 0) {
        if (!e->version_2)
            config->train_batch_size = batch;
        return DSC_OK;
    }
    if (e->version_2 && !is_valid(&choice, ranks_per_node, world_size / e->model_parallel)) {
        int64_t ranks;
        batch = batch_for_these(e, world_size, &ranks);
        if (ranks != world_size)
            return dsc_config_refuse(config, config->unresolved.elastic.place, "elasticity", err,
                                     "world size %lld does not work; these do: %s", (long long)world_size, valid);
        snprintf(valid, sizeof valid, "%lld", (long long)ranks);
    } else if (!is_valid(&choice, ranks_per_node, world_size)) {
        return dsc_config_refuse(config, config->unresolved.elastic.place, "elasticity", err,
                                 "world size %lld does not work with train_batch_size %lld; these do: %s",
                                 (long long)world_size, (long long)batch, valid);
    }
    const int64_t micro = micro_of(e, batch / world_size);
    const int64_t steps = micro > 0 ? batch / (micro * world_size) : 0;
    if (batch <= 0 || steps == 0 || micro * steps * world_size != batch)
        return dsc_config_refuse(config, config->unresolved.elastic.place, "elasticity", err,
                                 "train_batch_size %lld does not split into micro_batch_sizes over %lld ranks",
                                 (long long)batch, (long long)world_size);
    config->train_batch_size = batch;
    config->train_micro_batch_size_per_gpu = micro;
    config->gradient_accumulation_steps = steps;
    dsc_config_note(config,
                    "elasticity: train_batch_size %lld = %lld per rank * %lld accumulated * %lld ranks; world sizes "
                    "that work: %s",
                    (long long)batch, (long long)micro, (long long)steps, (long long)world_size, valid);
    return DSC_OK;
}

/* ---- from the file ---- */

static dsc_status fill_micro(dsc_config_parse_state *s, dsc_elastic_config *e)
{
    bool from_text;
    for (const cJSON *each = s->given[DSC_ID_ELASTIC_MICRO]->child; each != NULL; each = each->next) {
        int64_t micro = 0;
        if (!cJSON_IsNumber(each) || !dsc_value_int(each, &micro, &from_text) || micro < 1 || micro > INT32_MAX)
            return dsc_config_fail(s, DSC_ID_ELASTIC_MICRO, DSC_ERR_CONFIG,
                                   "expected a list of integers, 1..2147483647");
        if (e->micro_count == DSC_ELASTIC_MICRO_MAX)
            return dsc_config_fail(s, DSC_ID_ELASTIC_MICRO, DSC_ERR_CONFIG, "at most %d sizes", DSC_ELASTIC_MICRO_MAX);
        e->micro[e->micro_count++] = micro;
    }
    if (e->micro_count == 0)
        return dsc_config_fail(s, DSC_ID_ELASTIC_MICRO, DSC_ERR_CONFIG, "an empty list; expected sizes as [2,4,6]");
    return DSC_OK;
}

/* The batch keys beside it: an error in DeepSpeed unless the section says to ignore them. A flag beats the section. */
static dsc_status check_batch_keys(dsc_config_parse_state *s, dsc_elastic_config *e, bool ignored)
{
    static const int ids[] = { DSC_ID_TRAIN_BATCH, DSC_ID_MICRO_BATCH, DSC_ID_ACCUMULATION };
    for (size_t i = 0; i < DSC_COUNT(ids); i++) {
        if (s->given[ids[i]] == NULL)
            continue;
        if (s->flag[ids[i]] != NULL) {
            e->enabled = false;
            dsc_config_note(s->config, "elasticity gives way to %s", s->flag[ids[i]]);
        } else if (!ignored) {
            return dsc_config_fail(s, ids[i], DSC_ERR_CONFIG,
                                   "conflicts with elasticity (which chooses the batch size); keep one of them, or set "
                                   "elasticity.ignore_non_elastic_batch_info");
        } else {
            DSC_TRY(dsc_config_warn(s, ids[i], "ignored because elasticity decides it"));
        }
    }
    return DSC_OK;
}

dsc_status dsc_config_fill_elastic(dsc_config_parse_state *s)
{
    dsc_elastic_config *e = &s->config->unresolved.elastic;
    double version = 0.2;
    bool from_text;
    e->enabled = dsc_config_bool_or(s, DSC_ID_ELASTIC, false);
    if (!e->enabled)
        return DSC_OK;
    e->place = dsc_config_source_pos(s, DSC_ID_ELASTIC);
    if (!dsc_config_has(s, DSC_ID_ELASTIC_MAX_BATCH) || !dsc_config_has(s, DSC_ID_ELASTIC_MICRO))
        return dsc_config_fail(s, DSC_ID_ELASTIC, DSC_ERR_CONFIG, "needs elasticity.max_train_batch_size and "
                               "elasticity.micro_batch_sizes");
    if (dsc_config_has(s, DSC_ID_ELASTIC_VERSION))
        (void)dsc_value_float(s->given[DSC_ID_ELASTIC_VERSION], &version, &from_text);
    if (version != 0.1 && version != 0.2)
        return dsc_config_fail(s, DSC_ID_ELASTIC_VERSION, DSC_ERR_CONFIG, "%g is not 0.1 or 0.2", version);
    e->version_2 = version == 0.2;
    e->max_batch = dsc_config_int_or(s, DSC_ID_ELASTIC_MAX_BATCH, 0);
    e->min_gpus = dsc_config_int_or(s, DSC_ID_ELASTIC_MIN_GPUS, 1);
    e->max_gpus = dsc_config_int_or(s, DSC_ID_ELASTIC_MAX_GPUS, 10000);
    e->gpus_per_node = dsc_config_int_or(s, DSC_ID_ELASTIC_PER_NODE, 1);
    e->model_parallel = dsc_config_int_or(s, DSC_ID_ELASTIC_MODEL_PARALLEL, 1);
    e->prefer_larger = dsc_config_bool_or(s, DSC_ID_ELASTIC_LARGER, true);
    DSC_TRY(fill_micro(s, e));
    if (e->max_gpus < e->min_gpus)
        return dsc_config_fail(s, DSC_ID_ELASTIC_MAX_GPUS, DSC_ERR_CONFIG, "%lld is below elasticity.min_gpus %lld",
                               (long long)e->max_gpus, (long long)e->min_gpus);
    if (e->model_parallel > 1 && !e->version_2)
        return dsc_config_fail(s, DSC_ID_ELASTIC_MODEL_PARALLEL, DSC_ERR_CONFIG, "%lld needs elasticity.version 0.2",
                               (long long)e->model_parallel);
    if (e->model_parallel > 1)
        DSC_TRY(dsc_config_not_built(s, DSC_ID_ELASTIC_MODEL_PARALLEL, "%lld is not supported in this version: 1 works",
                                     (long long)e->model_parallel));
    return check_batch_keys(s, e, dsc_config_bool_or(s, DSC_ID_ELASTIC_IGNORE, false));
}
