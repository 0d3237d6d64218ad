/* folder.c - the folder of a monitor that writes files. SPDX-License-Identifier: Apache-2.0 */
#include "engine/monitor/monitor.h"

dsc_status dsc_monitor_make_folder(dsc_monitor *monitor, const char *parent, const char *name, dsc_error *err)
{
    const char *above = parent != NULL && parent[0] != 0 ? parent : ".";
    if (dsc_path_join(monitor->folder, sizeof monitor->folder, above, name, NULL) != DSC_OK)
        return DSC_FAIL(err, DSC_ERR_INPUT, monitor->ops->name, "the path of its folder is longer than %zu bytes: "
                        "%.100s...", sizeof monitor->folder - 1, above);
    DSC_TRY(dsc_io_make_dirs(monitor->io, monitor->folder, err));
    return dsc_io_probe_dir(monitor->io, monitor->folder, err);
}
