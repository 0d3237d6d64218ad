#!/usr/bin/env bash
# test_deploy.sh - the Dockerfile's RUN lines, the pods' command, the Ray worker, manifests and fabric settings. TAP.
#
# test_deploy.sh [PATTERN]   only the tests whose name contains it. DSC_TEST_PYTHON names a python3 that has ray, yaml and
# kubernetes-validate; DSC_KUBERAY_CRD KubeRay's ray.io_rayjobs.yaml. SPDX-License-Identifier: Apache-2.0
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${DSC_TEST_PYTHON:-python3}
command -v "$python" >/dev/null || { echo "python3 is needed for these tests"; exit 77; }
export DSC_BIN=${DSC_BIN:-$here/../../bin}
[ -x "$DSC_BIN/dsc-launch" ] || { echo "not ok 1 - $DSC_BIN/dsc-launch is not there"; exit 1; }
exec "$python" -B "$here/launch/deploy.py" "$@"
