/* web_plugin.c - lib/dsc/libdsc_web.so: libcurl behind web_api.h. SPDX-License-Identifier: Apache-2.0 */
#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/monitor/web_api.h"

struct dsc_web {
    CURL *curl;
    struct curl_slist *headers;
    char *answer; /* answer of the active request */
    size_t capacity, used;
};

static size_t take(char *from, size_t size, size_t count, void *user)
{
    struct dsc_web *web = user;
    const size_t bytes = size * count,
                 fits = web->capacity - 1 - web->used < bytes ? web->capacity - 1 - web->used : bytes;
    memcpy(web->answer + web->used, from, fits);
    web->used += fits;
    return bytes;
}

static void close_web(dsc_web *web)
{
    if (web == NULL)
        return;
    curl_slist_free_all(web->headers);
    if (web->curl != NULL)
        curl_easy_cleanup(web->curl);
    free(web);
}

static int add_header(dsc_web *web, const char *line)
{
    struct curl_slist *more = curl_slist_append(web->headers, line);
    if (more != NULL)
        web->headers = more;
    return more != NULL;
}

static dsc_web *open_web(const char *token)
{
    char bearer[4096];
    dsc_web *web = calloc(1, sizeof *web);
    if (web == NULL)
        return NULL;
    web->curl = curl_easy_init();
    snprintf(bearer, sizeof bearer, "Authorization: Bearer %s", token != NULL ? token : "");
    if (web->curl == NULL || !add_header(web, "Content-Type: application/json") || !add_header(web, "Expect:") ||
        (token != NULL && !add_header(web, bearer))) {
        close_web(web);
        return NULL;
    }
    return web;
}

static int ask(dsc_web *web, const char *url, const char *body, int limit_s, char *answer, size_t capacity, char *text)
{
    long code = 0;
    char reason[CURL_ERROR_SIZE] = "";
    CURL *curl = web->curl;
    web->answer = answer;
    web->capacity = capacity;
    web->used = 0;
    curl_easy_reset(curl);
    curl_easy_setopt(curl, CURLOPT_URL, url);
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT, (long)limit_s);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, web->headers);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, web);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, reason);
    curl_easy_setopt(curl, CURLOPT_USERAGENT, "dsc");
    if (body != NULL)
        curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body);
    const CURLcode result = curl_easy_perform(curl);
    answer[web->used] = 0;
    if (result != CURLE_OK) {
        snprintf(text, DSC_WEB_TEXT, "%.200s", reason[0] != 0 ? reason : curl_easy_strerror(result));
        return 0;
    }
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &code);
    return (int)code;
}

__attribute__((visibility("default"))) const void *dsc_web_api_get(void)
{
    static const dsc_web_api api = { DSC_WEB_API_VERSION, (uint32_t)sizeof api, DSC_VERSION_TEXT, open_web, ask,
                                     close_web };
    return &api;
}
