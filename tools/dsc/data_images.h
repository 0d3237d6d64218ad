/* data_images.h - `dsc data images`: encoded pictures as one packed file. SPDX-License-Identifier: Apache-2.0 */
#ifndef DSC_TOOLS_DATA_IMAGES_H
#define DSC_TOOLS_DATA_IMAGES_H

#include "tools/dsc/tool.h"

extern const dsc_flag_command dsc_data_images_page;
int dsc_data_images(int argc, char **argv);

#endif
