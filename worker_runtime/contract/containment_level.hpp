#pragma once

#include <array>
#include <optional>
#include <string_view>

/// How much holds the workers of a node together, so that none survives its generation.
/// docs/containment.md has the promises.
namespace ddprun {

enum class ContainmentLevel {
    Cgroup,        ///< a cgroup v2, beside what Keeper does
    PidNamespace,  ///< the keeper is the first process of a PID namespace; only if asked for
    Keeper,        ///< whatever a process leaves behind becomes the keeper's
    Session,       ///< each worker's session, no more
};

struct ContainmentNames {
    ContainmentLevel level;
    std::string_view word;  ///< of --containment, and between agent and keeper
    std::string_view name;  ///< for people
};

inline constexpr std::array<ContainmentNames, 4> kContainmentNames = {{
    {ContainmentLevel::Cgroup, "cgroup", "C3 (cgroup)"},
    {ContainmentLevel::PidNamespace, "pid-namespace", "C2 (pid-namespace)"},
    {ContainmentLevel::Keeper, "keeper", "C1 (keeper)"},
    {ContainmentLevel::Session, "session", "C0 (session)"},
}};

[[nodiscard]] constexpr const ContainmentNames& names_of(ContainmentLevel level) {
    for (const ContainmentNames& one : kContainmentNames) {
        if (one.level == level) {
            return one;
        }
    }
    return kContainmentNames.back();  // no other level exists
}

/// Whether a cgroup is to be tried where `wanted` was asked for; none: whatever can be had. A PID
/// namespace does without if it must.
[[nodiscard]] constexpr bool allows_cgroup(std::optional<ContainmentLevel> wanted) {
    return !wanted || *wanted == ContainmentLevel::Cgroup ||
           *wanted == ContainmentLevel::PidNamespace;
}

/// The level of that word; none: there is no such word.
[[nodiscard]] constexpr std::optional<ContainmentLevel> containment_of(std::string_view word) {
    for (const ContainmentNames& one : kContainmentNames) {
        if (one.word == word) {
            return one.level;
        }
    }
    return std::nullopt;
}

}  // namespace ddprun
