/* schedule.c - the learning rate of each optimizer step, equal to DeepSpeed 0.19's.
 *
 * DeepSpeed constructs a schedule, which sets a first rate, and calls it after each optimizer step. Let i be the batch
 * iteration of the start (-1 unless the config sets another). Step 1 uses the constructor's rate, and step s > 1 the
 * rate of iteration i + s - 1. A constructor that starts at another iteration does not change the rate. Operations have
 * DeepSpeed's order, so that results agree in all bits. The schedules of dsc.lr_schedule are transformers', and some of
 * "scheduler" are torch's. Golden values: tests/golden/make_lr.py, make_lr_transformers.py, make_lr_torch.py.
 * SPDX-License-Identifier: Apache-2.0 */
#include "engine/schedule/schedule.h"

#include <math.h>

static const double pi = 3.14159265358979323846;

/* ---- the three with a warm-up ---- */

/* Share of the warm-up that is done at iteration i < warmup_num_steps. */
static double warmup_share(const dsc_schedule_config *s, double i)
{
    const double steps = (double)s->warmup_num_steps;
    return s->warmup_linear ? i / steps : 1.0 / log(steps) * log(i + 1.0);
}

static double warmup_gamma(const dsc_schedule_config *s, double i)
{
    const double warmup = (double)s->warmup_num_steps, total = (double)s->total_num_steps;
    if (i < warmup)
        return warmup_share(s, i);
    if (s->kind == DSC_SCHEDULE_WARMUP || s->total_num_steps == DSC_AUTO_I64)
        return 1.0;
    return fmax(0.0, (total - i) / fmax(1.0, total - warmup));
}

static double cosine_ratio(const dsc_schedule_config *s, double i)
{
    const double warmup = (double)s->warmup_num_steps, total = (double)s->total_num_steps;
    if (i < warmup)
        return s->warmup_min_ratio + warmup_share(s, i) * (1.0 - s->warmup_min_ratio);
    if (s->total_num_steps == DSC_AUTO_I64)
        return 1.0;
    const double progress = fmin(1.0, (i - warmup + 1.0) / fmax(1.0, total - warmup));
    return fmax(0.0, s->cos_min_ratio + (1.0 - s->cos_min_ratio) * ((1.0 + cos(pi * progress)) / 2.0));
}

/* ---- OneCycle ---- */

/* 0 at both ends of the cycle, 1 at its top, for iteration i. */
static double cycle_scale(const dsc_schedule_config *s, double i)
{
    const double first = (double)s->cycle_first_step_size, second = (double)s->cycle_second_step_size;
    const double size = first + second, step_ratio = first / size, at = i + 1.0;
    const double x = 1.0 + at / size - floor(1.0 + at / size);
    const bool rising = x <= step_ratio;
    const int64_t stairs = rising ? s->cycle_first_stair_count : s->cycle_second_stair_count;
    if (stairs > 0) { /* from whole steps: x is a rounding away from the edge of a stair */
        const double in_cycle = fmod(at, size), count = (double)stairs;
        const double position = in_cycle <= first ? in_cycle * count / first : (size - in_cycle) * count / second;
        return floor(position) / count;
    }
    return rising ? x / step_ratio : (x - 1.0) / (step_ratio - 1.0);
}

static double cycle_size(const dsc_schedule_config *s)
{
    return (double)s->cycle_first_step_size + (double)s->cycle_second_step_size;
}

static double cycle_lr(const dsc_schedule_config *s, double i)
{
    if (i < cycle_size(s))
        return s->cycle_min_lr + (s->cycle_max_lr - s->cycle_min_lr) * cycle_scale(s, i);
    if (s->decay_step_size == 0 || s->decay_lr_rate == 0)
        return s->cycle_min_lr;
    return s->cycle_min_lr / (1.0 + s->decay_lr_rate * ((i - cycle_size(s) + 1.0) / (double)s->decay_step_size));
}

static double cycle_momentum(const dsc_schedule_config *s, double i)
{
    if (i < cycle_size(s))
        return s->cycle_max_mom - (s->cycle_max_mom - s->cycle_min_mom) * cycle_scale(s, i);
    if (s->decay_step_size == 0 || s->decay_mom_rate == 0)
        return s->cycle_max_mom;
    return s->cycle_max_mom * (1.0 + s->decay_mom_rate * ((i - cycle_size(s) + 1.0) / (double)s->decay_step_size));
}

/* ---- dsc.lr_schedule ---- */

/* transformers' get_constant_schedule_with_warmup, get_linear_schedule_with_warmup, get_cosine_with_min_lr_schedule_
 * with_warmup and get_wsd_schedule, whose LambdaLR gives step s the factor of s - 1; after the run's end the last rate
 * stays. */
static double own_ratio(const dsc_schedule_config *s, double i)
{
    const double warmup = (double)s->own_warmup_steps, total = (double)s->total_num_steps, least = s->own_min_ratio;
    const bool wsd = s->kind == DSC_SCHEDULE_WSD;
    if (i < warmup)
        return wsd ? i / warmup * (1.0 - least) + least : i / warmup;
    if (s->kind == DSC_SCHEDULE_CONSTANT || s->total_num_steps == DSC_AUTO_I64)
        return 1.0;
    const double decay = s->own_decay_steps > 0 ? (double)s->own_decay_steps : fmax(1.0, floor(total / 10.0));
    const double start = wsd ? fmax(warmup, total - decay) : warmup;
    const double progress = fmin(1.0, fmax(0.0, i - start) / fmax(1.0, total - start));
    const double factor = s->kind == DSC_SCHEDULE_LINEAR ? 1.0 - progress : 0.5 * (1.0 + cos(pi * progress));
    return factor * (1.0 - least) + least;
}

/* ---- torch.optim.lr_scheduler ---- */

/* Factor of the rate after n units of the schedule, as the closed forms of torch. */
static double step_factor(const dsc_schedule_config *s, int64_t n)
{
    int64_t times = n;
    if (s->kind == DSC_SCHEDULE_STEP)
        times = n / s->step_size;
    if (s->kind == DSC_SCHEDULE_MULTI_STEP)
        for (times = 0; times < s->milestone_count && s->milestone[times] <= n;)
            times++;
    return pow(s->gamma, (double)times);
}

/* Units of the whole run, 0: not known. */
static int64_t units_of_run(const dsc_schedule_config *s)
{
    return s->total_num_steps == DSC_AUTO_I64 ? 0 : (s->total_num_steps + s->unit_steps - 1) / s->unit_steps;
}

/* Half a cosine down to eta_min; torch's goes up again behind T_max, here the last rate stays. */
static double annealed_lr(const dsc_schedule_config *s, double lr, int64_t n)
{
    const int64_t run = units_of_run(s), most = s->t_max > 0 ? s->t_max : run - s->linear_steps;
    if (s->t_max == 0 && run == 0)
        return lr;
    const double progress = most > 0 ? fmin(1.0, (double)n / (double)most) : 1.0;
    return s->eta_min + (lr - s->eta_min) * (1.0 + cos(pi * progress)) / 2.0;
}

/* As SequentialLR of LinearLR and of the schedule: step s has the rate after s - 1 units. */
static double torchs_lr(const dsc_schedule_config *s, double lr, int64_t step)
{
    const int64_t n = s->unit_steps > 0 ? (step - 1) / s->unit_steps : 0;
    if (n < s->linear_steps)
        return lr * (s->linear_factor + (1.0 - s->linear_factor) * (double)n / (double)s->linear_steps);
    const int64_t after = n - s->linear_steps;
    return s->kind == DSC_SCHEDULE_COSINE_ANNEALING ? annealed_lr(s, lr, after) : lr * step_factor(s, after);
}

/* ---- all ---- */

static double range_lr(const dsc_schedule_config *s, double i)
{
    const double interval = (i + 1.0) / (double)s->range_step_size;
    return s->range_min_lr * (1.0 + s->range_step_rate * (s->range_staircase ? floor(interval) : interval));
}

/* The optimizer's rate after the schedule was constructed. */
static double first_lr(const dsc_config *config)
{
    const dsc_schedule_config *s = &config->schedule;
    if (s->last_batch_iteration != -1)
        return config->optimizer.lr;
    switch (s->kind) {
    case DSC_SCHEDULE_WARMUP: case DSC_SCHEDULE_WARMUP_DECAY: return s->warmup_min_lr;
    case DSC_SCHEDULE_WARMUP_COSINE: return 0.0;
    case DSC_SCHEDULE_ONE_CYCLE: return s->cycle_min_lr;
    case DSC_SCHEDULE_LR_RANGE_TEST: return s->range_min_lr;
    default: return config->optimizer.lr;
    }
}

/* The batch iteration that step s > 1 uses; exact in a double. */
static double iteration_of(const dsc_schedule_config *s, int64_t step)
{
    return (double)s->last_batch_iteration + (double)(step - 1);
}

/* transformers' Adafactor makes its own. */
static double relative_lr(const dsc_optimizer_config *o, int64_t step)
{
    return fmin(o->adafactor.warmup_init ? 1e-6 * (double)step : o->lr, 1.0 / sqrt((double)step));
}

static double unscaled_lr(const dsc_config *config, int64_t step)
{
    const dsc_schedule_config *s = &config->schedule;
    if (config->optimizer.kind == DSC_OPTIMIZER_ADAFACTOR && config->optimizer.adafactor.relative_step)
        return relative_lr(&config->optimizer, step);
    if (s->kind == DSC_SCHEDULE_NONE)
        return config->optimizer.lr;
    if (s->kind >= DSC_SCHEDULE_CONSTANT)
        return config->optimizer.lr * own_ratio(s, (double)(step - 1));
    if (s->kind >= DSC_SCHEDULE_STEP)
        return torchs_lr(s, config->optimizer.lr, step);
    if (step <= 1)
        return first_lr(config);
    const double i = iteration_of(s, step);
    switch (s->kind) {
    case DSC_SCHEDULE_WARMUP: case DSC_SCHEDULE_WARMUP_DECAY:
        return s->warmup_min_lr + (s->warmup_max_lr - s->warmup_min_lr) * warmup_gamma(s, i);
    case DSC_SCHEDULE_WARMUP_COSINE: return config->optimizer.lr * cosine_ratio(s, i);
    case DSC_SCHEDULE_ONE_CYCLE: return cycle_lr(s, i);
    default: return range_lr(s, i);
    }
}

double dsc_schedule_lr(const dsc_config *config, int64_t step)
{
    return config->lr_scale * unscaled_lr(config, step);
}

static bool cycles_momentum(const dsc_config *config, int64_t step)
{
    const dsc_schedule_config *s = &config->schedule;
    /* DeepSpeed's cycles betas, and leaves an optimizer without any alone. */
    const dsc_recipe recipe = config->optimizer.recipe;
    return s->kind == DSC_SCHEDULE_ONE_CYCLE && s->cycle_momentum &&
           (recipe == DSC_RECIPE_ADAMW || recipe == DSC_RECIPE_LION || dsc_recipes[recipe].step == DSC_RECIPE_LAMB) &&
           (step > 1 || s->last_batch_iteration == -1);
}

double dsc_schedule_beta1(const dsc_config *config, int64_t step)
{
    if (!cycles_momentum(config, step))
        return config->optimizer.beta1;
    return step <= 1 ? config->schedule.cycle_min_mom
                     : cycle_momentum(&config->schedule, iteration_of(&config->schedule, step));
}

double dsc_schedule_beta2(const dsc_config *config, int64_t step)
{
    return cycles_momentum(config, step) ? 0.99 : config->optimizer.beta2;
}
