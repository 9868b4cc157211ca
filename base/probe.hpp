#pragma once

/// DDP_PROBE(name) marks a rare branch. In the simulator's own build of the cores each is counted,
/// and those that a long run never reached are listed (ddprun-sim --probes): no check
/// judges a branch that no fault reaches. Any other build has nothing of it.

#ifdef DDPRUN_WITH_PLANTED_BUGS

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>

namespace ddprun {

/// By name, how often each probe of this program was passed; 0 for a probe that never was.
inline std::map<std::string_view, std::uint64_t>& probes() {
    static std::map<std::string_view, std::uint64_t> all;
    return all;
}

template <std::size_t length>
struct ProbeName {
    // NOLINTNEXTLINE(google-explicit-constructor): a template argument is written as a literal.
    consteval ProbeName(const char (&name)[length]) { std::copy_n(name, length, text); }
    char text[length] = {};
};

/// One of each name, known before main() because the program has a call of pass().
template <ProbeName name>
struct Probe {
    static void pass() { ++count; }
    static inline std::uint64_t& count = probes()[name.text];
};

}  // namespace ddprun

#define DDP_PROBE(name) ::ddprun::Probe<#name>::pass()
#else
#define DDP_PROBE(name) static_cast<void>(0)
#endif
