/* json_out.h - values as JSON text, appended to a buffer. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_DATA_SFT_JSON_OUT_H
#define DSC_ENGINE_DATA_SFT_JSON_OUT_H

#include <cjson/cJSON.h>

#include "engine/text/buffer.h"

DSC_MUST_USE dsc_status dsc_json_out_raw(dsc_text *out, const char *text, dsc_error *err);
/* A quoted string. `bytes` of valid UTF-8. */
DSC_MUST_USE dsc_status dsc_json_out_text(dsc_text *out, const char *text, int64_t bytes, dsc_error *err);
/* Any value of base/formats/json.h; an integer stays one, and another number gets a point or an exponent. */
DSC_MUST_USE dsc_status dsc_json_out_value(dsc_text *out, const cJSON *value, dsc_error *err);

#endif
