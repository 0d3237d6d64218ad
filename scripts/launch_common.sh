# launch_common.sh - checks that the launch scripts share; sourced, with $root set. SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
launcher=${DSC_LAUNCH:-$root/bin/dsc-launch}

refuse() { echo "dsc: error: $1: $2" >&2; }

check_name() {
    case $2 in
        '' | -*) refuse "$1" "\"$2\" is not a name"; exit 2 ;;
    esac
}

check_strategy() {
    case $1 in
        ddp | fsdp_stage2 | fsdp_stage3) ;;
        *) refuse STRATEGY "\"$1\"; expected ddp, fsdp_stage2 or fsdp_stage3"; exit 2 ;;
    esac
}

# check_count NAME VALUE MAX: a whole number from 1 to MAX
check_count() {
    if ! [[ $2 =~ ^[0-9]{1,9}$ ]] || [ "$((10#$2))" -lt 1 ] || [ "$((10#$2))" -gt "$3" ]; then
        refuse "$1" "\"$2\" is not a whole number from 1 to $3"
        exit 2
    fi
}

[ -x "$launcher" ] || { refuse dsc-launch "$launcher is not there; run make first"; exit 2; }
