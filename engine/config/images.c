/* images.c - the section "dsc.images". SPDX-License-Identifier: Apache-2.0 */
#include "engine/config/internal.h"

/* Numbers of a list, `least` to `most` of them, each between low and high. */
static dsc_status fill_numbers(dsc_config_parse_state *s, int id, int least, int most, double low, double high,
                               double *out, int *count)
{
    bool from_text, good = true;
    int found = 0;
    if (!dsc_config_has(s, id))
        return DSC_OK;
    for (const cJSON *each = s->given[id]->child; each != NULL && good; each = each->next) {
        good =
            found < most && dsc_value_float(each, &out[found], &from_text) && out[found] >= low && out[found] <= high;
        found++;
    }
    *count = found;
    return good && found >= least
               ? DSC_OK
               : dsc_config_fail(s, id, DSC_ERR_CONFIG, "expected a list of %d to %d numbers from %g to %g", least,
                                 most, low, high);
}

static dsc_status fill_range(dsc_config_parse_state *s, int id, double least, double most, double out[2])
{
    int count = 2;
    DSC_TRY(fill_numbers(s, id, 2, 2, least, most, out, &count));
    return out[0] <= out[1] ? DSC_OK
                            : dsc_config_fail(s, id, DSC_ERR_CONFIG,
                                              "the first number is above the second; expected the "
                                              "smallest and the largest");
}

dsc_status dsc_config_fill_images(dsc_config_parse_state *s)
{
    dsc_images_section *images = &s->config->own.images;
    int jitters = 0;
    images->scale[0] = 0.08, images->scale[1] = 1;
    images->ratio[0] = 3.0 / 4, images->ratio[1] = 4.0 / 3;
    for (int id = 0; id < DSC_KEY_COUNT; id++)
        images->enabled = images->enabled ||
                          ((id == DSC_ID_IMAGES || dsc_config_key_is_in(id, "dsc.images")) && s->given[id] != NULL);
    images->skip_broken = dsc_config_choice_or(s, DSC_ID_IMAGES_BROKEN, 0) == 1;
    images->filter = dsc_config_choice_or(s, DSC_ID_IMAGES_INTERPOLATION, -1) + 1;
    DSC_TRY(fill_range(s, DSC_ID_IMAGES_SCALE, 1e-6, 1, images->scale));
    DSC_TRY(fill_range(s, DSC_ID_IMAGES_RATIO, 0.01, 100, images->ratio));
    DSC_TRY(fill_numbers(s, DSC_ID_IMAGES_JITTER, 0, 4, 0, 10, images->jitter, &jitters));
    int rand_numbers = 2;
    DSC_TRY(fill_numbers(s, DSC_ID_IMAGES_RAND_AUGMENT, 2, 2, 0, 30, images->rand_augment, &rand_numbers));
    if (images->rand_augment[0] > 16 || images->rand_augment[0] != (int)images->rand_augment[0] ||
        images->rand_augment[1] != (int)images->rand_augment[1])
        return dsc_config_fail(s, DSC_ID_IMAGES_RAND_AUGMENT, DSC_ERR_CONFIG,
                               "expected two whole numbers: operations up to 16, and a level up to 30");
    if (images->jitter[3] > 0.5)
        return dsc_config_fail(s, DSC_ID_IMAGES_JITTER, DSC_ERR_CONFIG, "the hue changes by at most 0.5");
    DSC_TRY(fill_numbers(s, DSC_ID_IMAGES_MEAN, 1, DSC_IMAGE_PLANES_MAX, -1e6, 1e6, images->mean, &images->mean_count));
    return fill_numbers(s, DSC_ID_IMAGES_STD, 1, DSC_IMAGE_PLANES_MAX, 1e-6, 1e6, images->std, &images->std_count);
}
