/* signals.c - see signals.h. SPDX-License-Identifier: Apache-2.0 */
#include "signals.h"

#include <sched.h>
#include <signal.h>
#include <stdatomic.h>

#include "progress.h"

/* Schedulers stop a rank in several ways at once: scancel signals the task, and also the srun that forwards the signal.
 * A signal within `same_ns` after the first belongs to the same request, and a later one ends the run at once. A user
 * who presses Ctrl-C again means the end, so its time only covers a launcher that forwards what the terminal sends. */
static const struct stop_signal {
    int number;
    uint32_t request;
    const char *name;
    int64_t same_ns;
} stop_signals[] = {
    { SIGTERM, 2, "SIGTERM", INT64_C(2000000000) },
    { SIGINT, 4, "SIGINT", INT64_C(100000000) },
    { SIGHUP, 8, "SIGHUP", INT64_C(2000000000) },
};
enum { STOP_SIGNALS = sizeof stop_signals / sizeof *stop_signals };

static dsc_engine *_Atomic asked_engine; /* NULL: not training */
static atomic_int handlers_running;      /* on any thread */
static _Atomic int64_t stop_asked_ns;    /* 0: not yet */
static atomic_bool leaves_on_term, leave_asked;

static void end_if_asked_again(const struct stop_signal *stop)
{
    int64_t first = 0;
    const int64_t now = train_now_ns();
    if (atomic_compare_exchange_strong(&stop_asked_ns, &first, now) || now - first < stop->same_ns)
        return;
    signal(stop->number, SIG_DFL);
    raise(stop->number);
}

static void on_signal(int number)
{
    uint32_t request = TRAIN_REQUEST_SAVE;
    handlers_running++;
    if (number == SIGTERM && leaves_on_term) {
        leave_asked = true;
        request = TRAIN_REQUEST_WORLD;
        number = 0;
    }
    for (int i = 0; i < STOP_SIGNALS; i++)
        if (number == stop_signals[i].number) {
            request = stop_signals[i].request;
            end_if_asked_again(&stop_signals[i]);
        }
    dsc_engine *engine = asked_engine;
    if (engine != NULL)
        dsc_engine_request(engine, request);
    handlers_running--;
}

uint32_t train_signals_request(int number)
{
    for (int i = 0; i < STOP_SIGNALS; i++)
        if (number == stop_signals[i].number)
            return stop_signals[i].request;
    return 0;
}

int train_signals_stop(uint32_t requests)
{
    for (int i = 0; i < STOP_SIGNALS; i++)
        if ((requests & stop_signals[i].request) != 0)
            return stop_signals[i].number;
    return 0;
}

const char *train_signals_name(int number)
{
    const char *name = "";
    for (int i = 0; i < STOP_SIGNALS; i++)
        if (stop_signals[i].number == number)
            name = stop_signals[i].name;
    return name;
}

bool train_signals_leaves(void) { return leave_asked; }

void train_signals_watch(dsc_engine *engine, train_signals_effect effect)
{
    const struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
    struct sigaction before;
    leaves_on_term = effect == TRAIN_SIGNALS_LEAVE;
    asked_engine = engine;
    if (leave_asked)
        dsc_engine_request(engine, TRAIN_REQUEST_WORLD);
    sigaction(SIGUSR1, &action, NULL);
    for (int i = 0; i < STOP_SIGNALS && effect != TRAIN_SIGNALS_END; i++)
        if (sigaction(stop_signals[i].number, NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(stop_signals[i].number, &action, NULL);
}

void train_signals_pause(void)
{
    asked_engine = NULL; /* SIGUSR1 stays caught: late ones must not end a run that is done */
    while (handlers_running > 0)
        sched_yield();
}

void train_signals_unwatch(void)
{
    struct sigaction now;
    for (int i = 0; i < STOP_SIGNALS; i++)
        if (sigaction(stop_signals[i].number, NULL, &now) == 0 && now.sa_handler == on_signal)
            signal(stop_signals[i].number, SIG_DFL);
    train_signals_pause();
}
