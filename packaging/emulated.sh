#!/usr/bin/env bash
# usage: emulated.sh aarch64 COMMAND [ARGUMENT]...
# Runs COMMAND where programs for that processor run as this machine's own do, under qemu-user, and
# what they start, too. It holds in name spaces of COMMAND's own, so the machine stays as it is:
# that needs Linux 6.7. Their C library is sought in the folder that QEMU_LD_PREFIX names.
set -euo pipefail
[ $# -ge 2 ] && [ "$1" = aarch64 ] || { sed -n 's/^# //p' "$0" | head -4 >&2; exit 2; }
qemu=$(command -v "qemu-$1-static") || {
    printf 'emulated: no qemu-%s-static; scripts/setup.sh --full installs it\n' "$1" >&2
    exit 1
}
shift
# A program of 64 bits, of the processor 0xb7, to be run or loaded.
readonly magic='\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00'
readonly mask='\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff'
# F: the emulator is opened now, so that it is there in any root.
exec unshare --user --map-root-user --mount --pid --fork --kill-child --mount-proc sh -c '
    mount -t binfmt_misc binfmt_misc /proc/sys/fs/binfmt_misc &&
        printf %s "$1" >/proc/sys/fs/binfmt_misc/register || {
        echo "emulated: this kernel has no binfmt_misc for a name space (Linux 6.7 has)" >&2
        exit 1
    }
    shift && exec "$@"' - ":ddprun-emulated:M::$magic:$mask:$qemu:F" "$@"
