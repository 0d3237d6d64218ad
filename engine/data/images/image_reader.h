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

/* Upper bound of a reader's bytes: of encoded pictures of this many pixels; of pictures of files of this size, which
 * are changed to the model's. */
static inline int64_t dsc_image_reader_encoded_bytes(int64_t pixels_max)
{
    return DSC_IMAGE_FILE_BYTES_MAX + DSC_IMAGE_DECODER_BYTES * pixels_max;
}
static inline int64_t dsc_image_reader_file_bytes(int64_t bytes, int64_t pixels, int64_t model_pixels)
{
    return bytes +
           DSC_IMAGE_CHANNELS * (2 * pixels + 2 * model_pixels); /* as decoded, between two passes, the result */
}

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
