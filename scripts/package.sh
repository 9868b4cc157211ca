#!/usr/bin/env bash
# Makes what users install: a wheel, a Debian package, a tarball.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
    cat <<'TEXT'
usage: scripts/package.sh [--wheel-only] [--arch ARCH] [--with-tests] [--maintainer WHO] [--jobs N]

Compiles every program of ddprun for glibc 2.28 and newer, with all but the C library inside, and
makes into build/package:

  ddprun-VERSION-py3-none-manylinux_2_28_ARCH.whl   the programs, and `import ddprun`
  ddprun_VERSION_DEBIAN-ARCH.deb                    with a systemd service of the rendezvous
  ddprun-VERSION-linux-ARCH.tar.gz                  to unpack anywhere

Then checks them: symbol versions, auditwheel, twine, lintian. What they are made of is in
packaging/sources.txt, with sums. It runs on x86-64; what it makes for arm64, it runs under
qemu-user (scripts/setup.sh --full installs that).

It says which step it is at, of how many, and how far the step is. What a step's programs write is
in build/package/ARCH/log; of a step that fails the end of that is shown.

  --wheel-only   only the wheel and its checks: no man pages, no .deb, no tarball
  --arch         x86_64, as when not given, or aarch64
  --with-tests   also compiles the unit and scenario tests so, and runs them
  --maintainer   'NAME <ADDRESS>' of who publishes the packages, and answers for them; without it
                 they say that nobody does
  --jobs         compilations at once; one per processor unless given
  --help         this text
TEXT
}

# A step's own output goes into its log, and these lines past it.
exec 3>&1 4>&2
clear_line=
columns=160
if [ -t 3 ]; then
    clear_line=$'\r\033[K'
    columns=$(($(stty size <&3 | cut -d ' ' -f 2) - 1))
    [ "$columns" -gt 0 ] || columns=79
fi
readonly clear_line columns
say() { printf '%spackage: %s\n' "$clear_line" "$*" >&3; }
reason=
die() { reason="package: $*"; exit 1; }

arch=x86_64
wheel_only=no
with_tests=no
readonly nobody='an unpublished build <nobody@ddprun.invalid>'
maintainer=$nobody
jobs=$(nproc)
while [ $# -gt 0 ]; do
    case "$1" in
        --arch) arch=${2:-}; shift 2 ;;
        --wheel-only) wheel_only=yes; shift ;;
        --with-tests) with_tests=yes; shift ;;
        --maintainer) maintainer=${2:-}; shift 2 ;;
        --jobs) jobs=${2:-}; shift 2 ;;
        --help | -h) usage; exit 0 ;;
        *) printf 'package: unknown option %s; see scripts/package.sh --help\n' "$1" >&2; exit 2 ;;
    esac
done
case "$arch" in
    x86_64) debian_arch=amd64 ;;
    aarch64) debian_arch=arm64 ;;
    *)
        printf 'package: --arch %s: it is x86_64 or aarch64\n' "$arch" >&2
        exit 2
        ;;
esac
[[ $maintainer =~ ^[^\<\>@,]+\ \<[^\<\>@\ ]+@[^\<\>@\ ]+\>$ ]] || {
    printf "package: --maintainer %s: it is 'NAME <ADDRESS>'\n" "$maintainer" >&2
    exit 2
}
readonly arch debian_arch maintainer

# Before the reason of a failure: what the programs of its step wrote last.
step_log=
show_failure() {
    local status=$?
    [ "$status" -ne 0 ] || return 0
    if [ -n "$step_log" ]; then
        printf '%s' "$clear_line" >&4
        tail -n 40 "$step_log" >&4
        printf 'package: failed after %d s; the whole log: %s\n' "$SECONDS" "$step_log" >&4
    fi
    [ -z "$reason" ] || printf '%s\n' "$reason" >&4
}
trap show_failure EXIT

readonly machine=$(uname -m)
readonly emulator=qemu-$arch-static
[ "$machine" = x86_64 ] || die "this is $machine: the compiler of packaging/sources.txt is x86-64's"
[ "$arch" = "$machine" ] || command -v "$emulator" >/dev/null ||
    die "no $emulator to run programs of $arch: scripts/setup.sh --full installs it"
readonly glibc=2.28
readonly top=$PWD/build/package
readonly folder=$top/$arch
readonly sources=$top/sources
readonly tools=$top/tools
version=$(sed -n 's/^project(ddprun VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
readonly version
mkdir -p "$sources" "$folder/log"

# A step is `FUNCTION WHAT`. step() runs one; report_ticks() speaks while it runs.
steps=()
step=0
readonly tick_seconds=5

# step FUNCTION WHAT: the function's output goes into its log.
step() {
    local began=$SECONDS tick ticker
    step=$((step + 1))
    step_log=$folder/log/$1.log
    say "$step of ${#steps[@]}: $2"
    : >"$step_log"
    exec {tick}> >(report_ticks "$step of ${#steps[@]}: $2")
    ticker=$!
    "$1" >"$step_log" 2>&1 {tick}>&-
    exec {tick}>&-
    wait "$ticker" || true
    say "$step of ${#steps[@]}: $2: done in $((SECONDS - began)) s"
    step_log=
}

# report_ticks WHAT: until its input ends, says every few seconds how long the step has run and the
# last line of its log. On a terminal it is one line that changes.
report_ticks() {
    local began=$SECONDS status line line_end='\n'
    [ -z "$clear_line" ] || line_end=
    while true; do
        status=0
        read -r -t "$tick_seconds" || status=$?
        [ "$status" -gt 128 ] || return 0
        line="package: $1, $((SECONDS - began)) s: "
        line+=$(tail -n 1 "$step_log" | tr -cd '[:print:]')
        printf "%s%s$line_end" "$clear_line" "${line:0:columns}" >&3
    done
}

# apt_get WORD...: for the processor of the packages, with lists of its own, which a machine may
# lack, and which stay as they are.
apt_get() {
    local state=$folder/apt
    mkdir -p "$state/lists/partial" "$state/cache/archives/partial"
    touch "$state/status"
    # As apt's own user it could not write here.
    apt-get -qq -o APT::Architecture="$debian_arch" -o APT::Architectures="$debian_arch" \
        -o Dir::State="$state" -o Dir::State::status="$state/status" -o Dir::Cache="$state/cache" \
        -o APT::Sandbox::User=root "$@"
}

# fetch KIND NAME VERSION SUM: leaves the file's path in $fetched.
fetch() {
    local kind=$1 name=$2 wanted=$3 sum=$4 file
    fetched=$sources/$name-$sum
    [ -f "$fetched" ] && return
    local into
    into=$(mktemp -d "$sources/fetch.XXXXXX")
    say "fetching $name $wanted"
    case "$kind" in
        deb)
            [ -d "$folder/apt" ] || apt_get update || die "cannot fetch Debian's lists of packages"
            (cd "$into" && apt_get download "$name=$wanted")
            ;;
        src)
            # Upstream's bytes lie beside Debian's package of the library.
            [ -d "$folder/apt" ] || apt_get update || die "cannot fetch Debian's lists of packages"
            local uri
            uri=$(apt_get --print-uris download "$name-dev=$wanted" | cut -d"'" -f2)
            /usr/lib/apt/apt-helper -qq -o APT::Sandbox::User=root download-file \
                "${uri%/*}/${name}_${wanted%-*}.orig.tar.gz" "$into/source" "SHA256:$sum"
            ;;
        pip) "$tools/bin/pip" download --progress-bar off --disable-pip-version-check --no-deps \
            --only-binary :all: --dest "$into" "$name==$wanted" ;;
    esac || die "cannot fetch $name $wanted: is it still there? See packaging/sources.txt"
    file=$(find "$into" -type f)
    printf '%s  %s\n' "$sum" "$file" | sha256sum --check --quiet - ||
        die "$name $wanted is not what packaging/sources.txt says: $(sha256sum "$file")"
    mv "$file" "$fetched"
    rmdir "$into"
}

# Lays out compiler/ and root/ (headers, static libraries, licences), anew when something changed.
lay_out() {
    local mark kind name wanted its_arch sum zig
    mark=$(sha256sum packaging/sources.txt scripts/package.sh | sha256sum)
    [ "$(cat "$folder/laid-out" 2>/dev/null)" = "$mark" ] && return
    printf 'removing what was laid out before\n'
    rm -rf "$folder/root" "$folder/runs-in" "$folder/compiler" "$folder/apt" \
        "$folder/prometheus-cpp"
    mkdir -p "$folder/root" "$folder/runs-in" "$folder/compiler"
    while read -r kind name wanted its_arch sum; do
        case "$kind:$its_arch" in
            '#'* | :) continue ;;
            deb:all | deb:"$debian_arch")
                fetch "$kind" "$name" "$wanted" "$sum"
                printf 'unpacking %s\n' "$name"
                dpkg-deb --extract "$fetched" "$folder/root"
                ;;
            src:*)
                fetch "$kind" "$name" "$wanted" "$sum"
                mkdir -p "$folder/$name"
                tar --extract --strip-components=1 --file "$fetched" --directory "$folder/$name"
                ;;
            run:"$debian_arch")
                fetch deb "$name" "$wanted" "$sum"
                dpkg-deb --extract "$fetched" "$folder/runs-in"
                ;;
            pip:*)
                fetch "$kind" "$name" "$wanted" "$sum"
                printf 'unpacking %s\n' "$name"
                [ -d "$top/$name-$sum" ] || python3 -m zipfile -e "$fetched" "$top/$name-$sum"
                zig=$top/$name-$sum/ziglang/zig
                chmod +x "$zig"
                ;;
        esac
    done <packaging/sources.txt
    local tool
    # No path of this checkout is in them: ccache takes what another one has compiled.
    local start
    start=$(printf '#!/bin/sh\nexec "${0%%/*}/../../%s"' "${zig#"$top"/}")
    # By itself zig looks for undefined behaviour in what is not optimised, as tests are.
    printf '%s c++ -target %s-linux-gnu.%s -fno-sanitize=undefined "$@"\n' "$start" "$arch" \
        "$glibc" >"$folder/compiler/clang++"
    for tool in ar ranlib; do
        printf '%s %s "$@"\n' "$start" "$tool" >"$folder/compiler/$tool"
    done
    chmod +x "$folder"/compiler/*
    # What is linked is inside: the names of shared libraries would come first.
    find "$folder/root" -name '*.so' -delete
    cp -r "$folder/root/usr/include/$arch-linux-gnu"/* "$folder/root/usr/include/"
    compile_prometheus
    licences "$(dirname "$zig")" >"$folder/THIRD_PARTY_LICENSES.txt"
    printf '%s\n' "$mark" >"$folder/laid-out"
}

# The compiler is a line with the compiler's sum in it: laid out anew, it is the same one.
export CCACHE_COMPILERCHECK=content CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
# Puts the library that /metrics is made by, and its headers, beside the others in root/.
compile_prometheus() {
    local into=$folder/prometheus-cpp-build ccache
    rm -rf "$into"
    ccache=$(command -v ccache || true)
    DDPRUN_PACKAGE_FOLDER=$folder DDPRUN_PACKAGE_PROCESSOR=$arch \
        cmake -S "$folder/prometheus-cpp" -B "$into" -G Ninja -Wno-dev \
        -DCMAKE_TOOLCHAIN_FILE="$PWD/packaging/toolchain.cmake" -DCMAKE_BUILD_TYPE=Release \
        -DCMAKE_CXX_FLAGS_RELEASE=-O2 -DBUILD_SHARED_LIBS=OFF -DENABLE_PUSH=OFF -DENABLE_PULL=OFF \
        -DENABLE_TESTING=OFF -DENABLE_COMPRESSION=OFF -DCMAKE_INSTALL_LIBDIR=lib \
        -DCMAKE_CXX_COMPILER_LAUNCHER="$ccache" || die "prometheus-cpp cannot be configured"
    nice ninja -C "$into" -j "$jobs" || die "prometheus-cpp cannot be compiled"
    cmake --install "$into" --prefix "$folder/root/usr"
}

# licences ZIG: the licences of all that is inside the programs.
licences() {
    local name file
    printf 'The programs of ddprun hold the following, each under its own licence.\n'
    for name in libboost1.81-dev libcli11-dev libspdlog-dev libfmt-dev nlohmann-json3-dev \
        libxxhash-dev libssl-dev libsqlite3-dev; do
        printf '\n==== %s (as Debian describes it) ====\n\n' "$name"
        cat "$folder/root/usr/share/doc/$name/copyright"
    done
    printf '\n==== prometheus-cpp ====\n\n'
    cat "$folder/prometheus-cpp/LICENSE"
    for file in libcxx/LICENSE.TXT libcxxabi/LICENSE.TXT libunwind/LICENSE.TXT; do
        [ -f "$1/lib/$file" ] || continue
        printf '\n==== %s (LLVM) ====\n\n' "$file"
        cat "$1/lib/$file"
    done
}

compile() {
    # zig takes -static-pie and links the C library as a shared one all the same: no static keeper.
    export DDPRUN_PACKAGE_FOLDER=$folder DDPRUN_PACKAGE_PROCESSOR=$arch
    cmake -S . -B "$folder/build" -G Ninja -DCMAKE_TOOLCHAIN_FILE="$PWD/packaging/toolchain.cmake" \
        -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-O2 -DCMAKE_UNITY_BUILD=ON \
        -DCMAKE_UNITY_BUILD_BATCH_SIZE=12 -DDDPRUN_WITH_TESTS=OFF -DDDPRUN_WITH_TORCH=OFF \
        -DDDPRUN_WITH_CUDA=OFF -DDDPRUN_HAS_STATIC_PIE=OFF
    nice ninja -C "$folder/build" -j "$jobs"
    rm -rf "$folder/installed"
    cmake --install "$folder/build" --component programs --prefix "$folder/installed"
}

# runs COMMAND...: where the programs made here run.
runs() {
    if [ "$arch" = "$machine" ]; then
        "$@"
    else
        packaging/emulated.sh "$arch" env QEMU_LD_PREFIX="$folder/runs-in" "$@"
    fi
}

# In the folder of the programs, whose objects they share.
run_tests() {
    cmake -S . -B "$folder/build" -DDDPRUN_WITH_TESTS=ON -DDDPRUN_WITH_CLUSTER_TESTS=OFF
    nice ninja -C "$folder/build" -j "$jobs" tests_unit tests_scenario
    # Python is this machine's.
    local left_out='^python_' as_user=()
    if [ "$arch" != "$machine" ]; then
        # A case of process_unit counts threads, another forks and never ends; plan_nvml_unit takes
        # longer than its samples are old.
        say "LEFT OUT: process_unit under the emulator, which has threads of its own"
        say "LEFT OUT: plan_nvml_unit under the emulator, which is too slow for its half second"
        left_out+='|^(process_unit|plan_nvml_unit)$'
        # The root of the emulator's name spaces cannot become another user, as tests do that look
        # at what a user may not do.
        as_user=(unshare --user --map-user=1000)
    fi
    runs "${as_user[@]}" ctest --test-dir "$folder/build" --output-on-failure --no-tests=error \
        -L 'unit|scenario' -E "$left_out" || die "tests failed as they are compiled for $arch"
}

# Programs for glibc 2.28 need no more than it: nothing newer, no library beside it.
check_programs() {
    local file newest needed
    for file in "$folder"/installed/bin/*; do
        [ ! -L "$file" ] || continue
        # Binutils' objdump knows no other processor's programs and says nothing of them.
        newest=$(readelf -VW "$file" | sed -n 's/.*Name: GLIBC_\([0-9.]*\).*/\1/p' |
            sort -V | tail -1)
        [ -n "$newest" ] || die "$file needs no C library: readelf -V does not know it"
        [ "$(printf '%s\n' "$newest" "$glibc" | sort -V | tail -1)" = "$glibc" ] ||
            die "$file needs glibc $newest: readelf -V shows what of it"
        needed=$(readelf -dW "$file" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
            grep -vxE '(lib(c|m|dl|pthread|rt|resolv|util)|ld-linux-.*)\.so\.[0-9]+' || true)
        [ -z "$needed" ] || die "$file needs $needed beside the C library"
        # Kernels for arm64 have pages of 4, 16 or 64 KiB: RHEL 8 of 64.
        [ "$arch" != aarch64 ] || ! readelf -lW "$file" | grep -E '^ *LOAD' | grep -qv '0x10000$' ||
            die "$file does not load where a page has 64 KiB: readelf -l shows its alignment"
        say "$(basename "$file"): glibc $newest, $(stat -c %s "$file") bytes"
    done
}

make_wheel() {
    local who=()
    [ "$maintainer" = "$nobody" ] || who=(--maintainer "$maintainer")
    wheel=$(python3 packaging/wheel.py --installed "$folder/installed" --version "$version" \
        --platform "manylinux_2_28_$arch" --out "$top" --licence LICENSE \
        --licence "$folder/THIRD_PARTY_LICENSES.txt" "${who[@]}")
}

check_wheel() {
    # It fails where the wheel needs more than its name says. It offers only the platforms of the
    # machine that it takes this one for.
    PATH=$tools/bin:$PATH "$tools/bin/python" -c 'import platform, sys
platform.machine = lambda arch=sys.argv.pop(1): arch
from auditwheel.main import main
sys.exit(main())' "$arch" repair --plat "manylinux_2_28_$arch" \
        --wheel-dir "$folder/audited" "$wheel" || die "auditwheel refuses $wheel"
    "$tools/bin/twine" check --strict "$wheel"
}

# What lies beside the programs, but in a wheel.
make_pages() {
    runs python3 packaging/pages.py "$folder/installed/bin" "$folder/installed/share"
    mkdir -p "$folder/installed/share/doc/ddprun" "$folder/installed/lib/systemd/system"
    cp LICENSE "$folder/THIRD_PARTY_LICENSES.txt" "$folder/installed/share/doc/ddprun/"
    cp packaging/systemd/ddprun-rendezvous.service "$folder/installed/lib/systemd/system/"
    python3 -B tests/packaging/pages.py --made "$folder/installed/share" . ||
        die "man pages and completions are not what the table of flags says"
}

# pack FORMAT TREE ARCHITECTURE: what lies in TREE, by CPack.
pack() {
    DDPRUN_VERSION=$version DDPRUN_OUT=$top DDPRUN_TREE=$2 DDPRUN_ARCHITECTURE=$3 \
        DDPRUN_MAINTAINER=$maintainer \
        cpack --config packaging/cpack.cmake -G "$1" || die "cpack makes no $1"
    rm -rf "$top/_CPack_Packages"
}

# The programs lie together in /usr/libexec/ddprun, as they look for each other; links are in PATH.
make_deb() {
    local tree=$folder/deb program changelog
    rm -rf "$tree"
    mkdir -p "$tree"/usr/{bin,lib,libexec/ddprun,share/doc/ddprun} "$tree/etc/default"
    find "$folder/installed/bin" -type f -exec cp -t "$tree/usr/libexec/ddprun" {} +
    for program in ddprun ddprun-rendezvous ddpctl; do
        ln -s "../libexec/ddprun/$program" "$tree/usr/bin/$program"
    done
    ln -s ../libexec/ddprun/ddprun "$tree/usr/bin/ddprun-launch"
    cp -r "$folder"/installed/share/{man,bash-completion,fish,zsh,ddprun} "$tree/usr/share/"
    mv "$tree/usr/share/zsh/site-functions" "$tree/usr/share/zsh/vendor-completions"
    gzip -9n "$tree"/usr/share/man/man1/*
    cp -r "$folder/installed/lib/systemd" "$tree/usr/lib/"
    cp packaging/systemd/ddprun-rendezvous.default "$tree/etc/default/ddprun-rendezvous"
    changelog=$(sed "s/@VERSION@/$version/" packaging/deb/changelog)
    printf '%s\n' "${changelog/@MAINTAINER@/"$maintainer"}" | gzip -9n \
        >"$tree/usr/share/doc/ddprun/changelog.gz"
    cp packaging/deb/copyright "$tree/usr/share/doc/ddprun/"
    gzip -9n <"$folder/THIRD_PARTY_LICENSES.txt" \
        >"$tree/usr/share/doc/ddprun/THIRD_PARTY_LICENSES.gz"
    chmod -R go=rX "$tree"
    pack DEB "$tree" "$debian_arch"
    deb=$top/ddprun_${version}_$debian_arch.deb
}

check_deb() {
    [ "$(dpkg-deb --field "$deb" Maintainer)" = "$maintainer" ] ||
        die "$deb names another maintainer than $maintainer"
    if ! command -v lintian >/dev/null; then
        say "LEFT OUT: lintian is not installed, so nobody has judged $deb"
        return
    fi
    lintian --fail-on error,warning --allow-root "$deb" || die "lintian refuses $deb"
}

make_tarball() {
    pack TGZ "$folder/installed" "$arch"
    tarball=$top/ddprun-$version-linux-$arch.tar.gz
}

install_tools() {
    [ ! -x "$tools/bin/auditwheel" ] || return 0
    python3 -m venv "$tools"
    "$tools/bin/pip" install --disable-pip-version-check -r packaging/tools.txt
}

steps=('install_tools installing what judges wheels'
    'lay_out laying out compiler, headers and libraries'
    'compile compiling the programs'
    'check_programs checking the programs'
    'make_wheel making the wheel'
    'check_wheel judging the wheel')
[ "$with_tests" = no ] || steps+=('run_tests compiling and running the tests')
[ "$wheel_only" = yes ] || steps+=('make_pages making man pages and completions'
    'make_deb making the Debian package'
    'check_deb judging the Debian package'
    'make_tarball making the tarball')
for each in "${steps[@]}"; do
    step "${each%% *}" "${each#* }"
done
[ "$maintainer" != "$nobody" ] ||
    say "nobody answers for these packages: who publishes them gives --maintainer"
for made in "$wheel" "${deb:-}" "${tarball:-}"; do
    [ -z "$made" ] || say "made $made"
done
say "done in $SECONDS s"
