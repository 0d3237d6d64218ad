/* mlflow.c - a run in an MLflow server, by its REST API (mlflow.org/docs/latest/rest-api.html, version 2.0).
 *
 * An experiment is found by name; its run has the config's main values as parameters and numbers as metrics by step.
 * The engine's thread puts numbers into a queue and a sender thread sends them, so that no step waits for a server. A
 * server that cannot be reached before the first step is an error. A later failure gets one warning.
 * SPDX-License-Identifier: Apache-2.0 */
#include <ctype.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/formats/json.h"
#include "base/plugin.h"
#include "engine/monitor/monitor.h"
#include "engine/monitor/web_api.h"

enum { QUEUE = 16384, BATCH = 500, BODY_BYTES = 1 << 17, ANSWER_BYTES = 1 << 16, TRIES = 5, CLOSE_TRIES = 3 };
enum { OPEN_LIMIT_S = 10, SEND_LIMIT_S = 30, CLOSE_LIMIT_S = 5 };

typedef struct metric {
    const char *key; /* a tag, which is a constant of the program */
    double value;
    int64_t step, wall_ms;
} metric;

typedef struct mlflow {
    dsc_monitor monitor;
    const dsc_web_api *api;
    dsc_web *web; /* the sender's once it runs */
    char base[512], run_id[64];
    int64_t batch; /* samples of a step */
    pthread_t sender;
    bool running;
    pthread_mutex_t lock; /* protects the next six fields */
    pthread_cond_t changed;
    metric queue[QUEUE];
    int64_t put, sent; /* ever; QUEUE more at most */
    bool closing;
    char failure[300]; /* "": none */
    char body[BODY_BYTES], answer[ANSWER_BYTES]; /* request and answer in progress */
} mlflow;

/* ---- requests ---- */

/* POST to an endpoint, without a body GET. Returns HTTP's status, 0 without an answer; words say what went wrong. */
static int ask(mlflow *m, const char *endpoint, const char *body, int limit_s, char words[DSC_WEB_TEXT])
{
    char url[1024];
    snprintf(url, sizeof url, "%s/api/2.0/mlflow/%s", m->base, endpoint);
    const int code = m->api->ask(m->web, url, body, limit_s, m->answer, sizeof m->answer, words);
    if (code != 0 && code != 200) {
        snprintf(words, DSC_WEB_TEXT, "HTTP %d: %.200s", code, m->answer);
        dsc_text_printable(words);
    }
    return code;
}

static dsc_status refuse(const mlflow *m, const char *words, dsc_error *err)
{
    return DSC_FAIL(err, DSC_ERR_INPUT, "dsc.mlflow.tracking_uri", "%s: %s", m->base, words);
}

/* An id of the answer: letters, digits, '-' and '_' only, as it goes into later requests. */
static dsc_status read_id(mlflow *m, const char *object, const char *part, const char *name, char out[64],
                          dsc_error *err)
{
    const dsc_json_limits limits = { ANSWER_BYTES, 16, 10000 };
    dsc_json *json = NULL;
    DSC_TRY(dsc_json_open(m->monitor.alloc, m->base, m->answer, (int64_t)strlen(m->answer), DSC_JSON_STRICT, &limits,
                          &json, err));
    const cJSON *at = dsc_json_root(json);
    at = object != NULL ? cJSON_GetObjectItemCaseSensitive(at, object) : at;
    at = part != NULL ? cJSON_GetObjectItemCaseSensitive(at, part) : at;
    at = cJSON_GetObjectItemCaseSensitive(at, name);
    bool good = cJSON_IsString(at) && at->valuestring[0] != 0 && strlen(at->valuestring) < 64;
    for (const char *c = good ? at->valuestring : ""; *c != 0; c++)
        good &= isalnum((unsigned char)*c) || *c == '-' || *c == '_';
    if (good)
        snprintf(out, 64, "%s", at->valuestring);
    dsc_json_close(&json);
    return good ? DSC_OK : refuse(m, "the server there is not an MLflow server", err);
}

static dsc_status find_experiment(mlflow *m, const char *name, char id[64], dsc_error *err)
{
    char words[DSC_WEB_TEXT], quoted[2048], endpoint[900] = "experiments/get-by-name?experiment_name=";
    size_t used = strlen(endpoint);
    for (const char *c = name; *c != 0 && used + 4 < sizeof endpoint; c++)
        used += (size_t)snprintf(endpoint + used, sizeof endpoint - used,
                                 isalnum((unsigned char)*c) ? "%c" : "%%%02X", (unsigned char)*c);
    int code = ask(m, endpoint, NULL, OPEN_LIMIT_S, words);
    if (code == 200)
        return read_id(m, "experiment", NULL, "experiment_id", id, err);
    if (code != 404)
        return refuse(m, words, err);
    (void)dsc_json_quote(quoted, sizeof quoted, name);
    snprintf(m->body, sizeof m->body, "{\"name\":%s}", quoted);
    code = ask(m, "experiments/create", m->body, OPEN_LIMIT_S, words);
    return code == 200 ? read_id(m, NULL, NULL, "experiment_id", id, err) : refuse(m, words, err);
}

static dsc_status create_run(mlflow *m, const char *experiment, const char *run_name, dsc_error *err)
{
    char id[64], words[DSC_WEB_TEXT], quoted[2048];
    DSC_TRY(find_experiment(m, experiment, id, err));
    (void)dsc_json_quote(quoted, sizeof quoted, run_name);
    snprintf(m->body, sizeof m->body, "{\"experiment_id\":\"%s\",\"start_time\":%lld,\"run_name\":%s}", id,
             (long long)(dsc_clock_wall_ns() / 1000000), quoted);
    if (ask(m, "runs/create", m->body, OPEN_LIMIT_S, words) != 200)
        return refuse(m, words, err);
    return read_id(m, "run", "info", "run_id", m->run_id, err);
}

/* ---- the sender ---- */

/* "Train/Samples/train_loss" is the metric train_loss, "Validation/Samples/loss" is validation_loss. */
static size_t put_metric(char *out, size_t capacity, const metric *one, bool first)
{
    char value[40];
    if (isfinite(one->value))
        snprintf(value, sizeof value, "%.17g", one->value);
    else /* as Protocol Buffers' JSON has them */
        snprintf(value, sizeof value, "\"%s\"", isnan(one->value) ? "NaN" : one->value > 0 ? "Infinity" : "-Infinity");
    return (size_t)snprintf(out, capacity, "%s{\"key\":\"%s%s\",\"value\":%s,\"timestamp\":%lld,\"step\":%lld}",
                            first ? "" : ",", strncmp(one->key, "Validation/", 11) == 0 ? "validation_" : "",
                            strrchr(one->key, '/') + 1, value, (long long)one->wall_ms, (long long)one->step);
}

/* With the lock. Returns how many of the queue are in the body now. */
static int64_t fill_body(mlflow *m)
{
    const int64_t count = dsc_min_i64(m->put - m->sent, BATCH);
    size_t used = (size_t)snprintf(m->body, sizeof m->body, "{\"run_id\":\"%s\",\"metrics\":[", m->run_id);
    for (int64_t i = 0; i < count; i++)
        used += put_metric(m->body + used, sizeof m->body - used, &m->queue[(m->sent + i) % QUEUE], i == 0);
    snprintf(m->body + used, sizeof m->body - used, "]}");
    return count;
}

/* With the lock, which is given up for a time. */
static void nap(mlflow *m, int64_t ms)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += ms / 1000;
    until.tv_nsec += ms % 1000 * 1000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(&m->changed, &m->lock, &until);
}

/* One batch, tried again when the server does not answer or says that it is its own fault. False: given up. */
static bool send_batch(mlflow *m, int64_t count)
{
    char words[DSC_WEB_TEXT];
    for (int attempt = 1;; attempt++) {
        const int limit_s = m->closing ? CLOSE_LIMIT_S : SEND_LIMIT_S;
        pthread_mutex_unlock(&m->lock);
        const int code = ask(m, "runs/log-batch", m->body, limit_s, words);
        pthread_mutex_lock(&m->lock);
        if (code == 200) {
            m->sent += count;
            return true;
        }
        if (attempt >= (m->closing ? CLOSE_TRIES : TRIES) || (code != 0 && code < 500)) {
            snprintf(m->failure, sizeof m->failure, "%s", words);
            return false;
        }
        nap(m, 200 << attempt);
    }
}

static void *run_sender(void *user)
{
    mlflow *m = user;
    pthread_mutex_lock(&m->lock);
    for (bool good = true; good;) {
        if (m->put == m->sent && m->closing)
            break;
        if (m->put - m->sent < BATCH && !m->closing)
            nap(m, 1000); /* a second's numbers in one request */
        if (m->put > m->sent)
            good = send_batch(m, fill_body(m));
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

/* ---- the monitor ---- */

static dsc_status write_mlflow(dsc_monitor *monitor, int64_t samples, const dsc_scalar *scalars, int count,
                               dsc_error *err)
{
    mlflow *m = (mlflow *)monitor;
    dsc_status status = DSC_OK;
    const int64_t now_ms = dsc_clock_wall_ns() / 1000000;
    pthread_mutex_lock(&m->lock);
    if (m->failure[0] == 0 && m->put - m->sent + count > QUEUE)
        snprintf(m->failure, sizeof m->failure, "the server is slower than the run: %d numbers wait", (int)QUEUE);
    for (int i = 0; i < count && m->failure[0] == 0; i++)
        m->queue[m->put++ % QUEUE] =
            (metric){ scalars[i].tag, scalars[i].value, samples / dsc_max_i64(m->batch, 1), now_ms };
    if (m->failure[0] != 0)
        status = DSC_FAIL(err, DSC_ERR_IO, m->base, "%s", m->failure);
    if (m->put - m->sent >= BATCH)
        pthread_cond_signal(&m->changed);
    pthread_mutex_unlock(&m->lock);
    return status;
}

/* Parameters of the run, before the sender starts: nobody else uses the connection yet. */
static void describe_mlflow(dsc_monitor *monitor, const dsc_monitor_about *about)
{
    mlflow *m = (mlflow *)monitor;
    char words[DSC_WEB_TEXT], quoted[1024];
    m->batch = about->batch;
    (void)dsc_json_quote(quoted, sizeof quoted, about->model);
#define PARAM(name, value) "{\"key\":\"" name "\",\"value\":" value "}"
    snprintf(m->body, sizeof m->body,
             "{\"run_id\":\"%s\",\"params\":[" PARAM("model", "%s") "," PARAM("zero_stage", "\"%d\"") ","
             PARAM("ranks", "\"%d\"") "," PARAM("train_batch_size", "\"%lld\"") "," PARAM("device", "\"%s\"") ","
             PARAM("transport", "\"%s\"") "," PARAM("numerics", "\"%s\"") "],\"tags\":["
             PARAM("dsc.version", "\"%s\"") "]}", m->run_id, quoted, (int)about->zero_stage, (int)about->ranks,
             (long long)about->batch, about->device, about->transport, about->numerics, DSC_VERSION_TEXT);
#undef PARAM
    if (ask(m, "runs/log-batch", m->body, OPEN_LIMIT_S, words) != 200)
        snprintf(m->failure, sizeof m->failure, "%s", words);
    else if (pthread_create(&m->sender, NULL, run_sender, m) != 0)
        snprintf(m->failure, sizeof m->failure, "no thread to send numbers");
    else
        m->running = true;
}

static void close_mlflow(dsc_monitor *monitor)
{
    mlflow *m = (mlflow *)monitor;
    char words[DSC_WEB_TEXT];
    if (m->running) {
        pthread_mutex_lock(&m->lock);
        m->closing = true;
        pthread_cond_signal(&m->changed);
        pthread_mutex_unlock(&m->lock);
        pthread_join(m->sender, NULL);
    }
    if (m->web != NULL && m->run_id[0] != 0) {
        snprintf(m->body, sizeof m->body, "{\"run_id\":\"%s\",\"status\":\"%s\",\"end_time\":%lld}", m->run_id,
                 monitor->run_failed ? "FAILED" : "FINISHED", (long long)(dsc_clock_wall_ns() / 1000000));
        (void)ask(m, "runs/update", m->body, CLOSE_LIMIT_S, words); /* the server keeps it as running */
    }
    if (m->api != NULL)
        m->api->close(m->web);
    pthread_cond_destroy(&m->changed);
    pthread_mutex_destroy(&m->lock);
    dsc_alloc_free(monitor->alloc, monitor);
}

dsc_status dsc_monitor_mlflow(dsc_alloc *alloc, const char *uri, const char *experiment, const char *run_name,
                              dsc_monitor **out, dsc_error *err)
{
    static const dsc_monitor_ops ops = { .name = "dsc.mlflow",
                                         .write = write_mlflow,
                                         .describe = describe_mlflow,
                                         .close = close_mlflow };
    static const dsc_plugin plugin = { .key = "dsc.mlflow.tracking_uri",
                                       .file = "libdsc_web.so",
                                       .package = "libcurl4-openssl-dev (make deps-http)",
                                       .instead = "take the key out",
                                       .symbol = DSC_WEB_SYMBOL,
                                       .version = DSC_WEB_API_VERSION,
                                       .table_bytes = sizeof(dsc_web_api) };
    const void *api = NULL;
    mlflow *m = NULL;
    if (strncmp(uri, "http://", 7) != 0 && strncmp(uri, "https://", 8) != 0)
        return DSC_FAIL(err, DSC_ERR_CONFIG, "dsc.mlflow.tracking_uri",
                        "\"%.80s\" is not an http:// or https:// address "
                        "of a server; for a folder of files: mlflow server --backend-store-uri DIR",
                        uri);
    DSC_TRY(dsc_plugin_table(&plugin, &api, err));
    DSC_TRY(dsc_alloc_zeroed(alloc, DSC_TAG_CONTROL, 1, sizeof *m, &m, err));
    m->monitor.ops = &ops;
    m->monitor.alloc = alloc;
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->changed, NULL);
    *out = &m->monitor;
    m->api = api;
    m->web = m->api->open(getenv("MLFLOW_TRACKING_TOKEN"));
    if (m->web == NULL)
        return DSC_FAIL(err, DSC_ERR_NOMEM, "dsc.mlflow.tracking_uri", "out of host memory");
    snprintf(m->base, sizeof m->base, "%s", uri);
    for (size_t n = strlen(m->base); n > 0 && m->base[n - 1] == '/'; n--)
        m->base[n - 1] = 0;
    return create_run(m, experiment, run_name, err);
}
