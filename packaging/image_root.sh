#!/usr/bin/env bash
# usage: image_root.sh TARBALL FOLDER [SYSTEM]
# Fills FOLDER with what the programs of a tarball of ddprun need to run: the C library of this
# machine, or of the Debian system in the folder SYSTEM, and how it looks up names.
set -euo pipefail
[ $# -eq 2 ] || [ $# -eq 3 ] || { sed -n 's/^# //p' "$0" | head -3 >&2; exit 2; }
tarball=$1
root=$2
system=${3:-}
mkdir -p "$root"/{etc,tmp,usr/libexec/ddprun,usr/share/doc}
chmod 1777 "$root/tmp"
tar -xzf "$tarball" -C "$root" --strip-components 1 --wildcards '*/bin/*' '*/share/d*'
cp -a "$root"/bin/* "$root/usr/libexec/ddprun/"
cp -a "$root/share/doc/ddprun" "$root/usr/share/doc/"
cp -a "$root/share/ddprun" "$root/usr/share/"
gzip -9n "$root/usr/share/doc/ddprun/THIRD_PARTY_LICENSES.txt"
rm -rf "${root:?}/bin" "${root:?}/share"
# The loader at the path that is written into the programs, and beside it what they and it load.
loader=$(readelf -l "$root/usr/libexec/ddprun/ddprun" |
    sed -n 's/.*program interpreter: \(.*\)]/\1/p')
real_loader=$(readlink -f "$system$loader")
libraries=$(dirname "$real_loader")
install -D "$real_loader" "$root$loader"
for name in libc.so.6 libm.so.6 libdl.so.2 libpthread.so.0 librt.so.1 libresolv.so.2 \
    libnss_dns.so.2 libnss_files.so.2; do
    install -D -m 755 "$(readlink -f "$libraries/$name")" "$root${libraries#"$system"}/$name"
done
printf 'hosts: files dns\n' >"$root/etc/nsswitch.conf"
printf 'root:x:0:0:root:/:/usr/libexec/ddprun/ddprun\n' >"$root/etc/passwd"
