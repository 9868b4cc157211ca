#pragma once

#include <poll.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/result.hpp"

/// The common part of the programs that are one rank of a test: the test reads what a rank says.
namespace ddprun::test {

using Arguments = std::vector<std::string>;

/// A line, at once: the rank may be killed next.
inline void say(const std::string& line) {
    fmt::print("{}\n", line);
    (void)std::fflush(stdout);
}

/// Ends the rank; the test fails with this line.
[[noreturn]] inline void wrong(const std::string& what) {
    say("wrong: " + what);
    std::exit(1);
}

inline void require(bool is_right, const std::string& what) {
    if (!is_right) {
        wrong(what);
    }
}

/// The number in an environment variable, or wrong().
inline int number(const char* name) {
    const char* const text = std::getenv(name);
    require(text != nullptr, std::string(name) + " is missing");
    return std::atoi(text);
}

/// The value of `result`, or wrong().
template <typename T>
T must(Result<T> result) {
    if (!result) {
        wrong(result.error().what);
    }
    if constexpr (!std::is_void_v<T>) {
        return std::move(*result);
    }
}

/// A figure of /proc/self/status, in bytes.
inline std::int64_t status_bytes(const std::string& name) {
    std::ifstream status("/proc/self/status");
    for (std::string line; std::getline(status, line);) {
        if (line.starts_with(name + ":")) {
            return std::stoll(line.substr(name.size() + 1)) * 1024;
        }
    }
    wrong("no " + name + " in /proc/self/status");
}

/// Until it is killed.
[[noreturn]] inline void hang() {
    for (;;) {
        (void)poll(nullptr, 0, -1);
    }
}

}  // namespace ddprun::test
