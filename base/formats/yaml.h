/* yaml.h - a YAML text as a dsc_json document: the data that JSON could express, and nothing else of YAML.
 *
 * Read: mappings, sequences, plain, quoted and block scalars, comments. Plain scalars are what YAML 1.2's core schema
 * says (null, true, false, decimal numbers, else text), and a number as JSON writes it (5e8, 1e-4) is one here too.
 * Refused: anchors, aliases, tags, merge keys, several documents, keys other than text, .nan and .inf. None of them is
 * data, and with some of them small files become large ones or run code. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_BASE_FORMATS_YAML_H
#define DSC_BASE_FORMATS_YAML_H

#include "base/formats/json.h"

#ifdef __cplusplus
extern "C" {
#endif

/* As dsc_json_open in its CONFIG dialect: the same limits, refusals, places and errors. */
DSC_MUST_USE dsc_status dsc_yaml_open(dsc_alloc *alloc, const char *name, const char *text, int64_t bytes,
                                      const dsc_json_limits *limits, dsc_json **out, dsc_error *err);
/* The same data as a JSON text. The caller owns *out_text (dsc_alloc_free). */
DSC_MUST_USE dsc_status dsc_yaml_to_json(dsc_alloc *alloc, const char *name, const char *text, int64_t bytes,
                                         const dsc_json_limits *limits, char **out_text, int64_t *out_bytes,
                                         dsc_error *err);
/* "x.yaml" or "x.yml", in any case. */
bool dsc_yaml_is_name(const char *name);

#ifdef __cplusplus
}
#endif
#endif
