#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <array>
#include <cerrno>
#include <cstddef>

namespace ddprun::test {

/// For this process and all that it starts the kernel is as old as Linux 4.18, that of RHEL 8: it
/// knows no pidfd_open(), no waitid() for a pidfd, no clone3(), close_range() or futex_waitv().
/// False: this machine allows no filter.
[[nodiscard]] inline bool make_kernel_old() {
    constexpr unsigned int kFutexWaitv = 449;
    constexpr unsigned int kPidfdIdType = 3;  // P_PIDFD
    const auto fail_with = [](unsigned int error) {
        return sock_filter{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | error};
    };
    std::array<sock_filter, 11> program{{
        {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
        {BPF_JMP | BPF_JEQ | BPF_K, 8, 0, SYS_pidfd_open},
        {BPF_JMP | BPF_JEQ | BPF_K, 7, 0, SYS_clone3},
        {BPF_JMP | BPF_JEQ | BPF_K, 6, 0, SYS_close_range},
        {BPF_JMP | BPF_JEQ | BPF_K, 5, 0, kFutexWaitv},
        {BPF_JMP | BPF_JEQ | BPF_K, 0, 3, SYS_waitid},
        {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, args)},
        {BPF_JMP | BPF_JEQ | BPF_K, 0, 1, kPidfdIdType},
        fail_with(EINVAL),
        {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
        fail_with(ENOSYS),
    }};
    const sock_fprog filter{program.size(), program.data()};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter, 0, 0) == 0;
}

/// The exit code of a program of ours that make_kernel_old() has failed for.
inline constexpr int kNoFilter = 77;

}  // namespace ddprun::test
