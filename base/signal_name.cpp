#include "base/signal_name.hpp"

#include <array>
#include <cstddef>
#include <string_view>

#include <fmt/format.h>

namespace ddprun {

namespace {

/// By number, from 1: Linux's on x86-64 and arm64. The C library knows them from 2.32 on only.
constexpr std::array<std::string_view, 31> kNames = {
    "HUP",  "INT",  "QUIT", "ILL",    "TRAP",   "ABRT",  "BUS",  "FPE",  "KILL", "USR1", "SEGV",
    "USR2", "PIPE", "ALRM", "TERM",   "STKFLT", "CHLD",  "CONT", "STOP", "TSTP", "TTIN", "TTOU",
    "URG",  "XCPU", "XFSZ", "VTALRM", "PROF",   "WINCH", "POLL", "PWR",  "SYS",
};

}  // namespace

std::string signal_name(int signal) {
    const auto index = static_cast<std::size_t>(signal) - 1;
    if (signal < 1 || index >= kNames.size()) {
        return fmt::format("signal {}", signal);
    }
    return fmt::format("SIG{}", kNames[index]);
}

}  // namespace ddprun
