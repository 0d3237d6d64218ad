/* image_reader.h - one thread's way from a picture in a file to the bytes that the model sees.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_ENGINE_DATA_IMAGES_IMAGE_READER_H
#define DSC_ENGINE_DATA_IMAGES_IMAGE_READER_H

#include "engine/data/images/augment.h"
#include "engine/data/images/list.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Zeroed: closed. */
typedef struct dsc_image_reader {
    dsc_image_decoder *decoder;
    dsc_augmenter augmenter;
    uint8_t *data; /* of a file, [room] */
    int64_t room;
    dsc_image from, out; /* decoded, and what the model sees */
} dsc_image_reader;

DSC_MUST_USE dsc_status dsc_image_reader_open(int64_t pixels_max, dsc_image_reader *out, dsc_error *err);
void dsc_image_reader_close(dsc_image_reader *reader);
/* reader->out <- picture i of a list. `dct_scaling`: a JPEG file may be decoded to a smaller size. */
DSC_MUST_USE dsc_status dsc_image_reader_encoded(dsc_image_reader *reader, const dsc_image_list *list, int64_t i,
                                                 const dsc_image_transform *transform, bool dct_scaling,
                                                 const dsc_image_key *key, dsc_error *err);
/* Room for a picture of `bytes` bytes at reader->data. */
DSC_MUST_USE dsc_status dsc_image_reader_room(dsc_image_reader *reader, int64_t bytes, dsc_error *err);
/* reader->out <- the picture at reader->data of 1 or 3 channels, which are planes or interleaved. */
DSC_MUST_USE dsc_status dsc_image_reader_pixels(dsc_image_reader *reader, const char *name, int32_t width,
                                                int32_t height, int32_t channels, bool planes,
                                                const dsc_image_transform *transform, const dsc_image_key *key,
                                                dsc_error *err);

#ifdef __cplusplus
}
#endif
#endif
