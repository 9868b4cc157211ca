#!/usr/bin/env bash
# Exit code 0: this machine has NVIDIA's driver.
set -uo pipefail
# Not in a pipe: grep ends first, and the signal that ends ldconfig would be the result.
[ -e /dev/nvidiactl ] || grep -q '\<libcuda\.so\.1\>' <<<"$(/sbin/ldconfig -p)"
